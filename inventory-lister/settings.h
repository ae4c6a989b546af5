/*
 * settings.h - inventory-lister's configuration: one table, docs/reference/configuration.md is made from it.
 */
#ifndef RELATA_LISTER_SETTINGS_H
#define RELATA_LISTER_SETTINGS_H

#include "common/admin/admin.h"
#include "common/config/config.h"
#include "common/events/events.h"
#include "common/store/store.h"
#include "inventory-lister/callers/callers.h"
#include "inventory-lister/http/http.h"

struct settings {
    struct cfg_log log;
    struct cfg_admin admin;
    struct cfg_store store;
    struct cfg_nats nats;
    struct cfg_http http;
    struct cfg_callers callers;
    struct cfg_map collections;

    char *pg_dsn;
    int64_t statement_timeout_ms;

    int64_t batches, batch, checks_queue;
    int64_t scan_budget;
    int64_t min_token_wait_ms;
    char *token_keys_file, *public_url;
    int64_t token_lifetime_ms;
    int64_t start_timeout_ms, drain_timeout_ms, heartbeat_timeout_ms;

    int64_t cache_bytes, allow_ttl_ms, deny_ttl_ms, store_cache_ttl_ms;
};

extern const struct cfg_program settings_program;

#endif
