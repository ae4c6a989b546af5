/*
 * writer_outbox_test.c - tuple-writer reading the outbox itself: what the last commit says arrives, in batches,
 * whatever the rows and their order are.
 */
#include "tests/integration/writer_helpers.h"

static void test_changes_arrive(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    proc_ready_wait(w, WAIT_MS);
    grant_tuple(h, "doc:1", "viewer", "user:anne");
    grant_tuple(h, "doc:1", "viewer", "team:a#member");
    grant_tuple(h, "folder:f", "owner", "user:*");
    harness_sql(h,
                "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) VALUES "
                "('write', 'doc:2', 'viewer', 'user:bob', 'in_hours', '{\"from\": 9, \"until\": 17}')");
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "team:a#member"));
    revoke_tuple(h, "doc:1", "viewer", "user:anne");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:anne"));
    proc_stop(w);
}

static void test_W01_the_same_write_twice_is_one_tuple(void **state)
{
    struct harness *h = *state;
    grant_tuple(h, "doc:1", "viewer", "user:anne");
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES "
                   "('write', 'doc:1', 'viewer', 'user:anne'), ('write', 'doc:1', 'viewer', 'user:anne')");
    struct proc *w = writer_start(h, NULL);
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES "
                   "('write', 'doc:1', 'viewer', 'user:anne')");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
}

static void test_W02_S10_what_is_stored_already_costs_no_further_calls(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct store_tuple stored[99];
    struct err err;
    for (int i = 0; i < 99; i++)
        stored[i] = (struct store_tuple){{"doc:1", "viewer", harness_strf(h, "user:%03d", i)}, NULL, NULL};
    assert_int_equal(
        store_write(h->store_conn, h->model_id, stored, 99, NULL, 0, deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) SELECT 'write', 'doc:1', 'viewer', "
                   "'user:' || to_char(i, 'FM000') FROM generate_series(0, 99) i");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    assert_converged(h, CONVERGE_MS);
    assert_in_range(write_count(f), 1, 2);
    assert_int_equal(store_size(h), 100);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_W04_delete_and_write_of_one_tuple_in_a_transaction(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    harness_sql(h, "BEGIN; SELECT relata.write_tuple('doc:1', 'viewer', 'user:x'); "
                   "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:x'); "
                   "SELECT relata.write_tuple('doc:1', 'viewer', 'user:x'); COMMIT");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    for (int i = 0; i < write_count(f); i++)
        assert_int_equal(write_size(f, i), 1);
    proc_stop(w);
    fake_store_stop(f);
}

/* A batch of one each, and a second change while the first is on its way. */
static void test_W05_write_delete_write_across_batches(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int slow = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(700)});
    struct proc *w =
        writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "writer.batch=1", NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(f, slow, 1);
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    proc_stop(w);
    fake_store_stop(f);
}

/* R13, too: an earlier episode of the tuple does not hide a later one. */
static void test_W05_delete_write_delete(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    grant_tuple(h, "doc:1", "viewer", "user:x");
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    proc_stop(w);
}

static void test_W07_writes_and_deletes_together_stay_below_the_limit(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w =
        writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "writer.lanes=1", NULL);
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 60) i");
    assert_converged(h, CONVERGE_MS);
    int before = write_count(f);
    harness_sql(h, "SELECT relata.delete_tuple('doc:' || i, 'viewer', 'user:x'), "
                   "relata.write_tuple('doc:' || i, 'editor', 'user:x') FROM generate_series(1, 60) i");
    assert_converged(h, CONVERGE_MS);
    assert_in_range(write_count(f) - before, 2, 4);
    for (int i = before; i < write_count(f); i++)
        assert_in_range(write_size(f, i), 1, 100);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_W08_more_grants_than_fit_and_the_second_part_fails_once(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    fake_store_rule(f,
                    &(struct fake_rule){.path = "/write", .skip = 1, .times = 1, .action = FAKE_REPLY, .status = 503});
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) SELECT 'write', 'team:t', 'member', "
                   "'user:' || i FROM generate_series(1, 101) i");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.late_window=200ms", NULL);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 101);
    /* The first part, the second, the second again, and once more after the late window: 503 tells nothing. */
    assert_in_range(write_count(f), 3, 5);
    assert_true(proc_metric(w, "relata_writer_unknown_outcomes_total") >= 1);
    proc_stop(w);
    fake_store_stop(f);
}

