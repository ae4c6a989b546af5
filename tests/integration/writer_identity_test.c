/*
 * writer_identity_test.c - a store that is not the one that was written to stops the writer, before it does harm.
 */
#include "tests/integration/writer_helpers.h"

static void fill(struct harness *h, int n)
{
    harness_sqlf(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, %d) i", n);
}

static void delete_from_store(struct harness *h, const char *object)
{
    const struct tuple_key key = {object, "viewer", "user:x"};
    struct err err;
    assert_int_equal(store_write(h->store_conn, h->model_id, NULL, 0, &key, 1, deadline_in_ms(harness_ms(10000)), &err),
                     ST_OK);
}

static void write_to_store(struct harness *h, const char *object)
{
    const struct store_tuple t = {{object, "viewer", "user:x"}, NULL, NULL};
    struct err err;
    assert_int_equal(store_write(h->store_conn, h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(10000)), &err),
                     ST_OK);
}

/* Changes one after another, until `n` of them have been recorded as applied last. */
static void fill_probes(struct harness *h, int n)
{
    for (int i = 0; i < 100; i++) {
        grant_tuple(h, harness_strf(h, "doc:p%d", i), "viewer", "user:x");
        assert_converged(h, CONVERGE_MS);
        if (harness_sql_int(h, "SELECT count(*) FROM relata.probe") >= n)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    fail_msg("no probes are written");
}

static void assert_all_pending(struct harness *h, int64_t n)
{
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), n);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.inflight"), 0);
}

static void test_nothing_is_sent_before_a_store_is_pinned(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "DELETE FROM relata.store");
    fill(h, 3);
    struct proc *w = writer_start(h, NULL);
    assert_unready_eventually(w, "relatactl store pin");
    assert_all_pending(h, 3);
    harness_sqlf(h, "INSERT INTO relata.store (name, store_id, model_id) VALUES ('default', '%s', '%s')", h->store_id,
                 h->model_id);
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    proc_stop(w);
}

static void test_S04_a_store_id_with_one_wrong_character(void **state)
{
    struct harness *h = *state;
    char *wrong = strdup(h->store_id);
    wrong[20] = wrong[20] == '7' ? '8' : '7';
    harness_pin(h, wrong, h->model_id);
    free(wrong);
    fill(h, 3);
    struct proc *w = writer_start(h, NULL);
    assert_unready_eventually(w, "store_id_not_found");
    assert_all_pending(h, 3);
    harness_pin(h, h->store_id, h->model_id); /* S05: what counts is what Postgres says, also while running */
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
}

static void test_a_model_that_does_not_exist(void **state)
{
    struct harness *h = *state;
    harness_pin(h, h->store_id, h->store_id);
    fill(h, 3);
    struct proc *w = writer_start(h, NULL);
    assert_unready_eventually(w, "authorization_model_not_found");
    assert_all_pending(h, 3);
    harness_pin(h, h->store_id, h->model_id);
    assert_converged(h, CONVERGE_MS);
    proc_stop(w);
}

/* S01, S02: the server loses its memory while nothing is being sent. */
static void test_S02_a_wiped_store_is_noticed_without_traffic(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, "--set", "writer.verify_interval=300ms", NULL);
    fill(h, 3);
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    harness_service(h, "restart", "openfga");
    assert_unready_eventually(w, "store_id_not_found");
    grant_tuple(h, "doc:new", "viewer", "user:x");
    assert_logged(w, "writes to the store stopped", WAIT_MS);
    assert_all_pending(h, 1);
    proc_stop(w);
}

/* S05: another store, with the same model, behind the same name: nothing of ours is in it. */
static void test_S05_an_empty_store_in_place_of_ours(void **state)
{
    struct harness *h = *state;
    const char *other, *model;
    struct proc *w = writer_start(h, NULL);
    fill_probes(h, 2);
    proc_stop(w);
    harness_store_new(h, NULL, &other, &model);
    harness_pin(h, other, model);
    grant_tuple(h, "doc:new", "viewer", "user:x");
    w = writer_start(h, NULL);
    assert_unready_eventually(w, "relatactl seed");
    assert_all_pending(h, 1);
    harness_pin(h, h->store_id, h->model_id);
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    proc_stop(w);
}

