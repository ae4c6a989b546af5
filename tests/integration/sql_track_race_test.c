/*
 * sql_track_race_test.c - tracked tables under concurrency: a tuple lives exactly as long as some committed row stands
 * for it. Forced interleavings, then random ones.
 */
#include "tests/integration/sql_sessions.h"

/* Two tables whose rows may stand for the same tuple. */
static const char setup[] =
    "CREATE TABLE public.a (id int PRIMARY KEY, doc text, who text); CREATE INDEX ON public.a (doc); "
    "CREATE TABLE public.b (doc text, who text, n int, PRIMARY KEY (doc, who, n)); "
    "SELECT relata.track('public.a', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", \"subject\": "
    "\"user:{who}\"}]'); "
    "SELECT relata.track('public.b', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", \"subject\": "
    "\"user:{who}\"}]'); ";

/* A round of upkeep of the test: as if the writer had applied everything. */
static void start(struct harness *h, const char *rows)
{
    harness_sqlf(h, "%s%s", setup, rows);
    apply_all(h);
}

static void test_D25_the_tuple_goes_with_the_last_of_two_concurrent_deletes(void **state)
{
    struct harness *h = *state;
    static const char *const second[] = {"DELETE FROM public.a WHERE id = 2", "DELETE FROM public.b"};

    harness_sql(h, setup);
    for (int i = 0; i < 2; i++) {
        harness_sql(h, "INSERT INTO public.a VALUES (1, 'x', 'anne')");
        harness_sql(h, i == 0 ? "INSERT INTO public.a VALUES (2, 'x', 'anne')"
                              : "INSERT INTO public.b VALUES ('x', 'anne', 1)");
        apply_all(h);
        struct session one = session_open(h), two = session_open(h);
        session_run(&one, "BEGIN");
        session_run(&one, "DELETE FROM public.a WHERE id = 1");
        session_begin(&two, second[i]);
        session_waits(&two); /* for the tuple's row in the ledger */
        session_run(&one, "COMMIT");
        session_end(&two);
        assert_int_equal(two.status, ST_OK);
        assert_string_equal(ledger_present(h), "");
        assert_string_equal(outbox_ops(h), "delete doc:x#viewer@user:anne");
        session_close(&one);
        session_close(&two);
    }
}

static void test_D25_a_delete_that_is_rolled_back_keeps_the_tuple(void **state)
{
    struct harness *h = *state;
    struct session one = session_open(h), two = session_open(h);

    start(h, "INSERT INTO public.a VALUES (1, 'x', 'anne'), (2, 'x', 'anne')");
    session_run(&one, "BEGIN");
    session_run(&one, "DELETE FROM public.a WHERE id = 1");
    session_begin(&two, "DELETE FROM public.a WHERE id = 2");
    session_waits(&two);
    session_run(&one, "ROLLBACK");
    session_end(&two);
    assert_int_equal(two.status, ST_OK);
    assert_string_equal(ledger_present(h), "doc:x#viewer@user:anne");
    assert_string_equal(outbox_ops(h), "");
    session_close(&one);
    session_close(&two);
}

static void test_a_row_inserted_while_another_is_deleted_keeps_the_tuple(void **state)
{
    struct harness *h = *state;
    struct session one = session_open(h), two = session_open(h);

    start(h, "INSERT INTO public.a VALUES (1, 'x', 'anne')");
    /* The insert is first. */
    session_run(&one, "BEGIN");
    session_run(&one, "INSERT INTO public.b VALUES ('x', 'anne', 1)");
    session_begin(&two, "DELETE FROM public.a WHERE id = 1");
    session_waits(&two);
    session_run(&one, "COMMIT");
    session_end(&two);
    assert_string_equal(ledger_present(h), "doc:x#viewer@user:anne");
    /* The delete is first. */
    session_run(&two, "BEGIN");
    session_run(&two, "DELETE FROM public.b");
    session_begin(&one, "INSERT INTO public.a VALUES (2, 'x', 'anne')");
    session_waits(&one);
    session_run(&two, "COMMIT");
    session_end(&one);
    assert_int_equal(one.status, ST_OK);
    assert_string_equal(ledger_present(h), "doc:x#viewer@user:anne");
    /* The insert is first, and is rolled back. */
    session_run(&one, "BEGIN");
    session_run(&one, "INSERT INTO public.b VALUES ('x', 'anne', 1)");
    session_begin(&two, "DELETE FROM public.a WHERE id = 2");
    session_waits(&two);
    session_run(&one, "ROLLBACK");
    session_end(&two);
    assert_int_equal(two.status, ST_OK);
    assert_string_equal(ledger_present(h), "");
    session_close(&one);
    session_close(&two);
}

