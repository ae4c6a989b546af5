/* The store client against a real OpenFGA: every fact that Relata rests on (docs/openfga-notes.md). */
#include "tests/harness/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/proc.h"

#define UNKNOWN_ID "01HVMMBCMGZNT3SED4Z17ECXCA"
#define MODEL                                                                                                          \
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":"           \
    "{\"viewer\":{\"this\":{}},\"reader\":{\"computedUserset\":{\"relation\":\"viewer\"}}},\"metadata\":"              \
    "{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\","             \
    "\"condition\":\"lt\"}]}}}}],\"conditions\":{\"lt\":{\"name\":\"lt\",\"expression\":\"x < 100.0\",\"parameters\":" \
    "{\"x\":{\"type_name\":\"TYPE_NAME_DOUBLE\"},\"m\":{\"type_name\":\"TYPE_NAME_MAP\",\"generic_types\":"            \
    "[{\"type_name\":\"TYPE_NAME_ANY\"}]}}}}}"

/* A store with MODEL. */
struct fga {
    struct harness *h;
    const char *store_id, *model_id;
    struct store_conn *conn;
    struct err err;
};

static void fga_open(struct fga *f, void **state)
{
    *f = (struct fga){.h = *state};
    harness_store_new(f->h, MODEL, &f->store_id, &f->model_id);
    assert_int_equal(store_conn_new(&f->conn, f->h->store, f->store_id, &f->err), ST_OK);
}

static void fga_close(struct fga *f)
{
    store_conn_free(f->conn);
}

static mono_us soon(void)
{
    return deadline_in_ms(harness_ms(15000));
}

static enum status put(struct fga *f, const char *object, const char *subject, const char *context)
{
    struct store_tuple t = {{object, "viewer", subject}, context ? "lt" : NULL, context};
    return store_write(f->conn, f->model_id, &t, 1, NULL, 0, soon(), &f->err);
}

static enum status del(struct fga *f, const char *object, const char *subject)
{
    struct tuple_key k = {object, "viewer", subject};
    return store_write(f->conn, f->model_id, NULL, 0, &k, 1, soon(), &f->err);
}

static bool there(struct fga *f, const char *object, const char *subject)
{
    struct tuple_key k = {object, "viewer", subject};
    bool found = false;

    if (store_read_tuple(f->conn, &k, &found, NULL, soon(), &f->err) != ST_OK)
        fail_msg("%s", f->err.text);
    return found;
}

#define assert_refused(call, want, want_code)                                                                          \
    do {                                                                                                               \
        enum status st_ = (call);                                                                                      \
        if (st_ != (want) || strcmp(f.err.code, want_code) != 0)                                                       \
            fail_msg("%s: %s [%s] %s", #call, status_name(st_), f.err.code, f.err.text);                               \
    } while (0)

/* ---- Write and Read ---- */

static void test_W01_W02_repeated_writes_and_deletes_are_ignored(void **state)
{
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_true(there(&f, "doc:1", "user:a"));
    assert_int_equal(del(&f, "doc:1", "user:a"), ST_OK);
    assert_int_equal(del(&f, "doc:1", "user:a"), ST_OK);
    assert_false(there(&f, "doc:1", "user:a"));
    fga_close(&f);
}

static void test_W40_deleting_one_object_leaves_the_other(void **state)
{
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_int_equal(del(&f, "doc:2", "user:a"), ST_OK);
    assert_true(there(&f, "doc:1", "user:a"));
    fga_close(&f);
}

static void test_W38_ids_are_bytes(void **state)
{
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:jos\xc3\xa9", NULL), ST_OK);
    assert_false(there(&f, "doc:1", "user:jose\xcc\x81"));
    assert_int_equal(del(&f, "doc:1", "user:jose\xcc\x81"), ST_OK);
    assert_true(there(&f, "doc:1", "user:jos\xc3\xa9"));
    fga_close(&f);
}

static void test_W28_a_refused_write_leaves_the_delete_undone(void **state)
{
    struct store_tuple bad = {{"doc:1", "nothing", "user:a"}, NULL, NULL};
    struct tuple_key gone = {"doc:1", "viewer", "user:a"};
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_refused(store_write(f.conn, f.model_id, &bad, 1, &gone, 1, soon(), &f.err), ST_INVALID, "validation_error");
    assert_true(there(&f, "doc:1", "user:a"));
    fga_close(&f);
}

static void test_W07_hundred_writes_and_deletes_together(void **state)
{
    struct store_tuple writes[50];
    struct tuple_key deletes[50];
    char names[100][16];
    struct fga f;

    fga_open(&f, state);
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "user:%03d", i);
        if (i < 50)
            deletes[i] = (struct tuple_key){"doc:1", "viewer", names[i]};
        else
            writes[i - 50] = (struct store_tuple){{"doc:1", "viewer", names[i]}, NULL, NULL};
    }
    assert_int_equal(store_write(f.conn, f.model_id, writes, 50, deletes, 50, soon(), &f.err), ST_OK);
    assert_true(there(&f, "doc:1", "user:099"));
    fga_close(&f);
}

