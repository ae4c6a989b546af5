/*
 * store.h - client of the authorization store: OpenFGA's HTTP API (openfga/api, v1.22.1) over libcurl and jansson.
 * authz-store speaks the same API. Only this room speaks HTTP to a store.
 *
 * `struct store` is the configured peer (URL, credentials, TLS, token cache): thread-safe, shared. `struct store_conn`
 * is one keep-alive connection, used by one thread at a time; calls block until the answer, the caller's deadline or
 * [store] request_timeout, whichever comes first; the stop flag ends them only if the connection heeds it
 * (store_conn_heed_stop), a flag of the caller's own if there is one (store_conn_heed). A call is sent once: retries
 * belong to the caller. Two exceptions: after a 401 an OIDC token is fetched anew once, and curl itself sends all but
 * Writes again when a kept-alive connection turns out to be dead before any answer byte (a Write is ST_UNKNOWN then:
 * its first copy may take effect later than a second).
 *
 * Statuses (by HTTP status and the code in the body, never by text; docs/openfga-notes.md has the table):
 *   ST_OK
 *   ST_RETRY     certainly nothing was handled: no connection, or no token from an endpoint that is down
 *   ST_THROTTLED 429, throttled_timeout_error, resource_exhausted; not handled. err.retry_after_ms from Retry-After
 *                (seconds or HTTP date; capped at 60 s), never from x-ratelimit-reset
 *   ST_CONFLICT  409: a race between first writers, or another condition is stored (store_read_tuple tells)
 *   ST_UNKNOWN   sent without a usable answer: time-out, reset, any other 5xx (502 and 503 too: gateways also send them
 *                after they passed a request on; retry_after_ms may be set), "cancelled", an unreadable body
 *   ST_INVALID   this request's content is refused (400 with a code that OpenFGA has for that: validation_error, ...),
 *                or is not fit to be sent
 *   ST_TOO_BIG   exceeded_entity_limit, or the request is larger than the store takes: send less at once. With err.code
 *                resource_exhausted that is a guess by the request's size: a store that throttles says the same
 *   ST_DENIED    401, 403, or the token endpoint refused us
 *   ST_MISSING   store_id_not_found, authorization_model_not_found, latest_authorization_model_not_found, or no id
 *   ST_CONFIG    what answers is no store API (redirect, 404, or a 400 or 422 whose code is none of OpenFGA's), its
 *                certificate is not trusted, or an id has the wrong form
 *   ST_DEADLINE  nothing was sent before the caller's deadline
 *   ST_STOPPED   only if the connection heeds a flag; a Write may have taken effect
 *   ST_FATAL     the caller broke this contract (unsorted batch, a key twice), or the store did (a token that repeats)
 */
#ifndef RELATA_STORE_STORE_H
#define RELATA_STORE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tuple/tuple.h"

/* The server's default maximum of writes and deletes together in one Write (max-tuples-per-write). */
#define STORE_WRITE_MAX 100
/* Tuples in one page of Read: the server's maximum. */
#define STORE_READ_PAGE 100

