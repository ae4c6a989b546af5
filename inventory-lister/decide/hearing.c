/*
 * hearing.c - one thread subscribes and watches the heartbeats; events are handled in NATS' own thread.
 *
 * Handling there what others would enqueue is deliberate: it only sets stamps (nothing waits, nothing is looked for),
 * and a queue would be one more way for an event to come late or not at all.
 */
#include "inventory-lister/decide/hearing.h"

#include <pthread.h>

#include "common/base/log.h"
#include "common/base/wait.h"
#include "common/events/events.h"
#include "inventory-lister/decide/world_internal.h"

#define MODELS 8          /* held at once, before an event flushes instead */
#define SUBSCRIBE_MS 1000 /* one try */
#define RESUBSCRIBE_S 60  /* of silence: the connection may have been given up for good */
#define WATCH_MS 100

struct writer {
    struct hearing_writer is;
    mono_us heard; /* or since when it is known, if it never was */
    bool ever;     /* heard */
    bool ended;    /* it had, when Postgres was asked after it was last heard */
};

struct hearing {
    const struct world_settings *cfg;
    struct world *world;
    struct cache *cache;
    struct events_sub *sub; /* the thread's own */
    struct cache_stats counted;
    char said[256]; /* the last reason that was logged */
    char other[32]; /* NATS' thread: the last foreign model that was logged */

    pthread_mutex_t mu; /* everything below */
    pthread_cond_t wake;
    bool stopping;
    bool blind;
    mono_us last; /* heartbeat of any writer, or subscription */
    struct writer writers[HEARING_WRITERS];
    int nwriters;

    pthread_t thread;
};

/* ---- silence ---- */
static mono_us timeout_us(const struct hearing *h)
{
    return 1000 * h->cfg->heartbeat_timeout_ms;
}

/* With mu held: true if every writer that is known was heard lately, and there is one. One that is silent and has ended
 * is forgotten, but counts once more: what it may have done last is behind the flush that follows. */
static bool all_heard(struct hearing *h, mono_us now)
{
    bool all = true, any = false;
    int n = 0;
    for (int i = 0; i < h->nwriters; i++) {
        struct writer *w = &h->writers[i];
        bool silent = now - w->heard > timeout_us(h);
        all &= !silent;
        any |= w->ever && !silent;
        if (!silent || !w->ended)
            h->writers[n++] = *w;
    }
    h->nwriters = n;
    return all && any;
}

/* With mu held: the place of a writer, known or new. */
static struct writer *place_of(struct hearing *h, struct hearing_writer who)
{
    struct writer *w = h->writers, *longest = w;
    for (; w < h->writers + h->nwriters; w++) {
        if (w->is.id == who.id && w->is.epoch == who.epoch)
            return w;
        longest = w->heard < longest->heard ? w : longest;
    }
    if (h->nwriters == HEARING_WRITERS) /* more than anybody has: the one that is silent for longest gives way */
        w = longest;
    else
        h->nwriters++;
    *w = (struct writer){.is = who, .heard = clock_mono_us()};
    return w;
}

void hearing_living(struct hearing *h, const struct hearing_writer *living, size_t n, mono_us asked)
{
    pthread_mutex_lock(&h->mu);
    for (int i = 0; i < h->nwriters; i++)
        h->writers[i].ended = h->writers[i].heard < asked;
    for (size_t i = 0; i < n && i < HEARING_WRITERS; i++)
        place_of(h, living[i])->ended = false;
    pthread_mutex_unlock(&h->mu);
}

/* With mu held. */
static void see(struct hearing *h, bool heard)
{
    if (h->blind != heard)
        return;
    if (heard) {
        world_flush(h->cache, FLUSH_SILENCE);
        log_info("heartbeats of the writers are heard; cached decisions follow their events", NULL);
    } else {
        log_warn("a writer's heartbeats have ended; every check asks for higher consistency until they are back", NULL);
    }
    h->blind = !heard;
    cache_blind(h->cache, h->blind);
    metric_set(&m_blind, h->blind);
}

static void beat(struct hearing *h, const struct events_seen *seen)
{
    pthread_mutex_lock(&h->mu);
    struct writer *w = place_of(h, (struct hearing_writer){seen->writer_id, seen->epoch});
    w->heard = h->last = clock_mono_us();
    w->ever = true;
    w->ended = false;
    see(h, all_heard(h, w->heard));
    pthread_mutex_unlock(&h->mu);
}

/* ---- events ---- */
static void unheard(struct hearing *h, const struct events_seen *seen)
{
    char writer[24], gap[24];
    snprintf(writer, sizeof writer, "%lld", (long long)seen->writer_id);
    snprintf(gap, sizeof gap, "%llu", (unsigned long long)seen->gap);
    if (seen->gap > 0)
        log_warn("events are missing; the cache of decisions is flushed", "subject", seen->subject, "writer", writer,
                 "missing", gap, NULL);
    else
        log_info("a writer or subject not heard before; the cache of decisions is flushed", "subject", seen->subject,
                 "writer", writer, NULL);
    world_flush(h->cache, seen->gap > 0 ? FLUSH_GAP : seen->new_epoch ? FLUSH_EPOCH : FLUSH_SUBJECT);
}