/* Every tuple once, to the end. */
static size_t count_all(struct fga *f)
{
    char *token = strdup(""), *next;
    struct store_tuples page;
    size_t n = 0;

    do {
        if (store_read_page(f->conn, token, &page, &next, soon(), &f->err) != ST_OK)
            fail_msg("%s", f->err.text);
        n += page.len;
        store_tuples_free(&page);
        free(token);
        token = next;
    } while (*token);
    free(token);
    return n;
}

static void test_D16_pages_of_all_tuples(void **state)
{
    struct store_tuple batch[100];
    char names[100][32];
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(count_all(&f), 0);
    for (int round = 0; round < 3; round++) {
        size_t n = round < 2 ? 100 : 30;
        for (size_t i = 0; i < n; i++) {
            snprintf(names[i], sizeof(names[i]), "doc:%d-%03zu", round, i);
            batch[i] = (struct store_tuple){{names[i], "viewer", "user:a"}, NULL, NULL};
        }
        assert_int_equal(store_write(f.conn, f.model_id, batch, n, NULL, 0, soon(), &f.err), ST_OK);
        assert_int_equal(count_all(&f), round < 2 ? (round + 1) * 100 : 230);
    }
    fga_close(&f);
}

static void test_foreign_continuation_token(void **state)
{
    struct store_tuples page;
    struct fga f;
    char *next;

    fga_open(&f, state);
    assert_refused(store_read_page(f.conn, "zzz", &page, &next, soon(), &f.err), ST_INVALID,
                   "invalid_continuation_token");
    fga_close(&f);
}

/* ---- conditions ---- */

static void test_W17_other_condition_is_a_conflict(void **state)
{
    struct tuple_key key = {"doc:1", "viewer", "user:a"};
    struct store_tuples got;
    struct fga f;
    bool found;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", "{\"x\":1}"), ST_OK);
    assert_int_equal(put(&f, "doc:1", "user:a", "{\"x\":1.0}"), ST_OK);
    assert_refused(put(&f, "doc:1", "user:a", "{\"x\":2}"), ST_CONFLICT, "Aborted");
    assert_refused(put(&f, "doc:1", "user:a", NULL), ST_CONFLICT, "Aborted");
    assert_int_equal(store_read_tuple(f.conn, &key, &found, &got, soon(), &f.err), ST_OK);
    assert_true(found);
    assert_string_equal(got.items[0].condition_name, "lt");
    assert_true(store_context_equal(got.items[0].condition_context, "{\"x\":1}"));
    store_tuples_free(&got);
    assert_int_equal(del(&f, "doc:1", "user:a"), ST_OK);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_refused(put(&f, "doc:1", "user:a", "{\"x\":2}"), ST_CONFLICT, "Aborted");
    fga_close(&f);
}

/* Sent without any context, the second of two equal Writes would be a conflict: the client always sends one. */
static void test_condition_without_context_can_be_repeated(void **state)
{
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", ""), ST_OK);
    assert_int_equal(put(&f, "doc:1", "user:a", ""), ST_OK);
    assert_int_equal(put(&f, "doc:1", "user:a", "{}"), ST_OK);
    fga_close(&f);
}

