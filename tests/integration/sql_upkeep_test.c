/* sql_upkeep_test.c - sleeping readers, deletions of everything about an object, tombstones: relata.maintain and
 * wake-ups. */
#include "tests/integration/sql_sessions.h"

#define WAKE_KEY "1380270083, hashtext('default')"
#define WRITE "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1')"

static bool was_notified(struct pg *pg, int ms)
{
    const char *channel;
    struct err err;
    return pg_wait_notify(pg, -1, deadline_in_ms(ms), &channel, &err) == ST_OK;
}

/* ---- sleeping readers ---- */

static void test_a_reader_that_is_awake_is_not_notified(void **state)
{
    struct harness *h = *state;
    struct session reader = session_open(h), writer = session_open(h);

    session_run(&reader, "LISTEN relata_outbox");
    session_run(&writer, WRITE);
    session_run(&writer, "SELECT relata.write_tuple('doc:2', 'viewer', 'user:1')");
    /* The channel works, and nothing came before this. */
    session_run(&writer, "NOTIFY relata_outbox, 'mark'");
    assert_true(was_notified(reader.pg, harness_ms(5000)));
    assert_false(was_notified(reader.pg, 50));
    session_close(&reader);
    session_close(&writer);
}

static void test_a_sleeping_reader_is_woken_by_every_way_of_writing(void **state)
{
    struct harness *h = *state;
    struct session reader = session_open(h), writer = session_open(h);
    static const char *const ways[] = {
        WRITE,
        "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')",
        "SELECT relata.delete_tuples('{doc:1}', '{viewer}', '{user:1}')",
        "SELECT relata.touch_tuple('doc:1', 'viewer', 'user:1')",
        "SELECT relata.erase_subject('user:1')",
    };

    session_run(&reader, "LISTEN relata_outbox");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        harness_sql(h, "SELECT relata.write_tuple('doc:x', 'viewer', 'user:1')");
        assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")"), "t");
        session_run(&writer, ways[i]);
        if (!was_notified(reader.pg, harness_ms(5000)))
            fail_msg("not woken by: %s", ways[i]);
        session_run(&reader, "SELECT pg_advisory_unlock(" WAKE_KEY ")");
    }
    session_close(&reader);
    session_close(&writer);
}

static void test_a_reader_cannot_fall_asleep_over_an_open_write(void **state)
{
    struct harness *h = *state;
    struct session reader = session_open(h), writer = session_open(h);

    session_run(&writer, "BEGIN");
    session_run(&writer, WRITE);
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")"), "f");
    /* Another store's reader may. */
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(1380270083, hashtext('other'))"), "t");
    session_run(&writer, "COMMIT");
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")"), "t");
    session_close(&reader);
    session_close(&writer);
}

/* A rollback to a savepoint drops lock and notification; the next write must do it again. */
static void test_a_savepoint_rolled_back_loses_no_wake_up(void **state)
{
    struct harness *h = *state;
    struct session reader = session_open(h), writer = session_open(h);

    session_run(&reader, "LISTEN relata_outbox");
    session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")");
    session_run(&writer, "BEGIN");
    session_run(&writer, "SAVEPOINT a");
    session_run(&writer, WRITE);
    session_run(&writer, "ROLLBACK TO a");
    session_run(&writer, WRITE);
    session_run(&writer, "COMMIT");
    assert_true(was_notified(reader.pg, harness_ms(5000)));

    session_run(&reader, "SELECT pg_advisory_unlock(" WAKE_KEY ")");
    session_run(&writer, "BEGIN");
    session_run(&writer, "SAVEPOINT a");
    session_run(&writer, WRITE);
    session_run(&writer, "ROLLBACK TO a");
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")"), "t");
    session_run(&writer, WRITE);
    session_run(&writer, "COMMIT");
    assert_true(was_notified(reader.pg, harness_ms(5000)));
    session_close(&reader);
    session_close(&writer);
}

