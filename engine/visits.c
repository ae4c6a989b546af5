/* visits.c - a queue of nodes that knows them. */
#include "engine/visits.h"

#include <stdlib.h>
#include <string.h>

void visits_free(struct visits *v)
{
    free(v->items);
    free(v->slots);
    *v = (struct visits){0};
}

static size_t slot_of(const struct visits *v, object_id object, int pair)
{
    uint64_t key = (uint64_t)object << 32 | (uint32_t)pair;
    size_t i = (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20;
    for (;; i++) {
        uint32_t at = v->slots[i & v->mask];
        if (!at || (v->items[at - 1].object == object && v->items[at - 1].pair == pair))
            return i & v->mask;
    }
}

static bool room(struct visits *v)
{
    if (v->n < v->cap)
        return true;
    size_t cap = v->cap ? 2 * v->cap : 256;
    struct visit *items = cap < UINT32_MAX / 2 ? realloc(v->items, cap * sizeof *items) : NULL;
    uint32_t *slots = calloc(2 * cap, sizeof *slots);
    if (items)
        v->items = items;
    if (!items || !slots) {
        free(slots);
        v->failed = true;
        return false;
    }
    free(v->slots);
    v->slots = slots;
    v->mask = 2 * cap - 1;
    v->cap = cap;
    for (size_t i = 0; i < v->n; i++)
        v->slots[slot_of(v, v->items[i].object, v->items[i].pair)] = (uint32_t)i + 1;
    return true;
}

void visits_add(struct visits *v, object_id object, int pair, uint32_t depth, bool sure)
{
    if (v->failed || !room(v))
        return;
    size_t slot = slot_of(v, object, pair);
    if (v->slots[slot] && (v->items[v->slots[slot] - 1].sure || !sure))
        return;
    v->items[v->n++] = (struct visit){object, pair, depth, sure};
    v->slots[slot] = (uint32_t)v->n;
}

bool visits_next(struct visits *v, struct visit *out)
{
    if (v->failed || v->at == v->n)
        return false;
    *out = v->items[v->at++];
    return true;
}

bool visits_last(const struct visits *v, size_t i)
{
    return v->slots[slot_of(v, v->items[i].object, v->items[i].pair)] == i + 1;
}
