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
#include "engine/model_valid.h"

bool valid_refuse(struct valid *v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->err->text, sizeof v->err->text, fmt, ap);
    va_end(ap);
    snprintf(v->err->code, sizeof v->err->code, "invalid_authorization_model");
    return false;
}

bool valid_bad_relation(struct valid *v, const char *cause)
{
    return valid_refuse(v, "the definition of relation '%s' in object type '%s' is invalid: %s", v->relation, v->type,
                        cause);
}

/* ---- reading ---- */

const char *valid_text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static const json_t *object(const json_t *in, const char *key)
{
    const json_t *o = json_object_get(in, key);
    return json_is_object(o) ? o : NULL;
}

bool valid_has(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v);
}

static int by_type(const void *a, const void *b)
{
    return strcmp(((const struct valid_type *)a)->name, ((const struct valid_type *)b)->name);
}

static int by_relation(const void *a, const void *b)
{
    return strcmp(((const struct valid_relation *)a)->name, ((const struct valid_relation *)b)->name);
}

int valid_type_find(const struct valid *v, const char *name)
{
    const struct valid_type key = {.name = name}, *t = bsearch(&key, v->types, v->ntypes, sizeof *t, by_type);
    return t ? (int)(t - v->types) : -1;
}

int valid_relation_find(const struct valid *v, int type, const char *name)
{
    const struct valid_type *t = type < 0 ? NULL : &v->types[type];
    const struct valid_relation key = {.name = name},
                                *r = t && t->n ? bsearch(&key, t->relations, t->n, sizeof *r, by_relation) : NULL;
    return r ? (int)(r - t->relations) : -1;
}

const json_t *valid_related(const struct valid *v, int type, const char *relation)
{
    const json_t *metadata = object(object(object(v->types[type].definition, "metadata"), "relations"), relation);
    return json_object_get(metadata, "directly_related_user_types");
}

enum kind valid_kind(const json_t *rewrite, const json_t **of)
{
    static const char *const names[] = {"",      "this",         "computedUserset", "tupleToUserset",
                                        "union", "intersection", "difference"};
    for (int k = THIS; k <= DIFFERENCE; k++)
        if ((*of = json_object_get(rewrite, names[k])) != NULL && !json_is_null(*of))
            return (enum kind)k;
    return NOTHING;
}

size_t valid_operands(enum kind kind, const json_t *of)
{
    return kind == DIFFERENCE ? 2 : json_array_size(json_object_get(of, "child"));
}

const json_t *valid_operand(enum kind kind, const json_t *of, size_t i)
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
        if (by_type(&v->types[i - 1], &v->types[i]) == 0)
            return valid_refuse(v, "an authorization model cannot contain duplicate types");
    for (size_t i = 0; i < v->ntypes; i++) {
        const struct valid_type *t = &v->types[i];
        v->type = t->name;
        if (!*v->type)
            return valid_refuse(v, "the type name of a type definition cannot be an empty string");
        if (reserved(v->type))
            return valid_refuse(v, "the definition of type '%s' is invalid", v->type);
        for (size_t k = 0; k < t->n; k++) {
            v->relation = t->relations[k].name;
            if (!*v->relation)
                return valid_refuse(v, "type '%s' defines a relation with an empty string for a name", v->type);
            if (reserved(v->relation))
                return valid_bad_relation(v, "self and this are reserved keywords");
        }
    }
    return true;
}

/* ---- rewrites ---- */

static bool undefined(struct valid *v, const char *relation)
{
    return valid_refuse(v, "'%s#%s' relation is undefined", v->type, relation);
}

/* As Go prints the message of protobuf. */
static size_t print_reference(char *to, size_t size, const json_t *entry)
{
    const char *type = valid_text(entry, "type"), *relation = valid_text(entry, "relation"),
               *condition = valid_text(entry, "condition");
    int n = snprintf(to, size, "type:\"%s\"", type);
    if (valid_has(entry, "wildcard"))
        n += snprintf(to + n, (size_t)n < size ? size - (size_t)n : 0, " wildcard:{}");
    else if (valid_has(entry, "relation"))
        n += snprintf(to + n, (size_t)n < size ? size - (size_t)n : 0, " relation:\"%s\"", relation);
    if (*condition && (size_t)n < size)
        n += snprintf(to + n, size - (size_t)n, " condition:\"%s\"", condition);
    return (size_t)n < size ? (size_t)n : size - 1;
}