static void test_each_store_of_a_transaction_is_woken(void **state)
{
    struct harness *h = *state;
    struct session reader = session_open(h), writer = session_open(h);

    session_run(&writer, "BEGIN");
    session_run(&writer, "INSERT INTO relata.outbox (store, op, object, relation, subject) VALUES "
                         "('a', 'write', 'doc:1', 'viewer', 'user:1'), ('b', 'write', 'doc:1', 'viewer', 'user:1'), "
                         "('a', 'write', 'doc:2', 'viewer', 'user:1')");
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(1380270083, hashtext('a'))"), "f");
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(1380270083, hashtext('b'))"), "f");
    assert_string_equal(session_run(&reader, "SELECT pg_try_advisory_lock(" WAKE_KEY ")"), "t");
    session_run(&writer, "COMMIT");
    session_close(&reader);
    session_close(&writer);
}

/* ---- deleting everything about an object ---- */

static void test_R25_everything_about_an_object_goes(void **state)
{
    struct harness *h = *state;

    harness_sql(
        h, "SELECT relata.write_tuples("
           "'{project:p1,project:p1,project:p1,doc:1,doc:2,team:x,project:p1x,project:p10,doc:3}',"
           "'{admin,admin,viewer,parent,viewer,member,admin,admin,viewer}',"
           "'{user:1,user:2,user:3,project:p1,project:p1#viewer,project:p1#admin,user:1,user:1,project:p1x#viewer}')");
    assert_int_equal(harness_sql_int(h, "SELECT relata.delete_object('project:p1')"), 6);
    assert_string_equal(ledger_present(h), "doc:3#viewer@project:p1x#viewer, project:p10#admin@user:1, "
                                           "project:p1x#admin@user:1");
}

