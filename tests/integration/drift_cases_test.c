/*
 * drift_cases_test.c - the field's cases of drift, each as a small world of its own: what an audit must find, must not
 * find, and must not touch.
 */
#include "tests/integration/drift_world.h"

/* ---- what is found, and its repair ---- */

static void test_D01_plan_writes_what_lacks_and_deletes_nothing(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir), *out;

    world_begin(h);
    put(h, "ELO", "doc:d1", "viewer", "user:a");
    put(h, "E", "doc:d1", "viewer", "user:b");
    assert_found(h, "never_emitted doc:d1#viewer@user:b", NO_ARGS);
    audit(h, 1, ARGS("--plan", plan));
    assert_int_equal(pending(h), 0);
    assert_int_equal(proc_run(h, &out, "/bin/cat", ARGS(plan)), 0);
    assert_has(out, "\"repairs\":1,\"deletions\":0");
    assert_has(out, "\"subject\":\"user:b\"");
    audit(h, 1, ARGS("--apply", plan, ALL));
    apply_pending(h);
    assert_stored(h, "doc:d1", "viewer", "user:a", true);
    assert_stored(h, "doc:d1", "viewer", "user:b", true);
    assert_found(h, "", NO_ARGS);
}

static void test_D02_unresolvable_subject_deletes_nothing(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "LO", "doc:h1", "owner", "user:a");
    put(h, "LO", "doc:h1", "owner", "user:b");
    put(h, "LO", "doc:h2", "owner", "user:a");
    harness_sql(h, "INSERT INTO public.granted VALUES ('doc:h1', 'owner', NULL), ('doc:h1', 'owner', NULL)");
    assert_has(assert_found(h, "orphan doc:h2#owner@user:a", NO_ARGS), "unresolvable: 1 objects");
    assert_int_equal(counted(h, "unresolvable"), 1);
    audit(h, 1, ARGS("--repair", ALL));
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(object, ',') FROM relata.outbox"), "doc:h2");
    audit(h, 0, ARGS("--object", "doc:h1"));
}

/* A plan is older than the row that cannot be read any more. */
static void test_D02_unresolvable_since_the_plan(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir);

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "LO", "doc:h1", "owner", "user:a");
    audit(h, 1, ARGS("--plan", plan));
    harness_sql(h, "INSERT INTO public.granted VALUES ('doc:h1', 'owner', NULL)");
    audit(h, 3, ARGS("--apply", plan, ALL));
    assert_int_equal(pending(h), 0);
}

static void test_D04_stated_maximum_and_a_set_that_grew(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "o", 49);
    put(h, "LO", "doc:grown", "viewer", "user:u");
    harness_sql(h, "DELETE FROM public.granted WHERE object <> 'doc:o000'");
    audit(h, 3, ARGS("--repair"));
    audit(h, 3, ARGS("--repair", "--max-repairs", "100%", "--max-deletions", "48"));
    assert_int_equal(pending(h), 0);
    assert_string_equal(harness_sql_text(h, "SELECT state FROM relata.audit_run ORDER BY id DESC LIMIT 1"), "refused");
    harness_sql(h, "INSERT INTO public.granted VALUES ('doc:grown', 'viewer', 'user:u')");
    audit(h, 1, ARGS("--repair", "--max-repairs", "100%", "--max-deletions", "48"));
    assert_int_equal(pending(h), 48);
    apply_pending(h);
    assert_found(h, "", NO_ARGS);
    assert_stored(h, "doc:o000", "viewer", "user:u", true);
}

static void test_D05_expected_view_fails_half_way(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "LO", "doc:x", "viewer", "user:a");
    harness_sql(h, "CREATE VIEW public.broken AS SELECT object, relation, CASE WHEN object = 'doc:c008' THEN (1 / "
                   "strpos(object, 'x'))::text ELSE subject END AS subject FROM public.granted");
    for (int i = 0; i < 2; i++) {
        audit(h, 2, ARGS("--set", "expected.doc=public.broken", "--repair", ALL));
        assert_incomplete(h, "division by zero");
        assert_incomplete(h, "public.broken");
    }
}

