/*
 * converge.c - intent, ledger state, Write, event, acknowledgement.
 *
 * The order is what makes every crash and every second writer harmless: the intent is durable before the Write is sent,
 * the event leaves before the acknowledgement, and the acknowledgement compares versions once more: whoever wrote a
 * state that is not the ledger's any more writes again.
 */
#include "tuple-writer/converge.h"

#include <string.h>

#include "common/base/log.h"
#include "tuple-writer/metrics.h"
#include "tuple-writer/observe.h"

/* A slow Postgres must not keep a lane from ever sending. */
#define STALE_TRIES 3
#define CONFLICT_WAIT_MS 20
/* Until the keeper, which looks each second, has heard of another store. */
#define PIN_WAIT_MS 100

enum status worker_init(struct worker *k, struct writer *w, struct err *err)
{
    k->w = w;
    ledger_init(&k->ledger, w->cfg);
    return store_conn_new(&k->conn, w->store, "", err);
}

void worker_release(struct worker *k)
{
    ledger_release(&k->ledger);
    store_conn_free(k->conn);
    k->conn = NULL;
}

static enum status worker_use(struct worker *k, const struct pin *pin, struct err *err)
{
    if (strcmp(k->store_id, pin->store_id) == 0)
        return ST_OK;
    enum status st = store_conn_use(k->conn, pin->store_id, err);
    if (st == ST_OK)
        memcpy(k->store_id, pin->store_id, sizeof k->store_id);
    return st;
}

static mono_us call_deadline(const struct worker *k)
{
    return deadline_in_ms(k->w->cfg->store.request_timeout_ms);
}

static int64_t retry_wait(const struct worker *k, const struct batch *b)
{
    return backoff_ms(b->tries < 16 ? b->tries : 16, k->w->cfg->retry_min_ms, k->w->cfg->retry_max_ms);
}

static void again(struct verdict *v, int64_t wait_ms)
{
    v->kind = VERDICT_AGAIN;
    v->wait_ms = wait_ms;
}

static void postgres_failed(struct worker *k, struct batch *b, struct verdict *v, const char *what,
                            const struct err *err)
{
    metric_retry_postgres();
    log_err(b->tries == 0 ? LOG_LVL_WARN : LOG_LVL_DEBUG, what, err, NULL);
    again(v, retry_wait(k, b));
}

/* ---- 1: intent and ledger ---- */
/* A row that Kafka told of and that does not show is waited for, but not for ever: then the ledger's state counts. */
static void give_up_unseen(struct worker *k, struct batch *b)
{
    mono_us now = clock_mono_us();
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state != ITEM_UNSEEN || !it->unseen_since ||
            now - it->unseen_since < k->w->cfg->visible_timeout_ms * 1000)
            continue;
        char id[24];
        snprintf(id, sizeof id, "%lld", (long long)it->hint_id);
        log_warn("a change that Kafka told of does not show in Postgres; going on with the ledger's state", "object",
                 it->key->object, "relation", it->key->relation, "subject", it->key->subject, "outbox_id", id, NULL);
        metric_add(&m_future, 1);
        it->state = ITEM_TODO;
        it->visible = true;
    }
}

static size_t count_items(const struct batch *b, enum item_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += b->items[i].state == state;
    return n;
}

static enum status begin(struct worker *k, struct batch *b, const struct pin *pin, struct err *err)
{
    mono_us start = clock_mono_us();
    enum status st = ledger_begin(&k->ledger, b, atomic_load(&k->w->id), pin->store_id, err);
    metric_observe_us(&m_ledger_seconds, clock_mono_us() - start);
    if (st != ST_OK)
        return st;
    atomic_store(&k->intent, b->intent);
    give_up_unseen(k, b);
    metric_add(&m_unseen, (int64_t)count_items(b, ITEM_UNSEEN));
    metric_add(&m_duplicates, (int64_t)count_items(b, ITEM_IDLE));
    return ST_OK;
}

/* ---- 2: Write ---- */
/* A process that was paused since its intent reads the ledger again instead of sending what it read: after the late
 * window, another writer may take the intent for settled. */
static bool stale(const struct worker *k, const struct batch *b, const struct verdict *v)
{
    return clock_mono_us() - v->began > k->w->cfg->store.late_window_ms * 500 && b->tries < STALE_TRIES;
}

