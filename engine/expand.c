/* expand.c - the graph of an expansion: names, nodes, and which tuples are wanted next. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/expand_internal.h"

bool expand_grow(struct expand *e, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    size_t more = *cap ? *cap * 2 : 16;
    void *grown = more > SIZE_MAX / size ? NULL : realloc(*items, more * size);
    if (!grown) {
        e->failed = true;
        return false;
    }
    *items = grown;
    *cap = more;
    return true;
}

/* ---- names and nodes, each once ---- */
static uint64_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

static uint64_t hash_node(int object, int pair)
{
    uint64_t h = (((uint64_t)(unsigned)object << 32) | (unsigned)pair) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 31);
}

/* Makes room for `n` entries at most half full; `hash` gives that of an entry. */
static bool table_fit(struct expand *e, struct table *t, size_t n, uint64_t (*hash)(const struct expand *, size_t))
{
    if (n * 2 < t->nslots)
        return true;
    size_t nslots = t->nslots ? t->nslots * 2 : 256;
    int *slots = calloc(nslots, sizeof *slots);
    if (!slots) {
        e->failed = true;
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = hash(e, i) & (nslots - 1);
        while (slots[at])
            at = (at + 1) & (nslots - 1);
        slots[at] = (int)i + 1;
    }
    free(t->slots);
    *t = (struct table){slots, nslots};
    return true;
}

static uint64_t name_hash(const struct expand *e, size_t i)
{
    return hash_bytes(e->names[i], strlen(e->names[i]));
}

static uint64_t node_hash(const struct expand *e, size_t i)
{
    return hash_node(e->nodes[i].object, e->nodes[i].pair);
}

static bool name_add(struct expand *e, const char *s, size_t len)
{
    size_t cap = e->cap_names;
    if (!expand_grow(e, (void **)&e->names, e->nnames, &cap, sizeof *e->names))
        return false;
    if (cap != e->cap_names) {
        int *types = realloc(e->types, cap * sizeof *types);
        if (!types) {
            e->failed = true;
            return false;
        }
        e->types = types;
        e->cap_names = cap;
    }
    char *copy = strndup(s, len);
    if (!copy) {
        e->failed = true;
        return false;
    }
    e->types[e->nnames] = -1;
    e->names[e->nnames++] = copy;
    return true;
}

int expand_name(struct expand *e, const char *s, size_t len)
{
    if (!table_fit(e, &e->name_table, e->nnames, name_hash))
        return -1;
    size_t mask = e->name_table.nslots - 1, at = hash_bytes(s, len) & mask;
    for (; e->name_table.slots[at]; at = (at + 1) & mask) {
        int i = e->name_table.slots[at] - 1;
        if (strncmp(e->names[i], s, len) == 0 && !e->names[i][len])
            return i;
    }
    if (!name_add(e, s, len))
        return -1;
    int id = (int)e->nnames - 1;
    e->name_table.slots[at] = id + 1;
    const char *colon = memchr(s, ':', len);
    if (colon) {
        int type = expand_name(e, s, (size_t)(colon - s));
        e->types[id] = type;
        return type < 0 ? -1 : id;
    }
    return id;
}

int expand_node_find(const struct expand *e, int object, int pair)
{
    size_t mask = e->node_table.nslots - 1;
    if (!e->node_table.nslots)
        return -1;
    for (size_t at = hash_node(object, pair) & mask; e->node_table.slots[at]; at = (at + 1) & mask) {
        int i = e->node_table.slots[at] - 1;
        if (e->nodes[i].object == object && e->nodes[i].pair == pair)
            return i;
    }
    return -1;
}

int expand_node(struct expand *e, int object, int pair)
{
    int found = expand_node_find(e, object, pair);
    if (found >= 0)
        return found;
    if (!table_fit(e, &e->node_table, e->nnodes, node_hash) ||
        !expand_grow(e, (void **)&e->nodes, e->nnodes, &e->cap_nodes, sizeof *e->nodes))
        return -1;
    e->nodes[e->nnodes] = (struct node){.object = object, .pair = pair, .index = -1, .scc = -1};
    size_t mask = e->node_table.nslots - 1, at = hash_node(object, pair) & mask;
    while (e->node_table.slots[at])
        at = (at + 1) & mask;
    e->node_table.slots[at] = (int)e->nnodes + 1;
    return (int)e->nnodes++;
}

