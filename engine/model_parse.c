/*
 * model_parse.c - from the JSON of an AuthorizationModel to pairs and the dependencies between them.
 *
 * Two passes over the types: the first names the pairs, the second reads rewrites and type restrictions, which may name
 * pairs that come later. Only what dependencies need is kept.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_internal.h"

#define JSON_MAX (4 << 20)
#define DEPTH_MAX 64
/* A model of 4 MiB could say "these 50,000 types" and "look behind each of them" 25,000 times. */
#define EDGES_MAX (1 << 20)

struct parse {
    struct model *m;
    struct model_err *err;
    json_t *types; /* array of type definitions */
    /* Where we are. */
    int type, pair;
    json_t *relations, *restrictions; /* of the type: rewrites; metadata.relations. May be NULL */
};

static bool fail(struct parse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct parse *p, const char *fmt, ...)
{
    va_list ap;
    int n = 0;
    size_t max = sizeof p->err->text;
    if (p->type >= 0 && p->pair >= 0)
        n = snprintf(p->err->text, max, "type \"%.80s\", relation \"%.80s\": ", p->m->types[p->type].name,
                     p->m->pairs[p->pair].relation);
    else if (p->type >= 0)
        n = snprintf(p->err->text, max, "type \"%.80s\": ", p->m->types[p->type].name);
    va_start(ap, fmt);
    vsnprintf(p->err->text + n, max - (size_t)n, fmt, ap);
    va_end(ap);
    for (char *c = p->err->text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    return false;
}

/* The member, or NULL if it is absent or null. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* A string member; "" if absent. NULL if it is something else. */
static const char *text_of(const json_t *object, const char *key)
{
    const json_t *v = member(object, key);
    return v ? json_string_value(v) : "";
}

/* ---- first pass: names ---- */
static int type_cmp(const void *a, const void *b)
{
    return strcmp(((const struct model_type *)a)->name, ((const struct model_type *)b)->name);
}

static int pair_cmp(const void *a, const void *b)
{
    const struct model_pair *x = a, *y = b;
    return x->type != y->type ? (x->type < y->type ? -1 : 1) : strcmp(x->relation, y->relation);
}

static bool count_names(struct parse *p, size_t *pairs, size_t *bytes)
{
    size_t i;
    json_t *def, *rewrite;
    const char *relation;
    *pairs = *bytes = 0;
    json_array_foreach(p->types, i, def)
    {
        const char *name = json_string_value(json_object_get(def, "type"));
        json_t *relations = member(def, "relations");
        if (!name || !*name)
            return fail(p, "type definition %zu has no name", i + 1);
        if (relations && !json_is_object(relations))
            return fail(p, "type \"%.80s\": \"relations\" is no object", name);
        *bytes += strlen(name) + 1;
        json_object_foreach(relations, relation, rewrite)
        {
            if (!*relation)
                return fail(p, "type \"%.80s\" has a relation without a name", name);
            *bytes += strlen(relation) + 1;
            ++*pairs;
        }
    }
    return true;
}

static const char *keep(char **at, const char *s)
{
    size_t n = strlen(s) + 1;
    const char *kept = memcpy(*at, s, n);
    *at += n;
    return kept;
}

static bool read_names(struct parse *p)
{
    struct model *m = p->m;
    size_t npairs, bytes, i;
    json_t *def, *rewrite;
    const char *relation;
    if (!count_names(p, &npairs, &bytes))
        return false;
    size_t ntypes = json_array_size(p->types);
    m->types = calloc(ntypes + 1, sizeof *m->types);
    m->pairs = calloc(npairs + 1, sizeof *m->pairs);
    m->names = malloc(bytes + 1);
    if (!m->types || !m->pairs || !m->names)
        return fail(p, "no memory");
    char *at = m->names;
    json_array_foreach(p->types, i, def) m->types[m->ntypes++].name =
        keep(&at, json_string_value(json_object_get(def, "type")));
    qsort(m->types, ntypes, sizeof *m->types, type_cmp);
    for (i = 1; i < ntypes; i++)
        if (type_cmp(&m->types[i - 1], &m->types[i]) == 0)
            return fail(p, "type \"%.80s\" is defined twice", m->types[i].name);
    json_array_foreach(p->types, i, def)
    {
        const char *name = json_string_value(json_object_get(def, "type"));
        int t = model_type_find(m, name, strlen(name));
        json_object_foreach(member(def, "relations"), relation, rewrite) m->pairs[m->npairs++] =
            (struct model_pair){.relation = keep(&at, relation), .type = t};
    }
    qsort(m->pairs, npairs, sizeof *m->pairs, pair_cmp);
    for (int k = m->npairs - 1; k >= 0; k--) {
        m->types[m->pairs[k].type].first = k;
        m->types[m->pairs[k].type].n++;
    }
    return true;
}

/* ---- second pass: what rests on what ---- */
static bool edge_add(struct parse *p, int from, bool other)
{
    struct model *m = p->m;
    if (m->nedges == EDGES_MAX)
        return fail(p, "the model's relations depend on each other in more than %d ways", EDGES_MAX);
    if (m->nedges == m->cap_edges) {
        size_t cap = m->cap_edges ? m->cap_edges * 2 : 256;
        struct model_edge *grown = realloc(m->edges, cap * sizeof *grown);
        if (!grown)
            return fail(p, "no memory");
        m->edges = grown;
        m->cap_edges = cap;
    }
    m->edges[m->nedges++] = (struct model_edge){from, p->pair, other};
    return true;
}

/* The directly_related_user_types of a relation of this type; NULL with the reason if there are none. */
static const json_t *restrictions_of(struct parse *p, const char *relation)
{
    const json_t *meta = member(p->restrictions, relation);
    const json_t *list = member(meta, "directly_related_user_types");
    if (!json_is_array(list) || json_array_size(list) == 0) {
        fail(p, "relation \"%.80s\" is assigned directly but has no directly related user types", relation);
        return NULL;
    }
    return list;
}

/* One entry of that list: its type (-1 with the reason), its relation or "". */
static int restriction_type(struct parse *p, const json_t *entry, const char **relation)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *wildcard = member(entry, "wildcard");
    *relation = text_of(entry, "relation");
    if (!type || !*relation || !text_of(entry, "condition") ||
        (wildcard && (!json_is_object(wildcard) || **relation))) {
        fail(p, "a directly related user type has a wrong form");
        return -1;
    }
    int t = model_type_find(p->m, type, strlen(type));
    if (t < 0)
        fail(p, "the directly related type \"%.80s\" is not defined", type);
    return t;
}

