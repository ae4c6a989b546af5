/*
 * lister_api_helpers.h - a running inventory-lister over a small inventory, and an HTTP client.
 *
 * Callers (bearer tokens): "t-anne" is user:anne, "t-bob" user:bob, both with right list; "t-admin" has all rights and
 * no subject of its own; "t-t1" is user:anne with the claim tenant = t1, "t-t1d" the same with the right diagnose.
 */
#ifndef RELATA_TESTS_LISTER_API_HELPERS_H
#define RELATA_TESTS_LISTER_API_HELPERS_H

#include <curl/curl.h>
#include <jansson.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define WAIT_MS 30000

struct lister {
    struct harness *h;
    struct proc *p;
    const char *url_file, *keys_file;
    char url[128];
    CURL *curl;
    struct curl_slist *headers; /* for the next requests */
    /* the last answer */
    long status;
    struct buf body, head;
};

/* ---- files ---- */

static inline void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static inline void token_line(struct buf *out, const char *name, const char *token, const char *attributes)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)token, strlen(token), digest);
    buf_addf(out, "%s ", name);
    for (size_t i = 0; i < sizeof(digest); i++)
        buf_addf(out, "%02x", digest[i]);
    buf_addf(out, " %s\n", attributes);
}

static inline const char *tokens_file(struct harness *h)
{
    const char *path = harness_strf(h, "%s/callers", h->dir);
    struct buf text;

    buf_init(&text, 1 << 16);
    token_line(&text, "anne", "t-anne", "subject=user:anne");
    token_line(&text, "bob", "t-bob", "subject=user:bob");
    token_line(&text, "admin", "t-admin", "rights=list,name-subject,diagnose");
    token_line(&text, "tenant1", "t-t1", "subject=user:anne claim.tenant=t1");
    token_line(&text, "tenant1d", "t-t1d", "subject=user:anne rights=list,diagnose claim.tenant=t1");
    write_text(path, buf_str(&text));
    buf_release(&text);
    return path;
}

/* ---- requests ---- */

static inline size_t lister_take(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return size * n;
}

/* `path` begins with '/'; `token` NULL = none; `json` NULL = GET. The status; 0 if there was no answer. */
static inline long lister_request(struct lister *l, const char *path, const char *token, const char *json)
{
    char url[65536], auth[128];
    struct curl_slist *headers = NULL;

    snprintf(url, sizeof(url), "%s%s", l->url, path);
    buf_clear(&l->body);
    buf_clear(&l->head);
    l->status = 0;
    if (token) {
        snprintf(auth, sizeof(auth), "Authorization: Bearer %s", token);
        headers = curl_slist_append(headers, auth);
    }
    if (json)
        headers = curl_slist_append(headers, "Content-Type: application/json");
    for (struct curl_slist *e = l->headers; e; e = e->next)
        headers = curl_slist_append(headers, e->data);
    curl_easy_setopt(l->curl, CURLOPT_URL, url);
    curl_easy_setopt(l->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(l->curl, CURLOPT_HTTPGET, 1L);
    if (json)
        curl_easy_setopt(l->curl, CURLOPT_COPYPOSTFIELDS, json);
    if (curl_easy_perform(l->curl) == CURLE_OK)
        curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &l->status);
    curl_slist_free_all(headers);
    return l->status;
}

static inline long lister_get(struct lister *l, const char *token, const char *path)
{
    return lister_request(l, path, token, NULL);
}

/* The answer's body as JSON; the caller releases it. */
static inline json_t *lister_json(const struct lister *l)
{
    json_error_t why;
    json_t *json = json_loadb(l->body.data ? l->body.data : "", l->body.len, JSON_REJECT_DUPLICATES, &why);

    if (!json)
        fail_msg("%ld: no JSON (%s): %.2000s", l->status, why.text, buf_str(&l->body));
    return json;
}

static inline void assert_status(const struct lister *l, long want)
{
    if (l->status != want)
        fail_msg("%ld, not %ld: %.2000s", l->status, want, buf_str(&l->body));
}

