/*
 * model_entry.c - whether a relation can be had by anybody, and whether computed relations go round in a circle:
 * OpenFGA's hasEntrypoints and hasCycle (pkg/typesystem/typesystem.go, v1.22.1), with what they forget and remember on
 * their way.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/model_valid.h"

#define NESTED_MAX 8000   /* calls inside each other: a thread's stack is bounded */
#define STEPS_MAX 4000000 /* a few seconds: OpenFGA's way takes exponential time on models made for that */

/* ---- entry points ---- */

/* Of a type: what is known of each of its relations. */
struct inner {
    struct inner *next;  /* of all there are */
    signed char known[]; /* -1 = not visited, else whether it has an entry point */
};

struct search {
    struct valid *v;
    struct inner *inners;
};

struct entry {
    bool has, loop, failed;
};
static const struct entry failed = {.failed = true}, found = {.has = true}, none = {0};

static struct entry undefined(struct search *s, const char *type, const char *relation)
{
    valid_refuse(s->v, "undefined type definition for '%s#%s'", type, relation);
    return failed;
}

static struct entry entry_point(struct search *s, int type, int relation, const json_t *rewrite,
                                struct inner *const *outer, int depth);

static struct entry look(struct search *s, int type, int relation, struct inner **visited, int depth)
{
    return entry_point(s, type, relation, s->v->types[type].relations[relation].rewrite, visited, depth);
}

/* -1 = not visited */
static int known(struct inner *const *visited, int type, int relation)
{
    return visited[type] ? visited[type]->known[relation] : -1;
}

static struct entry entry_direct(struct search *s, int type, int relation, struct inner **visited, int depth)
{
    const struct valid *v = s->v;
    const json_t *entry;
    size_t i;
    json_array_foreach(valid_related(v, type, v->types[type].relations[relation].name), i, entry)
    {
        const char *name = valid_text(entry, "relation"), *of = valid_text(entry, "type");
        if (valid_has(entry, "wildcard") || !valid_has(entry, "relation")) {
            visited[type]->known[relation] = 1;
            return found;
        }
        int to = valid_type_find(v, of), at = valid_relation_find(v, to, name);
        if (at < 0)
            return undefined(s, of, name);
        if (known(visited, to, at) >= 0)
            continue;
        struct entry e = look(s, to, at, visited, depth);
        if (e.failed || e.has)
            return e.failed ? failed : found;
    }
    return none;
}

static struct entry entry_computed(struct search *s, int type, const char *computed, struct inner **visited, int depth)
{
    int at = valid_relation_find(s->v, type, computed);
    if (at < 0)
        return undefined(s, s->v->types[type].name, computed);
    int seen = known(visited, type, at);
    return seen >= 0 ? (struct entry){.has = seen > 0, .loop = true} : look(s, type, at, visited, depth);
}

static struct entry entry_ttu(struct search *s, int type, const json_t *of, struct inner **visited, int depth)
{
    const struct valid *v = s->v;
    const char *tupleset = valid_text(json_object_get(of, "tupleset"), "relation"),
               *computed = valid_text(json_object_get(of, "computedUserset"), "relation");
    const json_t *entry;
    size_t i;
    if (valid_relation_find(v, type, tupleset) < 0)
        return undefined(s, v->types[type].name, tupleset);
    json_array_foreach(valid_related(v, type, tupleset), i, entry)
    {
        int to = valid_type_find(v, valid_text(entry, "type")), at = valid_relation_find(v, to, computed);
        if (at < 0)
            continue;
        int seen = known(visited, to, at);
        struct entry e = seen >= 0 ? (struct entry){.has = seen > 0} : look(s, to, at, visited, depth);
        if (e.failed || e.has)
            return e.failed ? failed : found;
    }
    return none;
}

