/*
 * lanes.c - all lanes together: offering hints, counting what is held, giving refs back.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/wait.h"
#include "tuple-writer/lane_internal.h"
#include "tuple-writer/metrics.h"

#define NOTE_EVERY_US 200000

static void lanes_signal(struct lanes *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->fd, &one, sizeof one);
    (void)n; /* full means readable: all that is wanted */
}

static bool has_room(struct lanes *l)
{
    size_t level = atomic_load(&l->room_level);
    return atomic_load(&l->held[0]) <= level && atomic_load(&l->held[1]) <= level;
}

/* An entry has ended; the mutex `work` is held. */
static void on_release(void *arg, struct offset_ref *refs, bool revoke)
{
    struct lanes *l = arg;
    atomic_fetch_sub(&l->held[revoke], 1);
    bool wake = atomic_load(&l->want_room) && has_room(l) && atomic_exchange(&l->want_room, false);
    if (refs) {
        struct offset_ref *last = refs;
        while (last->next)
            last = last->next;
        pthread_mutex_lock(&l->mu);
        wake |= l->done == NULL;
        last->next = l->done;
        l->done = refs;
        pthread_mutex_unlock(&l->mu);
    }
    if (wake)
        lanes_signal(l);
}

static enum status lane_init(struct lane *l, struct lanes *all, unsigned index, struct err *err)
{
    l->all = all;
    l->index = index;
    l->worker.batch_limit = &all->batch_limit;
    wait_cond_init(&l->wake);
    return worker_init(&l->worker, all->w, err);
}

enum status lanes_new(struct lanes **out, struct writer *w, struct err *err)
{
    *out = NULL;
    struct lanes *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    l->w = w;
    l->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->lane = calloc((size_t)w->cfg->lanes, sizeof *l->lane);
    atomic_store(&l->batch_limit, (int)w->cfg->batch);
    pthread_mutex_init(&l->mu, NULL);
    pthread_mutex_init(&l->work, NULL);
    wait_cond_init(&l->ended);
    enum status st = ST_OK;
    if (l->fd < 0 || !l->lane || !hint_table_init(&l->hints, on_release, l))
        st = err_set(err, ST_NOMEM, NULL, "no memory or descriptors for lanes: %m");
    for (; st == ST_OK && l->n < (unsigned)w->cfg->lanes; l->n++)
        st = lane_init(&l->lane[l->n], l, l->n, err);
    if (st != ST_OK) {
        lanes_free(l);
        return st;
    }
    *out = l;
    return ST_OK;
}

enum status lanes_start(struct lanes *l, struct err *err)
{
    for (unsigned i = 0; i < l->n; i++) {
        int rc = pthread_create(&l->lane[i].thread, NULL, lane_run, &l->lane[i]);
        if (rc != 0)
            return err_set(err, ST_NOMEM, NULL, "cannot start lane %u: %s", i, strerror(rc));
        l->lane[i].started = true;
    }
    return ST_OK;
}

void lanes_stop(struct lanes *l)
{
    atomic_store(&l->stopping, true);
    pthread_mutex_lock(&l->work);
    for (unsigned i = 0; i < l->n; i++)
        pthread_cond_broadcast(&l->lane[i].wake);
    pthread_mutex_unlock(&l->work);
}

bool lanes_join(struct lanes *l, mono_us deadline)
{
    bool all = true;
    for (unsigned i = 0; i < l->n; i++) {
        struct lane *lane = &l->lane[i];
        pthread_mutex_lock(&l->mu);
        while (lane->started && !lane->ended && clock_mono_us() < deadline)
            wait_cond(&l->ended, &l->mu, deadline);
        bool over = !lane->started || lane->ended;
        pthread_mutex_unlock(&l->mu);
        if (over && lane->started) {
            pthread_join(lane->thread, NULL);
            lane->started = false;
        }
        all &= over;
    }
    return all;
}

static void parcels_free(struct batch *b)
{
    while (b) {
        struct batch *next = b->next;
        free(b);
        b = next;
    }
}

void lanes_free(struct lanes *l)
{
    if (!l)
        return;
    for (unsigned i = 0; i < l->n; i++) {
        struct lane *lane = &l->lane[i];
        parcels_free(lane->parcels);
        worker_release(&lane->worker);
        pthread_cond_destroy(&lane->wake);
    }
    for (struct late *late = l->lates, *next; late; late = next) {
        next = late->next;
        free(late);
    }
    hint_table_release(&l->hints);
    for (struct offset_ref *r = l->done, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    free(l->last_applied);
    if (l->fd >= 0)
        close(l->fd);
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->mu);
    pthread_mutex_destroy(&l->work);
    free(l->lane);
    free(l);
}

/* ---- sources ---- */
void lanes_offer(struct lanes *l, const struct hint *hints, size_t n)
{
    pthread_mutex_lock(&l->work);
    for (size_t i = 0; i < n; i++) {
        enum hint_result r = hint_table_offer(&l->hints, &hints[i]);
        if (r == HINT_ADDED)
            atomic_fetch_add(&l->held[hints[i].revoke], 1);
        else if (r == HINT_NOMEM)
            log_error("no memory for a change; it will be found again when the outbox is read anew", "object",
                      hints[i].key.object, NULL);
    }
    for (unsigned i = 0; i < l->n; i++)
        lane_shed(&l->lane[i]);
    lanes_call(l);
    pthread_mutex_unlock(&l->work);
}

