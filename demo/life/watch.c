#include "demo/life/watch.h"

#include <pthread.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"

#define QUERY_MS 30000
#define POLL_MS 5
#define HEARTBEAT_MS 5000
#define TABLE_MIN 1024

enum tx_state { TX_EMPTY, TX_COMMITTING, TX_COMMITTED, TX_APPLIED, TX_ROLLED_BACK, TX_IGNORED };

struct tx {
    uint64_t xid; /* never 0 */
    mono_us committed;
    enum tx_state state;
    uint32_t early; /* changes seen before the COMMIT's answer */
};

struct watch {
    pthread_mutex_t mutex; /* all below */
    struct tx *table;      /* open addressing by xid; entries stay */
    size_t cap, used;
    uint32_t *samples;
    size_t nsamples, samples_cap, shown;
    struct watch_counts counts;
    struct err failure; /* of the poller */
    bool stopping;

    struct pg *pg; /* of watch_lag and watch_ledger */
    const char *store;
    struct events_sub *sub;
    struct pg *poll_pg; /* of the poller alone */
    pthread_t poller;
    bool polling;
};

/* ---- transactions ---- */

static struct tx *slot(struct tx *table, size_t cap, uint64_t xid)
{
    size_t i = (size_t)(xid * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);
    while (table[i].state != TX_EMPTY && table[i].xid != xid)
        i = (i + 1) & (cap - 1);
    return &table[i];
}

static bool table_grow(struct watch *w)
{
    size_t cap = w->cap ? w->cap * 2 : TABLE_MIN;
    struct tx *table = calloc(cap, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < w->cap; i++)
        if (w->table[i].state != TX_EMPTY)
            *slot(table, cap, w->table[i].xid) = w->table[i];
    free(w->table);
    w->table = table;
    w->cap = cap;
    return true;
}

/* The entry of `xid`, made if it is new; NULL without memory: that transaction is not measured. */
static struct tx *tx_get(struct watch *w, uint64_t xid)
{
    if (w->used * 2 >= w->cap && !table_grow(w))
        return NULL;
    struct tx *tx = slot(w->table, w->cap, xid);
    if (tx->state == TX_EMPTY) {
        tx->xid = xid;
        w->used++;
    }
    return tx;
}