static bool ttu_valid(struct valid *v, int type, const json_t *of)
{
    const char *tupleset = valid_text(json_object_get(of, "tupleset"), "relation"),
               *computed = valid_text(json_object_get(of, "computedUserset"), "relation");
    int at = valid_relation_find(v, type, tupleset);
    const json_t *ignored, *entry;
    char names[sizeof v->err->text] = "";
    size_t i, n = 0;
    if (at < 0)
        return undefined(v, tupleset);
    if (valid_kind(v->types[type].relations[at].rewrite, &ignored) != THIS)
        return valid_refuse(
            v, "the '%s#%s' relation is referenced in at least one tupleset and thus must be a direct relation",
            v->type, tupleset);
    json_array_foreach(valid_related(v, type, tupleset), i, entry)
    {
        if (valid_relation_find(v, valid_type_find(v, valid_text(entry, "type")), computed) >= 0)
            return true;
        if (i && n + 1 < sizeof names)
            names[n++] = ' ';
        n += print_reference(names + n, sizeof names - n, entry);
    }
    return valid_refuse(
        v, "undefined relation: %s does not appear as a relation in any of the directly related user types [%s]",
        computed, names);
}

static bool rewrite_valid(struct valid *v, int type, const json_t *rewrite)
{
    const json_t *of;
    enum kind kind = valid_kind(rewrite, &of);
    const char *computed;
    switch (kind) {
    case NOTHING:
        return valid_bad_relation(v, "invalid userset rewrite definition");
    case THIS:
        return true;
    case COMPUTED:
        computed = valid_text(of, "relation");
        if (strcmp(computed, v->relation) == 0)
            return valid_bad_relation(v, "invalid userset rewrite definition");
        return valid_relation_find(v, type, computed) >= 0 || undefined(v, computed);
    case TTU:
        return ttu_valid(v, type, of);
    case UNION:
    case INTERSECTION:
    case DIFFERENCE:
        for (size_t i = 0; i < valid_operands(kind, of); i++)
            if (!rewrite_valid(v, type, valid_operand(kind, of, i)))
                return false;
        return true;
    }
    return true;
}

/* ---- directly related types ---- */

static bool assignable(const json_t *rewrite)
{
    const json_t *of;
    enum kind kind = valid_kind(rewrite, &of);
    for (size_t i = 0; kind >= UNION && i < valid_operands(kind, of); i++)
        if (assignable(valid_operand(kind, of, i)))
            return true;
    return kind == THIS;
}

static bool bad_type(struct valid *v, const char *type, const char *relation)
{
    return valid_refuse(v, "the relation type '%s%s%s' on '%s' in object type '%s' is not valid", type,
                        *relation ? "#" : "", relation, v->relation, v->type);
}

static bool restriction_valid(struct valid *v, const json_t *entry, bool tupleset)
{
    const char *type = valid_text(entry, "type"), *relation = valid_text(entry, "relation"),
               *condition = valid_text(entry, "condition");
    bool wildcard = valid_has(entry, "wildcard"), userset = !wildcard && valid_has(entry, "relation");
    int at = valid_type_find(v, type);
    if (at < 0 || ((wildcard || userset) && tupleset))
        return bad_type(v, type, relation);
    if (userset && !*relation)
        return valid_refuse(v,
                            "the relation type '%s' on '%s' in object type '%s' has an empty relation reference: empty "
                            "relation reference",
                            type, v->relation, v->type);
    if (userset && valid_relation_find(v, at, relation) < 0)
        return bad_type(v, type, relation);
    if (*condition && !json_object_get(json_object_get(v->root, "conditions"), condition))
        return valid_refuse(v, "condition %s is undefined for relation %s", condition, v->relation);
    return true;
}

static bool restrictions_valid(struct valid *v, int type, const struct valid_relation *r)
{
    const json_t *list = valid_related(v, type, r->name), *entry;
    bool direct = assignable(r->rewrite);
    size_t i;
    if (direct && json_array_size(list) == 0)
        return valid_refuse(v,
                            "the assignable relation '%s' in object type '%s' must contain at least one relation type",
                            r->name, v->type);
    if (!direct && json_array_size(list) != 0)
        return valid_refuse(v,
                            "the non-assignable relation '%s' in object type '%s' should not contain a relation type",
                            r->name, v->type);
    json_array_foreach(list, i, entry) if (!restriction_valid(v, entry, r->tupleset)) return false;
    return true;
}

/* ---- conditions ---- */

