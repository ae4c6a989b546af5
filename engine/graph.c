/* graph.c - the engine's tuples: a change set becomes a new view; what readers ask of a view. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph_internal.h"

/* ---- objects ---- */

static size_t set_words(const struct set *s)
{
    return s->tree ? 1 : s->n;
}

static uint64_t *put_set(uint64_t *w, const struct set *s)
{
    if (s->tree)
        *w = (uintptr_t)s->tree;
    else if (s->n)
        memcpy(w, s->keys, s->n * sizeof *w);
    return w + set_words(s);
}

struct object *object_make(struct txn *t, const struct name *name, const struct conditions *conditions,
                           const struct set *forward, const struct set *backward)
{
    size_t words = (conditions != NULL) + set_words(forward) + set_words(backward);
    uint64_t address = (uintptr_t)name;
    struct object *o = address >> ADDRESS_BITS ? NULL : txn_alloc(t, sizeof *o + words * sizeof(uint64_t));
    if (!o)
        return NULL;
    o->named = address | (uint64_t)name->type << ADDRESS_BITS;
    o->n[FORWARD] = forward->n | (forward->tree ? N_TREE : 0) | (conditions ? N_CONDITIONS : 0);
    o->n[BACKWARD] = backward->n | (backward->tree ? N_TREE : 0) | (name->len == 1 && *name->s == '*' ? N_WILDCARD : 0);
    uint64_t *w = o->words;
    if (conditions)
        *w++ = (uintptr_t)conditions;
    put_set(put_set(w, forward), backward);
    return o;
}

/* ---- objects by id ---- */

static struct radix *place(struct txn *t, const struct radix *old, unsigned level, const struct placed *p, size_t n)
{
    struct radix *r = txn_alloc(t, sizeof *r);
    if (!r || (old && !txn_gone(t, old)))
        return NULL;
    if (old)
        *r = *old;
    else
        memset(r, 0, sizeof *r);
    for (size_t i = 0; i < n;) {
        size_t slot = p[i].id >> (RADIX_BITS * (level - 1)) & (RADIX_WIDTH - 1), from = i;
        if (level == 1) {
            r->slot[slot] = p[i++].object;
            continue;
        }
        while (i < n && (p[i].id >> (RADIX_BITS * (level - 1)) & (RADIX_WIDTH - 1)) == slot)
            i++;
        r->slot[slot] = place(t, r->slot[slot], level - 1, p + from, i - from);
        if (!r->slot[slot])
            return NULL;
    }
    return r;
}

bool radix_place(struct txn *t, const struct view *old, const struct placed *placed, size_t n, struct view *out)
{
    out->top = old->top;
    out->height = old->height;
    if (n == 0)
        return true;
    while (out->height == 0 || (out->height < 6 && placed[n - 1].id >> (RADIX_BITS * out->height))) {
        struct radix *above = NULL;
        if (out->top) {
            above = txn_alloc(t, sizeof *above);
            if (!above)
                return false;
            memset(above, 0, sizeof *above);
            above->slot[0] = (void *)(uintptr_t)out->top;
        }
        out->top = above;
        out->height++;
    }
    out->top = place(t, out->top, out->height, placed, n);
    return out->top != NULL;
}

/* ---- a change set ---- */

struct work {
    struct txn t;
    const struct engine_change *changes;
    const struct view *old;
    struct edit *edits[2]; /* by direction: ascending object and key, each once */
    size_t n[2];
    struct placed *placed;
    struct name **names; /* of what is placed */
    size_t nplaced;
};

static int by_key(const void *pa, const void *pb)
{
    const struct edit *a = pa, *b = pb;
    if (a->name != b->name)
        return a->name->id < b->name->id ? -1 : 1;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->change < b->change ? -1 : a->change > b->change;
}

/* Of edits of one key the last stays. */
static size_t sort_edits(struct edit *edits, size_t n)
{
    size_t k = 0;
    qsort(edits, n, sizeof *edits, by_key);
    for (size_t i = 0; i < n; i++)
        if (i + 1 == n || edits[i].name != edits[i + 1].name || edits[i].key != edits[i + 1].key)
            edits[k++] = edits[i];
    return k;
}

