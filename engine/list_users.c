/*
 * list_users.c - the users, or usersets, of a type that have a relation on an object: from the object downwards.
 *
 * As in list_objects.c: what is reached through unions alone is an answer, anything else is checked.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check.h"
#include "engine/graph_internal.h"
#include "engine/visits.h"

#define ASK_STOP_EVERY 1024
#define DEPTH_DEFAULT 25

struct listing {
    struct engine_reader *reader;
    const struct rules *rules;
    const struct engine_limits *limits;
    struct tuples *tuples;
    struct visits visits; /* nodes; users have pair -1 */
    struct visits users;  /* found, of pair -1: objects of the type, or of the filter's pair: usersets */
    object_id object;
    struct engine_text object_text;
    int pair; /* of the question */
    name_id type;
    int of; /* pair of the filter; -1: no relation */
    int kind;
    unsigned depth_max;
    engine_take *take;
    void *arg;
    size_t given, steps;
    enum engine_status st;
};

static bool stopped(struct listing *l)
{
    const struct engine_limits *limits = l->limits;
    if (++l->steps % ASK_STOP_EVERY == 0 && limits && limits->stop && limits->stop(limits->arg))
        l->st = ENGINE_STOPPED;
    return l->st != ENGINE_OK;
}

static void go(struct listing *l, object_id object, int pair, uint32_t depth, bool sure)
{
    if (pair == l->of)
        visits_add(&l->users, object, pair, 0, sure);
    if (rules_reaches(l->rules, pair, l->kind))
        visits_add(&l->visits, object, pair, depth, sure);
}

static void direct(struct listing *l, const struct visit *v, bool sure)
{
    const struct rules *r = l->rules;
    const struct rule_pair *p = &r->pairs[v->pair];
    struct tuple_walk w;
    tuples_walk(&w, l->tuples, FORWARD, v->object, graph_key(p->relation, 0, 0),
                graph_key(p->relation, UINT16_MAX, UINT32_MAX));
    while (!stopped(l) && tuples_next(&w)) {
        object_id subject = key_object(w.key);
        name_id type = tuples_type(l->tuples, subject), relation = key_second(w.key);
        bool plain = w.condition.len == 0;
        if (!relation && (l->of >= 0 || type != l->type))
            continue;
        if (!rules_allow(r, v->pair, type, relation, !relation && tuples_is_wildcard(l->tuples, subject), w.condition))
            continue;
        if (!relation)
            visits_add(&l->users, subject, -1, 0, sure && plain);
        else
            go(l, subject, rules_pair(r, type, relation), v->depth + 1, sure && plain);
    }
}

static void parents(struct listing *l, const struct visit *v, const struct rule *rule, bool sure)
{
    const struct rules *r = l->rules;
    name_id tupleset = r->pairs[rule->pair].relation;
    struct tuple_walk w;
    tuples_walk(&w, l->tuples, FORWARD, v->object, graph_key(tupleset, 0, 0), graph_key(tupleset, 0, UINT32_MAX));
    while (!stopped(l) && tuples_next(&w)) {
        object_id parent = key_object(w.key);
        name_id type = tuples_type(l->tuples, parent);
        int to = rules_pair(r, type, rule->name);
        if (to >= 0 && !tuples_is_wildcard(l->tuples, parent) &&
            rules_allow(r, rule->pair, type, 0, false, w.condition))
            go(l, parent, to, v->depth + 1, sure && w.condition.len == 0);
    }
}

/* What is subtracted adds nobody. */
static void downwards(struct listing *l, const struct visit *v, int at, bool sure)
{
    const struct rules *r = l->rules;
    const struct rule *n = &r->rules[at];
    switch (n->op) {
    case RULE_THIS:
        direct(l, v, sure);
        break;
    case RULE_COMPUTED:
        go(l, v->object, n->pair, v->depth, sure);
        break;
    case RULE_TTU:
        parents(l, v, n, sure);
        break;
    case RULE_UNION:
    case RULE_INTERSECTION:
    case RULE_DIFFERENCE:
        for (int i = 0; i < (n->op == RULE_DIFFERENCE ? 1 : n->n); i++)
            downwards(l, v, r->children[n->first + i], sure && n->op == RULE_UNION);
        break;
    }
}

/* "type:id" or "type:id#relation" in buf. */
static struct engine_text name_of(const struct listing *l, object_id object, char *buf, size_t size)
{
    struct engine_text none = {"", 0}, id = object ? tuples_name(l->tuples, object) : parts_of(l->object_text).id,
                       type = graph_name(l->tuples->engine, l->type),
                       relation = l->of >= 0 ? graph_name(l->tuples->engine, l->rules->pairs[l->of].relation) : none;
    size_t n = 0;
    if (type.len + id.len + relation.len + 2 > size)
        return none;
    memcpy(buf, type.s, type.len);
    n = type.len;
    buf[n++] = ':';
    memcpy(buf + n, id.s, id.len);
    n += id.len;
    if (l->of >= 0) {
        buf[n++] = '#';
        memcpy(buf + n, relation.s, relation.len);
        n += relation.len;
    }
    return (struct engine_text){buf, n};
}