int expand_pair_of(const struct expand *e, int object, const char *relation)
{
    const char *name = e->names[object], *colon = strchr(name, ':');
    return colon ? model_pair(e->m, name, (size_t)(colon - name), relation) : -1;
}

const char *expand_relation_in(const json_t *of, const char *part)
{
    return json_string_value(json_object_get(part ? json_object_get(of, part) : of, "relation"));
}

/* ---- what is wanted ---- */
static bool ask(struct expand *e, int node)
{
    if (e->nodes[node].asked)
        return e->nodes[node].loaded;
    if (expand_grow(e, (void **)&e->wanted, e->nwanted, &e->cap_wanted, sizeof *e->wanted)) {
        e->nodes[node].asked = true;
        e->wanted[e->nwanted++] = node;
    }
    return false;
}

static void need(struct expand *e, int node)
{
    if (node < 0 || e->nodes[node].needed)
        return;
    if (expand_grow(e, (void **)&e->waiting, e->nwaiting, &e->cap_waiting, sizeof *e->waiting)) {
        e->nodes[node].needed = true;
        e->waiting[e->nwaiting++] = node;
    }
}

static bool visit_this(struct expand *e, int node)
{
    if (!ask(e, node))
        return false;
    for (size_t i = 0; i < e->nodes[node].n; i++)
        need(e, e->nodes[node].gives[i].target);
    return true;
}

static bool visit_ttu(struct expand *e, int node, const json_t *ttu)
{
    int object = e->nodes[node].object;
    int tupleset = expand_node(e, object, expand_pair_of(e, object, expand_relation_in(ttu, "tupleset")));
    const char *computed = expand_relation_in(ttu, "computedUserset");
    if (tupleset < 0 || !ask(e, tupleset))
        return false;
    for (size_t i = 0; i < e->nodes[tupleset].n; i++) {
        const struct give *g = &e->nodes[tupleset].gives[i];
        int pair = g->type < 0 && g->target < 0 ? expand_pair_of(e, g->subject, computed) : -1;
        if (pair >= 0)
            need(e, expand_node(e, g->subject, pair));
    }
    return true;
}

/* Asks for what the rewrite rests on. True if all tuples that it looks at directly are there. */
static bool visit(struct expand *e, int node, const json_t *rewrite)
{
    const json_t *of;
    if (json_object_get(rewrite, "this"))
        return visit_this(e, node);
    if ((of = json_object_get(rewrite, "computedUserset"))) {
        int object = e->nodes[node].object;
        need(e, expand_node(e, object, expand_pair_of(e, object, expand_relation_in(of, NULL))));
        return true;
    }
    if ((of = json_object_get(rewrite, "tupleToUserset")))
        return visit_ttu(e, node, of);
    if ((of = json_object_get(rewrite, "difference"))) {
        bool base = visit(e, node, json_object_get(of, "base"));
        return visit(e, node, json_object_get(of, "subtract")) && base;
    }
    of = json_object_get(rewrite, "union");
    const json_t *children = json_object_get(of ? of : json_object_get(rewrite, "intersection"), "child");
    bool all = true;
    for (size_t i = 0; i < json_array_size(children); i++)
        all &= visit(e, node, json_array_get(children, i));
    return all;
}

/* Nodes that are found on the way are appended to `waiting`, and visited in the same walk. */
static void visit_waiting(struct expand *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->nwaiting && !e->failed; i++) {
        int node = e->waiting[i];
        if (!visit(e, node, e->rewrites[e->nodes[node].pair]))
            e->waiting[kept++] = node;
    }
    e->nwaiting = kept;
}

size_t expand_wants(struct expand *e, const struct expand_ask **asks)
{
    visit_waiting(e);
    free(e->asks);
    e->asks = calloc(e->nwanted + 1, sizeof *e->asks);
    if (!e->asks || e->failed) {
        e->failed = true;
        return 0;
    }
    for (size_t i = 0; i < e->nwanted; i++) {
        const struct node *n = &e->nodes[e->wanted[i]];
        e->asks[i] = (struct expand_ask){e->names[n->object], model_pair_relation(e->m, n->pair)};
    }
    *asks = e->asks;
    e->nasks = e->nwanted;
    return e->nasks;
}

