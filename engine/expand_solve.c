/*
 * expand_solve.c - the answer of an expansion: strongly connected parts of the graph, each by rounds to its least fixed
 * point, those first on which others rest.
 *
 * A set has three values; exclusion turns its second operand round, which is right only if that is finished: a relation
 * that excludes itself by way of its own tuples is refused. The rounds are counted through, so that what an entry
 * rests on always has a lower rank (expand_why).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/expand_internal.h"

/* ---- sets ---- */
void set_free(struct set *s)
{
    free(s->named);
    free(s->rest);
    *s = (struct set){0};
}

static const struct entry *find(const struct entry *list, size_t n, int id)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (list[mid].id == id)
            return &list[mid];
        if (list[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

struct entry set_lookup(const struct expand *e, const struct set *s, int id, int type)
{
    const struct entry *found = id >= 0 ? find(s->named, s->n, id) : NULL;
    if (!found)
        found = find(s->rest, s->nrest, id >= 0 ? e->types[id] : type);
    return found ? *found : (struct entry){.id = id};
}

enum op { OP_UNION, OP_INTERSECTION, OP_DIFFERENCE };

static enum expand_value apply(enum op op, enum expand_value a, enum expand_value b)
{
    if (op == OP_UNION)
        return a > b ? a : b;
    if (op == OP_DIFFERENCE)
        b = (enum expand_value)(EXPAND_YES - b);
    return a < b ? a : b;
}

static bool set_room(struct expand *e, struct set *s, size_t n, size_t nrest)
{
    s->named = malloc((n + 1) * sizeof *s->named);
    s->rest = malloc((nrest + 1) * sizeof *s->rest);
    if (s->named && s->rest)
        return true;
    set_free(s);
    e->failed = true;
    return false;
}

/* Consumes both. */
static struct set combine(struct expand *e, enum op op, struct set a, struct set b)
{
    struct set out = {0};
    size_t i = 0, j = 0;
    if (!set_room(e, &out, a.n + b.n, a.nrest + b.nrest))
        goto cleanup;
    while (i < a.nrest || j < b.nrest) {
        bool left = i < a.nrest && (j >= b.nrest || a.rest[i].id <= b.rest[j].id);
        bool right = j < b.nrest && (i >= a.nrest || b.rest[j].id <= a.rest[i].id);
        int id = left ? a.rest[i].id : b.rest[j].id;
        enum expand_value v = apply(op, left ? a.rest[i].value : EXPAND_NO, right ? b.rest[j].value : EXPAND_NO);
        if (v != EXPAND_NO)
            out.rest[out.nrest++] = (struct entry){.id = id, .value = v};
        i += left;
        j += right;
    }
    i = j = 0;
    while (i < a.n || j < b.n) {
        bool left = i < a.n && (j >= b.n || a.named[i].id <= b.named[j].id);
        bool right = j < b.n && (i >= a.n || b.named[j].id <= a.named[i].id);
        int id = left ? a.named[i].id : b.named[j].id;
        enum expand_value v = apply(op, left ? a.named[i].value : set_lookup(e, &a, id, 0).value,
                                    right ? b.named[j].value : set_lookup(e, &b, id, 0).value);
        /* An exception to a wildcard is kept. */
        if (v != EXPAND_NO || find(out.rest, out.nrest, e->types[id]))
            out.named[out.n++] = (struct entry){.id = id, .value = v};
        i += left;
        j += right;
    }
cleanup:
    set_free(&a);
    set_free(&b);
    return out;
}

/* Of any number: halves, so that no entry is copied more often than log n times. Consumes them. */
static struct set unite(struct expand *e, struct set *sets, size_t n)
{
    if (n == 0)
        return (struct set){0};
    if (n == 1)
        return sets[0];
    struct set left = unite(e, sets, n / 2);
    return combine(e, OP_UNION, left, unite(e, sets + n / 2, n - n / 2));
}

/* A copy of a node's set, of no more than CONDITIONAL if `condition`. */
static struct set copy(struct expand *e, int node, bool condition)
{
    const struct set *from = node >= 0 ? &e->nodes[node].set : &(const struct set){0};
    struct set out = {0};
    if (!set_room(e, &out, from->n, from->nrest))
        return out;
    if (from->n)
        memcpy(out.named, from->named, from->n * sizeof *out.named);
    if (from->nrest)
        memcpy(out.rest, from->rest, from->nrest * sizeof *out.rest);
    out.n = from->n;
    out.nrest = from->nrest;
    for (size_t i = 0; condition && i < out.n; i++)
        out.named[i].value = out.named[i].value ? EXPAND_CONDITIONAL : EXPAND_NO;
    for (size_t i = 0; condition && i < out.nrest; i++)
        out.rest[i].value = EXPAND_CONDITIONAL;
    return out;
}

static int entry_cmp(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : (int)y->value - (int)x->value;
}

static size_t sort_unique(struct entry *list, size_t n)
{
    size_t kept = 0;
    if (n)
        qsort(list, n, sizeof *list, entry_cmp);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || list[kept - 1].id != list[i].id)
            list[kept++] = list[i];
    return kept;
}

/* ---- one node ---- */
static struct set eval(struct expand *e, int node, const json_t *rewrite);

static struct set eval_this(struct expand *e, int node)
{
    const struct node *n = &e->nodes[node];
    size_t nsets = 1;
    struct set direct = {0}, out = {0};
    struct set *sets = calloc(n->n + 1, sizeof *sets);
    if (!sets || !set_room(e, &direct, n->n, n->n)) {
        e->failed = true;
        goto cleanup;
    }
    for (size_t i = 0; i < n->n; i++) {
        const struct give *g = &n->gives[i];
        enum expand_value v = g->condition < 0 ? EXPAND_YES : EXPAND_CONDITIONAL;
        if (g->target >= 0)
            sets[nsets++] = copy(e, g->target, g->condition >= 0);
        else if (g->type >= 0)
            direct.rest[direct.nrest++] = (struct entry){.id = g->type, .value = v};
        else
            direct.named[direct.n++] = (struct entry){.id = g->subject, .value = v};
    }
    direct.n = sort_unique(direct.named, direct.n);
    direct.nrest = sort_unique(direct.rest, direct.nrest);
    /* A tuple's condition does not weaken what everybody has. */
    for (size_t i = 0; i < direct.n; i++) {
        const struct entry *rest = find(direct.rest, direct.nrest, e->types[direct.named[i].id]);
        if (rest && rest->value > direct.named[i].value)
            direct.named[i].value = rest->value;
    }
    sets[0] = direct;
    out = unite(e, sets, nsets);
cleanup:
    free(sets);
    return out;
}

static struct set eval_ttu(struct expand *e, int node, const json_t *ttu)
{
    int object = e->nodes[node].object;
    int tupleset = expand_node_find(e, object, expand_pair_of(e, object, expand_relation_in(ttu, "tupleset")));
    const char *computed = expand_relation_in(ttu, "computedUserset");
    struct set out = {0};
    if (tupleset < 0)
        return out;
    const struct node *n = &e->nodes[tupleset];
    size_t nsets = 0;
    struct set *sets = calloc(n->n + 1, sizeof *sets);
    if (!sets) {
        e->failed = true;
        return out;
    }
    for (size_t i = 0; i < n->n; i++) {
        const struct give *g = &n->gives[i];
        int pair = g->type < 0 && g->target < 0 ? expand_pair_of(e, g->subject, computed) : -1;
        if (pair >= 0)
            sets[nsets++] = copy(e, expand_node_find(e, g->subject, pair), g->condition >= 0);
    }
    out = unite(e, sets, nsets);
    free(sets);
    return out;
}

static struct set eval(struct expand *e, int node, const json_t *rewrite)
{
    const json_t *of;
    if (json_object_get(rewrite, "this"))
        return eval_this(e, node);
    if ((of = json_object_get(rewrite, "computedUserset"))) {
        int object = e->nodes[node].object;
        return copy(e, expand_node_find(e, object, expand_pair_of(e, object, expand_relation_in(of, NULL))), false);
    }
    if ((of = json_object_get(rewrite, "tupleToUserset")))
        return eval_ttu(e, node, of);
    if ((of = json_object_get(rewrite, "difference"))) {
        struct set base = eval(e, node, json_object_get(of, "base"));
        return combine(e, OP_DIFFERENCE, base, eval(e, node, json_object_get(of, "subtract")));
    }
    of = json_object_get(rewrite, "union");
    enum op op = of ? OP_UNION : OP_INTERSECTION;
    const json_t *children = json_object_get(of ? of : json_object_get(rewrite, "intersection"), "child");
    struct set out = eval(e, node, json_array_get(children, 0));
    for (size_t i = 1; i < json_array_size(children); i++)
        out = combine(e, op, out, eval(e, node, json_array_get(children, i)));
    return out;
}

/* ---- who rests on whom ---- */
static void edge_to(struct expand *e, int to, bool negative)
{
    if (to < 0 || !expand_grow(e, (void **)&e->edges, e->nedges, &e->cap_edges, sizeof *e->edges))
        return;
    e->edges[e->nedges++] = (struct edge){to, negative};
}

static void edges_of(struct expand *e, int node, const json_t *rewrite, bool negative)
{
    const json_t *of;
    int object = e->nodes[node].object;
    if (json_object_get(rewrite, "this")) {
        for (size_t i = 0; i < e->nodes[node].n; i++)
            edge_to(e, e->nodes[node].gives[i].target, negative);
    } else if ((of = json_object_get(rewrite, "computedUserset"))) {
        edge_to(e, expand_node_find(e, object, expand_pair_of(e, object, expand_relation_in(of, NULL))), negative);
    } else if ((of = json_object_get(rewrite, "tupleToUserset"))) {
        int tupleset = expand_node_find(e, object, expand_pair_of(e, object, expand_relation_in(of, "tupleset")));
        const char *computed = expand_relation_in(of, "computedUserset");
        for (size_t i = 0; tupleset >= 0 && i < e->nodes[tupleset].n; i++) {
            const struct give *g = &e->nodes[tupleset].gives[i];
            int pair = g->type < 0 && g->target < 0 ? expand_pair_of(e, g->subject, computed) : -1;
            if (pair >= 0)
                edge_to(e, expand_node_find(e, g->subject, pair), negative);
        }
    } else if ((of = json_object_get(rewrite, "difference"))) {
        edges_of(e, node, json_object_get(of, "base"), negative);
        edges_of(e, node, json_object_get(of, "subtract"), true);
    } else {
        of = json_object_get(rewrite, "union");
        const json_t *children = json_object_get(of ? of : json_object_get(rewrite, "intersection"), "child");
        for (size_t i = 0; i < json_array_size(children); i++)
            edges_of(e, node, json_array_get(children, i), negative);
    }
}

/* ---- one strongly connected part ---- */
static bool ranked(const struct expand *e, const struct node *n, struct entry *list, size_t count, bool rest, int round)
{
    bool changed = false;
    for (size_t i = 0; i < count; i++) {
        struct entry was = set_lookup(e, &n->set, rest ? -1 : list[i].id, list[i].id);
        bool same = was.value == list[i].value;
        list[i].rank = same ? was.rank : round;
        changed |= !same || (!rest && !find(n->set.named, n->set.n, list[i].id));
    }
    return changed;
}

/* Values only rise within a part, so nothing vanishes from one round to the next. */
static bool solve_part(struct expand *e, const int *part, size_t n)
{
    struct set *fresh = calloc(n, sizeof *fresh);
    bool changed = true, alone = n == 1;
    if (!fresh) {
        e->failed = true;
        return false;
    }
    for (size_t i = 0; alone && i < e->nodes[part[0]].edges; i++)
        alone = e->edges[e->nodes[part[0]].edge + i].to != part[0];
    while (changed && !e->failed) {
        changed = false;
        e->round++;
        for (size_t i = 0; i < n && !e->failed; i++) {
            struct node *node = &e->nodes[part[i]];
            fresh[i] = eval(e, part[i], e->rewrites[node->pair]);
            changed |= ranked(e, node, fresh[i].rest, fresh[i].nrest, true, e->round);
            changed |= ranked(e, node, fresh[i].named, fresh[i].n, false, e->round);
        }
        for (size_t i = 0; i < n; i++) {
            set_free(&e->nodes[part[i]].set);
            e->nodes[part[i]].set = fresh[i];
            fresh[i] = (struct set){0};
        }
        changed &= !alone;
    }
    free(fresh);
    return !e->failed;
}

static bool excludes_itself(const struct expand *e, const int *part, size_t n, struct model_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct node *node = &e->nodes[part[i]];
        for (size_t k = node->edge; k < node->edge + node->edges; k++) {
            if (!e->edges[k].negative || e->nodes[e->edges[k].to].scc != node->scc)
                continue;
            (void)snprintf(err->text, sizeof err->text,
                           "%.200s#%.50s excludes itself by way of its own tuples: no answer would be right",
                           e->names[node->object], model_pair_relation(e->m, node->pair));
            return true;
        }
    }
    return false;
}