/* A snapshot that is older than the other's commit cannot be asked: 40001, at every level above read committed. */
static void test_repeatable_read_never_decides_on_an_old_snapshot(void **state)
{
    struct harness *h = *state;
    static const char *const levels[] = {"BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"};
    static const struct {
        const char *rows, *other, *mine;
    } cases[] = {
        /* another row of the tuple was deleted */
        {"(1, 'x', 'anne'), (2, 'x', 'anne')", "DELETE FROM public.a WHERE id = 1",
         "DELETE FROM public.a WHERE id = 2"},
        /* another row of the tuple was inserted, which changed nothing */
        {"(1, 'x', 'anne')", "INSERT INTO public.b VALUES ('x', 'anne', 1)", "DELETE FROM public.a WHERE id = 1"},
        {"(1, 'x', 'anne')", "INSERT INTO public.a VALUES (5, 'x', 'anne')", "DELETE FROM public.a WHERE id = 1"},
        {"(1, 'x', 'anne'), (2, 'y', 'anne')", "UPDATE public.a SET doc = 'x' WHERE id = 2",
         "DELETE FROM public.a WHERE id = 1"},
        /* the only row of the tuple was deleted */
        {"(1, 'x', 'anne')", "DELETE FROM public.a WHERE id = 1", "INSERT INTO public.b VALUES ('x', 'anne', 1)"},
    };

    harness_sql(h, setup);
    for (size_t l = 0; l < 2; l++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            harness_sql(h, "DELETE FROM public.a; DELETE FROM public.b");
            harness_sqlf(h, "INSERT INTO public.a VALUES %s", cases[c].rows);
            apply_all(h);
            for (int open = 0; open < 2; open++) {
                struct session mine = session_open(h), other = session_open(h);
                session_run(&mine, levels[l]);
                session_run(&mine, "SELECT count(*) FROM public.a");
                session_run(&other, "BEGIN");
                session_run(&other, cases[c].other);
                if (open == 0) {
                    session_run(&other, "COMMIT");
                    session_fails(&mine, cases[c].mine, "40001");
                } else {
                    session_begin(&mine, cases[c].mine);
                    session_waits(&mine);
                    session_run(&other, "COMMIT");
                    assert_string_equal(session_end(&mine), "40001");
                }
                session_run(&mine, "ROLLBACK");
                session_close(&mine);
                session_close(&other);
                if (open == 0) { /* again, the other one still open */
                    harness_sql(h, "DELETE FROM public.a; DELETE FROM public.b");
                    harness_sqlf(h, "INSERT INTO public.a VALUES %s", cases[c].rows);
                    apply_all(h);
                }
            }
        }
}

