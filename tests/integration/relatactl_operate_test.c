/* relatactl's everyday commands on a running pipeline: lag, dead letters, stores, models, trace, events. */
#include "tests/integration/relatactl_helpers.h"

static json_t *ctl_json(struct harness *h, int want, const char *const *args)
{
    const char *out;
    int code = ctl_run(h, NULL, &out, args);
    if (code != want)
        fail_msg("exit code %d, not %d: %s", code, want, out);
    return json_of_output(out);
}

static const char *text_at(const json_t *doc, const char *name)
{
    const char *s = json_string_value(json_object_get(doc, name));
    return s ? s : "";
}

/* ---- lag ---- */

static void test_lag_is_the_age_of_the_oldest_pending_row(void **state)
{
    struct harness *h = *state;
    const char *out;
    json_t *doc = ctl_json(h, 0, CTL("lag", "--json"));
    assert_int_equal(json_array_size(doc), 1);
    assert_int_equal(int_at(json_array_get(doc, 0), NULL, "pending"), 0);
    assert_true(json_number_value(json_object_get(json_array_get(doc, 0), "oldest_age_seconds")) < 1e-9);
    json_decref(doc);
    grant_many(h, 7);
    harness_sql(
        h,
        "ALTER TABLE relata.outbox DISABLE TRIGGER USER; UPDATE relata.outbox SET created_at = created_at - interval "
        "'90 s'; ALTER TABLE relata.outbox ENABLE TRIGGER USER");
    doc = ctl_json(h, 0, CTL("lag", "--json", "--store", "default"));
    assert_int_equal(int_at(json_array_get(doc, 0), NULL, "pending"), 7);
    double age = json_number_value(json_object_get(json_array_get(doc, 0), "oldest_age_seconds"));
    assert_true(age >= 90);
    json_decref(doc);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("lag", "--max-age", "60")), 1);
    assert_non_null(strstr(out, "allowed 60 s"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("lag", "--max-age", "86400", "--none-parked")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("lag", "--store", "nowhere")), 1);
}

/* ---- dead letters ---- */

static void park_one(struct harness *h, const char *object)
{
    grant_one(h, object, "no_such_relation", "user:a");
    assert_sql_eventually(
        h, harness_strf(h, "SELECT count(*) FROM relata.dead_letter WHERE object = '%s' AND closed_at IS NULL", object),
        "1", harness_ms(WAIT_MS));
}

static const char *id_of(struct harness *h, const char *object)
{
    return harness_sql_text(h, harness_strf(h, "SELECT max(id) FROM relata.dead_letter WHERE object = '%s'", object));
}

/* The outbox's reader sleeps by then, and is woken. */
static void test_O05_dead_letter_replay_is_processed_at_once(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct proc *w = writer_start(h, NULL);
    park_one(h, "doc:1");
    park_one(h, "doc:2");
    const char *id = id_of(h, "doc:1");
    json_t *doc = ctl_json(h, 0, CTL("dead-letters", "list", "--json"));
    assert_int_equal(json_array_size(doc), 2);
    assert_string_equal(text_at(json_array_get(doc, 0), "object"), "doc:1");
    assert_string_equal(text_at(json_array_get(doc, 0), "code"), "validation_error");
    json_decref(doc);
    doc = ctl_json(h, 0, CTL("dead-letters", "show", id, "--json"));
    assert_true(json_is_true(json_object_get(json_object_get(doc, "ledger"), "present")));
    json_decref(doc);

    doc = ctl_json(h, 0, CTL("dead-letters", "replay", id, "--wait", "20", "--json"));
    assert_int_equal(int_at(doc, NULL, "replayed"), 1);
    assert_int_equal(int_at(doc, NULL, "parked_again"), 1); /* still refused: parked anew, nothing is lost */
    json_decref(doc);
    assert_string_equal(
        harness_sql_text(h, harness_strf(h, "SELECT closed_how FROM relata.dead_letter WHERE id = %s", id)),
        "replayed");

    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "replay", id)), 1); /* closed by now */
    assert_non_null(strstr(out, "nothing was done"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "replay", id_of(h, "doc:2"), id)), 1);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "replay")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "replay", id, "--all")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "replay", "--all", "--code", "other")), 0);
    assert_non_null(strstr(out, "0 replayed"));
    proc_stop(w);
}

