/*
 * lister_http_load_test.c - the lister's HTTP server under slow, many, greedy and vanishing clients.
 */
#include "tests/harness/http_world.h"
#include "tests/harness/metrics_lint.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- time ---- */

/* Sends a byte each 20 ms until the server ends it. */
static void drip(int fd, const char *text, int status)
{
    struct reply r;
    mono_us until = deadline_in_ms(PATIENCE_MS);

    for (size_t i = 0;; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (poll(&p, 1, 20) == 1)
            break;
        if (clock_mono_us() > until)
            fail_msg("the slow client is still there");
        try_write(fd, i < strlen(text) ? text + i : "x", 1);
    }
    r = next_reply(fd);
    assert_int_equal(r.status, status);
    if (status)
        assert_non_null(strstr(r.body, "request_timeout"));
    reply_free(&r);
    expect_end(fd);
    close(fd);
}

static void test_slow_headers_are_ended(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.header_timeout_ms = 1500;
    w->cfg.idle_timeout_ms = 1000;
    start(w);
    drip(dial_world(w), "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", 408);
    fd = dial_world(w); /* says nothing at all */
    expect_end(fd);
    close(fd);
    fd = dial_world(w);
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    drip(fd, "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", 0);
    ask(w, "/", "", 200, NULL);
}

static void test_slow_bodies_are_ended(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.request_timeout_ms = 300;
    start(w);
    fd = dial_world(w);
    say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n");
    drip(fd, "", 408);
    assert_int_equal(atomic_load(&ran), 0);
}

/* In a process of its own: its sockets are not ours to count. Writes how many there are, holds them until it is told.
 */
static pid_t hold_connections(int port, int n, int *control)
{
    int pair[2];
    pid_t pid;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int got = 0;
        char c;

        close(pair[0]);
        while (got < n && dial(port) >= 0)
            got++;
        if (write(pair[1], &got, sizeof got) != sizeof got)
            _exit(1);
        (void)!read(pair[1], &c, 1);
        _exit(0);
    }
    close(pair[1]);
    *control = pair[0];
    return pid;
}

static void test_ten_thousand_idle_connections(void **state)
{
    struct world *w = *state;
    struct rlimit files;
    int control, got = 0, want = 10000, status;
    pid_t pid;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < (rlim_t)want + 200) {
        want = (int)files.rlim_cur - 200;
        print_message("the limit of open files allows %d connections only\n", want);
    }
    w->cfg.connections = want + 10;
    start(w);
    pid = hold_connections(w->port, want, &control);
    assert_int_equal(read(control, &got, sizeof got), sizeof got);
    assert_int_equal(got, want);
    for (int i = 0; i < 20; i++)
        ask(w, "/", "", 200, NULL);
    close(control);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    ask(w, "/", "", 200, NULL);
}

/* At its bound the server takes no more until one leaves. */
static void test_connections_are_bounded(void **state)
{
    struct world *w = *state;
    int fds[8], fd;

    w->cfg.connections = 8;
    start(w);
    for (int i = 0; i < 8; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/", "");
        expect(fds[i], 200, NULL, NULL);
    }
    fd = dial_world(w);
    get(fd, "/", "");
    assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 50), 0);
    close(fds[3]);
    expect(fd, 200, NULL, NULL);
    close(fd);
    for (int i = 0; i < 8; i++) {
        if (i != 3)
            close(fds[i]);
    }
}

static long resident_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long pages = 0;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_memory_of_a_thousand_connections(void **state)
{
    struct world *w = *state;
    static int fds[1000];
    long before, after;

    w->cfg.connections = 1100;
    start(w);
    ask(w, "/", "", 200, NULL);
    before = resident_kib();
    for (int i = 0; i < 1000; i++) {
        fds[i] = dial_world(w);
        for (int k = 0; k < 2; k++) {
            get(fds[i], "/?some=parameter", "X-Some: header\r\n");
            expect(fds[i], 200, NULL, NULL);
        }
    }
    after = resident_kib();
    print_message("1,000 connections take %ld KiB\n", after - before);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(after - before < 48 * 1024);
#endif
    for (int i = 0; i < 1000; i++)
        close(fds[i]);
}

