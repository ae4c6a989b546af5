/* relatactl seed: fills a store exactly, beside writers, through failures, late effects, kills and changes. */
#include "tests/integration/relatactl_helpers.h"

static void grant_conditions(struct harness *h)
{
    harness_sql(h,
                "SELECT relata.write_tuple('doc:c1', 'viewer', 'user:a', 'in_hours', '{\"from\": 1, \"until\": 9}')");
    harness_sql(h, "SELECT relata.write_tuple('doc:c2', 'viewer', 'user:a', 'in_hours')");
    harness_sql(h, "SELECT relata.write_tuple('doc:c3', 'viewer', 'team:x#member')");
    harness_sql(h, "SELECT relata.write_tuple('doc:c4', 'viewer', 'user:*')");
    harness_sql(h,
                "SELECT relata.write_tuple('doc:c5', 'viewer', 'user:gone'), relata.delete_tuple('doc:c5', 'viewer', "
                "'user:gone')");
}

static void assert_nothing_under_way(struct harness *h)
{
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.writer WHERE ended_at IS NULL"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.job WHERE kind = 'seed' AND finished_at IS NULL"),
                     0);
}

static void test_seed_fills_an_empty_store(void **state)
{
    struct harness *h = *state;
    const char *out;
    grant_many(h, 1234);
    grant_conditions(h);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--json")), 0);
    json_t *doc = json_of_output(out);
    assert_int_equal(int_at(doc, "counts", "done"), 1238);
    assert_int_equal(int_at(doc, "compared", "equal"), 1238);
    assert_int_equal(int_at(doc, "compared", "extra"), 0);
    json_decref(doc);
    assert_store_is_ledger(h);
    assert_nothing_under_way(h);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 1240); /* the writers' to acknowledge */

    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed")), 3);
    assert_non_null(strstr(out, "is not empty; --merge"));
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--merge")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "verify", "--full")), 0);
}

static void test_seed_of_an_empty_ledger(void **state)
{
    struct harness *h = *state;
    assert_int_equal(ctl_run(h, NULL, NULL, CTL("seed")), 0);
    assert_nothing_under_way(h);
}

static void test_seed_creates_and_pins(void **state)
{
    struct harness *h = *state;
    const char *out, *file = harness_strf(h, "%s/model.json", h->dir);
    const char *before = harness_sql_text(h, "SELECT generation FROM relata.store");
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs(harness_model, f) >= 0 && fclose(f) == 0);
    grant_many(h, 150);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--create")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--create", "--model", "/nowhere/model.json")), 2);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--create", "--model", file, "--store-id", h->store_id)), 2);
    assert_string_equal(harness_sql_text(h, "SELECT generation FROM relata.store"), before); /* nothing was touched */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--create", "--model", file)), 0);
    assert_string_not_equal(harness_sql_text(h, "SELECT store_id FROM relata.store"), h->store_id);
    assert_string_not_equal(harness_sql_text(h, "SELECT generation FROM relata.store"), before);
    h->store_id = harness_sql_text(h, "SELECT store_id FROM relata.store");
    struct err err;
    assert_int_equal(store_conn_use(h->store_conn, h->store_id, &err), ST_OK);
    assert_store_is_ledger(h);
}

static void test_seed_moves_to_another_store(void **state)
{
    struct harness *h = *state;
    const char *store, *model, *out;
    struct err err;
    harness_store_new(h, NULL, &store, &model);
    grant_many(h, 150);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--store-id", store)), 0);
    assert_string_equal(harness_sql_text(h, "SELECT store_id FROM relata.store"), store);
    assert_string_equal(harness_sql_text(h, "SELECT model_id FROM relata.store"), model);
    assert_int_equal(store_conn_use(h->store_conn, store, &err), ST_OK);
    assert_store_is_ledger(h);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--store-id", "01ARZ3NDEKTSV4RRFFQ69G5FAV")), 3);
    assert_string_equal(harness_sql_text(h, "SELECT store_id FROM relata.store"), store);
}