static bool words_of(struct engine *e, const struct engine_tuple *tuple, const struct parts *o, const struct parts *s,
                     bool make, name_id *out)
{
    const struct engine_text *texts[] = {&o->type, &tuple->relation, &s->type, &s->relation};
    for (size_t i = 0; i < 4; i++) {
        const struct engine_text *w = texts[i];
        out[i] = make && w->len ? graph_name_intern(e, w->s, w->len) : graph_name_find(e, w->s, w->len);
        if (!out[i] && (w->len || i < 3))
            return false;
    }
    return true;
}

bool ids_of(struct engine *e, const struct engine_tuple *tuple, bool make, struct edit *forward, struct edit *backward)
{
    struct parts o = parts_of(tuple->object), s = parts_of(tuple->subject);
    name_id w[4];
    forward->name = backward->name = NULL;
    if (!words_of(e, tuple, &o, &s, make, w))
        return false;
    forward->name = make ? names_intern(e, w[0], o.id.s, o.id.len) : names_find(e, w[0], o.id.s, o.id.len);
    if (!forward->name)
        return false;
    backward->name = make ? names_intern(e, w[2], s.id.s, s.id.len) : names_find(e, w[2], s.id.s, s.id.len);
    if (!backward->name)
        return false;
    forward->key = graph_key(w[1], w[3], backward->name->id);
    backward->key = graph_key(w[3], w[1], forward->name->id);
    return true;
}

/* False: no memory. */
static bool read_changes(struct work *w, size_t n)
{
    struct edit *f = w->edits[FORWARD], *b = w->edits[BACKWARD];
    for (size_t i = 0; i < n; i++) {
        const struct engine_change *c = &w->changes[i];
        struct edit *ef = &f[w->n[FORWARD]], *eb = &b[w->n[BACKWARD]];
        bool known = ids_of(w->t.e, &c->tuple, !c->remove, ef, eb), conditional = c->tuple.condition.len > 0;
        if (known || !c->remove) {
            w->n[FORWARD]++; /* also the names of one that failed half-way */
            w->n[BACKWARD]++;
        }
        if (!known && !c->remove)
            return false;
        ef->change = eb->change = (uint32_t)i;
        ef->add = !c->remove && !conditional;
        ef->conditional = !c->remove && conditional;
        eb->add = !c->remove;
        eb->conditional = false;
    }
    w->n[FORWARD] = sort_edits(f, w->n[FORWARD]);
    w->n[BACKWARD] = sort_edits(b, w->n[BACKWARD]);
    return true;
}

bool condition_make(struct engine *e, const struct engine_tuple *tuple, uint64_t key, struct graph_condition *out)
{
    char *value = graph_alloc(e, tuple->condition.len + tuple->context.len + 1);
    if (!value)
        return false;
    memcpy(value, tuple->condition.s, tuple->condition.len);
    if (tuple->context.len)
        memcpy(value + tuple->condition.len, tuple->context.s, tuple->context.len);
    *out = (struct graph_condition){.key = key,
                                    .condition = {value, tuple->condition.len},
                                    .context = {value + tuple->condition.len, tuple->context.len}};
    return true;
}

/* The conditional tuples of an object after the edits; *out is NULL when there are none. False: no memory. */
static bool conditions_apply(struct work *w, const struct conditions *old, const struct edit *edits, size_t n,
                             const struct conditions **out)
{
    size_t added = 0, had = old ? old->n : 0, i = 0, k = 0;
    *out = old;
    for (size_t j = 0; j < n; j++)
        added += edits[j].conditional;
    if (n == 0 || (!old && !added))
        return true;
    struct conditions *c = txn_alloc(&w->t, sizeof *c + (had + added) * sizeof c->items[0]);
    if (!c || (old && !txn_gone(&w->t, old)))
        return false;
    for (size_t j = 0; j < n; j++) {
        while (i < had && old->items[i].key < edits[j].key)
            c->items[k++] = old->items[i++];
        if (i < had && old->items[i].key == edits[j].key && !txn_gone(&w->t, old->items[i++].condition.s))
            return false;
        if (edits[j].conditional) {
            const struct engine_tuple *tuple = &w->changes[edits[j].change].tuple;
            if (!condition_make(w->t.e, tuple, edits[j].key, &c->items[k]) ||
                !txn_made(&w->t, (void *)(uintptr_t)c->items[k++].condition.s))
                return false;
        }
    }
    while (i < had)
        c->items[k++] = old->items[i++];
    c->n = k;
    *out = c;
    return k > 0 || txn_gone(&w->t, (*out = NULL, c));
}

