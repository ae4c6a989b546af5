#include "inventory-lister/decide/flight.h"

#include <stdlib.h>
#include <string.h>

#include "common/admin/metrics.h"

struct metric m_decide_joined = METRIC_INIT(METRIC_COUNTER, "relata_lister_checks_joined_total",
                                            "Checks that were answered by an equal one in flight.", NULL);
struct metric m_decide_waiting =
    METRIC_INIT(METRIC_GAUGE, "relata_lister_checks_waiting", "Checks that wait for a connection to the store.", NULL);

/* Checks of one BatchCheck that repeats failed ones. */
#define AGAIN_MAX 15

static struct flight **slot_of(struct decider *d, const struct cache_key *k)
{
    return &d->table[k->id[0] % FLIGHT_SLOTS];
}

static bool same_key(const struct cache_key *a, const struct cache_key *b)
{
    return a->id[0] == b->id[0] && a->id[1] == b->id[1];
}

void flight_unlist(struct decider *d, struct flight *f)
{
    if (!f->listed)
        return;
    for (struct flight **at = slot_of(d, &f->key); *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    f->listed = false;
}

static void flight_list(struct decider *d, struct flight *f)
{
    struct flight **slot = slot_of(d, &f->key);

    f->next = *slot;
    *slot = f;
    f->listed = true;
}

void bunch_free(struct bunch *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->n; i++)
        free(b->flights[i].text);
    free(b->subject);
    free(b->traceparent);
    free(b);
}

/* ---- waiters ---- */

static void waiter_join(struct waiter *w, struct flight *f)
{
    w->flight = f;
    w->next = f->waiters;
    w->link = &f->waiters;
    if (w->next)
        w->next->link = &w->next;
    f->waiters = w;
    f->bunch->waiting++;
}

/* Nobody waits for the answers any more. No one may come to wait for them either. */
static void give_up(struct decider *d, struct bunch *b)
{
    for (size_t i = 0; i < b->n; i++)
        flight_unlist(d, &b->flights[i]);
    atomic_store(&b->given_up, true);
    store_conn_wake(b->conn);
}

void waiter_leave(struct waiter *w)
{
    struct bunch *b = w->flight ? w->flight->bunch : NULL;

    if (!b)
        return;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    w->flight = NULL;
    if (--b->waiting == 0 && b->conn)
        give_up(w->group->d, b);
}

static void waiter_done(struct waiter *w)
{
    struct decide_group *g = w->group;

    waiter_leave(w);
    if (--g->pending == 0)
        pthread_cond_signal(&g->done);
}

void waiter_decide(struct waiter *w, bool allowed)
{
    w->item->decision = allowed ? DECISION_ALLOW : DECISION_DENY;
    w->item->by = BY_STORE;
    waiter_done(w);
}

void waiter_fail(struct waiter *w, const struct err *why)
{
    struct decide_group *g = w->group;

    w->item->decision = DECISION_FAILED;
    if (g->why.status == ST_OK)
        g->why = *why;
    waiter_done(w);
}

/* ---- putting checks into the queue ---- */

/*
 * Whether an answer of this flight will do for the waiter: its check begins later, or it began after all that makes
 * older answers useless, and it asks for enough.
 */
static bool may_join(struct decider *d, const struct flight *f, const struct waiter *w, bool higher)
{
    const struct bunch *b = f->bunch;

    if (!b->began)
        return true;
    return b->began >= w->group->q->not_before && (b->higher || !higher) && cache_current(d->cache, &f->key, b->began);
}

static struct flight *find(struct decider *d, const struct waiter *w, bool higher)
{
    for (struct flight *f = *slot_of(d, &w->key); f; f = f->next)
        if (same_key(&f->key, &w->key) && may_join(d, f, w, higher))
            return f;
    return NULL;
}

static struct bunch *bunch_new(const struct decide_group *g, size_t max)
{
    struct bunch *b = calloc(1, sizeof(*b) + max * sizeof(b->flights[0]));

    if (!b)
        return NULL;
    b->max = max;
    b->subject = strdup(g->q->subject);
    b->traceparent = strdup(g->q->traceparent ? g->q->traceparent : "");
    snprintf(b->store_id, sizeof(b->store_id), "%s", g->store_id);
    snprintf(b->model_id, sizeof(b->model_id), "%s", g->q->model_id);
    if (!b->subject || !b->traceparent) {
        bunch_free(b);
        return NULL;
    }
    return b;
}

/* A flight's strings are its own: who asked first may be gone before the answer. */
static struct flight *bunch_add(struct bunch *b, const struct waiter *w)
{
    size_t object = strlen(w->item->object) + 1, relation = strlen(w->item->relation) + 1;
    char *text = malloc(object + relation);
    struct flight *f = &b->flights[b->n];

    if (!text)
        return NULL;
    memcpy(text, w->item->object, object);
    memcpy(text + object, w->item->relation, relation);
    *f = (struct flight){.key = w->key,
                         .text = text,
                         .object = text,
                         .relation = text + object,
                         .conditional = w->conditional,
                         .bunch = b};
    b->n++;
    return f;
}

