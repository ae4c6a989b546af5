/* lister_settings.h - settings of inventory-lister's rooms, for tests that start one of them without the program. */
#ifndef RELATA_HARNESS_LISTER_SETTINGS_H
#define RELATA_HARNESS_LISTER_SETTINGS_H

#include "inventory-lister/callers/callers.h"
#include "inventory-lister/http/http.h"

/* As the program has them when nothing is configured. The strings are static. */
static inline struct cfg_callers callers_defaults(void)
{
    static char none[] = "", sub[] = "sub", user[] = "user", list[] = "list", algs[] = "RS256,PS256,ES256,EdDSA";

    return (struct cfg_callers){.tokens_file = none,
                                .jwks_file = none,
                                .jwks_url = none,
                                .jwks_ca_file = none,
                                .issuer = none,
                                .audience = none,
                                .algorithms = algs,
                                .subject_claim = sub,
                                .subject_type = user,
                                .jwt_rights = list,
                                .clock_skew_ms = 30000,
                                .jwks_refresh_ms = 600000,
                                .jwks_min_interval_ms = 30000};
}

/* A small server on a free port of loopback that is patient with its clients. */
static inline struct cfg_http http_small(void)
{
    static char none[] = "", loopback[] = "127.0.0.1:0";

    return (struct cfg_http){.listen = loopback,
                             .unix_socket = none,
                             .url_file = none,
                             .cert_file = none,
                             .key_file = none,
                             .cors_origin = none,
                             .workers = 4,
                             .queue = 16,
                             .caller_in_flight = 1000,
                             .connections = 200,
                             .body_max = 4096,
                             .header_timeout_ms = 60000,
                             .request_timeout_ms = 60000,
                             .idle_timeout_ms = 60000};
}

#endif
