/*
 * drift_judge_test.c - from differences to findings: which cause a difference has, and that what is in flight, what
 * moves and what cannot be known is none.
 */
#include <unistd.h>

#include "tests/integration/drift_helpers.h"

/* ---- causes ---- */

static void test_every_cause_and_who_has_too_much(void **state)
{
    struct harness *h = *state;
    const char *out;

    world(h, 8);
    store_take(h, "doc:1", "viewer", "user:anne");
    store_take(h, "doc:2", "viewer", "user:anne");
    parked(h, "doc:2", "viewer", "user:anne", "write");
    behind(h, "DELETE FROM public.shares WHERE doc IN ('3', '4')");
    store_take(h, "doc:4", "viewer", "user:anne"); /* an orphan that the store lacks gives nobody anything */
    behind(h, "INSERT INTO public.shares VALUES ('9', 'anne')");
    store_put(h, "doc:1", "editor", "user:mallory", NULL);
    store_put(h, "doc:1", "editor", "team:t#member", NULL);
    /* Refused: to revoke, and to narrow. */
    store_put(h, "doc:2", "editor", "user:ben", NULL);
    ledger_put(h, "doc:2", "editor", "user:ben", "false, NULL, NULL");
    parked(h, "doc:2", "editor", "user:ben", "delete");
    store_put(h, "doc:3", "editor", "user:ben", NULL);
    ledger_put(h, "doc:3", "editor", "user:ben", "true, 'in_hours', '{\"from\": 9}'");
    parked(h, "doc:3", "editor", "user:ben", "write");
    /* Without the condition that it should have; with other parameters. */
    store_put(h, "doc:4", "editor", "user:ben", NULL);
    ledger_put(h, "doc:4", "editor", "user:ben", "true, 'in_hours', '{\"from\": 9}'");
    store_put(h, "doc:5", "editor", "user:ben", "{\"from\":9,\"until\":17}");
    ledger_put(h, "doc:5", "editor", "user:ben", "true, 'in_hours', '{\"until\": 18, \"from\": 9}'");
    store_put(h, "doc:6", "editor", "user:ben", "{\"from\":9,\"until\":17}"); /* the same */
    ledger_put(h, "doc:6", "editor", "user:ben", "true, 'in_hours', '{\"until\": 17.0, \"from\": 9}'");
    ledger_put(h, "doc:7", "legacy", "user:ben", "true, NULL, NULL");

    out = audit(h, 1, NO_ARGS);
    assert_string_equal(found(h),
                        "condition_mismatch doc:4#editor@user:ben!, condition_mismatch doc:5#editor@user:ben, "
                        "invalid_in_model doc:7#legacy@user:ben, lost doc:1#viewer@user:anne, never_emitted "
                        "doc:9#viewer@user:anne, orphan doc:3#viewer@user:anne!, orphan "
                        "doc:4#viewer@user:anne, out_of_band doc:1#editor@team:t#member!, out_of_band "
                        "doc:1#editor@user:mallory!, parked doc:2#editor@user:ben!, parked "
                        "doc:2#viewer@user:anne, parked doc:3#editor@user:ben!");
    assert_string_equal(counts(h), "12 0 0 12 0");
    assert_non_null(strstr(out, "everybody in team:t#member can be editor of doc:1"));
    assert_true(strstr(out, "ACCESS THAT SHOULD NOT BE") < strstr(out, "never_emitted"));
    assert_string_equal(pending(h), ""); /* a report changes nothing */
}

/* What the inventory says with its own conditions, by a view. */
static void test_conditions_that_the_inventory_says(void **state)
{
    struct harness *h = *state;

    harness_sql(h, "CREATE TABLE public.t (object text, relation text, subject text, condition_name text, "
                   "condition_context jsonb); INSERT INTO public.t VALUES ('doc:1', 'viewer', 'user:a', 'in_hours', "
                   "'{\"from\": 9}'), ('doc:2', 'viewer', 'user:a', NULL, NULL)");
    ledger_put(h, "doc:1", "viewer", "user:a", "true, NULL, NULL"); /* wider than the inventory says */
    store_put(h, "doc:1", "viewer", "user:a", NULL);
    ledger_put(h, "doc:2", "viewer", "user:a", "true, 'in_hours', '{\"from\": 9}'"); /* narrower */
    store_put(h, "doc:2", "viewer", "user:a", "{\"from\":9}");
    audit(h, 1, ARGS("--set", "expected.doc=public.t"));
    assert_string_equal(found(h), "condition_mismatch doc:1#viewer@user:a!, condition_mismatch doc:2#viewer@user:a");
}