/* Section [store] of every program that talks to one. */
struct cfg_store {
    char *url;   /* http://, https:// or unix:/path/to/socket */
    char *name;  /* the name in relata.store and in outbox rows */
    char *token; /* preshared key; "" = none */
    char *oidc_token_url, *oidc_client_id, *oidc_client_secret, *oidc_audience, *oidc_scope, *oidc_ca_file;
    char *ca_file, *cert_file, *key_file;
    int64_t connect_timeout_ms;
    int64_t request_timeout_ms; /* for one call */
    int64_t late_window_ms;     /* after this long a request that we gave up can no longer take effect */
};
/* clang-format off */
#define CFG_STORE_KEYS(T, m)                                                                                          \
    {"store", "url", CFG_STRING, offsetof(T, m.url), "http://127.0.0.1:8080", 0, 0, NULL, NULL,                       \
     "where the store's HTTP API is: http://, https:// or unix:/path"},                                               \
    {"store", "name", CFG_STRING, offsetof(T, m.name), "default", 0, 0, NULL, NULL,                                   \
     "the store's name in relata.store and in outbox rows"},                                                          \
    {"store", "token", CFG_SECRET, offsetof(T, m.token), "", 0, 0, NULL, NULL, "preshared key sent as bearer token"}, \
    {"store", "oidc_token_url", CFG_STRING, offsetof(T, m.oidc_token_url), "", 0, 0, NULL, NULL,                      \
     "token endpoint for OIDC client credentials; empty = not used"},                                                 \
    {"store", "oidc_client_id", CFG_STRING, offsetof(T, m.oidc_client_id), "", 0, 0, NULL, NULL, "OIDC client id"},   \
    {"store", "oidc_client_secret", CFG_SECRET, offsetof(T, m.oidc_client_secret), "", 0, 0, NULL, NULL,              \
     "OIDC client secret"},                                                                                           \
    {"store", "oidc_audience", CFG_STRING, offsetof(T, m.oidc_audience), "", 0, 0, NULL, NULL, "OIDC audience"},      \
    {"store", "oidc_scope", CFG_STRING, offsetof(T, m.oidc_scope), "", 0, 0, NULL, NULL, "OIDC scope"},               \
    {"store", "oidc_ca_file", CFG_STRING, offsetof(T, m.oidc_ca_file), "", 0, 0, NULL, NULL,                          \
     "PEM file of the authorities that sign the token endpoint's certificate; empty = the system's"},                 \
    {"store", "ca_file", CFG_STRING, offsetof(T, m.ca_file), "", 0, 0, NULL, NULL,                                    \
     "PEM file of the authorities that sign the store's certificate; empty = the system's"},                          \
    {"store", "cert_file", CFG_STRING, offsetof(T, m.cert_file), "", 0, 0, NULL, NULL, "client certificate, PEM"},    \
    {"store", "key_file", CFG_STRING, offsetof(T, m.key_file), "", 0, 0, NULL, NULL, "client key, PEM"},              \
    {"store", "connect_timeout", CFG_DURATION, offsetof(T, m.connect_timeout_ms), "2s", 10, 60000, NULL, NULL,        \
     "longest wait for a connection to the store"},                                                                   \
    {"store", "request_timeout", CFG_DURATION, offsetof(T, m.request_timeout_ms), "5s", 100, 300000, NULL, NULL,      \
     "longest wait for one answer of the store"},                                                                     \
    {"store", "late_window", CFG_DURATION, offsetof(T, m.late_window_ms), "10s", 100, 600000, NULL, NULL,             \
     "how long a request that was given up may still take effect: at least the store's own request timeout"}
/* clang-format on */

struct store;
struct store_conn;

/* What can be told of the settings without connecting, files included: ST_OK or ST_CONFIG. store_new() does the same,
 * but does not ask for a name, which only relata.store needs. */
enum status store_check_settings(const struct cfg_store *cfg, struct err *err) MUST_CHECK;
/* Checks the settings (ST_CONFIG) and loads files; opens no connection. `cfg` must outlive the store. */
enum status store_new(struct store **out, const struct cfg_store *cfg, struct err *err) MUST_CHECK;
void store_free(struct store *s); /* accepts NULL; all its connections must be gone */

/* `store_id` is copied; "" until it is known (store_create). */
enum status store_conn_new(struct store_conn **out, struct store *s, const char *store_id, struct err *err) MUST_CHECK;
void store_conn_free(struct store_conn *c); /* accepts NULL */
/* ST_CONFIG if it is not "" and cannot be a store id. */
enum status store_conn_use(struct store_conn *c, const char *store_id, struct err *err) MUST_CHECK;
/* Whether calls on this connection end with ST_STOPPED when the stop flag is raised (default: no, so that a Write in
 * flight learns its outcome). */
void store_conn_heed_stop(struct store_conn *c, bool heed);