static bool holds(struct listing *l, struct engine_text user)
{
    bool yes = false;
    struct check *c = check_open(l->reader, l->rules, l->tuples, l->limits);
    if (!c)
        l->st = ENGINE_NOMEM;
    if (!c || !check_subject(c, user))
        return false;
    enum engine_status st = check_object(c, l->object, l->object_text, l->pair, &yes);
    if (st == ENGINE_CONDITIONAL)
        l->st = reader_refuse(l->reader, st, "a decision depends on the condition", check_condition(c));
    else if (st != ENGINE_OK)
        l->st = reader_refuse(l->reader, st, "not decided: user", user);
    return yes;
}

static void answer(struct listing *l)
{
    for (size_t i = 0; i < l->users.n && l->st == ENGINE_OK; i++) {
        char buf[1024];
        const struct visit *v = &l->users.items[i];
        struct engine_text user = name_of(l, v->object, buf, sizeof buf);
        if (!visits_last(&l->users, i) || (!v->sure && !holds(l, user)))
            continue;
        l->given++;
        if (!l->take(l->arg, user) || (l->limits && l->limits->results && l->given >= l->limits->results))
            l->st = ENGINE_STOPPED;
    }
}

static void look(struct listing *l)
{
    struct visit v;
    go(l, l->object, l->pair, 0, true);
    while (l->st == ENGINE_OK && visits_next(&l->visits, &v)) {
        if (v.depth >= l->depth_max)
            l->st = reader_refuse(l->reader, ENGINE_TOO_DEEP, "too many usersets and parents on the way from",
                                  l->object_text);
        else
            downwards(l, &v, l->rules->pairs[v.pair].rule, v.sure);
    }
    if (l->visits.failed || l->users.failed)
        l->st = ENGINE_NOMEM;
}

/* The question's and the filter's names as numbers. */
static enum engine_status resolve(struct listing *l, struct engine_text object, struct engine_text relation,
                                  struct engine_text filter_type, struct engine_text filter_relation)
{
    const struct rules *r = l->rules;
    const struct engine *e = r->engine;
    struct parts o = parts_of(object);
    name_id of = graph_name_find(e, o.type.s, o.type.len);
    if (rules_type(r, of) < 0)
        return reader_refuse(l->reader, ENGINE_NO_TYPE, "the model has no type", o.type);
    l->pair = rules_pair(r, of, graph_name_find(e, relation.s, relation.len));
    if (l->pair < 0)
        return reader_refuse(l->reader, ENGINE_NO_RELATION, "the object's type has no relation", relation);
    l->type = graph_name_find(e, filter_type.s, filter_type.len);
    int type = rules_type(r, l->type);
    if (type < 0)
        return reader_refuse(l->reader, ENGINE_NO_TYPE, "the model has no type", filter_type);
    l->of =
        filter_relation.len ? rules_pair(r, l->type, graph_name_find(e, filter_relation.s, filter_relation.len)) : -1;
    if (filter_relation.len && l->of < 0)
        return reader_refuse(l->reader, ENGINE_NO_RELATION, "the filter's type has no relation", filter_relation);
    l->kind = rules_kind(r, type, l->of);
    return contextual_fit(l->reader, r, l->limits);
}

enum engine_status engine_list_users(struct engine_reader *r, const struct rules *rules,
                                     const struct engine_limits *limits, struct engine_text object,
                                     struct engine_text relation, struct engine_text filter_type,
                                     struct engine_text filter_relation, engine_take *take, void *arg)
{
    struct tuples t;
    struct listing l = {.reader = r,
                        .rules = rules,
                        .limits = limits,
                        .tuples = &t,
                        .object_text = object,
                        .depth_max = limits && limits->depth ? limits->depth : DEPTH_DEFAULT,
                        .take = take,
                        .arg = arg};
    l.st = resolve(&l, object, relation, filter_type, filter_relation);
    if (l.st != ENGINE_OK)
        return l.st;
    if (!tuples_open(&t, rules->engine, reader_view(r), limits ? limits->contextual : NULL,
                     limits ? limits->ncontextual : 0))
        return ENGINE_NOMEM;
    struct parts o = parts_of(object);
    l.object = tuples_object(&t, rules->pairs[l.pair].type, o.id.s, o.id.len);
    look(&l);
    if (l.st == ENGINE_OK)
        answer(&l);
    visits_free(&l.visits);
    visits_free(&l.users);
    tuples_close(&t);
    return l.st == ENGINE_STOPPED && limits && limits->results && l.given >= limits->results ? ENGINE_OK : l.st;
}
