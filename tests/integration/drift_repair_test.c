/*
 * drift_repair_test.c - repairs go through the outbox, say what is true at that moment, never take more than was
 * counted, and are on record whatever becomes of the process.
 */
#include <unistd.h>

#include "tests/integration/drift_helpers.h"

#define REPAIRED "SELECT count(*) FROM relata.audit_finding WHERE repaired_at IS NOT NULL"

/* ---- what is done ---- */

static void test_D01_a_plan_adds_what_lacks_and_takes_nothing(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir);

    world(h, 1);
    behind(h, "INSERT INTO public.shares VALUES ('2', 'ben')");
    audit(h, 1, ARGS("--plan", plan));
    assert_string_equal(pending(h), "");
    audit(h, 1, ARGS("--apply", plan, "--max-deletions", "0"));
    assert_string_equal(pending(h), "write doc:2");
    converge_all(h);
    assert_true(store_has(h, "doc:1", "viewer", "user:anne"));
    assert_true(store_has(h, "doc:2", "viewer", "user:ben"));
    audit(h, 0, NO_ARGS);
}

/* One of each kind, by a login that has no more than the roles. */
static void test_repairs_of_every_kind_by_the_role_for_them(void **state)
{
    struct harness *h = *state;
    const char *role = harness_strf(h, "r_%s", h->id);

    world(h, 6);
    store_take(h, "doc:1", "viewer", "user:anne");
    behind(h, "DELETE FROM public.shares WHERE doc = '2'");
    behind(h, "INSERT INTO public.shares VALUES ('7', 'ben')");
    store_put(h, "doc:3", "editor", "user:mallory", NULL);
    store_put(h, "doc:4", "editor", "user:ben", "{\"from\":1}");
    ledger_put(h, "doc:4", "editor", "user:ben", "true, 'in_hours', '{\"from\": 9}'");
    ledger_put(h, "doc:5", "legacy", "user:ben", "true, NULL, NULL");
    harness_sqlf(h, "CREATE ROLE %s LOGIN PASSWORD 'x' IN ROLE relata_auditor, relata_repair", role);
    audit_end(h, audit_start(h, harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL), NULL, ARGS("--repair")), 1);
    assert_string_equal(counts(h), "6 0 0 6 6");
    assert_string_equal(pending(h), "touch doc:1, delete doc:2, touch doc:3, touch doc:4, delete doc:5, write doc:7");
    assert_string_equal(harness_sql_text(h, REPAIRED " AND token LIKE 'r1.%'"), "6");
    converge_all(h);
    assert_true(store_has(h, "doc:1", "viewer", "user:anne"));
    assert_false(store_has(h, "doc:2", "viewer", "user:anne"));
    assert_false(store_has(h, "doc:3", "editor", "user:mallory"));
    assert_true(store_has(h, "doc:7", "viewer", "user:ben"));
    audit(h, 0, NO_ARGS);
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL"), "0");
    harness_sqlf(h, "DROP OWNED BY %s; DROP ROLE %s", role, role);
}

static void test_D04_caps_hold_to_the_tuple(void **state)
{
    struct harness *h = *state;

    world(h, 20);
    behind(h, "DELETE FROM public.shares WHERE doc IN ('1', '2', '3')");
    store_take(h, "doc:4", "viewer", "user:anne");
    store_take(h, "doc:5", "viewer", "user:anne");
    audit(h, 3, ARGS("--repair", "--max-deletions", "2"));
    audit(h, 3, ARGS("--repair", "--max-repairs", "4"));
    audit(h, 3, ARGS("--repair", "--max-repairs", "24%")); /* of 20: 4 */
    audit(h, 3, ARGS("--repair", "--max-deletions", "100,14%"));
    assert_string_equal(pending(h), "");
    assert_string_equal(harness_sql_text(h, REPAIRED), "0");
    assert_string_equal(harness_sql_text(h, LAST_RUN("state")), "refused");
    audit(h, 1, ARGS("--repair", "--max-repairs", "5,25%", "--max-deletions", "3,15%"));
    assert_string_equal(counts(h), "5 0 0 5 5");
}

/* ---- what changes between finding and repair ---- */

