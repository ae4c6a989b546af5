/*
 * bench-latency - how long after a commit a change is in the store, at a steady rate, beside direct Write calls.
 *
 * Clients commit one tuple a transaction (relata.write_tuple and, for every fifth, relata.delete_tuple of an earlier
 * one) at fixed times, whether or not earlier ones are applied. A change counts as applied when its event arrives from
 * NATS: events leave after the store has answered, so the truth is a little earlier. Meanwhile one connection makes
 * direct Write calls of one tuple to the same store. The first seconds are not counted.
 *
 * Prints {"changes", "missing", "superseded", "rate", "commit_ms", "p50_ms", "p99_ms", "direct", "direct_p50_ms",
 * "direct_p99_ms"}.
 */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/events/events.h"
#include "common/pg/pg.h"
#include "common/store/store.h"

#define CONNECT_MS 30000
#define QUERY_MS 30000
#define CLIENTS_MAX 64
#define LAST_MS 15000 /* longest wait for the last events */

struct settings {
    char *dsn, *store_id, *model_id, *prefix;
    int64_t seconds, warm_up, rate, direct_rate, clients;
    struct cfg_store store;
    struct cfg_nats nats;
};

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, 0, 0, "a login that may call relata.write_tuple"),
    CFG_STORE_KEYS(struct settings, store),
    CFG_NATS_KEYS(struct settings, nats),
    KEY("bench", "store_id", CFG_STRING, store_id, NULL, 0, 0, "the store's id"),
    KEY("bench", "model_id", CFG_STRING, model_id, NULL, 0, 0, "the model's id"),
    KEY("bench", "prefix", CFG_STRING, prefix, "b", 0, 0, "makes the tuples of this run differ from those of others"),
    KEY("bench", "seconds", CFG_INT, seconds, "15", 1, 3600, "how long it is measured"),
    KEY("bench", "warm_up", CFG_INT, warm_up, "2", 0, 60, "seconds before that"),
    KEY("bench", "rate", CFG_INT, rate, "200", 1, 10000, "changes a second"),
    KEY("bench", "direct_rate", CFG_INT, direct_rate, "20", 1, 1000, "direct Write calls a second"),
    KEY("bench", "clients", CFG_INT, clients, "8", 1, CLIENTS_MAX, "connections that commit"),
    {0},
};
static const struct cfg_program program = {
    .name = "bench-latency",
    .summary = "measures the time from commit to applied beside direct Write calls",
    .keys = keys,
};

struct change {
    int64_t id; /* of the outbox, which the event tells as version; 0 = free */
    mono_us committed, applied;
    int64_t number;
    bool counted;
};

struct samples {
    int64_t *us;
    size_t n;
};

struct bench {
    struct settings cfg;
    struct store *store;
    struct events_sub *sub;
    mono_us begin, counted_from, end;
    struct samples commits, direct;

    pthread_mutex_t mutex;  /* the table */
    struct change *changes; /* open addressing by id */
    size_t cap, open;
};

struct client {
    struct bench *bench;
    int64_t number;
    pthread_t thread;
    enum status st;
    struct err err;
};

/* ---- changes, by outbox id ---- */

/* The mutex is held. The table is twice as large as it ever gets full. */
static struct change *change_of(struct bench *b, int64_t id)
{
    size_t i = (size_t)((uint64_t)id * 0x9e3779b97f4a7c15u >> 20) & (b->cap - 1);
    while (b->changes[i].id && b->changes[i].id != id)
        i = (i + 1) & (b->cap - 1);
    b->changes[i].id = id;
    return &b->changes[i];
}

static void committed(struct bench *b, int64_t number, int64_t id, mono_us now, bool counted)
{
    pthread_mutex_lock(&b->mutex);
    struct change *c = change_of(b, id);
    c->committed = now;
    c->number = number;
    c->counted = counted;
    b->open += c->applied == 0;
    pthread_mutex_unlock(&b->mutex);
}

/* The event can be faster than the answer to the commit. */
static void on_event(void *arg, const struct events_seen *seen)
{
    struct bench *b = arg;
    mono_us now = clock_mono_us();
    pthread_mutex_lock(&b->mutex);
    for (size_t i = 0; !seen->heartbeat && i < seen->n; i++) {
        struct change *c = change_of(b, seen->changes[i].version);
        b->open -= c->committed != 0 && c->applied == 0;
        if (!c->applied)
            c->applied = now;
    }
    pthread_mutex_unlock(&b->mutex);
}

