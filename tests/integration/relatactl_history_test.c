/*
 * relatactl_history_test.c - who could do what, when: recording beside services and writers, one tuple's past, and
 * who-could against real stores that are rebuilt as they were.
 */
#include <pthread.h>

#include "tests/integration/relatactl_helpers.h"
#include "tests/model/rebac.h"

#define KEY "doc:1#viewer@user:anne"

static void switch_history(struct harness *h, const char *option)
{
    const char *out;
    if (ctl_run(h, NULL, &out, CTL("history", option)) != 0)
        fail_msg("history %s: %s", option, out);
}

static const char *now_of(struct harness *h)
{
    return harness_sql_text(h, "SELECT clock_timestamp()::text");
}

/* Member `name` of the n-th state of the tuple; "" if null. */
static const char *state_of(struct harness *h, const char *key, size_t n, const char *name)
{
    const char *out;
    assert_int_equal(ctl_run(h, NULL, &out, CTL("history", key, "--json")), 0);
    json_t *doc = json_of_output(out);
    const json_t *state = json_array_get(json_object_get(doc, "states"), n);
    if (!state)
        fail_msg("no state %zu: %s", n, out);
    const char *text = json_string_value(json_object_get(state, name));
    const char *kept = harness_strf(h, "%s", text ? text : "");
    json_decref(doc);
    return kept;
}

static void test_one_tuple_from_grant_to_end(void **state)
{
    struct harness *h = *state;
    grant_one(h, "doc:2", "viewer", "user:old");
    switch_history(h, "--on");
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:anne', actor => 'boss', headers => "
                   "'{\"traceparent\": \"00-abc\"}')");
    assert_string_equal(state_of(h, KEY, 0, "state"), "pending");
    struct proc *w = writer_start(h, NULL);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.history WHERE applied_at IS NOT NULL", "2", WAIT_MS);
    assert_string_equal(state_of(h, KEY, 0, "what"), "granted");
    assert_string_equal(state_of(h, KEY, 0, "actor"), "boss");
    assert_string_equal(state_of(h, KEY, 0, "traceparent"), "00-abc");
    assert_string_equal(state_of(h, KEY, 0, "state"), "in effect");
    assert_string_equal(state_of(h, KEY, 0, "until"), "");
    assert_string_equal(state_of(h, "doc:2#viewer@user:old", 0, "what"), "before");
    harness_sql(h, "SELECT relata.delete_tuple('doc:1', 'viewer', 'user:anne', actor => 'carl')");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.history WHERE NOT present AND applied_at > changed_at", "1",
                          WAIT_MS);
    assert_string_equal(state_of(h, KEY, 1, "what"), "revoked");
    assert_string_equal(state_of(h, KEY, 0, "until"), state_of(h, KEY, 1, "changed_at"));
    assert_string_equal(state_of(h, KEY, 0, "until_by"), "carl");
    const char *out;
    assert_int_equal(ctl_run(h, NULL, &out, CTL("history", KEY)), 0);
    assert_non_null(strstr(out, "revoked"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("history", "doc:9#viewer@user:anne")), 0);
    assert_non_null(strstr(out, "absent all the time"));
    proc_stop(w);
}

/* The store has it, nobody knows it yet: it counts from the acknowledgement, which the next writer gives. */
static void test_a_writer_killed_between_effect_and_acknowledgement(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    (void)fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_PASS, .delay_ms = 60000});
    switch_history(h, "--on");
    grant_one(h, "doc:1", "viewer", "user:anne");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.request_timeout=60s", "--set", "pg.statement_timeout=20s", NULL);
    assert_store_has_eventually(h, &(struct tuple_key){"doc:1", "viewer", "user:anne"});
    proc_kill(w);
    assert_string_equal(state_of(h, KEY, 0, "state"), "pending");
    assert_string_equal(state_of(h, KEY, 0, "applied_at"), "");
    w = writer_start(h, "--set", "store.late_window=1500ms", NULL);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.history WHERE applied_at > changed_at", "1", WAIT_MS * 2);
    assert_string_equal(state_of(h, KEY, 0, "state"), "in effect");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.history"), 1);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_what_the_store_refuses_is_parked_not_applied(void **state)
{
    struct harness *h = *state;
    switch_history(h, "--on");
    grant_one(h, "doc:1", "nosuch", "user:anne");
    struct proc *w = writer_start(h, NULL);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL", "1", WAIT_MS);
    assert_string_equal(state_of(h, "doc:1#nosuch@user:anne", 0, "state"), "parked");
    assert_string_not_equal(state_of(h, "doc:1#nosuch@user:anne", 0, "parked_at"), "");
    assert_string_equal(state_of(h, "doc:1#nosuch@user:anne", 0, "applied_at"), "");
    proc_stop(w);
}