/* Replay applies what the ledger says now, never what was parked. */
static void test_dead_letter_replay_is_the_current_state(void **state)
{
    struct harness *h = *state;
    harness_sql(
        h, "INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) VALUES (1, "
           "'default', 'write', 'doc:9', 'viewer', 'user:a', 'validation_error', 'as it was then')");
    store_put(h, "doc:9", "viewer", "user:a");
    struct proc *w = writer_start(h, NULL);
    json_t *doc = ctl_json(h, 0, CTL("dead-letters", "replay", "--all", "--wait", "20", "--json"));
    assert_int_equal(int_at(doc, NULL, "applied"), 1);
    json_decref(doc);
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:9", "viewer", "user:a")); /* the ledger never knew it: absent */
    proc_stop(w);
}

static void test_dead_letter_drop_needs_yes_and_leaves_a_trace(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct proc *w = writer_start(h, NULL);
    park_one(h, "doc:1");
    park_one(h, "doc:2");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("dead-letters", "drop", "--all")), 2);
    assert_non_null(strstr(out, "give --yes to drop"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 2);
    json_t *doc =
        ctl_json(h, 0, CTL("dead-letters", "drop", id_of(h, "doc:1"), "--yes", "--note", "the team is gone", "--json"));
    assert_true(json_is_true(json_object_get(doc, "dropped")));
    assert_int_equal(json_array_size(json_object_get(doc, "rows")), 1);
    json_decref(doc);
    assert_non_null(strstr(harness_sql_text(h, "SELECT reason FROM relata.dead_letter WHERE closed_how = 'dropped'"),
                           "[dropped by postgres: the team is gone]"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 1);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("trace", "doc:1#no_such_relation@user:a")), 1); /* and is no secret */
    assert_non_null(strstr(out, "verdict   differ"));
    proc_stop(w);
}

/* Thousands by one command, in batches. */
static void test_dead_letter_replay_of_many(void **state)
{
    struct harness *h = *state;
    harness_sql(
        h, "INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) SELECT 1, "
           "'default', 'write', 'doc:' || g, 'viewer', 'user:a', CASE WHEN g > 1700 THEN 'other' ELSE 'some' END, 'x' "
           "FROM generate_series(1, 2000) AS g");
    json_t *doc = ctl_json(h, 0, CTL("dead-letters", "replay", "--all", "--code", "some", "--json"));
    assert_int_equal(int_at(doc, NULL, "replayed"), 1700);
    assert_int_equal(int_at(doc, NULL, "pending"), 1700);
    json_decref(doc);
    assert_int_equal(
        harness_sql_int(h, "SELECT count(*) FROM relata.outbox WHERE op = 'touch' AND actor = 'relatactl'"), 1700);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 300);
}

/* What is refused again at once is not replayed for ever. */
static void test_dead_letter_replay_ends_though_all_are_parked_again(void **state)
{
    struct harness *h = *state;
    harness_sql(
        h, "CREATE FUNCTION public.park_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
           "INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) "
           "VALUES (1, NEW.store, 'write', NEW.object, NEW.relation, NEW.subject, 'x', 'x'); RETURN NULL; END $$; "
           "CREATE TRIGGER park_again AFTER UPDATE ON relata.dead_letter FOR EACH ROW EXECUTE FUNCTION "
           "public.park_again(); "
           "INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) SELECT 1, "
           "'default', 'write', 'doc:' || g, 'viewer', 'user:a', 'x', 'x' FROM generate_series(1, 600) AS g");
    json_t *doc = ctl_json(h, 0, CTL("dead-letters", "replay", "--all", "--json"));
    assert_int_equal(int_at(doc, NULL, "replayed"), 600);
    json_decref(doc);
}

/* ---- store ---- */