static bool read_this(struct parse *p)
{
    const json_t *list = restrictions_of(p, p->m->pairs[p->pair].relation);
    size_t n = json_array_size(list);
    p->m->pairs[p->pair].direct = list;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, i);
        const char *relation;
        int t = restriction_type(p, entry, &relation);
        if (t < 0)
            return false;
        if (*text_of(entry, "condition"))
            p->m->pairs[p->pair].own_condition = true;
        if (!*relation)
            continue;
        int from = model_relation_find(p->m, t, relation);
        if (from < 0)
            return fail(p, "the directly related \"%.80s#%.80s\" is not defined", p->m->types[t].name, relation);
        if (!edge_add(p, from, true))
            return false;
    }
    return n > 0;
}

/* The relation that a computedUserset or tupleset object names; NULL with the reason. */
static const char *relation_in(struct parse *p, const json_t *object, const char *what)
{
    const char *relation = json_string_value(json_object_get(object, "relation"));
    if (!relation || !*relation) {
        fail(p, "%s names no relation", what);
        return NULL;
    }
    return relation;
}

/* The pair of this type; -1 with the reason. */
static int own_relation(struct parse *p, const json_t *object, const char *what)
{
    const char *relation = relation_in(p, object, what);
    int pair = relation ? model_relation_find(p->m, p->type, relation) : -1;
    if (relation && pair < 0)
        fail(p, "the relation \"%.80s\" of its %s is not defined", relation, what);
    return pair;
}

static bool read_computed(struct parse *p, const json_t *computed)
{
    int from = own_relation(p, computed, "computedUserset");
    return from >= 0 && edge_add(p, from, false);
}

/* `computed` from `tupleset`: rests on the tupleset's tuples, and on that relation of all that they can point to. */
static bool read_ttu(struct parse *p, const json_t *ttu)
{
    int tupleset = own_relation(p, json_object_get(ttu, "tupleset"), "tupleset");
    const char *computed =
        tupleset < 0 ? NULL : relation_in(p, json_object_get(ttu, "computedUserset"), "tupleToUserset");
    if (!computed)
        return false;
    const char *name = p->m->pairs[tupleset].relation;
    if (!json_object_get(json_object_get(p->relations, name), "this"))
        return fail(p, "the tupleset \"%.80s\" is not assigned directly", name);
    const json_t *list = restrictions_of(p, name);
    if (!list || !edge_add(p, tupleset, false))
        return false;
    p->m->pairs[tupleset].tupleset = true;
    bool any = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *unused;
        int t = restriction_type(p, json_array_get(list, i), &unused);
        if (t < 0)
            return false;
        int from = model_relation_find(p->m, t, computed);
        any |= from >= 0;
        if (from >= 0 && !edge_add(p, from, true))
            return false;
    }
    return any || fail(p, "the relation \"%.80s\" is defined for none of the types of \"%.80s\"", computed, name);
}

