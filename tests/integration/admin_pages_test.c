/* admin_pages_test.c - the admin ports of the real programs: metrics as a linter wants them, health, readiness. */
#include <string.h>

#include "tests/harness/harness.h"
#include "tests/harness/metrics_lint.h"
#include "tests/harness/proc.h"

static void check_pages(struct proc *p)
{
    const char *body, *fault;

    proc_ready_wait(p, harness_ms(30000));
    assert_int_equal(proc_get(p, "/healthz", &body), 200);
    assert_string_equal(body, "ok\n");
    assert_int_equal(proc_get(p, "/readyz", &body), 200);
    assert_memory_equal(body, "ready\n", sizeof "ready\n" - 1); /* then what conditions have to say */
    assert_int_equal(proc_get(p, "/metrics", &body), 200);
    fault = metrics_lint(body);
    if (fault)
        print_error("%s\n", fault);
    assert_null(fault);
    assert_true(proc_metric(p, "process_resident_memory_bytes") > 0);
    proc_stop(p);
}

static void test_relay_pages(void **state)
{
    struct harness *h = *state;

    check_pages(relay_start(h, "--set", "relay.topic_partitions=1", NULL));
}

static void test_writer_pages(void **state)
{
    struct harness *h = *state;

    check_pages(writer_start(h, NULL));
}

static bool is_unready(void *p)
{
    const char *body;

    return proc_get(p, "/readyz", &body) == 503 && strstr(body, ": ") != NULL;
}

static bool is_ready(void *p)
{
    return proc_get(p, "/readyz", NULL) == 200;
}

/* Readiness names what is missing and comes back with it; the process stays healthy meanwhile. */
static void test_readiness_follows_postgres(void **state)
{
    struct harness *h = *state;
    struct proc *p = writer_start(h, NULL);

    proc_ready_wait(p, harness_ms(30000));
    harness_service(h, "stop", "postgres");
    assert_eventually(is_unready, p, harness_ms(30000));
    assert_int_equal(proc_get(p, "/healthz", NULL), 200);
    harness_service(h, "start", "postgres");
    assert_eventually(is_ready, p, harness_ms(60000));
    proc_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_relay_pages, HARNESS_DB | HARNESS_KAFKA),
        HARNESS_TEST(test_writer_pages, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_readiness_follows_postgres, HARNESS_DB | HARNESS_STORE | HARNESS_OWN_PG),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