static void insert_condition(struct harness *h, const char *name, const char *context)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) "
                 "VALUES ('write', 'doc:1', 'viewer', 'user:x', %s, %s)",
                 name, context);
}

static void test_W17_S07_a_changed_condition_is_replaced(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    struct tuple_set *expected = tuple_set_new();
    insert_condition(h, "'in_hours'", "'{\"from\": 9, \"until\": 17}'");
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:y') FROM generate_series(1, 20) i");
    for (int i = 1; i <= 20; i++)
        tuple_set_add(expected, harness_strf(h, "doc:%d", i), "viewer", "user:y", NULL, NULL);
    tuple_set_add(expected, "doc:1", "viewer", "user:x", "in_hours", "{\"from\": 9, \"until\": 17}");
    assert_converged_to(h, expected, CONVERGE_MS);
    insert_condition(h, "'in_hours'", "'{\"until\": 20, \"from\": 10.0}'");
    tuple_set_add(expected, "doc:1", "viewer", "user:x", "in_hours", "{\"from\": 10, \"until\": 20}");
    assert_converged_to(h, expected, CONVERGE_MS);
    insert_condition(h, "NULL", "NULL");
    tuple_set_add(expected, "doc:1", "viewer", "user:x", NULL, NULL);
    assert_converged_to(h, expected, CONVERGE_MS);
    /* S07: a model that takes both forms lets every tuple be rewritten before it is tightened. */
    insert_condition(h, "'in_hours'", "'{\"from\": 8, \"until\": 16}'");
    tuple_set_add(expected, "doc:1", "viewer", "user:x", "in_hours", "{\"from\": 8, \"until\": 16}");
    assert_converged_to(h, expected, CONVERGE_MS);
    assert_true(proc_metric(w, "relata_writer_conditions_replaced_total") == 3);
    tuple_set_free(expected);
    proc_stop(w);
}

/* Between the delete and the write of a changed condition, another writer applies a revocation and acknowledges it: the
 * write brings the tuple back, and the comparison of versions at the acknowledgement undoes it. */
static void test_W17_a_revocation_between_the_two_calls_wins(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.request_timeout=60s", "--set",
                                  harness_strf(h, "store.late_window=%dms", harness_ms(20000)), NULL);
    insert_condition(h, "'in_hours'", "'{\"from\": 9, \"until\": 17}'");
    assert_converged(h, CONVERGE_MS);
    int between = fake_store_rule(
        f, &(struct fake_rule){
               .path = "/write", .body = "\"deletes\"", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(3000)});
    insert_condition(h, "'in_hours'", "'{\"from\": 10, \"until\": 17}'");
    assert_rule_used(f, between, 1);
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:x");
    harness_sql(h, "BEGIN; SELECT relata.delete_tuple('doc:1', 'viewer', 'user:x'); "
                   "DELETE FROM relata.outbox; COMMIT"); /* as acknowledged by the other */
    assert_metric_eventually(w, "relata_writer_conditions_replaced_total", 1, WAIT_MS);
    assert_metric_eventually(w, "relata_writer_moved_total", 1, WAIT_MS);
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:x");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.inflight", "0", WAIT_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    assert_true(write_names(f, -2 + write_count(f), "\"writes\"")); /* it had come back */
    proc_stop(w);
    fake_store_stop(f);
}

