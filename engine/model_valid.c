/*
 * model_valid.c - whether OpenFGA would take a model: its rules, order and messages (pkg/typesystem/typesystem.go,
 * NewAndValidate, v1.22.1). Conditions' expressions are not compiled.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_internal.h"

#define NESTED_MAX 8000 /* calls inside each other: a thread's stack is bounded */

struct inner { /* of a type: what is known of each of its relations */
    struct inner *next;
    signed char known[]; /* -1 = not visited, else whether it has an entry point */
};

struct valid {
    struct model_err *err;
    const json_t *root;
    const json_t **types; /* sorted by name */
    size_t ntypes;
    struct inner *inners; /* all there are */
    const char *type, *relation;
};

enum kind { NOTHING, THIS, COMPUTED, TTU, UNION, INTERSECTION, DIFFERENCE };

static bool refuse(struct valid *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(struct valid *v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->err->text, sizeof v->err->text, fmt, ap);
    va_end(ap);
    snprintf(v->err->code, sizeof v->err->code, "invalid_authorization_model");
    return false;
}

static bool bad_relation(struct valid *v, const char *cause)
{
    return refuse(v, "the definition of relation '%s' in object type '%s' is invalid: %s", v->relation, v->type, cause);
}

/* ---- reading ---- */

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static const json_t *object(const json_t *in, const char *key)
{
    const json_t *o = json_object_get(in, key);
    return json_is_object(o) ? o : NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(text(*(const json_t *const *)a, "type"), text(*(const json_t *const *)b, "type"));
}

/* Its place in types; -1: not defined. */
static int type_find(const struct valid *v, const char *name)
{
    size_t low = 0, high = v->ntypes;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(name, text(v->types[mid], "type"));
        if (c == 0)
            return (int)mid;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

static const json_t *relations(const struct valid *v, int type)
{
    return type < 0 ? NULL : object(v->types[type], "relations");
}

static const json_t *rewrite_of(const struct valid *v, int type, const char *relation)
{
    return json_object_get(relations(v, type), relation);
}

/* The directly related types; NULL or empty: none. */
static const json_t *related(const struct valid *v, int type, const char *relation)
{
    const json_t *metadata = object(object(object(v->types[type], "metadata"), "relations"), relation);
    return json_object_get(metadata, "directly_related_user_types");
}

static enum kind kind_of(const json_t *rewrite, const json_t **of)
{
    static const char *const names[] = {"",      "this",         "computedUserset", "tupleToUserset",
                                        "union", "intersection", "difference"};
    for (int k = THIS; k <= DIFFERENCE; k++)
        if ((*of = json_object_get(rewrite, names[k])) != NULL && !json_is_null(*of))
            return (enum kind)k;
    return NOTHING;
}

/* The operands of union, intersection, difference. */
static size_t operands(enum kind kind, const json_t *of)
{
    return kind == DIFFERENCE ? 2 : json_array_size(json_object_get(of, "child"));
}

static const json_t *operand(enum kind kind, const json_t *of, size_t i)
{
    if (kind == DIFFERENCE)
        return json_object_get(of, i ? "subtract" : "base");
    return json_array_get(json_object_get(of, "child"), i);
}

/* ---- names ---- */

static bool reserved(const char *name)
{
    return strcmp(name, "self") == 0 || strcmp(name, "this") == 0;
}

static bool names_valid(struct valid *v)
{
    for (size_t i = 1; i < v->ntypes; i++)
        if (by_name(&v->types[i - 1], &v->types[i]) == 0)
            return refuse(v, "an authorization model cannot contain duplicate types");
    for (size_t i = 0; i < v->ntypes; i++) {
        const json_t *rewrite;
        v->type = text(v->types[i], "type");
        if (!*v->type)
            return refuse(v, "the type name of a type definition cannot be an empty string");
        if (reserved(v->type))
            return refuse(v, "the definition of type '%s' is invalid", v->type);
        json_object_foreach((json_t *)(uintptr_t)relations(v, (int)i), v->relation, rewrite)
        {
            if (!*v->relation)
                return refuse(v, "type '%s' defines a relation with an empty string for a name", v->type);
            if (reserved(v->relation))
                return bad_relation(v, "self and this are reserved keywords");
        }
    }
    return true;
}

/* ---- rewrites ---- */

static bool undefined(struct valid *v, const char *relation)
{
    return refuse(v, "'%s#%s' relation is undefined", v->type, relation);
}

static bool ttu_valid(struct valid *v, int type, const json_t *of)
{
    const char *tupleset = text(json_object_get(of, "tupleset"), "relation"),
               *computed = text(json_object_get(of, "computedUserset"), "relation");
    const json_t *rewrite = rewrite_of(v, type, tupleset), *ignored, *entry, *list;
    char names[256] = "";
    size_t i;
    if (!rewrite)
        return undefined(v, tupleset);
    if (kind_of(rewrite, &ignored) != THIS)
        return refuse(v,
                      "the '%s#%s' relation is referenced in at least one tupleset and thus must be a direct relation",
                      v->type, tupleset);
    list = related(v, type, tupleset);
    json_array_foreach(list, i, entry)
    {
        if (rewrite_of(v, type_find(v, text(entry, "type")), computed))
            return true;
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%stype:\"%s\"", i ? " " : "", text(entry, "type"));
    }
    return refuse(v,
                  "undefined relation: %s does not appear as a relation in any of the directly related user types [%s]",
                  computed, names);
}