bool expand_give(struct expand *e, size_t at, const char *subject, const char *condition, long ref)
{
    if (at >= e->nasks)
        return false;
    int node = e->wanted[at];
    struct give g = {.type = -1, .target = -1, .condition = -1, .ref = ref};
    const char *hash = strchr(subject, '#');
    size_t len = strlen(subject);
    if (!model_allows(e->m, e->asks[at].object, e->asks[at].relation, subject, condition)) {
        e->ignored++;
        return true;
    }
    g.subject = expand_name(e, subject, hash ? (size_t)(hash - subject) : len);
    if (g.subject < 0)
        return false;
    if (hash) {
        int pair = expand_pair_of(e, g.subject, hash + 1);
        g.target = pair < 0 ? -1 : expand_node(e, g.subject, pair);
        if (g.target < 0)
            return !e->failed;
    } else if (len > 2 && strcmp(subject + len - 2, ":*") == 0) {
        g.type = e->types[g.subject];
    }
    if (condition && *condition && (g.condition = expand_name(e, condition, strlen(condition))) < 0)
        return false;
    struct node *n = &e->nodes[node];
    if (!expand_grow(e, (void **)&n->gives, n->n, &n->cap, sizeof *n->gives))
        return false;
    n->gives[n->n++] = g;
    return true;
}

bool expand_level(struct expand *e)
{
    for (size_t i = 0; i < e->nasks; i++)
        e->nodes[e->wanted[i]].loaded = true;
    e->nwanted = e->nasks = 0;
    return !e->failed;
}

size_t expand_ignored(const struct expand *e)
{
    return e->ignored;
}

/* ---- its life ---- */
static bool read_rewrites(struct expand *e)
{
    size_t i;
    json_t *def, *rewrite;
    const char *relation;
    e->rewrites = calloc((size_t)model_pairs(e->m) + 1, sizeof *e->rewrites);
    if (!e->rewrites)
        return false;
    json_array_foreach(json_object_get(e->json, "type_definitions"), i, def)
    {
        const char *type = json_string_value(json_object_get(def, "type"));
        json_object_foreach(json_object_get(def, "relations"), relation, rewrite)
        {
            int pair = type ? model_pair(e->m, type, strlen(type), relation) : -1;
            if (pair >= 0)
                e->rewrites[pair] = rewrite;
        }
    }
    return true;
}

bool expand_new(struct expand **out, const struct model *m, const char *json, size_t len, const char *object,
                const char *relation, struct model_err *err)
{
    const char *colon = strchr(object, ':');
    int pair = colon ? model_pair(m, object, (size_t)(colon - object), relation) : -1;
    *out = NULL;
    if (pair < 0) {
        (void)snprintf(err->text, sizeof err->text, "the model has no relation \"%.80s\" on type \"%.*s\"", relation,
                       colon ? (int)(colon - object) : 80, object);
        return false;
    }
    struct expand *e = calloc(1, sizeof *e);
    if (e) {
        e->m = m;
        e->json = json_loadb(json, len, 0, NULL);
    }
    bool ok = e && e->json && read_rewrites(e);
    if (ok)
        need(e, expand_node(e, expand_name(e, object, strlen(object)), pair));
    if (!ok || e->failed) {
        (void)snprintf(err->text, sizeof err->text, "no memory");
        expand_free(e);
        return false;
    }
    *out = e;
    return true;
}

void expand_free(struct expand *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < e->nnodes; i++) {
        free(e->nodes[i].gives);
        set_free(&e->nodes[i].set);
    }
    for (size_t i = 0; i < e->nnames; i++)
        free(e->names[i]);
    for (size_t i = 0; e->shown && i < e->nanswer; i++)
        free(e->shown[i]);
    json_decref(e->json);
    free(e->rewrites);
    free(e->names);
    free(e->types);
    free(e->nodes);
    free(e->name_table.slots);
    free(e->node_table.slots);
    free(e->waiting);
    free(e->wanted);
    free(e->asks);
    free(e->edges);
    free(e->answer);
    free(e->is_rest);
    free(e->shown);
    free(e->refs);
    free(e->conditions);
    free(e->seen);
    free(e);
}