static void test_D05_store_page_fails(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    const struct fake_rule fails = {.path = "/read", .skip = 1, .action = FAKE_REPLY, .status = 500, .reply = "{}"};

    world_begin(h);
    put_many(h, "c", 250);
    put(h, "LO", "doc:x", "viewer", "user:a");
    (void)fake_store_rule(f, &fails);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), ARGS("--repair", ALL)), 2, NULL);
    assert_incomplete(h, "reading the store, after 100 tuples");
    fake_store_stop(f);
}

static void test_D07_too_strong_a_relation_is_two_findings(void **state)
{
    struct harness *h = *state;
    const char *out, *excess, *missing;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "E", "doc:w1", "viewer", "user:u1");
    put(h, "O", "doc:w1", "editor", "user:u1");
    out = assert_found(h, "out_of_band doc:w1#editor@user:u1, never_emitted doc:w1#viewer@user:u1", NO_ARGS);
    excess = strstr(out, "user:u1 can be editor of doc:w1");
    missing = strstr(out, "user:u1 should be viewer of doc:w1");
    assert_true(excess && missing && excess < missing);
    audit(h, 1, ARGS("--repair", ALL));
    apply_pending(h);
    assert_stored(h, "doc:w1", "editor", "user:u1", false);
    assert_stored(h, "doc:w1", "viewer", "user:u1", true);
    assert_found(h, "", NO_ARGS);
}

static void test_D08_row_that_vanished(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "ELO", "doc:h9", "viewer", "user:u1");
    audit(h, 0, NO_ARGS);
    take(h, "E", "doc:h9", "viewer", "user:u1");
    assert_found(h, "orphan doc:h9#viewer@user:u1", NO_ARGS);
    assert_found(h, "orphan doc:h9#viewer@user:u1", ARGS("--full"));
}

static void test_D19_leftovers_of_an_id_that_is_used_again(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "LO", "doc:42", "viewer", "user:u1");
    put(h, "ELO", "doc:42", "owner", "user:u2");
    assert_found(h, "orphan doc:42#viewer@user:u1", NO_ARGS);
    audit(h, 1, ARGS("--repair", ALL, "--object", "doc:42"));
    apply_pending(h);
    assert_stored(h, "doc:42", "viewer", "user:u1", false);
    assert_found(h, "", NO_ARGS);
}

static void test_D22_renamed_object_is_told_as_one(void **state)
{
    struct harness *h = *state;
    const char *out;

    world_begin(h);
    put_many(h, "z", 3);
    for (int i = 0; i < 3; i++) {
        put(h, "E", "doc:c2-a1", "viewer", harness_strf(h, "user:m%d", i));
        put(h, "LO", "doc:c1-a1", "viewer", harness_strf(h, "user:m%d", i));
    }
    out = assert_found(h,
                       "orphan doc:c1-a1#viewer@user:m0, orphan doc:c1-a1#viewer@user:m1, orphan "
                       "doc:c1-a1#viewer@user:m2, never_emitted doc:c2-a1#viewer@user:m0, never_emitted "
                       "doc:c2-a1#viewer@user:m1, never_emitted doc:c2-a1#viewer@user:m2",
                       NO_ARGS);
    assert_has(out, "doc:c1-a1 -> doc:c2-a1 (3 tuples)");
    audit(h, 1, ARGS("--repair", ALL));
    apply_pending(h);
    assert_stored(h, "doc:c1-a1", "viewer", "user:m2", false);
    assert_stored(h, "doc:c2-a1", "viewer", "user:m2", true);
    assert_found(h, "", NO_ARGS);
}