/* Tarjan's algorithm, without recursion. A part is finished before any that rests on it. */
static bool solve_all(struct expand *e, int *stack, int *path, struct model_err *err)
{
    size_t nstack = 0, npath = 0;
    int counter = 0, parts = 0;
    path[npath++] = 0;
    while (npath) {
        int at = path[npath - 1];
        struct node *n = &e->nodes[at];
        if (n->index < 0) {
            n->index = n->low = counter++;
            stack[nstack++] = at;
            n->edge = e->nedges;
            edges_of(e, at, e->rewrites[n->pair], false);
            n->edges = e->nedges - n->edge;
            if (e->failed)
                return false;
        }
        int next = -1;
        for (; n->walked < n->edges && next < 0; n->walked += next < 0) {
            int to = e->edges[n->edge + n->walked].to;
            if (e->nodes[to].index < 0)
                next = to; /* and look at it again afterwards */
            else if (e->nodes[to].scc < 0 && e->nodes[to].low < n->low)
                n->low = e->nodes[to].low;
        }
        if (next >= 0) {
            path[npath++] = next;
            continue;
        }
        npath--;
        if (n->low != n->index)
            continue;
        size_t first = nstack;
        do
            e->nodes[stack[--first]].scc = parts;
        while (stack[first] != at);
        parts++;
        if (excludes_itself(e, stack + first, nstack - first, err) || !solve_part(e, stack + first, nstack - first))
            return false;
        nstack = first;
    }
    return true;
}