static void test_D29_contexts_come_back_equal(void **state)
{
    static const char *const contexts[] = {
        "{\"x\":0.1}",
        "{\"x\":-0.0}",
        "{\"x\":1e-7}",
        "{\"x\":100000000000000000000}",
        "{\"x\":1e300}",
        "{\"x\":9007199254740993}",
        "{\"x\":9223372036854775808}",
        "{\"m\":{\"b\":[1,2.5,\"\xc3\xa9\",null,true,{\"c\":{}}],\"a\":\"\\\"\\\\/\\u2028<>&\"}}",
    };
    struct fga f;

    fga_open(&f, state);
    for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
        char subject[16];
        struct tuple_key key = {"doc:1", "viewer", subject};
        struct store_tuples got;
        bool found;

        snprintf(subject, sizeof(subject), "user:%zu", i);
        for (int twice = 0; twice < 2; twice++)
            if (put(&f, "doc:1", subject, contexts[i]) != ST_OK)
                fail_msg("%s: %s", contexts[i], f.err.text);
        assert_int_equal(store_read_tuple(f.conn, &key, &found, &got, soon(), &f.err), ST_OK);
        assert_true(found);
        if (!store_context_equal(got.items[0].condition_context, contexts[i]))
            fail_msg("%s came back as %s", contexts[i], got.items[0].condition_context);
        /* What was read can be written again. */
        assert_int_equal(put(&f, "doc:1", subject, got.items[0].condition_context), ST_OK);
        store_tuples_free(&got);
    }
    assert_refused(put(&f, "doc:1", "user:n", "{\"m\":{\"a\":\"\\u0000\"}}"), ST_INVALID, "validation_error");
    fga_close(&f);
}

/* ---- refusals ---- */

static void test_W10_refused_tuples(void **state)
{
    static const struct tuple_key keys[] = {
        {"doc:1", "nothing", "user:a"}, {"doc:1", "reader", "user:a"},     {"nothing:1", "viewer", "user:a"},
        {"doc:1", "viewer", "doc:2"},   {"doc:1", "viewer", "user:*"},     {"doc:1", "viewer", ""},
        {"doc:*", "viewer", "user:a"},  {"doc:1", "viewer", "user:a\x01"}, {"doc", "viewer", "user:a"},
        {"doc:1", "", "user:a"},        {"doc:1", "viewer", "user:a#b#c"}, {"doc:1 2", "viewer", "user:a"},
    };
    struct fga f;

    fga_open(&f, state);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct store_tuple t = {keys[i], NULL, NULL};
        enum status st = store_write(f.conn, f.model_id, &t, 1, NULL, 0, soon(), &f.err);
        if (st != ST_INVALID || strcmp(f.err.code, "validation_error") != 0)
            fail_msg("%zu: %s [%s] %s", i, status_name(st), f.err.code, f.err.text);
    }
    assert_refused(put(&f, "doc:1", "user:a", "{\"y\":1}"), ST_INVALID, "validation_error");
    assert_refused(put(&f, "doc:1", "user:a", "{\"x\":\"s\"}"), ST_INVALID, "validation_error");
    fga_close(&f);
}

static void test_W31_lengths_at_both_ends(void **state)
{
    char object[1200], subject[600];
    struct fga f;

    fga_open(&f, state);
    for (int over = 0; over < 2; over++) {
        char *p = object + snprintf(object, sizeof(object), "doc:");
        for (int i = 0; i < 252 + over; i++, p += 3)
            memcpy(p, "\xe2\x82\xac", 4);
        assert_int_equal(put(&f, object, "user:a", NULL), over ? ST_INVALID : ST_OK);
        memset(subject, 'x', sizeof(subject));
        memcpy(subject, "user:", 5);
        subject[512 + over] = '\0';
        assert_int_equal(put(&f, "doc:1", subject, NULL), over ? ST_INVALID : ST_OK);
    }
    fga_close(&f);
}

