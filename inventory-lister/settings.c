#include "inventory-lister/settings.h"

#include <string.h>

#include "common/admin/metrics.h"
#include "common/pg/pg.h"
#include "common/pg/settings.h"
#include "common/store/batch_check.h"
#include "inventory-lister/collections/collection.h"
#include "inventory-lister/pages/page_token.h"

#define AT(m) offsetof(struct settings, m)

static const struct cfg_key keys[] = {
    CFG_HTTP_KEYS(struct settings, http),
    CFG_CALLERS_KEYS(struct settings, callers),

    {"collection", "*", CFG_MAP, AT(collections), NULL, 0, 0, NULL, NULL,
     "what can be listed: NAME.table, .type, .id, .columns, .relation (needed), .relations, .sort, .order, .filter, "
     ".where, .bound, .claim, .unique_id; see docs/inventory-lister.md"},

    {"lister", "scan_budget", CFG_INT, AT(scan_budget), "5000", 50, 1000000, NULL, "rows",
     "rows that one request looks at, at most; then its page ends early and its token goes on from there"},
    {"lister", "batches", CFG_INT, AT(batches), "4", 1, 256, NULL, "calls",
     "BatchChecks in flight at once, for all requests; each has a thread and a connection to the store, which works on "
     "up "
     "to lister.batch checks at once for each; more only if it has the cores"},
    {"lister", "batch", CFG_INT, AT(batch), "50", 1, STORE_CHECK_MAX, NULL, "checks",
     "checks in one BatchCheck at most; not above the store's own limit"},
    {"lister", "checks_queue", CFG_INT, AT(checks_queue), "10000", 1000, 1000000, NULL, "checks",
     "checks that may wait for a connection to the store; a request beyond it gets 503 at once"},
    {"lister", "min_token_wait", CFG_DURATION, AT(min_token_wait_ms), "5s", 0, 60000, NULL, NULL,
     "longest wait until the change that a min_token names is applied; then 409"},
    {"lister", "token_keys_file", CFG_STRING, AT(token_keys_file), "", 0, 0, NULL, NULL,
     "file with one or two keys (64 hex digits a line) that seal page tokens; read again when it changes; empty = a "
     "random one, and tokens end with the process"},
    {"lister", "token_lifetime", CFG_DURATION, AT(token_lifetime_ms), "1d", 1000, INT64_C(31536000000), NULL, NULL,
     "how long a page token is good"},
    {"lister", "public_url", CFG_STRING, AT(public_url), "", 0, 0, NULL, NULL,
     "where clients reach the API, for the AuthZEN configuration; empty = the address that it listens on"},
    {"lister", "heartbeat_timeout", CFG_DURATION, AT(heartbeat_timeout_ms), "3s", 100, 600000, NULL, NULL,
     "without a writer's heartbeat for so long, events count as missing: every check asks for higher consistency"},
    {"lister", "start_timeout", CFG_DURATION, AT(start_timeout_ms), "60s", 100, 3600000, NULL, NULL,
     "longest wait at start for Postgres, the store and the model, against which the collections are checked"},
    {"lister", "drain_timeout", CFG_DURATION, AT(drain_timeout_ms), "15s", 0, 600000, NULL, NULL,
     "after SIGTERM, longest wait for requests that run"},

    {"cache", "size", CFG_SIZE, AT(cache_bytes), "64MiB", 0, INT64_C(68719476736), NULL, NULL,
     "memory for decisions, 32 bytes each and a quarter more for bookkeeping; 0 = none is remembered"},
    {"cache", "allow_ttl", CFG_DURATION, AT(allow_ttl_ms), "5s", 1, 60000, NULL, NULL,
     "how long a decision to allow may be used again, if no event makes it old before"},
    {"cache", "deny_ttl", CFG_DURATION, AT(deny_ttl_ms), "2s", 1, 60000, NULL, NULL,
     "the same for a denial; not longer than allow_ttl"},
    {"cache", "store_ttl", CFG_DURATION, AT(store_cache_ttl_ms), "10s", 0, 600000, NULL, NULL,
     "how long the store itself may answer from caches of its own: for so long, and store.request_timeout, after a "
     "change "
     "the decisions that it touches are asked for with higher consistency"},

    CFG_PG_KEYS(struct settings, pg_dsn, statement_timeout_ms),
    CFG_STORE_KEYS(struct settings, store),
    CFG_NATS_KEYS(struct settings, nats),
    CFG_ADMIN_KEYS(struct settings, admin),
    CFG_LOG_KEYS(struct settings, log),
    {NULL, NULL, CFG_STRING, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static enum status check_collections(const struct settings *s, struct err *err)
{
    struct collections all = {0};
    enum status st = collections_parse(&all, &s->collections, err);

    collections_free(&all);
    return st;
}

static enum status check_own(const struct settings *s, struct err *err)
{
    if (s->deny_ttl_ms > s->allow_ttl_ms)
        return err_set(err, ST_CONFIG, NULL, "cache.deny_ttl is above cache.allow_ttl");
    if (*s->public_url && strncmp(s->public_url, "https://", 8) != 0 && strncmp(s->public_url, "http://", 7) != 0)
        return err_set(err, ST_CONFIG, NULL, "lister.public_url: \"%s\" is neither http:// nor https://",
                       s->public_url);
    if (s->min_token_wait_ms >= s->http.request_timeout_ms)
        return err_set(err, ST_CONFIG, NULL, "lister.min_token_wait must be below http.request_timeout");
    return ST_OK;
}

static enum status check_token_keys(const struct settings *s, struct err *err)
{
    struct token_keys *k = NULL;
    enum status st = *s->token_keys_file ? token_keys_new(&k, s->token_keys_file, 0, err) : ST_OK;

    if (st != ST_OK)
        err_prefix(err, "lister.token_keys_file");
    token_keys_free(k);
    return st;
}

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    enum status st = check_own(s, err);

    if (st == ST_OK)
        st = pg_dsn_check(s->pg_dsn, err);
    if (st == ST_OK)
        st = store_check_settings(&s->store, err);
    if (st == ST_OK)
        st = events_check(&s->nats, err);
    if (st == ST_OK)
        st = admin_check(&s->admin, err);
    if (st == ST_OK)
        st = http_check(&s->http, err);
    if (st == ST_OK)
        st = callers_check(&s->callers, err);
    if (st == ST_OK)
        st = check_token_keys(s, err);
    return st == ST_OK ? check_collections(s, err) : st;
}

static const struct cfg_sample samples[] = {
    {"callers", "anonymous", "true"},
    {"collection", "things.table", "public.things"},
    {"collection", "things.type", "thing"},
    {"collection", "things.id", "id"},
    {"collection", "things.columns", "id, name"},
    {"collection", "things.relation", "viewer"},
    {NULL, NULL, NULL},
};

const struct cfg_program settings_program = {
    .name = "inventory-lister",
    .summary = "serves lists of those rows that a subject may see",
    .keys = keys,
    .details = "Exit codes: 0 drained after SIGTERM, 1 failed, 2 bad settings, 4 a service was not there in time,\n"
               "137 ended by a second signal.\n",
    .validate = validate,
    .samples = samples,
    .metrics = metrics_reference,
};