static void test_W31_W38_W40_ids_are_bytes(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    struct tuple_set *expected = tuple_set_new();
    struct buf long_id;
    buf_init(&long_id, 4096);
    buf_adds(&long_id, "doc:");
    for (int i = 0; i < 200; i++)
        buf_adds(&long_id, "\xe2\x82\xac");
    const char *const objects[] = {buf_str(&long_id), "doc:jos\xc3\xa9", "doc:jose\xcc\x81", "doc:a.b", "doc:a%2Eb"};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        grant_tuple(h, objects[i], "viewer", "user:x");
        tuple_set_add(expected, objects[i], "viewer", "user:x", NULL, NULL);
    }
    assert_converged_to(h, expected, CONVERGE_MS);
    revoke_tuple(h, "doc:jose\xcc\x81", "viewer", "user:x"); /* the decomposed form is another id */
    tuple_set_remove(expected, "doc:jose\xcc\x81", "viewer", "user:x");
    assert_converged_to(h, expected, CONVERGE_MS);
    buf_release(&long_id);
    tuple_set_free(expected);
    proc_stop(w);
}

/* R01: ids and transactions are taken before commit; the lower one commits last. */
static void test_R01_a_transaction_that_commits_late_is_not_passed_over(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    struct pg *slow = harness_connect(h, NULL);
    struct err err;
    mono_us deadline = deadline_in_ms(harness_ms(20000));
    assert_int_equal(pg_exec(slow,
                             "BEGIN; SELECT relata.write_tuple('doc:slow', 'viewer', 'user:x'); "
                             "SELECT relata.delete_tuple('doc:gone', 'viewer', 'user:x')",
                             deadline, &err),
                     ST_OK);
    for (int i = 0; i < 20; i++)
        grant_tuple(h, harness_strf(h, "doc:%d", i), "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(pg_exec(slow, "COMMIT", deadline, &err), ST_OK);
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:slow", "viewer", "user:x"));
    pg_close(slow);
    proc_stop(w);
}

/* One change at a time, each after the reader has fallen asleep or just before: no wake-up is lost. */
static void test_a_sleeping_reader_is_woken(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    proc_ready_wait(w, WAIT_MS);
    for (int i = 0; i < 40; i++) {
        const char *object = harness_strf(h, "doc:%d", i);
        if (i % 4 == 0)
            assert_sql_eventually(
                h,
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1380270083 AND granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                "1", WAIT_MS);
        grant_tuple(h, object, "viewer", "user:x");
        assert_presence_eventually(h, true, object, "viewer", "user:x");
    }
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
}

static bool revoke_overtook(void *arg)
{
    struct harness *h = arg;
    return !store_has(h, "doc:revoked", "viewer", "user:x");
}

/* R16: grants are pending in their thousands, and the revocation is dealt with first. */
static void test_R16_a_revocation_does_not_wait_behind_grants(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, "--set", "writer.window=400", "--set", "writer.lanes=2", NULL);
    grant_tuple(h, "doc:revoked", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) SELECT 'write', 'doc:' || i, 'viewer', "
                   "'user:x' FROM generate_series(1, 20000) i");
    revoke_tuple(h, "doc:revoked", "viewer", "user:x");
    assert_eventually(revoke_overtook, h, WAIT_MS);
    assert_in_range(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 5000, 20001);
    assert_true(proc_metric(w, "relata_writer_keys_held") < 1400); /* two windows and a page */
    assert_converged(h, 10 * CONVERGE_MS);
    proc_stop(w);
}

/* W28, W29, W49: what a transaction changes of one object travels in one Write when it fits. */
static void test_W49_a_switch_of_roles_is_one_write(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    grant_tuple(h, "doc:t", "parent", "folder:n1");
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 200) i");
    assert_converged(h, CONVERGE_MS);
    int before = write_count(f);
    harness_sql(h, "BEGIN; SELECT relata.delete_tuple('doc:t', 'parent', 'folder:n1'); "
                   "SELECT relata.write_tuple('doc:other', 'parent', 'folder:n2'); "
                   "SELECT relata.write_tuple('doc:t', 'parent', 'folder:n2'); COMMIT");
    assert_converged(h, CONVERGE_MS);
    int together = 0;
    for (int i = before; i < write_count(f); i++)
        together += write_names(f, i, "doc:t") && write_names(f, i, "folder:n1") && write_names(f, i, "folder:n2");
    assert_int_equal(together, 1);
    proc_stop(w);
    fake_store_stop(f);
}

