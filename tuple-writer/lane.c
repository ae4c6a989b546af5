#include "tuple-writer/lane_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/wait.h"
#include "tuple-writer/metrics.h"

/* A lane that gets nowhere for so long, while the store takes Writes of others, keeps no more than its share of hints.
 */
#define STUCK_MS 5000
#define UNSEEN_MIN_MS 2
#define UNSEEN_MAX_MS 100
/* A Write that hangs does not hold up others for longer. */
#define PACE_MAX_US 100000

/* ---- what is next (with the mutex held) ---- */
/* A late batch that is due, and of which something is not under way. What is, comes next: nothing else of its object is
 * taken before. *until: when the next one is due. */
static struct late **late_due(struct lanes *l, mono_us now, mono_us *until)
{
    struct hint_table *t = &l->hints;
    for (struct late **at = &l->lates; *at; at = &(*at)->next) {
        struct late *late = *at;
        size_t blocked = 0;
        if (late->due > now) {
            *until = deadline_min(*until, late->due);
            continue;
        }
        for (size_t i = 0; i < late->n; i++) {
            bool is = hint_table_blocked(t, late->entries[i]);
            hint_table_reserve(t, late->entries[i], is);
            blocked += is;
        }
        if (blocked < late->n || late->n == 0)
            return at; /* the others are looked at again when a lane has settled */
    }
    return NULL;
}

/*
 * When a batch of what is queued may begin; DEADLINE_NONE = there is nothing.
 *
 * At once if no Write is under way, or for a full batch. Else as long after the last one began as a Write takes on the
 * average: what comes meanwhile travels together. A Write costs the store far more than each of its tuples does, so
 * many small ones at once only wait inside the store, where nothing can join them any more.
 */
static mono_us may_begin(const struct lanes *l)
{
    if (!hint_table_queued(&l->hints))
        return DEADLINE_NONE;
    if (l->flying == 0 || hint_table_waiting(&l->hints) >= (size_t)atomic_load(&l->batch_limit))
        return 0;
    return l->last_began + (l->flight_us < PACE_MAX_US ? l->flight_us : PACE_MAX_US);
}

/* When there is something for an idle lane to do; DEADLINE_NONE = never, as things stand. */
static mono_us next_due(struct lanes *l)
{
    mono_us now = clock_mono_us(), until = DEADLINE_NONE;
    if (late_due(l, now, &until))
        return now;
    until = deadline_min(until, hint_table_wake(&l->hints, now));
    return deadline_min(until, may_begin(l));
}

void lanes_call(struct lanes *l)
{
    mono_us due = next_due(l);
    if (due == DEADLINE_NONE)
        return;
    if (l->looker) {
        if (due < l->look_at)
            pthread_cond_signal(&l->looker->wake);
        return;
    }
    for (unsigned i = 0; i < l->n; i++) {
        if (l->lane[i].idle) {
            pthread_cond_signal(&l->lane[i].wake);
            return;
        }
    }
}

/* True if there is something to do now; *until = when to look again. */
static bool has_work(struct lane *l, mono_us now, mono_us *until)
{
    struct lanes *all = l->all;
    mono_us look_at = DEADLINE_NONE;
    *until = DEADLINE_NONE;
    if (l->parcels) { /* nothing overtakes a parcel in its lane: the store waits for it */
        *until = l->retry_at;
        return l->retry_at <= now;
    }
    if (late_due(all, now, &look_at))
        return true;
    look_at = deadline_min(look_at, hint_table_wake(&all->hints, now));
    mono_us begin = may_begin(all);
    if (begin <= now)
        return true;
    if (!all->looker)
        all->looker = l;
    if (all->looker == l)
        *until = all->look_at = deadline_min(look_at, begin);
    return false;
}

static void take_off(struct lane *l)
{
    l->flying = true;
    l->all->flying++;
    l->began = l->all->last_began = clock_mono_us();
}

static void land(struct lane *l)
{
    l->all->flying -= l->flying;
    l->flying = false;
}

static bool lane_wait(struct lane *l)
{
    bool work = false;
    pthread_mutex_lock(&l->all->work);
    while (!atomic_load(&l->all->stopping)) {
        mono_us until;
        work = has_work(l, clock_mono_us(), &until);
        if (work)
            break;
        l->idle = l->parcels == NULL;
        wait_cond(&l->wake, &l->all->work, until);
        l->idle = false;
    }
    if (l->all->looker == l)
        l->all->looker = NULL;
    if (work) {
        take_off(l);
        lanes_call(l->all); /* another one looks from now on */
    }
    pthread_mutex_unlock(&l->all->work);
    return work && !atomic_load(&l->all->stopping);
}

