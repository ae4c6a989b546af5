#include "inventory-lister/decide/decide_store.h"

#include <stdlib.h>
#include <string.h>

#include "common/admin/metrics.h"
#include "common/base/log.h"
#include "common/base/wait.h"
#include "common/tuple/tuple.h"
#include "inventory-lister/decide/flight.h"
#include "inventory-lister/decide/world.h"

/* A client that hung up is noticed within so long. */
#define CANCEL_CHECK_US 20000
#define WARN_EVERY_US 60000000

static struct metric m_unfit = METRIC_INIT(
    METRIC_COUNTER, "relata_lister_checks_unfit_total",
    "Checks that were denied unasked, because the store takes no such object: its id is too long or empty.", NULL);

/* ---- starting ---- */

static struct decide_group *group_new(struct decider *d, struct decide_query *q, size_t n)
{
    struct decide_group *g = calloc(1, sizeof(*g) + n * sizeof(g->waiters[0]));

    if (!g)
        return NULL;
    g->d = d;
    g->q = q;
    g->n = n;
    wait_cond_init(&g->done);
    return g;
}

static void group_free(struct decide_group *g)
{
    pthread_cond_destroy(&g->done);
    free(g);
}

static int pair_of(const struct model *m, const struct decide_item *it)
{
    struct bytes type = tuple_type(it->object);

    return model_pair(m, type.data, type.len, it->relation);
}

/* Whether a tuple can be about it. If not, nobody has been given anything on it, and the store would only refuse the
 * question, for ever: as an error it would end every list before its row. */
static bool is_fit(struct decider *d, const struct decide_item *it, mono_us now)
{
    struct err why;
    mono_us warned;

    if (tuple_check_object((struct bytes){it->object, strlen(it->object)}, &why) == ST_OK &&
        tuple_check_relation((struct bytes){it->relation, strlen(it->relation)}, &why) == ST_OK)
        return true;
    metric_add(&m_unfit, 1);
    warned = atomic_load(&d->warned_unfit_at);
    if ((!warned || now - warned >= WARN_EVERY_US) && atomic_compare_exchange_strong(&d->warned_unfit_at, &warned, now))
        log_err(LOG_LVL_WARN, "an object that the authorization store cannot know is hidden from everybody", &why,
                "object", it->object, NULL);
    return false;
}

/* Answer from the cache, or note down that the store is to be asked. */
static void begin_item(struct decide_group *g, const struct in_force *f, struct decide_item *it, mono_us now)
{
    struct decider *d = g->d;
    struct waiter *w = &g->waiters[g->pending];
    int pair = pair_of(f->model, it);
    enum cached known = CACHE_MISS;

    it->decision = DECISION_FAILED;
    it->by = BY_NOBODY;
    if (pair < 0) {
        if (g->why.status == ST_OK)
            err_set(&g->why, ST_INVALID, "unknown_relation", "the model has no relation \"%s\" for %s", it->relation,
                    it->object);
        return;
    }
    w->key = cache_key(d->cache, f->store_id, f->model_id, pair, g->q->subject, it->object);
    w->conditional = model_conditional(f->model, pair);
    /* Read your writes: an entry may be young enough and still come from a check that the store answered by its own
     * cache, which not_before says nothing of. */
    if (!g->q->no_cache && !w->conditional && g->q->not_before == 0)
        known = cache_get(d->cache, &w->key, 0, now);
    if (known != CACHE_MISS) {
        it->decision = known == CACHE_ALLOW ? DECISION_ALLOW : DECISION_DENY;
        it->by = BY_CACHE;
        return;
    }
    if (!is_fit(d, it, now)) {
        it->decision = DECISION_DENY;
        return;
    }
    w->group = g;
    w->item = it;
    g->pending++;
}

/* Under the lock. */
static enum status admit(struct decider *d, const struct decide_group *g, struct err *err)
{
    mono_us now = clock_mono_us();

    if (d->stop)
        return err_set(err, ST_STOPPED, NULL, "the lister is ending");
    if (d->paused_until > now && d->paused_until >= g->q->deadline) {
        err_set(err, ST_THROTTLED, "store_throttled", "the authorization store asks to wait");
        if (err)
            err->retry_after_ms = (unsigned)((d->paused_until - now + 999) / 1000);
        return ST_THROTTLED;
    }
    /* One that is larger than the queue has its turn when nothing waits: it would be refused for ever otherwise. */
    if (d->queued > 0 && d->queued + g->pending > (size_t)d->cfg.queue) {
        err_set(err, ST_THROTTLED, "too_many_checks", "too many checks wait already");
        if (err)
            err->retry_after_ms = 1000;
        return ST_THROTTLED;
    }
    return ST_OK;
}

static enum status put_to_store(struct decide_group *g, struct err *err)
{
    struct decider *d = g->d;
    struct waiter **list;
    enum status st;
    struct err why;