static bool rewrite_valid(struct valid *v, int type, const json_t *rewrite)
{
    const json_t *of;
    enum kind kind = kind_of(rewrite, &of);
    const char *computed;
    switch (kind) {
    case NOTHING:
        return bad_relation(v, "invalid userset rewrite definition");
    case THIS:
        return true;
    case COMPUTED:
        computed = text(of, "relation");
        if (strcmp(computed, v->relation) == 0)
            return bad_relation(v, "invalid userset rewrite definition");
        return rewrite_of(v, type, computed) || undefined(v, computed);
    case TTU:
        return ttu_valid(v, type, of);
    case UNION:
    case INTERSECTION:
    case DIFFERENCE:
        for (size_t i = 0; i < operands(kind, of); i++)
            if (!rewrite_valid(v, type, operand(kind, of, i)))
                return false;
        return true;
    }
    return true;
}

/* ---- directly related types ---- */

static bool has_kind(const json_t *rewrite, enum kind wanted, const char *tupleset)
{
    const json_t *of;
    enum kind kind = kind_of(rewrite, &of);
    if (kind == wanted)
        return wanted != TTU || strcmp(text(json_object_get(of, "tupleset"), "relation"), tupleset) == 0;
    for (size_t i = 0; kind >= UNION && i < operands(kind, of); i++)
        if (has_kind(operand(kind, of, i), wanted, tupleset))
            return true;
    return false;
}

static bool is_tupleset(const struct valid *v, int type, const char *relation)
{
    const char *name;
    const json_t *rewrite;
    json_object_foreach((json_t *)(uintptr_t)relations(v, type), name,
                        rewrite) if (has_kind(rewrite, TTU, relation)) return true;
    return false;
}

static bool bad_type(struct valid *v, const char *type, const char *relation)
{
    return refuse(v, "the relation type '%s%s%s' on '%s' in object type '%s' is not valid", type, *relation ? "#" : "",
                  relation, v->relation, v->type);
}

static bool restriction_valid(struct valid *v, const json_t *entry, bool tupleset)
{
    const char *type = text(entry, "type"), *relation = text(entry, "relation"), *condition = text(entry, "condition");
    const json_t *of_relation = json_object_get(entry, "relation"), *wildcard = json_object_get(entry, "wildcard");
    bool has_wildcard = wildcard && !json_is_null(wildcard), has_relation = of_relation && !json_is_null(of_relation);
    int at = type_find(v, type);
    if (at < 0)
        return bad_type(v, type, relation);
    if (has_wildcard || has_relation) {
        if (tupleset)
            return bad_type(v, type, relation);
        if (!has_wildcard && !*relation)
            return refuse(v,
                          "the relation type '%s' on '%s' in object type '%s' has an empty relation reference: empty "
                          "relation reference",
                          type, v->relation, v->type);
        if (!has_wildcard && !rewrite_of(v, at, relation))
            return bad_type(v, type, relation);
    }
    if (*condition && !json_object_get(json_object_get(v->root, "conditions"), condition))
        return refuse(v, "condition %s is undefined for relation %s", condition, v->relation);
    return true;
}

static bool restrictions_valid(struct valid *v, int type, const json_t *rewrite)
{
    const json_t *list = related(v, type, v->relation), *entry;
    bool assignable = has_kind(rewrite, THIS, ""), tupleset = is_tupleset(v, type, v->relation);
    size_t i;
    if (assignable && json_array_size(list) == 0)
        return refuse(v, "the assignable relation '%s' in object type '%s' must contain at least one relation type",
                      v->relation, v->type);
    if (!assignable && json_array_size(list) != 0)
        return refuse(v, "the non-assignable relation '%s' in object type '%s' should not contain a relation type",
                      v->relation, v->type);
    json_array_foreach(list, i, entry) if (!restriction_valid(v, entry, tupleset)) return false;
    return true;
}

/* ---- entry points ---- */