static void test_a_revoke_between_finding_and_repair_stays_a_revoke(void **state)
{
    struct harness *h = *state;

    world(h, 4);
    store_take(h, "doc:1", "viewer", "user:anne");              /* lost */
    behind(h, "INSERT INTO public.shares VALUES ('5', 'ben')"); /* never emitted */
    store_put(h, "doc:2", "editor", "user:ben", "{\"from\":1}");
    ledger_put(h, "doc:2", "editor", "user:ben", "true, 'in_hours', '{\"from\": 9}'");
    between(h, "DELETE FROM public.shares WHERE doc IN ('1', '5'); PERFORM relata.delete_tuple('doc:2', 'editor', "
               "'user:ben')");
    audit(h, 1, ARGS("--repair"));
    assert_string_equal(found(h), "condition_mismatch doc:2#editor@user:ben, lost doc:1#viewer@user:anne, "
                                  "never_emitted doc:5#viewer@user:ben");
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM relata.tuple WHERE present"), "3");
    converge_all(h);
    assert_false(store_has(h, "doc:1", "viewer", "user:anne"));
    assert_false(store_has(h, "doc:2", "editor", "user:ben"));
    assert_false(store_has(h, "doc:5", "viewer", "user:ben"));
    audit(h, 0, ARGS("--accept-shrink"));
}

static void test_a_grant_between_finding_and_repair_stays_a_grant(void **state)
{
    struct harness *h = *state;

    world(h, 4);
    behind(h, "DELETE FROM public.shares WHERE doc = '1'"); /* an orphan */
    store_put(h, "doc:2", "editor", "user:ben", NULL);      /* out of band */
    between(h, "INSERT INTO public.shares VALUES ('1', 'anne'); PERFORM relata.write_tuple('doc:2', 'editor', "
               "'user:ben')");
    audit(h, 1, ARGS("--repair"));
    assert_string_equal(found(h), "orphan doc:1#viewer@user:anne!, out_of_band doc:2#editor@user:ben!");
    converge_all(h);
    assert_true(store_has(h, "doc:1", "viewer", "user:anne"));
    assert_true(store_has(h, "doc:2", "editor", "user:ben"));
    audit(h, 0, NO_ARGS);
}

/* A view by which doc:1 has a condition that ledger and store lack. */
static void view_world(struct harness *h)
{
    harness_sql(h, "CREATE TABLE public.t (object text, relation text, subject text, condition_name text, "
                   "condition_context jsonb); INSERT INTO public.t VALUES ('doc:1', 'viewer', 'user:a', 'in_hours', "
                   "'{\"from\": 9}'), ('doc:2', 'viewer', 'user:a', NULL, NULL)");
    for (int i = 1; i <= 2; i++) {
        ledger_put(h, harness_strf(h, "doc:%d", i), "viewer", "user:a", "true, NULL, NULL");
        store_put(h, harness_strf(h, "doc:%d", i), "viewer", "user:a", NULL);
    }
}
#define VIEW "--set", "expected.doc=public.t"

/* It was not counted as a deletion, so it does not become one. */
static void test_a_repair_never_becomes_a_deletion(void **state)
{
    struct harness *h = *state;

    view_world(h);
    between(h, "DELETE FROM public.t WHERE object = 'doc:1'");
    assert_non_null(strstr(audit(h, 1, ARGS(VIEW, "--repair", "--max-deletions", "0")), "repaired 0, failed 1"));
    assert_string_equal(found(h), "condition_mismatch doc:1#viewer@user:a!");
    assert_string_equal(pending(h), "");
    assert_string_equal(harness_sql_text(h, REPAIRED), "0");
    audit(h, 3, ARGS(VIEW, "--repair", "--max-deletions", "0", "--accept-shrink")); /* now it is one */
    audit(h, 1, ARGS(VIEW, "--repair", "--max-deletions", "1", "--accept-shrink"));
    assert_string_equal(pending(h), "delete doc:1");
}

static void test_D02_what_cannot_be_resolved_under_the_lock_is_left_alone(void **state)
{
    struct harness *h = *state;

    view_world(h);
    harness_sql(h, "DELETE FROM public.t WHERE object = 'doc:1'"); /* an orphan, until nobody can tell */
    between(h, "INSERT INTO public.t VALUES ('doc:1', 'viewer', NULL)");
    assert_non_null(strstr(audit(h, 1, ARGS(VIEW, "--repair")), "repaired 0, failed 1"));
    assert_string_equal(pending(h), "");
    assert_non_null(strstr(audit(h, 0, ARGS(VIEW)), "unresolvable: 1 objects"));
    /* A row without an object may be any object's. */
    harness_sql(h, "DELETE FROM public.t WHERE subject IS NULL; TRUNCATE relata.audit_finding");
    between(h, "INSERT INTO public.t VALUES (NULL, 'viewer', 'user:b')");
    assert_non_null(strstr(audit(h, 1, ARGS(VIEW, "--repair")), "repaired 0, failed 1"));
    assert_string_equal(pending(h), "");
}

