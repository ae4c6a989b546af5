/*
 * tuple-writer - keeps an authorization store in step with the ledger in Postgres. docs/tuple-writer.md
 */
#include <pthread.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "tuple-writer/identity.h"
#include "tuple-writer/keeper.h"
#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"
#include "tuple-writer/settings.h"
#include "tuple-writer/source_kafka.h"
#include "tuple-writer/source_outbox.h"
#include "tuple-writer/writer.h"

/* The main loop blocks for a few statements at most. */
#define HEALTH_STATEMENTS 6
/* NATS that has not been reached after so long is worth a line. */
#define UNREACHED_S 5

static void update_event_metrics(struct writer *w, struct events_stats *last)
{
    struct events_stats now;
    events_pub_stats(w->events, &now);
    metric_add(&m_events, (int64_t)(now.published - last->published));
    metric_add(&m_events_failed, (int64_t)(now.failed - last->failed));
    metric_add(&m_nats_reconnects, (int64_t)(now.reconnects - last->reconnects));
    metric_set(&m_events_connected, now.connected || !*w->cfg->nats.url);
    if (now.connected != last->connected && *w->cfg->nats.url)
        log_event(now.connected ? LOG_LVL_INFO : LOG_LVL_WARN,
                  now.connected ? "NATS takes events" : "NATS does not take events; replication goes on", NULL);
    *last = now;
}

/* A change of state is logged; never having had a connection is none. */
static void tell_unreached(const struct writer *w, const struct events_stats *now, int seconds)
{
    if (seconds == UNREACHED_S && !now->connected && !now->reconnects && *w->cfg->nats.url)
        log_warn("NATS has not been reached yet, events are lost until it is; replication goes on", NULL);
}

/* Heartbeats and gauges, each second, whatever the others are waiting for. */
static void *ticker_run(void *arg)
{
    struct writer *w = arg;
    struct events_stats last = {0};
    mono_us next = clock_mono_us();
    int seconds = 0;
    pthread_setname_np(pthread_self(), "ticker");
    do {
        events_heartbeat(w->events);
        update_event_metrics(w, &last);
        tell_unreached(w, &last, seconds++);
        lanes_metrics(w->lanes);
        next += 1000000;
        if (next < clock_mono_us())
            next = clock_mono_us() + 1000000;
    } while (stop_sleep_until(next) == ST_OK);
    return NULL;
}

struct threads {
    struct keeper *keeper;
    struct verifier *verifier;
    pthread_t ticker;
    bool ticking;
};

static enum status open_parts(struct writer *w, struct err *err)
{
    enum status st = admin_start(&w->admin, &w->cfg->admin, err);
    if (st == ST_OK)
        st = store_new(&w->store, &w->cfg->store, err);
    if (st == ST_OK)
        st = events_pub_new(&w->events, &w->cfg->nats, w->cfg->store.name, err);
    if (st == ST_OK && !(w->gate = gate_new(w->cfg, w->admin)))
        st = err_set(err, ST_NOMEM, NULL, "no memory");
    if (st == ST_OK)
        st = lanes_new(&w->lanes, w, err);
    return st;
}

static enum status start_threads(struct writer *w, struct threads *t, struct err *err)
{
    enum status st = lanes_start(w->lanes, err);
    if (st == ST_OK)
        st = keeper_start(&t->keeper, w, err);
    if (st == ST_OK)
        st = verifier_start(&t->verifier, w, err);
    if (st == ST_OK) {
        int rc = pthread_create(&t->ticker, NULL, ticker_run, w);
        t->ticking = rc == 0;
        if (rc != 0)
            st = err_set(err, ST_NOMEM, NULL, "cannot start the ticker: %s", strerror(rc));
    }
    return st;
}

/* False if lanes are still at work when the time is over: then nothing may be freed. */
static bool drain(struct writer *w, struct threads *t)
{
    mono_us deadline = deadline_in_ms(w->cfg->drain_timeout_ms);
    lanes_stop(w->lanes);
    gate_stop(w->gate);
    bool drained = lanes_join(w->lanes, deadline);
    keeper_stop(t->keeper);
    verifier_stop(t->verifier);
    if (t->ticking)
        pthread_join(t->ticker, NULL);
    return drained;
}

static void close_parts(struct writer *w)
{
    lanes_free(w->lanes);
    gate_free(w->gate);
    events_pub_free(w->events);
    store_free(w->store);
    admin_stop(w->admin);
}

static int run(const struct settings *cfg)
{
    struct writer w = {.cfg = cfg};
    struct threads t = {0};
    struct kafka_source *kafka = NULL;
    struct err err = {0};
    enum status st = open_parts(&w, &err);
    if (st != ST_OK) {
        log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
        close_parts(&w);
        return st == ST_CONFIG ? EXIT_USAGE : EXIT_FAILED;
    }
    log_info("started", "version", RELATA_VERSION, "store", cfg->store.name, "admin", admin_url(w.admin), NULL);
    st = start_threads(&w, &t, &err);
    if (st == ST_OK) {
        admin_health_bound(w.admin, (int)(HEALTH_STATEMENTS * cfg->statement_timeout_ms));
        st = cfg->source == SOURCE_KAFKA ? source_kafka_run(&kafka, &w, &err) : source_outbox_run(&w, &err);
    }
    if (st != ST_OK)
        log_err(LOG_LVL_ERROR, "ending", &err, NULL);
    stop_request();
    if (!drain(&w, &t)) {
        log_warn("ended with Writes in flight; their changes stay pending and are taken up again", NULL);
        _exit(st == ST_OK ? EXIT_DONE : EXIT_FAILED);
    }
    source_kafka_end(kafka);
    close_parts(&w);
    log_info("drained", NULL);
    return st == ST_OK ? EXIT_DONE : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct settings cfg = {0};
    enum cfg_action action;
    struct err err;
    metrics_init(); /* before --help=metrics may ask for them */
    if (config_load(&settings_program, argc, argv, &cfg, &action, &err) != ST_OK ||
        (action == CFG_RUN && settings_complete(&cfg, &err) != ST_OK)) {
        fprintf(stderr, "tuple-writer: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (action == CFG_EXIT)
        return EXIT_DONE;
    stop_init();
    log_init("tuple-writer", (enum log_level)cfg.log.level, (enum log_format)cfg.log.format);
    int code = run(&cfg);
    config_release(&settings_program, &cfg);
    return code;
}
