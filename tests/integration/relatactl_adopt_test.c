/* relatactl adopt: takes an existing store into the ledger, and nothing that is not true any more. */
#include "tests/integration/relatactl_helpers.h"

/* `n` tuples doc:1.. in the store, which the ledger does not know. */
static void store_fill(struct harness *h, int n)
{
    char names[100][2][24];
    struct store_tuple t[100];
    struct err err;
    for (int done = 0; done < n;) {
        size_t len = 0;
        for (; len < 100 && done < n; len++, done++) {
            (void)snprintf(names[len][0], sizeof names[len][0], "doc:%06d", done + 1);
            (void)snprintf(names[len][1], sizeof names[len][1], "user:u%d", done % 7);
            t[len] = (struct store_tuple){.key = {names[len][0], "viewer", names[len][1]}};
        }
        if (store_write(h->store_conn, h->model_id, t, len, NULL, 0, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
            fail_msg("%s", err.text);
    }
}

static void store_condition(struct harness *h, const char *object, const char *context)
{
    const struct store_tuple t = {{object, "viewer", "user:c"}, "in_hours", context};
    struct err err;
    if (store_write(h->store_conn, h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("%s", err.text);
}

/* Inserts of adopt wait in a trigger until public.go has a row. */
static void hold_adoption(struct harness *h)
{
    harness_sql(
        h, "CREATE TABLE public.go (x int); CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
           "WHILE NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END $$; "
           "CREATE TRIGGER hold BEFORE INSERT ON relata.tuple FOR EACH STATEMENT EXECUTE FUNCTION public.hold()");
}

static void await_held(struct harness *h)
{
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = "
                          "'PgSleep'",
                          "1", harness_ms(WAIT_MS));
}

static const char adopted_job[] =
    "SELECT count(*) FROM relata.job WHERE kind = 'adopt' AND finished_at IS NOT NULL AND pending "
    "IS NULL";

static void test_adopt_takes_everything_without_outbox_rows(void **state)
{
    struct harness *h = *state;
    const char *out;
    store_fill(h, 250);
    store_condition(h, "doc:c1", "{\"from\": 1, \"until\": 9}");
    store_condition(h, "doc:c2", NULL);
    store_put(h, "doc:s1", "viewer", "team:x#member");
    store_put(h, "doc:s2", "viewer", "user:*");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt", "--dry-run")), 0);
    assert_non_null(strstr(out, "254 tuples, 254 would be adopted"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple"), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt", "--json")), 0);
    json_t *doc = json_of_output(out);
    assert_int_equal(int_at(doc, "counts", "adopted"), 254);
    assert_int_equal(int_at(doc, "counts", "withdrawn"), 0);
    json_decref(doc);
    assert_store_is_ledger(h);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 0);
    assert_int_equal(harness_sql_int(h, adopted_job), 1);
    /* Versions are ids of the outbox: each its own, none that a service will get. */
    assert_int_equal(harness_sql_int(h, "SELECT count(DISTINCT version) FROM relata.tuple"), 254);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 0);
    assert_non_null(strstr(out, "254 tuples, 0 adopted, 254 were in the ledger"));
    /* What was adopted is an ordinary tuple from now on. */
    struct proc *w = writer_start(h, NULL);
    revoke_one(h, "doc:000001", "viewer", "user:u0");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:000001", "viewer", "user:u0"));
    proc_stop(w);
}

static void test_adopt_never_overrides_a_service(void **state)
{
    struct harness *h = *state;
    const char *out;
    store_fill(h, 20);
    revoke_one(h, "doc:000001", "viewer", "user:u0"); /* pending: the store still has it */
    harness_sql(
        h, "SELECT relata.write_tuple('doc:000002', 'viewer', 'user:u1', 'in_hours', '{\"from\": 1, \"until\": 2}')");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt", "--json")), 0);
    json_t *doc = json_of_output(out);
    assert_int_equal(int_at(doc, "counts", "adopted"), 18);
    assert_int_equal(int_at(doc, "counts", "absent"), 1);
    json_decref(doc);
    assert_string_equal(
        harness_sql_text(h, "SELECT string_agg(object || ' ' || present || ' ' || coalesce(condition_name, '-'), "
                            "', ' ORDER BY object) FROM relata.tuple WHERE object IN ('doc:000001', 'doc:000002')"),
        "doc:000001 false -, doc:000002 true in_hours");
}