static size_t place_of(const struct valid *v, int type, const char *relation)
{
    size_t at = 0;
    const char *name;
    const json_t *rewrite;
    json_object_foreach((json_t *)(uintptr_t)relations(v, type), name, rewrite)
    {
        if (strcmp(name, relation) == 0)
            break;
        at++;
    }
    return at;
}

static struct inner *inner_new(struct valid *v, int type)
{
    size_t n = json_object_size(relations(v, type));
    struct inner *in = malloc(sizeof *in + n + 1);
    if (!in)
        return NULL;
    memset(in->known, -1, n + 1);
    in->next = v->inners;
    v->inners = in;
    return in;
}

struct entry {
    bool has, loop, failed;
};

static signed char *known(struct inner **visited, const struct valid *v, int type, const char *relation)
{
    return visited[type] ? &visited[type]->known[place_of(v, type, relation)] : NULL;
}

static struct entry entry_point(struct valid *v, int type, const char *relation, const json_t *rewrite,
                                struct inner *const *outer, int depth);

static struct entry look(struct valid *v, int type, const char *relation, struct inner **visited, int depth)
{
    return entry_point(v, type, relation, rewrite_of(v, type, relation), visited, depth);
}

static struct entry entry_direct(struct valid *v, int type, const char *relation, struct inner **visited, int depth)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(related(v, type, relation), i, entry)
    {
        const char *name = text(entry, "relation");
        if (!*name) {
            *known(visited, v, type, relation) = 1;
            return (struct entry){.has = true};
        }
        int to = type_find(v, text(entry, "type"));
        const signed char *seen = known(visited, v, to, name);
        if (seen && *seen >= 0)
            continue;
        struct entry e = look(v, to, name, visited, depth);
        if (e.failed)
            return e;
        if (e.has)
            return (struct entry){.has = true};
    }
    return (struct entry){0};
}

static struct entry entry_ttu(struct valid *v, int type, const json_t *of, struct inner **visited, int depth)
{
    const char *tupleset = text(json_object_get(of, "tupleset"), "relation"),
               *computed = text(json_object_get(of, "computedUserset"), "relation");
    const json_t *entry;
    size_t i;
    json_array_foreach(related(v, type, tupleset), i, entry)
    {
        int to = type_find(v, text(entry, "type"));
        if (!rewrite_of(v, to, computed))
            continue;
        const signed char *seen = known(visited, v, to, computed);
        if (seen && *seen >= 0) {
            if (*seen)
                return (struct entry){.has = true};
            continue;
        }
        struct entry e = look(v, to, computed, visited, depth);
        if (e.failed)
            return e;
        if (e.has)
            return (struct entry){.has = true};
    }
    return (struct entry){0};
}

static struct entry entry_operands(struct valid *v, int type, const char *relation, enum kind kind, const json_t *of,
                                   struct inner *const *outer, int depth)
{
    struct entry sum = {.has = kind != UNION};
    size_t n = operands(kind, of);
    if (n < 2) {
        refuse(v, "invalid relation: '%s#%s' as %s has less than 2 children", text(v->types[type], "type"), relation,
               kind == UNION ? "union" : "intersection");
        return (struct entry){.failed = true};
    }
    for (size_t i = 0; i < n; i++) {
        struct entry e = entry_point(v, type, relation, operand(kind, of, i), outer, depth);
        if (e.failed)
            return e;
        if (kind == UNION && e.has)
            return (struct entry){.has = true};
        if (kind != UNION && !e.has)
            return (struct entry){.loop = e.loop};
        sum.loop |= kind == UNION && e.loop;
    }
    return sum;
}

/* What is known of a type's relations is shared with the callers that know of the type already, as there. */
static struct entry entry_point(struct valid *v, int type, const char *relation, const json_t *rewrite,
                                struct inner *const *outer, int depth)
{
    const json_t *of;
    enum kind kind = kind_of(rewrite, &of);
    struct entry out = {.failed = true};
    struct inner **visited = malloc((v->ntypes + 1) * sizeof *visited);
    if (visited)
        memcpy(visited, outer, v->ntypes * sizeof *visited);
    if (!visited || depth > NESTED_MAX || (!visited[type] && !(visited[type] = inner_new(v, type)))) {
        free(visited);
        refuse(v, "the model is nested too deeply");
        return out;
    }
    *known(visited, v, type, relation) = 0;
    switch (kind) {
    case NOTHING: /* refused before */
    case THIS:
        out = entry_direct(v, type, relation, visited, depth + 1);
        break;
    case COMPUTED: {
        const char *computed = text(of, "relation");
        const signed char *seen = known(visited, v, type, computed);
        out = *seen >= 0 ? (struct entry){.has = *seen > 0, .loop = true} : look(v, type, computed, visited, depth + 1);
        break;
    }
    case TTU:
        out = entry_ttu(v, type, of, visited, depth + 1);
        break;
    case UNION:
    case INTERSECTION:
    case DIFFERENCE:
        out = entry_operands(v, type, relation, kind, of, outer, depth + 1);
        break;
    }
    free(visited);
    return out;
}

