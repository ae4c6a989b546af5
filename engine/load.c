/*
 * load.c - many tuples into an empty engine: collected as numbers, sorted by counting, each object made once.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/graph_internal.h"

#define BLOCK 65536

struct entry {
    object_id object, subject;
    name_id relation, subject_relation;
};

struct block {
    struct block *next;
    size_t n;
    struct entry entries[BLOCK];
};

/* A conditional tuple on its way. */
struct conditional {
    struct entry entry;
    uint64_t key; /* of its object */
    size_t seq;
    struct graph_condition item;
};

struct loading {
    struct block *blocks;
    size_t n;
    struct conditional *conditionals;
    size_t nconditionals, cap;
};

/* Keys of all objects in one direction: those of object i from start[i] to start[i + 1]. */
struct placing {
    uint64_t *start, *keys;
};

void loading_free(struct engine *e)
{
    struct loading *l = e->loading;
    if (!l)
        return;
    for (struct block *b = l->blocks, *next; b; b = next) {
        next = b->next;
        graph_release(e, b);
    }
    for (size_t i = 0; i < l->nconditionals; i++)
        graph_release(e, (void *)(uintptr_t)l->conditionals[i].item.condition.s);
    graph_release(e, l->conditionals);
    graph_release(e, l);
    e->loading = NULL;
}

static struct loading *loading_of(struct engine *e)
{
    if (!e->loading) {
        e->loading = graph_alloc(e, sizeof *e->loading);
        if (e->loading)
            *e->loading = (struct loading){0};
    }
    return e->loading;
}

static bool remember(struct engine *e, struct loading *l, struct entry entry)
{
    if (!l->blocks || l->blocks->n == BLOCK) {
        struct block *b = graph_alloc(e, sizeof *b);
        if (!b)
            return false;
        b->n = 0;
        b->next = l->blocks;
        l->blocks = b;
    }
    l->blocks->entries[l->blocks->n++] = entry;
    l->n++;
    return true;
}

static bool remember_conditional(struct engine *e, struct loading *l, const struct engine_tuple *tuple,
                                 struct entry entry)
{
    if (l->nconditionals == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct conditional *c = graph_alloc(e, cap * sizeof *c);
        if (!c)
            return false;
        if (l->nconditionals)
            memcpy(c, l->conditionals, l->nconditionals * sizeof *c);
        graph_release(e, l->conditionals);
        l->conditionals = c;
        l->cap = cap;
    }
    struct conditional *c = &l->conditionals[l->nconditionals];
    *c = (struct conditional){.entry = entry, .seq = l->nconditionals};
    c->key = graph_key(entry.relation, entry.subject_relation, entry.subject);
    if (!condition_make(e, tuple, c->key, &c->item))
        return false;
    l->nconditionals++;
    return true;
}

enum engine_status engine_load(struct engine *e, const struct engine_tuple *tuples, size_t n)
{
    struct loading *l = loading_of(e);
    for (size_t i = 0; i < n; i++) {
        struct edit f, b;
        if (!l || !ids_of(e, &tuples[i], true, &f, &b))
            return ENGINE_NOMEM;
        struct entry entry = {f.name->id, b.name->id, key_first(f.key), key_second(f.key)};
        if (!(tuples[i].condition.len ? remember_conditional(e, l, &tuples[i], entry) : remember(e, l, entry)))
            return ENGINE_NOMEM;
    }
    return ENGINE_OK;
}

/* ---- sorting ---- */

static object_id owner_of(const struct entry *en, enum direction dir)
{
    return dir == FORWARD ? en->object : en->subject;
}

static uint64_t key_of(const struct entry *en, enum direction dir)
{
    return dir == FORWARD ? graph_key(en->relation, en->subject_relation, en->subject)
                          : graph_key(en->subject_relation, en->relation, en->object);
}

static bool place_keys(struct engine *e, const struct loading *l, enum direction dir, struct placing *p)
{
    size_t ids = e->next_id, conditionals = dir == BACKWARD ? l->nconditionals : 0;
    p->start = graph_alloc(e, (ids + 1) * sizeof *p->start);
    p->keys = graph_alloc(e, (l->n + conditionals + 1) * sizeof *p->keys);
    if (!p->start || !p->keys)
        return false;
    memset(p->start, 0, (ids + 1) * sizeof *p->start);
    for (const struct block *b = l->blocks; b; b = b->next)
        for (size_t i = 0; i < b->n; i++)
            p->start[owner_of(&b->entries[i], dir)]++;
    for (size_t i = 0; i < conditionals; i++)
        p->start[owner_of(&l->conditionals[i].entry, dir)]++;
    uint64_t at = 0;
    for (size_t i = 0; i <= ids; i++)
        at += p->start[i], p->start[i] = at; /* the end; placing moves it down to the start */
    for (const struct block *b = l->blocks; b; b = b->next)
        for (size_t i = 0; i < b->n; i++)
            p->keys[--p->start[owner_of(&b->entries[i], dir)]] = key_of(&b->entries[i], dir);
    for (size_t i = 0; i < conditionals; i++)
        p->keys[--p->start[owner_of(&l->conditionals[i].entry, dir)]] = key_of(&l->conditionals[i].entry, dir);
    return true;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int by_object(const void *pa, const void *pb)
{
    const struct conditional *a = pa, *b = pb;
    if (a->entry.object != b->entry.object)
        return a->entry.object < b->entry.object ? -1 : 1;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

/* Ascending, each once. */
static size_t tidy(uint64_t *keys, size_t n)
{
    size_t k = 0;
    if (n > 1)
        qsort(keys, n, sizeof *keys, by_value);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || keys[i] != keys[i - 1])
            keys[k++] = keys[i];
    return k;
}

/* ---- objects ---- */

static bool set_of(struct txn *t, uint64_t *keys, size_t n, struct set *out)
{
    *out = (struct set){(uint32_t)n, keys, NULL};
    if (n <= INLINE_MAX)
        return true;
    out->keys = NULL;
    out->tree = set_build(t, keys, n);
    return out->tree != NULL;
}

/* Of conditionals c[0..n) of one object, the last of each key; they leave the loading. The same tuple without a
 * condition does not count. */
static struct conditions *take_conditions(struct txn *t, struct conditional *c, size_t n, uint64_t *keys, size_t *nkeys)
{
    struct conditions *out = txn_alloc(t, sizeof *out + n * sizeof out->items[0]);
    size_t k = 0;
    if (!out)
        return NULL;
    out->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (i + 1 == n || c[i].key != c[i + 1].key)
            out->items[out->n++] = c[i].item;
        else
            graph_release(t->e, (void *)(uintptr_t)c[i].item.condition.s);
        c[i].item.condition.s = NULL;
    }
    for (size_t i = 0, j = 0; i < *nkeys; i++) {
        while (j < out->n && out->items[j].key < keys[i])
            j++;
        if (j == out->n || out->items[j].key != keys[i])
            keys[k++] = keys[i];
    }
    *nkeys = k;
    return out;
}