static void test_D19_a_tombstone_is_judged_too(void **state)
{
    struct harness *h = *state;

    world(h, 2);
    harness_sql(h, "DELETE FROM public.shares WHERE doc = '1'");
    converge_all(h);
    store_put(h, "doc:1", "viewer", "user:anne", NULL); /* left over, or back */
    harness_sql(h, "INSERT INTO public.shares VALUES ('1', 'ben')");
    converge_all(h);
    audit(h, 1, NO_ARGS);
    assert_string_equal(found(h), "out_of_band doc:1#viewer@user:anne!");
}

static void test_D22_what_was_renamed_is_told_as_one(void **state)
{
    struct harness *h = *state;
    const char *out;

    world(h, 1);
    harness_sql(h, "INSERT INTO public.shares SELECT 'c1-a', p FROM unnest(ARRAY['anne', 'ben', 'cleo']) p");
    converge_all(h);
    behind(h, "UPDATE public.shares SET doc = 'c2-a' WHERE doc = 'c1-a'");
    out = audit(h, 1, ARGS("--repair"));
    assert_string_equal(counts(h), "6 0 0 6 6");
    assert_non_null(strstr(out, "doc:c1-a -> doc:c2-a (3 tuples)"));
    converge_all(h);
    assert_false(store_has(h, "doc:c1-a", "viewer", "user:ben"));
    assert_true(store_has(h, "doc:c2-a", "viewer", "user:ben"));
    audit(h, 0, NO_ARGS);
}

static void test_D23_usersets_are_judged_and_what_is_skipped_is_counted(void **state)
{
    struct harness *h = *state;
    const char *out;

    world(h, 3);
    store_put(h, "doc:1", "viewer", "team:t1#member", NULL);
    audit(h, 1, NO_ARGS);
    assert_string_equal(found(h), "out_of_band doc:1#viewer@team:t1#member!");
    out = audit(h, 0, ARGS("--set", "audit.skip=doc#viewer"));
    assert_non_null(strstr(out, "skipped (audit.skip = doc#viewer): 3 tuples in the ledger, 4 in the store"));
}

/* ---- what the model forbids ---- */

#define WITHOUT_EDITOR                                                                                                 \
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":{"          \
    "\"viewer\":{\"this\":{}}},\"metadata\":{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":"   \
    "\"user\"}]}}}}]}"

static void test_D28_leftovers_of_an_older_model(void **state)
{
    struct harness *h = *state;
    const char *old = h->model_id;

    world(h, 2);
    store_put(h, "doc:1", "editor", "user:a", NULL);
    store_put(h, "doc:2", "editor", "user:a", NULL);
    ledger_put(h, "doc:2", "editor", "user:a", "true, NULL, NULL");
    harness_pin(h, h->store_id, harness_model_write(h, WITHOUT_EDITOR));
    audit(h, 1, ARGS("--repair"));
    assert_string_equal(found(h), "invalid_in_model doc:1#editor@user:a, invalid_in_model doc:2#editor@user:a");
    assert_string_equal(pending(h), "touch doc:1, delete doc:2");
    converge_all(h);
    assert_false(store_has(h, "doc:1", "editor", "user:a"));
    assert_false(store_has(h, "doc:2", "editor", "user:a"));
    assert_true(store_has(h, "doc:2", "viewer", "user:anne"));
    audit(h, 0, NO_ARGS);
    assert_string_not_equal(old, harness_sql_text(h, "SELECT model_id FROM relata.store"));
}