/* A problem with this status and code. */
static inline void assert_problem(const struct lister *l, long status, const char *code)
{
    json_t *json;
    const char *got;

    assert_status(l, status);
    json = lister_json(l);
    got = json_string_value(json_object_get(json, "code"));
    if (!got || strcmp(got, code) != 0)
        fail_msg("not %s: %.2000s", code, buf_str(&l->body));
    assert_int_equal(json_integer_value(json_object_get(json, "status")), status);
    assert_non_null(json_string_value(json_object_get(json, "type")));
    json_decref(json);
    assert_non_null(strcasestr(buf_str(&l->head), "content-type: application/problem+json"));
}

/* ---- the program ---- */

/* Collection "things" of public.things(id text, name, size, tenant, at), objects "doc:<id>" of harness_model. */
static inline void things_table(struct harness *h)
{
    harness_sql(h, "CREATE TABLE public.things(id text PRIMARY KEY, name text NOT NULL, size int, tenant text NOT NULL "
                   "DEFAULT 't1', at timestamptz NOT NULL DEFAULT '2026-01-02 03:04:05+00');"
                   "CREATE INDEX ON public.things(name, id)");
}

static inline void lister_open(struct lister *l, struct harness *h)
{
    *l = (struct lister){.h = h};
    buf_init(&l->body, 64 << 20);
    buf_init(&l->head, 1 << 20);
    l->curl = curl_easy_init();
    curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, lister_take);
    curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, &l->body);
    curl_easy_setopt(l->curl, CURLOPT_HEADERFUNCTION, lister_take);
    curl_easy_setopt(l->curl, CURLOPT_HEADERDATA, &l->head);
    curl_easy_setopt(l->curl, CURLOPT_TIMEOUT_MS, (long)harness_ms(60000));
    curl_easy_setopt(l->curl, CURLOPT_PROXY, "");
    l->url_file = harness_strf(h, "%s/api.url", h->dir);
    l->keys_file = harness_strf(h, "%s/keys", h->dir);
    write_text(l->keys_file, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n");
}

static inline void lister_close(struct lister *l)
{
    if (l->p)
        proc_stop(l->p);
    curl_easy_cleanup(l->curl);
    curl_slist_free_all(l->headers);
    buf_release(&l->body);
    buf_release(&l->head);
}

static inline void lister_ready(struct lister *l)
{
    FILE *f;

    proc_ready_wait(l->p, WAIT_MS);
    f = fopen(l->url_file, "re");
    assert_non_null(f);
    assert_non_null(fgets(l->url, sizeof(l->url), f));
    fclose(f);
    l->url[strcspn(l->url, "\n")] = '\0';
}

/* Over things_table(), patient with a store that is slow on a busy machine; `more` are further "--set", "key=value"
 * pairs ended by NULL. */
#define lister_run(l, ...)                                                                                             \
    do {                                                                                                               \
        struct harness *lister_h = (l)->h;                                                                             \
        (l)->p = lister_start(lister_h, "--set", "http.request_timeout=60s", "--set", "store.request_timeout=30s",     \
                              "--set", harness_strf(lister_h, "http.url_file=%s", (l)->url_file), "--set",             \
                              harness_strf(lister_h, "callers.tokens_file=%s", tokens_file(lister_h)), "--set",        \
                              harness_strf(lister_h, "lister.token_keys_file=%s", (l)->keys_file), "--set",            \
                              "collection.things.table=public.things", "--set", "collection.things.type=doc", "--set", \
                              "collection.things.id=id", "--set", "collection.things.columns=id, name, size, at",      \
                              "--set", "collection.things.sort=name, size, at", "--set",                               \
                              "collection.things.filter=name, size, tenant", "--set", "collection.things.order=name",  \
                              "--set", "collection.things.relation=viewer", __VA_ARGS__);                              \
        lister_ready(l);                                                                                               \
    } while (0)

/* ---- the store ---- */

/* Tuples written straight to the store: "object#relation@subject", one a line. */
static inline void store_put(struct harness *h, bool present, const char *object, const char *relation,
                             const char *subject)
{
    struct store_tuple t = {{object, relation, subject}, NULL, NULL};
    struct err err;
    mono_us soon = deadline_in_ms(harness_ms(20000));

    if (store_write(h->store_conn, h->model_id, &t, present, &t.key, !present, soon, &err) != ST_OK)
        fail_msg("%s#%s@%s: %s", object, relation, subject, err.text);
}

#endif
