/*
 * api.h - OpenFGA's HTTP API (v1.22) over the stores of this process.
 *
 * Decisions are answered on the thread that took the call in; changes, Read and ReadChanges are jobs of stores/, during
 * which the call is suspended. What is asked for while this process is not the active one is answered 503.
 *
 * Left out: conditions are stored and given back, but a decision that rests on one is refused (400 validation_error,
 * "condition ... cannot be evaluated here"); AuthZEN; gRPC. docs/authz-store.md lists the differences.
 */
#ifndef RELATA_AUTHZ_API_API_H
#define RELATA_AUTHZ_API_API_H

#include "authz-store/http/http.h"
#include "authz-store/stores/stores.h"

struct cfg_api {
    int64_t write_max, batch_max, depth, objects_max, users_max, list_deadline_ms, request_timeout_ms;
};
/* clang-format off */
#define CFG_API_KEYS(T, m)                                                                                              \
    {"api", "write_max", CFG_INT, offsetof(T, m.write_max), "100", 1, 100000, NULL, "tuples",                           \
     "most changes of one Write"},                                                                                      \
    {"api", "batch_max", CFG_INT, offsetof(T, m.batch_max), "50", 1, 10000, NULL, "checks",                             \
     "most checks of one BatchCheck"},                                                                                  \
    {"api", "depth", CFG_INT, offsetof(T, m.depth), "25", 1, 1000, NULL, NULL,                                          \
     "most usersets and parents on the way of one decision"},                                                           \
    {"api", "objects_max", CFG_INT, offsetof(T, m.objects_max), "1000", 0, 10000000, NULL, NULL,                        \
     "most objects that ListObjects gives; 0 = all. StreamedListObjects gives all"},                                    \
    {"api", "users_max", CFG_INT, offsetof(T, m.users_max), "1000", 0, 10000000, NULL, NULL,                            \
     "most users that ListUsers gives; 0 = all"},                                                                       \
    {"api", "list_deadline", CFG_DURATION, offsetof(T, m.list_deadline_ms), "3s", 1, 600000, NULL, NULL,                \
     "longest time for a list, which then gives what it has found, and for a check, which then fails"},                 \
    {"api", "request_timeout", CFG_DURATION, offsetof(T, m.request_timeout_ms), "10s", 10, 600000, NULL, NULL,          \
     "a change or a read of pages that is not begun by then is answered 500 deadline_exceeded"}
/* clang-format on */

struct api {
    const struct cfg_api *cfg;
    struct stores *stores;
};
/* What http_start() wants; `api` must outlive the server. */
struct http_app api_app(struct api *api);
/* Before threads start. */
void api_metrics_register(void);

#endif