/* ---- overload ---- */

static double gauge(struct metric *m)
{
    int64_t bits = atomic_load(&m->value);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Requests that are queued or worked on, as the metric shows them. */
static bool in_flight_comes_to(int want)
{
    mono_us until = deadline_in_ms(PATIENCE_MS);

    for (;;) {
        if ((int)gauge(&http_in_flight) == want)
            return true;
        if (clock_mono_us() > until)
            return false;
        usleep(500);
    }
}

static void test_a_full_queue_refuses_at_once(void **state)
{
    struct world *w = *state;
    int fds[4], fd;

    w->cfg.workers = 2;
    w->cfg.queue = 2;
    start(w);
    for (int i = 0; i < 4; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/block", "");
        assert_true(in_flight_comes_to(i + 1));
        if (i < 2) /* a worker has it: it takes no place in the queue */
            assert_true(comes_to(&blocked, i + 1));
    }
    /* Nothing here waits for a worker: both are blocked. */
    fd = dial_world(w);
    for (int i = 0; i < 3; i++) {
        struct reply r;

        get(fd, "/open", "");
        r = next_reply(fd);
        assert_int_equal(r.status, 503);
        assert_non_null(strcasestr(r.head, "Retry-After: 1\r\n"));
        assert_non_null(strstr(r.body, "\"code\":\"overloaded\""));
        reply_free(&r);
    }
    assert_int_equal(atomic_load(&blocked), 2);
    assert_int_equal(atomic_load(&ran), 2);
    atomic_store(&released, true);
    for (int i = 0; i < 4; i++) {
        expect(fds[i], 200, NULL, "released");
        close(fds[i]);
    }
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    close(fd);
}

static void test_one_caller_cannot_take_all(void **state)
{
    struct world *w = *state;
    int fds[3], fd;

    w->cfg.caller_in_flight = 3;
    start(w);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/block", "");
    }
    assert_true(comes_to(&blocked, 3));
    fd = dial_world(w);
    get(fd, "/", "");
    expect(fd, 503, "Retry-After", "caller_busy");
    get(fd, "/open", ""); /* needs no caller */
    expect(fd, 200, NULL, "caller=\n");
    atomic_store(&released, true);
    for (int i = 0; i < 3; i++) {
        expect(fds[i], 200, NULL, NULL);
        close(fds[i]);
    }
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    close(fd);
}

static void test_what_waited_too_long_is_not_run(void **state)
{
    struct world *w = *state;
    int first, second;

    w->cfg.workers = 1;
    w->cfg.request_timeout_ms = 2000; /* the first, which runs, has twice that */
    start(w);
    first = dial_world(w);
    get(first, "/block", "");
    assert_true(comes_to(&blocked, 1));
    second = dial_world(w);
    get(second, "/", "");
    assert_int_equal(poll(&(struct pollfd){.fd = second, .events = POLLIN}, 1, 3000), 0);
    atomic_store(&released, true);
    expect(first, 200, NULL, NULL);
    expect(second, 503, "Retry-After", "waited too long");
    assert_int_equal(atomic_load(&ran), 1);
    close(first);
    close(second);
}

