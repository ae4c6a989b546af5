/*
 * drift_record_test.c - what audits leave in Postgres: runs, and findings from the first audit that saw them to the
 * first that did not, whatever becomes of the process.
 */
#include <signal.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define AUDIT_MS 60000
#define OPEN "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL"
#define LAST(column) "SELECT " column " FROM relata.audit_run ORDER BY id DESC LIMIT 1"

static struct proc *begin(struct harness *h, const char *const *args)
{
    const char *argv[24] = {0};
    const char *const fixed[] = {"--no-progress",
                                 "--set",
                                 harness_strf(h, "pg.dsn=%s", h->dsn),
                                 "--set",
                                 harness_strf(h, "store.url=%s", h->store_url),
                                 "--set",
                                 "store.request_timeout=20s",
                                 "--set",
                                 "store.late_window=100ms",
                                 "--set",
                                 "audit.settle=0ms"};
    size_t n = 0;

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    for (; *args; args++)
        argv[n++] = *args;
    return proc_startv(h, "drift-checker", argv);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGS ((const char *const[]){NULL})

static void assert_audit(struct harness *h, int code, const char *const *args)
{
    struct proc *p = begin(h, args);
    int got = proc_wait(p, harness_ms(AUDIT_MS));

    if (got != code)
        fail_msg("the audit ended with %d, not %d: %s", got, code, proc_log(p));
}

/* `n` shares that are in inventory, ledger and store. */
static void world(struct harness *h, int n)
{
    struct proc *writer = writer_start(h, "--set", "store.request_timeout=20s", NULL);

    harness_sql(h, "CREATE TABLE public.shares (doc text, person text, PRIMARY KEY (doc, person));"
                   "SELECT relata.track('public.shares', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", "
                   "\"subject\": \"user:{person}\"}]')");
    harness_sqlf(h, "INSERT INTO public.shares SELECT i, 'anne' FROM generate_series(1, %d) i", n);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", 60000);
    proc_stop(writer);
}

static void behind(struct harness *h, const char *sql)
{
    harness_sqlf(h, "BEGIN; SET LOCAL session_replication_role = replica; %s; COMMIT", sql);
}

/* ---- findings ---- */

static void test_D31_a_finding_lives_from_first_to_last_sight(void **state)
{
    struct harness *h = *state;
    const char *id, *first;

    world(h, 20);
    behind(h, "DELETE FROM public.shares WHERE doc = '1'");
    assert_audit(h, 1, NO_ARGS);
    id = harness_sql_text(h, "SELECT id FROM relata.audit_finding");
    first = harness_sql_text(h, "SELECT first_seen FROM relata.audit_finding");
    assert_audit(h, 1, NO_ARGS);
    assert_string_equal(harness_sql_text(h, "SELECT id FROM relata.audit_finding"), id); /* the same, seen again */
    assert_string_equal(harness_sql_text(h, "SELECT first_seen FROM relata.audit_finding"), first);
    assert_string_equal(harness_sql_text(h, "SELECT last_run - first_run FROM relata.audit_finding"), "1");
    behind(h, "INSERT INTO public.shares VALUES ('1', 'anne')");
    assert_audit(h, 0, NO_ARGS);
    assert_int_equal(harness_sql_int(h, OPEN), 0);
    assert_string_equal(harness_sql_text(h, "SELECT repaired_at IS NULL FROM relata.audit_finding"), "t");
    behind(h, "DELETE FROM public.shares WHERE doc = '1'"); /* the same injury is another finding */
    assert_audit(h, 1, NO_ARGS);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_finding"), 2);
    assert_string_equal(harness_sql_text(h, LAST("state || ' ' || (counts -> 'causes' ->> 'orphan')")), "drift 1");
}

static void test_what_an_audit_does_not_cover_stays_open(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir);

    world(h, 20);
    behind(h, "DELETE FROM public.shares WHERE doc = '1'");
    assert_audit(h, 1, ARGS("--plan", plan));
    behind(h, "INSERT INTO public.shares VALUES ('1', 'anne')"); /* gone, if anybody looks */
    assert_audit(h, 0, ARGS("--object", "doc:2"));
    assert_audit(h, 0, ARGS("--subject", "user:ben"));
    assert_audit(h, 0, ARGS("--type", "folder"));
    assert_int_equal(harness_sql_int(h, OPEN), 1);
    behind(h, "DELETE FROM public.shares WHERE doc = '2'");
    assert_audit(h, 3, ARGS("--apply", plan)); /* doc:1 has moved, doc:2 is none of the plan's */
    assert_int_equal(harness_sql_int(h, OPEN), 1);
    assert_string_equal(harness_sql_text(h, LAST("scope || ' ' || state")), "plan refused");
    assert_audit(h, 1, NO_ARGS); /* the plan's run is no measure of what the sources had */
    assert_string_equal(harness_sql_text(h, "SELECT object FROM relata.audit_finding WHERE closed_at IS NULL"),
                        "doc:2");
    behind(h, "INSERT INTO public.shares VALUES ('2', 'anne')");
    harness_sql(h, "SELECT relata.touch_tuple('doc:2', 'viewer', 'user:anne')"); /* pending: undecided */
    assert_audit(h, 0, NO_ARGS);
    assert_int_equal(harness_sql_int(h, OPEN), 1);
    harness_sql(h, "DELETE FROM relata.outbox");
    assert_audit(h, 0, ARGS("--subject", "user:anne"));
    assert_int_equal(harness_sql_int(h, OPEN), 0);
}