/* One object's next record. False: no memory. */
static bool object_apply(struct work *w, struct name *name, const struct edit *edits[2], const size_t n[2],
                         struct view *next)
{
    static const struct set none;
    const struct object *old = view_object(w->old, name->id);
    const struct conditions *conditions = NULL;
    struct set sets[2] = {old ? object_set(old, FORWARD) : none, old ? object_set(old, BACKWARD) : none}, after[2];
    uint64_t *scratch[2] = {NULL, NULL};
    struct object *o = NULL;
    bool ok = (!old || txn_gone(&w->t, old)) &&
              conditions_apply(w, old ? object_conditions(old) : NULL, edits[FORWARD], n[FORWARD], &conditions);
    for (int dir = 0; ok && dir < 2; dir++)
        ok = set_apply(&w->t, &sets[dir], edits[dir], n[dir], &after[dir], &scratch[dir]);
    if (ok && (conditions || after[FORWARD].n || after[BACKWARD].n))
        ok = (o = object_make(&w->t, name, conditions, &after[FORWARD], &after[BACKWARD])) != NULL;
    if (ok) {
        next->tuples += (uint64_t)after[BACKWARD].n - sets[BACKWARD].n;
        next->objects += (uint64_t)(o != NULL) - (old != NULL);
        w->names[w->nplaced] = name;
        w->placed[w->nplaced++] = (struct placed){name->id, o};
    }
    graph_release(w->t.e, scratch[0]);
    graph_release(w->t.e, scratch[1]);
    return ok;
}

static bool apply_all(struct work *w, struct view *next)
{
    size_t at[2] = {0, 0};
    while (at[FORWARD] < w->n[FORWARD] || at[BACKWARD] < w->n[BACKWARD]) {
        const struct edit *edits[2];
        struct name *name = NULL;
        size_t n[2];
        for (int dir = 0; dir < 2; dir++)
            if (at[dir] < w->n[dir] && (!name || w->edits[dir][at[dir]].name->id < name->id))
                name = w->edits[dir][at[dir]].name;
        for (int dir = 0; dir < 2; dir++) {
            size_t from = at[dir];
            edits[dir] = &w->edits[dir][from];
            while (at[dir] < w->n[dir] && w->edits[dir][at[dir]].name == name)
                at[dir]++;
            n[dir] = at[dir] - from;
        }
        if (!object_apply(w, name, edits, n, next))
            return false;
    }
    return radix_place(&w->t, w->old, w->placed, w->nplaced, next);
}

/* Names that no object has: those that were made for nothing, and of objects that are gone. */
static void leave_names(struct work *w, bool done)
{
    for (size_t i = 0; done && i < w->nplaced; i++)
        if (!w->placed[i].object)
            names_unused(w->t.e, w->names[i]);
    for (int dir = 0; !done && dir < 2; dir++)
        for (size_t i = 0; i < w->n[dir]; i++)
            if (w->edits[dir][i].name && !view_object(w->old, w->edits[dir][i].name->id))
                names_unused(w->t.e, w->edits[dir][i].name);
}

enum engine_status engine_apply(struct engine *e, const struct engine_change *changes, size_t n, uint64_t revision)
{
    struct work w = {.t = {.e = e}, .changes = changes, .old = atomic_load(&e->view)};
    struct view *next = NULL;
    bool done = false;
    for (int dir = 0; dir < 2; dir++)
        w.edits[dir] = graph_alloc(e, (n + 1) * sizeof *w.edits[dir]);
    w.placed = graph_alloc(e, (2 * n + 1) * sizeof *w.placed);
    w.names = graph_alloc(e, (2 * n + 1) * sizeof *w.names);
    if (w.edits[0] && w.edits[1] && w.placed && w.names && graves_reserve(e, &e->unused, 2 * n)) {
        next = txn_alloc(&w.t, sizeof *next);
        if (next)
            *next = (struct view){.engine = e,
                                  .revision = revision,
                                  .tuples = w.old->tuples,
                                  .objects = w.old->objects,
                                  .top = w.old->top,
                                  .height = w.old->height};
        done = next && txn_gone(&w.t, w.old) && read_changes(&w, n) && apply_all(&w, next) &&
               graves_reserve(e, &e->garbage, w.t.ngone);
        leave_names(&w, done);
        if (done)
            readers_publish(e, next, &w.t);
    }
    txn_end(&w.t, done);
    for (int dir = 0; dir < 2; dir++)
        graph_release(e, w.edits[dir]);
    graph_release(e, w.placed);
    graph_release(e, w.names);
    readers_reclaim(e);
    return done ? ENGINE_OK : ENGINE_NOMEM;
}