static struct entry entry_operands(struct search *s, int type, int relation, enum kind kind, const json_t *of,
                                   struct inner *const *outer, int depth)
{
    const struct valid_type *t = &s->v->types[type];
    struct entry sum = {.has = kind != UNION};
    size_t n = valid_operands(kind, of);
    if (n < 2) {
        valid_refuse(s->v, "invalid relation: '%s#%s' as %s has less than 2 children", t->name,
                     t->relations[relation].name, kind == UNION ? "union" : "intersection");
        return failed;
    }
    for (size_t i = 0; i < n; i++) {
        struct entry e = entry_point(s, type, relation, valid_operand(kind, of, i), outer, depth);
        if (e.failed)
            return failed;
        if (kind == UNION && e.has)
            return found;
        if (kind != UNION && !e.has)
            return (struct entry){.loop = e.loop};
        sum.loop |= kind == UNION && e.loop;
    }
    return sum;
}

static struct inner *inner_new(struct search *s, int type)
{
    size_t n = s->v->types[type].n;
    struct inner *in = malloc(sizeof *in + n + 1);
    if (!in)
        return NULL;
    memset(in->known, -1, n + 1);
    in->next = s->inners;
    s->inners = in;
    return in;
}

/* What is known of a type's relations is shared with the callers that know of the type already, as there. */
static struct entry entry_point(struct search *s, int type, int relation, const json_t *rewrite,
                                struct inner *const *outer, int depth)
{
    const json_t *of;
    enum kind kind = valid_kind(rewrite, &of);
    struct entry out = failed;
    size_t size = s->v->ntypes * sizeof(struct inner *);
    struct inner **visited = malloc(size + 1);
    if (visited)
        memcpy(visited, outer, size);
    if (!visited || depth > NESTED_MAX || ++s->v->steps > STEPS_MAX ||
        (!visited[type] && !(visited[type] = inner_new(s, type)))) {
        free(visited);
        valid_refuse(s->v, "the model's relations lead to each other in too many ways");
        return failed;
    }
    visited[type]->known[relation] = 0;
    switch (kind) {
    case NOTHING:
        valid_refuse(s->v, "error validating model"); /* all that OpenFGA says of it */
        break;
    case THIS:
        out = entry_direct(s, type, relation, visited, depth + 1);
        break;
    case COMPUTED:
        out = entry_computed(s, type, valid_text(of, "relation"), visited, depth + 1);
        break;
    case TTU:
        out = entry_ttu(s, type, of, visited, depth + 1);
        break;
    case UNION:
    case INTERSECTION:
    case DIFFERENCE:
        out = entry_operands(s, type, relation, kind, of, outer, depth + 1);
        break;
    }
    free(visited);
    return out;
}

bool valid_entry(struct valid *v, int type, int relation)
{
    struct search s = {.v = v};
    struct inner **nothing = calloc(v->ntypes + 1, sizeof *nothing);
    struct entry e = nothing ? look(&s, type, relation, nothing, 0) : failed;
    if (!nothing)
        valid_refuse(v, "no memory");
    free(nothing);
    for (struct inner *in = s.inners, *next; in; in = next) {
        next = in->next;
        free(in);
    }
    if (e.failed)
        return false;
    return e.has || valid_bad_relation(v, e.loop ? "potential loop" : "no entrypoints defined");
}

/* ---- cycles of computed relations ---- */

enum { UNSEEN, ON_THE_WAY, ACYCLIC };

static bool acyclic(struct valid *v, int type, const json_t *rewrite)
{
    const json_t *of;
    enum kind kind = valid_kind(rewrite, &of);
    if (kind == COMPUTED) {
        int at = valid_relation_find(v, type, valid_text(of, "relation"));
        if (at < 0)
            return valid_refuse(v, "'%s#%s' relation is undefined", v->type, valid_text(of, "relation"));
        struct valid_relation *r = &v->types[type].relations[at];
        if (r->mark == ON_THE_WAY)
            return valid_bad_relation(v, "an authorization model cannot contain a cycle");
        if (r->mark == UNSEEN)
            return valid_acyclic(v, type, at);
    }
    for (size_t i = 0; kind >= UNION && i < valid_operands(kind, of); i++)
        if (!acyclic(v, type, valid_operand(kind, of, i)))
            return false;
    return true;
}

bool valid_acyclic(struct valid *v, int type, int relation)
{
    struct valid_relation *r = &v->types[type].relations[relation];
    if (r->mark != UNSEEN)
        return true;
    r->mark = ON_THE_WAY;
    if (!acyclic(v, type, r->rewrite))
        return false;
    r->mark = ACYCLIC;
    return true;
}