/* Each body is within its bound, all together are not. */
static void test_bodies_of_all_are_bounded(void **state)
{
    enum { N = 40, SIZE = 1 << 20 };
    struct world *w = *state;
    char *body = malloc(SIZE);
    int fds[N], taken = 0, refused = 0;

    w->cfg.body_max = SIZE;
    w->cfg.queue = N;
    start(w);
    assert_non_null(body);
    memset(body, 'x', SIZE);
    for (int i = 0; i < N; i++) {
        fds[i] = dial_world(w);
        say(fds[i], "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n");
        assert_true(try_write(fds[i], body, SIZE - 1));
    }
    for (int i = 0; i < N; i++) {
        struct reply r;

        assert_true(try_write(fds[i], body, 1));
        r = next_reply(fds[i]);
        taken += r.status == 200;
        refused += r.status == 503 && strstr(r.body, "\"overloaded\"");
        reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(taken + refused, N);
    assert_true(taken >= 1 && refused >= 1);
    free(body);
    ask(w, "/", "", 200, NULL);
}

/* Answers that nobody reads do not stay. */
static void test_clients_that_do_not_read_are_ended(void **state)
{
    struct world *w = *state;
    mono_us until = deadline_in_ms(PATIENCE_MS);
    int fd;

    w->cfg.idle_timeout_ms = 1000;
    start(w);
    fd = dial_world(w);
    for (int i = 0; i < 8; i++)
        get(fd, "/big", "");
    while (gauge(&http_connections) < 1 && clock_mono_us() < until)
        usleep(500);
    while (gauge(&http_connections) > 0) {
        if (clock_mono_us() > until)
            fail_msg("the connection is still there");
        usleep(5000);
    }
    close(fd);
}

/* A handler that is far over its time is cancelled. */
static void test_late_handlers_are_cancelled(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.request_timeout_ms = 1000;
    start(w);
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    expect_end(fd);
    assert_true(comes_to(&cancelled, 1));
    close(fd);
}

static void test_metrics(void **state)
{
    struct world *w = *state;
    struct buf page;

    http_metrics_register();
    callers_metrics_register();
    start(w);
    ask(w, "/", "", 200, NULL);
    buf_init(&page, 1 << 20);
    metrics_render(&page);
    assert_non_null(strstr(buf_str(&page), "relata_lister_http_requests_total{status=\"2xx\"} "));
    assert_non_null(strstr(buf_str(&page), "relata_lister_http_refused_total{reason=\"queue_full\"} "));
    assert_non_null(strstr(buf_str(&page), "relata_lister_callers_identified_total{by=\"anonymous\"} "));
    if (metrics_lint(buf_str(&page)))
        fail_msg("%s", metrics_lint(buf_str(&page)));
    buf_release(&page);
}

/* ---- hang-ups ---- */

static void test_hanging_up_cancels(void **state)
{
    struct world *w = *state;
    struct linger reset = {.l_onoff = 1};
    int fd;

    start(w);
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    close(fd);
    assert_true(comes_to(&cancelled, 1));
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    close(fd);
    assert_true(comes_to(&cancelled, 2));
    assert_true(comes_to(&blocked, 0));
    ask(w, "/", "", 200, NULL);
}

static void test_hanging_up_in_the_queue_costs_no_work(void **state)
{
    struct world *w = *state;
    int64_t hangups = metric_count(&http_hangups);
    mono_us until = deadline_in_ms(PATIENCE_MS);
    int first, second;

    w->cfg.workers = 1;
    start(w);
    first = dial_world(w);
    get(first, "/block", "");
    assert_true(comes_to(&blocked, 1));
    second = dial_world(w);
    get(second, "/", "");
    while (metric_count(&http_hangups) == hangups && clock_mono_us() < until) {
        if (second >= 0)
            close(second);
        second = -1;
        usleep(500);
    }
    /* It may have left before it was queued, or after: in neither case is it run. */
    atomic_store(&released, true);
    expect(first, 200, NULL, NULL);
    ask(w, "/", "", 200, NULL);
    assert_int_equal(atomic_load(&ran), 2);
    close(first);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        HTTP_TEST(test_slow_headers_are_ended),
        HTTP_TEST(test_slow_bodies_are_ended),
        HTTP_TEST(test_ten_thousand_idle_connections),
        HTTP_TEST(test_connections_are_bounded),
        HTTP_TEST(test_memory_of_a_thousand_connections),
        HTTP_TEST(test_a_full_queue_refuses_at_once),
        HTTP_TEST(test_one_caller_cannot_take_all),
        HTTP_TEST(test_what_waited_too_long_is_not_run),
        HTTP_TEST(test_bodies_of_all_are_bounded),
        HTTP_TEST(test_clients_that_do_not_read_are_ended),
        HTTP_TEST(test_late_handlers_are_cancelled),
        HTTP_TEST(test_metrics),
        HTTP_TEST(test_hanging_up_cancels),
        HTTP_TEST(test_hanging_up_in_the_queue_costs_no_work),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