/* The store has answered: what this lane does now, the next batch need not wait for. */
static void on_answer(void *arg, bool ok)
{
    struct lane *l = arg;
    struct lanes *all = l->all;
    pthread_mutex_lock(&all->work);
    if (ok)
        all->flight_us += (clock_mono_us() - l->began - all->flight_us) / 8;
    land(l);
    lanes_call(all);
    pthread_mutex_unlock(&all->work);
}

static void leave_late(struct lanes *all, struct entry *e)
{
    struct late *late = e->late;
    for (size_t i = 0; late && i < late->n; i++) {
        if (late->entries[i] == e) {
            late->entries[i] = late->entries[--late->n];
            break;
        }
    }
    hint_table_reserve(&all->hints, e, false);
    e->late = NULL;
}

void lanes_add_late(struct lanes *l, struct late *late, struct entry *e)
{
    leave_late(l, e);
    late->entries[late->n++] = e;
    e->late = late;
    e->late_due = late->due;
}

void lanes_push_late(struct lanes *l, struct late *late)
{
    late->next = l->lates;
    l->lates = late;
}

/* The late batch that is due, as a batch. Its entries are taken from wherever they stand; those under way in another
 * lane stay in it, and so does its intent then: the batch gets one of its own. */
static struct batch *take_late(struct lane *l, struct late **at)
{
    struct batch *b = batch_new();
    if (!b)
        return NULL;
    struct late *late = *at;
    size_t left = 0;
    bool others_way[STORE_WRITE_MAX];
    b->late = true;
    for (size_t i = 0; i < late->n; i++)
        others_way[i] = hint_table_blocked(&l->all->hints, late->entries[i]);
    for (size_t i = 0; i < late->n; i++) {
        struct entry *e = late->entries[i];
        if (others_way[i]) {
            late->entries[left++] = e;
            continue;
        }
        e->late = NULL;
        hint_table_grab(&l->all->hints, e);
        batch_add(b, e);
    }
    late->n = left;
    if (left == 0) {
        *at = late->next;
        b->intent = late->intent;
        free(late);
    }
    return b;
}

/* A key whose partition went to another writer, with nothing of ours under way, is not sent any more. */
static bool unwanted(const struct lane *l, const struct item *it)
{
    const struct entry *e = it->entry;
    return l->all->w->cfg->source == SOURCE_KAFKA && !e->refs && !it->force && !e->force && !e->late && !e->late_until;
}

static void drop_unwanted(struct lane *l, struct batch *b)
{
    for (size_t i = 0; i < b->n;) {
        if (unwanted(l, &b->items[i])) {
            hint_table_done(&l->all->hints, b->items[i].entry);
            b->items[i] = b->items[--b->n];
        } else {
            i++;
        }
    }
}

static void fill(struct lane *l, struct batch *b)
{
    struct entry *entries[STORE_WRITE_MAX];
    size_t limit = (size_t)atomic_load(&l->all->batch_limit);
    size_t n = hint_table_take(&l->all->hints, entries, limit);
    for (size_t i = 0; i < n; i++)
        batch_add(b, entries[i]);
}

/* The next batch; NULL if there is nothing to do after all. */
static struct batch *lane_take(struct lane *l)
{
    pthread_mutex_lock(&l->all->work);
    mono_us now = clock_mono_us();
    struct batch *b = l->parcels;
    struct late **late;
    mono_us until = DEADLINE_NONE;
    l->began = now;
    hint_table_wake(&l->all->hints, now);
    if (b) {
        l->parcels = b->next;
        b->next = NULL;
        batch_refresh(b);
        drop_unwanted(l, b);
    } else if ((late = late_due(l->all, now, &until))) {
        b = take_late(l, late);
    } else if (hint_table_queued(&l->all->hints) && (b = batch_new())) {
        fill(l, b);
    }
    if (b && b->n == 0 && b->intent == 0) {
        free(b);
        b = NULL;
    }
    if (!b)
        land(l);
    lanes_call(l->all);
    pthread_mutex_unlock(&l->all->work);
    return b;
}

