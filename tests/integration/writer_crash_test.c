/*
 * writer_crash_test.c - processes that are killed, paused, doubled and stopped; databases that crash. The interleavings
 * are forced: answers are held back where the crash is to happen.
 */
#include <signal.h>

#include "tests/integration/writer_helpers.h"

#define WINDOW_MS 3000

static struct proc *start(struct harness *h, struct fake_store *f)
{
    return writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                        harness_strf(h, "store.late_window=%dms", harness_ms(WINDOW_MS)), NULL);
}

/* Those of this test's database alone: the server is shared with other tests. */
static void end_sessions(struct harness *h)
{
    harness_sql(h, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'relata%' "
                   "AND datname = current_database()");
}

/* Killed between the store's effect and its own acknowledgement: the replay is a no-op. */
static void test_W13_killed_after_the_effect_before_the_acknowledgement(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held =
        fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = 60000});
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 10) i");
    struct proc *w =
        writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                     "store.request_timeout=60s", "--set", "pg.statement_timeout=20s", "--set", "writer.lanes=1", NULL);
    assert_rule_used(f, held, 1);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_int_equal(harness_sql_int(h, "SELECT cardinality(objects) FROM relata.inflight"), 10);
    proc_kill(w);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 10);
    w = start(h, f);
    assert_converged(h, CONVERGE_MS);
    assert_metric_eventually(w, "relata_writer_intents_adopted_total", 1, WAIT_MS);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
    fake_store_stop(f);
}

static bool none_late(void *arg)
{
    return fake_store_late_pending(arg) == 0;
}

/*
 * A writer is killed after its send and before its acknowledgement; its successor applies the revocation; then the old
 * request lands. The intent tells of it: the key is converged again, and acknowledged only then.
 */
static void test_a_dead_writers_request_lands_after_the_revocation(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int late = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_LATE, .delay_ms = harness_ms(5000)});
    grant_tuple(h, "doc:1", "viewer", "user:x");
    struct proc *w = start(h, f);
    assert_rule_used(f, late, 1);
    proc_kill(w);
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                     harness_strf(h, "store.late_window=%dms", harness_ms(10000)), NULL);
    assert_metric_eventually(w, "relata_writer_tuples_total{op=\"delete\"}", 1, WAIT_MS);
    assert_int_not_equal(fake_store_late_pending(f), 0);
    assert_eventually(none_late, f, WAIT_MS);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 2); /* the token waits for the end */
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    assert_true(proc_metric(w, "relata_writer_late_effects_undone_total") == 1);
    proc_stop(w);
    fake_store_stop(f);
}

/* A paused writer holds what it read before the revocation. It is resumed after another one has acknowledged. */
static void test_a_paused_writer_that_goes_on_does_no_harm(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    /* Its Write is answered, but the writer does not get to read the answer. */
    int held = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(1500)});
    grant_tuple(h, "doc:1", "viewer", "user:x");
    struct proc *first = start(h, f);
    assert_rule_used(f, held, 1);
    proc_freeze(first);
    /* Its sessions are taken from it, so that the other may begin. */
    end_sessions(h);
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    struct proc *second = start(h, f);
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    proc_continue(first);
    assert_metric_eventually(first, "relata_writer_registrations_total", 2, WAIT_MS);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    proc_stop(first);
    proc_stop(second);
    fake_store_stop(f);
}

/* Another writer has applied and acknowledged a newer state when this one's Write takes effect: nothing pends any more,
 * and yet the newer state must be written again. */
static void test_a_newer_state_that_was_overwritten_comes_back(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(3000)});
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.request_timeout=60s", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    harness_sql(h, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:x'); DELETE FROM relata.outbox");
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:x");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.inflight", "0", WAIT_MS);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_W14_sigterm_lets_the_write_in_flight_end(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held =
        fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = 1000});
    struct proc *w = start(h, f);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    proc_signal(w, SIGTERM);
    assert_int_equal(proc_wait(w, WAIT_MS), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.writer WHERE ended_at IS NOT NULL"), 1);
    fake_store_stop(f);
}

static void test_W14_sigterm_is_bounded(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held = fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_HANG});
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.request_timeout=60s", "--set", "writer.drain_timeout=300ms", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    proc_signal(w, SIGTERM);
    assert_int_equal(proc_wait(w, WAIT_MS), 0);
    assert_true(proc_logged(w, "taken up again"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 1);
    fake_store_clear(f);
    w = start(h, f);
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_a_second_signal_ends_at_once(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held = fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_HANG});
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.request_timeout=60s", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    proc_signal(w, SIGTERM);
    proc_signal(w, SIGINT); /* two of a kind at once might be one */
    assert_int_equal(proc_wait(w, WAIT_MS), 137);
    fake_store_stop(f);
}