/* From now on calls on this connection end with ST_STOPPED, and their HTTP connection is closed, when `flag` becomes
 * true: within a second, or at once with store_conn_wake(). NULL (the default) = no flag. It must live until it is
 * replaced. */
void store_conn_heed(struct store_conn *c, const atomic_bool *flag);
/* Makes the call that waits look at its flag. Any thread, while the connection exists. */
void store_conn_wake(struct store_conn *c);

struct store_tuple {
    struct tuple_key key;
    const char *condition_name;    /* NULL or "" = none */
    const char *condition_context; /* JSON object text, NULL or "" = none */
};

/*
 * One Write: deletes and writes in one atomic request, on_duplicate = on_missing = ignore, `model_id` sent with it.
 * Both lists sorted by key and without a common key (the caller's duty); together 1..STORE_WRITE_MAX.
 */
enum status store_write(struct store_conn *c, const char *model_id, const struct store_tuple *writes, size_t nwrites,
                        const struct tuple_key *deletes, size_t ndeletes, mono_us deadline, struct err *err) MUST_CHECK;

/* A heap list of tuples, each part owned by the list. */
struct store_tuples {
    struct store_tuple *items;
    size_t len;
    void *arena; /* private */
};
void store_tuples_free(struct store_tuples *t); /* accepts a zeroed struct */

/* Point Read with higher consistency. ST_OK with *found; if found and `out` is not NULL, the tuple with its condition.
 */
enum status store_read_tuple(struct store_conn *c, const struct tuple_key *key, bool *found, struct store_tuples *out,
                             mono_us deadline, struct err *err) MUST_CHECK;
/* One page of all tuples (no tuple_key in the request), at most 100. `token` is "" for the first page; *next is
 * malloc'd, "" at the end. A token that repeats is ST_FATAL. */
enum status store_read_page(struct store_conn *c, const char *token, struct store_tuples *out, char **next,
                            mono_us deadline, struct err *err) MUST_CHECK;

/* The same of the tuples of one object ("cluster:7", `subject` NULL), or of those that a subject holds on objects of
 * one type
 * ("cluster:", "user:anne"). A subject without an id would be taken for one that nobody is, and find nothing. */
enum status store_read_about(struct store_conn *c, const char *object, const char *subject, const char *token,
                             struct store_tuples *out, char **next, mono_us deadline, struct err *err) MUST_CHECK;

/* Check, one tuple, with consistency HIGHER or not. */
enum status store_check(struct store_conn *c, const char *model_id, const struct tuple_key *key, bool higher,
                        bool *allowed, mono_us deadline, struct err *err) MUST_CHECK;

/* Identity and model. Strings returned are malloc'd. */
enum status store_get(struct store_conn *c, char **name, mono_us deadline, struct err *err) MUST_CHECK;
enum status store_create(struct store_conn *c, const char *name, char **store_id, mono_us deadline,
                         struct err *err) MUST_CHECK;
/* The id of the newest model; ST_MISSING if the store has none. */
enum status store_latest_model(struct store_conn *c, char **model_id, mono_us deadline, struct err *err) MUST_CHECK;
/* A page of the store's models, the newest first. `token` is "" for the first page; *next is malloc'd, "" at the end.
 * *out is malloc'd; its members need no freeing. A token that repeats is ST_FATAL. */
struct store_model_info {
    char id[27];
    char schema[8]; /* "1.1" */
    size_t types;
};
enum status store_models(struct store_conn *c, const char *token, struct store_model_info **out, size_t *n, char **next,
                         mono_us deadline, struct err *err) MUST_CHECK;
/* The model as JSON text (an AuthorizationModel object). */
enum status store_model(struct store_conn *c, const char *model_id, char **json, mono_us deadline,
                        struct err *err) MUST_CHECK;
enum status store_write_model(struct store_conn *c, const char *json, char **model_id, mono_us deadline,
                              struct err *err) MUST_CHECK;

/* True if the two condition contexts (JSON object texts, NULL = {}) mean the same to the store: key order is free,
 * numbers are doubles. */
bool store_context_equal(const char *a, const char *b);

#endif