static void test_a_grant_that_was_not_committed_is_deleted_when_it_appears(void **state)
{
    struct harness *h = *state;
    struct session late = session_open(h);

    session_run(&late, "BEGIN");
    session_run(&late, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:gone')");
    assert_int_equal(harness_sql_int(h, "SELECT relata.erase_subject('user:gone')"), 0);
    /* Not repeated while the late transaction runs, however often it is asked. */
    for (int i = 0; i < 5; i++)
        assert_int_equal(harness_sql_int(h, "SELECT repeated FROM relata.maintain()"), 0);
    session_run(&late, "COMMIT");
    assert_string_equal(ledger_present(h), "doc:1#viewer@user:gone");
    assert_sql_eventually(h, "SELECT repeated FROM relata.maintain()", "1", 60000);
    assert_string_equal(ledger_present(h), "");
    assert_int_equal(harness_sql_int(h, "SELECT tuples FROM relata.request"), 1);
    session_close(&late);
}

/* The request is the older one of two transactions that overlap: its xid alone would say too early that all is seen. */
static void test_a_younger_transaction_than_the_request_is_waited_for(void **state)
{
    struct harness *h = *state;
    struct session request = session_open(h), late = session_open(h);

    session_run(&request, "BEGIN");
    session_run(&request, "SELECT pg_current_xact_id()");
    session_run(&late, "BEGIN");
    session_run(&late, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:gone')");
    session_run(&request, "SELECT relata.delete_object('user:gone')");
    session_run(&request, "COMMIT");
    for (int i = 0; i < 5; i++)
        assert_int_equal(harness_sql_int(h, "SELECT repeated FROM relata.maintain()"), 0);
    session_run(&late, "COMMIT");
    assert_sql_eventually(h, "SELECT repeated FROM relata.maintain()", "1", 60000);
    assert_string_equal(ledger_present(h), "");
    session_close(&request);
    session_close(&late);
}

static void test_D19_what_is_granted_after_the_deletion_stays(void **state)
{
    struct harness *h = *state;
    struct session open = session_open(h);

    harness_sql(h, "SELECT relata.write_tuple('host:42', 'viewer', 'user:1')");
    session_run(&open, "BEGIN");
    session_run(&open, "SELECT pg_current_xact_id()");
    harness_sql(h, "SELECT relata.delete_object('host:42')");
    harness_sql(h, "SELECT relata.write_tuple('host:42', 'owner', 'user:2')");
    assert_string_equal(ledger_present(h), "host:42#owner@user:2");
    assert_int_equal(harness_sql_int(h, "SELECT repeated FROM relata.maintain()"), 0);
    session_run(&open, "COMMIT");
    assert_sql_eventually(h, "SELECT repeated FROM relata.maintain()", "1", 60000);
    assert_string_equal(ledger_present(h), "host:42#owner@user:2");
    session_close(&open);
}

/* A grant that is older than the deletion, but not visible to it; what writers do is done. */
static void grant_behind_a_deletion(struct harness *h)
{
    struct session late = session_open(h);

    session_run(&late, "BEGIN");
    session_run(&late, WRITE);
    assert_int_equal(harness_sql_int(h, "SELECT relata.delete_object('doc:1')"), 0);
    harness_sql(h, "SELECT relata.maintain()");
    session_run(&late, "COMMIT");
    assert_sql_eventually(h, "SELECT horizon <= pg_snapshot_xmin(pg_current_snapshot()) FROM relata.request", "t",
                          60000);
    apply_all(h);
    session_close(&late);
}

static void test_D19_a_grant_that_changes_nothing_survives_the_repetition(void **state)
{
    struct harness *h = *state;

    grant_behind_a_deletion(h);
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:1')");
    assert_int_equal(harness_sql_int(h, "SELECT repeated FROM relata.maintain()"), 1);
    assert_string_equal(ledger_present(h), "doc:1#viewer@user:1");
}

/* Rows of a tracked table that stand for a late grant, found in one way or the other while the repetition is due. */
static void rows_behind_a_deletion(struct harness *h, const char *change)
{
    harness_sql(h,
                "CREATE TABLE public.a (id int PRIMARY KEY, doc text, who text); CREATE INDEX ON public.a (doc); "
                "SELECT relata.track('public.a', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", "
                "\"subject\": \"user:{who}\"}]'); ALTER TABLE public.a DISABLE TRIGGER USER; "
                "INSERT INTO public.a VALUES (1, '1', '1'), (2, '1', '1'); ALTER TABLE public.a ENABLE TRIGGER USER");
    grant_behind_a_deletion(h);
    harness_sql(h, change);
    assert_int_equal(harness_sql_int(h, "SELECT repeated FROM relata.maintain()"), 1);
    assert_string_equal(ledger_present(h), "doc:1#viewer@user:1");
}

static void test_D19_a_new_row_keeps_a_late_grant(void **state)
{
    rows_behind_a_deletion(*state, "INSERT INTO public.a VALUES (3, '1', '1')");
}

static void test_D19_a_row_that_is_left_keeps_a_late_grant(void **state)
{
    rows_behind_a_deletion(*state, "DELETE FROM public.a WHERE id = 1");
}

static void test_D19_one_of_many_rows_that_is_left_keeps_a_late_grant(void **state)
{
    rows_behind_a_deletion(*state, "INSERT INTO public.a VALUES (4, '2', '1'), (5, '3', '1');"
                                   "DELETE FROM public.a WHERE id <> 2");
}

static void test_D19_backfill_keeps_a_late_grant(void **state)
{
    rows_behind_a_deletion(*state, "CALL relata.backfill('public.a')");
}

static void test_D19_a_grant_that_the_repetition_waits_for_stays(void **state)
{
    struct harness *h = *state;
    struct session service = session_open(h), upkeep = session_open(h);

    grant_behind_a_deletion(h);
    session_run(&service, "BEGIN");
    session_run(&service, WRITE);
    session_begin(&upkeep, "SELECT repeated FROM relata.maintain()");
    session_waits(&upkeep);
    session_run(&service, "COMMIT");
    assert_string_equal(session_end(&upkeep), "1");
    assert_string_equal(ledger_present(h), "doc:1#viewer@user:1");
    session_close(&service);
    session_close(&upkeep);
}

/* A pending row without its ledger row could never be acknowledged. */
static void test_a_change_during_the_end_of_an_erasure_keeps_its_ledger_row(void **state)
{
    struct harness *h = *state;
    struct session service = session_open(h), gate = session_open(h), upkeep = session_open(h);

    harness_sql(h, WRITE);
    harness_sql(h, "SELECT relata.erase_subject('user:1')");
    assert_sql_eventually(h, "SELECT repeated FROM relata.maintain()", "1", 60000);
    apply_all(h);
    /* Upkeep has its snapshot when it asks what is in flight. */
    session_run(&gate, "BEGIN");
    session_run(&gate, "LOCK TABLE relata.inflight IN ACCESS EXCLUSIVE MODE");
    session_begin(&upkeep, "SELECT erased FROM relata.maintain()");
    session_waits(&upkeep);
    session_run(&service, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES "
                          "('delete', 'doc:1', 'viewer', 'user:1')");
    session_run(&gate, "COMMIT");
    (void)session_end(&upkeep);
    assert_string_equal(outbox_ops(h), "delete doc:1#viewer@user:1");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple t JOIN relata.outbox o ON o.id = t.version"),
                     1);
    apply_all(h);
    assert_int_equal(harness_sql_int(h, "SELECT erased FROM relata.maintain()"), 1);
    session_close(&service);
    session_close(&gate);
    session_close(&upkeep);
}

static void test_an_erasure_leaves_nothing_but_its_record(void **state)
{
    struct harness *h = *state;
    static const char trace[] =
        "SELECT (SELECT count(*) FROM relata.tuple t WHERE t::text LIKE '%anne%') "
        "+ (SELECT count(*) FROM relata.outbox t WHERE t::text LIKE '%anne%') "
        "+ (SELECT count(*) FROM relata.dead_letter t WHERE t::text LIKE '%anne%') "
        "+ (SELECT count(*) FROM relata.probe t WHERE t::text LIKE '%anne%') "
        "+ (SELECT count(*) FROM relata.request t WHERE kind <> 'erase_subject' AND t::text LIKE '%anne%')";

    harness_sql(
        h, "SELECT relata.write_tuples('{doc:1,doc:2,user:anne,doc:3}', '{viewer,viewer,manager,viewer}', "
           "'{user:anne,user:anne#friend,user:bob,user:bob}', actor => 'user:anne'); "
           "SELECT relata.delete_object('doc:9', actor => 'anne'); "
           "INSERT INTO relata.probe (store, slot, object, relation, subject, version) VALUES "
           "('default', 0, 'doc:1', 'viewer', 'user:anne', 1), ('default', 1, 'doc:3', 'viewer', 'user:bob', 1); "
           "INSERT INTO relata.dead_letter (store, op, object, relation, subject, actor, code, reason, closed_at, "
           "closed_how) VALUES ('default', 'write', 'doc:1', 'viewer', 'user:anne', NULL, 'x', 'bad user:anne', now(), "
           "'applied'), ('default', 'write', 'doc:3', 'viewer', 'user:bob', 'anne', 'x', 'x', now(), 'applied')");
    assert_int_equal(harness_sql_int(h, "SELECT relata.erase_subject('user:anne', actor => 'user:admin')"), 3);
    assert_sql_eventually(h, "SELECT repeated >= 1 FROM relata.maintain()", "t", 60000);
    /* It is not done before the store has it. */
    harness_sql(h, "SELECT relata.maintain()");
    assert_string_equal(harness_sql_text(h, "SELECT done_at FROM relata.request WHERE kind = 'erase_subject'"), "");
    harness_sql(h, "DELETE FROM relata.outbox WHERE object <> 'doc:3'; "
                   "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) "
                   "VALUES (1, 'default', '{doc:1}', '{viewer}', '{user:anne}'); SELECT relata.maintain()");
    assert_string_equal(harness_sql_text(h, "SELECT object FROM relata.tuple WHERE subject LIKE 'user:anne%'"),
                        "doc:1");
    harness_sql(h, "DELETE FROM relata.inflight");
    assert_int_equal(harness_sql_int(h, "SELECT erased FROM relata.maintain()"), 1);
    assert_int_equal(harness_sql_int(h, trace), 0);
    assert_string_equal(
        harness_sql_text(h, "SELECT done_at IS NOT NULL FROM relata.request WHERE target = 'user:anne'"), "t");
    /* Others' rows are as they were, but for the name. */
    assert_string_equal(harness_sql_text(h, "SELECT object || ' ' || actor FROM relata.outbox"), "doc:3 erased:2");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.probe"), 1);
    assert_string_equal(ledger_present(h), "doc:3#viewer@user:bob");
}

static void test_an_erased_parked_grant_is_closed_out(void **state)
{
    struct harness *h = *state;

    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:anne'); DELETE FROM relata.outbox; "
                   "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) "
                   "VALUES ('default', 'write', 'doc:1', 'viewer', 'user:anne', 'x', 'x')");
    harness_sql(h, "SELECT relata.erase_subject('user:anne')");
    assert_string_equal(outbox_ops(h), "delete doc:1#viewer@user:anne");
    assert_sql_eventually(h, "SELECT repeated FROM relata.maintain()", "1", 60000);
    harness_sql(h, "SELECT relata.maintain()");
    /* The writer applies the deletion: the parked grant is superseded. */
    apply_all(h);
    harness_sql(h, "UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'superseded'");
    assert_int_equal(harness_sql_int(h, "SELECT erased FROM relata.maintain()"), 1);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple"), 0);
}