/* A key with another condition: deleted here, written by the next call. */
static enum status send_replaced(struct worker *k, struct batch *b, const struct pin *pin, struct err *err)
{
    struct tuple_key deletes[STORE_WRITE_MAX];
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state == ITEM_SENT && it->replace && it->present) {
            deletes[n++] = *it->key;
            it->force = true;
        }
    }
    if (n == 0)
        return ST_OK;
    enum status st = store_write(k->conn, pin->model_id, NULL, 0, deletes, n, call_deadline(k), err);
    if (st == ST_OK)
        metric_add(&m_replaced, (int64_t)n);
    return st;
}

static enum status send(struct worker *k, struct batch *b, const struct pin *pin, struct verdict *v)
{
    struct err *err = &v->err;
    struct store_tuple writes[STORE_WRITE_MAX];
    struct tuple_key deletes[STORE_WRITE_MAX];
    size_t nwrites = 0, ndeletes = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state != ITEM_TODO)
            continue;
        it->state = ITEM_SENT;
        if (it->present)
            writes[nwrites++] = (struct store_tuple){*it->key, it->condition_name, it->condition_context};
        else
            deletes[ndeletes++] = *it->key;
    }
    enum status st = send_replaced(k, b, pin, err);
    if (st == ST_OK && stale(k, b, v))
        st = err_set(err, ST_STOPPED, NULL, "the ledger was read too long ago: not sent");
    if (st != ST_OK)
        return st;
    mono_us start = clock_mono_us();
    st = store_write(k->conn, pin->model_id, writes, nwrites, deletes, ndeletes, call_deadline(k), err);
    metric_observe_us(&m_store_seconds, clock_mono_us() - start);
    if (st == ST_TOO_BIG && nwrites + ndeletes == 1 && strcmp(err->code, "exceeded_entity_limit") != 0)
        st = err->status = ST_THROTTLED; /* one tuple is never too large: overload, or a gateway with too low a limit */
    if (st == ST_OK) {
        metric_add(&m_batches, 1);
        metric_add(&m_writes, (int64_t)nwrites);
        metric_add(&m_deletes, (int64_t)ndeletes);
    }
    return st;
}

static void log_undone(const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct item *it = &b->items[i];
        if (it->differs && it->state == ITEM_APPLIED)
            log_warn("undid a late effect: the store showed an old state after the late window", "object",
                     it->key->object, "relation", it->key->relation, "subject", it->key->subject, "state_now",
                     it->present ? "present" : "absent", NULL);
    }
}

/* ---- 3: event ---- */
static void applied(struct worker *k, struct batch *b, const struct pin *pin)
{
    struct events_change changes[STORE_WRITE_MAX];
    size_t n = 0;
    int64_t now = clock_wall_us();
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state != ITEM_SENT)
            continue;
        it->state = ITEM_APPLIED;
        it->replace = false;
        it->force = true;
        if (it->created_us) {
            metric_observe_us(&m_applied_seconds, now > it->created_us ? now - it->created_us : 0);
            it->created_us = 0;
        }
        changes[n++] = (struct events_change){.key = *it->key,
                                              .present = it->present,
                                              .version = it->version,
                                              .xid = it->hint_id == it->version ? it->hint_xid : 0,
                                              .traceparent = *it->traceparent ? it->traceparent : NULL};
    }
    /* What NATS does not take is counted by the publisher, and a gap to subscribers. */
    (void)events_publish(k->w->events, pin->model_id, changes, n, NULL);
    log_undone(b);
}

/* ---- what the store said ---- */
static void conflict(struct worker *k, struct batch *b, struct verdict *v)
{
    if (!b->conflicted) {
        b->conflicted = true; /* most likely two first writers of one tuple */
        again(v, backoff_ms(0, CONFLICT_WAIT_MS, CONFLICT_WAIT_MS));
        return;
    }
    int n = observe_conflicts(k->conn, b, k->w->cfg->store.request_timeout_ms, NULL);
    again(v, n > 0 ? 0 : retry_wait(k, b));
}

/* The server's own limit of tuples in one Write is lower than ours. */
static void lower_limit(struct worker *k, size_t sent)
{
    int limit = atomic_load(k->batch_limit);
    if ((int)sent > limit || sent < 2)
        return;
    char text[24];
    snprintf(text, sizeof text, "%zu", sent / 2);
    atomic_store(k->batch_limit, (int)sent / 2);
    log_warn("the store takes fewer tuples in one Write; sending smaller batches from now on", "batch", text, NULL);
}