static bool read_rewrite(struct parse *p, const json_t *rewrite, int depth);

static bool read_children(struct parse *p, const json_t *set, const char *what, int depth)
{
    const json_t *children = json_object_get(set, "child");
    size_t n = json_array_size(children);
    if (n == 0)
        return fail(p, "%s without \"child\"", what);
    for (size_t i = 0; i < n; i++)
        if (!read_rewrite(p, json_array_get(children, i), depth + 1))
            return false;
    return true;
}

static bool read_rewrite(struct parse *p, const json_t *rewrite, int depth)
{
    const char *key, *kind = NULL;
    json_t *value;
    size_t kinds = 0;
    if (depth > DEPTH_MAX)
        return fail(p, "nested deeper than %d", DEPTH_MAX);
    json_object_foreach((json_t *)(uintptr_t)rewrite, key, value)
    {
        if (json_is_null(value))
            continue;
        kind = key;
        kinds++;
    }
    if (kinds != 1)
        return fail(p, "a rewrite is not exactly one of this, computedUserset, tupleToUserset, union, intersection "
                       "and difference");
    const json_t *of = json_object_get(rewrite, kind);
    if (!json_is_object(of))
        return fail(p, "\"%.80s\" is no object", kind);
    if (strcmp(kind, "this") == 0)
        return read_this(p);
    if (strcmp(kind, "computedUserset") == 0)
        return read_computed(p, of);
    if (strcmp(kind, "tupleToUserset") == 0)
        return read_ttu(p, of);
    if (strcmp(kind, "union") == 0 || strcmp(kind, "intersection") == 0)
        return read_children(p, of, kind, depth);
    if (strcmp(kind, "difference") == 0)
        return read_rewrite(p, json_object_get(of, "base"), depth + 1) &&
               read_rewrite(p, json_object_get(of, "subtract"), depth + 1);
    return fail(p, "the rewrite \"%.80s\" is not known", kind);
}

static bool read_rewrites(struct parse *p)
{
    size_t i;
    json_t *def, *rewrite;
    const char *relation;
    json_array_foreach(p->types, i, def)
    {
        const char *name = json_string_value(json_object_get(def, "type"));
        p->type = model_type_find(p->m, name, strlen(name));
        p->pair = -1;
        p->relations = member(def, "relations");
        p->restrictions = member(member(def, "metadata"), "relations");
        json_object_foreach(p->relations, relation, rewrite)
        {
            p->pair = model_relation_find(p->m, p->type, relation);
            if (!read_rewrite(p, rewrite, 1))
                return false;
        }
    }
    p->type = p->pair = -1;
    return true;
}

static bool read_model(struct parse *p, const json_t *root)
{
    const char *schema = json_string_value(json_object_get(root, "schema_version"));
    if (!json_is_object(root))
        return fail(p, "the model is no JSON object");
    if (!schema || (strcmp(schema, "1.1") != 0 && strcmp(schema, "1.2") != 0))
        return fail(p, "schema_version \"%.20s\" is neither 1.1 nor 1.2", schema ? schema : "");
    p->types = member(root, "type_definitions");
    if (!json_is_array(p->types) || json_array_size(p->types) == 0)
        return fail(p, "the model has no type_definitions");
    if (!read_names(p) || !read_rewrites(p))
        return false;
    return model_close(p->m) || fail(p, "no memory");
}

bool model_parse(struct model **out, const char *json, size_t len, struct model_err *err)
{
    struct model_err own;
    struct parse p = {.err = err ? err : &own, .type = -1, .pair = -1};
    json_error_t why;
    bool ok = false;
    *out = NULL;
    p.err->text[0] = p.err->code[0] = '\0';
    if (len > JSON_MAX)
        return fail(&p, "the model is larger than %d bytes", JSON_MAX);
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
    p.m = calloc(1, sizeof *p.m);
    if (!root)
        fail(&p, "the model is no JSON: %s (line %d)", why.text, why.line);
    else if (!p.m)
        fail(&p, "no memory");
    else
        ok = read_model(&p, root);
    if (p.m)
        p.m->source = json_incref(root);
    json_decref(root);
    if (!ok) {
        model_free(p.m);
        p.m = NULL;
    }
    *out = p.m;
    return ok;
}
