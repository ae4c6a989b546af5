/* routes.c - from method and path to a handler, and what is counted of each call. */
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"

struct route {
    const char *method, *path; /* {} is a part of any text: a store's id, then another */
    void (*handle)(struct call *c);
    struct metric time;
};
#define ROUTE(method, path, handle, name)                                                                              \
    {                                                                                                                  \
        method, path, handle,                                                                                          \
            METRIC_INIT(METRIC_HISTOGRAM, "relata_authz_request_seconds",                                              \
                        "Time from a request's first line to its answer.", "method=\"" name "\"")                      \
    }
static struct route routes[] = {
    ROUTE("POST", "/stores/{}/check", handle_check, "Check"),
    ROUTE("POST", "/stores/{}/batch-check", handle_batch_check, "BatchCheck"),
    ROUTE("POST", "/stores/{}/write", handle_write, "Write"),
    ROUTE("POST", "/stores/{}/read", handle_read, "Read"),
    ROUTE("POST", "/stores/{}/list-objects", handle_list_objects, "ListObjects"),
    ROUTE("POST", "/stores/{}/streamed-list-objects", handle_streamed_list_objects, "StreamedListObjects"),
    ROUTE("POST", "/stores/{}/list-users", handle_list_users, "ListUsers"),
    ROUTE("POST", "/stores/{}/expand", handle_expand, "Expand"),
    ROUTE("GET", "/stores/{}/changes", handle_changes, "ReadChanges"),
    ROUTE("POST", "/stores/{}/authorization-models", handle_write_model, "WriteAuthorizationModel"),
    ROUTE("GET", "/stores/{}/authorization-models", handle_list_models, "ReadAuthorizationModels"),
    ROUTE("GET", "/stores/{}/authorization-models/{}", handle_read_model, "ReadAuthorizationModel"),
    ROUTE("PUT", "/stores/{}/assertions/{}", handle_write_assertions, "WriteAssertions"),
    ROUTE("GET", "/stores/{}/assertions/{}", handle_read_assertions, "ReadAssertions"),
    ROUTE("POST", "/stores", handle_create_store, "CreateStore"),
    ROUTE("GET", "/stores", handle_list_stores, "ListStores"),
    ROUTE("GET", "/stores/{}", handle_get_store, "GetStore"),
    ROUTE("DELETE", "/stores/{}", handle_delete_store, "DeleteStore"),
};
#define NROUTES (sizeof routes / sizeof *routes)

#define ANSWERS(label)                                                                                                 \
    METRIC_INIT(METRIC_COUNTER, "relata_authz_answers_total", "Answers by the class of their status.",                 \
                "status=\"" label "\"")
static struct metric answers[] = {ANSWERS("2xx"), ANSWERS("4xx"), ANSWERS("5xx")};

void api_metrics_register(void)
{
    for (size_t i = 0; i < NROUTES; i++)
        metric_register(&routes[i].time);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        metric_register(&answers[i]);
}

/* Whether the path is of that form; its parts go to `parts` (of 64 bytes, longer ones are cut). */
static bool matches(const char *form, const char *path, char parts[2][64])
{
    int part = 0;
    parts[0][0] = parts[1][0] = '\0';
    while (*form) {
        if (form[0] == '{') {
            size_t n = strcspn(path, "/"), kept = n < 63 ? n : 63;
            if (n == 0)
                return false;
            memcpy(parts[part], path, kept);
            parts[part++][kept] = '\0';
            path += n;
            form += 2;
        } else if (*form++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

static struct route *route_of(const struct http_call *h, char parts[2][64], bool *path_known)
{
    *path_known = false;
    for (size_t i = 0; i < NROUTES; i++) {
        if (!matches(routes[i].path, h->path, parts))
            continue;
        *path_known = true;
        if (strcmp(routes[i].method, h->method) == 0)
            return &routes[i];
    }
    return NULL;
}

static void health(struct call *c, struct err *err)
{
    bool ready = stores_ready(c->api->stores, err) == ST_OK;
    api_answer(c, ready ? 200 : 503, json_pack("{s:s}", "status", ready ? "SERVING" : "NOT_SERVING"));
}

static void handle(void *arg, struct http_call *h)
{
    char parts[2][64];
    bool path_known;
    struct err err = {0};
    struct call *c = calloc(1, sizeof *c);
    if (!c) {
        h->status = 500;
        return;
    }
    c->api = arg;
    c->http = h;
    h->app = c;
    struct route *route = route_of(h, parts, &path_known);
    if (strcmp(h->path, "/healthz") == 0) {
        health(c, &err);
    } else if (!route && path_known) {
        api_error(c, "unimplemented", "Method Not Allowed");
    } else if (!route) {
        api_error(c, "undefined_endpoint", "Not Found");
    } else if (stores_ready(c->api->stores, &err) != ST_OK) {
        api_error(c, "unavailable", "not available now: %s", err.text);
    } else {
        memcpy(c->store_id, parts[0], sizeof c->store_id);
        memcpy(c->part_id, parts[1], sizeof c->part_id);
        if (pattern_matches(PATTERN_ID, c->store_id))
            memcpy(h->store_id, c->store_id, 27);
        route->handle(c);
        if (h->app != c) /* it goes on elsewhere */
            return;
    }
    h->app = NULL;
    call_free(c);
}

static void done(void *arg, const struct http_call *h)
{
    char parts[2][64];
    bool path_known;
    struct route *route = route_of(h, parts, &path_known);
    (void)arg;
    if (route)
        metric_observe_us(&route->time, clock_mono_us() - h->received);
    metric_add(&answers[h->status >= 500 ? 2 : h->status >= 400 ? 1 : 0], 1);
}

static void refuse(void *arg, struct http_call *h, const char *why)
{
    struct call c = {.api = arg, .http = h};
    if (h->status == 413)
        api_error(&c, "resource_exhausted", "%s", why); /* as OpenFGA, whose status is 500 */
    else
        api_error(&c, why, "%s", strcmp(why, "unauthenticated") == 0 ? "unauthenticated" : "missing bearer token");
}

struct http_app api_app(struct api *api)
{
    return (struct http_app){.arg = api, .handle = handle, .done = done, .refuse = refuse};
}