/* ---- the engine ---- */

struct engine *engine_new(void)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    atomic_store(&e->bytes, sizeof *e);
    atomic_store(&e->epoch, 1);
    struct view *v = graph_alloc(e, sizeof *v);
    if (v)
        *v = (struct view){.engine = e};
    atomic_store(&e->view, v);
    if (!names_new(e) || !v) {
        engine_free(e);
        return NULL;
    }
    return e;
}

void object_free(struct engine *e, struct object *o)
{
    const struct conditions *c = object_conditions(o);
    for (size_t i = 0; c && i < c->n; i++)
        graph_release(e, (void *)(uintptr_t)c->items[i].condition.s);
    graph_release(e, (void *)(uintptr_t)c);
    tree_free(e, object_set(o, FORWARD).tree);
    tree_free(e, object_set(o, BACKWARD).tree);
    graph_release(e, o);
}

static void radix_free(struct engine *e, struct radix *r, unsigned level)
{
    for (size_t i = 0; r && i < RADIX_WIDTH; i++) {
        if (r->slot[i] && level > 1)
            radix_free(e, r->slot[i], level - 1);
        else if (r->slot[i])
            object_free(e, r->slot[i]);
    }
    graph_release(e, r);
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    struct view *v = (struct view *)(uintptr_t)atomic_load(&e->view);
    struct graves *all[] = {&e->garbage, &e->dead};
    loading_free(e);
    if (v)
        radix_free(e, (struct radix *)(uintptr_t)v->top, v->height);
    graph_release(e, v);
    for (int k = 0; k < 2; k++)
        for (size_t i = all[k]->head; i < all[k]->n; i++)
            graph_release(e, all[k]->items[i].p);
    graph_release(e, e->garbage.items);
    graph_release(e, e->dead.items);
    graph_release(e, e->unused.items);
    names_free(e);
    for (struct engine_reader *r = atomic_load(&e->readers), *next; r; r = next) {
        next = r->next;
        engine_reader_free(r);
        free(r);
    }
    free(e);
}

uint64_t engine_revision(const struct engine *e)
{
    /* Not by the view: it may be freed meanwhile. */
    return atomic_load(&e->revision);
}

struct engine_size engine_size(const struct engine *e)
{
    return (struct engine_size){.tuples = atomic_load(&e->tuples),
                                .objects = atomic_load(&e->nobjects),
                                .bytes = atomic_load(&e->bytes),
                                .garbage = atomic_load(&e->garbage_bytes)};
}

/* ---- what readers ask ---- */

object_id graph_object_find(const struct view *v, name_id type, const char *id, size_t len)
{
    const struct name *n = names_find(v->engine, type, id, len);
    return n && view_object(v, n->id) ? n->id : 0;
}

const struct object *graph_object(const struct view *v, object_id id)
{
    return view_object(v, id);
}

name_id graph_type(const struct object *o)
{
    return o ? object_type(o) : 0;
}

bool graph_is_wildcard(const struct object *o)
{
    return o && o->n[BACKWARD] & N_WILDCARD;
}

struct engine_text graph_object_name(const struct view *v, object_id object)
{
    const struct object *o = view_object(v, object);
    return o ? (struct engine_text){object_name(o)->s, object_name(o)->len} : (struct engine_text){"", 0};
}

object_id graph_wildcard(const struct view *v, name_id type)
{
    return graph_object_find(v, type, "*", 1);
}

