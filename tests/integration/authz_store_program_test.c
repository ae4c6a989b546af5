/* authz_store_program_test.c - authz-store as it is run: with its own role, ended under load, one standing by for
 * another. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tests/harness/proc.h"

#define WAIT_MS 20000
#define WRITERS 6

static const char *login(struct harness *h, const char *group)
{
    const char *role = harness_strf(h, "%.40s_%s", h->id, group + strlen("relata_"));

    harness_sqlf(h, "CREATE ROLE %s LOGIN PASSWORD 'x' IN ROLE %s", role, group);
    return role;
}

static void drop(struct harness *h, const char *role)
{
    harness_sqlf(h, "DROP ROLE %s", role);
}

static const char *url_file(struct harness *h, const char *name)
{
    return harness_strf(h, "%s/%s.url", h->dir, name);
}

static struct proc *start(struct harness *h, const char *role, const char *name)
{
    const char *dsn = role ? harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL) : h->dsn;

    return authz_store_start(h, "--set", harness_strf(h, "pg.dsn=%s", dsn), "--set",
                             harness_strf(h, "http.url_file=%s", url_file(h, name)), "--set",
                             harness_strf(h, "stores.name=%s", name), "--set", "stores.lease=1s", NULL);
}

static const char *line_of(struct harness *h, const char *path)
{
    char line[256] = "";
    mono_us give_up = deadline_in_ms(harness_ms(WAIT_MS));

    while (!*line && clock_mono_us() < give_up) {
        FILE *f = fopen(path, "re");
        if (!f || !fgets(line, sizeof line, f))
            *line = '\0';
        if (f)
            (void)fclose(f);
        if (!*line)
            usleep(5000);
    }
    line[strcspn(line, "\n")] = '\0';
    return harness_strf(h, "%s", line);
}

/* The harness's client, at this URL. */
static void look_at(struct harness *h, struct cfg_store *cfg, const char *url)
{
    struct err err;
    static char none[] = "", name[] = "default";

    store_conn_free(h->store_conn);
    store_free(h->store);
    *cfg = (struct cfg_store){.url = (char *)(uintptr_t)url,
                              .name = name,
                              .token = none,
                              .oidc_token_url = none,
                              .oidc_client_id = none,
                              .oidc_client_secret = none,
                              .oidc_audience = none,
                              .oidc_scope = none,
                              .ca_file = none,
                              .cert_file = none,
                              .key_file = none,
                              .connect_timeout_ms = harness_ms(2000),
                              .request_timeout_ms = harness_ms(10000),
                              .late_window_ms = 4000};
    h->store_conn = NULL;
    assert_int_equal(store_new(&h->store, cfg, &err), ST_OK);
    assert_int_equal(store_conn_new(&h->store_conn, h->store, "", &err), ST_OK);
    if (h->store_id)
        assert_int_equal(store_conn_use(h->store_conn, h->store_id, &err), ST_OK);
}

