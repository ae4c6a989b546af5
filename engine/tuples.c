/* tuples.c - a view and the call's own tuples as one. */
#include "engine/tuples.h"

#include <stdlib.h>
#include <string.h>

#include "engine/graph_internal.h"

static int by_object(const void *pa, const void *pb)
{
    const struct context_tuple *a = pa, *b = pb;
    if (a->object != b->object)
        return a->object < b->object ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static object_id context_object(struct tuples *t, name_id type, struct engine_text id)
{
    object_id known = tuples_object(t, type, id.s, id.len);
    if (known)
        return known;
    t->names[t->nnames] = (struct context_name){type, id};
    return CONTEXT_FIRST + (object_id)t->nnames++;
}

static void add(struct tuples *t, const struct engine_tuple *tuple)
{
    struct parts o = parts_of(tuple->object), s = parts_of(tuple->subject);
    name_id otype = graph_name_find(t->engine, o.type.s, o.type.len),
            stype = graph_name_find(t->engine, s.type.s, s.type.len),
            relation = graph_name_find(t->engine, tuple->relation.s, tuple->relation.len),
            srelation = graph_name_find(t->engine, s.relation.s, s.relation.len);
    if (!otype || !stype || !relation || (s.relation.len && !srelation))
        return;
    object_id object = context_object(t, otype, o.id), subject = context_object(t, stype, s.id);
    t->context[FORWARD][t->ncontext] =
        (struct context_tuple){object, graph_key(relation, srelation, subject), tuple->condition};
    t->context[BACKWARD][t->ncontext++] =
        (struct context_tuple){subject, graph_key(srelation, relation, object), tuple->condition};
}

/* Of equal ones the first stays. */
static size_t sort(struct context_tuple *c, size_t n)
{
    size_t k = 0;
    if (n > 1)
        qsort(c, n, sizeof *c, by_object);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || by_object(&c[i - 1], &c[i]) != 0)
            c[k++] = c[i];
    return k;
}