static void test_store_pin_refuses_a_store_without_what_was_applied(void **state)
{
    struct harness *h = *state;
    const char *out, *other, *model;
    struct proc *w = writer_start(h, NULL);
    grant_many(h, 20);
    assert_converged(h, CONVERGE_MS);
    assert_sql_eventually(h, "SELECT count(*) > 0 FROM relata.probe", "t", harness_ms(WAIT_MS));
    proc_stop(w);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify", "--full")), 0);
    harness_store_new(h, NULL, &other, &model);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", other)), 3);
    assert_non_null(strstr(out, "does not hold what was last applied"));
    assert_non_null(strstr(out, "relatactl seed --store-id"));
    assert_string_equal(harness_sql_text(h, "SELECT store_id FROM relata.store"), h->store_id);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", other, "--force")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify")), 3);           /* swapped, and it says so */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", h->store_id)), 0); /* back: it holds them */
    json_t *doc = ctl_json(h, 0, CTL("store", "verify", "--full", "--json"));
    assert_int_equal(int_at(doc, "compared", "equal"), 20);
    json_decref(doc);
    store_drop(h, "doc:20", "viewer", "user:u20");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify", "--full")),
                     harness_sql_int(h, "SELECT count(*) FROM relata.probe WHERE object = 'doc:20'") ? 3 : 1);
}

static void test_store_pin_bad_ids(void **state)
{
    struct harness *h = *state;
    const char *out, *other, *model;
    harness_sql(h, "DELETE FROM relata.store");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify")), 3);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", "nonsense")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", "01ARZ3NDEKTSV4RRFFQ69G5FAV")), 3);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "pin", h->store_id, "--model", "01ARZ3NDEKTSV4RRFFQ69G5FAV")),
                     3);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.store"), 0);
    assert_int_equal(ctl_run(h, "http://127.0.0.1:1", &out, CTL("store", "pin", h->store_id)), 4);
    assert_int_equal(ctl_run(h, "gopher://x", &out, CTL("store", "pin", h->store_id)), 2);
    harness_store_new(h, NULL, &other, &model);
    json_t *doc = ctl_json(h, 0, CTL("store", "pin", h->store_id, "--json"));
    assert_string_equal(text_at(doc, "model_id"), h->model_id);
    json_decref(doc);
    /* The model of another store is not in this one. */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use", model)), 3);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "own", "doc")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "own", "doc#viewer", "doc#")), 2);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.owned"), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "own", "doc#viewer", "doc#owner")), 0);
    doc = ctl_json(h, 0, CTL("store", "show", "--json"));
    assert_int_equal(json_array_size(json_object_get(json_array_get(doc, 0), "owned")), 2);
    json_decref(doc);
}

/* ---- model ---- */

static void test_model_use_by_file_and_by_id(void **state)
{
    struct harness *h = *state;
    const char *out, *file = harness_strf(h, "%s/model.json", h->dir);
    int64_t generation = harness_sql_int(h, "SELECT generation FROM relata.store");
    json_t *doc = ctl_json(h, 0, CTL("model", "show"));
    assert_string_equal(text_at(doc, "id"), h->model_id);
    assert_int_equal(json_dump_file(doc, file, 0), 0); /* a printed model can be written again */
    json_decref(doc);
    doc = ctl_json(h, 0, CTL("model", "use", "--file", file, "--json"));
    const char *newer = harness_strf(h, "%s", text_at(doc, "model_id"));
    assert_string_equal(text_at(doc, "model_id_before"), h->model_id);
    json_decref(doc);
    assert_string_not_equal(newer, h->model_id);
    assert_int_equal(harness_sql_int(h, "SELECT generation FROM relata.store"), generation + 1);
    doc = ctl_json(h, 0, CTL("model", "list", "--json"));
    assert_string_equal(text_at(doc, "in_force"), newer);
    json_decref(doc);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use", h->model_id)), 0);
    assert_string_equal(harness_sql_text(h, "SELECT model_id FROM relata.store"), h->model_id);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify")), 0);
    assert_non_null(strstr(out, "the store has a newer model"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use", "--file", "/nowhere")), 2);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs("model\n  schema 1.1\n", f) >= 0 && fclose(f) == 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use", "--file", file)), 2);
    assert_non_null(strstr(out, "model.json:1:"));
    f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs("{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"a b\"}]}", f) >= 0 &&
                fclose(f) == 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("model", "use", "--file", file)), 1); /* the store refuses it */
    assert_string_equal(harness_sql_text(h, "SELECT model_id FROM relata.store"), h->model_id);
}