static void test_adopt_leaves_what_is_not_owned(void **state)
{
    struct harness *h = *state;
    const char *out;
    store_fill(h, 10);
    store_put(h, "team:x", "member", "user:a");
    store_put(h, "doc:000001", "owner", "user:a");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "own", "doc#owner", "team#member")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 0);
    assert_non_null(strstr(out, "2 adopted"));
    assert_non_null(strstr(out, "10 left alone: not owned"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple WHERE relation = 'viewer'"), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("store", "disown", "doc#owner", "team#member")), 0);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 0);
    assert_store_is_ledger(h);
}

/* Deleted, or given another condition, after the page was read and before its rows are in the ledger. */
static void test_adopt_sees_changes_between_read_and_insert(void **state)
{
    struct harness *h = *state;
    store_fill(h, 150);
    store_condition(h, "doc:c1", "{\"from\": 1, \"until\": 9}");
    store_condition(h, "doc:c2", "{\"from\": 1, \"until\": 9}");
    hold_adoption(h);
    struct proc *p = ctl_start(h, NULL, CTL("adopt", "--json"));
    await_held(h);
    store_drop(h, "doc:000001", "viewer", "user:u0");
    store_drop(h, "doc:000100", "viewer", "user:u1");
    harness_sql(h, "INSERT INTO public.go VALUES (1)");
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    json_t *doc = json_of_output(proc_log(p));
    assert_int_equal(int_at(doc, "counts", "withdrawn"), 2);
    json_decref(doc);
    assert_store_is_ledger(h);
}

static void test_adopt_sees_another_condition_between_read_and_insert(void **state)
{
    struct harness *h = *state;
    store_fill(h, 3);
    store_condition(h, "doc:c1", "{\"from\": 1, \"until\": 9}");
    hold_adoption(h);
    struct proc *p = ctl_start(h, NULL, CTL("adopt", "--json"));
    await_held(h);
    store_drop(h, "doc:c1", "viewer", "user:c");
    store_condition(h, "doc:c1", "{\"from\": 2, \"until\": 3}");
    harness_sql(h, "INSERT INTO public.go VALUES (1)");
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    assert_store_is_ledger(h);
    assert_string_equal(
        harness_sql_text(h, "SELECT condition_context ->> 'from' FROM relata.tuple WHERE object = 'doc:c1'"), "2");
}

/* A row that a service changed before it could be confirmed is the service's. */
static void test_adopt_leaves_a_row_that_a_service_took_over(void **state)
{
    struct harness *h = *state;
    store_fill(h, 5);
    struct fake_store *f = fake_store_start(h->store_url);
    /* The second Read of the page, the confirming one, comes late. */
    fake_store_rule(f, &(struct fake_rule){
                           .path = "/read", .skip = 1, .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(1500)});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("adopt"));
    assert_sql_eventually(h, "SELECT pending IS NOT NULL FROM relata.job", "t", harness_ms(WAIT_MS));
    grant_one(h, "doc:000001", "viewer", "user:u0"); /* the same state, but a service's row from now on */
    int64_t version = harness_sql_int(h, "SELECT version FROM relata.tuple WHERE object = 'doc:000001'");
    store_drop(h, "doc:000001", "viewer", "user:u0");
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 0);
    fake_store_stop(f);
    assert_int_equal(harness_sql_int(h, "SELECT version FROM relata.tuple WHERE object = 'doc:000001' AND present"),
                     version);
}

static void test_adopt_killed_before_confirming_confirms_later(void **state)
{
    struct harness *h = *state;
    const char *out;
    store_fill(h, 250);
    struct fake_store *f = fake_store_start(h->store_url);
    fake_store_rule(f, &(struct fake_rule){.path = "/read", .skip = 3, .action = FAKE_HANG});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("adopt"));
    assert_sql_eventually(h, "SELECT pending IS NOT NULL AND position::text <> '\"\"' FROM relata.job", "t",
                          harness_ms(WAIT_MS));
    proc_kill(p);
    fake_store_stop(f);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple"), 200);
    store_drop(h, "doc:000150", "viewer", "user:u2"); /* of the page that is in, but not confirmed */
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt", "--json")), 0);
    assert_non_null(strstr(out, "going on where an earlier run stopped"));
    json_t *doc = json_of_output(out);
    assert_int_equal(int_at(doc, "counts", "withdrawn"), 1);
    json_decref(doc);
    assert_store_is_ledger(h);
    assert_int_equal(harness_sql_int(h, adopted_job), 1);
}