bool tuples_open(struct tuples *t, const struct engine *e, const struct view *v, const struct engine_tuple *contextual,
                 size_t n)
{
    *t = (struct tuples){.view = v, .engine = e};
    if (n == 0)
        return true;
    t->context[FORWARD] = malloc(n * sizeof *t->context[FORWARD]);
    t->context[BACKWARD] = malloc(n * sizeof *t->context[BACKWARD]);
    t->names = calloc(2 * n, sizeof *t->names);
    if (!t->context[FORWARD] || !t->context[BACKWARD] || !t->names) {
        tuples_close(t);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        add(t, &contextual[i]);
    sort(t->context[BACKWARD], t->ncontext);
    t->ncontext = sort(t->context[FORWARD], t->ncontext);
    return true;
}

void tuples_close(struct tuples *t)
{
    free(t->context[FORWARD]);
    free(t->context[BACKWARD]);
    free(t->names);
    *t = (struct tuples){0};
}

static const struct object *near_object(struct tuples *t, object_id id)
{
    struct near *n = &t->near[id % NEAR];
    if (n->id != id)
        *n = (struct near){id, view_object(t->view, id)};
    return n->object;
}

object_id tuples_object(struct tuples *t, name_id type, const char *id, size_t len)
{
    object_id known = type ? graph_object_find(t->view, type, id, len) : 0;
    for (size_t i = 0; !known && i < t->nnames; i++)
        if (t->names[i].type == type && t->names[i].id.len == len && memcmp(t->names[i].id.s, id, len) == 0)
            known = CONTEXT_FIRST + (object_id)i;
    return known;
}

name_id tuples_type(struct tuples *t, object_id object)
{
    return object >= CONTEXT_FIRST ? t->names[object - CONTEXT_FIRST].type : graph_type(near_object(t, object));
}

struct engine_text tuples_name(struct tuples *t, object_id object)
{
    return object >= CONTEXT_FIRST ? t->names[object - CONTEXT_FIRST].id : graph_object_name(t->view, object);
}

bool tuples_is_wildcard(struct tuples *t, object_id object)
{
    if (object < CONTEXT_FIRST)
        return graph_is_wildcard(near_object(t, object));
    struct engine_text name = tuples_name(t, object);
    return name.len == 1 && *name.s == '*';
}

/* The first contextual tuple that is not before (object, key). */
static size_t context_from(struct tuples *t, enum direction dir, object_id object, uint64_t key)
{
    const struct context_tuple wanted = {.object = object, .key = key};
    size_t from = 0, n = t->ncontext;
    while (n > 0) {
        size_t half = n / 2;
        if (by_object(&t->context[dir][from + half], &wanted) < 0) {
            from += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return from;
}

static const struct context_tuple *context_find(struct tuples *t, enum direction dir, object_id object, uint64_t key)
{
    size_t i = t->ncontext ? context_from(t, dir, object, key) : 0;
    bool found = i < t->ncontext && t->context[dir][i].object == object && t->context[dir][i].key == key;
    return found ? &t->context[dir][i] : NULL;
}

enum tuple_is tuples_find(struct tuples *t, object_id object, uint64_t key, struct engine_text *condition)
{
    const struct context_tuple *own = context_find(t, FORWARD, object, key);
    const struct graph_condition *c;
    if (own) {
        *condition = own->condition;
        return own->condition.len ? TUPLE_CONDITIONAL : TUPLE_PLAIN;
    }
    const struct object *o = near_object(t, object);
    if (graph_has(o, FORWARD, key))
        return TUPLE_PLAIN;
    if (!graph_has_conditions(o) || graph_conditions(o, key, key, &c) == 0)
        return TUPLE_ABSENT;
    *condition = c->condition;
    return TUPLE_CONDITIONAL;
}

void tuples_walk(struct tuple_walk *w, struct tuples *t, enum direction dir, object_id object, uint64_t low,
                 uint64_t high)
{
    w->tuples = t;
    w->dir = dir;
    w->object = object;
    w->nrun = w->nconditions = w->at = w->end = 0;
    const struct object *o = near_object(t, object);
    graph_walk(&w->graph, o, dir, low, high);
    if (dir == FORWARD)
        w->nconditions = graph_conditions(o, low, high, &w->conditions);
    if (t->ncontext) {
        w->at = w->end = context_from(t, dir, object, low);
        while (w->end < t->ncontext && t->context[dir][w->end].object == object && t->context[dir][w->end].key <= high)
            w->end++;
    }
}

bool tuples_next(struct tuple_walk *w)
{
    static const struct engine_text none;
    for (;;) {
        if (w->nrun > 0 || (w->nrun = graph_run(&w->graph, &w->run)) > 0) {
            w->key = *w->run++;
            w->nrun--;
            w->condition = none;
        } else if (w->nconditions > 0) {
            w->key = w->conditions->key;
            w->condition = w->conditions->condition;
            w->conditions++;
            w->nconditions--;
        } else if (w->at < w->end) {
            w->key = w->tuples->context[w->dir][w->at].key;
            w->condition = w->tuples->context[w->dir][w->at++].condition;
            return true;
        } else {
            return false;
        }
        if (!w->tuples->ncontext || !context_find(w->tuples, w->dir, w->object, w->key))
            return true;
    }
}

size_t tuples_peek(struct tuple_walk *w)
{
    if (w->nrun == 0)
        w->nrun = graph_run(&w->graph, &w->run);
    return w->nrun + w->nconditions + (w->end - w->at);
}

size_t tuples_count(struct tuples *t, enum direction dir, object_id object, uint64_t low, uint64_t high, size_t max)
{
    struct tuple_walk w;
    size_t n = 0;
    tuples_walk(&w, t, dir, object, low, high);
    n = w.nconditions + (w.end - w.at);
    while (n < max && (w.nrun = graph_run(&w.graph, &w.run)) > 0)
        n += w.nrun;
    return n < max ? n : max;
}
