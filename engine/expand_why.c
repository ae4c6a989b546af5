/* expand_why.c - by which tuples a subject has what it has, and on which conditions it may depend. */
#include <stdlib.h>
#include <string.h>

#include "engine/expand_internal.h"

/* A subject: its name, or -1 for all others of the type. */
struct who {
    int id, type;
};

static bool why_node(struct expand *e, int node, struct who who, int before);

static bool push(struct expand *e, long ref)
{
    if (!expand_grow(e, (void **)&e->refs, e->nrefs, &e->cap_refs, sizeof *e->refs))
        return false;
    e->refs[e->nrefs++] = ref;
    return true;
}

static bool is_direct(const struct expand *e, const struct give *g, struct who who)
{
    if (g->target >= 0)
        return false;
    return g->type >= 0 ? g->type == (who.id >= 0 ? e->types[who.id] : who.type) : g->subject == who.id;
}

/* By this tuple, and what `node` says. */
static bool why_by(struct expand *e, const struct give *g, int node, struct who who, int before)
{
    size_t n = e->nrefs;
    if (g->condition < 0 && node >= 0 && push(e, g->ref) && why_node(e, node, who, before))
        return true;
    e->nrefs = n;
    return false;
}

static bool why_this(struct expand *e, int node, struct who who, int before)
{
    const struct node *n = &e->nodes[node];
    for (size_t i = 0; i < n->n; i++)
        if (n->gives[i].condition < 0 && is_direct(e, &n->gives[i], who))
            return push(e, n->gives[i].ref);
    for (size_t i = 0; i < n->n; i++)
        if (why_by(e, &n->gives[i], n->gives[i].target, who, before))
            return true;
    return false;
}

/* The node that `computed` of a tupleset's tuple leads to; -1 = none. */
static int behind(const struct expand *e, const struct give *g, const char *computed)
{
    int pair = g->type < 0 && g->target < 0 ? expand_pair_of(e, g->subject, computed) : -1;
    return pair < 0 ? -1 : expand_node_find(e, g->subject, pair);
}

static int named_node(const struct expand *e, int node, const json_t *of, const char *part)
{
    int object = e->nodes[node].object, pair = expand_pair_of(e, object, expand_relation_in(of, part));
    return pair < 0 ? -1 : expand_node_find(e, object, pair);
}

static bool why(struct expand *e, int node, const json_t *rewrite, struct who who, int before)
{
    const json_t *of;
    size_t kept = e->nrefs;
    if (json_object_get(rewrite, "this"))
        return why_this(e, node, who, before);
    if ((of = json_object_get(rewrite, "computedUserset")))
        return why_node(e, named_node(e, node, of, NULL), who, before);
    if ((of = json_object_get(rewrite, "tupleToUserset"))) {
        int tupleset = named_node(e, node, of, "tupleset");
        for (size_t i = 0; tupleset >= 0 && i < e->nodes[tupleset].n; i++) {
            const struct give *g = &e->nodes[tupleset].gives[i];
            if (why_by(e, g, behind(e, g, expand_relation_in(of, "computedUserset")), who, before))
                return true;
        }
        return false;
    }
    if ((of = json_object_get(rewrite, "difference")))
        return why(e, node, json_object_get(of, "base"), who, before);
    of = json_object_get(rewrite, "union");
    const json_t *children = json_object_get(of ? of : json_object_get(rewrite, "intersection"), "child");
    for (size_t i = 0; i < json_array_size(children); i++) {
        bool holds = why(e, node, json_array_get(children, i), who, before);
        if (of && holds)
            return true;
        if (!of && !holds) {
            e->nrefs = kept;
            return false;
        }
    }
    return !of;
}

/* Only what was found before may be a reason: so a cycle is none. */
static bool why_node(struct expand *e, int node, struct who who, int before)
{
    if (node < 0)
        return false;
    struct entry has = set_lookup(e, &e->nodes[node].set, who.id, who.type);
    if (has.value != EXPAND_YES || has.rank >= before)
        return false;
    size_t n = e->nrefs;
    if (why(e, node, e->rewrites[e->nodes[node].pair], who, has.rank))
        return true;
    e->nrefs = n;
    return false;
}

static struct who who_is(const struct expand *e, size_t i)
{
    return e->is_rest[i] ? (struct who){-1, e->answer[i].id} : (struct who){e->answer[i].id, -1};
}

size_t expand_why(struct expand *e, size_t i, const long **refs)
{
    e->nrefs = 0;
    (void)why_node(e, 0, who_is(e, i), e->round + 1);
    *refs = e->refs;
    return e->nrefs;
}

/* ---- conditions ---- */
static void note_condition(struct expand *e, const struct give *g)
{
    for (size_t i = 0; i < e->nconditions; i++)
        if (g->condition < 0 || e->conditions[i] == e->names[g->condition])
            return;
    if (g->condition >= 0 &&
        expand_grow(e, (void **)&e->conditions, e->nconditions, &e->cap_conditions, sizeof *e->conditions))
        e->conditions[e->nconditions++] = e->names[g->condition];
}

static bool can(const struct expand *e, int node, struct who who)
{
    return node >= 0 && set_lookup(e, &e->nodes[node].set, who.id, who.type).value != EXPAND_NO;
}

static void gather_node(struct expand *e, int node, struct who who);

static void gather(struct expand *e, int node, const json_t *rewrite, struct who who)
{
    const json_t *of;
    if (json_object_get(rewrite, "this")) {
        for (size_t i = 0; i < e->nodes[node].n; i++) {
            const struct give *g = &e->nodes[node].gives[i];
            if (is_direct(e, g, who) || can(e, g->target, who))
                note_condition(e, g);
            gather_node(e, g->target, who);
        }
    } else if ((of = json_object_get(rewrite, "computedUserset"))) {
        gather_node(e, named_node(e, node, of, NULL), who);
    } else if ((of = json_object_get(rewrite, "tupleToUserset"))) {
        int tupleset = named_node(e, node, of, "tupleset");
        for (size_t i = 0; tupleset >= 0 && i < e->nodes[tupleset].n; i++) {
            const struct give *g = &e->nodes[tupleset].gives[i];
            int to = behind(e, g, expand_relation_in(of, "computedUserset"));
            if (can(e, to, who))
                note_condition(e, g);
            gather_node(e, to, who);
        }
    } else if ((of = json_object_get(rewrite, "difference"))) {
        gather(e, node, json_object_get(of, "base"), who);
        gather(e, node, json_object_get(of, "subtract"), who);
    } else {
        of = json_object_get(rewrite, "union");
        const json_t *children = json_object_get(of ? of : json_object_get(rewrite, "intersection"), "child");
        for (size_t i = 0; i < json_array_size(children); i++)
            gather(e, node, json_array_get(children, i), who);
    }
}

static void gather_node(struct expand *e, int node, struct who who)
{
    if (!can(e, node, who) || e->seen[node])
        return;
    e->seen[node] = true;
    gather(e, node, e->rewrites[e->nodes[node].pair], who);
}

size_t expand_conditions(struct expand *e, size_t i, const char *const **names)
{
    e->nconditions = 0;
    free(e->seen);
    e->seen = calloc(e->nnodes + 1, sizeof *e->seen);
    if (e->seen)
        gather_node(e, 0, who_is(e, i));
    *names = e->conditions;
    return e->nconditions;
}