/* Two processes: one reads, the other stands by and says so; it takes over when the first ends. */
static void test_two_writers_one_active(void **state)
{
    struct harness *h = *state;
    struct proc *first = writer_start(h, NULL);
    proc_ready_wait(first, WAIT_MS);
    struct proc *second = writer_start(h, NULL);
    assert_logged(second, "standing by", WAIT_MS);
    proc_ready_wait(second, WAIT_MS); /* healthy, so that a rollout may end the first */
    assert_true(proc_metric(second, "relata_writer_active") == 0);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    proc_kill(first);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_metric_eventually(second, "relata_writer_active", 1, WAIT_MS);
    proc_stop(second);
}

/* A frozen process keeps its session, and with it the lock: the standby names it, and its end by SQL is the way out. */
static void test_a_frozen_reader_is_named(void **state)
{
    struct harness *h = *state;
    const char *body = "";
    struct proc *first = writer_start(h, "--set", "writer.name=the-frozen-one", NULL);
    proc_ready_wait(first, WAIT_MS);
    struct proc *second = writer_start(h, NULL);
    assert_logged(second, "standing by", WAIT_MS);
    proc_freeze(first);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_metric_eventually(second, "relata_writer_reader_pid", 1, WAIT_MS);
    long long pid = (long long)proc_metric(second, "relata_writer_reader_pid");
    assert_string_equal(
        harness_sql_text(h, harness_strf(h,
                                         "SELECT a.application_name || ' ' || (r.since - %.0f BETWEEN "
                                         "-2 AND 2) FROM pg_stat_activity a, (SELECT extract(epoch "
                                         "FROM min(started_at)) AS since FROM relata.writer) r "
                                         "WHERE a.pid = %lld",
                                         proc_metric(second, "relata_writer_reader_since_seconds"), pid)),
        "relata tuple-writer true");
    proc_ready_wait(second, WAIT_MS);
    assert_int_equal(proc_get(second, "/readyz", &body), 200);
    assert_non_null(strstr(body, "writer \"the-frozen-one\" is the active reader"));
    assert_non_null(strstr(body, harness_strf(h, "with pid %lld", pid)));
    assert_true(proc_logged(second, harness_strf(h, "pid=%lld", pid)));
    assert_true(proc_metric(second, "relata_writer_active") == 0);
    harness_sqlf(h, "SELECT pg_terminate_backend(%lld)", pid);
    assert_metric_eventually(second, "relata_writer_active", 1, WAIT_MS);
    assert_converged(h, CONVERGE_MS);
    proc_continue(first);
    assert_logged(first, "no longer the active reader", WAIT_MS);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    assert_true(proc_metric(first, "relata_writer_active") == 0);
    proc_stop(first);
    proc_stop(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_changes_arrive, HARNESS_DB | HARNESS_STORE | HARNESS_NATS),
        HARNESS_TEST(test_W01_the_same_write_twice_is_one_tuple, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W02_S10_what_is_stored_already_costs_no_further_calls, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W04_delete_and_write_of_one_tuple_in_a_transaction, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W05_write_delete_write_across_batches, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W05_delete_write_delete, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W07_writes_and_deletes_together_stay_below_the_limit, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W08_more_grants_than_fit_and_the_second_part_fails_once, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W17_S07_a_changed_condition_is_replaced, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W17_a_revocation_between_the_two_calls_wins, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W31_W38_W40_ids_are_bytes, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_R01_a_transaction_that_commits_late_is_not_passed_over, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_sleeping_reader_is_woken, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_R16_a_revocation_does_not_wait_behind_grants, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W49_a_switch_of_roles_is_one_write, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_two_writers_one_active, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_frozen_reader_is_named, HARNESS_DB | HARNESS_STORE),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