/* ---- the answer ---- */
static bool add_answer(struct expand *e, struct entry entry, bool rest)
{
    size_t at = e->nanswer, len = strlen(e->names[entry.id]);
    char *shown = malloc(len + 3);
    if (!shown)
        return false;
    (void)snprintf(shown, len + 3, "%s%s", e->names[entry.id], rest ? ":*" : "");
    e->answer[at] = entry;
    e->is_rest[at] = rest;
    e->shown[at] = shown;
    e->nanswer++;
    return true;
}

/* Positions sorted by name: an insertion sort would be slow for many. */
struct shown_at {
    char *shown;
    struct entry entry;
    bool rest;
};

static int shown_cmp(const void *a, const void *b)
{
    return strcmp(((const struct shown_at *)a)->shown, ((const struct shown_at *)b)->shown);
}

static bool sort_answer(struct expand *e)
{
    struct shown_at *list = calloc(e->nanswer + 1, sizeof *list);
    if (!list)
        return false;
    for (size_t i = 0; i < e->nanswer; i++)
        list[i] = (struct shown_at){e->shown[i], e->answer[i], e->is_rest[i]};
    if (e->nanswer)
        qsort(list, e->nanswer, sizeof *list, shown_cmp);
    for (size_t i = 0; i < e->nanswer; i++) {
        e->shown[i] = list[i].shown;
        e->answer[i] = list[i].entry;
        e->is_rest[i] = list[i].rest;
    }
    free(list);
    return true;
}