static void refused(struct worker *k, struct batch *b, struct verdict *v)
{
    size_t sent = count_items(b, ITEM_SENT);
    if (sent > 1) {
        if (v->err.status == ST_TOO_BIG && strcmp(v->err.code, "exceeded_entity_limit") == 0)
            lower_limit(k, sent);
        metric_add(&m_halved, 1);
        v->kind = VERDICT_HALVE;
        return;
    }
    struct item *it = b->items;
    while (it->state != ITEM_SENT)
        it++;
    /* With another model in force by now, it deserves another try. */
    if (gate_pinned(k->w->gate).generation != v->generation) {
        again(v, 0);
        return;
    }
    struct err err;
    bool keep_intent = it->late_until > v->began;
    observe_refused(k->conn, it, k->w->cfg->store.request_timeout_ms, &v->err);
    if (ledger_park(&k->ledger, b, it, v->model_id, &v->err, keep_intent, &err) != ST_OK) {
        postgres_failed(k, b, v, "a refused change could not be parked yet", &err);
        return;
    }
    metric_add(&m_parked_total, 1);
    log_err(LOG_LVL_ERROR, "parked a change that the store refuses", &v->err, "object", it->key->object, "relation",
            it->key->relation, "subject", it->key->subject, NULL);
}

static void write_failed(struct worker *k, struct batch *b, struct verdict *v)
{
    enum status st = v->store;
    if (st == ST_UNKNOWN) {
        metric_add(&m_unknown, 1);
        v->unknown = clock_mono_us();
    }
    if (st == ST_INVALID || st == ST_TOO_BIG) {
        refused(k, b, v);
        return;
    }
    if (st == ST_STOPPED) { /* nothing was sent */
        again(v, 0);
        return;
    }
    metric_retry(st);
    log_err(b->tries == 0 ? LOG_LVL_WARN : LOG_LVL_DEBUG, "a Write failed and will be tried again", &v->err, NULL);
    if (st == ST_CONFLICT)
        conflict(k, b, v);
    else if (st == ST_THROTTLED && v->err.retry_after_ms)
        again(v, v->err.retry_after_ms + backoff_ms(0, v->err.retry_after_ms / 4 + 1, 15000)); /* never earlier */
    else
        again(v, retry_wait(k, b));
}

/* ---- 4: acknowledgement ---- */
static bool keeps_intent(const struct batch *b, mono_us began)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct item *it = &b->items[i];
        if ((it->state == ITEM_APPLIED || it->state == ITEM_PARKED) && it->late_until > began && !it->covered)
            return true;
    }
    return false;
}

static void acknowledge(struct worker *k, struct batch *b, struct verdict *v)
{
    struct err err;
    bool keep = keeps_intent(b, v->began);
    enum status st = ledger_ack(&k->ledger, b, v->began, keep, &err);
    metric_add(&m_moved, (int64_t)count_items(b, ITEM_MOVED));
    if (st == ST_OK && b->intent && !keep && count_items(b, ITEM_MOVED) == 0) {
        st = ledger_drop_intent(&k->ledger, b->intent, &err); /* nothing was to be acknowledged */
        if (st == ST_OK)
            b->intent = 0;
    }
    if (st != ST_OK)
        postgres_failed(k, b, v, "a batch was applied, but could not be acknowledged yet", &err);
}

void converge(struct worker *k, struct batch *b, const struct pin *pin, struct verdict *v)
{
    struct err err;
    memset(v, 0, sizeof *v);
    v->store = ST_STOPPED;
    v->generation = pin->generation;
    memcpy(v->model_id, pin->model_id, sizeof v->model_id);
    batch_sort(b);
    if (worker_use(k, pin, &v->err) != ST_OK) {
        v->store = v->err.status;
        again(v, retry_wait(k, b));
        return;
    }
    if (b->late)
        observe_late(k->conn, b, k->w->cfg->store.request_timeout_ms);
    v->began = clock_mono_us();
    if (begin(k, b, pin, &err) != ST_OK) {
        postgres_failed(k, b, v, "the ledger cannot be read; trying again", &err);
        return;
    }
    if (!b->pinned) { /* what went to the former store now, and was acknowledged, the new one would never get */
        again(v, PIN_WAIT_MS);
        return;
    }
    size_t undone = b->late ? observe_judge(b) : 0;
    if (count_items(b, ITEM_TODO) > 0) {
        v->store = send(k, b, pin, v);
        k->answered(k->arg, v->store == ST_OK);
        if (v->store != ST_OK) {
            write_failed(k, b, v);
            return;
        }
        b->conflicted = false;
        applied(k, b, pin);
        metric_add(&m_late_undone, (int64_t)undone);
    }
    acknowledge(k, b, v);
    metric_add(&m_late_batches, b->late && v->kind == VERDICT_SETTLED);
}
