/*
 * writer_errors_test.c - what the store answers, and what tuple-writer makes of it: by class, never by text.
 */
#include "tests/integration/writer_helpers.h"

struct scene {
    struct harness *h;
    struct fake_store *f;
    struct proc *w;
};

/* A writer in front of which answers are scripted; a short late window, one lane unless `more` says otherwise. */
static struct scene scene_open(void **state, const char *key, const char *value)
{
    struct scene s = {.h = *state};
    s.f = fake_store_start(s.h->store_url);
    s.w = writer_start(s.h, "--set", harness_strf(s.h, "store.url=%s", fake_store_url(s.f)), "--set",
                       "store.late_window=300ms", "--set", "writer.lanes=1", "--set", "writer.retry_max=200ms", "--set",
                       "writer.circuit_failures=50", "--set", harness_strf(s.h, "%s=%s", key, value), NULL);
    proc_ready_wait(s.w, WAIT_MS);
    return s;
}

static void scene_close(struct scene *s)
{
    proc_stop(s->w);
    fake_store_stop(s->f);
}

static void hundred_grants(struct harness *h)
{
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) SELECT 'write', 'doc:1', 'viewer', "
                   "'user:' || i FROM generate_series(1, 100) i");
}

static void assert_nothing_parked(struct harness *h)
{
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
}

static void test_W25_an_outage_splits_nothing(void **state)
{
    struct scene s = scene_open(state, "writer.retry_min", "10ms");
    fake_store_rule(s.f, &(struct fake_rule){.path = "/write", .times = 3, .action = FAKE_REPLY, .status = 503});
    int before = write_count(s.f);
    hundred_grants(s.h);
    assert_converged(s.h, CONVERGE_MS);
    for (int i = before; i < write_count(s.f); i++)
        assert_int_equal(write_size(s.f, i), 100);
    assert_true(proc_metric(s.w, "relata_writer_retries_total{class=\"unknown\"}") == 3);
    assert_true(proc_metric(s.w, "relata_writer_halved_total") == 0);
    assert_nothing_parked(s.h);
    scene_close(&s);
}

static const char *retry_after_date(struct harness *h)
{
    char when[64];
    time_t at = (time_t)(clock_wall_us() / 1000000 + 3);
    struct tm tm;
    gmtime_r(&at, &tm);
    strftime(when, sizeof when, "Retry-After: %a, %d %b %Y %H:%M:%S GMT", &tm);
    return harness_strf(h, "%s", when);
}

/* headers: NULL = a date 3 s ahead, counted from when the writer is ready. */
static void check_retry_after(void **state, const char *headers, int at_least_ms)
{
    struct scene s = scene_open(state, "writer.retry_min", "1ms");
    int rule =
        fake_store_rule(s.f, &(struct fake_rule){.path = "/write",
                                                 .times = 1,
                                                 .action = FAKE_REPLY,
                                                 .status = 429,
                                                 .headers = headers ? headers : retry_after_date(s.h),
                                                 .reply = "{\"code\":\"rate_limit_exceeded\",\"message\":\"\"}"});
    int before = write_count(s.f);
    mono_us start = clock_mono_us();
    grant_tuple(s.h, "doc:1", "viewer", "user:x");
    assert_rule_used(s.f, rule, 1);
    assert_converged(s.h, CONVERGE_MS);
    assert_true(clock_mono_us() - start > 1000 * at_least_ms); /* not before it was asked to: a bound from below */
    assert_int_equal(write_count(s.f) - before, 2);
    assert_true(proc_metric(s.w, "relata_writer_retries_total{class=\"throttled\"}") == 1);
    scene_close(&s);
}

static void test_W26_retry_after_is_obeyed_and_reset_is_not_read(void **state)
{
    check_retry_after(state, "Retry-After: 2\nx-ratelimit-reset: 1725260000", 900);
}

static void test_W26_retry_after_as_a_date(void **state)
{
    check_retry_after(state, NULL, 500);
}

/* Five writers of one new tuple at once: the losers get 409 although nothing is wrong. */
static void test_W16_a_lost_race_is_tried_again(void **state)
{
    struct scene s = scene_open(state, "writer.retry_min", "1ms");
    fake_store_rule(s.f,
                    &(struct fake_rule){.path = "/write",
                                        .times = 3,
                                        .action = FAKE_REPLY,
                                        .status = 409,
                                        .reply = "{\"code\":\"Aborted\",\"message\":\"transactional write failed\"}"});
    hundred_grants(s.h);
    assert_converged(s.h, CONVERGE_MS);
    assert_true(proc_metric(s.w, "relata_writer_conditions_replaced_total") == 0);
    assert_nothing_parked(s.h);
    scene_close(&s);
}