/* Deleting it would only bring it back, and take it from whoever has it under the next model. */
static void test_what_the_model_forbids_and_the_inventory_says_stays(void **state)
{
    struct harness *h = *state;
    const char *out;

    world(h, 1);
    harness_sql(h, "CREATE TABLE public.e (doc text PRIMARY KEY); SELECT relata.track('public.e', '[{\"object\": "
                   "\"doc:{doc}\", \"relation\": \"editor\", \"subject\": \"user:a\"}]'); INSERT INTO public.e VALUES "
                   "('1')");
    converge_all(h);
    /* A grant that waits for its model. */
    ledger_put(h, "doc:1", "coming", "user:a", "true, NULL, NULL");
    parked(h, "doc:1", "coming", "user:a", "write");
    harness_pin(h, h->store_id, harness_model_write(h, WITHOUT_EDITOR));
    out = audit(h, 1, ARGS("--repair", "--max-deletions", "0"));
    assert_string_equal(found(h), "invalid_in_model doc:1#coming@user:a, invalid_in_model doc:1#editor@user:a");
    assert_string_equal(pending(h), "");
    assert_non_null(strstr(out, "no repair: the inventory stands for it"));
    assert_non_null(strstr(out, "no repair: its change is parked"));
    assert_non_null(strstr(out, "repaired 0, failed 0"));
}

/* ---- in flight ---- */

static void test_D13_in_flight_is_said_of_a_tuple_not_of_all(void **state)
{
    struct harness *h = *state;

    world(h, 5);
    harness_sql(h, "INSERT INTO public.shares VALUES ('6', 'anne')"); /* pending: there is no writer */
    store_take(h, "doc:1", "viewer", "user:anne");                    /* a Write of it may be under way */
    harness_sql(h, "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) VALUES (1, 'default', "
                   "'{doc:7,doc:1}', '{viewer,viewer}', '{user:anne,user:anne}')");
    store_take(h, "doc:2", "viewer", "user:anne");
    audit(h, 1, ARGS("--set", "audit.settle=500ms"));
    assert_string_equal(found(h), "lost doc:2#viewer@user:anne");
    assert_string_equal(counts(h), "3 2 0 1 0");
}

/* What is pending need not be asked of the store. */
static void test_a_backlog_costs_the_store_nothing(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    int rule = fake_store_rule(fake, &(struct fake_rule){.path = "/read", .body = "tuple_key", .action = FAKE_PASS});

    world(h, 1);
    harness_sql(h, "INSERT INTO public.shares SELECT 'b' || i, 'ben' FROM generate_series(1, 200) i");
    audit_end(h, audit_start(h, NULL, fake_store_url(fake), NO_ARGS), 0);
    assert_string_equal(counts(h), "200 200 0 0 0");
    assert_int_equal(fake_store_used(fake, rule), 0);
    fake_store_stop(fake);
}

struct seen {
    struct fake_store *fake;
    int rule, times;
};

static bool is_seen(void *arg)
{
    const struct seen *s = arg;

    return fake_store_used(s->fake, s->rule) >= s->times;
}

/* Point Reads of a tuple of `object`; each is answered `delay_ms` after it was made. */
static struct seen watch(struct fake_store *fake, const char *object, int delay_ms)
{
    const struct fake_rule rule = {.path = "/read", .body = object, .action = FAKE_PASS, .delay_ms = delay_ms};

    return (struct seen){fake, fake_store_rule(fake, &rule), 1};
}

static void test_an_effect_within_the_late_window_is_no_drift(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    struct seen seen = watch(fake, "\"doc:1\"", 0);
    struct proc *p;

    world(h, 3);
    store_take(h, "doc:1", "viewer", "user:anne");
    store_take(h, "doc:2", "viewer", "user:anne");
    p = audit_start(h, NULL, fake_store_url(fake),
                    ARGS("--set", harness_strf(h, "store.late_window=%dms", harness_ms(4000))));
    assert_eventually(is_seen, &seen, 30000);
    store_put(h, "doc:1", "viewer", "user:anne", NULL);
    audit_end(h, p, 1);
    assert_string_equal(found(h), "lost doc:2#viewer@user:anne");
    assert_string_equal(counts(h), "2 0 1 1 0");
    fake_store_stop(fake);
}