/* A deletion of what the model forbids is of that tuple, under that model. */
static void test_what_became_valid_is_not_deleted(void **state)
{
    struct harness *h = *state;
    const char *insert = "INSERT INTO relata.tuple (store, object, relation, subject, version, present, "
                         "condition_name) VALUES ('default', 'doc:1', 'editor', 'user:a', "
                         "nextval('relata.outbox_id'), true, 'no_such')";

    world(h, 2);
    harness_sql(h, insert);
    between(h, "PERFORM relata.write_tuple('doc:1', 'editor', 'user:a')"); /* without that condition it is fine */
    audit(h, 1, ARGS("--repair"));
    assert_string_equal(found(h), "invalid_in_model doc:1#editor@user:a");
    assert_string_equal(pending(h), "write doc:1");
    converge_all(h);
    assert_true(store_has(h, "doc:1", "editor", "user:a"));

    ledger_put(h, "doc:2", "coming", "user:a", "true, NULL, NULL");
    between(h, "UPDATE relata.store SET model_id = '01ARZ3NDEKTSV4RRFFQ69G5FAV'");
    audit(h, 1, ARGS("--repair"));
    assert_string_equal(found(h), "invalid_in_model doc:2#coming@user:a");
    assert_string_equal(pending(h), "");
    assert_string_equal(harness_sql_text(h, REPAIRED), "0");
}

/* ---- plans ---- */

static void refused(struct harness *h, const char *plan, int code, const char *text)
{
    const char *out = audit(h, code, ARGS("--apply", plan, VIEW));

    if (!strstr(out, text))
        fail_msg("it should say \"%s\": %s", text, out);
    assert_string_equal(pending(h), "");
}

static void rewrite(struct harness *h, const char *from, const char *to, const char *command)
{
    const char *out;

    if (proc_run(h, &out, "/bin/sh", ARGS("-c", harness_strf(h, "%s <%s >%s", command, from, to))) != 0)
        fail_msg("%s: %s", command, out);
}

static void test_a_plan_is_done_only_if_nothing_moved(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir), *bad = harness_strf(h, "%s/bad", h->dir);
    const char *model = h->model_id;

    view_world(h);
    store_take(h, "doc:2", "viewer", "user:a");
    audit(h, 1, ARGS("--plan", plan, VIEW));
    assert_int_not_equal(access(harness_strf(h, "%s.new", plan), F_OK), 0);

    harness_sql(h, "UPDATE public.t SET condition_context = '{\"from\": 10}' WHERE object = 'doc:1'");
    refused(h, plan, 3, "doc:1#viewer@user:a has changed since the plan was made");
    harness_sql(h, "UPDATE public.t SET condition_context = '{\"from\": 9.0}' WHERE object = 'doc:1'");
    behind(h, "UPDATE relata.tuple SET version = version + 1000 WHERE object = 'doc:2'");
    refused(h, plan, 3, "doc:2#viewer@user:a has changed since the plan was made");
    behind(h, "UPDATE relata.tuple SET version = version - 1000 WHERE object = 'doc:2'");
    store_put(h, "doc:2", "viewer", "user:a", NULL);
    refused(h, plan, 3, "doc:2#viewer@user:a is no longer lost");
    store_take(h, "doc:2", "viewer", "user:a");
    harness_pin(h, h->store_id, harness_model_write(h, harness_model));
    refused(h, plan, 3, "the plan is for store");
    harness_pin(h, h->store_id, model);
    harness_sql(h, "CREATE VIEW public.u AS TABLE public.t");
    assert_non_null(strstr(audit(h, 3, ARGS("--apply", plan, "--set", "expected.doc=public.u")),
                           "other sources of expected tuples"));
    assert_non_null(strstr(audit(h, 3, ARGS("--apply", plan, VIEW, "--max-repairs", "1")), "--max-repairs 1 allows 1"));
    rewrite(h, plan, bad, "head -n 2");
    refused(h, bad, 2, "it is cut off or changed");
    rewrite(h, plan, bad, "sed 's/\"action\":\"touch\"/\"action\":\"delete\"/'");
    refused(h, bad, 3, "doc:2#viewer@user:a has changed since the plan was made");
    rewrite(h, plan, bad, "sed 's/\"store\":\"default\"/\"store\":\"other\"/'");
    refused(h, bad, 3, "the plan is for store \"other\"");
    rewrite(h, plan, bad, "sed 's/\"version\"/\"versions\"/'");
    refused(h, bad, 2, "line 2 is not one of a plan");

    /* What is more than the plan is not touched. */
    store_put(h, "doc:2", "editor", "user:mallory", NULL);
    audit(h, 1, ARGS("--apply", plan, VIEW));
    assert_string_equal(pending(h), "write doc:1, touch doc:2");
    converge_all(h);
    assert_true(store_has(h, "doc:2", "editor", "user:mallory"));
}

