/*
 * writer_settings_test.c - O02: each setting changes what tuple-writer does; and the least rights are enough.
 */
#include "tests/integration/writer_helpers.h"

static void test_O02_name_lanes_and_batch(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 60) i");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "writer.name=the-one", "--set", "writer.batch=7", "--set", "writer.lanes=3", NULL);
    assert_converged(h, CONVERGE_MS);
    assert_string_equal(harness_sql_text(h, "SELECT name FROM relata.writer"), "the-one");
    for (int i = 0; i < write_count(f); i++)
        assert_in_range(write_size(f, i), 1, 7);
    assert_true(proc_metric(w, "relata_writer_send_limit") == 3);
    /* A lane connects when it first has something to do. */
    assert_in_range(
        harness_sql_int(h, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relata tuple-writer lane' "
                           "AND datname = current_database()"),
        2, 3);
    proc_stop(w);
    fake_store_stop(f);
}

/* Another store's rows are none of this writer's business. */
static void test_O02_store_name(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:x', store => 'other')");
    grant_tuple(h, "doc:2", "viewer", "user:x");
    struct proc *w = writer_start(h, NULL);
    assert_sql_eventually(h, "SELECT string_agg(store, ' ') FROM relata.outbox", "other", WAIT_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    proc_stop(w);
    harness_sqlf(h, "INSERT INTO relata.store (name, store_id, model_id) VALUES ('other', '%s', '%s')", h->store_id,
                 h->model_id);
    w = writer_start(h, "--set", "store.name=other", NULL);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS);
    proc_stop(w);
}

/* Retries every 20 ms at most, against an interval that a first retry does not reach. */
static void test_O02_retry_bounds(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int rule = fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_REPLY, .status = 503});
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "writer.retry_min=10ms", "--set", "writer.retry_max=20ms", "--set",
                                  "writer.circuit_failures=1000", "--set", "store.late_window=100ms", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, rule, 20);
    proc_stop(w);
    int before = write_count(f);
    w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "writer.retry_min=60s",
                     "--set", "writer.retry_max=60s", "--set", "store.late_window=100ms", NULL);
    assert_metric_eventually(w, "relata_writer_retries_total{class=\"unknown\"}", 1, WAIT_MS);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    assert_int_equal(write_count(f) - before, 1);
    proc_stop(w);
    fake_store_clear(f);
    fake_store_stop(f);
}

static void test_a_login_with_role_relata_writer_is_enough(void **state)
{
    struct harness *h = *state;
    const char *role = harness_strf(h, "w_%s", h->id);
    harness_sqlf(h, "CREATE ROLE \"%s\" LOGIN PASSWORD 'secret' IN ROLE relata_writer", role);
    const char *dsn = harness_dsn(h, harness_strf(h, "%s:secret", role), NULL, NULL);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "pg.dsn=%s", dsn), NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    grant_tuple(h, "doc:2", "nonsense", "user:x");
    revoke_tuple(h, "doc:3", "viewer", "user:x");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.inflight", "0", WAIT_MS);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 1);
    assert_sql_eventually(h, "SELECT count(*) > 0 FROM relata.probe", "t", WAIT_MS);
    proc_ready_wait(w, WAIT_MS);
    nanosleep(&(struct timespec){.tv_sec = 6}, NULL); /* beyond one round of upkeep */
    assert_false(proc_logged(w, "upkeep failed"));
    proc_stop(w);
    harness_sqlf(h, "DROP ROLE \"%s\"", role);
}

/* An address that is one, where nothing is: told once, and replication goes on. */
static void test_nats_that_is_never_reached_is_no_secret(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, "--set", "nats.url=nats://127.0.0.1:1", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_logged(w, "NATS has not been reached yet", WAIT_MS);
    proc_stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_O02_name_lanes_and_batch, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_O02_store_name, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_O02_retry_bounds, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_nats_that_is_never_reached_is_no_secret, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_login_with_role_relata_writer_is_enough, HARNESS_DB | HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