static void test_oversize_request(void **state)
{
    struct store_tuple batch[20];
    char names[20][16], *context = malloc(40001);
    struct fga f;

    fga_open(&f, state);
    assert_non_null(context);
    memset(context, 'a', 40000);
    memcpy(context, "{\"m\":{\"a\":\"", 11);
    memcpy(context + 39997, "\"}}", 4);
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof(names[i]), "user:%02d", i);
        batch[i] = (struct store_tuple){{"doc:1", "viewer", names[i]}, "lt", context};
    }
    assert_refused(store_write(f.conn, f.model_id, batch, 20, NULL, 0, soon(), &f.err), ST_TOO_BIG,
                   "resource_exhausted");
    /* Alone, it is over the limit of one context. */
    assert_refused(store_write(f.conn, f.model_id, batch, 1, NULL, 0, soon(), &f.err), ST_INVALID, "validation_error");
    free(context);
    fga_close(&f);
}

/* ---- identity and model ---- */

static void test_S01_S04_unknown_store(void **state)
{
    struct store_tuples page;
    struct fga f;
    char *s;

    fga_open(&f, state);
    assert_int_equal(store_get(f.conn, &s, soon(), &f.err), ST_OK);
    assert_string_equal(s, f.h->id);
    free(s);
    assert_int_equal(store_conn_use(f.conn, UNKNOWN_ID, &f.err), ST_OK);
    assert_refused(store_get(f.conn, &s, soon(), &f.err), ST_MISSING, "store_id_not_found");
    assert_refused(put(&f, "doc:1", "user:a", NULL), ST_MISSING, "authorization_model_not_found");
    assert_refused(del(&f, "doc:1", "user:a"), ST_MISSING, "authorization_model_not_found");
    assert_refused(store_latest_model(f.conn, &s, soon(), &f.err), ST_MISSING, "latest_authorization_model_not_found");
    assert_refused(store_model(f.conn, f.model_id, &s, soon(), &f.err), ST_MISSING, "authorization_model_not_found");
    /* Read does not notice: only GetStore tells that a store is gone. */
    assert_int_equal(store_read_page(f.conn, "", &page, &s, soon(), &f.err), ST_OK);
    assert_int_equal(page.len, 0);
    store_tuples_free(&page);
    free(s);
    fga_close(&f);
}

static void test_unknown_model_and_no_model(void **state)
{
    struct store_tuple t = {{"doc:1", "viewer", "user:a"}, NULL, NULL};
    struct fga f;
    char *id, *model;

    fga_open(&f, state);
    assert_refused(store_write(f.conn, UNKNOWN_ID, &t, 1, NULL, 0, soon(), &f.err), ST_MISSING,
                   "authorization_model_not_found");
    assert_int_equal(store_create(f.conn, "without model", &id, soon(), &f.err), ST_OK);
    assert_int_equal(store_conn_use(f.conn, id, &f.err), ST_OK);
    assert_refused(store_latest_model(f.conn, &model, soon(), &f.err), ST_MISSING,
                   "latest_authorization_model_not_found");
    free(id);
    fga_close(&f);
}

static void test_models_are_kept_and_the_newest_is_found(void **state)
{
    char *text, *id, *latest, *second;
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(store_latest_model(f.conn, &latest, soon(), &f.err), ST_OK);
    assert_string_equal(latest, f.model_id);
    free(latest);
    assert_int_equal(store_model(f.conn, f.model_id, &text, soon(), &f.err), ST_OK);
    assert_non_null(strstr(text, "x < 100.0"));
    /* The text that was read can be written again, into this store or another. */
    assert_int_equal(store_write_model(f.conn, text, &second, soon(), &f.err), ST_OK);
    assert_string_not_equal(second, f.model_id);
    assert_int_equal(store_latest_model(f.conn, &latest, soon(), &f.err), ST_OK);
    assert_string_equal(latest, second);
    assert_refused(store_write_model(f.conn,
                                     "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"a\",\"relations\":"
                                     "{\"x\":{\"computedUserset\":{\"relation\":\"y\"}}}}]}",
                                     &id, soon(), &f.err),
                   ST_INVALID, "invalid_authorization_model");
    free(text);
    free(latest);
    free(second);
    fga_close(&f);
}