static void test_seed_parks_what_the_store_refuses(void **state)
{
    struct harness *h = *state;
    const char *out;
    grant_many(h, 130);
    grant_one(h, "doc:42", "no_such_relation", "user:a"); /* between good ones of one batch */
    grant_one(h, "nothing:1", "viewer", "user:a");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--json")), 5);
    json_t *doc = json_of_output(out);
    assert_int_equal(int_at(doc, "counts", "refused"), 2);
    assert_int_equal(int_at(doc, "compared", "equal"), 130);
    assert_int_equal(int_at(doc, "compared", "missing"), 2);
    json_decref(doc);
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(object || ' ' || code, ', ' ORDER BY object) FROM "
                                            "relata.dead_letter WHERE closed_at IS NULL"),
                        "doc:42 validation_error, nothing:1 validation_error");
    assert_nothing_under_way(h);
}

static void test_seed_replaces_another_condition(void **state)
{
    struct harness *h = *state;
    struct err err;
    const char *out;
    const struct store_tuple other[] = {{{"doc:7", "viewer", "user:u7"}, "in_hours", "{\"from\":2,\"until\":3}"},
                                        {{"doc:c1", "viewer", "user:a"}, NULL, NULL}};
    assert_int_equal(store_write(h->store_conn, h->model_id, other, 2, NULL, 0, deadline_in_ms(10000), &err), ST_OK);
    grant_many(h, 120);
    grant_conditions(h);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--merge")), 0);
    assert_store_is_ledger(h);
}

/* Intents wait in a trigger until public.go has a row: what their statement reads is older than what follows. */
static void hold_intents(struct harness *h)
{
    harness_sql(
        h, "CREATE TABLE public.go (x int); CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
           "WHILE NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$; "
           "CREATE TRIGGER hold BEFORE INSERT ON relata.inflight FOR EACH ROW EXECUTE FUNCTION public.hold()");
}

/* The state that was read is old by the time it is written, and a newer one was applied before: the newer one stands.
 */
static void test_seed_old_state_does_not_win(void **state)
{
    struct harness *h = *state;
    const struct tuple_key key = {"doc:50", "viewer", "user:u50"};
    grant_many(h, 100);
    hold_intents(h);
    struct proc *p = ctl_start(h, NULL, CTL("seed", "--json"));
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = "
                          "'PgSleep'",
                          "1", WAIT_MS);
    revoke_one(h, key.object, key.relation, key.subject);
    /* What a writer would do with it: nothing is there yet, and it acknowledges. */
    store_drop(h, key.object, key.relation, key.subject);
    harness_sql(h, "INSERT INTO public.go VALUES (1)");
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    json_t *doc = json_of_output(proc_log(p));
    assert_true(int_at(doc, "counts", "moved") >= 1);
    assert_true(int_at(doc, "counts", "deletes") >= 1);
    json_decref(doc);
    assert_false(store_has(h, key.object, key.relation, key.subject));
    assert_store_is_ledger(h);
    assert_nothing_under_way(h);
}

/* A request that was given up takes effect after its repetition, and after a newer state was applied. */
static void test_seed_undoes_its_own_late_write(void **state)
{
    struct harness *h = *state;
    const struct tuple_key key = {"doc:50", "viewer", "user:u50"};
    struct fake_store *f = fake_store_start(h->store_url);
    int late = fake_store_rule(
        f, &(struct fake_rule){
               .path = "/write", .body = "doc:50\"", .times = 1, .action = FAKE_LATE, .delay_ms = harness_ms(6000)});
    grant_many(h, 300);
    struct proc *p =
        ctl_start(h, fake_store_url(f),
                  CTL("seed", "--json", "--set", harness_strf(h, "store.request_timeout=%dms", harness_ms(1000)),
                      "--set", harness_strf(h, "store.late_window=%dms", harness_ms(9000))));
    assert_store_has_eventually(h, &key); /* the repetition */
    assert_int_equal(fake_store_used(f, late), 1);
    assert_int_equal(fake_store_late_pending(f), 1);
    revoke_one(h, key.object, key.relation, key.subject);
    store_drop(h, key.object, key.relation, key.subject);
    assert_store_has_eventually(h, &key);                                        /* the late one */
    assert_true(harness_sql_int(h, "SELECT count(*) FROM relata.inflight") > 0); /* and who expects it */
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    json_t *doc = json_of_output(proc_log(p));
    assert_true(int_at(doc, "counts", "unknown") >= 1);
    json_decref(doc);
    fake_store_stop(f);
    assert_store_is_ledger(h);
    assert_nothing_under_way(h);
}

