/*
 * inventory-lister - serves lists of those rows that a subject may see. docs/inventory-lister.md
 */
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/pg/pg.h"
#include "inventory-lister/api/api.h"
#include "inventory-lister/decide/cache.h"
#include "inventory-lister/decide/decide_store.h"
#include "inventory-lister/decide/world.h"
#include "inventory-lister/settings.h"

#define PING_MS 2000
#define TICK_US 1000000
/* The main loop reconnects, pings and reads a file. */
#define HEALTH_STALL_MS 30000

struct lister {
    const struct settings *cfg;
    struct cache_settings cache_cfg;
    struct world_settings world_cfg;
    struct collections collections;
    struct http_app app;
    struct api api;

    struct admin *admin;
    struct store *store;
    struct cache *cache;
    struct world *world;
    struct pg *pg;
    struct decider *decider;
    struct token_keys *keys;
    struct callers *callers;
    struct http *http;
    _Atomic int64_t waiting; /* requests, for their min_token */
};

/* ---- start ---- */

static enum status open_world(struct lister *l, struct err *err)
{
    const struct settings *cfg = l->cfg;
    enum status st = store_new(&l->store, &cfg->store, err);

    l->cache_cfg = (struct cache_settings){.bytes = cfg->cache_bytes,
                                           .allow_ttl_ms = cfg->allow_ttl_ms,
                                           .deny_ttl_ms = cfg->deny_ttl_ms,
                                           .suspect_ms = cfg->store_cache_ttl_ms + cfg->store.request_timeout_ms};
    l->world_cfg = (struct world_settings){.pg_dsn = cfg->pg_dsn,
                                           .store_name = cfg->store.name,
                                           .nats = &cfg->nats,
                                           .heartbeat_timeout_ms = cfg->heartbeat_timeout_ms};
    if (st == ST_OK)
        st = cache_new(&l->cache, &l->cache_cfg, err);
    if (st == ST_OK)
        st = world_start(&l->world, &l->world_cfg, l->store, l->cache, l->admin, err);
    return st;
}

static enum status open_postgres(struct lister *l, mono_us deadline, struct err *err)
{
    struct pg_config cfg = {.dsn = l->cfg->pg_dsn, .application_name = "inventory-lister", .watch_stop = true};
    enum status st;

    for (unsigned tries = 0;; tries++) {
        st = pg_open(&l->pg, &cfg, deadline, err);
        if (st != ST_RETRY || clock_mono_us() >= deadline)
            return st;
        if (stop_sleep_until(deadline_min(deadline, deadline_in_ms(backoff_ms(tries, 100, 2000)))) != ST_OK)
            return err_set(err, ST_STOPPED, NULL, "stopped while waiting for Postgres");
    }
}

/* Declarations against what is really there: better not to start than to serve something else. */
static enum status check_collections(struct lister *l, struct err *err)
{
    mono_us deadline = deadline_in_ms(l->cfg->start_timeout_ms);
    enum status st = open_postgres(l, deadline, err);
    const struct in_force *f;

    if (st == ST_OK)
        st = world_wait(l->world, deadline, err);
    if (st != ST_OK)
        return st;
    f = world_hold(l->world);
    if (!f)
        return err_set(err, ST_RETRY, NULL, "the model was there and is gone again");
    st = collections_check(&l->collections, l->pg, f->model, deadline, err);
    world_release(l->world, f);
    return st;
}

static enum status open_service(struct lister *l, struct err *err)
{
    const struct settings *cfg = l->cfg;
    struct decide_store_settings decide = {
        .in_flight = cfg->batches, .batch_size = cfg->batch, .queue = cfg->checks_queue};
    enum status st = decide_store_new(&l->decider, &decide, l->store, l->world, l->cache, err);

    if (st == ST_OK)
        st = token_keys_new(&l->keys, cfg->token_keys_file, cfg->token_lifetime_ms, err);
    if (st == ST_OK)
        st = callers_new(&l->callers, &cfg->callers, err);
    l->api = (struct api){.collections = &l->collections,
                          .decider = l->decider,
                          .world = l->world,
                          .keys = l->keys,
                          .pg_dsn = cfg->pg_dsn,
                          .store_name = cfg->store.name,
                          .statement_timeout_ms = cfg->statement_timeout_ms,
                          .scan_budget = cfg->scan_budget,
                          .min_token_wait_ms = cfg->min_token_wait_ms,
                          .workers = cfg->http.workers,
                          .waiting = &l->waiting,
                          .public_url = cfg->public_url};
    l->app = api_app;
    l->app.arg = &l->api;
    return st == ST_OK ? http_start(&l->http, &cfg->http, &l->app, l->callers, err) : st;
}

static enum status start(struct lister *l, struct err *err)
{
    enum status st = admin_start(&l->admin, &l->cfg->admin, err);

    admin_ready(l->admin, "postgres", false, "not connected yet");
    admin_ready(l->admin, "start", false, "the collections have not been checked yet");
    if (st == ST_OK)
        st = collections_parse(&l->collections, &l->cfg->collections, err);
    if (st == ST_OK)
        st = open_world(l, err);
    if (st == ST_OK)
        st = check_collections(l, err);
    if (st == ST_OK)
        st = open_service(l, err);
    return st;
}