/* Postgres ends every session while a Write is under way: the acknowledgement fails, the batch is done again. */
static void test_sessions_lost_during_a_write(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(800)});
    struct proc *w = start(h, f);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    end_sessions(h);
    assert_converged(h, CONVERGE_MS);
    assert_metric_eventually(w, "relata_writer_registrations_total", 2, WAIT_MS);
    proc_ready_wait(w, WAIT_MS);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_postgres_restarts_during_an_acknowledgement(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int held = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(1000)});
    struct proc *w = start(h, f);
    proc_ready_wait(w, WAIT_MS);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, held, 1);
    harness_service(h, "kill", "postgres");
    assert_unready_eventually(w, "postgres:");
    harness_service(h, "start", "postgres");
    assert_converged(h, 2 * CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
    fake_store_stop(f);
}

/*
 * A change whose commit is not durable yet (synchronous_commit = off) is applied; then Postgres crashes. The store must
 * not be ahead of what recovery brings back: the intent's commit has made the change durable.
 */
static const char *const slow_wal[] = {"--fsync=on",
                                       "--pg-set=wal_writer_delay=10s",
                                       "--pg-set=wal_writer_flush_after=1GB",
                                       "--pg-set=checkpoint_timeout=1h",
                                       "--pg-set=autovacuum=off",
                                       NULL};

static void test_the_store_is_never_ahead_of_a_crash_of_postgres(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = start(h, f);
    proc_ready_wait(w, WAIT_MS);
    int held = fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_PASS, .delay_ms = 60000});
    harness_sql(h, "SET synchronous_commit = off; SELECT relata.write_tuple('doc:1', 'viewer', 'user:x')");
    assert_rule_used(f, held, 1);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    harness_service(h, "kill", "postgres");
    proc_kill(w);
    harness_service(h, "start", "postgres");
    struct pg *pg = harness_connect(h, NULL);
    struct pg_result *r = NULL;
    struct err err;
    assert_int_equal(pg_query(pg, NULL,
                              "SELECT (SELECT count(*) FROM relata.tuple), (SELECT count(*) FROM relata.outbox)", NULL,
                              0, deadline_in_ms(harness_ms(20000)), &r, &err),
                     ST_OK);
    assert_int_equal(pg_int(r, 0, 0), 1);
    assert_int_equal(pg_int(r, 0, 1), 1);
    pg_result_free(r);
    pg_close(pg);
    fake_store_stop(f);
}

/* The lag is told by the outbox itself, whoever runs. */
static void test_O01_O07_lag_is_the_age_of_the_oldest_pending_row(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int rule = fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_REPLY, .status = 503});
    struct proc *w = start(h, f);
    proc_ready_wait(w, WAIT_MS);
    assert_true(proc_metric(w, "relata_writer_lag_seconds") == 0);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, rule, 1);
    assert_metric_eventually(w, "relata_writer_lag_seconds", 2, WAIT_MS);
    assert_true(proc_metric(w, "relata_writer_pending") == 1);
    assert_true(harness_sql_int(h, "SELECT oldest_age_seconds::int FROM relata.lag WHERE store = 'default'") >= 2);
    fake_store_clear(f);
    assert_converged(h, CONVERGE_MS);
    assert_metric_eventually(w, "relata_writer_commit_to_applied_seconds_count", 1, WAIT_MS);
    assert_sql_eventually(h, "SELECT oldest_age_seconds::int FROM relata.lag WHERE store = 'default'", "0", WAIT_MS);
    proc_stop(w);
    fake_store_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_W13_killed_after_the_effect_before_the_acknowledgement, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_dead_writers_request_lands_after_the_revocation, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_paused_writer_that_goes_on_does_no_harm, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_newer_state_that_was_overwritten_comes_back, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W14_sigterm_lets_the_write_in_flight_end, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W14_sigterm_is_bounded, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_second_signal_ends_at_once, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_sessions_lost_during_a_write, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_postgres_restarts_during_an_acknowledgement, HARNESS_DB | HARNESS_STORE | HARNESS_OWN_PG),
        HARNESS_TEST_OPTIONS(test_the_store_is_never_ahead_of_a_crash_of_postgres,
                             HARNESS_DB | HARNESS_STORE | HARNESS_OWN_PG, slow_wal),
        HARNESS_TEST(test_O01_O07_lag_is_the_age_of_the_oldest_pending_row, HARNESS_DB | HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