static bool conditions_valid(struct valid *v)
{
    const char *key;
    const json_t *condition;
    json_object_foreach(json_object_get(v->root, "conditions"), key, condition)
    {
        if (strcmp(valid_text(condition, "name"), key) != 0)
            return valid_refuse(v, "condition key '%s' does not match condition name '%s'", key,
                                valid_text(condition, "name"));
        char why[200];
        if (!model_parameters_valid(condition, why, sizeof why))
            return valid_refuse(v, "failed to compile expression on condition '%s' - %s", key, why);
    }
    return true;
}

/* The experiment "inline_expressions", which OpenFGA has turned off. */
static bool without_inline(struct valid *v)
{
    const char *key;
    const json_t *relation, *entry;
    size_t k;
    for (size_t i = 0; i < v->ntypes; i++)
        json_object_foreach(json_object_get(json_object_get(v->types[i].definition, "metadata"), "relations"), key,
                            relation)
            json_array_foreach(json_object_get(relation, "directly_related_user_types"), k,
                               entry) if (strcmp(valid_text(entry, "condition"), "$expression") == 0)
        {
            valid_refuse(v, "$expression requires the \"inline_expressions\" experimental feature flag");
            snprintf(v->err->code, sizeof v->err->code, "validation_error");
            return false;
        }
    return true;
}

/* ---- all ---- */

static void mark_tuplesets(struct valid *v, int type, const json_t *rewrite)
{
    const json_t *of;
    enum kind kind = valid_kind(rewrite, &of);
    int at = kind == TTU ? valid_relation_find(v, type, valid_text(json_object_get(of, "tupleset"), "relation")) : -1;
    if (at >= 0)
        v->types[type].relations[at].tupleset = true;
    for (size_t i = 0; kind >= UNION && i < valid_operands(kind, of); i++)
        mark_tuplesets(v, type, valid_operand(kind, of, i));
}

static bool read_type(struct valid_type *t, const json_t *definition)
{
    json_t *relations = (json_t *)(uintptr_t)object(definition, "relations"), *rewrite;
    const char *name;
    *t = (struct valid_type){.name = valid_text(definition, "type"), .definition = definition};
    t->relations = calloc(json_object_size(relations) + 1, sizeof *t->relations);
    if (!t->relations)
        return false;
    json_object_foreach(relations, name, rewrite) t->relations[t->n++] =
        (struct valid_relation){.name = name, .rewrite = rewrite};
    qsort(t->relations, t->n, sizeof *t->relations, by_relation);
    return true;
}

static bool read_types(struct valid *v)
{
    const json_t *list = json_object_get(v->root, "type_definitions");
    v->types = calloc(json_array_size(list) + 1, sizeof *v->types);
    for (size_t i = 0; v->types && i < json_array_size(list); i++)
        if (!read_type(&v->types[v->ntypes++], json_array_get(list, i)))
            return valid_refuse(v, "no memory");
    if (!v->types)
        return valid_refuse(v, "no memory");
    qsort(v->types, v->ntypes, sizeof *v->types, by_type);
    return true;
}

static bool type_valid(struct valid *v, int type)
{
    const struct valid_type *t = &v->types[type];
    v->type = t->name;
    for (size_t i = 0; i < t->n; i++)
        mark_tuplesets(v, type, t->relations[i].rewrite);
    for (size_t i = 0; i < t->n; i++) {
        const struct valid_relation *r = &t->relations[i];
        v->relation = r->name;
        if (!rewrite_valid(v, type, r->rewrite) || !restrictions_valid(v, type, r) || !valid_entry(v, type, (int)i) ||
            !valid_acyclic(v, type, (int)i))
            return false;
    }
    return true;
}

static bool root_valid(struct valid *v)
{
    const char *schema = valid_text(v->root, "schema_version");
    if (!read_types(v) || !without_inline(v))
        return false;
    if (strcmp(schema, "1.1") != 0 && strcmp(schema, "1.2") != 0)
        return valid_refuse(v, "invalid schema version");
    if (!names_valid(v))
        return false;
    for (size_t i = 0; i < v->ntypes; i++)
        if (!type_valid(v, (int)i))
            return false;
    return conditions_valid(v);
}

bool model_valid(const char *json, size_t len, struct model_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
    struct valid v = {.err = err, .root = root};
    bool ok = root ? root_valid(&v) : valid_refuse(&v, "the model is no JSON: %s (line %d)", why.text, why.line);
    for (size_t i = 0; i < v.ntypes; i++)
        free(v.types[i].relations);
    free(v.types);
    json_decref(root);
    return ok;
}