static void test_seed_killed_goes_on_and_writers_see_to_its_intents(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct fake_store *f = fake_store_start(h->store_url);
    grant_many(h, 2500);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .skip = 10, .action = FAKE_HANG});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--in-flight", "4"));
    assert_sql_eventually(h, "SELECT position IS NOT NULL FROM relata.job WHERE kind = 'seed'", "t", WAIT_MS);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.inflight", "4", WAIT_MS);
    proc_kill(p);
    fake_store_stop(f);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--json")), 0);
    assert_non_null(strstr(out, "going on after doc:"));
    json_t *doc = json_of_output(out);
    assert_true(json_is_true(json_object_get(doc, "continued")));
    assert_int_equal(int_at(doc, "compared", "equal"), 2500);
    json_decref(doc);
    assert_store_is_ledger(h);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 4); /* of the dead one */
    struct proc *w = writer_start(h, "--set", "store.late_window=1500ms", NULL);
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
}

static void test_seed_interrupted_goes_on(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct fake_store *f = fake_store_start(h->store_url);
    grant_many(h, 3000);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_PASS, .delay_ms = 200});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--in-flight", "1"));
    assert_sql_eventually(h, "SELECT position IS NOT NULL FROM relata.job WHERE kind = 'seed'", "t", WAIT_MS);
    proc_signal(p, SIGTERM);
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 1);
    assert_non_null(strstr(proc_log(p), "the same command goes on there"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 0); /* what was under way was ended */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed")), 0);
    assert_non_null(strstr(out, "continued"));
    assert_store_is_ledger(h);
    /* From the first on, if wanted: the position is forgotten. */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--restart")), 3);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed", "--restart", "--merge")), 0);
    fake_store_stop(f);
}

static void test_seed_gets_through_failures_of_the_store(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    const struct fake_rule rules[] = {
        {.path = "/write", .times = 2, .action = FAKE_REPLY, .status = 429, .headers = "Retry-After: 1", .reply = "{}"},
        {.path = "/write", .times = 2, .action = FAKE_REPLY, .status = 503, .reply = ""},
        {.path = "/write", .times = 2, .action = FAKE_CUT},
        {.path = "/write", .times = 2, .action = FAKE_CUT_AFTER},
        {.path = "/write",
         .times = 2,
         .action = FAKE_REPLY_AFTER,
         .status = 500,
         .reply = "{\"code\":\"internal_error\",\"message\":\"x\"}"},
        {.path = "/write",
         .times = 2,
         .action = FAKE_REPLY,
         .status = 409,
         .reply = "{\"code\":\"Aborted\",\"message\":\"x\"}"},
        {.path = "/read", .skip = 3, .times = 2, .action = FAKE_CUT},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        fake_store_rule(f, &rules[i]);
    grant_many(h, 1500);
    grant_conditions(h);
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--json", "--in-flight", "3"));
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    json_t *doc = json_of_output(proc_log(p));
    assert_int_equal(int_at(doc, "counts", "throttled"), 2);
    assert_true(int_at(doc, "counts", "unknown") >= 4);
    assert_int_equal(int_at(doc, "counts", "refused"), 0);
    json_decref(doc);
    fake_store_stop(f);
    assert_store_is_ledger(h);
    assert_nothing_under_way(h);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
}

static void test_seed_stops_without_parking_when_denied_or_down(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct fake_store *f = fake_store_start(h->store_url);
    grant_many(h, 500);
    fake_store_rule(
        f, &(struct fake_rule){
               .path = "/write", .action = FAKE_REPLY, .status = 401, .reply = "{\"code\":\"unauthenticated\"}"});
    assert_int_equal(ctl_run(h, fake_store_url(f), &out, CTL("seed")), 3);
    fake_store_clear(f);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_REPLY, .status = 503, .reply = ""});
    assert_int_equal(ctl_run(h, fake_store_url(f), &out, CTL("seed", "--patience", "1")), 4);
    assert_non_null(strstr(out, "no success within 1 s"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_int_equal(ctl_run(h, "http://127.0.0.1:1", &out, CTL("seed")), 4); /* nobody listens */
    fake_store_stop(f);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed")), 0);
    assert_store_is_ledger(h);
}

static void test_seed_stops_when_another_store_is_pinned(void **state)
{
    struct harness *h = *state;
    const char *other, *model;
    struct fake_store *f = fake_store_start(h->store_url);
    harness_store_new(h, NULL, &other, &model);
    grant_many(h, 3000);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_PASS, .delay_ms = 100});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--in-flight", "1"));
    assert_sql_eventually(h, "SELECT count(*) > 0 FROM relata.inflight", "t", WAIT_MS);
    harness_pin(h, other, model);
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 3);
    assert_non_null(strstr(proc_log(p), "pinned to another store"));
    fake_store_stop(f);
}