/* ---- switching on beside services ---- */

struct service {
    const char *dsn;
    int n;
    atomic_bool *stop;
    long done;
    char error[1200];
};

/* By plain INSERT, by functions, and several in a transaction: outbox and ledger are locked in both orders. */
static void *serve(void *arg)
{
    static const char *const sql[] = {
        "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:%ld', 'viewer', 'user:a')",
        "SELECT relata.delete_tuple('doc:%ld', 'viewer', 'user:a')",
        "SELECT relata.write_tuples(ARRAY['doc:%ld', 'x:1'], '{viewer, viewer}', '{user:b, user:b}')",
        "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:%ld', 'viewer', 'user:b')",
        "SELECT relata.touch_tuple('doc:%ld', 'viewer', 'user:a')",
        "SELECT relata.delete_tuples('{x:1}', '{viewer}', '{user:b}') WHERE %ld >= 0",
    };
    struct service *s = arg;
    struct pg *pg = NULL;
    struct err err = {.status = ST_OK};
    const struct pg_config cfg = {.dsn = s->dsn, .application_name = "service"};
    enum status st = pg_open(&pg, &cfg, deadline_in_ms(10000), &err);
    for (uint64_t rng = (uint64_t)s->n * 7919 + 1; st == ST_OK && !atomic_load(s->stop); s->done++) {
        char text[512];
        size_t which = rebac_random(&rng, sizeof sql / sizeof *sql);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof text, sql[which], (long)rebac_random(&rng, 20));
#pragma GCC diagnostic pop
        st = pg_query(pg, NULL, text, NULL, 0, deadline_in_ms(60000), NULL, &err);
    }
    if (st != ST_OK)
        (void)snprintf(s->error, sizeof s->error, "%s [%s]", err.text, err.code);
    pg_close(pg);
    return NULL;
}

/* No writer runs, so the outbox tells everything that happened. */
static void test_switching_on_and_off_beside_services_misses_nothing(void **state)
{
    struct harness *h = *state;
    atomic_bool stop = false;
    struct service services[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        services[i] = (struct service){.dsn = h->dsn, .n = i, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, serve, &services[i]), 0);
    }
    assert_sql_eventually(h, "SELECT (count(*) > 100)::text FROM relata.outbox", "true", WAIT_MS);
    for (int i = 0; i < 4; i++) {
        switch_history(h, "--on");
        if (i < 3)
            switch_history(h, "--off");
    }
    harness_sql(h, "CREATE TABLE public.mark AS SELECT last_value AS id FROM relata.outbox_id");
    assert_sql_eventually(h, "SELECT (count(*) > 300)::text FROM relata.outbox WHERE id > (SELECT id FROM public.mark)",
                          "true", WAIT_MS);
    atomic_store(&stop, true);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        if (*services[i].error)
            fail_msg("service %d: %s", i, services[i].error);
        assert_true(services[i].done > 0);
    }
    /* The newest state of each tuple is the ledger's. */
    assert_int_equal(
        harness_sql_int(
            h, "SELECT count(*) FROM relata.tuple t LEFT JOIN LATERAL (SELECT h.present FROM relata.history h WHERE "
               "(h.object, h.relation, h.subject) = (t.object, t.relation, t.subject) AND h.period = (SELECT max(id) "
               "FROM relata.history_period) ORDER BY h.version DESC LIMIT 1) h ON true "
               "WHERE t.present <> coalesce(h.present, false)"),
        0);
    /* Every change of a tuple after the start of the last period is there, once, and nothing else. */
    const char *changes =
        "WITH o AS (SELECT id, object, relation, subject, op = 'write' AS present, lag(op = 'write') OVER w AS was "
        "FROM "
        "relata.outbox WHERE op <> 'touch' WINDOW w AS (PARTITION BY object, relation, subject ORDER BY id)), "
        "c AS (SELECT id, present FROM o WHERE present IS DISTINCT FROM coalesce(was, false) AND id > (SELECT id FROM "
        "public.mark)), r AS (SELECT version AS id, present FROM relata.history WHERE NOT baseline AND version > "
        "(SELECT id FROM "
        "public.mark)) SELECT (SELECT count(*) FROM (TABLE c EXCEPT TABLE r) x) + (SELECT count(*) FROM (TABLE r "
        "EXCEPT TABLE c) x)";
    assert_int_equal(harness_sql_int(h, changes), 0);
    assert_true(harness_sql_int(h, "SELECT count(*) FROM relata.history WHERE NOT baseline") > 50);
    assert_int_equal(
        harness_sql_int(h, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1380270087 "
                           "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"),
        0);
}

