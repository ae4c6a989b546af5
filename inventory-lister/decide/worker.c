/* worker.c - one thread and one connection each: take a bunch, ask the store, hand out the answers, ask again. */
#include <stdlib.h>
#include <string.h>

#include "common/admin/metrics.h"
#include "common/base/log.h"
#include "common/base/wait.h"
#include "inventory-lister/decide/flight.h"
#include "inventory-lister/decide/world.h"

/* A failed check is tried again once, after so long. */
#define FAILURES_MAX 1
#define BACKOFF_BASE_MS 20
#define BACKOFF_CAP_MS 500
/* An answer that an event made old on its way is asked for again, with higher consistency: at once, then after pauses
 * that grow like this. While many tuples change that all decisions of a relation rest on, that happens to one check
 * many times running. */
#define STALE_BASE_MS 4
#define STALE_CAP_MS 200
#define PAUSE_MAX_MS 5000
#define WARN_EVERY_US 60000000

static struct metric m_batches =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_batches_total", "BatchChecks sent to the store.", NULL);
static struct metric m_higher = METRIC_INIT(METRIC_COUNTER, "relata_lister_batches_higher_total",
                                            "BatchChecks sent with higher consistency.", NULL);
static struct metric m_checks =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_total", "Checks sent to the store.", NULL);
static struct metric m_seconds =
    METRIC_INIT(METRIC_HISTOGRAM, "relata_lister_batch_seconds", "Time of one BatchCheck.", NULL);
static struct metric m_failed = METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_failed_total",
                                            "Checks that the store did not answer, each try counted.", NULL);
static struct metric m_again =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_repeated_total", "Checks that were sent a second time.", NULL);
static struct metric m_stale =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_stale_total",
                "Answers that came after an event had made them old, and were not given out.", NULL);
static struct metric m_narrowed =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_narrowed_total",
                "Times that fewer BatchChecks were let go at once, because the store had too much to do.", NULL);
static struct metric m_given_up = METRIC_INIT(METRIC_COUNTER, "relata_lister_batches_given_up_total",
                                              "BatchChecks in flight that were ended, because all who waited for them "
                                              "were gone.",
                                              NULL);
static struct metric m_no_context =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_without_context_total",
                "Checks that were denied because their condition needs a context.", NULL);
static struct metric m_strange = METRIC_INIT(METRIC_COUNTER, "relata_lister_results_strange_total",
                                             "Results of BatchChecks that nobody had asked for.", NULL);

void decide_worker_metrics(void)
{
    struct metric *const all[] = {&m_batches,  &m_higher,   &m_checks,    &m_seconds,       &m_failed,
                                  &m_again,    &m_stale,    &m_strange,   &m_decide_joined, &m_decide_waiting,
                                  &m_narrowed, &m_given_up, &m_no_context};
    metric_register_all(all, sizeof(all) / sizeof(all[0]));
}

/* ---- asking ---- */

/* The bunch is still about the store and model in force: a flush for a new one came before `began` otherwise. */
static enum status still_in_force(struct decider *d, const struct bunch *b, struct err *err)
{
    const struct in_force *f = world_hold(d->world);
    bool same = f && strcmp(f->store_id, b->store_id) == 0 && strcmp(f->model_id, b->model_id) == 0;

    if (f)
        world_release(d->world, f);
    return same ? ST_OK : err_set(err, ST_CONFLICT, "model_changed", "the model or the store changed; ask again");
}

struct question {
    struct store_batch batch;
    struct store_check_item items[STORE_CHECK_MAX];
    struct flight *flights[STORE_CHECK_MAX];
    mono_us deadline;
};

/* Under the lock. The longest patience of those who wait decides how long the call may take. */
static void question_of(struct question *qn, struct bunch *b)
{
    memset(qn, 0, sizeof(*qn));
    for (size_t i = 0; i < b->n; i++) {
        struct flight *f = &b->flights[i];
        if (!f->sent)
            continue;
        qn->flights[qn->batch.n] = f;
        qn->items[qn->batch.n++] = (struct store_check_item){.object = f->object, .relation = f->relation};
        for (const struct waiter *w = f->waiters; w; w = w->next)
            if (w->group->q->deadline > qn->deadline)
                qn->deadline = w->group->q->deadline;
    }
    qn->batch.items = qn->items;
    qn->batch.model_id = b->model_id;
    qn->batch.subject = b->subject;
    qn->batch.traceparent = b->traceparent;
    qn->batch.higher = b->higher;
}

static enum status ask(struct decider *d, struct store_conn *conn, const struct bunch *b, struct question *qn,
                       struct err *err)
{
    mono_us begin = clock_mono_us();
    enum status st = still_in_force(d, b, err);