static void test_adopt_interrupted_goes_on(void **state)
{
    struct harness *h = *state;
    const char *out;
    store_fill(h, 500);
    struct fake_store *f = fake_store_start(h->store_url);
    fake_store_rule(f, &(struct fake_rule){.path = "/read", .action = FAKE_PASS, .delay_ms = 150});
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("adopt"));
    assert_sql_eventually(h, "SELECT position IS NOT NULL AND position::text <> '\"\"' FROM relata.job", "t",
                          harness_ms(WAIT_MS));
    proc_signal(p, SIGTERM);
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 1);
    assert_non_null(strstr(proc_log(p), "the same command goes on there"));
    fake_store_stop(f);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 0);
    assert_store_is_ledger(h);
}

/* A service that holds a tuple of the page for long is waited for, and never held up itself. */
static void test_adopt_waits_for_a_service_without_blocking_others(void **state)
{
    struct harness *h = *state;
    struct err err;
    store_fill(h, 50);
    struct pg *service = harness_connect(h, NULL);
    assert_int_equal(pg_exec(service, "BEGIN; SELECT relata.write_tuple('doc:000030', 'viewer', 'user:u1')",
                             deadline_in_ms(10000), &err),
                     ST_OK);
    struct proc *p = ctl_start(h, NULL, CTL("adopt"));
    assert_sql_eventually(
        h,
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name "
        "= 'relatactl' AND wait_event_type = 'Lock'",
        "t", harness_ms(WAIT_MS));
    grant_one(h, "doc:000001", "viewer", "user:u0"); /* of the same page: comes through */
    assert_int_equal(pg_exec(service, "COMMIT", deadline_in_ms(10000), &err), ST_OK);
    pg_close(service);
    assert_int_equal(proc_wait(p, harness_ms(CTL_MS)), 0);
    assert_store_is_ledger(h);
}

static void test_adopt_gets_through_failures(void **state)
{
    struct harness *h = *state;
    store_fill(h, 900);
    struct fake_store *f = fake_store_start(h->store_url);
    const struct fake_rule rules[] = {
        {.path = "/read", .skip = 1, .times = 1, .action = FAKE_CUT},
        {.path = "/read", .times = 1, .action = FAKE_REPLY, .status = 429, .headers = "Retry-After: 1", .reply = "{}"},
        {.path = "/read", .times = 1, .action = FAKE_REPLY, .status = 503, .reply = ""},
        {.path = "/read", .action = FAKE_PASS, .delay_ms = 60},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        fake_store_rule(f, &rules[i]);
    struct proc *p = ctl_start(h, fake_store_url(f), CTL("adopt"));
    for (int i = 1; i <= 3; i++) {
        assert_sql_eventually(h, harness_strf(h, "SELECT count(*) >= %d FROM relata.tuple", i * 200), "t",
                              harness_ms(WAIT_MS));
        harness_sql(
            h, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND "
               "application_name = 'relatactl'");
    }
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (code != 0)
        fail_msg("exit code %d: %s", code, proc_log(p));
    fake_store_stop(f);
    assert_store_is_ledger(h);
    assert_int_equal(harness_sql_int(h, adopted_job), 1);
}

static void test_adopt_needs_a_pinned_store(void **state)
{
    struct harness *h = *state;
    const char *out;
    harness_sql(h, "DELETE FROM relata.store");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 3);
    assert_non_null(strstr(out, "relatactl store pin"));
    harness_pin(h, "01ARZ3NDEKTSV4RRFFQ69G5FAV", h->model_id);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt")), 3);
    assert_int_equal(ctl_run(h, NULL, &out, CTL("adopt", "--passes", "0")), 2);
}

int main(void)
{
    const unsigned world = HARNESS_DB | HARNESS_STORE;
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_adopt_takes_everything_without_outbox_rows, world),
        HARNESS_TEST(test_adopt_never_overrides_a_service, world),
        HARNESS_TEST(test_adopt_leaves_what_is_not_owned, world),
        HARNESS_TEST(test_adopt_sees_changes_between_read_and_insert, world),
        HARNESS_TEST(test_adopt_sees_another_condition_between_read_and_insert, world),
        HARNESS_TEST(test_adopt_leaves_a_row_that_a_service_took_over, world),
        HARNESS_TEST(test_adopt_killed_before_confirming_confirms_later, world),
        HARNESS_TEST(test_adopt_interrupted_goes_on, world),
        HARNESS_TEST(test_adopt_waits_for_a_service_without_blocking_others, world),
        HARNESS_TEST(test_adopt_gets_through_failures, world),
        HARNESS_TEST(test_adopt_needs_a_pinned_store, world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