/* A transaction that is left open keeps the switch waiting, not the services. */
static void test_an_open_transaction_keeps_nobody_else_waiting(void **state)
{
    struct harness *h = *state;
    struct pg *open = harness_connect(h, NULL);
    struct err err;
    if (pg_exec(open, "BEGIN; SELECT relata.write_tuple('doc:1', 'viewer', 'user:anne')", deadline_in_ms(WAIT_MS),
                &err) != ST_OK)
        fail_msg("%s", err.text);
    /* Its snapshot is older than history: what it changes later is recorded all the same. */
    struct pg *old = harness_connect(h, NULL);
    if (pg_exec(old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM relata.store",
                deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    struct proc *p = ctl_start(h, NULL, CTL("history", "--on"));
    assert_sql_eventually(h, "SELECT (count(*) > 0)::text FROM relata.history_period", "true", WAIT_MS);
    for (int i = 0; i < 20; i++)
        harness_sqlf(h, "SET lock_timeout = '5s'; SELECT relata.write_tuple('doc:%d', 'viewer', 'user:bob')", i + 2);
    assert_true(proc_running(p));
    if (pg_exec(open, "COMMIT", deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 0);
    pg_close(open);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.history WHERE baseline"), 21);
    if (pg_exec(old, "SELECT relata.write_tuple('doc:old', 'viewer', 'user:anne'); COMMIT", deadline_in_ms(WAIT_MS),
                &err) != ST_OK)
        fail_msg("%s", err.text);
    pg_close(old);
    assert_string_equal(state_of(h, "doc:old#viewer@user:anne", 0, "what"), "granted");
}

/* ---- who-could ---- */

static json_t *could(struct harness *h, const char *object, const char *relation, const char *at, const char *more)
{
    const char *out;
    int code = more ? ctl_run(h, NULL, &out, CTL("who-could", object, relation, "--at", at, "--json", more))
                    : ctl_run(h, NULL, &out, CTL("who-could", object, relation, "--at", at, "--json"));
    if (code != 0)
        fail_msg("who-could: %d: %s", code, out);
    return json_of_output(out);
}

static const char *could_of(const json_t *doc, const char *subject)
{
    size_t i;
    json_t *one;
    const char *rest = "no";
    size_t type = strcspn(subject, ":");
    json_array_foreach(json_object_get(doc, "subjects"), i, one)
    {
        const char *name = json_string_value(json_object_get(one, "subject"));
        const char *word = json_string_value(json_object_get(one, "could"));
        if (strcmp(name, subject) == 0)
            return word;
        if (strncmp(name, subject, type) == 0 && strcmp(name + type, ":*") == 0)
            rest = word;
    }
    return rest;
}

/* A store as it was: the model and the tuples that are set in `r`. */
static struct store_conn *rebuild(struct harness *h, struct rebac *r, const char **model_id)
{
    const char *store_id;
    struct store_conn *conn = NULL;
    struct err err;
    harness_store_new(h, rebac_json(r), &store_id, model_id);
    if (store_conn_new(&conn, h->store, store_id, &err) != ST_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < rebac_tuples(r); i++) {
        struct rebac_tuple t = rebac_tuple(r, i);
        const struct store_tuple write = {.key = {t.object, t.relation, t.subject}};
        if (t.present &&
            store_write(conn, *model_id, &write, 1, NULL, 0, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
            fail_msg("%s#%s@%s: %s", t.object, t.relation, t.subject, err.text);
    }
    return conn;
}

/* Some relations of some objects, for every subject that is no userset. */
static long compare_moment(struct harness *h, struct rebac *r, const char *at, uint64_t *rng)
{
    const char *model_id;
    struct store_conn *conn = rebuild(h, r, &model_id);
    long asked = 0;
    for (int questions = 4; questions > 0;) {
        int type = 1 + (int)rebac_random(rng, REBAC_TYPES - 1), k = (int)rebac_random(rng, REBAC_RELATIONS);
        if (!rebac_has(r, type, k))
            continue;
        questions--;
        const char *object = rebac_object(type, (int)rebac_random(rng, (uint64_t)rebac_objects(type)));
        json_t *doc = could(h, object, rebac_relation(k), at, NULL);
        for (int s = 0; s < rebac_subjects(r); s++) {
            const struct tuple_key key = {object, rebac_relation(k), rebac_subject(r, s)};
            bool allowed = false;
            struct err err;
            if (strchr(key.subject, '#') ||
                store_check(conn, model_id, &key, true, &allowed, deadline_in_ms(WAIT_MS), &err) != ST_OK)
                continue;
            asked++;
            if (allowed != (strcmp(could_of(doc, key.subject), "yes") == 0)) {
                char *text = json_dumps(doc, 0);
                fail_msg("%s#%s@%s at %s: the store says %d, %s\n%s", object, key.relation, key.subject, at, allowed,
                         text, rebac_json(r));
            }
        }
        json_decref(doc);
    }
    store_conn_free(conn);
    return asked;
}

#define MOMENTS 4

static void one_history(struct harness *h, uint64_t *rng, long *asked)
{
    struct rebac *r = NULL;
    char *id = NULL;
    struct err err;
    do { /* a model that the store takes */
        rebac_free(r);
        r = rebac_new(rng);
    } while (rebac_tuples(r) == 0 ||
             store_write_model(h->store_conn, rebac_json(r), &id, deadline_in_ms(harness_ms(10000)), &err) != ST_OK);
    harness_pin(h, h->store_id, id);
    const char *moments[MOMENTS];
    bool *present = calloc((size_t)rebac_tuples(r) * MOMENTS, sizeof *present);
    assert_non_null(present);
    for (int m = 0; m < MOMENTS; m++) {
        for (int i = 0; i < rebac_tuples(r); i++) {
            struct rebac_tuple t = rebac_tuple(r, i);
            if (rebac_random(rng, 100) >= 20)
                continue;
            harness_sqlf(h,
                         t.present ? "SELECT relata.delete_tuple('%s', '%s', '%s')"
                                   : "SELECT relata.write_tuple('%s', '%s', '%s')",
                         t.object, t.relation, t.subject);
            rebac_set(r, i, !t.present);
        }
        moments[m] = now_of(h);
        for (int i = 0; i < rebac_tuples(r); i++)
            present[m * rebac_tuples(r) + i] = rebac_tuple(r, i).present;
        if (m == 0)
            harness_sql(
                h, "SELECT relata.delete_tuples(array_agg(object), array_agg(relation), array_agg(subject)), "
                   "relata.write_tuples(array_agg(object), array_agg(relation), array_agg(subject)) FROM relata.tuple "
                   "WHERE present"); /* in one transaction: no change */
    }
    harness_sql(
        h, "SELECT relata.delete_tuples(array_agg(object), array_agg(relation), array_agg(subject)) FROM relata.tuple");
    for (int m = 0; m < MOMENTS; m++) {
        for (int i = 0; i < rebac_tuples(r); i++)
            rebac_set(r, i, present[m * rebac_tuples(r) + i]);
        *asked += compare_moment(h, r, moments[m], rng);
    }
    free(present);
    free(id);
    rebac_free(r);
}

static void test_who_could_says_what_a_store_of_that_time_says(void **state)
{
    struct harness *h = *state;
    uint64_t rng = harness_seed() | 1;
    long asked = 0;
    switch_history(h, "--on");
    for (int i = harness_soak(30); i > 0; i--)
        one_history(h, &rng, &asked);
    print_message("%ld decisions compared\n", asked);
    assert_true(asked > 200);
}

/* Conditions apart, reasons, both clocks, what is not known. */
static void test_who_could_with_conditions_reasons_and_clocks(void **state)
{
    struct harness *h = *state;
    grant_one(h, "doc:1", "viewer", "user:early"); /* pending when history begins */
    switch_history(h, "--on");
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:cy', 'in_hours', '{\"from\": 1}')");
    harness_sql(h, "SELECT relata.write_tuple('team:1', 'member', 'user:anne', actor => 'boss')");
    grant_one(h, "doc:1", "viewer", "team:1#member");
    const char *granted = now_of(h), *out;
    json_t *doc = could(h, "doc:1", "viewer", granted, "--why");
    assert_string_equal(could_of(doc, "user:anne"), "yes");
    assert_string_equal(could_of(doc, "user:early"), "yes");
    assert_string_equal(could_of(doc, "user:nobody"), "no");
    json_decref(doc);
    doc = could(h, "doc:1", "viewer", granted, "--effective");
    assert_string_equal(could_of(doc, "user:anne"), "no");
    assert_string_equal(json_string_value(json_array_get(json_object_get(doc, "uncertain"), 0)),
                        "doc:1#viewer@user:early");
    json_decref(doc);
    struct proc *w = writer_start(h, NULL);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.history WHERE applied_at IS NULL AND condition_name IS NULL",
                          "0", WAIT_MS);
    proc_stop(w);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("who-could", "doc:1", "viewer", "--effective", "--why")), 0);
    const char *chain = strstr(out, "doc:1#viewer@team:1#member  granted ");
    assert_non_null(chain);
    assert_non_null(strstr(chain, "team:1#member@user:anne  granted "));
    assert_non_null(strstr(chain, " by boss, in effect "));
    doc = could(h, "doc:1", "viewer", granted, "--effective"); /* it still was not, then */
    assert_string_equal(could_of(doc, "user:anne"), "no");
    json_decref(doc);
    doc = could(h, "doc:1", "viewer", granted, NULL);
    assert_string_equal(could_of(doc, "user:cy"), "conditional");
    json_decref(doc);
}

static void refuse(struct harness *h, int code, const char *text, const char *at)
{
    const char *out;
    assert_int_equal(ctl_run(h, NULL, &out, CTL("who-could", "doc:1", "viewer", "--at", at)), code);
    if (!strstr(out, text))
        fail_msg("no \"%s\" in: %s", text, out);
}

static void test_times_that_history_does_not_know_are_refused(void **state)
{
    struct harness *h = *state;
    const char *before = now_of(h), *out;
    refuse(h, 3, "history was never on", before);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("history", KEY)), 3);
    switch_history(h, "--on");
    grant_one(h, "doc:1", "viewer", "user:anne");
    const char *during = now_of(h);
    refuse(h, 3, "does not reach", before);
    refuse(h, 0, "user:anne", during);
    refuse(h, 2, "future", "2999-01-01T00:00:00Z");
    refuse(h, 2, "no point in time", "yesteryear");
    switch_history(h, "--off");
    revoke_one(h, "doc:1", "viewer", "user:anne");
    const char *off = now_of(h);
    refuse(h, 3, "does not reach", off);
    refuse(h, 0, "user:anne", during);
    switch_history(h, "--on");
    refuse(h, 3, "does not reach", off);
    refuse(h, 0, "nobody", now_of(h));
    harness_sql(h, "UPDATE relata.setting SET value = '0' WHERE name = 'history_retention'");
    assert_sql_eventually(
        h, "SELECT relata.maintain() IS NULL OR NOT EXISTS (SELECT FROM relata.history WHERE period = 1)", "t",
        WAIT_MS);
    refuse(h, 3, "does not reach", during);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_one_tuple_from_grant_to_end, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_writer_killed_between_effect_and_acknowledgement, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_what_the_store_refuses_is_parked_not_applied, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_switching_on_and_off_beside_services_misses_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_an_open_transaction_keeps_nobody_else_waiting, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_who_could_says_what_a_store_of_that_time_says, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_who_could_with_conditions_reasons_and_clocks, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_times_that_history_does_not_know_are_refused, HARNESS_DB | HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