static void test_the_condition_follows_the_rows_that_are_left(void **state)
{
    struct harness *h = *state;
    struct session one = session_open(h), two = session_open(h);

    harness_sql(h, "CREATE TABLE public.c (id int PRIMARY KEY, until timestamptz); SELECT relata.track('public.c', "
                   "'[{\"object\": \"doc:x\", \"relation\": \"viewer\", \"subject\": \"user:anne\", "
                   "\"condition\": {\"name\": \"until\", \"context\": {\"t\": \"{until}\"}}}]'); "
                   "INSERT INTO public.c VALUES (1, '2031-01-01Z'), (2, '2032-01-01Z'), (3, '2033-01-01Z')");
    apply_all(h);
    session_run(&one, "BEGIN");
    session_run(&one, "DELETE FROM public.c WHERE id = 1");
    session_begin(&two, "DELETE FROM public.c WHERE id = 2");
    session_waits(&two);
    session_run(&one, "COMMIT");
    session_end(&two);
    assert_string_equal(harness_sql_text(h, "SELECT condition_context ->> 't' FROM relata.tuple WHERE present"),
                        "2033-01-01T00:00:00.000000Z");
    session_run(&one, "UPDATE public.c SET until = '2034-01-01Z'");
    assert_string_equal(harness_sql_text(h, "SELECT condition_context ->> 't' FROM relata.tuple WHERE present"),
                        "2034-01-01T00:00:00.000000Z");
    session_close(&one);
    session_close(&two);
}

/* The row was read, then deleted, before its tuple could be written. */
static void test_backfill_writes_nothing_for_a_row_that_is_going(void **state)
{
    struct harness *h = *state;
    struct session fill = session_open(h), service = session_open(h);

    harness_sql(
        h, "CREATE TABLE public.a (id int PRIMARY KEY, who text); INSERT INTO public.a VALUES (1, 'anne'), (2, 'bob'); "
           "SELECT relata.track('public.a', '[{\"object\": \"doc:{id}\", \"relation\": \"viewer\", "
           "\"subject\": \"user:{who}\"}]')");
    session_run(&service, "BEGIN");
    session_run(&service, "DELETE FROM public.a WHERE id = 1");
    session_begin(&fill, "CALL relata.backfill('public.a')");
    session_waits(&fill);
    session_run(&service, "COMMIT");
    session_end(&fill);
    if (fill.status != ST_OK)
        fail_msg("%s: %s", fill.err.code, fill.err.text);
    assert_string_equal(ledger_present(h), "doc:2#viewer@user:bob");
    session_close(&fill);
    session_close(&service);
}

static void test_a_row_deleted_behind_an_open_backfill_takes_its_tuple_along(void **state)
{
    struct harness *h = *state;
    struct session fill = session_open(h), service = session_open(h), holder = session_open(h);

    harness_sql(
        h, "CREATE TABLE public.a (id int PRIMARY KEY, who text); INSERT INTO public.a VALUES (1, 'anne'), (2, 'bob'); "
           "SELECT relata.track('public.a', '[{\"object\": \"doc:{id}\", \"relation\": \"viewer\", "
           "\"subject\": \"user:{who}\"}]')");
    /* Backfill holds doc:1 and waits for doc:2. */
    session_run(&holder, "BEGIN");
    session_run(&holder, "SELECT relata.delete_tuple('doc:2', 'viewer', 'user:bob')");
    session_begin(&fill, "CALL relata.backfill('public.a')");
    session_waits(&fill);
    session_begin(&service, "DELETE FROM public.a WHERE id = 1");
    session_waits(&service);
    session_run(&holder, "ROLLBACK");
    session_end(&fill);
    session_end(&service);
    assert_int_equal(fill.status, ST_OK);
    assert_int_equal(service.status, ST_OK);
    assert_string_equal(ledger_present(h), "doc:2#viewer@user:bob");
    session_close(&fill);
    session_close(&service);
    session_close(&holder);
}