    if (st == ST_OK)
        st = store_conn_use(conn, b->store_id, err);
    if (st == ST_OK) {
        st = store_batch_check(conn, &qn->batch, qn->deadline, err);
        metric_observe_us(&m_seconds, clock_mono_us() - begin);
        metric_add(&m_batches, 1);
        metric_add(&m_checks, (int64_t)qn->batch.n);
        metric_add(&m_higher, b->higher);
        metric_add(&m_strange, (int64_t)qn->batch.strange);
    }
    if (st != ST_OK)
        for (size_t i = 0; i < qn->batch.n; i++)
            qn->items[i].status = st;
    return st;
}

/* ---- what comes of the answers ---- */

/* Waiters that are to be asked for again; at most those of one bunch at a time. */
struct again {
    struct waiter **list;
    size_t n, cap;
};

static bool again_add(struct again *a, struct waiter *w)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        struct waiter **list = realloc(a->list, cap * sizeof(struct waiter *));
        if (!list)
            return false;
        a->list = list;
        a->cap = cap;
    }
    waiter_leave(w);
    a->list[a->n++] = w;
    return true;
}

/* Those that got an old answer, and when to ask again: one moment for all, after the one who has waited longest. */
struct stale {
    struct again again;
    unsigned times;
    mono_us at;
};

static mono_us stale_at(struct stale *s, const struct waiter *w)
{
    if (w->stale > s->times) {
        s->times = w->stale;
        s->at = s->times == 1 ? 1 : deadline_in_ms(backoff_ms(s->times - 2, STALE_BASE_MS, STALE_CAP_MS));
    }
    return s->at;
}

/* Whether the same call may end otherwise next time. "validation_error" may be throttling inside the store; an item
 * that was never sent stays what it is. */
static bool worth_repeating(const struct store_check_item *it)
{
    return status_is_retryable(it->status) || (it->status == ST_INVALID && it->code[0]);
}

/*
 * An event that came while the check ran makes its answer useless, higher consistency or not: the store may have
 * evaluated it before the change, so that to give it out would show what has been revoked. All that can be done is to
 * ask again until no event comes meanwhile, or time is over.
 */
static void hand_out(struct decider *d, const struct bunch *b, struct flight *f, const struct store_check_item *it,
                     struct stale *stale)
{
    struct waiter *w, *next;
    struct err why;

    if (!f->conditional)
        (void)cache_put(d->cache, &f->key, it->allowed, b->began);
    bool current = cache_current(d->cache, &f->key, b->began);
    for (w = f->waiters; w; w = next) {
        next = w->next;
        if (current) {
            waiter_decide(w, it->allowed);
            continue;
        }
        metric_add(&m_stale, 1);
        w->stale++;
        if (stale_at(stale, w) < w->group->q->deadline && again_add(&stale->again, w))
            continue;
        err_set(&why, ST_CONFLICT, "stale", "permissions changed again while they were asked for");
        waiter_fail(w, &why);
    }
}

/* The condition needs a context that no request can give; said twice. No list would get past such a row, and whoever
 * sees it elsewhere gave a context there. */
static bool lacks_context(const struct flight *f, const struct store_check_item *it, const struct waiter *w)
{
    return f->conditional && w->failures >= FAILURES_MAX && it->status == ST_INVALID &&
           strcmp(it->code, "validation_error") == 0;
}

static void deny_without_context(struct decider *d, const struct flight *f, struct waiter *w)
{
    mono_us now = clock_mono_us();

    metric_add(&m_no_context, 1);
    if (!d->warned_context_at || now - d->warned_context_at >= WARN_EVERY_US) {
        d->warned_context_at = now;
        log_warn("a condition cannot be evaluated without a context: what depends on it is hidden", "object", f->object,
                 "relation", f->relation, NULL);
    }
    waiter_decide(w, false);
}

static void failed(struct decider *d, struct flight *f, const struct store_check_item *it, const struct err *err,
                   mono_us at, struct again *later)
{
    struct waiter *w, *next;
    struct err why = *err;

    metric_add(&m_failed, 1);
    if (err->status == ST_OK) /* the call as a whole went well */
        err_set(&why, it->status, it->code, "the store gave no answer for %s#%s%s%s", f->object, f->relation,
                it->code[0] ? ": " : "", it->code);
    for (w = f->waiters; w; w = next) {
        next = w->next;
        if (lacks_context(f, it, w)) {
            deny_without_context(d, f, w);
            continue;
        }
        if (worth_repeating(it) && at < w->group->q->deadline && w->failures++ < FAILURES_MAX && again_add(later, w))
            continue;
        waiter_fail(w, &why);
    }
}