/* ---- retention ---- */

static void test_R14_only_tombstones_at_rest_are_swept(void **state)
{
    struct harness *h = *state;
    struct session service = session_open(h);

    harness_sql(
        h, "SELECT relata.write_tuples(array_agg('doc:' || i), array_agg('viewer'::text), array_agg('user:1'::text)) "
           "FROM generate_series(1, 6) i; "
           "SELECT relata.delete_tuples(array_agg('doc:' || i), array_agg('viewer'::text), array_agg('user:1'::text)) "
           "FROM generate_series(1, 5) i; DELETE FROM relata.outbox WHERE object <> 'doc:1'; "
           "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) "
           "VALUES ('default', 'delete', 'doc:2', 'viewer', 'user:1', 'x', 'x'); "
           "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) "
           "VALUES (1, 'default', '{doc:3}', '{viewer}', '{user:1}')");
    /* Young ones stay. */
    harness_sql(h, "SELECT relata.maintain()");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple"), 6);
    harness_sql(h, "UPDATE relata.setting SET value = '0' WHERE name = 'tombstone_retention'; "
                   "UPDATE relata.sweep SET not_before = now()");
    /* A row that a service holds is passed over, not waited for. */
    session_run(&service, "BEGIN");
    session_run(&service, "SELECT relata.delete_tuple('doc:4', 'viewer', 'user:1')");
    assert_int_equal(harness_sql_int(h, "SELECT tombstones FROM relata.maintain()"), 1);
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(object, ',' ORDER BY object) FROM relata.tuple"),
                        "doc:1,doc:2,doc:3,doc:4,doc:6");
    session_run(&service, "ROLLBACK");
    harness_sql(h, "DELETE FROM relata.outbox; DELETE FROM relata.inflight; "
                   "UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'dropped'");
    assert_sql_eventually(
        h, "SELECT (SELECT relata.maintain()) IS NOT NULL AND (SELECT count(*) FROM relata.tuple) = 1", "t", 20000);
    session_close(&service);
}