/* The first index with keys[i] >= key. */
static size_t lower(const uint64_t *keys, size_t n, size_t stride, uint64_t key)
{
    size_t from = 0;
    while (n > 0) {
        size_t half = n / 2;
        if (keys[(from + half) * stride] < key) {
            from += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return from;
}

/* The child that holds `key` if any does. */
static size_t child_for(const struct node *node, uint64_t key)
{
    size_t i = lower(node->words, node->n, 2, key);
    return i < node->n && node->words[2 * i] == key ? i : (i ? i - 1 : 0);
}

static const struct node *child(const struct node *node, size_t i)
{
    return (const struct node *)(uintptr_t)node->words[2 * i + 1];
}

bool graph_has(const struct object *o, enum direction dir, uint64_t key)
{
    if (!o)
        return false;
    struct set s = object_set(o, dir);
    const struct node *node = s.tree;
    while (node && node->level)
        node = child(node, child_for(node, key));
    const uint64_t *keys = node ? node->words : s.keys;
    size_t n = node ? node->n : s.n, i = lower(keys, n, 1, key);
    return i < n && keys[i] == key;
}

static const uint64_t nothing[1];

void graph_walk(struct graph_walk *w, const struct object *o, enum direction dir, uint64_t low, uint64_t high)
{
    struct set s = o ? object_set(o, dir) : (struct set){0};
    w->low = low;
    w->high = high;
    w->depth = 0;
    w->keys = s.keys ? s.keys : nothing;
    w->n = s.tree ? 0 : s.n;
    for (const struct node *node = s.tree; node;) {
        if (!node->level) {
            w->keys = node->words;
            w->n = node->n;
            break;
        }
        size_t i = child_for(node, low);
        w->at[w->depth] = node;
        w->index[w->depth++] = (unsigned)i;
        node = child(node, i);
    }
}

/* The next leaf, if there is one. */
static bool next_leaf(struct graph_walk *w)
{
    while (w->depth > 0) {
        const struct node *node = w->at[w->depth - 1];
        if (++w->index[w->depth - 1] >= node->n) {
            w->depth--;
            continue;
        }
        for (node = child(node, w->index[w->depth - 1]); node->level; node = child(node, 0)) {
            w->at[w->depth] = node;
            w->index[w->depth++] = 0;
        }
        w->keys = node->words;
        w->n = node->n;
        return true;
    }
    return false;
}

size_t graph_run(struct graph_walk *w, const uint64_t **keys)
{
    for (;;) {
        size_t from = lower(w->keys, w->n, 1, w->low), to = w->n;
        bool last = w->n > 0 && w->keys[w->n - 1] > w->high;
        if (last)
            to = from + lower(w->keys + from, w->n - from, 1, w->high + 1);
        *keys = w->keys + from;
        w->n = 0;
        if (last)
            w->depth = 0;
        else if (next_leaf(w) && to == from)
            continue;
        return to - from;
    }
}

bool graph_has_conditions(const struct object *o)
{
    return o && object_conditions(o);
}

static size_t first_condition(const struct conditions *c, uint64_t key)
{
    size_t from = 0, n = c->n;
    while (n > 0) {
        size_t half = n / 2;
        if (c->items[from + half].key < key) {
            from += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return from;
}

size_t graph_conditions(const struct object *o, uint64_t low, uint64_t high, const struct graph_condition **first)
{
    const struct conditions *c = o ? object_conditions(o) : NULL;
    size_t from = c ? first_condition(c, low) : 0, to = from;
    while (c && to < c->n && c->items[to].key <= high)
        to++;
    *first = c ? c->items + from : NULL;
    return to - from;
}

object_id graph_next_object(const struct view *v, name_id type, object_id after)
{
    for (uint64_t id = (uint64_t)after + 1; v->height == 6 ? id <= UINT32_MAX : id >> (RADIX_BITS * v->height) == 0;
         id++) {
        const struct object *o = view_object(v, (object_id)id);
        if (o && object_type(o) == type)
            return (object_id)id;
    }
    return 0;
}

bool engine_find(struct engine_reader *r, const struct engine_tuple *key, struct engine_text *condition,
                 struct engine_text *context)
{
    struct edit f, b;
    const struct view *v = r->view;
    const struct graph_condition *c;
    *condition = *context = (struct engine_text){"", 0};
    if (!ids_of(v->engine, key, false, &f, &b))
        return false;
    if (graph_conditions(view_object(v, f.name->id), f.key, f.key, &c) == 1) {
        *condition = c->condition;
        *context = c->context;
        return true;
    }
    return graph_has(view_object(v, f.name->id), FORWARD, f.key);
}
