#include "tuple-writer/batch.h"

#include <stdlib.h>
#include <string.h>

struct batch *batch_new(void)
{
    return calloc(1, sizeof(struct batch));
}

/* What is taken over here (force, created_us) is the item's from now on: what the entry gets meanwhile is news. */
static void item_refresh(struct item *it)
{
    struct entry *e = it->entry;
    it->state = ITEM_TODO;
    it->hint_id = e->hint_id;
    it->hint_xid = e->hint_xid;
    it->group = e->group;
    it->unseen = e->unseen;
    it->late_until = e->late_until;
    it->covered = e->late && e->late_due >= e->late_until;
    it->unseen_since = e->unseen_since;
    it->applied_version = e->applied_version;
    memcpy(it->traceparent, e->traceparent, sizeof it->traceparent);
    it->force |= e->force;
    e->force = false;
    if (e->created_us && (!it->created_us || e->created_us < it->created_us))
        it->created_us = e->created_us;
    e->created_us = 0;
    free(it->observed_name);
    free(it->observed_context);
    it->observed_name = it->observed_context = NULL;
    it->observed = it->differs = false;
}

bool batch_add(struct batch *b, struct entry *e)
{
    if (b->n == STORE_WRITE_MAX)
        return false;
    struct item *it = &b->items[b->n++];
    memset(it, 0, sizeof *it);
    it->entry = e;
    it->key = e->key;
    item_refresh(it);
    return true;
}

void batch_refresh(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        item_refresh(&b->items[i]);
}

static int by_key(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return tuple_key_cmp(x->key, y->key);
}

static int by_group(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return by_key(a, b);
}

void batch_sort(struct batch *b)
{
    qsort(b->items, b->n, sizeof *b->items, by_key);
}

/* The end of a group that lies nearest to the middle; 0 or n if there is one group only. */
static size_t group_boundary(const struct batch *b)
{
    size_t best = 0;
    for (size_t i = 1; i < b->n; i++) {
        if (b->items[i].group == b->items[i - 1].group)
            continue;
        size_t d = 2 * i > b->n ? 2 * i - b->n : b->n - 2 * i;
        size_t d_best = 2 * best > b->n ? 2 * best - b->n : b->n - 2 * best;
        if (d < d_best)
            best = i;
    }
    return best;
}

struct batch *batch_split(struct batch *b)
{
    struct batch *rest = batch_new();
    if (!rest)
        return NULL;
    qsort(b->items, b->n, sizeof *b->items, by_group);
    size_t cut = group_boundary(b);
    if (cut == 0)
        cut = b->n / 2;
    rest->n = b->n - cut;
    memcpy(rest->items, b->items + cut, rest->n * sizeof *rest->items);
    b->n = cut;
    rest->intent = b->intent;
    b->intent = 0;
    rest->late = b->late;
    rest->alone = b->alone = true;
    rest->conflicted = b->conflicted = false;
    return rest;
}