static void test_W41_versions_of_a_conflict(void **state)
{
    struct scene s = scene_open(state, "writer.retry_min", "1ms");
    fake_store_rule(s.f, &(struct fake_rule){.path = "/write",
                                             .times = 1,
                                             .action = FAKE_REPLY,
                                             .status = 500,
                                             .reply = "{\"code\":\"internal_error\",\"message\":\"conflict\"}"});
    fake_store_rule(s.f,
                    &(struct fake_rule){.path = "/write",
                                        .times = 1,
                                        .action = FAKE_REPLY,
                                        .status = 400,
                                        .reply = "{\"code\":\"write_failed_due_to_invalid_input\",\"message\":\"\"}"});
    hundred_grants(s.h);
    assert_converged(s.h, CONVERGE_MS);
    assert_nothing_parked(s.h);
    scene_close(&s);
}

/* The answer is lost, the effect is there: unknown, tried again, acknowledged only after the late window. */
static void test_W23_a_lost_answer_is_an_unknown_outcome(void **state)
{
    struct scene s = scene_open(state, "store.late_window", harness_strf(*state, "%dms", harness_ms(6000)));
    int rule = fake_store_rule(s.f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_CUT_AFTER});
    grant_tuple(s.h, "doc:1", "viewer", "user:x");
    assert_rule_used(s.f, rule, 1);
    assert_metric_eventually(s.w, "relata_writer_late_open", 1, WAIT_MS);
    assert_int_equal(harness_sql_int(s.h, "SELECT count(*) FROM relata.outbox"), 1); /* its token still waits */
    assert_int_equal(harness_sql_int(s.h, "SELECT count(*) FROM relata.inflight"), 1);
    assert_converged(s.h, CONVERGE_MS);
    assert_true(proc_metric(s.w, "relata_writer_unknown_outcomes_total") == 1);
    assert_metric_eventually(s.w, "relata_writer_late_batches_total", 1, WAIT_MS); /* counted once acknowledged */
    assert_true(proc_metric(s.w, "relata_writer_late_batches_total") == 1);
    assert_true(proc_metric(s.w, "relata_writer_late_effects_undone_total") == 0);
    assert_nothing_parked(s.h);
    scene_close(&s);
}

static bool none_late(void *arg)
{
    return fake_store_late_pending(arg) == 0;
}

/*
 * A grant times out and is tried again with success; the tuple is revoked; then the first request takes effect after
 * all. The revocation is sent at once, but acknowledged only when the late effect has been undone.
 */
static void test_W22_a_late_grant_is_undone(void **state)
{
    struct scene s = scene_open(state, "store.request_timeout", harness_strf(*state, "%dms", harness_ms(500)));
    struct harness *h = s.h;
    proc_stop(s.w);
    s.w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(s.f)), "--set",
                       harness_strf(h, "store.request_timeout=%dms", harness_ms(500)), "--set",
                       harness_strf(h, "store.late_window=%dms", harness_ms(10000)), NULL);
    proc_ready_wait(s.w, WAIT_MS);
    int late = fake_store_rule(
        s.f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_LATE, .delay_ms = harness_ms(5000)});
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_rule_used(s.f, late, 1);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x"); /* by the second try */
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    assert_presence_eventually(h, false, "doc:1", "viewer", "user:x");
    assert_true(harness_sql_int(h, "SELECT count(*) FROM relata.outbox") > 0);
    assert_eventually(none_late, s.f, WAIT_MS);
    assert_presence_eventually(h, true, "doc:1", "viewer", "user:x"); /* the old state is back .. */
    assert_converged(h, CONVERGE_MS);                                 /* .. and undone */
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    assert_true(proc_metric(s.w, "relata_writer_late_effects_undone_total") == 1);
    assert_logged(s.w, "undid a late effect", WAIT_MS);
    scene_close(&s);
}

/* A newer change of a late key is applied at once; other keys are acknowledged as ever. */
static void test_W22_others_are_not_held_up_by_a_late_batch(void **state)
{
    struct scene s = scene_open(state, "store.late_window", harness_strf(*state, "%dms", harness_ms(8000)));
    fake_store_rule(s.f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_CUT_AFTER});
    grant_tuple(s.h, "doc:late", "viewer", "user:x");
    assert_metric_eventually(s.w, "relata_writer_late_open", 1, WAIT_MS);
    grant_tuple(s.h, "doc:other", "viewer", "user:x");
    assert_sql_eventually(s.h, "SELECT string_agg(object, ' ') FROM relata.outbox", "doc:late", WAIT_MS);
    revoke_tuple(s.h, "doc:late", "viewer", "user:x");
    assert_presence_eventually(s.h, false, "doc:late", "viewer", "user:x");
    assert_int_equal(harness_sql_int(s.h, "SELECT count(*) FROM relata.outbox WHERE object = 'doc:late'"), 2);
    assert_converged(s.h, CONVERGE_MS);
    scene_close(&s);
}