/* W11: parked under one model, applied under the next. */
static void test_W11_model_use_brings_parked_changes_back(void **state)
{
    struct harness *h = *state;
    const char *file = harness_strf(h, "%s/model.json", h->dir), *out;
    struct proc *w = writer_start(h, NULL);
    park_one(h, "doc:1");
    json_t *doc = ctl_json(h, 0, CTL("model", "show"));
    json_t *types = json_object_get(doc, "type_definitions"), *type;
    size_t i;
    json_array_foreach(types, i, type)
    {
        if (strcmp(text_at(type, "type"), "doc") != 0)
            continue;
        (void)json_object_set_new(json_object_get(type, "relations"), "no_such_relation", json_pack("{s:{}}", "this"));
        (void)json_object_set_new(json_object_get(json_object_get(type, "metadata"), "relations"), "no_such_relation",
                                  json_pack("{s:[{s:s}]}", "directly_related_user_types", "type", "user"));
    }
    assert_int_equal(json_dump_file(doc, file, 0), 0);
    json_decref(doc);
    if (ctl_run(h, NULL, &out, CTL("model", "use", "--file", file)) != 0)
        fail_msg("%s", out);
    const struct tuple_key key = {"doc:1", "no_such_relation", "user:a"};
    assert_store_has_eventually(h, &key);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL", "0",
                          harness_ms(WAIT_MS));
    proc_stop(w);
}

/* ---- trace ---- */

static void assert_verdict(struct harness *h, int code, const char *key, const char *verdict)
{
    json_t *doc = ctl_json(h, code, CTL("trace", key, "--json"));
    if (strcmp(text_at(doc, "verdict"), verdict) != 0) {
        char *text = json_dumps(doc, JSON_INDENT(1));
        fail_msg("verdict is not %s: %s", verdict, text);
    }
    json_decref(doc);
}

static void test_trace_verdicts(void **state)
{
    struct harness *h = *state;
    const char *out, *key = "doc:1#viewer@user:a";
    assert_verdict(h, 0, key, "agree"); /* nothing anywhere */
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:a', 'in_hours', '{\"until\": 2, \"from\": "
                   "1.0}', 'default', "
                   "'anne', '{\"traceparent\": \"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\"}')");
    json_t *doc = ctl_json(h, 0, CTL("trace", key, "--json"));
    assert_string_equal(text_at(doc, "verdict"), "pending");
    const json_t *pending = json_array_get(json_object_get(doc, "pending"), 0);
    assert_string_equal(text_at(pending, "actor"), "anne");
    assert_non_null(json_object_get(json_object_get(pending, "headers"), "traceparent"));
    json_decref(doc);
    struct proc *w = writer_start(h, NULL);
    assert_converged(h, CONVERGE_MS);
    assert_verdict(h, 0, key, "agree"); /* conditions by meaning: 1.0 is 1, the order of keys is free */
    park_one(h, "doc:2");
    assert_verdict(h, 0, "doc:2#no_such_relation@user:a", "parked");
    proc_stop(w);
    store_drop(h, "doc:1", "viewer", "user:a");
    assert_verdict(h, 1, key, "differ");
    store_put(h, "doc:1", "viewer", "user:a"); /* without the condition */
    assert_verdict(h, 1, key, "differ");
    harness_sql(
        h, "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) VALUES (1, 'default', '{doc:1}', "
           "'{viewer}', '{user:a}')");
    assert_verdict(h, 0, key, "changing");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("trace", key)), 0);
    assert_non_null(strstr(out, "intent"));
    assert_int_equal(ctl_run(h, "http://127.0.0.1:1", &out, CTL("trace", key)), 4);
    assert_non_null(strstr(out, "could not be asked"));
    assert_non_null(strstr(out, "verdict   unknown"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("trace", "doc:1")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("trace")), 2);
}

/* ---- privileges ---- */

static void as_role(struct harness *h, int want, const char *role, const char *const *args)
{
    const char *argv[32] = {0}, *out;
    size_t n = 0;
    for (; args[n]; n++)
        argv[n] = args[n];
    argv[n++] = "--set";
    argv[n++] = harness_strf(h, "pg.dsn=%s", harness_dsn(h, harness_strf(h, "%s_%.40s:x", role, h->id), NULL, NULL));
    int code = ctl_run(h, NULL, &out, argv);
    if (code != want)
        fail_msg("%s: %s %s: exit code %d, not %d: %s", role, args[0], args[1] ? args[1] : "", code, want, out);
}