/* ---- the two loads ---- */

/* Every fifth change removes what was written so many changes before, two seconds. */
static int64_t removed_after(const struct bench *b)
{
    return b->cfg.rate * 2 / 5 * 5 + 4;
}

static enum status change_one(struct bench *b, struct pg *pg, int64_t n, struct err *err)
{
    char object[128];
    const int64_t of = n % 5 == 4 && n > removed_after(b) ? n - removed_after(b) : n;
    snprintf(object, sizeof object, "resource_instance:%s-%" PRId64, b->cfg.prefix, of);
    const struct pg_param params[] = {pg_p_text(object), pg_p_text(of == n ? "write" : "delete")};
    const char *sql = "INSERT INTO relata.outbox (op, object, relation, subject) "
                      "VALUES ($2, $1, 'parent', 'catalog_item:1') RETURNING id";
    struct pg_result *r = NULL;
    mono_us began = clock_mono_us();
    enum status st = pg_query(pg, "change", sql, params, 2, deadline_in_ms(QUERY_MS), &r, err);
    mono_us now = clock_mono_us();
    if (st == ST_OK) {
        b->commits.us[n] = now - began;
        committed(b, n, pg_int(r, 0, 0), now, began >= b->counted_from);
    }
    pg_result_free(r);
    return st;
}

/* At fixed times: a late change does not make later ones late. */
static void *client_main(void *arg)
{
    struct client *c = arg;
    struct bench *b = c->bench;
    struct pg *pg = NULL;
    struct pg_config cfg = {.dsn = b->cfg.dsn, .application_name = program.name, .watch_stop = true};
    c->st = pg_open(&pg, &cfg, deadline_in_ms(CONNECT_MS), &c->err);
    for (int64_t n = c->number; c->st == ST_OK; n += b->cfg.clients) {
        mono_us at = b->begin + n * 1000000 / b->cfg.rate;
        if (at >= b->end || (size_t)n >= b->commits.n || stop_sleep_until(at) != ST_OK)
            break;
        c->st = change_one(b, pg, n, &c->err);
    }
    pg_close(pg);
    return NULL;
}

static void *direct_main(void *arg)
{
    struct client *c = arg;
    struct bench *b = c->bench;
    struct store_conn *conn = NULL;
    c->st = store_conn_new(&conn, b->store, b->cfg.store_id, &c->err);
    for (int64_t n = 0; c->st == ST_OK; n++) {
        mono_us at = b->begin + n * 1000000 / b->cfg.direct_rate + 500000 / b->cfg.rate;
        if (at >= b->end || (size_t)n >= b->direct.n || stop_sleep_until(at) != ST_OK)
            break;
        char object[128];
        snprintf(object, sizeof object, "resource_instance:%s-direct-%" PRId64, b->cfg.prefix, n);
        const struct store_tuple tuple = {.key = {object, "parent", "catalog_item:1"}};
        mono_us began = clock_mono_us();
        c->st = store_write(conn, b->cfg.model_id, &tuple, 1, NULL, 0, deadline_in_ms(QUERY_MS), &c->err);
        if (began >= b->counted_from)
            b->direct.us[n] = clock_mono_us() - began;
    }
    store_conn_free(conn);
    return NULL;
}

/* ---- results ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Zeros are places that were not filled. Sorts. */
static double quantile_ms(struct samples *s, double q, size_t *count)
{
    size_t zeros = 0;
    qsort(s->us, s->n, sizeof *s->us, by_value);
    while (zeros < s->n && s->us[zeros] == 0)
        zeros++;
    *count = s->n - zeros;
    return *count ? (double)s->us[zeros + (size_t)((double)(*count - 1) * q)] / 1000 : 0;
}

