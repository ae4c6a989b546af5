/* tree.c - OpenFGA's Expand: one level of a relation's rewrite, with the tuples that it names
 * (pkg/server/commands/expand.go). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/check.h"
#include "engine/graph_internal.h"

struct growing {
    const struct rules *rules;
    struct tuples tuples;
    struct engine_text object;
    object_id id;
    int pair;
    bool failed; /* no memory */
};

void engine_node_free(struct engine_node *node)
{
    if (!node)
        return;
    for (size_t i = 0; i < node->nnames; i++)
        free(node->names[i]);
    for (size_t i = 0; i < node->nnodes; i++)
        engine_node_free(node->nodes[i]);
    free(node->names);
    free(node->nodes);
    free(node->name);
    free(node->tupleset);
    free(node);
}

static char *join(struct growing *g, struct engine_text type, struct engine_text id, struct engine_text relation)
{
    char *s = NULL;
    const char *colon = type.len ? ":" : "", *mark = relation.len ? "#" : "";
    if (asprintf(&s, "%.*s%s%.*s%s%.*s", (int)type.len, type.s, colon, (int)id.len, id.s, mark, (int)relation.len,
                 relation.s) < 0) {
        g->failed = true;
        return NULL;
    }
    return s;
}

static char *of_object(struct growing *g, name_id relation)
{
    static const struct engine_text none = {"", 0};
    return join(g, none, g->object, graph_name(g->tuples.engine, relation));
}

static void add_name(struct growing *g, struct engine_node *node, char *name)
{
    char **names = name ? realloc(node->names, (node->nnames + 1) * sizeof *names) : NULL;
    if (!names) {
        free(name);
        g->failed = true;
        return;
    }
    node->names = names;
    names[node->nnames++] = name;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The subjects of the object's tuples with a relation; `behind` 0, or the relation that is looked up behind each. */
static void subjects(struct growing *g, struct engine_node *node, int pair, name_id behind)
{
    struct tuples *t = &g->tuples;
    name_id relation = g->rules->pairs[pair].relation;
    struct tuple_walk w;
    tuples_walk(&w, t, FORWARD, g->id, graph_key(relation, 0, 0), graph_key(relation, UINT16_MAX, UINT32_MAX));
    while (!g->failed && tuples_next(&w)) {
        object_id subject = key_object(w.key);
        name_id type = tuples_type(t, subject), own = key_second(w.key);
        bool wildcard = !own && tuples_is_wildcard(t, subject);
        if (rules_allow(g->rules, pair, type, own, wildcard, w.condition))
            add_name(g, node,
                     join(g, graph_name(t->engine, type), tuples_name(t, subject),
                          graph_name(t->engine, own ? own : behind)));
    }
    if (node->nnames)
        qsort(node->names, node->nnames, sizeof *node->names, by_text);
}

static struct engine_node *grow(struct growing *g, int at)
{
    const struct rule *rule = &g->rules->rules[at];
    struct engine_node *node = calloc(1, sizeof *node);
    if (!node || !(node->name = of_object(g, g->rules->pairs[g->pair].relation))) {
        g->failed = true;
        return node;
    }
    switch (rule->op) {
    case RULE_THIS:
        node->kind = ENGINE_NODE_USERS;
        subjects(g, node, g->pair, 0);
        return node;
    case RULE_COMPUTED:
        node->kind = ENGINE_NODE_COMPUTED;
        add_name(g, node, of_object(g, g->rules->pairs[rule->pair].relation));
        return node;
    case RULE_TTU:
        node->kind = ENGINE_NODE_TTU;
        node->tupleset = of_object(g, g->rules->pairs[rule->pair].relation);
        subjects(g, node, rule->pair, rule->name);
        return node;
    case RULE_UNION:
        node->kind = ENGINE_NODE_UNION;
        break;
    case RULE_INTERSECTION:
        node->kind = ENGINE_NODE_INTERSECTION;
        break;
    case RULE_DIFFERENCE:
        node->kind = ENGINE_NODE_DIFFERENCE;
        break;
    }
    node->nodes = calloc((size_t)rule->n + 1, sizeof(struct engine_node *));
    g->failed |= !node->nodes;
    for (int i = 0; i < rule->n && !g->failed; i++)
        node->nodes[node->nnodes++] = grow(g, g->rules->children[rule->first + i]);
    return node;
}

enum engine_status engine_expand(struct engine_reader *r, const struct rules *rules, const struct engine_limits *limits,
                                 struct engine_text object, struct engine_text relation, struct engine_node **out)
{
    struct parts o = parts_of(object);
    name_id type = graph_name_find(rules->engine, o.type.s, o.type.len);
    struct growing g = {.rules = rules, .object = object};
    *out = NULL;
    if (rules_type(rules, type) < 0)
        return reader_refuse(r, ENGINE_NO_TYPE, "the model has no type", o.type);
    g.pair = rules_pair(rules, type, graph_name_find(rules->engine, relation.s, relation.len));
    if (g.pair < 0)
        return reader_refuse(r, ENGINE_NO_RELATION, "the object's type has no relation", relation);
    enum engine_status st = contextual_fit(r, rules, limits);
    if (st != ENGINE_OK)
        return st;
    if (!tuples_open(&g.tuples, rules->engine, reader_view(r), limits ? limits->contextual : NULL,
                     limits ? limits->ncontextual : 0))
        return ENGINE_NOMEM;
    g.id = tuples_object(&g.tuples, type, o.id.s, o.id.len);
    *out = grow(&g, rules->pairs[g.pair].rule);
    tuples_close(&g.tuples);
    if (g.failed) {
        engine_node_free(*out);
        *out = NULL;
        return ENGINE_NOMEM;
    }
    return ENGINE_OK;
}