/* ---- afterwards (with the mutex held) ---- */
static void push_parcel(struct lane *l, struct batch *b, int64_t wait_ms)
{
    b->next = l->parcels;
    l->parcels = b;
    l->retry_at = deadline_in_ms(wait_ms);
}

static void delay_unseen(struct lane *l, struct item *it)
{
    struct entry *e = it->entry;
    mono_us now = clock_mono_us();
    if (!e->unseen_since)
        e->unseen_since = now;
    if (it->created_us && (!e->created_us || it->created_us < e->created_us))
        e->created_us = it->created_us;
    unsigned shift = e->delays < 6 ? e->delays : 6;
    int64_t ms = UNSEEN_MIN_MS << shift;
    hint_table_delay(&l->all->hints, e, now + 1000 * (ms < UNSEEN_MAX_MS ? ms : UNSEEN_MAX_MS));
}

/* Nothing is owed for the item any more, unless there is news of its key. */
static void finish(struct lane *l, struct item *it, mono_us began)
{
    struct entry *e = it->entry;
    bool news = e->force || (e->hint_id > it->hint_id && e->hint_id > it->version);
    if (e->late_until <= began && !e->late)
        e->late_until = 0;
    e->unseen_since = 0;
    e->delays = 0;
    if (news)
        hint_table_requeue(&l->all->hints, e);
    else if (!it->visible) /* written in any case, but not with what the hint told of */
        delay_unseen(l, it);
    else if (e->late)
        hint_table_rest(&l->all->hints, e);
    else
        hint_table_done(&l->all->hints, e);
}

/* Applied, but not to be acknowledged before its late window is over. */
static void set_late(struct lane *l, struct item *it, struct late *late)
{
    struct entry *e = it->entry;
    if (it->state == ITEM_APPLIED)
        e->applied_version = it->version;
    if (!it->covered && late) {
        if (e->late_until > late->due)
            late->due = e->late_until;
        lanes_add_late(l->all, late, e);
    }
    if (e->hint_id > it->hint_id && e->hint_id > it->version)
        hint_table_requeue(&l->all->hints, e);
    else if (!it->visible)
        delay_unseen(l, it);
    else
        hint_table_rest(&l->all->hints, e);
}

static bool stays_late(const struct item *it, mono_us began)
{
    return (it->state == ITEM_APPLIED || it->state == ITEM_PARKED) && it->late_until > began;
}

static size_t count_uncovered(const struct batch *b, mono_us began)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += stays_late(&b->items[i], began) && !b->items[i].covered;
    return n;
}

/* Items whose version moved go on at once, under the same intent. */
static void carry_moved(struct lane *l, struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].state == ITEM_MOVED)
            b->items[n++] = b->items[i];
    b->n = n;
    b->late = b->alone = b->conflicted = false;
    b->tries = 0;
    if (n > 0)
        push_parcel(l, b, 0);
    else
        free(b);
}

static void settle(struct lane *l, struct batch *b, const struct verdict *v)
{
    bool other_model = gate_pinned(l->all->w->gate).generation != v->generation;
    struct late *late = NULL;
    if (count_uncovered(b, v->began) > 0) {
        late = calloc(1, sizeof *late);
        if (!late) { /* keep everything as it is and try later */
            push_parcel(l, b, 1000);
            return;
        }
        late->intent = b->intent;
        b->intent = 0;
    }
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state == ITEM_PARKED && other_model)
            it->entry->force = true;
        if (stays_late(it, v->began))
            set_late(l, it, late);
        else if (it->state == ITEM_UNSEEN)
            delay_unseen(l, it);
        else if (it->state != ITEM_MOVED)
            finish(l, it, v->began);
    }
    if (late) {
        lanes_push_late(l->all, late);
        for (size_t i = 0; i < late->n; i++)
            late->entries[i]->late_due = late->due;
    }
    carry_moved(l, b);
}

/* What was sent may still take effect for one late window from now on. */
static void mark_unknown(struct lane *l, struct batch *b, mono_us given_up)
{
    mono_us until = given_up + l->all->w->cfg->store.late_window_ms * 1000;
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].state == ITEM_SENT && b->items[i].entry->late_until < until)
            b->items[i].entry->late_until = until;
}

/* ---- a lane that gets nowhere ---- */
static size_t lane_share(const struct lane *l)
{
    return (size_t)l->all->w->cfg->window / l->all->n;
}