/* ---- an end in the middle ---- */

/* 250 lost tuples are three transactions; another session holds a tuple of the second one. */
static struct proc *stuck(struct harness *h, struct pg **holder)
{
    struct err err = {0};
    struct proc *p;

    world(h, 1);
    harness_sql(h, "INSERT INTO relata.tuple (store, object, relation, subject, present, version) SELECT 'default', "
                   "'doc:k' || to_char(i, 'FM000'), 'viewer', 'user:anne', true, nextval('relata.outbox_id') FROM "
                   "generate_series(1, 250) i");
    *holder = harness_connect(h, NULL);
    if (pg_exec(*holder, "BEGIN; SELECT FROM relata.tuple WHERE object = 'doc:k150' FOR UPDATE",
                deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("%s", err.text);
    p = audit_start(h, NULL, NULL, ARGS("--repair", "--set", "audit.tracked=false"));
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drift-checker' AND "
                          "datname = current_database() AND wait_event_type = 'Lock'",
                          "1", AUDIT_MS);
    return p;
}

static void assert_a_third(struct harness *h, struct pg *holder)
{
    pg_close(holder);
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drift-checker' AND "
                          "datname = current_database()",
                          "0", CONVERGE_MS);
    assert_string_equal(harness_sql_text(h, "SELECT count(*) || ' ' || max(object) FROM relata.outbox"),
                        "100 doc:k100");
    assert_string_equal(harness_sql_text(h, REPAIRED " AND object <= 'doc:k100'"), "100");
    assert_string_equal(harness_sql_text(h, REPAIRED), "100");
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
                                            "(SELECT oid FROM pg_database WHERE datname = current_database())"),
                        "0");
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM pg_class WHERE relpersistence = 't'"), "0");
    /* The next one does what is left. */
    audit(h, 1, ARGS("--repair", "--set", "audit.tracked=false"));
    assert_string_equal(counts(h), "250 100 0 150 150");
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM relata.outbox"), "250");
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(state, ' ' ORDER BY id) FROM relata.audit_run"),
                        "incomplete drift");
}

static void test_killed_while_it_repairs(void **state)
{
    struct harness *h = *state;
    struct pg *holder;
    struct proc *p = stuck(h, &holder);

    proc_kill(p);
    assert_a_third(h, holder);
}

static void test_interrupted_while_it_repairs(void **state)
{
    struct harness *h = *state;
    struct pg *holder;
    struct proc *p = stuck(h, &holder);
    const char *out;

    proc_signal(p, SIGTERM); /* it does not wait for the lock */
    out = audit_end(h, p, 2);
    assert_non_null(strstr(out, "interrupted: repaired 100 of 250"));
    assert_non_null(strstr(out, "repaired 100, failed 150"));
    assert_a_third(h, holder);
}

/* A service that takes the same tuples in another order: one of the two is tried again. */
static void test_a_deadlock_with_a_service_is_tried_again(void **state)
{
    struct harness *h = *state;
    struct pg *holder;
    struct proc *p = stuck(h, &holder);
    struct err err = {0};
    enum status st = pg_exec(holder,
                             "SET LOCAL deadlock_timeout = '1h'; UPDATE relata.tuple SET changed_at = now() "
                             "WHERE object = 'doc:k149'; COMMIT",
                             deadline_in_ms(harness_ms(60000)), &err);

    if (st != ST_OK)
        fail_msg("%s", err.text);
    pg_close(holder);
    audit_end(h, p, 1);
    assert_string_equal(counts(h), "250 0 0 250 250");
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM relata.outbox"), "250");
    assert_string_equal(harness_sql_text(h, REPAIRED), "250");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_D01_a_plan_adds_what_lacks_and_takes_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_repairs_of_every_kind_by_the_role_for_them, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D04_caps_hold_to_the_tuple, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_revoke_between_finding_and_repair_stays_a_revoke, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_grant_between_finding_and_repair_stays_a_grant, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_repair_never_becomes_a_deletion, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D02_what_cannot_be_resolved_under_the_lock_is_left_alone, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_what_became_valid_is_not_deleted, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_plan_is_done_only_if_nothing_moved, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_killed_while_it_repairs, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_interrupted_while_it_repairs, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_deadlock_with_a_service_is_tried_again, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