static void test_backfill_goes_on_where_it_was_stopped(void **state)
{
    struct harness *h = *state;
    struct session fill = session_open(h), holder = session_open(h);

    harness_sql(h, "CREATE TABLE public.a (id int PRIMARY KEY, who text); "
                   "INSERT INTO public.a SELECT i, 'u' || i FROM generate_series(1, 3000) i; ANALYZE public.a; "
                   "SELECT relata.track('public.a', '[{\"object\": \"doc:{id}\", \"relation\": \"viewer\", "
                   "\"subject\": \"user:{who}\"}]')");
    session_run(&holder, "BEGIN");
    session_run(&holder, "SELECT relata.delete_tuple('doc:2000', 'viewer', 'user:u2000')");
    session_begin(&fill, "CALL relata.backfill('public.a', 200)");
    session_waits(&fill);
    harness_sqlf(h, "SELECT pg_terminate_backend(%d)", fill.pid);
    session_end(&fill);
    session_close(&fill);
    session_run(&holder, "ROLLBACK");
    int64_t done = harness_sql_int(h, "SELECT count(*) FROM relata.tuple WHERE present");
    assert_true(done > 0 && done < 2000);
    assert_int_equal(harness_sql_int(h, "SELECT emitted FROM relata.backfill WHERE finished_at IS NULL"), done);
    int64_t top = harness_sql_int(h, "SELECT max(id) FROM relata.outbox");
    harness_sql(h, "CALL relata.backfill('public.a', 200)");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 3000);
    assert_true(harness_sql_int(h, "SELECT count(*) FROM relata.outbox WHERE id <= "
                                   "(SELECT min(id) FROM relata.outbox WHERE object = 'doc:2000')") >= done);
    assert_int_equal(harness_sql_int(h, "SELECT emitted FROM relata.backfill WHERE finished_at IS NOT NULL"), 3000);
    assert_true(harness_sql_int(h, "SELECT max(id) FROM relata.outbox") > top);
    /* Again: nothing is missing, nothing is written. */
    harness_sql(h, "CALL relata.backfill('public.a')");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 3000);
    session_close(&holder);
}

/* Random statements on both tables from four sessions, some rolled back, at different levels; then the ledger is what
 * the rows say. */
