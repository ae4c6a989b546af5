/*
 * settings.h - authz-store's configuration: one table, docs/reference/configuration.md is made from it.
 */
#ifndef RELATA_AUTHZ_SETTINGS_H
#define RELATA_AUTHZ_SETTINGS_H

#include "authz-store/api/api.h"
#include "authz-store/http/http.h"
#include "authz-store/stores/stores.h"
#include "common/admin/admin.h"
#include "common/config/config.h"

struct settings {
    struct cfg_http http;
    struct cfg_api api;
    struct cfg_stores stores;
    struct cfg_admin admin;
    struct cfg_log log;
    int64_t drain_timeout_ms;
};

extern const struct cfg_program settings_program;

#endif
