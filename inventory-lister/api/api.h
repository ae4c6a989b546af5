/*
 * api.h - the lister's HTTP API, as inventory-lister/api/openapi.json describes it: inventory, explain, AuthZEN,
 * openapi.json.
 */
#ifndef RELATA_LISTER_API_API_H
#define RELATA_LISTER_API_API_H

#include <stdatomic.h>

#include "inventory-lister/collections/collection.h"
#include "inventory-lister/decide/decide.h"
#include "inventory-lister/http/http.h"
#include "inventory-lister/pages/page_token.h"

struct world;

/* What all workers share; immutable but for what the members themselves do, and base_url. */
struct api {
    const struct collections *collections;
    struct decider *decider;
    struct world *world;
    struct token_keys *keys;
    const char *pg_dsn, *store_name;
    int64_t statement_timeout_ms, scan_budget, min_token_wait_ms;
    int64_t workers;
    _Atomic int64_t *waiting;       /* those of them that wait for a min_token */
    const char *public_url;         /* without a slash at the end; "" = base_url */
    _Atomic(const char *) base_url; /* where the server listens, once it does; NULL before */
};

extern const struct http_app api_app; /* copy it and set .arg to a struct api */

/* Before threads start. */
void api_metrics_register(void);

#endif