static void test_check(void **state)
{
    struct tuple_key key = {"doc:1", "reader", "user:a"};
    struct fga f;
    bool allowed;

    fga_open(&f, state);
    assert_int_equal(store_check(f.conn, f.model_id, &key, true, &allowed, soon(), &f.err), ST_OK);
    assert_false(allowed);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    assert_int_equal(store_check(f.conn, f.model_id, &key, true, &allowed, soon(), &f.err), ST_OK);
    assert_true(allowed);
    key.relation = "nothing";
    assert_refused(store_check(f.conn, f.model_id, &key, false, &allowed, soon(), &f.err), ST_INVALID,
                   "validation_error");
    assert_false(allowed);
    key.relation = "reader";
    assert_refused(store_check(f.conn, UNKNOWN_ID, &key, false, &allowed, soon(), &f.err), ST_MISSING,
                   "authorization_model_not_found");
    fga_close(&f);
}

/* ---- races ---- */

struct racer {
    struct fga f;
    pthread_barrier_t *start;
    int ok, conflicts, others;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    char object[32];

    for (int round = 0; round < 20; round++) {
        enum status st;

        snprintf(object, sizeof(object), "doc:%d", round);
        pthread_barrier_wait(r->start);
        st = put(&r->f, object, "user:a", NULL);
        r->ok += st == ST_OK;
        r->conflicts += st == ST_CONFLICT;
        r->others += st != ST_OK && st != ST_CONFLICT;
    }
    return NULL;
}

static void test_W16_parallel_first_writes(void **state)
{
    struct racer racers[5];
    pthread_barrier_t start;
    pthread_t threads[5];
    struct fga f;
    char object[32];

    fga_open(&f, state);
    pthread_barrier_init(&start, NULL, 5);
    for (int i = 0; i < 5; i++) {
        racers[i] = (struct racer){.f = f, .start = &start};
        assert_int_equal(store_conn_new(&racers[i].f.conn, f.h->store, f.store_id, &f.err), ST_OK);
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(threads[i], NULL);
        if (racers[i].others > 0)
            fail_msg("neither success nor conflict: %s", racers[i].f.err.text);
        assert_int_equal(racers[i].ok + racers[i].conflicts, 20);
        store_conn_free(racers[i].f.conn);
    }
    pthread_barrier_destroy(&start);
    for (int round = 0; round < 20; round++) {
        snprintf(object, sizeof(object), "doc:%d", round);
        assert_true(there(&f, object, "user:a"));
        assert_int_equal(put(&f, object, "user:a", NULL), ST_OK); /* trying again settles it */
    }
    fga_close(&f);
}

/* ---- faults of a private server ---- */

static void test_W23_server_without_its_database(void **state)
{
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    harness_service(f.h, "freeze", "postgres");
    /* OpenFGA gives up after its own request timeout, which is shorter than ours. */
    f.h->store_cfg->request_timeout_ms = harness_ms(30000);
    assert_refused(store_write(f.conn, f.model_id, &(struct store_tuple){{"doc:2", "viewer", "user:a"}, NULL, NULL}, 1,
                               NULL, 0, deadline_in_ms(harness_ms(30000)), &f.err),
                   ST_UNKNOWN, "deadline_exceeded");
    harness_service(f.h, "continue", "postgres");
    assert_int_equal(put(&f, "doc:2", "user:a", NULL), ST_OK);
    assert_true(there(&f, "doc:2", "user:a"));
    fga_close(&f);
}

static void test_W23_frozen_killed_and_restarted_server(void **state)
{
    struct store_tuple t = {{"doc:1", "viewer", "user:a"}, NULL, NULL};
    enum status st;
    struct fga f;

    fga_open(&f, state);
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    harness_service(f.h, "freeze", "openfga");
    assert_int_equal(store_write(f.conn, f.model_id, &t, 1, NULL, 0, deadline_in_ms(300), &f.err), ST_UNKNOWN);
    harness_service(f.h, "continue", "openfga");
    assert_int_equal(put(&f, "doc:1", "user:a", NULL), ST_OK);
    harness_service(f.h, "kill", "openfga");
    /* The dying process may still take a request; from then on there is no connection. */
    for (mono_us until = soon(); (st = put(&f, "doc:1", "user:a", NULL)) != ST_RETRY;)
        if (st != ST_UNKNOWN || clock_mono_us() > until)
            fail_msg("%s: %s", status_name(st), f.err.text);
    /* In memory: the restarted server knows neither store nor model (S01). */
    harness_service(f.h, "start", "openfga");
    assert_refused(put(&f, "doc:1", "user:a", NULL), ST_MISSING, "authorization_model_not_found");
    fga_close(&f);
}