size_t lanes_held(struct lanes *l, bool revokes)
{
    return atomic_load(&l->held[revokes]);
}

int lanes_fd(struct lanes *l)
{
    return l->fd;
}

void lanes_want_room(struct lanes *l, size_t level)
{
    atomic_store(&l->room_level, level);
    atomic_store(&l->want_room, true);
    if (has_room(l))
        lanes_signal(l);
}

void lanes_fd_clear(struct lanes *l)
{
    uint64_t count;
    ssize_t n = read(l->fd, &count, sizeof count);
    (void)n; /* nothing to read is fine */
}

void lanes_reread(struct lanes *l)
{
    atomic_store(&l->reread, true);
    lanes_signal(l);
}

bool lanes_take_reread(struct lanes *l)
{
    return atomic_exchange(&l->reread, false);
}

struct offset_ref *lanes_done(struct lanes *l)
{
    pthread_mutex_lock(&l->mu);
    struct offset_ref *done = l->done;
    l->done = NULL;
    pthread_mutex_unlock(&l->mu);
    return done;
}

size_t lanes_forget(struct lanes *l, const void *part, bool keep_taken)
{
    pthread_mutex_lock(&l->work);
    size_t n = hint_table_forget(&l->hints, part, keep_taken);
    pthread_mutex_unlock(&l->work);
    return n;
}

bool lanes_busy(struct lanes *l)
{
    return atomic_load(&l->busy) > 0;
}

/* ---- the keeper ---- */
void lanes_adopt(struct lanes *l, int64_t intent, const struct tuple_key *keys, size_t n, mono_us due)
{
    struct late *late = calloc(1, sizeof *late);
    if (!late)
        return; /* it stays in relata.inflight and is found again */
    late->due = due;
    late->intent = intent;
    pthread_mutex_lock(&l->work);
    for (size_t i = 0; i < n && i < STORE_WRITE_MAX; i++) {
        size_t before = l->hints.len;
        struct entry *e = hint_table_ensure(&l->hints, &keys[i]);
        if (!e)
            continue;
        if (l->hints.len > before)
            atomic_fetch_add(&l->held[0], 1);
        if (e->late && e->late_due >= due)
            continue;
        if (e->late_until < due)
            e->late_until = due;
        lanes_add_late(l, late, e);
    }
    lanes_push_late(l, late);
    lanes_call(l);
    pthread_mutex_unlock(&l->work);
}

static void put(int64_t *out, size_t max, size_t *n, int64_t id)
{
    if (id && *n < max)
        out[*n] = id;
    *n += id != 0;
}

size_t lanes_intents(struct lanes *l, int64_t *out, size_t max)
{
    size_t n = 0;
    pthread_mutex_lock(&l->work);
    for (unsigned i = 0; i < l->n; i++) {
        struct lane *lane = &l->lane[i];
        put(out, max, &n, atomic_load(&lane->worker.intent));
        for (struct batch *b = lane->parcels; b; b = b->next)
            put(out, max, &n, b->intent);
    }
    for (struct late *late = l->lates; late; late = late->next)
        put(out, max, &n, late->intent);
    pthread_mutex_unlock(&l->work);
    return n;
}

void lanes_note_applied(struct lanes *l, const struct tuple_key *key, int64_t version)
{
    pthread_mutex_lock(&l->mu);
    mono_us now = clock_mono_us();
    if (!l->last_applied || now - l->last_at >= NOTE_EVERY_US) {
        free(l->last_applied);
        l->last_applied = tuple_key_dup(key);
        l->last_version = version;
        l->last_at = now;
    }
    pthread_mutex_unlock(&l->mu);
}

struct tuple_key *lanes_last_applied(struct lanes *l, int64_t *version)
{
    pthread_mutex_lock(&l->mu);
    struct tuple_key *key = l->last_applied;
    *version = l->last_version;
    l->last_applied = NULL;
    pthread_mutex_unlock(&l->mu);
    return key;
}

void lanes_metrics(struct lanes *l)
{
    metric_set(&m_keys_held, (double)(lanes_held(l, false) + lanes_held(l, true)));
    metric_set(&m_lanes_busy, atomic_load(&l->busy));
    size_t late = 0;
    mono_us now = clock_mono_us(), oldest = now;
    pthread_mutex_lock(&l->work);
    for (unsigned i = 0; i < l->n; i++)
        if (l->lane[i].failing_since)
            oldest = deadline_min(oldest, l->lane[i].failing_since);
    for (const struct late *at = l->lates; at; at = at->next)
        late++;
    pthread_mutex_unlock(&l->work);
    metric_set(&m_late_open, (double)late);
    metric_set(&m_lane_age, (double)(now - oldest) / 1e6);
}