/* Put what is to be asked again into the queue. Not found to be joined by others: they begin anew. */
static void repeat(struct decider *d, struct again *a, mono_us at, bool higher)
{
    struct err why;

    if (a->n > 0) {
        metric_add(&m_again, (int64_t)a->n);
        if (!flights_enqueue(d, a->list, a->n, at, higher)) {
            err_set(&why, ST_NOMEM, NULL, "no memory for a check");
            for (size_t i = 0; i < a->n; i++)
                if (!a->list[i]->flight)
                    waiter_fail(a->list[i], &why);
        }
    }
    free(a->list);
}

static mono_us back_off(struct decider *d, enum status st, const struct err *err)
{
    int64_t ms = backoff_ms(0, BACKOFF_BASE_MS, BACKOFF_CAP_MS);
    mono_us at;

    if (st == ST_THROTTLED && err->retry_after_ms > ms)
        ms = err->retry_after_ms;
    at = deadline_in_ms(ms);
    /* All connections wait: what is sent meanwhile would be refused too. */
    if (st == ST_THROTTLED)
        d->paused_until = deadline_in_ms(ms < PAUSE_MAX_MS ? ms : PAUSE_MAX_MS);
    return at;
}

/* The store ran out of time, for the call or for items of it, or says that it has too much to do. */
static bool overloaded(const struct question *qn, enum status st)
{
    if (st == ST_THROTTLED || st == ST_UNKNOWN || st == ST_DEADLINE)
        return true;
    for (size_t i = 0; i < qn->batch.n; i++)
        if (qn->items[i].status == ST_UNKNOWN || qn->items[i].status == ST_THROTTLED)
            return true;
    return false;
}

/* Half as many at once, once for all that were sent together; then one more for each round that goes well. */
static void adapt(struct decider *d, const struct bunch *b, bool too_much)
{
    double most = (double)d->cfg.in_flight;

    d->flying--;
    if (!too_much) {
        d->limit = d->limit + 1 / d->limit < most ? d->limit + 1 / d->limit : most;
    } else if (b->began > d->narrowed_at) {
        d->limit = d->limit / 2 < 1 ? 1 : d->limit / 2;
        d->narrowed_at = clock_mono_us();
        metric_add(&m_narrowed, 1);
    }
    if (d->head)
        pthread_cond_signal(&d->work);
}

static void conclude(struct decider *d, struct bunch *b, struct question *qn, enum status st, const struct err *err)
{
    struct stale stale = {0};
    struct again later = {0};
    struct err ok = {.status = ST_OK};
    mono_us at = back_off(d, st, err);

    if (atomic_load(&b->given_up)) {
        metric_add(&m_given_up, 1);
        adapt(d, b, false);
        return;
    }
    adapt(d, b, overloaded(qn, st));
    for (size_t i = 0; i < qn->batch.n; i++) {
        flight_unlist(d, qn->flights[i]);
        if (qn->items[i].status == ST_OK)
            hand_out(d, b, qn->flights[i], &qn->items[i], &stale);
        else
            failed(d, qn->flights[i], &qn->items[i], st == ST_OK ? &ok : err, at, &later);
    }
    repeat(d, &stale.again, stale.at, true);
    repeat(d, &later, at, b->higher);
}

/* ---- the thread ---- */

static void tell_strange(struct decider *d, const struct question *qn)
{
    mono_us now = clock_mono_us();

    if (qn->batch.strange == 0 || (d->warned_at && now - d->warned_at < WARN_EVERY_US))
        return;
    d->warned_at = now;
    log_warn("the store answers checks that nobody asked for; they are ignored", NULL);
}

void *decide_worker(void *decider)
{
    struct decider *d = decider;
    struct store_conn *conn = NULL;
    struct question *qn = malloc(sizeof(*qn));
    struct err err;

    pthread_setname_np(pthread_self(), "decide");
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        mono_us next;
        struct bunch *b = qn ? flights_take(d, clock_mono_us(), &next) : NULL;
        enum status st;

        if (!b) {
            (void)wait_cond(&d->work, &d->lock, qn ? next : DEADLINE_NONE);
            continue;
        }
        question_of(qn, b);
        err = (struct err){.status = ST_OK};
        st = conn ? ST_OK : store_conn_new(&conn, d->store, "", &err);
        b->conn = conn;
        if (conn)
            store_conn_heed(conn, &b->given_up);
        pthread_mutex_unlock(&d->lock);
        if (conn)
            st = ask(d, conn, b, qn, &err);
        else
            for (size_t i = 0; i < qn->batch.n; i++)
                qn->items[i].status = st;
        pthread_mutex_lock(&d->lock);
        b->conn = NULL;
        conclude(d, b, qn, st, &err);
        tell_strange(d, qn);
        bunch_free(b);
    }
    pthread_mutex_unlock(&d->lock);
    store_conn_free(conn);
    free(qn);
    return NULL;
}