static void check_denied(void **state, int status, const char *reply, const char *reason)
{
    struct scene s = scene_open(state, "writer.retry_min", "10ms");
    fake_store_rule(s.f, &(struct fake_rule){.path = "/write", .action = FAKE_REPLY, .status = status, .reply = reply});
    hundred_grants(s.h);
    assert_unready_eventually(s.w, reason);
    assert_int_equal(harness_sql_int(s.h, "SELECT count(*) FROM relata.outbox"), 100);
    assert_nothing_parked(s.h);
    fake_store_clear(s.f);
    assert_converged(s.h, CONVERGE_MS);
    proc_ready_wait(s.w, WAIT_MS);
    assert_nothing_parked(s.h);
    scene_close(&s);
}

static void test_401_stops_and_parks_nothing(void **state)
{
    check_denied(state, 401, "{\"code\":\"unauthenticated\",\"message\":\"bad key\"}", "401");
}

static void test_S01_no_model_stops_and_parks_nothing(void **state)
{
    check_denied(state, 400, "{\"code\":\"latest_authorization_model_not_found\",\"message\":\"\"}",
                 "latest_authorization_model_not_found");
}

static void test_S01_no_store_stops_and_parks_nothing(void **state)
{
    check_denied(state, 404, "{\"code\":\"store_id_not_found\",\"message\":\"\"}", "store_id_not_found");
}

/* A code that no version known has: nothing is concluded from it about the tuples. */
static void test_an_unknown_400_stops_and_parks_nothing(void **state)
{
    check_denied(state, 400, "{\"code\":\"a_code_of_a_later_version\",\"message\":\"\"}", "a_code_of_a_later_version");
}

/* A gateway with too low a limit, for a while: a tuple alone is not parked for its size. */
static void test_one_tuple_is_never_too_large(void **state)
{
    struct scene s = scene_open(state, "writer.retry_min", "10ms");
    int rule = fake_store_rule(
        s.f, &(struct fake_rule){.path = "/write", .times = 3, .action = FAKE_REPLY, .status = 413, .reply = ""});
    grant_tuple(s.h, "doc:1", "viewer", "user:x");
    assert_rule_used(s.f, rule, 3);
    assert_converged(s.h, CONVERGE_MS);
    assert_true(store_has(s.h, "doc:1", "viewer", "user:x"));
    assert_nothing_parked(s.h);
    scene_close(&s);
}

static bool others_done(void *arg)
{
    return harness_sql_int(arg, "SELECT count(*) FROM relata.outbox WHERE object <> 'doc:poison'") == 0;
}

/* A change that the store answers with 500 for ever: its lane waits, the others go on with all but its object, and
 * memory stays bounded. */
static void test_a_change_that_always_fails_holds_up_its_object_alone(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  "store.late_window=200ms", "--set", "writer.lanes=4", "--set", "writer.window=400",
                                  "--set", "writer.retry_max=200ms", "--set", "writer.circuit_failures=3", NULL);
    proc_ready_wait(w, WAIT_MS);
    fake_store_rule(f, &(struct fake_rule){.path = "/write",
                                           .body = "doc:poison",
                                           .action = FAKE_REPLY,
                                           .status = 500,
                                           .reply = "{\"code\":\"internal_error\",\"message\":\"\"}"});
    grant_tuple(h, "doc:poison", "viewer", "user:x");
    assert_unready_eventually(w, "calls of one lane failed in a row");
    harness_sql(h, "SELECT relata.write_tuple('doc:poison', 'viewer', 'user:' || i) FROM generate_series(1, 2000) i");
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 1000) i");
    if (!eventually(others_done, h, 2 * WAIT_MS))
        fail_msg("%lld changes are pending", (long long)harness_sql_int(h, "SELECT count(*) FROM relata.outbox"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 2001);
    assert_true(proc_metric(w, "relata_writer_keys_held") <= 1400); /* window and a page */
    assert_true(proc_metric(w, "relata_writer_hints_dropped_total") > 0);
    assert_metric_eventually(w, "relata_writer_lane_failing_seconds", 1, WAIT_MS);
    assert_logged(w, "a lane gets nowhere", WAIT_MS);
    assert_nothing_parked(h);
    fake_store_clear(f);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 3001);
    proc_ready_wait(w, WAIT_MS);
    proc_stop(w);
    fake_store_stop(f);
}