static void invalidate(struct cache *cache, const struct model *m, const struct tuple_key *key)
{
    struct model_effect e = model_effect(m, key->object, key->relation, key->subject);
    cache_invalidate_all(cache, e.pairs, e.n, e.by_subject ? key->subject : NULL, e.by_object ? key->object : NULL);
}

static void apply(struct hearing *h, const struct events_seen *seen)
{
    const struct in_force *held[MODELS];
    bool many = false, ours = false;
    size_t n = world_hold_all(h->world, held, MODELS, &many);
    for (size_t i = 0; i < n; i++) {
        ours |= strcmp(held[i]->model_id, seen->model_id) == 0;
        for (size_t k = 0; k < seen->n; k++)
            invalidate(h->cache, held[i]->model, &seen->changes[k].key);
        world_release(h->world, held[i]);
    }
    if (ours && !many)
        return;
    world_flush(h->cache, FLUSH_OTHER);
    world_hurry(h->world);
    if (ours || n == 0 || strncmp(h->other, seen->model_id, sizeof h->other - 1) == 0)
        return;
    snprintf(h->other, sizeof h->other, "%.31s", seen->model_id);
    log_warn("a writer's events name another model than the one in force here; each flushes the cache of decisions",
             "model_id", seen->model_id, NULL);
}

static void on_event(void *arg, const struct events_seen *seen)
{
    struct hearing *h = arg;
    if (events_unheard(seen))
        unheard(h, seen);
    if (!seen->heartbeat) {
        metric_add(&m_events, 1);
        int64_t delay = clock_wall_us() - seen->sent_us;
        if (seen->sent_us > 0)
            metric_observe_us(&m_event_delay, delay > 0 ? delay : 0);
        apply(h, seen);
    } else if (seen->gap == 0 && !seen->unknown) {
        beat(h, seen);
    }
}

/* ---- the thread ---- */
static void subscribe(struct hearing *h)
{
    struct err err = {0};
    enum status st =
        events_sub_new(&h->sub, h->cfg->nats, h->cfg->store_name, on_event, h, deadline_in_ms(SUBSCRIBE_MS), &err);
    if (st != ST_OK && strncmp(h->said, err.text, sizeof h->said - 1) != 0)
        log_err(LOG_LVL_WARN, "no events: no subscription with NATS; trying again", &err, NULL);
    if (st == ST_OK && h->said[0])
        log_info("subscribed to events", NULL);
    snprintf(h->said, sizeof h->said, "%.255s", st == ST_OK ? "" : err.text);
    pthread_mutex_lock(&h->mu);
    h->last = clock_mono_us();
    pthread_mutex_unlock(&h->mu);
}

/* Wait a moment; false if it is time to end. */
static bool pause_ms(struct hearing *h, int64_t ms)
{
    pthread_mutex_lock(&h->mu);
    if (!h->stopping)
        (void)wait_cond(&h->wake, &h->mu, deadline_in_ms(ms));
    bool go_on = !h->stopping;
    pthread_mutex_unlock(&h->mu);
    return go_on;
}

static void *hearing_main(void *arg)
{
    struct hearing *h = arg;
    bool wanted = h->cfg->nats && *h->cfg->nats->url;
    do {
        if (wanted && !h->sub)
            subscribe(h);
        mono_us now = clock_mono_us();
        pthread_mutex_lock(&h->mu);
        see(h, all_heard(h, now));
        bool lost = h->sub && now - h->last > 1000000LL * RESUBSCRIBE_S + timeout_us(h);
        pthread_mutex_unlock(&h->mu);
        if (lost) {
            events_sub_free(h->sub);
            h->sub = NULL;
        }
        world_metrics_cache(h->cache, &h->counted);
    } while (pause_ms(h, WATCH_MS));
    events_sub_free(h->sub);
    return NULL;
}

enum status hearing_start(struct hearing **out, const struct world_settings *cfg, struct world *world,
                          struct cache *cache, struct err *err)
{
    *out = NULL;
    enum status st = cfg->nats ? events_check(cfg->nats, err) : ST_OK;
    if (st != ST_OK)
        return st;
    struct hearing *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    h->cfg = cfg;
    h->world = world;
    h->cache = cache;
    h->blind = true;
    cache_stats(cache, &h->counted);
    cache_blind(cache, true);
    metric_set(&m_blind, 1);
    pthread_mutex_init(&h->mu, NULL);
    wait_cond_init(&h->wake);
    if (pthread_create(&h->thread, NULL, hearing_main, h) != 0) {
        pthread_cond_destroy(&h->wake);
        pthread_mutex_destroy(&h->mu);
        free(h);
        return err_set(err, ST_NOMEM, NULL, "no thread could be started");
    }
    *out = h;
    return ST_OK;
}

void hearing_stop(struct hearing *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->mu);
    h->stopping = true;
    pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mu);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->mu);
    free(h);
}