static void test_D23_userset_subject_and_what_is_skipped(void **state)
{
    struct harness *h = *state;
    const char *out;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "O", "doc:h1", "viewer", "team:t1#member");
    put(h, "O", "doc:h1", "blocked", "user:x");
    put(h, "L", "doc:h2", "blocked", "user:x");
    out = assert_found(h, "out_of_band doc:h1#viewer@team:t1#member", ARGS("--set", "audit.skip=doc#blocked"));
    assert_has(out, "skipped (audit.skip = doc#blocked): 1 tuples in the ledger, 1 in the store");
    assert_has(out, "everybody in team:t1#member can be viewer of doc:h1");
    assert_int_equal(counted(h, "skipped_ledger"), 1);
    assert_int_equal(counted(h, "skipped_observed"), 1);
}

static void test_D25_two_sources_of_one_tuple(void **state)
{
    struct harness *h = *state;
    const char *const both[] = {"--set", "expected.doc=public.granted, public.roles", "--accept-shrink", NULL};

    world_begin(h);
    put_many(h, "c", 3);
    harness_sql(h, "CREATE TABLE public.roles (object text, relation text, subject text); INSERT INTO public.roles "
                   "VALUES ('doc:x', 'viewer', 'user:a')");
    put(h, "ELO", "doc:x", "viewer", "user:a");
    assert_found(h, "", both);
    take(h, "E", "doc:x", "viewer", "user:a");
    assert_found(h, "", both);
    harness_sql(h, "DELETE FROM public.roles");
    assert_found(h, "orphan doc:x#viewer@user:a", both);
}

static void test_D25_duplicates_are_neither_hidden_nor_reported(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "ELO", "doc:twice", "viewer", "user:a");
    put(h, "E", "doc:twice", "viewer", "user:a");
    assert_found(h, "", NO_ARGS);
    for (int i = 0; i < 2; i++) /* by XOR it would not be there */
        put(h, "E", "doc:new", "viewer", "user:a");
    assert_found(h, "never_emitted doc:new#viewer@user:a", NO_ARGS);
}

static const char *without(struct harness *h, const char *model, const char *old, const char *new)
{
    const char *at = model;
    const char *out = "";

    for (const char *hit; (hit = strstr(at, old)); at = hit + strlen(old))
        out = harness_strf(h, "%s%.*s%s", out, (int)(hit - at), at, new);
    return harness_strf(h, "%s%s", out, at);
}

static void test_D28_relation_that_left_the_model(void **state)
{
    struct harness *h = *state;
    const char *now = h->model_id;
    const char *out;

    world_begin(h);
    put_many(h, "c", 3);
    audit(h, 0, NO_ARGS);
    h->model_id = harness_model_write(h, without(h, harness_model, "\"blocked\"", "\"legacy_owner\""));
    for (int i = 0; i < 4; i++)
        put(h, "LO", harness_strf(h, "doc:l%d", i), "legacy_owner", "user:a");
    h->model_id = harness_model_write(h, harness_model);
    assert_string_not_equal(now, h->model_id);
    harness_pin(h, h->store_id, h->model_id);
    out = assert_found(h,
                       "invalid_in_model doc:l0#legacy_owner@user:a, invalid_in_model doc:l1#legacy_owner@user:a, "
                       "invalid_in_model doc:l2#legacy_owner@user:a, invalid_in_model doc:l3#legacy_owner@user:a",
                       NO_ARGS);
    assert_has(out, "checks ignore it");
    assert_int_equal(counted(h, "excess"), 0);
    audit(h, 1, ARGS("--repair", ALL));
    apply_pending(h);
    assert_found(h, "", NO_ARGS);
    assert_found(h, "", ARGS("--full"));
}

