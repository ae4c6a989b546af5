/* model.c - look-ups in a compiled model. */
#include "engine/model_internal.h"

#include <stdlib.h>
#include <string.h>

void model_free(struct model *m)
{
    if (!m)
        return;
    free(m->types);
    free(m->pairs);
    free(m->edges);
    free(m->names);
    free(m->closures);
    free(m->all);
    json_decref(m->source);
    free(m);
}

static int name_cmp(const char *a, size_t len, const char *b)
{
    int c = strncmp(a, b, len);
    return c ? c : (b[len] ? -1 : 0);
}

int model_type_find(const struct model *m, const char *name, size_t len)
{
    int low = 0, high = m->ntypes;
    while (low < high) {
        int mid = low + (high - low) / 2;
        int c = name_cmp(name, len, m->types[mid].name);
        if (c == 0)
            return mid;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

int model_relation_find(const struct model *m, int type, const char *relation)
{
    int low = m->types[type].first, high = low + m->types[type].n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        int c = strcmp(relation, m->pairs[mid].relation);
        if (c == 0)
            return mid;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

int model_pairs(const struct model *m)
{
    return m->npairs;
}

int model_pair(const struct model *m, const char *type, size_t type_len, const char *relation)
{
    int t = memchr(type, '\0', type_len) ? -1 : model_type_find(m, type, type_len);
    return t < 0 ? -1 : model_relation_find(m, t, relation);
}

const char *model_pair_type(const struct model *m, int pair)
{
    return m->types[m->pairs[pair].type].name;
}

const char *model_pair_relation(const struct model *m, int pair)
{
    return m->pairs[pair].relation;
}

bool model_has_type(const struct model *m, const char *type)
{
    return model_type_find(m, type, strlen(type)) >= 0;
}

bool model_conditional(const struct model *m, int pair)
{
    return m->pairs[pair].conditional;
}

/* A userset ("team:1#member") or a wildcard ("user:*"): the decisions of many subjects rest on it. */
static bool stands_for_many(const char *subject)
{
    const char *colon = strchr(subject, ':');
    return !colon || strchr(subject, '#') || strcmp(colon, ":*") == 0;
}

struct model_effect model_effect(const struct model *m, const char *object, const char *relation, const char *subject)
{
    const char *colon = strchr(object, ':');
    int pair = colon ? model_pair(m, object, (size_t)(colon - object), relation) : -1;
    if (pair < 0)
        return (struct model_effect){0};
    const struct model_pair *p = &m->pairs[pair];
    return (struct model_effect){.pairs = p->affects,
                                 .n = (size_t)p->naffects,
                                 .by_subject = !p->tupleset && !stands_for_many(subject),
                                 .by_object = p->by_object};
}

/* Whether an entry of directly related types is this subject's: type:id, type:*, type:id#relation. */
static bool entry_takes(const json_t *entry, const char *subject)
{
    const char *colon = strchr(subject, ':'), *hash = colon ? strchr(colon, '#') : NULL;
    const char *type = json_string_value(json_object_get(entry, "type"));
    const char *relation = json_string_value(json_object_get(entry, "relation"));
    bool wildcard = json_is_object(json_object_get(entry, "wildcard"));

    if (!colon || !type || strlen(type) != (size_t)(colon - subject) || strncmp(type, subject, strlen(type)) != 0)
        return false;
    if (hash)
        return relation && strcmp(relation, hash + 1) == 0;
    return (!relation || !*relation) && wildcard == (strcmp(colon, ":*") == 0);
}

bool model_allows(const struct model *m, const char *object, const char *relation, const char *subject,
                  const char *condition)
{
    const char *colon = strchr(object, ':');
    int pair = colon ? model_pair(m, object, (size_t)(colon - object), relation) : -1;
    const json_t *direct = pair < 0 ? NULL : m->pairs[pair].direct;

    for (size_t i = 0; i < json_array_size(direct); i++) {
        const json_t *entry = json_array_get(direct, i);
        const char *needs = json_string_value(json_object_get(entry, "condition"));

        if (entry_takes(entry, subject) && strcmp(needs ? needs : "", condition ? condition : "") == 0)
            return true;
    }
    return false;
}
