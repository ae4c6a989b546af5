/* clock_test.c - deadlines, back-off, the stop flag. */
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/stop.h"

static void test_deadlines_saturate(void **state)
{
    mono_us before = clock_mono_us();
    mono_us d = deadline_in_ms(1000);

    (void)state;
    assert_true(d >= before + 1000000);
    assert_true(deadline_in_ms(-5) <= clock_mono_us());
    assert_true(deadline_in_ms(INT64_MAX) == DEADLINE_NONE);
    assert_true(deadline_in_ms(INT64_MAX / 1000) == DEADLINE_NONE);
    assert_true(deadline_min(d, DEADLINE_NONE) == d);
    assert_true(deadline_min(DEADLINE_NONE, d) == d);
}

static void test_poll_time_is_rounded_up_and_fits(void **state)
{
    (void)state;
    assert_int_equal(deadline_poll_ms(DEADLINE_NONE), -1);
    assert_int_equal(deadline_poll_ms(clock_mono_us() - 1), 0);
    assert_int_equal(deadline_poll_ms(0), 0);
    assert_int_equal(deadline_poll_ms(DEADLINE_NONE - 1), INT_MAX);
    /* Never 0 before the deadline: that would be a busy loop. */
    for (int i = 0; i < 1000; i++) {
        mono_us d = clock_mono_us() + 300000000;
        int ms = deadline_poll_ms(d);

        assert_true(ms > 0 && ms <= 300000);
    }
}

static void test_backoff_stays_within_its_range(void **state)
{
    int64_t least = INT64_MAX, most = 0;

    (void)state;
    for (int i = 0; i < 4000; i++) {
        int64_t ms = backoff_ms(3, 100, 5000);

        assert_in_range(ms, 50, 800);
        least = ms < least ? ms : least;
        most = ms > most ? ms : most;
    }
    assert_true(least < 150 && most > 700); /* spread over the whole range */
    for (unsigned attempt = 0; attempt < 200; attempt++)
        assert_in_range(backoff_ms(attempt, 100, 5000), 50, 5000);
    assert_in_range(backoff_ms(0, 100, 5000), 50, 100);
    assert_in_range(backoff_ms(UINT_MAX, INT64_MAX / 2, INT64_MAX), INT64_MAX / 4, INT64_MAX);
    assert_in_range(backoff_ms(5, 0, 0), 0, 1);
    assert_in_range(backoff_ms(5, 1000, 10), 0, 10);
}

static void test_wall_and_cpu_time(void **state)
{
    int64_t cpu = clock_cpu_us();

    (void)state;
    assert_true(clock_wall_us() > 1700000000LL * 1000000);
    while (clock_cpu_us() < cpu + 1000)
        ;
    assert_true(clock_cpu_us() >= cpu + 1000);
}

/* Each in a process of its own: the flag cannot be lowered. */
static int run_child(void (*child)(void))
{
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        child();
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void child_one_signal(void)
{
    struct pollfd p;

    if (stop_fd() != -1 || stop_requested())
        _exit(1);
    stop_init();
    p = (struct pollfd){.fd = stop_fd(), .events = POLLIN};
    if (poll(&p, 1, 0) != 0 || stop_sleep_until(clock_mono_us() + 1000) != ST_OK)
        _exit(2);
    raise(SIGTERM);
    if (!stop_requested() || poll(&p, 1, 0) != 1)
        _exit(3);
    /* Ends at once although the deadline never comes. */
    _exit(stop_sleep_until(DEADLINE_NONE) == ST_STOPPED ? 0 : 4);
}

static void child_two_signals(void)
{
    stop_init();
    raise(SIGINT);
    raise(SIGTERM);
}

static void child_request_then_signal(void)
{
    stop_init();
    stop_request();
    stop_request();
    raise(SIGTERM); /* the first from outside: still drains */
    _exit(stop_requested() ? 0 : 1);
}

static void child_pipe(void)
{
    int fds[2];

    stop_init();
    if (pipe(fds) != 0)
        _exit(1);
    close(fds[0]);
    _exit(write(fds[1], "x", 1) == -1 ? 0 : 2);
}

static void test_first_signal_raises_the_flag(void **state)
{
    (void)state;
    assert_int_equal(run_child(child_one_signal), 0);
}

static void test_second_signal_ends_at_once(void **state)
{
    (void)state;
    assert_int_equal(run_child(child_two_signals), EXIT_KILLED);
}

static void test_own_request_does_not_count_as_signal(void **state)
{
    (void)state;
    assert_int_equal(run_child(child_request_then_signal), 0);
}

static void test_broken_pipe_does_not_kill(void **state)
{
    (void)state;
    assert_int_equal(run_child(child_pipe), 0);
}

static void test_text_of_a_time(void **state)
{
    char out[CLOCK_TEXT_MAX];

    (void)state;
    clock_text(0, 3, out);
    assert_string_equal(out, "1970-01-01T00:00:00.000Z");
    clock_text(1767323045006789, 3, out);
    assert_string_equal(out, "2026-01-02T03:04:05.006Z");
    clock_text(1767323045006789, 6, out);
    assert_string_equal(out, "2026-01-02T03:04:05.006789Z");
    clock_text(INT64_C(253402300799999999), 6, out);
    assert_string_equal(out, "9999-12-31T23:59:59.999999Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlines_saturate),
        cmocka_unit_test(test_poll_time_is_rounded_up_and_fits),
        cmocka_unit_test(test_backoff_stays_within_its_range),
        cmocka_unit_test(test_wall_and_cpu_time),
        cmocka_unit_test(test_first_signal_raises_the_flag),
        cmocka_unit_test(test_second_signal_ends_at_once),
        cmocka_unit_test(test_own_request_does_not_count_as_signal),
        cmocka_unit_test(test_broken_pipe_does_not_kill),
        cmocka_unit_test(test_text_of_a_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