/* A backup was restored: what was applied last is not there. Filling it again is all that it takes to go on. */
static void test_a_restored_store_lacks_the_last_change(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, NULL);
    fill_probes(h, 4);
    proc_stop(w);
    const char *last = harness_sql_text(h, "SELECT object FROM relata.probe ORDER BY applied_at DESC LIMIT 1");
    delete_from_store(h, last);
    grant_tuple(h, "doc:new", "viewer", "user:x");
    w = writer_start(h, NULL);
    assert_unready_eventually(w, last);
    assert_all_pending(h, 1);
    write_to_store(h, last);
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    proc_stop(w);
}

/* One tuple that somebody else removed is drift, not another store. */
static void test_one_removed_tuple_is_counted_as_drift(void **state)
{
    struct harness *h = *state;
    struct proc *w = writer_start(h, "--set", "writer.verify_interval=300ms", NULL);
    fill_probes(h, 4);
    delete_from_store(h, harness_sql_text(h, "SELECT object FROM relata.probe ORDER BY applied_at LIMIT 1"));
    assert_metric_eventually(w, "relata_writer_store_drift", 1, WAIT_MS);
    assert_logged(w, "somebody else writes to it", WAIT_MS);
    grant_tuple(h, "doc:new", "viewer", "user:x");
    assert_presence_eventually(h, true, "doc:new", "viewer", "user:x");
    proc_ready_wait(w, WAIT_MS);
    proc_stop(w);
}

/* After an outage the store is verified before the first Write. */
static void test_a_store_that_was_swapped_during_an_outage_gets_no_write(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct proc *w =
        writer_start(h, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "store.late_window=200ms",
                     "--set", "writer.circuit_failures=2", "--set", "writer.retry_min=5ms", NULL);
    fill_probes(h, 3);
    fake_store_rule(f, &(struct fake_rule){.action = FAKE_CUT});
    grant_tuple(h, "doc:new", "viewer", "user:x");
    assert_unready_eventually(w, "cannot be verified");
    for (int i = 0; i < 100; i++) { /* the store comes back from a backup */
        const char *object = harness_strf(h, "doc:p%d", i);
        if (store_has(h, object, "viewer", "user:x"))
            delete_from_store(h, object);
    }
    int writes = write_count(f);
    fake_store_clear(f);
    assert_unready_eventually(w, "wiped, restored or swapped");
    assert_int_equal(write_count(f), writes);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 1);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
    fake_store_stop(f);
}

/* From the commit of another pin on, nothing more goes to the former store, whether the writer has heard of it or not.
 */
static void test_a_change_of_the_pins_transaction_goes_to_the_new_store(void **state)
{
    struct harness *h = *state;
    const char *store, *model;
    struct err err;
    harness_store_new(h, NULL, &store, &model);
    struct proc *w = writer_start(h, NULL);
    proc_ready_wait(w, WAIT_MS);
    harness_sqlf(h,
                 "UPDATE relata.store SET store_id = '%s', model_id = '%s'; "
                 "SELECT relata.write_tuple('doc:new', 'viewer', 'user:x')",
                 store, model);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS);
    assert_false(store_has(h, "doc:new", "viewer", "user:x"));
    assert_int_equal(store_conn_use(h->store_conn, store, &err), ST_OK);
    assert_true(store_has(h, "doc:new", "viewer", "user:x"));
    proc_stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_nothing_is_sent_before_a_store_is_pinned, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_S04_a_store_id_with_one_wrong_character, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_model_that_does_not_exist, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_S02_a_wiped_store_is_noticed_without_traffic,
                     HARNESS_DB | HARNESS_STORE | HARNESS_OWN_OPENFGA),
        HARNESS_TEST(test_S05_an_empty_store_in_place_of_ours, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_restored_store_lacks_the_last_change, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_one_removed_tuple_is_counted_as_drift, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_store_that_was_swapped_during_an_outage_gets_no_write, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_a_change_of_the_pins_transaction_goes_to_the_new_store, HARNESS_DB | HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