static void test_D29_contexts_by_meaning(void **state)
{
    struct harness *h = *state;
    struct tuple t = {"doc:x", "viewer", "user:a", "in_hours", "{\"until\": 17.0, \"from\": 8.0}"};

    world_begin(h);
    put_many(h, "c", 3);
    put_tuple(h, "E", &t);
    t.context = "{\"from\": 8, \"until\": 17}";
    put_tuple(h, "L", &t);
    t.context = "{\"until\": 17, \"from\": 8}";
    put_tuple(h, "O", &t);
    assert_found(h, "", NO_ARGS);
    assert_found(h, "", ARGS("--full"));
    t.object = "doc:y";
    put_tuple(h, "EL", &t);
    t.context = "{\"until\": 18, \"from\": 8}";
    put_tuple(h, "O", &t);
    put(h, "O", "doc:z", "viewer", "user:a");
    t.object = "doc:z";
    put_tuple(h, "EL", &t);
    assert_found(h, "condition_mismatch doc:z#viewer@user:a, condition_mismatch doc:y#viewer@user:a", NO_ARGS);
    audit(h, 1, ARGS("--repair", ALL));
    apply_pending(h);
    assert_found(h, "", NO_ARGS);
}

static void test_D34_userset_subject_is_parsed(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put(h, "ELO", "doc:1", "viewer", "team:5#member");
    put(h, "LO", "team:5", "member", "user:a"); /* no source speaks of teams */
    assert_found(h, "", NO_ARGS);
    assert_found(h, "", ARGS("--full"));
    put(h, "EL", "doc:2", "viewer", "team:5#member");
    assert_found(h, "lost doc:2#viewer@team:5#member", ARGS("--subject", "team:5#member"));
    assert_found(h, "", ARGS("--subject", "team:5"));
}

/* ---- scans that do not see everything ---- */

static void test_D10_tuple_twice_in_a_scan(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct fake_rule page = {
        .path = "/read",
        .times = 1,
        .action = FAKE_REPLY,
        .status = 200,
        .reply =
            "{\"tuples\":[{\"key\":{\"user\":\"user:a\",\"relation\":\"viewer\",\"object\":\"doc:x\"},\"timestamp\":"
            "\"2026-01-01T00:00:00Z\"}],\"continuation_token\":\"on\"}"};

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    (void)fake_store_rule(f, &page);
    page.reply =
        "{\"tuples\":[{\"key\":{\"user\":\"user:a\",\"relation\":\"viewer\",\"object\":\"doc:x\"},\"timestamp\":"
        "\"2026-01-01T00:00:01Z\"}],\"continuation_token\":\"\"}";
    (void)fake_store_rule(f, &page);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), ARGS("--repair", ALL)), 0, NULL);
    assert_int_equal(fake_store_count(f, "/read"), 2);
    assert_int_equal(counted(h, "candidates"), 0);
    assert_int_equal(pending(h), 0);
    fake_store_stop(f);
}

static const struct fake_rule empty_page = {.path = "/read",
                                            .times = 1,
                                            .action = FAKE_REPLY,
                                            .status = 200,
                                            .reply = "{\"tuples\":[],\"continuation_token\":\"\"}"};

static void test_D11_tuple_behind_the_scan(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    (void)fake_store_rule(f, &empty_page);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), ARGS("--repair", ALL)), 0, NULL);
    assert_int_equal(counted(h, "candidates"), 1);
    assert_int_equal(counted(h, "vanished"), 1);
    assert_int_equal(pending(h), 0);
    fake_store_stop(f);
}

static void test_D13_lag_of_one_key_hides_no_other(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put(h, "E", "doc:k1", "viewer", "user:a");
    put(h, "EL", "doc:k2", "viewer", "user:a");
    harness_sql(h, "SELECT relata.write_tuple('doc:k1', 'viewer', 'user:a')"); /* and no writer */
    assert_found(h, "lost doc:k2#viewer@user:a", NO_ARGS);
    assert_int_equal(counted(h, "in_flight"), 1);
}