static bool read_answer(struct expand *e)
{
    const struct set *s = &e->nodes[0].set;
    size_t n = s->n + s->nrest + 1;
    e->answer = calloc(n, sizeof *e->answer);
    e->is_rest = calloc(n, sizeof *e->is_rest);
    e->shown = calloc(n, sizeof *e->shown);
    if (!e->answer || !e->is_rest || !e->shown)
        return false;
    for (size_t i = 0; i < s->nrest; i++)
        if (!add_answer(e, s->rest[i], true))
            return false;
    for (size_t i = 0; i < s->n; i++)
        if (!add_answer(e, s->named[i], false))
            return false;
    return sort_answer(e);
}

bool expand_solve(struct expand *e, struct model_err *err)
{
    int *stack = calloc(e->nnodes + 1, sizeof *stack), *path = calloc(e->nnodes + 1, sizeof *path);
    bool ok = false;
    err->text[0] = '\0';
    if (stack && path && !e->failed)
        ok = solve_all(e, stack, path, err) && !e->failed && read_answer(e);
    if (!ok && !err->text[0])
        (void)snprintf(err->text, sizeof err->text, "no memory");
    free(stack);
    free(path);
    return ok;
}

size_t expand_subjects(const struct expand *e)
{
    return e->nanswer;
}

const char *expand_subject(const struct expand *e, size_t i, enum expand_value *value)
{
    *value = e->answer[i].value;
    return e->shown[i];
}
