/* authz_store_move_test.c - everything from a real OpenFGA to authz-store and back, by relatactl seed, beside a writer.
 */
#include "tests/integration/relatactl_helpers.h"

/* The harness's store is this one from now on: the one that is pinned. */
static void look_at(struct harness *h, const char *url)
{
    struct err err;

    store_conn_free(h->store_conn);
    store_free(h->store);
    h->store_conn = NULL;
    h->store = NULL;
    h->store_url = url;
    h->store_cfg->url = (char *)(uintptr_t)url;
    h->store_id = harness_sql_text(h, "SELECT store_id FROM relata.store");
    h->model_id = harness_sql_text(h, "SELECT model_id FROM relata.store");
    assert_int_equal(store_new(&h->store, h->store_cfg, &err), ST_OK);
    assert_int_equal(store_conn_new(&h->store_conn, h->store, "", &err), ST_OK);
    assert_int_equal(store_conn_use(h->store_conn, h->store_id, &err), ST_OK);
}

/* The model in force, as the store that is left tells it. */
static const char *model_file(struct harness *h)
{
    const char *file = harness_strf(h, "%s/model.json", h->dir);
    char *json = NULL;
    struct err err;

    assert_int_equal(store_model(h->store_conn, h->model_id, &json, deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs(json, f) >= 0 && fclose(f) == 0);
    free(json);
    return file;
}

/* As docs/authz-store.md says: seed the new one, start the writer at its URL. */
static void move(struct harness *h, const char *url)
{
    const char *out, *file = model_file(h);

    if (ctl_run(h, url, &out, CTL("seed", "--create", "--model", file)) != 0)
        fail_msg("%s", out);
    look_at(h, url);
    assert_store_is_ledger(h);
    struct proc *w = writer_start(h, NULL);
    grant_one(h, "doc:moved", "viewer", harness_strf(h, "user:u%d", (int)(clock_mono_us() % 1000000)));
    revoke_one(h, "doc:1", "viewer", "user:u1");
    assert_converged(h, 20000);
    proc_stop(w);
    if (ctl_run(h, url, &out, CTL("store", "verify", "--full")) != 0)
        fail_msg("%s", out);
}

static void test_to_authz_store_and_back(void **state)
{
    struct harness *h = *state;
    const char *openfga = h->store_url, *authz = getenv("SERVICES_AUTHZ_STORE_URL"), *out;

    assert_non_null(authz);
    grant_many(h, 2500);
    harness_sql(
        h, "SELECT relata.write_tuple('doc:c1', 'viewer', 'user:a', 'in_hours', '{\"from\": 1, \"until\": 9}'), "
           "relata.write_tuple('doc:c2', 'viewer', 'user:a', 'in_hours'), "
           "relata.write_tuple('doc:c3', 'viewer', 'team:x#member'), relata.write_tuple('doc:c4', 'viewer', 'user:*'), "
           "relata.write_tuple('doc:e@\u00fc*', 'viewer', 'user:anne@example.com')");
    assert_int_equal(ctl_run(h, NULL, &out, CTL("seed")), 0);
    assert_store_is_ledger(h);
    move(h, authz);
    move(h, openfga);
    move(h, authz);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_to_authz_store_and_back, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
