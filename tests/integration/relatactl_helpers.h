/* relatactl_helpers.h - what the tests of relatactl share. */
#ifndef RELATA_TESTS_RELATACTL_HELPERS_H
#define RELATA_TESTS_RELATACTL_HELPERS_H

#include <jansson.h>
#include <signal.h>

#include "tests/harness/compare.h"
#include "tests/harness/fake_store.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define CTL_MS 60000
#define WAIT_MS 20000
#define CONVERGE_MS 30000

/* relatactl in the background, with the test's database, and a store at `url` (NULL = the test's own). */
static inline struct proc *ctl_start(struct harness *h, const char *url, const char *const *args)
{
    const char *argv[64] = {0};
    size_t n = 0;
    const char *sets[] = {harness_strf(h, "pg.dsn=%s", h->dsn),
                          harness_strf(h, "store.url=%s", url ? url : h->store_url),
                          harness_strf(h, "store.request_timeout=%dms", harness_ms(10000)), "store.late_window=1500ms"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) { /* first, so that the test's own win */
        argv[n++] = "--set";
        argv[n++] = sets[i];
    }
    for (; *args; args++)
        argv[n++] = *args;
    return proc_startv(h, "relatactl", argv);
}
#define CTL(...) ((const char *const[]){__VA_ARGS__, NULL})

/* To its end; the output in *out. */
static inline int ctl_run(struct harness *h, const char *url, const char **out, const char *const *args)
{
    struct proc *p = ctl_start(h, url, args);
    int code = proc_wait(p, harness_ms(CTL_MS));
    if (out)
        *out = harness_strf(h, "%s", proc_log(p));
    return code;
}

/* The JSON document at the end of an output that may begin with progress lines. Free with json_decref. */
static inline json_t *json_of_output(const char *out)
{
    const char *start = out[0] == '{' || out[0] == '[' ? out : strstr(out, "\n{");
    if (!start)
        start = strstr(out, "\n[");
    json_t *doc = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    if (!doc)
        fail_msg("no JSON in: %s", out);
    return doc;
}

static inline int64_t int_at(const json_t *doc, const char *outer, const char *name)
{
    const json_t *v = outer ? json_object_get(json_object_get(doc, outer), name) : json_object_get(doc, name);
    if (!json_is_integer(v))
        fail_msg("no number %s.%s", outer ? outer : "", name);
    return json_integer_value(v);
}

/* Ledger and store are equal, tuple by tuple, whatever is pending. */
static inline void assert_store_is_ledger(struct harness *h)
{
    struct tuple_set *ledger = tuple_set_ledger(h), *store = tuple_set_store(h);
    assert_tuple_sets_equal(ledger, "ledger", store, "store");
    tuple_set_free(ledger);
    tuple_set_free(store);
}

static inline void grant_one(struct harness *h, const char *object, const char *relation, const char *subject)
{
    harness_sqlf(h, "SELECT relata.write_tuple('%s', '%s', '%s')", object, relation, subject);
}

static inline void revoke_one(struct harness *h, const char *object, const char *relation, const char *subject)
{
    harness_sqlf(h, "SELECT relata.delete_tuple('%s', '%s', '%s')", object, relation, subject);
}

/* In the store, behind Relata's back. */
static inline void store_put(struct harness *h, const char *object, const char *relation, const char *subject)
{
    const struct store_tuple t = {.key = {object, relation, subject}};
    struct err err;
    if (store_write(h->store_conn, h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("writing %s: %s", object, err.text);
}

static inline void store_drop(struct harness *h, const char *object, const char *relation, const char *subject)
{
    const struct tuple_key key = {object, relation, subject};
    struct err err;
    if (store_write(h->store_conn, h->model_id, NULL, 0, &key, 1, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("deleting %s: %s", object, err.text);
}

static inline bool store_has(struct harness *h, const char *object, const char *relation, const char *subject)
{
    const struct tuple_key key = {object, relation, subject};
    struct err err;
    bool found = false;
    if (store_read_tuple(h->store_conn, &key, &found, NULL, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("reading %s: %s", object, err.text);
    return found;
}

struct sought {
    struct harness *h;
    struct tuple_key key;
};

static inline bool is_there(void *arg)
{
    const struct sought *s = arg;
    return store_has(s->h, s->key.object, s->key.relation, s->key.subject);
}

static inline void assert_store_has_eventually(struct harness *h, const struct tuple_key *key)
{
    struct sought s = {h, *key};
    assert_eventually(is_there, &s, harness_ms(WAIT_MS));
}

/* `n` grants doc:1.. by one statement. */
static inline void grant_many(struct harness *h, int n)
{
    harness_sqlf(
        h,
        "SELECT relata.write_tuples(array_agg('doc:' || g), array_agg('viewer'::text), array_agg('user:u' || g %% "
        "100)) FROM generate_series(1, %d) AS g",
        n);
}

#endif