/* ---- the loop ---- */

static void ping(struct lister *l, bool *up)
{
    struct err err;
    enum status st = pg_alive(l->pg) ? ST_OK : pg_reopen(l->pg, deadline_in_ms(PING_MS), &err);

    if (st == ST_OK)
        st = pg_query(l->pg, "ping", "SELECT 1", NULL, 0, deadline_in_ms(PING_MS), NULL, &err);
    if (st == ST_STOPPED || (st == ST_OK) == *up)
        return;
    *up = st == ST_OK;
    if (*up)
        log_info("Postgres answers", NULL);
    else
        log_err(LOG_LVL_WARN, "Postgres does not answer", &err, NULL);
    admin_ready(l->admin, "postgres", *up, *up ? NULL : err.text);
}

static void refresh_keys(struct lister *l, bool *faulty)
{
    struct err err;
    enum status st = token_keys_refresh(l->keys, &err);

    if (st != ST_OK && !*faulty)
        log_err(LOG_LVL_ERROR, "the keys of page tokens cannot be read again; the former ones stay", &err, NULL);
    *faulty = st != ST_OK;
}

/* A model that lacks a collection's type or relations takes that collection away, and only that one: the API answers
 * 503 for it as long as such a model is in force. */
static void look_at_collections(struct lister *l, char *checked, size_t size)
{
    const struct in_force *f = world_hold(l->world);
    struct buf lacks;
    struct err err;

    if (!f)
        return;
    if (strcmp(checked, f->model_id) != 0) {
        buf_init(&lacks, 4096);
        for (size_t i = 0; i < l->collections.len; i++) {
            if (collection_fits(&l->collections.items[i], f->model, &err) == ST_OK)
                continue;
            log_err(LOG_LVL_ERROR, "a collection is unavailable: write a model that has it, or change its declaration",
                    &err, "model_id", f->model_id, NULL);
            buf_addf(&lacks, "%s%s", lacks.len ? "; " : "", err.text);
        }
        if (*checked && lacks.len == 0)
            log_info("the model has what all collections rest on", "model_id", f->model_id, NULL);
        admin_ready(l->admin, "collections", true, buf_str(&lacks));
        buf_release(&lacks);
        snprintf(checked, size, "%s", f->model_id);
    }
    world_release(l->world, f);
}

static void loop(struct lister *l)
{
    bool up = false, faulty = false;
    char model_checked[32] = "";
    mono_us next = clock_mono_us();

    do {
        admin_alive(l->admin);
        ping(l, &up);
        refresh_keys(l, &faulty);
        look_at_collections(l, model_checked, sizeof(model_checked));
        next += TICK_US;
        if (next < clock_mono_us())
            next = clock_mono_us() + TICK_US;
    } while (stop_sleep_until(next) == ST_OK);
}

/* ---- end ---- */

static void close_parts(struct lister *l)
{
    http_free(l->http);
    callers_free(l->callers);
    decide_store_free(l->decider);
    token_keys_free(l->keys);
    world_stop(l->world);
    cache_free(l->cache);
    store_free(l->store);
    pg_close(l->pg);
    collections_free(&l->collections);
    admin_stop(l->admin);
}

static int exit_code(enum status st)
{
    if (st == ST_CONFIG)
        return EXIT_USAGE;
    if (st == ST_STOPPED)
        return EXIT_DONE;
    return st == ST_DEADLINE || status_is_retryable(st) ? EXIT_UNREADY : EXIT_FAILED;
}

static int run(const struct settings *cfg)
{
    struct lister l = {.cfg = cfg};
    struct err err = {0};
    enum status st = start(&l, &err);

    if (st != ST_OK) {
        if (st != ST_STOPPED)
            log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
        close_parts(&l);
        return exit_code(st);
    }
    if (!*cfg->public_url)
        atomic_store(&l.api.base_url, http_url(l.http));
    admin_health_bound(l.admin, HEALTH_STALL_MS);
    admin_ready(l.admin, "start", true, NULL);
    log_info("started", "version", RELATA_VERSION, "url", http_url(l.http), "admin", admin_url(l.admin), NULL);
    loop(&l);
    admin_ready(l.admin, "start", false, "ending");
    if (!http_drain(l.http, deadline_in_ms(cfg->drain_timeout_ms)))
        log_warn("ended with requests that still ran", NULL);
    close_parts(&l);
    log_info("drained", NULL);
    return EXIT_DONE;
}

static void register_metrics(void)
{
    http_metrics_register();
    callers_metrics_register();
    api_metrics_register();
    decide_store_metrics();
    world_metrics_init();
}

int main(int argc, char **argv)
{
    struct settings cfg = {0};
    enum cfg_action action;
    struct err err;

    register_metrics(); /* before --help=metrics may ask for them */
    if (config_load(&settings_program, argc, argv, &cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "inventory-lister: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (action == CFG_EXIT)
        return EXIT_DONE;
    stop_init();
    log_init("inventory-lister", (enum log_level)cfg.log.level, (enum log_format)cfg.log.format);
    int code = run(&cfg);
    config_release(&settings_program, &cfg);
    return code;
}
