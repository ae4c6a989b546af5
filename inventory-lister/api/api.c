/* api.c - which handler a path is for, and each worker's session. */
#include "inventory-lister/api/api.h"

#include <stdlib.h>
#include <string.h>

#include "inventory-lister/api/internal.h"

#define INVENTORY "/v1/inventory/"
#define RECONNECT_MS 2000

/* ---- workers ---- */

static void *worker_begin(void *arg, int number)
{
    struct worker *w = calloc(1, sizeof(*w));

    (void)number;
    if (w)
        w->api = arg;
    return w;
}

static void worker_end(void *worker)
{
    struct worker *w = worker;

    pg_close(w->pg);
    free(w);
}

struct pg *worker_pg(struct worker *w, struct request *rq, mono_us deadline)
{
    struct pg_config cfg = {.dsn = w->api->pg_dsn, .application_name = "inventory-lister"};
    struct err err;
    enum status st = ST_OK;

    deadline = deadline_min(deadline, deadline_in_ms(RECONNECT_MS));
    if (!w->pg)
        st = pg_open(&w->pg, &cfg, deadline, &err);
    else if (!pg_alive(w->pg))
        st = pg_reopen(w->pg, deadline, &err);
    if (st == ST_OK) {
        pg_heed(w->pg, &rq->cancelled); /* until handle() is done with it */
        return w->pg;
    }
    problem_undecided(rq, &err);
    return NULL;
}

/* ---- routes ---- */

static void openapi(struct worker *w, struct request *rq)
{
    (void)w;
    rq->status = 200;
    rq->content_type = "application/json";
    buf_add(&rq->answer, openapi_json, (size_t)(openapi_json_end - openapi_json));
}

static const struct route {
    const char *path;
    bool get;
    bool open; /* needs no caller */
    void (*handle)(struct worker *w, struct request *rq);
} routes[] = {
    {"/v1/inventory", true, false, list_collections},
    {"/v1/explain", false, false, explain},
    {"/access/v1/evaluation", false, false, authzen_evaluation},
    {"/access/v1/evaluations", false, false, authzen_evaluations},
    {"/.well-known/authzen-configuration", true, true, authzen_configuration},
    {"/openapi.json", true, true, openapi},
};

static const struct route *route_of(const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    return NULL;
}

static bool needs_caller(const char *path)
{
    const struct route *r = route_of(path);

    return !r || !r->open;
}

static const char *methods(const char *path)
{
    const struct route *r = route_of(path);

    if (r)
        return r->get ? "GET, HEAD" : "POST";
    return strncmp(path, INVENTORY, strlen(INVENTORY)) == 0 ? "GET, HEAD" : "GET, HEAD, POST";
}

static bool is_get(const struct request *rq)
{
    return strcmp(rq->method, "GET") == 0 || strcmp(rq->method, "HEAD") == 0;
}

static bool allow(struct request *rq, bool get)
{
    if (get ? is_get(rq) : strcmp(rq->method, "POST") == 0)
        return true;
    rq->allow = methods(rq->path);
    problem(rq, 405, "method_not_allowed", "this path takes %s", rq->allow);
    return false;
}

/* "/v1/inventory/{collection}" and "/v1/inventory/{collection}/{id}": an id may hold slashes. */
static void inventory(struct worker *w, struct request *rq)
{
    const char *rest = rq->path + strlen(INVENTORY), *slash = strchr(rest, '/');
    char *collection = slash ? strndup(rest, (size_t)(slash - rest)) : strdup(rest);

    if (!collection)
        problem(rq, 503, "unavailable", "no memory");
    else if (!slash)
        list_page(w, rq, collection);
    else if (slash[1])
        get_row(w, rq, collection, slash + 1);
    else
        problem(rq, 404, "not_found", "the path ends where an id is wanted");
    free(collection);
}

static void dispatch(struct worker *worker, struct request *rq)
{
    const struct route *r = route_of(rq->path);

    if (r) {
        if (allow(rq, r->get))
            r->handle(worker, rq);
    } else if (strncmp(rq->path, INVENTORY, strlen(INVENTORY)) == 0 && rq->path[strlen(INVENTORY)]) {
        if (allow(rq, true))
            inventory(worker, rq);
    } else {
        problem(rq, 404, "not_found", "there is nothing at this path; /openapi.json says what there is");
    }
}

static void handle(void *worker, struct request *rq)
{
    struct worker *w = worker;

    dispatch(w, rq);
    if (w->pg)
        pg_heed(w->pg, NULL);
}

const struct http_app api_app = {
    .worker_begin = worker_begin,
    .worker_end = worker_end,
    .handle = handle,
    .needs_caller = needs_caller,
    .methods = methods,
};