/*
 * Fair queueing, as routers have it: a request's bunches have turns one after the other, the first one no earlier than
 * the one that was sent last. So a page of 1,000 rows is 20 turns long, and a page of 50 that comes later waits for the
 * first of them only.
 */
static uint64_t next_round(const struct decider *d, const struct decide_query *q)
{
    return (q->round > d->round ? q->round : d->round) + 1;
}

/* Behind all that have the same turn. */
static void insert(struct decider *d, struct bunch *b)
{
    struct bunch *before = d->tail;

    while (before && before->round > b->round)
        before = before->prev;
    b->prev = before;
    b->next = before ? before->next : d->head;
    *(before ? &before->next : &d->head) = b;
    *(b->next ? &b->next->prev : &d->tail) = b;
}

static void append(struct decider *d, struct bunch *b)
{
    insert(d, b);
    d->queued += b->n;
    metric_set(&m_decide_waiting, (double)d->queued);
    pthread_cond_signal(&d->work);
}

static void take_out(struct decider *d, struct bunch *b)
{
    *(b->prev ? &b->prev->next : &d->head) = b->next;
    *(b->next ? &b->next->prev : &d->tail) = b->prev;
    b->next = b->prev = NULL;
}

/* Somebody whose turn comes earlier waits for it too. */
static void bring_forward(struct decider *d, struct bunch *b, uint64_t round)
{
    if (b->began || b->round <= round)
        return;
    take_out(d, b);
    b->round = round;
    insert(d, b);
}

/* All of one repetition come from one bunch, but their waiters may be of several groups. */
static bool fits(const struct bunch *b, const struct waiter *w)
{
    return b && b->n < b->max && strcmp(b->subject, w->group->q->subject) == 0 &&
           strcmp(b->model_id, w->group->q->model_id) == 0;
}

static struct flight *flight_for(struct decider *d, struct bunch **open, const struct waiter *w, size_t size,
                                 mono_us at)
{
    struct flight *f;

    if (!fits(*open, w)) {
        struct bunch *fresh = bunch_new(w->group, size);
        if (!fresh)
            return NULL;
        fresh->at = at;
        fresh->round = w->group->q->round = next_round(d, w->group->q);
        if (*open)
            append(d, *open);
        *open = fresh;
    }
    f = bunch_add(*open, w);
    if (f && !at)
        flight_list(d, f);
    return f;
}

bool flights_enqueue(struct decider *d, struct waiter **list, size_t n, mono_us at, bool higher)
{
    struct bunch *open = NULL;
    bool ok = true;
    mono_us now = clock_mono_us();
    /* Of one size: 51 are 26 and 25, which are answered sooner than 50 and 1. */
    size_t most = (size_t)d->cfg.batch_size;
    /* What is repeated goes in smaller ones: a store that ran out of time has less to do in each. */
    if (at && most > AGAIN_MAX)
        most = AGAIN_MAX;
    size_t bunches = (n + most - 1) / most;
    size_t size = (n + bunches - 1) / bunches;

    for (size_t i = 0; i < n; i++) {
        struct waiter *w = list[i];
        bool need = higher || w->group->q->not_before > 0 || cache_suspect(d->cache, &w->key, now);
        struct flight *f = at ? NULL : find(d, w, need);

        if (f) {
            metric_add(&m_decide_joined, 1);
            if (f->bunch != open)
                bring_forward(d, f->bunch, next_round(d, w->group->q));
        } else {
            f = flight_for(d, &open, w, size, at);
        }
        if (!f) {
            ok = false;
            continue;
        }
        if (!f->bunch->began)
            f->bunch->higher |= need;
        waiter_join(w, f);
    }
    if (open && open->n > 0)
        append(d, open);
    else
        bunch_free(open);
    return ok;
}

/* ---- taking them out ---- */

/* Flights that nobody waits for any more are not sent: their clients are gone. How many are left. */
static size_t mark_wanted(struct decider *d, struct bunch *b)
{
    size_t wanted = 0;

    for (size_t i = 0; i < b->n; i++) {
        struct flight *f = &b->flights[i];
        f->sent = f->waiters != NULL;
        wanted += f->sent;
        if (!f->sent)
            flight_unlist(d, f);
    }
    return wanted;
}

struct bunch *flights_take(struct decider *d, mono_us now, mono_us *next)
{
    *next = DEADLINE_NONE;
    if (d->paused_until > now) {
        *next = d->paused_until;
        return NULL;
    }
    if (d->flying >= (size_t)d->limit)
        return NULL; /* whoever comes back takes the next one */
    for (struct bunch *b = d->head, *behind; b; b = behind) {
        behind = b->next;
        if (b->at > now) {
            *next = deadline_min(*next, b->at);
            continue;
        }
        take_out(d, b);
        d->queued -= b->n;
        metric_set(&m_decide_waiting, (double)d->queued);
        if (mark_wanted(d, b) == 0) {
            bunch_free(b);
            continue;
        }
        b->began = now;
        if (b->round > d->round)
            d->round = b->round;
        d->flying++;
        for (size_t i = 0; i < b->n; i++)
            b->higher |= b->flights[i].sent && cache_suspect(d->cache, &b->flights[i].key, now);
        return b;
    }
    return NULL;
}