    if (g->pending == 0)
        return ST_OK;
    list = malloc(g->pending * sizeof(struct waiter *));
    if (!list)
        return err_set(err, ST_NOMEM, NULL, "no memory for checks");
    for (size_t i = 0; i < g->pending; i++)
        list[i] = &g->waiters[i];
    g->n = g->pending;
    pthread_mutex_lock(&d->lock);
    st = admit(d, g, err);
    if (st == ST_OK && !flights_enqueue(d, list, g->n, 0, false)) {
        err_set(&why, ST_NOMEM, NULL, "no memory for checks");
        for (size_t i = 0; i < g->n; i++)
            if (!list[i]->flight)
                waiter_fail(list[i], &why);
    }
    pthread_mutex_unlock(&d->lock);
    free(list);
    return st;
}

enum status decide_start(struct decider *d, struct decide_query *q, struct decide_item *items, size_t n,
                         struct decide_group **out, struct err *err)
{
    const struct in_force *f = world_hold(d->world);
    struct decide_group *g = NULL;
    enum status st = ST_OK;
    mono_us now = clock_mono_us();

    *out = NULL;
    if (!f)
        return err_set(err, ST_RETRY, "no_model", "the authorization store or its model is not known yet");
    if (q->model_id[0] && strcmp(q->model_id, f->model_id) != 0)
        st = err_set(err, ST_CONFLICT, "model_changed", "the model changed in the middle of the request; ask again");
    if (st == ST_OK && !(g = group_new(d, q, n)))
        st = err_set(err, ST_NOMEM, NULL, "no memory for checks");
    if (st == ST_OK) {
        if (!q->model_id[0]) /* workers may be reading it for an earlier group */
            snprintf(q->model_id, sizeof(q->model_id), "%s", f->model_id);
        snprintf(g->store_id, sizeof(g->store_id), "%s", f->store_id);
        for (size_t i = 0; i < n; i++)
            begin_item(g, f, &items[i], now);
        st = put_to_store(g, err);
    }
    world_release(d->world, f);
    if (st != ST_OK && g)
        group_free(g);
    else
        *out = g;
    return st;
}

/* ---- waiting ---- */

bool decide_done(const struct decide_group *g)
{
    bool done;

    pthread_mutex_lock(&g->d->lock);
    done = g->pending == 0;
    pthread_mutex_unlock(&g->d->lock);
    return done;
}

static bool cancelled(const struct decide_query *q)
{
    return q->cancelled && atomic_load(q->cancelled);
}

static void wait_for_answers(struct decide_group *g)
{
    mono_us until, now;

    while (g->pending > 0 && !cancelled(g->q) && (now = clock_mono_us()) < g->q->deadline) {
        until = g->q->cancelled ? deadline_min(now + CANCEL_CHECK_US, g->q->deadline) : g->q->deadline;
        (void)wait_cond(&g->done, &g->d->lock, until);
    }
}

void decide_finish(struct decide_group *g, struct err *why)
{
    struct decider *d = g->d;

    pthread_mutex_lock(&d->lock);
    wait_for_answers(g);
    if (g->pending > 0 && g->why.status == ST_OK) {
        if (cancelled(g->q))
            err_set(&g->why, ST_STOPPED, "cancelled", "the client is gone");
        else
            err_set(&g->why, ST_DEADLINE, "deadline", "the authorization store did not answer in time");
    }
    for (size_t i = 0; i < g->n; i++)
        waiter_leave(&g->waiters[i]);
    pthread_mutex_unlock(&d->lock);
    if (why)
        *why = g->why;
    group_free(g);
}

/* ---- the pool ---- */

static void free_queue(struct decider *d)
{
    while (d->head) {
        struct bunch *b = d->head;
        d->head = b->next;
        bunch_free(b);
    }
}

enum status decide_store_new(struct decider **out, const struct decide_store_settings *cfg, struct store *store,
                             struct world *world, struct cache *cache, struct err *err)
{
    struct decider *d = calloc(1, sizeof(*d));

    *out = NULL;
    if (!d)
        return err_set(err, ST_NOMEM, NULL, "no memory for the decider");
    d->cfg = *cfg;
    if (d->cfg.batch_size > STORE_CHECK_MAX || d->cfg.batch_size < 1)
        d->cfg.batch_size = STORE_CHECK_MAX;
    d->store = store;
    d->world = world;
    d->cache = cache;
    d->limit = (double)cfg->in_flight;
    pthread_mutex_init(&d->lock, NULL);
    wait_cond_init(&d->work);
    d->threads = calloc((size_t)cfg->in_flight, sizeof(pthread_t));
    for (; d->threads && d->nthreads < (size_t)cfg->in_flight; d->nthreads++)
        if (pthread_create(&d->threads[d->nthreads], NULL, decide_worker, d) != 0)
            break;
    if (d->nthreads < (size_t)cfg->in_flight) {
        decide_store_free(d);
        return err_set(err, ST_NOMEM, NULL, "cannot start %lld threads for checks", (long long)cfg->in_flight);
    }
    *out = d;
    return ST_OK;
}

void decide_store_free(struct decider *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    for (size_t i = 0; i < d->nthreads; i++)
        pthread_join(d->threads[i], NULL);
    free_queue(d);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d->threads);
    free(d);
}

void decide_store_metrics(void)
{
    struct metric *const all[] = {&m_unfit};

    metric_register_all(all, 1);
    decide_worker_metrics();
}
