/*
 * writer_refused_test.c - changes that the store refuses: found, parked with the reason, tried again with another
 * model; their neighbours go on.
 */
#include "tests/integration/writer_helpers.h"

/* The harness's model with one more relation on doc: nobody may be granted it before. */
static const char *model_with_can_get(struct harness *h)
{
    const char *at = strstr(harness_model, "\"blocked\":{\"this\":{}}");
    const char *meta = strstr(harness_model, "\"blocked\":{\"directly_related_user_types\"");
    assert_non_null(at);
    assert_non_null(meta);
    return harness_strf(
        h, "%.*s\"can_get\":{\"this\":{}},%.*s\"can_get\":{\"directly_related_user_types\":[{\"type\":\"user\"}]},%s",
        (int)(at - harness_model), harness_model, (int)(meta - at), at, meta);
}

static void assert_parked(struct harness *h, const char *want)
{
    assert_sql_eventually(h,
                          "SELECT string_agg(object || '#' || relation || '@' || subject || ' ' || "
                          "coalesce(closed_how, 'open'), ', ' ORDER BY id) FROM relata.dead_letter",
                          want, WAIT_MS);
}

static void test_W10_one_bad_tuple_among_ninety_nine(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject, actor, headers) SELECT 'write', 'doc:1', "
                   "CASE i WHEN 50 THEN 'nonsense' ELSE 'viewer' END, 'user:' || to_char(i, 'FM000'), 'me', "
                   "'{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}' "
                   "FROM generate_series(1, 100) i");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    assert_parked(h, "doc:1#nonsense@user:050 open");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS);
    assert_int_equal(store_size(h), 99);
    assert_in_range(write_count(f), 8, 20); /* logarithmic, not linear */
    assert_string_equal(harness_sql_text(h, "SELECT code FROM relata.dead_letter"), "validation_error");
    assert_string_equal(harness_sql_text(h,
                                         "SELECT concat_ws(' ', op, actor, attempts, headers ->> 'traceparent' <> '', "
                                         "xid IS NOT NULL, created_at IS NOT NULL) FROM relata.dead_letter"),
                        "write me 1 t t t");
    assert_string_equal(harness_sql_text(h, "SELECT model_id FROM relata.dead_letter"), h->model_id);
    assert_non_null(strstr(harness_sql_text(h, "SELECT reason FROM relata.dead_letter"), "nonsense"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 0);
    assert_metric_eventually(w, "relata_writer_parked", 1, WAIT_MS);
    assert_logged(w, "parked a change", WAIT_MS);
    proc_ready_wait(w, WAIT_MS); /* a parked change is no reason to take the writer out */
    proc_stop(w);
    fake_store_stop(f);
}

static void test_W11_parked_changes_run_again_when_the_model_changes(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    grant_tuple(h, "doc:1", "can_get", "user:x");
    grant_tuple(h, "doc:2", "nonsense", "user:x");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL", "2", WAIT_MS);
    const char *model = harness_model_write(h, model_with_can_get(h));
    assert_metric_eventually(w, "relata_writer_model_newer", 1, WAIT_MS); /* a warning, no more */
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 2);
    harness_pin(h, h->store_id, model);
    assert_presence_eventually(h, true, "doc:1", "can_get", "user:x");
    assert_sql_eventually(h, "SELECT closed_how FROM relata.dead_letter WHERE object = 'doc:1'", "applied", WAIT_MS);
    /* The other one is refused again: one open letter still, with the new model's id. */
    assert_sql_eventually(h, "SELECT attempts || ' ' || model_id FROM relata.dead_letter WHERE object = 'doc:2'",
                          harness_strf(h, "2 %s", model), WAIT_MS);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.inflight", "0", WAIT_MS);
    proc_stop(w);
}

static void test_parked_changes_run_again_if_the_model_changed_meanwhile(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    grant_tuple(h, "doc:1", "can_get", "user:x");
    assert_parked(h, "doc:1#can_get@user:x open");
    proc_stop(w);
    harness_pin(h, h->store_id, harness_model_write(h, model_with_can_get(h)));
    w = writer_start(h, NULL);
    assert_parked(h, "doc:1#can_get@user:x applied");
    assert_true(store_has(h, "doc:1", "can_get", "user:x"));
    proc_stop(w);
}

static void test_a_parked_change_is_superseded_by_a_newer_one(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject, condition_name) VALUES "
                   "('write', 'doc:1', 'viewer', 'user:x', 'no_such_condition')");
    assert_parked(h, "doc:1#viewer@user:x open");
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_parked(h, "doc:1#viewer@user:x superseded");
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    proc_stop(w);
}

/* A refused change leaves what the store had, and the dead letter says so. */
static void test_a_refused_condition_leaves_the_former_grant_and_says_so(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    harness_sql(h,
                "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) VALUES "
                "('write', 'doc:1', 'viewer', 'user:x', 'in_hours', '{\"from\": 9, \"until\": 17}')");
    grant_tuple(h, "doc:2", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject, condition_name) VALUES "
                   "('write', 'doc:1', 'viewer', 'user:x', 'no_such_condition'), "
                   "('write', 'doc:2', 'viewer', 'user:x', 'no_such_condition'), "
                   "('write', 'doc:3', 'viewer', 'user:x', 'no_such_condition')");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL", "3", WAIT_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    assert_string_equal(
        harness_sql_text(h, "SELECT string_agg(substring(reason FROM 'still holds.*'), '|' ORDER BY object) "
                            "FROM relata.dead_letter"),
        "still holds the tuple, with the former condition in_hours|still holds the tuple, without a condition");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE reason LIKE '%http%'"), 0);
    proc_stop(w);
}

