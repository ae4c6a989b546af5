/* sql_order_test.c - changes of one tuple are in one order, whoever makes them: forced interleavings of sessions. */
#include "tests/integration/sql_sessions.h"

/* The rows that the round of a reader takes whose previous round had snapshot `last`. */
static const char *round_after(struct harness *h, const char *last)
{
    return harness_sql_text(
        h, harness_strf(h,
                        "SELECT coalesce(string_agg(object, ',' ORDER BY xid, id), '') FROM relata.outbox "
                        "WHERE store = 'default' AND xid >= pg_snapshot_xmin('%s'::pg_snapshot) "
                        "AND NOT pg_visible_in_snapshot(xid, '%s'::pg_snapshot)",
                        last, last));
}

static void test_R01_an_id_taken_before_a_later_commit_is_not_skipped(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h);

    session_run(&a, "BEGIN");
    session_run(&a, "SELECT relata.write_tuple('doc:first', 'viewer', 'user:1')");
    session_run(&b, "SELECT relata.write_tuple('doc:second', 'viewer', 'user:1')");
    const char *snapshot = harness_sql_text(h, "SELECT pg_current_snapshot()");
    assert_string_equal(round_after(h, "1:1:"), "doc:second");
    session_run(&a, "COMMIT");
    assert_string_equal(round_after(h, snapshot), "doc:first");
    snapshot = harness_sql_text(h, "SELECT pg_current_snapshot()");
    assert_string_equal(round_after(h, snapshot), "");
    session_close(&a);
    session_close(&b);
}

static void test_R02_the_last_lock_wins_not_the_last_xid(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h);

    session_run(&a, "BEGIN");
    session_run(&a, "SELECT pg_current_xact_id()"); /* the older transaction */
    session_run(&b, "BEGIN");
    session_run(&b, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_begin(&a, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:1', 'viewer', "
                      "'user:1') RETURNING id");
    session_waits(&a);
    session_run(&b, "COMMIT");
    assert_string_not_equal(session_end(&a), "");
    session_run(&a, "COMMIT");
    assert_string_equal(outbox_ops(h), "write doc:1#viewer@user:1, delete doc:1#viewer@user:1");
    assert_string_equal(ledger_present(h), "");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple t JOIN relata.outbox o ON o.id = t.version "
                                        "AND o.op = 'delete' AND o.id = (SELECT max(id) FROM relata.outbox)"),
                     1);
    session_close(&a);
    session_close(&b);
}

static void test_a_later_row_is_never_visible_without_the_earlier_ones(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h), reader = session_open(h);

    session_run(&a, "BEGIN");
    session_run(&a, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_begin(&b, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1')");
    session_waits(&b);
    assert_string_equal(session_run(&reader, "SELECT count(*) FROM relata.outbox"), "0");
    session_run(&a, "COMMIT");
    session_end(&b);
    assert_int_equal(b.status, ST_OK);
    assert_string_equal(session_run(&reader, "SELECT string_agg(op, ',' ORDER BY id) FROM relata.outbox"),
                        "write,delete");
    session_close(&a);
    session_close(&b);
    session_close(&reader);
}

/* Is the ledger row of doc:<n> locked by somebody else? */
static bool is_locked(struct session *s, int n)
{
    session_begin(s, harness_strf(s->h, "SELECT 1 FROM relata.tuple WHERE object = 'doc:%d' FOR UPDATE NOWAIT", n));
    (void)session_end(s);
    return strcmp(s->err.code, "55P03") == 0;
}

static void test_a_set_locks_in_key_order(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h), c = session_open(h);

    harness_sql(
        h, "SELECT relata.write_tuples(array_agg('doc:' || i), array_agg('viewer'::text), array_agg('user:1'::text)) "
           "FROM generate_series(1, 9) i");
    apply_all(h);
    session_run(&a, "BEGIN");
    session_run(&a, "SELECT relata.delete_tuple('doc:5', 'viewer', 'user:1')");
    static const char *const sets[] = {
        "SELECT relata.delete_tuples(array_agg('doc:' || i ORDER BY md5(i::text)), array_agg('viewer'::text), "
        "array_agg('user:1'::text)) "
        "FROM generate_series(1, 9) i",
        "SELECT relata.write_tuples(array_agg('doc:' || i ORDER BY -i), array_agg('viewer'::text), "
        "array_agg('user:1'::text)) "
        "FROM generate_series(1, 9) i",
        "SELECT relata.touch_tuples(array_agg('doc:' || i ORDER BY -i), array_agg('viewer'::text), "
        "array_agg('user:1'::text)) "
        "FROM generate_series(1, 9) i",
        "SELECT relata.delete_object('user:1')",
    };
    for (size_t k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        session_run(&b, "BEGIN");
        session_begin(&b, sets[k]);
        session_waits(&b);
        for (int i = 1; i <= 9; i++)
            assert_int_equal(is_locked(&c, i), i <= 5);
        harness_sqlf(h, "SELECT pg_cancel_backend(%d)", b.pid);
        assert_string_equal(session_end(&b), "57014");
        session_run(&b, "ROLLBACK");
    }
    session_close(&a);
    session_close(&b);
    session_close(&c);
}

static void test_sets_in_opposite_order_never_deadlock(void **state)
{
    struct harness *h = *state;
    struct session s[3] = {session_open(h), session_open(h), session_open(h)};

    for (int i = 0; i < 3; i++)
        session_begin(
            &s[i], harness_strf(h,
                                "DO $$ BEGIN FOR n IN 1..%d LOOP "
                                "PERFORM relata.write_tuples(array_agg('doc:' || i ORDER BY random()), "
                                "array_agg('viewer'::text), array_agg('user:1'::text)) FROM generate_series(1, 20) i; "
                                "PERFORM relata.delete_tuples(array_agg('doc:' || i ORDER BY random()), "
                                "array_agg('viewer'::text), array_agg('user:1'::text)) FROM generate_series(1, 20) i; "
                                "COMMIT; END LOOP; END $$",
                                harness_soak(1000)));
    for (int i = 0; i < 3; i++) {
        session_end(&s[i]);
        if (s[i].status != ST_OK)
            fail_msg("%s: %s", s[i].err.code, s[i].err.text);
        session_close(&s[i]);
    }
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple WHERE present"), 0);
}