static void make_store(struct harness *h)
{
    char *id = NULL, *model = NULL;
    struct err err;

    if (store_create(h->store_conn, "program", &id, deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    h->store_id = harness_strf(h, "%s", id);
    assert_int_equal(store_conn_use(h->store_conn, id, &err), ST_OK);
    if (store_write_model(h->store_conn, harness_model, &model, deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    h->model_id = harness_strf(h, "%s", model);
    free(id);
    free(model);
}

struct loader {
    struct harness *h;
    struct store_conn *conn;
    pthread_t thread;
    int number, acked;
    enum status last;
};

/* One tuple after the other, until the first that is not acknowledged. */
static void *load(void *arg)
{
    struct loader *l = arg;
    char object[32];
    struct err err;

    for (;; l->acked++) {
        (void)snprintf(object, sizeof object, "doc:%d-%d", l->number, l->acked);
        const struct store_tuple t = {{object, "viewer", "user:a"}, NULL, NULL};
        l->last = store_write(l->conn, l->h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(5000)), &err);
        if (l->last != ST_OK)
            return NULL;
    }
}

static void assert_has_all(struct harness *h, const struct loader *l)
{
    char object[32];
    bool allowed = false;
    struct err err;

    for (int i = 0; i < l->acked; i++) {
        (void)snprintf(object, sizeof object, "doc:%d-%d", l->number, i);
        if (store_check(h->store_conn, h->model_id, &(struct tuple_key){object, "viewer", "user:a"}, false, &allowed,
                        deadline_in_ms(harness_ms(5000)), &err) != ST_OK)
            fail_msg("%s: %s", object, err.text);
        assert_true(allowed);
    }
}

/* SIGTERM while it is written to: what was begun is finished, what was acknowledged is there, the other one goes on at
 * once. */
static void test_ended_under_load_the_other_goes_on(void **state)
{
    struct harness *h = *state;
    static struct cfg_store cfg;
    struct loader loaders[WRITERS];
    char *nothing = NULL;
    struct err err;

    assert_int_equal(relatactl(h, NULL, "migrate", "--store", NULL), 0);
    const char *role = login(h, "relata_store");
    struct proc *one = start(h, role, "one");
    proc_ready_wait(one, WAIT_MS);
    struct proc *two = start(h, role, "two");
    assert_logged(two, "standing by", WAIT_MS);
    const char *first = line_of(h, url_file(h, "one")), *second = line_of(h, url_file(h, "two"));
    assert_int_equal(proc_get(two, "/readyz", NULL), 503);
    look_at(h, &cfg, second);
    assert_int_equal(store_create(h->store_conn, "nowhere", &nothing, deadline_in_ms(WAIT_MS), &err), ST_UNKNOWN);
    look_at(h, &cfg, first);
    make_store(h);
    for (int i = 0; i < WRITERS; i++) {
        loaders[i] = (struct loader){.h = h, .number = i};
        assert_int_equal(store_conn_new(&loaders[i].conn, h->store, h->store_id, &err), ST_OK);
        assert_int_equal(pthread_create(&loaders[i].thread, NULL, load, &loaders[i]), 0);
    }
    usleep((unsigned)harness_ms(300) * 1000);
    proc_stop(one); /* exit code 0 */
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(loaders[i].thread, NULL);
        store_conn_free(loaders[i].conn);
        assert_true(loaders[i].acked > 0);
    }
    proc_ready_wait(two, WAIT_MS);
    look_at(h, &cfg, second);
    for (int i = 0; i < WRITERS; i++)
        assert_has_all(h, &loaders[i]);
    assert_true(proc_metric(two, "relata_store_active") == 1);
    proc_stop(two);
    drop(h, role);
}

static bool denied(struct harness *h, const char *role, const char *sql)
{
    struct pg *pg = harness_connect(h, harness_dsn(h, role ? harness_strf(h, "%s:x", role) : NULL, NULL, NULL));
    struct err err;
    enum status st = pg_exec(pg, sql, deadline_in_ms(10000), &err);

    pg_close(pg);
    return st == ST_DENIED;
}

static void test_roles_may_do_no_more_than_they_need(void **state)
{
    struct harness *h = *state;
    static const char *const all[] = {"store",  "model",  "assertion", "tuple",
                                      "change", "leader", "takeover",  "migration"};

    assert_int_equal(relatactl(h, NULL, "migrate", "--store", NULL), 0);
    const char *role = login(h, "relata_store"), *reader = login(h, "relata_store_reader");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(denied(h, role, harness_strf(h, "TRUNCATE relata_store.%s", all[i])));
        assert_true(denied(h, role, harness_strf(h, "DROP TABLE relata_store.%s", all[i])) ||
                    denied(h, role, harness_strf(h, "ALTER TABLE relata_store.%s ADD x int", all[i])));
        assert_true(denied(h, reader, harness_strf(h, "DELETE FROM relata_store.%s", all[i])));
    }
    assert_true(denied(h, role, "CREATE TABLE relata_store.x (a int)"));
    assert_true(denied(h, role, "UPDATE relata_store.change SET removed = false"));
    assert_true(denied(h, role, "DELETE FROM relata_store.leader"));
    assert_true(denied(h, reader, "SELECT token_key FROM relata_store.leader"));
    assert_true(denied(h, reader, "INSERT INTO relata_store.tuple VALUES ('s', 'o', 'r', 'u', NULL, NULL, now())"));
    assert_false(denied(h, reader, "SELECT * FROM relata_store.tuple"));
    drop(h, role);
    drop(h, reader);
}

/* Not migrated, and no such database: it says so, and goes on when it is. */
static void test_it_waits_for_its_schema(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, NULL, "early");

    assert_logged(p, "not in step with Postgres", WAIT_MS);
    assert_int_equal(proc_get(p, "/readyz", NULL), 503);
    assert_int_equal(proc_get(p, "/healthz", NULL), 200);
    assert_int_equal(relatactl(h, NULL, "migrate", "--store", NULL), 0);
    proc_ready_wait(p, WAIT_MS);
    proc_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_ended_under_load_the_other_goes_on, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_roles_may_do_no_more_than_they_need, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_it_waits_for_its_schema, HARNESS_EMPTY_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