static void test_documented_roles_suffice(void **state)
{
    struct harness *h = *state;
    static const char *const roles[] = {"writer", "repair", "auditor"};
    for (size_t i = 0; i < 3; i++)
        harness_sqlf(h, "CREATE ROLE %s_%.40s LOGIN PASSWORD 'x' IN ROLE relata_%s", roles[i], h->id, roles[i]);
    grant_many(h, 5);
    grant_one(h, "doc:1", "no_such_relation", "user:a");
    const char *key = "doc:1#viewer@user:u1";
    as_role(h, 5, "writer", CTL("seed")); /* one is refused and parked */
    as_role(h, 5, "writer", CTL("seed", "--merge", "--store-id", h->store_id, "--no-verify", "--restart"));
    as_role(h, 0, "auditor", CTL("lag"));
    as_role(h, 0, "auditor", CTL("trace", key));
    as_role(h, 0, "auditor", CTL("store", "show"));
    as_role(h, 1, "auditor", CTL("store", "verify", "--full"));
    as_role(h, 0, "auditor", CTL("model", "show"));
    as_role(h, 0, "auditor", CTL("dead-letters", "list"));
    as_role(h, 3, "auditor", CTL("dead-letters", "drop", "--all", "--yes"));
    as_role(h, 3, "auditor", CTL("store", "own", "doc#viewer"));
    as_role(h, 0, "repair", CTL("dead-letters", "replay", "--all"));
    as_role(h, 0, "repair", CTL("dead-letters", "drop", "--all", "--yes"));
    as_role(h, 0, "repair", CTL("store", "own", "doc#viewer"));
    as_role(h, 0, "repair", CTL("store", "disown", "doc#viewer"));
    as_role(h, 0, "repair", CTL("store", "pin", h->store_id));
    as_role(h, 0, "repair", CTL("model", "use", h->model_id));
    store_put(h, "doc:77", "viewer", "user:a");
    as_role(h, 0, "repair", CTL("adopt"));
    for (size_t i = 0; i < 3; i++)
        harness_sqlf(h, "DROP ROLE %s_%.40s", roles[i], h->id);
}

/* ---- events ---- */

static void test_events_shows_what_is_applied(void **state)
{
    struct harness *h = *state;
    const char *nats = harness_strf(h, "nats.url=%s", h->nats_url);
    const char *store = harness_strf(h, "store.name=%.50s", h->id); /* NATS is shared with other tests */
    const char *out;
    assert_int_equal(ctl_run(h, NULL, &out, CTL("events")), 2); /* where are they? */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("events", "--set", nats, "--set", store, "--timeout", "1")), 4);
    harness_sqlf(h, "UPDATE relata.store SET name = '%.50s'", h->id);
    struct proc *e = ctl_start(
        h, NULL,
        CTL("events", "--set", nats, "--set", store, "--count", "1", "--json", "--timeout", "60", "--heartbeats"));
    struct proc *w = writer_start(h, "--set", nats, "--set", store, NULL);
    assert_logged(e, "\"heartbeat\":true", harness_ms(WAIT_MS)); /* it listens */
    harness_sqlf(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:a', store => '%.50s')", h->id);
    assert_int_equal(proc_wait(e, harness_ms(CTL_MS)), 0);
    const char *line = strstr(proc_log(e), "\"object\":\"doc:1\"");
    assert_non_null(line);
    assert_non_null(strstr(line, "\"present\":true"));
    proc_stop(w);
}

int main(void)
{
    const unsigned world = HARNESS_DB | HARNESS_STORE;
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_lag_is_the_age_of_the_oldest_pending_row, world),
        HARNESS_TEST(test_O05_dead_letter_replay_is_processed_at_once, world),
        HARNESS_TEST(test_dead_letter_replay_is_the_current_state, world),
        HARNESS_TEST(test_dead_letter_drop_needs_yes_and_leaves_a_trace, world),
        HARNESS_TEST(test_dead_letter_replay_of_many, world),
        HARNESS_TEST(test_dead_letter_replay_ends_though_all_are_parked_again, world),
        HARNESS_TEST(test_store_pin_refuses_a_store_without_what_was_applied, world),
        HARNESS_TEST(test_store_pin_bad_ids, world),
        HARNESS_TEST(test_model_use_by_file_and_by_id, world),
        HARNESS_TEST(test_W11_model_use_brings_parked_changes_back, world),
        HARNESS_TEST(test_trace_verdicts, world),
        HARNESS_TEST(test_documented_roles_suffice, world),
        HARNESS_TEST(test_events_shows_what_is_applied, world | HARNESS_NATS),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