/* A change that was committed and applied between two looks at the ledger. */
static void test_a_ledger_that_moves_is_looked_at_again(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    struct seen seen = watch(fake, "\"doc:1\"", harness_ms(1000));
    struct proc *p;

    world(h, 2);
    store_take(h, "doc:1", "viewer", "user:anne");
    p = audit_start(h, NULL, fake_store_url(fake),
                    ARGS("--set", harness_strf(h, "audit.settle=%dms", harness_ms(20000))));
    assert_eventually(is_seen, &seen, 30000); /* the answer "absent" is on its way */
    store_put(h, "doc:1", "viewer", "user:anne", NULL);
    behind(h, "UPDATE relata.tuple SET version = nextval('relata.outbox_id') WHERE object = 'doc:1'");
    audit_end(h, p, 0);
    assert_string_equal(counts(h), "1 0 1 0 0");
    fake_store_stop(fake);
}

static void test_what_differs_in_another_way_is_not_confirmed(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    struct seen seen = watch(fake, "\"doc:1\"", 0);
    struct proc *p;

    world(h, 2);
    ledger_put(h, "doc:1", "editor", "user:a", "true, 'in_hours', '{\"from\": 9}'");
    store_put(h, "doc:1", "editor", "user:a", NULL);
    p = audit_start(h, NULL, fake_store_url(fake),
                    ARGS("--set", harness_strf(h, "store.late_window=%dms", harness_ms(4000))));
    assert_eventually(is_seen, &seen, 30000);
    store_take(h, "doc:1", "editor", "user:a");
    store_put(h, "doc:1", "editor", "user:a", "{\"from\":10}"); /* a mismatch still, and another one */
    audit_end(h, p, 0);
    assert_string_equal(counts(h), "1 1 0 0 0");
    fake_store_stop(fake);
}

/* ---- pages that are no snapshot ---- */

/* Read pages are `reply`; point Reads are true. */
static struct fake_store *pages(struct harness *h, const char *reply)
{
    struct fake_store *fake = fake_store_start(h->store_url);

    fake_store_rule(fake, &(struct fake_rule){.path = "/read", .body = "tuple_key", .action = FAKE_PASS});
    fake_store_rule(fake, &(struct fake_rule){.path = "/read", .action = FAKE_REPLY, .status = 200, .reply = reply});
    return fake;
}

#define PAGE_TUPLE(id)                                                                                                 \
    "{\"key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:" id "\"},\"timestamp\":"               \
    "\"2026-01-01T00:00:00Z\"}"

static void test_D10_a_tuple_that_pages_hold_twice(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = pages(
        h, "{\"tuples\":[" PAGE_TUPLE("1") "," PAGE_TUPLE("2") "," PAGE_TUPLE("1") "],\"continuation_token\":\"\"}");

    world(h, 2);
    audit_end(h, audit_start(h, NULL, fake_store_url(fake), ARGS("--repair")), 0);
    assert_string_equal(pending(h), "");
    audit_end(h, audit_start(h, NULL, fake_store_url(fake), ARGS("--full")), 0);
    assert_string_equal(counts(h), "0 0 0 0 0");
    fake_store_stop(fake);
}

/* D31 too: what is told is what was confirmed. */
static void test_D11_a_tuple_behind_the_scan_is_not_missing(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = pages(h, "{\"tuples\":[],\"continuation_token\":\"\"}");
    const char *out;

    world(h, 100);
    for (int i = 1; i <= 3; i++)
        store_take(h, harness_strf(h, "doc:%d", i), "viewer", "user:anne");
    out = audit_end(h, audit_start(h, NULL, fake_store_url(fake), ARGS("--repair")), 1);
    assert_string_equal(counts(h), "100 0 97 3 3");
    assert_non_null(strstr(out, "confirmed 3, repaired 3, failed 0"));
    assert_string_equal(pending(h), "touch doc:1, touch doc:2, touch doc:3");
    fake_store_stop(fake);
}

/* ---- what cannot be known ---- */

static void test_D05_a_store_that_fails_ends_the_audit(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    const char *why;

    world(h, 3);
    behind(h, "DELETE FROM public.shares WHERE doc = '3'");
    store_take(h, "doc:1", "viewer", "user:anne");
    fake_store_rule(fake, &(struct fake_rule){.path = "/read",
                                              .body = "\"doc:1\"",
                                              .action = FAKE_REPLY,
                                              .status = 500,
                                              .reply = "{\"code\":\"internal_error\",\"message\":\"no\"}"});
    audit_end(h, audit_start(h, NULL, fake_store_url(fake), ARGS("--repair")), 2);
    assert_string_equal(harness_sql_text(h, LAST_RUN("state")), "incomplete");
    why = harness_sql_text(h, LAST_RUN("why"));
    if (!strstr(why, "reading doc:1#viewer@user:anne from the store"))
        fail_msg("it does not say where it stopped: %s", why);
    assert_string_equal(pending(h), "");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.audit_finding", "0", 1000);
    fake_store_stop(fake);
}