static enum status report(struct bench *b, struct err *err)
{
    struct samples s = {.us = calloc(b->cap, sizeof *s.us)};
    size_t missing = 0, superseded = 0, n, ndirect, ncommits;
    if (!s.us)
        return err_set(err, ST_NOMEM, "", "no memory");
    pthread_mutex_lock(&b->mutex);
    for (size_t i = 0; i < b->cap; i++) {
        const struct change *c = &b->changes[i];
        if (!c->committed || !c->counted)
            continue;
        /* What was removed before it was applied never was: only when the pipeline is seconds behind. */
        if (!c->applied && c->number % 5 == 0 && c->number + removed_after(b) < (int64_t)b->commits.n)
            superseded++;
        else
            missing += c->applied == 0;
        if (c->applied)
            s.us[s.n++] = c->applied > c->committed ? c->applied - c->committed : 1;
    }
    pthread_mutex_unlock(&b->mutex);
    double p50 = quantile_ms(&s, 0.5, &n), p99 = quantile_ms(&s, 0.99, &n);
    double direct50 = quantile_ms(&b->direct, 0.5, &ndirect), direct99 = quantile_ms(&b->direct, 0.99, &ndirect);
    double commit50 = quantile_ms(&b->commits, 0.5, &ncommits);
    free(s.us);
    printf("{\"changes\": %zu, \"missing\": %zu, \"superseded\": %zu, \"rate\": %.1f, \"commit_ms\": %.3f, \"p50_ms\": "
           "%.3f, \"p99_ms\": %.3f, "
           "\"direct\": %zu, \"direct_p50_ms\": %.3f, \"direct_p99_ms\": %.3f}\n",
           n, missing, superseded, (double)(n + missing + superseded) / (double)b->cfg.seconds, commit50, p50, p99,
           ndirect, direct50, direct99);
    return missing == 0 ? ST_OK : err_set(err, ST_FATAL, "", "%zu changes brought no event", missing);
}

static bool all_seen(struct bench *b)
{
    pthread_mutex_lock(&b->mutex);
    bool none = b->open == 0;
    pthread_mutex_unlock(&b->mutex);
    return none;
}

static enum status run(struct bench *b, struct err *err)
{
    struct client clients[CLIENTS_MAX + 1] = {0};
    int64_t n = b->cfg.clients + 1, started = 0;
    enum status st = ST_OK;
    b->begin = deadline_in_ms(500);
    b->counted_from = b->begin + b->cfg.warm_up * 1000000;
    b->end = b->counted_from + b->cfg.seconds * 1000000;
    for (; started < n && st == ST_OK; started++) {
        struct client *c = &clients[started];
        *c = (struct client){.bench = b, .number = started};
        if (pthread_create(&c->thread, NULL, started < n - 1 ? client_main : direct_main, c) != 0)
            st = err_set(err, ST_NOMEM, "", "cannot start a thread");
    }
    for (int64_t i = 0; i < started; i++) {
        pthread_join(clients[i].thread, NULL);
        if (clients[i].st != ST_OK && st == ST_OK) {
            st = clients[i].st;
            *err = clients[i].err;
        }
    }
    mono_us last = deadline_in_ms(LAST_MS);
    while (st == ST_OK && !all_seen(b) && clock_mono_us() < last)
        st = stop_sleep_until(deadline_in_ms(20));
    return st;
}

static enum status measure(struct bench *b, struct err *err)
{
    size_t total = (size_t)((b->cfg.warm_up + b->cfg.seconds) * b->cfg.rate);
    for (b->cap = 1024; b->cap < total * 3;)
        b->cap *= 2;
    b->commits.n = total;
    b->direct.n = (size_t)((b->cfg.warm_up + b->cfg.seconds) * b->cfg.direct_rate);
    b->changes = calloc(b->cap, sizeof *b->changes);
    b->commits.us = calloc(b->commits.n, sizeof *b->commits.us);
    b->direct.us = calloc(b->direct.n, sizeof *b->direct.us);
    if (!b->changes || !b->commits.us || !b->direct.us)
        return err_set(err, ST_NOMEM, "", "no memory");
    pthread_mutex_init(&b->mutex, NULL);
    enum status st = store_new(&b->store, &b->cfg.store, err);
    if (st == ST_OK)
        st = events_sub_new(&b->sub, &b->cfg.nats, b->cfg.store.name, on_event, b, deadline_in_ms(CONNECT_MS), err);
    if (st == ST_OK)
        st = run(b, err);
    if (st == ST_OK)
        st = report(b, err);
    events_sub_free(b->sub);
    store_free(b->store);
    free(b->changes);
    free(b->commits.us);
    free(b->direct.us);
    return st;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &b.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-latency: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    stop_init();
    if (action == CFG_RUN && measure(&b, &err) != ST_OK) {
        fprintf(stderr, "bench-latency: %s\n", err.text);
        code = EXIT_FAILED;
    }
    config_release(&program, &b.cfg);
    return code;
}
