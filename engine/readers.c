/*
 * readers.c - who may still see what: epochs.
 *
 * Each published view begins an epoch. A reader notes the epoch before it takes the view; what a change set made
 * superfluous is stamped with the epoch that it ended, and freed when every reader inside has noted a later one.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph_internal.h"

/* ---- memory ---- */

void *graph_alloc(struct engine *e, size_t size)
{
    if (e->fail_in && --e->fail_in <= 0) {
        e->fail_in = 1;
        return NULL;
    }
    void *p = malloc(size ? size : 1);
    if (p)
        atomic_fetch_add_explicit(&e->bytes, malloc_usable_size(p) + sizeof(size_t), memory_order_relaxed);
    return p;
}

void graph_release(struct engine *e, void *p)
{
    if (!p)
        return;
    atomic_fetch_sub_explicit(&e->bytes, malloc_usable_size(p) + sizeof(size_t), memory_order_relaxed);
    free(p);
}

void graph_fail_in(struct engine *e, long n)
{
    e->fail_in = n;
}

static bool grow(struct engine *e, void ***items, size_t n, size_t *cap)
{
    if (n < *cap)
        return true;
    size_t more = *cap ? 2 * *cap : 64;
    void **next = graph_alloc(e, more * sizeof *next);
    if (!next)
        return false;
    if (n)
        memcpy(next, *items, n * sizeof *next);
    graph_release(e, *items);
    *items = next;
    *cap = more;
    return true;
}

bool txn_made(struct txn *t, void *p)
{
    if (!grow(t->e, &t->made, t->nmade, &t->made_cap)) {
        graph_release(t->e, p);
        return false;
    }
    t->made[t->nmade++] = p;
    return true;
}

void *txn_alloc(struct txn *t, size_t size)
{
    void *p = graph_alloc(t->e, size);
    return p && txn_made(t, p) ? p : NULL;
}

bool txn_gone(struct txn *t, const void *p)
{
    if (!grow(t->e, &t->gone, t->ngone, &t->gone_cap))
        return false;
    t->gone[t->ngone++] = (void *)(uintptr_t)p;
    return true;
}

void txn_end(struct txn *t, bool done)
{
    for (size_t i = 0; !done && i < t->nmade; i++)
        graph_release(t->e, t->made[i]);
    graph_release(t->e, t->made);
    graph_release(t->e, t->gone);
}

bool graves_reserve(struct engine *e, struct graves *g, size_t more)
{
    if (g->n + more <= g->cap)
        return true;
    size_t live = g->n - g->head, cap = 2 * (live + more) + 16;
    struct grave *items = graph_alloc(e, cap * sizeof *items);
    if (!items)
        return false;
    if (live)
        memcpy(items, g->items + g->head, live * sizeof *items);
    graph_release(e, g->items);
    *g = (struct graves){items, 0, live, cap};
    return true;
}

void graves_push(struct graves *g, void *p, uint64_t epoch)
{
    g->items[g->n++] = (struct grave){p, epoch};
}

void garbage_push(struct engine *e, void *p)
{
    atomic_fetch_add(&e->garbage_bytes, malloc_usable_size(p));
    graves_push(&e->garbage, p, atomic_load(&e->epoch));
}

/* ---- epochs ---- */

/* The first epoch that somebody may still be in. */
static uint64_t oldest(const struct engine *e)
{
    uint64_t min = atomic_load(&e->epoch);
    for (const struct engine_reader *r = atomic_load(&e->readers); r; r = r->next) {
        uint64_t at = atomic_load(&r->at);
        if (at && at < min)
            min = at;
    }
    return min;
}

static struct grave *next_below(struct graves *g, uint64_t epoch)
{
    if (g->head < g->n && g->items[g->head].epoch < epoch)
        return &g->items[g->head++];
    if (g->head == g->n)
        g->head = g->n = 0;
    return NULL;
}

/* Gives an id back. If there is no memory to remember it, it is lost: one of four thousand million. */
static void give_back(struct engine *e, object_id id)
{
    if (e->nfree == e->free_cap) {
        size_t cap = e->free_cap ? 2 * e->free_cap : 64;
        object_id *ids = graph_alloc(e, cap * sizeof *ids);
        if (!ids)
            return;
        if (e->nfree)
            memcpy(ids, e->free_ids, e->nfree * sizeof *ids);
        graph_release(e, e->free_ids);
        e->free_ids = ids;
        e->free_cap = cap;
    }
    e->free_ids[e->nfree++] = id;
}

void readers_reclaim(struct engine *e)
{
    uint64_t min = oldest(e);
    const struct view *now = atomic_load(&e->view);
    struct grave *g;
    while ((g = next_below(&e->garbage, min)) != NULL) {
        atomic_fetch_sub(&e->garbage_bytes, malloc_usable_size(g->p));
        graph_release(e, g->p);
    }
    while ((g = next_below(&e->dead, min)) != NULL) {
        struct name *name = g->p;
        give_back(e, name->id);
        graph_release(e, name);
    }
    /* A name can go when no view in use has its object: it is still without tuples, and has been for a whole epoch. */
    while (e->unused.head < e->unused.n && graves_reserve(e, &e->dead, 1) &&
           (g = next_below(&e->unused, min)) != NULL) {
        struct name *name = g->p;
        if (--name->pending > 0 || view_object(now, name->id))
            continue;
        names_drop(e, name);
        graves_push(&e->dead, name, atomic_load(&e->epoch));
    }
    next_below(&e->unused, 0);
}

void readers_publish(struct engine *e, const struct view *next, struct txn *t)
{
    uint64_t epoch = atomic_load(&e->epoch);
    atomic_store(&e->view, next);
    for (size_t i = 0; i < t->ngone; i++)
        garbage_push(e, t->gone[i]);
    atomic_store(&e->epoch, epoch + 1);
    atomic_store(&e->revision, next->revision);
    atomic_store(&e->tuples, next->tuples);
    atomic_store(&e->nobjects, next->objects);
}

/* ---- readers ---- */

struct engine_reader *engine_reader_new(struct engine *e)
{
    for (struct engine_reader *r = atomic_load(&e->readers); r; r = r->next) {
        bool used = false;
        if (atomic_compare_exchange_strong(&r->used, &used, true))
            return r;
    }
    struct engine_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->engine = e;
    atomic_store(&r->used, true);
    r->next = atomic_load(&e->readers);
    while (!atomic_compare_exchange_weak(&e->readers, &r->next, r))
        ;
    return r;
}

void engine_reader_free(struct engine_reader *r)
{
    if (!r)
        return;
    if (r->scratch_free)
        r->scratch_free(r->scratch);
    r->scratch = NULL;
    r->scratch_free = NULL;
    atomic_store(&r->used, false);
}

uint64_t engine_begin(struct engine_reader *r)
{
    atomic_store(&r->at, atomic_load(&r->engine->epoch));
    r->view = atomic_load(&r->engine->view);
    return r->view->revision;
}

void engine_end(struct engine_reader *r)
{
    r->view = NULL;
    atomic_store(&r->at, 0);
}

const struct view *reader_view(const struct engine_reader *r)
{
    return r->view;
}

const char *engine_reason(const struct engine_reader *r)
{
    return r->reason;
}