/* Owners whose login is found, or not. */
static void view_world(struct harness *h)
{
    harness_sql(h, "CREATE TABLE public.owners (doc text, login text);"
                   "INSERT INTO public.owners VALUES ('1', 'a'), ('2', 'b'), ('3', 'c');"
                   "CREATE VIEW public.docs AS SELECT 'doc:' || doc AS object, 'owner'::text AS relation, 'user:' || "
                   "login AS subject FROM public.owners");
    for (int i = 1; i <= 3; i++) {
        const char *o = harness_strf(h, "doc:%d", i), *s = harness_strf(h, "user:%c", 'a' + i - 1);

        ledger_put(h, o, "owner", s, "true, NULL, NULL");
        store_put(h, o, "owner", s, NULL);
    }
}

static void test_D02_what_cannot_be_resolved_is_not_absent(void **state)
{
    struct harness *h = *state;
    struct fake_store *fake = fake_store_start(h->store_url);
    struct seen seen = watch(fake, "\"doc:2\"", harness_ms(1000));
    struct proc *p;

    view_world(h);
    harness_sql(h, "UPDATE public.owners SET login = NULL WHERE doc = '1'");
    assert_non_null(strstr(audit(h, 0, ARGS("--set", "expected.doc=public.docs")), "unresolvable: 1 objects"));
    /* Nor is it if that happens between the comparison and the second look. */
    store_take(h, "doc:2", "owner", "user:b");
    p = audit_start(h, NULL, fake_store_url(fake), ARGS("--set", "expected.doc=public.docs", "--repair"));
    assert_eventually(is_seen, &seen, 30000);
    harness_sql(h, "UPDATE public.owners SET login = NULL WHERE doc = '2'");
    audit_end(h, p, 1);
    assert_string_equal(found(h), "lost doc:2#owner@user:b");
    assert_string_equal(pending(h), "touch doc:2");
    fake_store_stop(fake);
}

static void test_differences_beyond_the_bound_are_told_and_not_repaired(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir), *out;

    world(h, 12);
    for (int i = 1; i <= 8; i++)
        store_take(h, harness_strf(h, "doc:%d", i), "viewer", "user:anne");
    out = audit(h, 3, ARGS("--repair", "--set", "audit.max_findings=5"));
    assert_non_null(strstr(out, "only audit.max_findings (5) differences were followed up"));
    assert_string_equal(pending(h), "");
    assert_string_equal(harness_sql_text(h, LAST_RUN("counts->>'confirmed'")), "5");
    audit(h, 3, ARGS("--plan", plan, "--set", "audit.max_findings=5"));
    assert_int_not_equal(access(plan, F_OK), 0);
    audit(h, 1, ARGS("--repair", "--set", "audit.max_findings=8"));
    assert_string_equal(counts(h), "8 0 0 8 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_every_cause_and_who_has_too_much, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_conditions_that_the_inventory_says, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D19_a_tombstone_is_judged_too, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D22_what_was_renamed_is_told_as_one, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D23_usersets_are_judged_and_what_is_skipped_is_counted, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D28_leftovers_of_an_older_model, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_what_the_model_forbids_and_the_inventory_says_stays, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D13_in_flight_is_said_of_a_tuple_not_of_all, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_backlog_costs_the_store_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_an_effect_within_the_late_window_is_no_drift, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_ledger_that_moves_is_looked_at_again, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_what_differs_in_another_way_is_not_confirmed, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D10_a_tuple_that_pages_hold_twice, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D11_a_tuple_behind_the_scan_is_not_missing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D05_a_store_that_fails_ends_the_audit, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D02_what_cannot_be_resolved_is_not_absent, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_differences_beyond_the_bound_are_told_and_not_repaired, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