static void test_sweeping_is_bounded_and_goes_on(void **state)
{
    struct harness *h = *state;

    harness_sql(
        h, "UPDATE relata.setting SET value = '0' WHERE name = 'tombstone_retention'; "
           "SELECT relata.delete_tuples(array_agg('doc:' || i), array_agg('viewer'::text), array_agg('user:1'::text)) "
           "FROM generate_series(1, 5000) i; DELETE FROM relata.outbox");
    int calls = 0;
    do {
        assert_true(harness_sql_int(h, "SELECT tombstones FROM relata.maintain(max_rows => 300)") <= 300);
        assert_true(++calls < 200);
        harness_sql(h, "UPDATE relata.sweep SET not_before = now()");
    } while (harness_sql_int(h, "SELECT count(*) FROM relata.tuple") > 0);
    assert_true(calls >= 5000 / 300);
    /* Nothing new: the heap is not even looked at. */
    harness_sql(h, "SELECT relata.maintain(); UPDATE relata.sweep SET not_before = now()");
    const char *before = harness_sql_text(h, "SELECT xmin FROM relata.sweep");
    harness_sql(h, "SELECT relata.maintain()");
    assert_string_equal(harness_sql_text(h, "SELECT xmin FROM relata.sweep"), before);
}

static void test_closed_dead_letters_and_ended_writers_go_after_their_retention(void **state)
{
    struct harness *h = *state;

    harness_sql(
        h,
        "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason, parked_at, closed_at, "
        "closed_how) VALUES ('default', 'write', 'doc:1', 'r', 'user:1', 'x', 'x', now() - interval '1 year', NULL, "
        "NULL), "
        "('default', 'write', 'doc:2', 'r', 'user:1', 'x', 'x', now() - interval '1 year', now() - interval '29 days', "
        "'applied'), ('default', 'write', 'doc:3', 'r', 'user:1', 'x', 'x', now(), now() - interval '31 days', "
        "'applied'); "
        "INSERT INTO relata.writer (store, name, epoch, ended_at) VALUES ('default', 'old', 1, now() - interval '8 "
        "days'), "
        "('default', 'needed', 1, now() - interval '8 days'), ('default', 'new', 1, now()), ('default', 'runs', 1, "
        "NULL); "
        "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) SELECT id, 'default', '{}', '{}', "
        "'{}' "
        "FROM relata.writer WHERE name = 'needed'");
    assert_string_equal(harness_sql_text(h, "SELECT dead_letters || ' ' || writers FROM relata.maintain()"), "1 1");
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(object, ',' ORDER BY object) FROM relata.dead_letter"),
                        "doc:1,doc:2");
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(name, ',' ORDER BY name) FROM relata.writer"),
                        "needed,new,runs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_a_reader_that_is_awake_is_not_notified, HARNESS_DB),
        HARNESS_TEST(test_a_sleeping_reader_is_woken_by_every_way_of_writing, HARNESS_DB),
        HARNESS_TEST(test_a_reader_cannot_fall_asleep_over_an_open_write, HARNESS_DB),
        HARNESS_TEST(test_a_savepoint_rolled_back_loses_no_wake_up, HARNESS_DB),
        HARNESS_TEST(test_each_store_of_a_transaction_is_woken, HARNESS_DB),
        HARNESS_TEST(test_R25_everything_about_an_object_goes, HARNESS_DB),
        HARNESS_TEST(test_a_grant_that_was_not_committed_is_deleted_when_it_appears, HARNESS_DB),
        HARNESS_TEST(test_a_younger_transaction_than_the_request_is_waited_for, HARNESS_DB),
        HARNESS_TEST(test_D19_what_is_granted_after_the_deletion_stays, HARNESS_DB),
        HARNESS_TEST(test_D19_a_grant_that_changes_nothing_survives_the_repetition, HARNESS_DB),
        HARNESS_TEST(test_D19_a_new_row_keeps_a_late_grant, HARNESS_DB),
        HARNESS_TEST(test_D19_a_row_that_is_left_keeps_a_late_grant, HARNESS_DB),
        HARNESS_TEST(test_D19_one_of_many_rows_that_is_left_keeps_a_late_grant, HARNESS_DB),
        HARNESS_TEST(test_D19_backfill_keeps_a_late_grant, HARNESS_DB),
        HARNESS_TEST(test_D19_a_grant_that_the_repetition_waits_for_stays, HARNESS_DB),
        HARNESS_TEST(test_a_change_during_the_end_of_an_erasure_keeps_its_ledger_row, HARNESS_DB),
        HARNESS_TEST(test_an_erasure_leaves_nothing_but_its_record, HARNESS_DB),
        HARNESS_TEST(test_an_erased_parked_grant_is_closed_out, HARNESS_DB),
        HARNESS_TEST(test_R14_only_tombstones_at_rest_are_swept, HARNESS_DB),
        HARNESS_TEST(test_sweeping_is_bounded_and_goes_on, HARNESS_DB),
        HARNESS_TEST(test_closed_dead_letters_and_ended_writers_go_after_their_retention, HARNESS_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