static void test_beyond_max_findings_nothing_is_closed_or_called_clean(void **state)
{
    struct harness *h = *state;

    world(h, 20);
    behind(h, "DELETE FROM public.shares WHERE doc = '9'");
    assert_audit(h, 1, NO_ARGS);
    behind(h, "DELETE FROM public.shares WHERE doc IN ('1', '2')");
    assert_audit(h, 1, ARGS("--set", "audit.max_findings=1"));
    assert_audit(h, 3,
                 ARGS("--set", "audit.max_findings=1", "--repair", "--max-repairs", "100%", "--max-deletions", "100%"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 0);
    assert_int_equal(harness_sql_int(h, OPEN " AND object = 'doc:9'"), 1);
}

/* ---- runs ---- */

static void test_a_failed_audit_closes_nothing(void **state)
{
    struct harness *h = *state;

    world(h, 20);
    behind(h, "DELETE FROM public.shares WHERE doc = '1'");
    assert_audit(h, 1, NO_ARGS);
    behind(h, "INSERT INTO public.shares VALUES ('1', 'anne')");
    assert_audit(h, 2, ARGS("--set", "store.url=http://127.0.0.1:1"));
    assert_string_equal(harness_sql_text(h, LAST("state")), "incomplete");
    assert_string_equal(harness_sql_text(h, LAST("why LIKE '%no connection%'")), "t");
    assert_int_equal(harness_sql_int(h, OPEN), 1);
    behind(h, "DELETE FROM public.shares WHERE doc::int <= 10"); /* 50 % less */
    assert_audit(h, 2, NO_ARGS);
    assert_string_equal(harness_sql_text(h, LAST("why LIKE '%--accept-shrink%'")), "t");
    assert_int_equal(harness_sql_int(h, OPEN), 1);
    assert_audit(h, 2, NO_ARGS); /* what failed is no measure */
    assert_audit(h, 1, ARGS("--accept-shrink"));
    assert_int_equal(harness_sql_int(h, OPEN), 10);
}

struct waiting {
    struct harness *h;
    const char *sql;
};

static bool is_true(void *arg)
{
    struct waiting *w = arg;

    return strcmp(harness_sql_text(w->h, w->sql), "t") == 0;
}

/* Killed wherever it is: nothing is left but the record of a run, and no repair is without one. */
static void test_killed_at_any_point_it_leaves_nothing(void **state)
{
    struct harness *h = *state;
    static const char *const waits[] = {
        "LOCK TABLE relata.tuple IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE public.shares IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE relata.dead_letter IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE relata.audit_finding IN SHARE MODE",
        "SELECT FROM relata.tuple WHERE object = 'doc:3' FOR UPDATE", /* the repair */
    };
    struct waiting stuck = {h, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'drift-checker' AND "
                               "datname = current_database() AND wait_event_type = 'Lock'"};
    struct waiting gone = {h, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'drift-checker' AND "
                              "datname = current_database()"};

    world(h, 40);
    behind(h, "DELETE FROM public.shares WHERE doc::int <= 5");
    assert_audit(h, 1, NO_ARGS);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        struct pg *holder = harness_connect(h, NULL);
        struct err err = {0};
        struct proc *p;

        if (pg_exec(holder, harness_strf(h, "BEGIN; %s", waits[i]), deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
            fail_msg("%s: %s", waits[i], err.text);
        p = begin(h, ARGS("--repair", "--max-repairs", "100%", "--max-deletions", "100%"));
        assert_eventually(is_true, &stuck, 60000);
        proc_kill(p);
        pg_close(holder);
        assert_eventually(is_true, &gone, 60000);
        assert_string_equal(harness_sql_text(h, LAST("state")), "running");
        assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM pg_class WHERE relpersistence = 't'"), 0);
        assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 0);
        assert_int_equal(harness_sql_int(h, "SELECT count(repaired_at) FROM relata.audit_finding"), 0);
    }
    assert_audit(h, 1, ARGS("--repair", "--max-repairs", "5", "--max-deletions", "5"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_run WHERE state = 'running'"), 0);
    assert_int_equal(
        harness_sql_int(h, "SELECT count(*) FROM relata.audit_run WHERE state = 'incomplete' AND why LIKE '%killed%'"),
        5);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox WHERE op = 'delete'"), 5);
    assert_int_equal(
        harness_sql_int(
            h, "SELECT count(*) FROM relata.audit_finding WHERE repaired_at IS NOT NULL AND token IS NOT NULL"),
        5);
}

/* SIGTERM while the store does not answer. */
static void test_interrupted_it_says_so(void **state)
{
    struct harness *h = *state;
    struct waiting recorded = {h, "SELECT count(*) > 0 FROM relata.audit_run WHERE state = 'running'"};
    struct proc *p;
    int code;

    harness_service(h, "freeze", "openfga");
    p = begin(h, NO_ARGS);
    assert_eventually(is_true, &recorded, 60000);
    proc_signal(p, SIGTERM);
    code = proc_wait(p, harness_ms(AUDIT_MS));
    harness_service(h, "continue", "openfga");
    assert_int_equal(code, 2);
    assert_string_equal(harness_sql_text(h, LAST("state")), "incomplete");
    assert_string_equal(harness_sql_text(h, LAST("why LIKE '%interrupted%'")), "t");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_D31_a_finding_lives_from_first_to_last_sight, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_what_an_audit_does_not_cover_stays_open, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_beyond_max_findings_nothing_is_closed_or_called_clean, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_failed_audit_closes_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_killed_at_any_point_it_leaves_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_interrupted_it_says_so, HARNESS_DB | HARNESS_STORE | HARNESS_OWN_OPENFGA),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