static void test_D14_token_that_repeats(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct fake_rule page = empty_page;

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    page.times = 0;
    page.reply = "{\"tuples\":[],\"continuation_token\":\"same\"}";
    (void)fake_store_rule(f, &page);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), ARGS("--repair", ALL)), 2, NULL);
    assert_incomplete(h, "token");
    assert_int_equal(fake_store_count(f, "/read"), 2);

    fake_store_clear(f);
    page.times = 1; /* an empty page with a new token is no end */
    (void)fake_store_rule(f, &page);
    page.reply =
        "{\"tuples\":[{\"key\":{\"user\":\"user:a\",\"relation\":\"viewer\",\"object\":\"doc:x\"},\"timestamp\":"
        "\"2026-01-01T00:00:00Z\"}],\"continuation_token\":\"\"}";
    (void)fake_store_rule(f, &page);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), NO_ARGS), 0, NULL);
    assert_int_equal(counted(h, "candidates"), 0);
    fake_store_stop(f);
}

static void test_D16_full_read_has_no_tuple_key(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    char *body;

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), NO_ARGS), 0, NULL);
    body = fake_store_body(f, "/read", 0);
    assert_non_null(body);
    assert_null(strstr(body, "tuple_key"));
    free(body);
    fake_store_stop(f);
}

static void test_D17_type_alone_is_no_subject(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    assert_has(audit(h, 2, ARGS("--subject", "user:")), "audit.subject = user:");
    assert_has(audit(h, 2, ARGS("--object", "doc:")), "audit.object = doc:");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_run"), 0);
    assert_found(h, "", ARGS("--subject", "user:a"));
    assert_int_equal(counted(h, "observed"), 1);
}

static void test_D31_candidates_are_not_findings(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    const char *out;

    world_begin(h);
    put_many(h, "c", 100);
    for (int i = 0; i < 3; i++)
        take(h, "O", harness_strf(h, "doc:c%03d", 30 * i), "viewer", "user:u");
    (void)fake_store_rule(f, &empty_page);
    assert_ends(h, audit_start(h, BY_PAGES, fake_store_url(f), ARGS("--repair", ALL)), 1, &out);
    assert_has(out, "candidates 100, in flight 0, agreed on a second look 97, confirmed 3, repaired 3, failed 0");
    assert_int_equal(counted(h, "candidates"), 100);
    assert_int_equal(counted(h, "vanished"), 97);
    assert_int_equal(counted(h, "confirmed"), 3);
    assert_int_equal(counted(h, "repaired"), 3);
    fake_store_stop(f);
}

static void test_S05_pin_of_another_store(void **state)
{
    struct harness *h = *state;
    const char *other;

    world_begin(h);
    put(h, "ELO", "doc:x", "viewer", "user:a");
    harness_store_new(h, NULL, &other, NULL);
    harness_pin(h, "01ARZ3NDEKTSV4RRFFQ69G5FAV", h->model_id);
    audit(h, 2, ARGS("--repair", ALL));
    assert_incomplete(h, "is pinned to 01ARZ3NDEKTSV4RRFFQ69G5FAV, which is not at");
    harness_pin(h, other, h->model_id);
    audit(h, 2, ARGS("--repair", ALL));
    assert_incomplete(h, h->model_id);
    harness_pin(h, h->store_id, h->model_id);
    assert_found(h, "", NO_ARGS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_D01_plan_writes_what_lacks_and_deletes_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D02_unresolvable_subject_deletes_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D02_unresolvable_since_the_plan, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D04_stated_maximum_and_a_set_that_grew, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D05_expected_view_fails_half_way, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D05_store_page_fails, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D07_too_strong_a_relation_is_two_findings, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D08_row_that_vanished, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D19_leftovers_of_an_id_that_is_used_again, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D22_renamed_object_is_told_as_one, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D23_userset_subject_and_what_is_skipped, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D25_two_sources_of_one_tuple, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D25_duplicates_are_neither_hidden_nor_reported, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D28_relation_that_left_the_model, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D29_contexts_by_meaning, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D34_userset_subject_is_parsed, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D10_tuple_twice_in_a_scan, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D11_tuple_behind_the_scan, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D13_lag_of_one_key_hides_no_other, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D14_token_that_repeats, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D16_full_read_has_no_tuple_key, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D17_type_alone_is_no_subject, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D31_candidates_are_not_findings, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_S05_pin_of_another_store, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