static bool entry_valid(struct valid *v, int type, const json_t *rewrite)
{
    struct inner **none = calloc(v->ntypes + 1, sizeof *none);
    struct entry e = {.failed = true};
    if (none)
        e = entry_point(v, type, v->relation, rewrite, none, 0);
    free(none);
    for (struct inner *in = v->inners, *next; in; in = next) {
        next = in->next;
        free(in);
    }
    v->inners = NULL;
    if (e.failed)
        return false;
    return e.has || bad_relation(v, e.loop ? "potential loop" : "no entrypoints defined");
}

/* ---- cycles of computed relations ---- */

/* marks: 0 = not seen, 1 = on the way here, 2 = leads to none */
static bool leads_to_cycle(const struct valid *v, int type, const json_t *rewrite, char *marks)
{
    const json_t *of;
    enum kind kind = kind_of(rewrite, &of);
    if (kind == COMPUTED) {
        const char *computed = text(of, "relation");
        char *mark = &marks[place_of(v, type, computed)];
        if (*mark)
            return *mark == 1;
        *mark = 1;
        if (leads_to_cycle(v, type, rewrite_of(v, type, computed), marks))
            return true;
        *mark = 2;
    }
    for (size_t i = 0; kind >= UNION && i < operands(kind, of); i++)
        if (leads_to_cycle(v, type, operand(kind, of, i), marks))
            return true;
    return false;
}

static bool acyclic(struct valid *v, int type, const json_t *rewrite)
{
    char *marks = calloc(json_object_size(relations(v, type)) + 1, 1);
    if (!marks)
        return refuse(v, "no memory");
    marks[place_of(v, type, v->relation)] = 1;
    bool cycle = leads_to_cycle(v, type, rewrite, marks);
    free(marks);
    return !cycle || bad_relation(v, "an authorization model cannot contain a cycle");
}

/* ---- all ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool type_valid(struct valid *v, int type)
{
    const json_t *of = relations(v, type), *rewrite;
    const char **names = malloc((json_object_size(of) + 1) * sizeof *names), *name;
    size_t n = 0;
    bool ok = names != NULL;
    if (!ok)
        return refuse(v, "no memory");
    json_object_foreach((json_t *)(uintptr_t)of, name, rewrite) names[n++] = name;
    qsort(names, n, sizeof *names, by_text);
    v->type = text(v->types[type], "type");
    for (size_t i = 0; ok && i < n; i++) {
        v->relation = names[i];
        rewrite = json_object_get(of, names[i]);
        ok = rewrite_valid(v, type, rewrite) && restrictions_valid(v, type, rewrite) && entry_valid(v, type, rewrite) &&
             acyclic(v, type, rewrite);
    }
    free(names);
    return ok;
}

static bool conditions_valid(struct valid *v)
{
    const char *key;
    const json_t *condition;
    json_object_foreach(json_object_get(v->root, "conditions"), key, condition)
    {
        if (strcmp(text(condition, "name"), key) != 0)
            return refuse(v, "condition key '%s' does not match condition name '%s'", key, text(condition, "name"));
    }
    return true;
}

static bool root_valid(struct valid *v)
{
    const char *schema = text(v->root, "schema_version");
    const json_t *types = json_object_get(v->root, "type_definitions");
    if (strcmp(schema, "1.1") != 0 && strcmp(schema, "1.2") != 0)
        return refuse(v, "invalid schema version");
    v->ntypes = json_array_size(types);
    v->types = calloc(v->ntypes + 1, sizeof *v->types);
    if (!v->types)
        return refuse(v, "no memory");
    for (size_t i = 0; i < v->ntypes; i++)
        v->types[i] = json_array_get(types, i);
    qsort(v->types, v->ntypes, sizeof *v->types, by_name);
    bool ok = names_valid(v);
    for (size_t i = 0; ok && i < v->ntypes; i++)
        ok = type_valid(v, (int)i);
    return ok && conditions_valid(v);
}

bool model_valid(const char *json, size_t len, struct model_err *err)
{
    json_error_t why;
    struct valid v = {.err = err, .root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why)};
    bool ok = v.root ? root_valid(&v) : refuse(&v, "the model is no JSON: %s (line %d)", why.text, why.line);
    free(v.types);
    json_decref((json_t *)(uintptr_t)v.root);
    return ok;
}