static struct object *make(struct txn *t, const struct name *name, const struct placing placing[2],
                           struct conditional *c, size_t nc, struct view *view)
{
    struct set sets[2];
    struct conditions *conditions = NULL;
    uint64_t *keys[2];
    size_t n[2];
    for (int dir = 0; dir < 2; dir++) {
        keys[dir] = placing[dir].keys + placing[dir].start[name->id];
        n[dir] = tidy(keys[dir], placing[dir].start[name->id + 1] - placing[dir].start[name->id]);
    }
    if (nc && !(conditions = take_conditions(t, c, nc, keys[FORWARD], &n[FORWARD])))
        return NULL;
    if (!set_of(t, keys[FORWARD], n[FORWARD], &sets[FORWARD]) ||
        !set_of(t, keys[BACKWARD], n[BACKWARD], &sets[BACKWARD]))
        return NULL;
    view->tuples += n[BACKWARD];
    return object_make(t, name, conditions, &sets[FORWARD], &sets[BACKWARD]);
}

struct build {
    struct txn t;
    struct placing placing[2];
    struct name **names; /* by id */
    struct placed *placed;
    size_t nplaced;
    struct view *view;
};

static bool build_objects(struct build *b, struct loading *l)
{
    struct engine *e = b->t.e;
    size_t c = 0;
    for (object_id id = 1; id < e->next_id; id++) {
        size_t from = c;
        while (c < l->nconditionals && l->conditionals[c].entry.object == id)
            c++;
        if (!b->names[id])
            continue;
        b->placed[b->nplaced] =
            (struct placed){id, make(&b->t, b->names[id], b->placing, l->conditionals + from, c - from, b->view)};
        if (!b->placed[b->nplaced].object)
            return false;
        b->nplaced++;
        b->t.nmade = 0; /* it belongs to the object now */
    }
    return radix_place(&b->t, b->view, b->placed, b->nplaced, b->view);
}

static bool begin_build(struct build *b, struct loading *l)
{
    struct engine *e = b->t.e;
    struct table *t = atomic_load(&e->objects);
    b->view = graph_alloc(e, sizeof *b->view);
    b->names = graph_alloc(e, e->next_id * sizeof *b->names);
    b->placed = graph_alloc(e, e->next_id * sizeof *b->placed);
    if (!b->view || !b->names || !b->placed || !graves_reserve(e, &e->garbage, 1) ||
        !place_keys(e, l, FORWARD, &b->placing[FORWARD]) || !place_keys(e, l, BACKWARD, &b->placing[BACKWARD]))
        return false;
    memset(b->names, 0, e->next_id * sizeof *b->names);
    for (size_t i = 0; i <= t->mask; i++) {
        struct name *n = names_at(t, i);
        if (n)
            b->names[n->id] = n;
    }
    if (l->nconditionals)
        qsort(l->conditionals, l->nconditionals, sizeof *l->conditionals, by_object);
    for (struct block *block = l->blocks, *next; block; block = next) {
        next = block->next;
        graph_release(e, block);
    }
    l->blocks = NULL;
    return true;
}

enum engine_status engine_load_end(struct engine *e, uint64_t revision)
{
    struct loading *l = loading_of(e);
    struct build b = {.t = {.e = e}};
    const struct view *old = atomic_load(&e->view);
    bool done = l && begin_build(&b, l);
    if (done) {
        *b.view = (struct view){.engine = e, .revision = revision};
        done = build_objects(&b, l) && txn_gone(&b.t, old);
        b.view->objects = b.nplaced;
    }
    if (done)
        readers_publish(e, b.view, &b.t);
    for (size_t i = 0; !done && i < b.nplaced; i++)
        object_free(e, b.placed[i].object);
    txn_end(&b.t, done);
    for (int dir = 0; dir < 2; dir++) {
        graph_release(e, b.placing[dir].start);
        graph_release(e, b.placing[dir].keys);
    }
    graph_release(e, b.names);
    graph_release(e, b.placed);
    if (!done)
        graph_release(e, b.view);
    loading_free(e);
    readers_reclaim(e);
    return done ? ENGINE_OK : ENGINE_NOMEM;
}