static void test_random_changes_leave_exactly_the_tuples_of_the_rows(void **state)
{
    struct harness *h = *state;
    struct session s[4];
    uint64_t seed = harness_seed();

    start(h, "");
    harness_sql(
        h,
        "CREATE TABLE public.d (doc text PRIMARY KEY); INSERT INTO public.d SELECT 'd' || i FROM generate_series(1, 4) "
        "i; "
        "CREATE TABLE public.c (id int PRIMARY KEY, doc text REFERENCES public.d ON DELETE CASCADE ON UPDATE CASCADE, "
        "who text, gone boolean NOT NULL DEFAULT false); CREATE INDEX ON public.c (doc); "
        "SELECT relata.track('public.c', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", "
        "\"subject\": \"user:{who}\", \"when\": \"not gone\"}]')");
    for (int i = 0; i < 4; i++) {
        s[i] = session_open(h);
        session_run(&s[i],
                    harness_strf(h, "SELECT setseed(%.6f)", (double)((seed + (uint64_t)i * 7919) % 1000000) / 1e6));
        session_begin(
            &s[i],
            harness_strf(
                h,
                "DO $do$ DECLARE vd text; vw text; k int; BEGIN FOR i IN 1..%d LOOP "
                "BEGIN "
                "  FOR j IN 1..1 + floor(random() * 3)::int LOOP "
                "    vd := 'd' || 1 + floor(random() * 4)::int; vw := 'u' || 1 + floor(random() * 3)::int; "
                "    k := floor(random() * 40)::int; "
                "    CASE floor(random() * 12)::int "
                "      WHEN 0 THEN INSERT INTO public.a VALUES (k, vd, vw) ON CONFLICT (id) DO UPDATE SET who = vw; "
                "      WHEN 1 THEN DELETE FROM public.a WHERE id = k; "
                "      WHEN 2 THEN UPDATE public.a SET doc = vd WHERE id = k; "
                "      WHEN 3 THEN INSERT INTO public.b VALUES (vd, vw, k %% 3) ON CONFLICT DO NOTHING; "
                "      WHEN 4 THEN DELETE FROM public.b WHERE doc = vd AND who = vw; "
                "      WHEN 5 THEN UPDATE public.b SET who = NULLIF(vw, 'u9') WHERE doc = vd AND n = 0 AND NOT EXISTS "
                "        (SELECT FROM public.b x WHERE x.doc = vd AND x.who = vw AND x.n = 0); "
                "      WHEN 6 THEN INSERT INTO public.c VALUES (k, (SELECT x.doc FROM public.d x ORDER BY random() "
                "LIMIT 1), "
                "        nullif(vw, 'u3')) ON CONFLICT DO NOTHING; "
                "      WHEN 7 THEN UPDATE public.c SET gone = NOT gone WHERE id %% 10 = k %% 10; "
                "      WHEN 8 THEN DELETE FROM public.c WHERE id = k; "
                "      WHEN 9 THEN DELETE FROM public.d WHERE doc = vd; "
                "      WHEN 10 THEN INSERT INTO public.d VALUES (vd) ON CONFLICT DO NOTHING; "
                "      ELSE UPDATE public.d SET doc = vd WHERE doc = 'd' || 1 + k %% 4; "
                "    END CASE; "
                "  END LOOP; "
                "  IF random() < 0.15 THEN RAISE EXCEPTION 'undo' USING ERRCODE = 'XX999'; END IF; "
                "  IF random() < 0.1 THEN DELETE FROM relata.outbox; END IF; "
                "EXCEPTION WHEN SQLSTATE 'XX999' OR deadlock_detected OR serialization_failure OR unique_violation OR "
                "not_null_violation OR "
                "  foreign_key_violation THEN NULL; "
                "END; COMMIT; "
                "END LOOP; END $do$",
                harness_soak(5000)));
    }
    for (int i = 0; i < 4; i++) {
        session_end(&s[i]);
        if (s[i].status != ST_OK)
            fail_msg("%s: %s", s[i].err.code, s[i].err.text);
        session_close(&s[i]);
    }
    assert_string_equal(
        harness_sql_text(
            h,
            "WITH e AS (SELECT 'doc:' || doc AS o, 'user:' || who AS s FROM public.a WHERE doc IS NOT NULL AND who IS "
            "NOT NULL UNION SELECT 'doc:' || doc, 'user:' || who FROM public.b WHERE who IS NOT NULL UNION "
            "SELECT 'doc:' || doc, 'user:' || who FROM public.c WHERE NOT gone AND doc IS NOT NULL AND who IS NOT "
            "NULL), "
            "l AS (SELECT object AS o, subject AS s FROM relata.tuple WHERE present) "
            "SELECT coalesce(string_agg(d.what || d.o || '@' || d.s, ', '), '') FROM ("
            "SELECT 'lost ' AS what, * FROM (TABLE e EXCEPT TABLE l) x UNION ALL "
            "SELECT 'left over ', * FROM (TABLE l EXCEPT TABLE e) x) d"),
        "");
    assert_true(harness_sql_int(h, "SELECT last_value FROM relata.outbox_id") > harness_soak(5000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_D25_the_tuple_goes_with_the_last_of_two_concurrent_deletes, HARNESS_DB),
        HARNESS_TEST(test_D25_a_delete_that_is_rolled_back_keeps_the_tuple, HARNESS_DB),
        HARNESS_TEST(test_a_row_inserted_while_another_is_deleted_keeps_the_tuple, HARNESS_DB),
        HARNESS_TEST(test_repeatable_read_never_decides_on_an_old_snapshot, HARNESS_DB),
        HARNESS_TEST(test_the_condition_follows_the_rows_that_are_left, HARNESS_DB),
        HARNESS_TEST(test_backfill_writes_nothing_for_a_row_that_is_going, HARNESS_DB),
        HARNESS_TEST(test_a_row_deleted_behind_an_open_backfill_takes_its_tuple_along, HARNESS_DB),
        HARNESS_TEST(test_backfill_goes_on_where_it_was_stopped, HARNESS_DB),
        HARNESS_TEST(test_random_changes_leave_exactly_the_tuples_of_the_rows, HARNESS_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