static void test_W19_single_rows_in_opposite_order_give_40P01_and_lose_nothing(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h);

    session_run(&a, "BEGIN");
    session_run(&b, "BEGIN");
    session_run(&a, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_run(&b, "SELECT relata.write_tuple('doc:2', 'viewer', 'user:1')");
    session_begin(&a, "SELECT relata.write_tuple('doc:2', 'viewer', 'user:1')");
    session_waits(&a);
    session_begin(&b, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_end(&b);
    session_end(&a);
    bool a_lost = a.status != ST_OK;
    assert_true(a_lost != (b.status != ST_OK));
    assert_string_equal(a_lost ? a.err.code : b.err.code, "40P01");
    session_run(&a, "COMMIT");
    session_run(&b, "COMMIT");
    assert_string_equal(ledger_present(h), "doc:1#viewer@user:1, doc:2#viewer@user:1");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 2);
    session_close(&a);
    session_close(&b);
}

static void test_repeatable_read_gets_40001_when_the_tuple_changed_meanwhile(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h);
    static const char *const changes[] = {
        "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1')",
        "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')",
        "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1')",
        "SELECT relata.touch_tuple('doc:1', 'viewer', 'user:1')",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        session_run(&a, i % 2 ? "BEGIN ISOLATION LEVEL SERIALIZABLE" : "BEGIN ISOLATION LEVEL REPEATABLE READ");
        session_run(&a, "SELECT count(*) FROM relata.tuple");
        harness_sql(h, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1'); "
                       "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
        session_fails(&a, changes[i], "40001");
        session_run(&a, "ROLLBACK");
    }
    session_close(&a);
}

/* Nothing is dropped as a no-op while a row of its key pends, not even one that this statement's snapshot does not
 * show. */
static void test_a_no_op_is_kept_behind_a_row_that_committed_while_it_waited(void **state)
{
    struct harness *h = *state;
    struct session a = session_open(h), b = session_open(h);

    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    assert_string_equal(harness_sql_text(h, "SELECT relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')"), "1");
    apply_all(h);
    assert_string_equal(harness_sql_text(h, "SELECT relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')"), "0");
    session_run(&a, "BEGIN");
    session_run(&a, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1')");
    session_run(&a, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_begin(&b, "SELECT relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')");
    session_waits(&b);
    session_run(&a, "COMMIT");
    assert_string_equal(session_end(&b), "1");
    assert_string_equal(outbox_ops(h),
                        "delete doc:1#viewer@user:1, write doc:1#viewer@user:1, write doc:1#viewer@user:1");

    apply_all(h);
    harness_sql(h, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1')");
    apply_all(h);
    session_run(&a, "BEGIN");
    session_run(&a, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    session_run(&a, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1')");
    session_begin(&b, "SELECT relata.delete_tuples('{doc:1}', '{viewer}', '{user:1}')");
    session_waits(&b);
    session_run(&a, "COMMIT");
    assert_string_equal(session_end(&b), "1");
    session_close(&a);
    session_close(&b);
}

static void test_a_no_op_is_kept_while_its_tuple_is_parked(void **state)
{
    struct harness *h = *state;

    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1'); DELETE FROM relata.outbox; "
                   "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) "
                   "VALUES ('default', 'write', 'doc:1', 'viewer', 'user:1', 'x', 'x')");
    assert_string_equal(harness_sql_text(h, "SELECT relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')"), "1");
    apply_all(h);
    harness_sql(h, "UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'applied'");
    assert_string_equal(harness_sql_text(h, "SELECT relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')"), "0");
}

/* Deleting is no no-op as long as it is not known that the store lacks the tuple. */
static void test_deleting_what_the_ledger_does_not_know_is_sent(void **state)
{
    struct harness *h = *state;

    assert_string_equal(harness_sql_text(h, "SELECT relata.delete_tuples('{doc:1}', '{viewer}', '{user:1}')"), "1");
    apply_all(h);
    assert_string_equal(harness_sql_text(h, "SELECT relata.delete_tuples('{doc:1}', '{viewer}', '{user:1}')"), "0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_R01_an_id_taken_before_a_later_commit_is_not_skipped, HARNESS_DB),
        HARNESS_TEST(test_R02_the_last_lock_wins_not_the_last_xid, HARNESS_DB),
        HARNESS_TEST(test_a_later_row_is_never_visible_without_the_earlier_ones, HARNESS_DB),
        HARNESS_TEST(test_a_set_locks_in_key_order, HARNESS_DB),
        HARNESS_TEST(test_sets_in_opposite_order_never_deadlock, HARNESS_DB),
        HARNESS_TEST(test_W19_single_rows_in_opposite_order_give_40P01_and_lose_nothing, HARNESS_DB),
        HARNESS_TEST(test_repeatable_read_gets_40001_when_the_tuple_changed_meanwhile, HARNESS_DB),
        HARNESS_TEST(test_a_no_op_is_kept_behind_a_row_that_committed_while_it_waited, HARNESS_DB),
        HARNESS_TEST(test_a_no_op_is_kept_while_its_tuple_is_parked, HARNESS_DB),
        HARNESS_TEST(test_deleting_what_the_ledger_does_not_know_is_sent, HARNESS_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