static void sample(struct watch *w, int64_t us)
{
    if (w->nsamples == w->samples_cap) {
        size_t cap = w->samples_cap ? w->samples_cap * 2 : TABLE_MIN;
        uint32_t *grown = realloc(w->samples, cap * sizeof *grown);
        if (!grown)
            return;
        w->samples = grown;
        w->samples_cap = cap;
    }
    w->samples[w->nsamples++] = us < 0 ? 0 : us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static void applied(struct watch *w, struct tx *tx, mono_us now)
{
    sample(w, now - tx->committed);
    if (tx->state == TX_COMMITTED) {
        tx->state = TX_APPLIED;
        w->counts.transactions++;
    }
}

void watch_committing(struct watch *w, uint64_t xid)
{
    pthread_mutex_lock(&w->mutex);
    struct tx *tx = tx_get(w, xid);
    if (tx)
        tx->state = TX_COMMITTING;
    pthread_mutex_unlock(&w->mutex);
}

void watch_committed(struct watch *w, uint64_t xid, mono_us at, bool changed)
{
    pthread_mutex_lock(&w->mutex);
    struct tx *tx = tx_get(w, xid);
    if (tx) {
        tx->committed = at;
        tx->state = changed ? TX_COMMITTED : TX_IGNORED;
        for (; tx->early > 0; tx->early--)
            applied(w, tx, at);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void set_state(struct watch *w, uint64_t xid, enum tx_state state)
{
    pthread_mutex_lock(&w->mutex);
    struct tx *tx = tx_get(w, xid);
    if (tx)
        tx->state = state;
    pthread_mutex_unlock(&w->mutex);
}

void watch_rolled_back(struct watch *w, uint64_t xid)
{
    set_state(w, xid, TX_ROLLED_BACK);
}

void watch_forget(struct watch *w, uint64_t xid)
{
    set_state(w, xid, TX_IGNORED);
}

/* ---- events ---- */

static void change_seen(struct watch *w, uint64_t xid, mono_us now)
{
    struct tx *tx = xid && w->cap ? slot(w->table, w->cap, xid) : NULL;
    if (!tx)
        return;
    switch (tx->state) {
    case TX_COMMITTING:
        tx->early++;
        break;
    case TX_COMMITTED:
    case TX_APPLIED:
        applied(w, tx, now);
        break;
    case TX_ROLLED_BACK:
        w->counts.ghosts++;
        break;
    case TX_EMPTY: /* somebody else's */
    case TX_IGNORED:
        break;
    }
}

static void on_event(void *arg, const struct events_seen *seen)
{
    struct watch *w = arg;
    mono_us now = clock_mono_us();
    pthread_mutex_lock(&w->mutex);
    w->counts.gaps += seen->gap;
    w->counts.epochs += seen->new_epoch;
    if (seen->heartbeat) {
        w->counts.heartbeats++;
    } else {
        w->counts.events++;
        w->counts.changes += seen->n;
        for (size_t i = 0; i < seen->n; i++)
            change_seen(w, seen->changes[i].xid, now);
    }
    pthread_mutex_unlock(&w->mutex);
}

/* ---- polling ---- */

/* A transaction that was committed before the query began and of which the outbox holds nothing any more is applied. */
static enum status poll_once(struct watch *w, struct err *err)
{
    mono_us begun = clock_mono_us();
    struct pg_result *r = NULL;
    struct pg_param store = pg_p_text(w->store);
    enum status st = pg_query(w->poll_pg, "poll", "SELECT DISTINCT xid::text FROM relata.outbox WHERE store = $1",
                              &store, 1, deadline_in_ms(QUERY_MS), &r, err);
    if (st != ST_OK)
        return st;
    mono_us now = clock_mono_us();
    pthread_mutex_lock(&w->mutex);
    for (int i = 0; w->cap && i < pg_rows(r); i++) {
        struct tx *tx = slot(w->table, w->cap, strtoull(pg_text(r, i, 0), NULL, 10));
        if (tx->state == TX_COMMITTED)
            tx->early = 1; /* still pending */
    }
    for (size_t i = 0; i < w->cap; i++) {
        struct tx *tx = &w->table[i];
        if (tx->state == TX_COMMITTED && !tx->early && tx->committed < begun)
            applied(w, tx, now);
        if (tx->state == TX_COMMITTED)
            tx->early = 0;
    }
    pthread_mutex_unlock(&w->mutex);
    pg_result_free(r);
    return ST_OK;
}

static bool is_stopping(struct watch *w)
{
    pthread_mutex_lock(&w->mutex);
    bool stopping = w->stopping;
    pthread_mutex_unlock(&w->mutex);
    return stopping;
}

static void *poll_main(void *arg)
{
    struct watch *w = arg;
    struct err err = {0};
    while (!is_stopping(w)) {
        if (poll_once(w, &err) != ST_OK) {
            pthread_mutex_lock(&w->mutex);
            w->failure = err;
            pthread_mutex_unlock(&w->mutex);
            break;
        }
        struct timespec step = {.tv_nsec = POLL_MS * 1000000};
        nanosleep(&step, NULL);
    }
    return NULL;
}

/* ---- the watch ---- */

/* A heartbeat tells where each subject stands: only from then on is a gap a gap. Without any, no writer runs yet. */
static void await_heartbeat(struct watch *w)
{
    mono_us deadline = deadline_in_ms(HEARTBEAT_MS);
    struct watch_counts seen;
    do
        watch_counts(w, &seen);
    while (seen.heartbeats == 0 && clock_mono_us() < deadline &&
           stop_sleep_until(clock_mono_us() + POLL_MS * 1000) == ST_OK);
    pthread_mutex_lock(&w->mutex);
    w->counts.gaps = 0;
    pthread_mutex_unlock(&w->mutex);
}

enum status watch_new(struct watch **out, const struct watch_config *cfg, mono_us deadline, struct err *err)
{
    struct pg_config pg = {.dsn = cfg->dsn, .application_name = "demo-life watch", .watch_stop = true};
    struct watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_set(err, ST_NOMEM, "", "no memory for the watch");
    pthread_mutex_init(&w->mutex, NULL);
    w->store = cfg->store;
    enum status st = pg_open(&w->pg, &pg, deadline, err);
    if (st == ST_OK && cfg->nats->url[0])
        st = events_sub_new(&w->sub, cfg->nats, cfg->store, on_event, w, deadline, err);
    else if (st == ST_OK)
        st = pg_open(&w->poll_pg, &pg, deadline, err);
    if (st == ST_OK && w->poll_pg) {
        w->polling = pthread_create(&w->poller, NULL, poll_main, w) == 0;
        if (!w->polling)
            st = err_set(err, ST_NOMEM, "", "cannot start a thread");
    }
    if (st != ST_OK) {
        watch_free(w);
        return st;
    }
    if (w->sub)
        await_heartbeat(w);
    *out = w;
    return ST_OK;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    events_sub_free(w->sub);
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    pthread_mutex_unlock(&w->mutex);
    if (w->polling)
        pthread_join(w->poller, NULL);
    pg_close(w->poll_pg);
    pg_close(w->pg);
    free(w->table);
    free(w->samples);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

bool watch_has_events(const struct watch *w)
{
    return w->sub != NULL;
}

void watch_counts(struct watch *w, struct watch_counts *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->counts;
    pthread_mutex_unlock(&w->mutex);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void watch_times(struct watch *w, bool since_last, struct watch_times *out)
{
    *out = (struct watch_times){0};
    pthread_mutex_lock(&w->mutex);
    size_t from = since_last ? w->shown : 0, n = w->nsamples - from;
    uint32_t *copy = n ? malloc(n * sizeof *copy) : NULL;
    if (copy)
        memcpy(copy, w->samples + from, n * sizeof *copy);
    if (since_last)
        w->shown = w->nsamples;
    pthread_mutex_unlock(&w->mutex);
    if (!copy)
        return;
    qsort(copy, n, sizeof *copy, by_value);
    *out = (struct watch_times){.n = n, .p50 = copy[n / 2], .p99 = copy[n * 99 / 100], .max = copy[n - 1]};
    free(copy);
}

enum status watch_lag(struct watch *w, struct watch_lag *out, struct err *err)
{
    struct pg_result *r = NULL;
    struct pg_param store = pg_p_text(w->store);
    enum status st = pg_query(w->pg, "lag",
                              "SELECT coalesce(sum(pending), 0), coalesce(sum(parked), 0),"
                              " coalesce(max(oldest_age_seconds), 0) FROM relata.lag WHERE store = $1",
                              &store, 1, deadline_in_ms(QUERY_MS), &r, err);
    if (st != ST_OK)
        return st;
    *out = (struct watch_lag){.pending = pg_int(r, 0, 0), .parked = pg_int(r, 0, 1), .oldest_s = pg_double(r, 0, 2)};
    pg_result_free(r);
    return ST_OK;
}

enum status watch_ledger(struct watch *w, int64_t *present, struct err *err)
{
    struct pg_result *r = NULL;
    struct pg_param store = pg_p_text(w->store);
    enum status st = pg_query(w->pg, "ledger", "SELECT count(*) FROM relata.tuple WHERE store = $1 AND present", &store,
                              1, deadline_in_ms(QUERY_MS), &r, err);
    if (st != ST_OK)
        return st;
    *present = pg_int(r, 0, 0);
    pg_result_free(r);
    return ST_OK;
}

enum status watch_failed(struct watch *w, struct err *err)
{
    pthread_mutex_lock(&w->mutex);
    struct err failure = w->failure;
    pthread_mutex_unlock(&w->mutex);
    if (failure.status != ST_OK)
        *err = failure;
    return failure.status;
}