static void test_seed_two_at_once(void **state)
{
    struct harness *h = *state;
    const char *out;
    struct fake_store *f = fake_store_start(h->store_url);
    grant_many(h, 1000);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_PASS, .delay_ms = 400});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--in-flight", "1"));
    assert_sql_eventually(h, "SELECT count(*) > 0 FROM relata.inflight", "t", WAIT_MS);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed")), 3);
    assert_non_null(strstr(out, "another seed of store \"default\" is running"));
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 0);
    fake_store_stop(f);
}

static void test_seed_survives_lost_postgres_connections(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    grant_many(h, 3000);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_PASS, .delay_ms = 100});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("seed", "--in-flight", "3", "--json"));
    for (int i = 1; i <= 3; i++) {
        assert_sql_eventually(
            h, harness_strf(h, "SELECT coalesce(max((counts ->> 'done')::int), 0) >= %d FROM relata.job", i * 500), "t",
            WAIT_MS);
        harness_sql(
            h, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND "
               "application_name = 'relatactl'");
    }
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    fake_store_stop(f);
    assert_store_is_ledger(h);
    assert_nothing_under_way(h);
}

/* Moves to another store while a writer runs and services change the same tuples. */
static void test_seed_beside_a_running_writer(void **state)
{
    struct harness *h = *state;
    const char *other, *model;
    struct err err;
    uint64_t seed = harness_seed();
    harness_store_new(h, NULL, &other, &model);
    grant_many(h, 2000);
    struct proc *w = writer_start(h, "--set", "store.late_window=1500ms", NULL);
    proc_ready_wait(w, harness_ms(WAIT_MS));
    struct proc *p = ctl_start(h, NULL, CTL("seed", "--store-id", other, "--no-verify"));
    harness_sqlf(h, "SELECT setseed(%f)", (double)(seed % 1000) / 1000);
    for (int i = 0; proc_running(p); i++)
        harness_sqlf(
            h,
            "SELECT relata.%s(array_agg('doc:' || g), array_agg('viewer'::text), array_agg('user:u' || g %% 100)) FROM "
            "(SELECT DISTINCT 1 + (random() * 1999)::int AS g FROM generate_series(1, 20)) AS x",
            i % 2 ? "write_tuples" : "delete_tuples");
    if (proc_wait(p, harness_ms(CTL_MS)) != 0)
        fail_msg("%s", proc_log(p));
    h->store_id = other;
    assert_int_equal(store_conn_use(h->store_conn, other, &err), ST_OK);
    assert_converged(h, harness_ms(60000));
    proc_stop(w);
}

int main(void)
{
    const unsigned world = HARNESS_DB | HARNESS_STORE;
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_seed_fills_an_empty_store, world),
        HARNESS_TEST(test_seed_of_an_empty_ledger, world),
        HARNESS_TEST(test_seed_creates_and_pins, world),
        HARNESS_TEST(test_seed_moves_to_another_store, world),
        HARNESS_TEST(test_seed_parks_what_the_store_refuses, world),
        HARNESS_TEST(test_seed_replaces_another_condition, world),
        HARNESS_TEST(test_seed_old_state_does_not_win, world),
        HARNESS_TEST(test_seed_undoes_its_own_late_write, world),
        HARNESS_TEST(test_seed_killed_goes_on_and_writers_see_to_its_intents, world),
        HARNESS_TEST(test_seed_interrupted_goes_on, world),
        HARNESS_TEST(test_seed_gets_through_failures_of_the_store, world),
        HARNESS_TEST(test_seed_stops_without_parking_when_denied_or_down, world),
        HARNESS_TEST(test_seed_stops_when_another_store_is_pinned, world),
        HARNESS_TEST(test_seed_two_at_once, world),
        HARNESS_TEST(test_seed_survives_lost_postgres_connections, world),
        HARNESS_TEST(test_seed_beside_a_running_writer, world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
