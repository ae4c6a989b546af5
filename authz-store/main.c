/*
 * authz-store - an authorization store that speaks OpenFGA's API, in memory, durable in Postgres. docs/authz-store.md
 */
#include "authz-store/settings.h"
#include "authz-store/stores/stores.h"
#include "common/base/log.h"
#include "common/base/stop.h"

#define TICK_US 1000000

struct parts {
    struct admin *admin;
    struct stores *stores;
    struct api api;
    struct http *http;
};

static enum status open_parts(struct parts *p, const struct settings *cfg, struct err *err)
{
    enum status st = admin_start(&p->admin, &cfg->admin, err);

    if (st == ST_OK)
        st = stores_start(&p->stores, &cfg->stores, p->admin, err);
    p->api = (struct api){.cfg = &cfg->api, .stores = p->stores};
    const struct http_app app = api_app(&p->api);
    if (st == ST_OK)
        st = http_start(&p->http, &cfg->http, &app, err);
    return st;
}

static int run(const struct settings *cfg)
{
    struct parts p = {0};
    api_metrics_register();
    struct err err = {.status = ST_OK};
    enum status st = open_parts(&p, cfg, &err);

    if (st != ST_OK)
        log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
    else
        log_info("started", "version", RELATA_VERSION, "url", http_url(p.http), "admin", admin_url(p.admin), NULL);
    while (st == ST_OK && stop_sleep_until(clock_mono_us() + TICK_US) == ST_OK) {
        admin_alive(p.admin);
        http_look(p.http);
    }
    bool failed = p.stores && stores_failed(p.stores);
    mono_us deadline = deadline_in_ms(cfg->drain_timeout_ms);
    if (p.http)
        http_drain(p.http, deadline);
    stores_stop(p.stores, deadline);
    http_free(p.http);
    admin_stop(p.admin);
    if (st != ST_OK)
        return st == ST_CONFIG ? EXIT_USAGE : EXIT_FAILED;
    log_info(failed ? "ended" : "drained", NULL);
    return failed ? EXIT_FAILED : EXIT_DONE;
}

int main(int argc, char **argv)
{
    struct settings cfg = {0};
    enum cfg_action action;
    struct err err;

    stores_metrics(); /* before --help=metrics may ask for them */
    if (config_load(&settings_program, argc, argv, &cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "authz-store: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (action == CFG_EXIT)
        return EXIT_DONE;
    stop_init();
    log_init("authz-store", (enum log_level)cfg.log.level, (enum log_format)cfg.log.format);
    int code = run(&cfg);
    config_release(&settings_program, &cfg);
    return code;
}