static bool others_acknowledged(void *arg)
{
    return harness_sql_int(arg, "SELECT count(*) FROM relata.outbox WHERE object <> 'doc:1'") == 0;
}

/* Twenty objects wait for their late window; when it is over, one of them is under way in a lane that gets nowhere,
 * mostly the one that wrote all twenty. The others are written again and acknowledged. */
static void test_a_late_batch_does_not_wait_for_one_of_its_objects(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w = writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set",
                                  harness_strf(h, "store.late_window=%dms", harness_ms(1500)), "--set",
                                  "writer.retry_max=200ms", "--set", "writer.circuit_failures=1000", NULL);
    proc_ready_wait(w, WAIT_MS);
    int cut =
        fake_store_rule(f, &(struct fake_rule){.path = "/write", .body = "doc:", .times = 1, .action = FAKE_CUT_AFTER});
    int poison = fake_store_rule(f, &(struct fake_rule){.path = "/write",
                                                        .body = "user:poison",
                                                        .action = FAKE_REPLY,
                                                        .status = 500,
                                                        .reply = "{\"code\":\"internal_error\",\"message\":\"\"}"});
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 20) i");
    assert_rule_used(f, cut, 1);
    grant_tuple(h, "doc:1", "viewer", "user:poison");
    assert_rule_used(f, poison, 1);
    assert_eventually(others_acknowledged, h, 2 * WAIT_MS);
    assert_in_range(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 1, 2);
    fake_store_clear(f);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 21);
    proc_stop(w);
    fake_store_stop(f);
}

/* The store hangs, then answers nothing at all: the circuit opens, says so, and closes by itself. */
static void test_circuit_opens_and_closes(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w =
        writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "store.late_window=200ms",
                     "--set", "writer.retry_min=5ms", "--set", "writer.circuit_failures=3", NULL);
    proc_ready_wait(w, WAIT_MS);
    fake_store_rule(f, &(struct fake_rule){.action = FAKE_CUT});
    grant_tuple(h, "doc:1", "viewer", "user:x");
    assert_unready_eventually(w, "store:");
    assert_true(proc_metric(w, "relata_writer_circuit_open") == 1);
    int writes = write_count(f);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    struct reason again = {w, "cannot be verified"};
    assert_eventually(has_reason, &again, WAIT_MS);
    assert_int_equal(write_count(f), writes); /* an open circuit sends nothing */
    fake_store_clear(f);
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    assert_true(proc_metric(w, "relata_writer_circuit_open") == 0);
    proc_stop(w);
    fake_store_stop(f);
}

/* W29: a move whose Write fails three times; grants that come meanwhile do not overtake it for ever. */
static void test_W29_a_failing_move_ends_with_one_parent(void **state)
{
    struct scene s = scene_open(state, "writer.retry_min", "10ms");
    grant_tuple(s.h, "doc:t", "parent", "folder:n1");
    assert_converged(s.h, CONVERGE_MS);
    fake_store_rule(s.f, &(struct fake_rule){.path = "/write",
                                             .body = "folder:n1",
                                             .times = 3,
                                             .action = FAKE_REPLY,
                                             .status = 500,
                                             .reply = "{\"code\":\"internal_error\",\"message\":\"\"}"});
    harness_sql(s.h, "BEGIN; SELECT relata.delete_tuple('doc:t', 'parent', 'folder:n1'), "
                     "relata.write_tuple('doc:t', 'parent', 'folder:n2'); COMMIT");
    harness_sql(s.h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 300) i");
    assert_converged(s.h, CONVERGE_MS);
    assert_false(store_has(s.h, "doc:t", "parent", "folder:n1"));
    assert_true(store_has(s.h, "doc:t", "parent", "folder:n2"));
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_W25_an_outage_splits_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W26_retry_after_is_obeyed_and_reset_is_not_read, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W26_retry_after_as_a_date, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W16_a_lost_race_is_tried_again, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W41_versions_of_a_conflict, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W23_a_lost_answer_is_an_unknown_outcome, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W22_a_late_grant_is_undone, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W22_others_are_not_held_up_by_a_late_batch, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_401_stops_and_parks_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_S01_no_model_stops_and_parks_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_S01_no_store_stops_and_parks_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_an_unknown_400_stops_and_parks_nothing, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_one_tuple_is_never_too_large, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_change_that_always_fails_holds_up_its_object_alone, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_late_batch_does_not_wait_for_one_of_its_objects, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_circuit_opens_and_closes, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_W29_a_failing_move_ends_with_one_parent, HARNESS_DB | HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