static void test_401_of_a_server_with_preshared_keys(void **state)
{
    static char wrong[] = "key-0", right[] = "key-2";
    struct harness *h = *state;
    const char *dir = harness_strf(h, "%s/keyed", h->dir);
    const char *start[] = {"--openfga=memory",
                           "--openfga-flag=--authn-method=preshared",
                           "--openfga-flag=--authn-preshared-keys=key-1,key-2",
                           "start",
                           dir,
                           "openfga",
                           NULL};
    const char *env[] = {"env", dir, NULL}, *stop[] = {"--now", "stop", dir, NULL}, *out, *url;
    struct cfg_store cfg = *h->store_cfg;
    struct err err = {0};
    enum status without, refused, accepted;
    char *id = NULL, *keys[] = {cfg.token, wrong, right};
    enum status got[3];

    assert_int_equal(proc_run(h, &out, "scripts/services", start), 0);
    assert_int_equal(proc_run(h, &out, "scripts/services", env), 0);
    url = strstr(out, "SERVICES_OPENFGA_URL=");
    assert_non_null(url);
    url += strlen("SERVICES_OPENFGA_URL=");
    cfg.url = strndup(url, strcspn(url, "\n"));
    for (int i = 0; i < 3; i++) {
        struct store *s = NULL;
        struct store_conn *c = NULL;

        cfg.token = keys[i];
        got[i] = store_new(&s, &cfg, &err);
        if (got[i] == ST_OK)
            got[i] = store_conn_new(&c, s, "", &err);
        if (got[i] == ST_OK)
            got[i] = store_create(c, "keyed", &id, soon(), &err);
        store_conn_free(c);
        store_free(s);
    }
    free(cfg.url);
    without = got[0], refused = got[1], accepted = got[2];
    assert_int_equal(proc_run(h, &out, "scripts/services", stop), 0);
    assert_int_equal(without, ST_DENIED);
    assert_int_equal(refused, ST_DENIED);
    assert_int_equal(accepted, ST_OK);
    free(id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_W01_W02_repeated_writes_and_deletes_are_ignored, HARNESS_STORE),
        HARNESS_TEST(test_W40_deleting_one_object_leaves_the_other, HARNESS_STORE),
        HARNESS_TEST(test_W38_ids_are_bytes, HARNESS_STORE),
        HARNESS_TEST(test_W28_a_refused_write_leaves_the_delete_undone, HARNESS_STORE),
        HARNESS_TEST(test_W07_hundred_writes_and_deletes_together, HARNESS_STORE),
        HARNESS_TEST(test_D16_pages_of_all_tuples, HARNESS_STORE),
        HARNESS_TEST(test_foreign_continuation_token, HARNESS_STORE),
        HARNESS_TEST(test_W17_other_condition_is_a_conflict, HARNESS_STORE),
        HARNESS_TEST(test_condition_without_context_can_be_repeated, HARNESS_STORE),
        HARNESS_TEST(test_D29_contexts_come_back_equal, HARNESS_STORE),
        HARNESS_TEST(test_W10_refused_tuples, HARNESS_STORE),
        HARNESS_TEST(test_W31_lengths_at_both_ends, HARNESS_STORE),
        HARNESS_TEST(test_oversize_request, HARNESS_STORE),
        HARNESS_TEST(test_S01_S04_unknown_store, HARNESS_STORE),
        HARNESS_TEST(test_unknown_model_and_no_model, HARNESS_STORE),
        HARNESS_TEST(test_models_are_kept_and_the_newest_is_found, HARNESS_STORE),
        HARNESS_TEST(test_check, HARNESS_STORE),
        HARNESS_TEST(test_W16_parallel_first_writes, HARNESS_STORE),
        HARNESS_TEST(test_W23_server_without_its_database, HARNESS_OWN_PG | HARNESS_OWN_OPENFGA),
        HARNESS_TEST(test_W23_frozen_killed_and_restarted_server, HARNESS_OWN_OPENFGA),
        HARNESS_TEST(test_401_of_a_server_with_preshared_keys, HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