/* W28: what is removed and what is added travel together; a refused addition is parked, the removal goes on. */
/* One revocation that the store will not take stops nobody else: not its user, not its object; the log names it. */
static void test_O04_one_parked_revocation_stops_nobody_else(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    fake_store_rule(f, &(struct fake_rule){.path = "/write",
                                           .body = "\"deletes\"",
                                           .times = 1,
                                           .action = FAKE_REPLY,
                                           .status = 400,
                                           .reply = "{\"code\":\"validation_error\",\"message\":\"not today\"}"});
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    assert_parked(h, "doc:1#viewer@user:x open");
    grant_tuple(h, "doc:2", "viewer", "user:x");
    grant_tuple(h, "doc:1", "viewer", "user:y");
    assert_presence_eventually(h, true, "doc:2", "viewer", "user:x");
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:y");
    revoke_tuple(h, "doc:2", "viewer", "user:x");
    revoke_tuple(h, "doc:1", "viewer", "user:y");
    assert_presence_eventually(h, false, "doc:2", "viewer", "user:x");
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:y");
    assert_parked(h, "doc:1#viewer@user:x open");
    proc_ready_wait(w, WAIT_MS);
    assert_metric_eventually(w, "relata_writer_parked", 1, WAIT_MS);
    assert_true(proc_logged(w, "object=doc:1 relation=viewer subject=user:x"));
    proc_stop(w);
    fake_store_stop(f);
}

/* A permission is taken out of the model before its grants are: the writer starts all the same, and revokes them. */
static void test_O08_what_the_model_lost_can_still_be_revoked(void **state)
{
    struct harness *h = *state;
    const char *without = h->model_id, *with = harness_model_write(h, model_with_can_get(h));
    harness_pin(h, h->store_id, with);
    struct proc *w = writer_start(h, NULL);
    grant_tuple(h, "doc:1", "can_get", "user:x");
    grant_tuple(h, "doc:2", "can_get", "user:x");
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
    harness_pin(h, h->store_id, without);
    w = writer_start(h, NULL);
    proc_ready_wait(w, WAIT_MS);
    revoke_tuple(h, "doc:1", "can_get", "user:x");
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_presence_eventually(h, false, "doc:1", "can_get", "user:x");
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x");
    assert_true(store_has(h, "doc:2", "can_get", "user:x")); /* left over until it is revoked: nothing guesses */
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
}

static void test_W28_a_refused_addition_does_not_undo_the_removal(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    grant_tuple(h, "doc:1", "viewer", "user:a");
    assert_converged(h, CONVERGE_MS);
    int before = write_count(f);
    harness_sql(h, "BEGIN; SELECT relata.delete_tuple('doc:1', 'viewer', 'user:a'), "
                   "relata.write_tuple('doc:1', 'nonsense', 'user:b'); COMMIT");
    assert_parked(h, "doc:1#nonsense@user:b open");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS);
    assert_int_equal(write_size(f, before), 2); /* first together */
    assert_false(store_has(h, "doc:1", "viewer", "user:a"));
    proc_stop(w);
    fake_store_stop(f);
}

/* W20: nothing is deleted in the store because a name was malformed or the ledger does not know it. */
static void test_W20_a_delete_of_what_never_was_is_harmless(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES "
                   "('delete', 'doc:2', 'viewer', 'user:x'), ('delete', 'doc:1', 'viewer', 'user:y')");
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
}

static const char big_contexts[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":{\"viewer\":"
    "{\"this\":{}}},\"metadata\":{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\","
    "\"condition\":\"big\"}]}}}}],\"conditions\":{\"big\":{\"name\":\"big\",\"expression\":\"t != ''\","
    "\"parameters\":{\"t\":{\"type_name\":\"TYPE_NAME_STRING\"}}}}}";

/* Each is as large as a context may be; together they are more than the server takes in one request. */
static void test_a_request_that_is_too_large_is_sent_in_parts(void **state)
{
    struct harness *h = *state;
    harness_pin(h, h->store_id, harness_model_write(h, big_contexts));
    harness_sql(h,
                "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) "
                "SELECT 'write', 'doc:1', 'viewer', 'user:' || i, 'big', jsonb_build_object('t', repeat('x', 32000)) "
                "FROM generate_series(1, 60) i");
    struct proc *w = writer_start(h, NULL);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 60);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_true(proc_metric(w, "relata_writer_halved_total") >= 1);
    proc_stop(w);
}

static const char *const small_server[] = {"--openfga=memory", "--openfga-flag=--max-tuples-per-write=10", NULL};

static void test_W07_a_server_with_a_smaller_limit_gets_smaller_batches(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 500) i");
    struct proc *w = writer_start(h, "--set", "writer.lanes=2", NULL);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 500);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_logged(w, "sending smaller batches", WAIT_MS);
    proc_stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_W10_one_bad_tuple_among_ninety_nine, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W11_parked_changes_run_again_when_the_model_changes, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_parked_changes_run_again_if_the_model_changed_meanwhile, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_parked_change_is_superseded_by_a_newer_one, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_O04_one_parked_revocation_stops_nobody_else, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_O08_what_the_model_lost_can_still_be_revoked, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_refused_condition_leaves_the_former_grant_and_says_so, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W28_a_refused_addition_does_not_undo_the_removal, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W20_a_delete_of_what_never_was_is_harmless, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_request_that_is_too_large_is_sent_in_parts, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST_OPTIONS(test_W07_a_server_with_a_smaller_limit_gets_smaller_batches,
                             HARNESS_DB | HARNESS_STORE | HARNESS_OWN_OPENFGA, small_server),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