/* The window belongs to all lanes: without this, what waits behind one batch would fill it and stop the reading. */
void lane_shed(struct lane *l)
{
    if (l->all->w->cfg->source != SOURCE_OUTBOX || !l->failing_since || l->all->hints.len <= lane_share(l) ||
        clock_mono_us() - l->failing_since < STUCK_MS * 1000 || !gate_is_open(l->all->w->gate))
        return;
    for (struct batch *b = l->parcels; b; b = b->next)
        for (size_t i = 0; i < b->n; i++)
            hint_table_stick(&l->all->hints, b->items[i].entry);
    size_t n = hint_table_shed(&l->all->hints, lane_share(l));
    if (n > 0 && !l->dropped) {
        char index[24];
        snprintf(index, sizeof index, "%u", l->index);
        log_warn(
            "a lane gets nowhere: of the changes that wait behind its objects, no more than a lane's share is kept; "
            "the rest is read from the outbox again when it goes on",
            "lane", index, NULL);
    }
    l->dropped |= n > 0;
    metric_add(&m_hints_dropped, (int64_t)n);
}

static void note_progress(struct lane *l, const struct verdict *v)
{
    if (v->kind == VERDICT_AGAIN && (v->store != ST_OK || v->wait_ms > 0)) {
        if (!l->failing_since)
            l->failing_since = clock_mono_us();
        return;
    }
    if (v->kind != VERDICT_SETTLED)
        return;
    l->failing_since = 0;
    if (l->dropped)
        lanes_reread(l->all);
    l->dropped = false;
}

static void lane_settle(struct lane *l, struct batch *b, const struct verdict *v)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].state == ITEM_ACKED && b->items[i].present) {
            lanes_note_applied(l->all, b->items[i].key, b->items[i].version);
            break;
        }
    pthread_mutex_lock(&l->all->work);
    note_progress(l, v);
    if (v->unknown)
        mark_unknown(l, b, v->unknown);
    struct batch *rest = NULL;
    switch (v->kind) {
    case VERDICT_SETTLED:
        settle(l, b, v);
        break;
    case VERDICT_HALVE:
        rest = batch_split(b);
        if (rest)
            push_parcel(l, rest, 0);
        push_parcel(l, b, rest ? 0 : 1000);
        break;
    case VERDICT_AGAIN:
    default:
        b->tries++;
        push_parcel(l, b, v->wait_ms);
        break;
    }
    if (v->kind == VERDICT_AGAIN)
        lane_shed(l);
    land(l);
    lanes_call(l->all);
    pthread_mutex_unlock(&l->all->work);
}

/* A batch without keys only has an intent to give back. */
static void drop_empty(struct lane *l, struct batch *b)
{
    struct err err;
    if (ledger_drop_intent(&l->worker.ledger, b->intent, &err) == ST_OK) {
        free(b);
        on_answer(l, false);
        return;
    }
    pthread_mutex_lock(&l->all->work);
    push_parcel(l, b, l->all->w->cfg->retry_max_ms);
    land(l);
    lanes_call(l->all);
    pthread_mutex_unlock(&l->all->work);
}

static void lane_step(struct lane *l, const struct pin *pin)
{
    struct verdict v = {.store = ST_STOPPED};
    struct batch *b = lane_take(l);
    if (b && b->n > 0) {
        atomic_fetch_add(&l->all->busy, 1);
        atomic_store(&l->worker.intent, b->intent);
        converge(&l->worker, b, pin, &v);
        lane_settle(l, b, &v);
        atomic_store(&l->worker.intent, 0);
        atomic_fetch_sub(&l->all->busy, 1);
    } else if (b) {
        drop_empty(l, b);
    }
    gate_leave(l->all->w->gate, l->index, v.store, &v.err);
}

void *lane_run(void *arg)
{
    struct lane *l = arg;
    struct pin pin;
    char name[16];
    snprintf(name, sizeof name, "lane-%u", l->index);
    pthread_setname_np(pthread_self(), name);
    l->worker.answered = on_answer;
    l->worker.arg = l;
    while (lane_wait(l) && gate_enter(l->all->w->gate, &pin))
        lane_step(l, &pin);
    pthread_mutex_lock(&l->all->mu);
    l->ended = true;
    pthread_cond_broadcast(&l->all->ended);
    pthread_mutex_unlock(&l->all->mu);
    return NULL;
}
