/*
 * list_objects.c - the objects of a type on which a subject has a relation: from the subject through its tuples
 * upwards, by the rules read backwards.
 *
 * What is reached through unions alone is an answer. What is reached past an intersection, an exclusion or a condition
 * is only a candidate, and decided by a check.
 */
#include <stdio.h>
#include <string.h>

#include "engine/check.h"
#include "engine/graph_internal.h"
#include "engine/visits.h"

#define ASK_STOP_EVERY 1024

struct listing {
    struct engine_reader *reader;
    const struct rules *rules;
    const struct engine_limits *limits;
    struct tuples *tuples;
    struct check *check;
    struct visits visits;
    struct parts subject;
    int target; /* pair */
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

/* Whether the target can rest on this pair at all. */
static bool leads(const struct listing *l, int pair)
{
    return pair == l->target || rules_reaches(l->rules, l->target, rules_kind(l->rules, -1, pair));
}

/* Objects that have a tuple with `relation` (0 = any) for this subject; relation `srelation` of it (0 = itself). Tuples
 * that do not count are passed over. only >= 0: the pair that they must be of. */
static void through(struct listing *l, object_id subject, name_id type, name_id srelation, name_id relation, int only,
                    bool tupleset, uint32_t depth, bool sure)
{
    const struct rules *r = l->rules;
    struct tuple_walk w;
    bool wildcard = tuples_is_wildcard(l->tuples, subject);
    tuples_walk(&w, l->tuples, BACKWARD, subject, graph_key(srelation, relation, 0),
                graph_key(srelation, relation ? relation : UINT16_MAX, UINT32_MAX));
    while (!stopped(l) && tuples_next(&w)) {
        object_id object = key_object(w.key);
        struct engine_text condition = {"", 0};
        name_id of = tuples_type(l->tuples, object);
        int pair = only >= 0 ? only : rules_pair(r, of, key_second(w.key));
        if (pair < 0 || r->pairs[pair].type != of || !leads(l, pair))
            continue;
        int own = tupleset ? rules_pair(r, of, relation) : pair;
        enum tuple_is is = tuples_find(l->tuples, object, graph_key(key_second(w.key), srelation, subject), &condition);
        if (own < 0 || (!tupleset && !r->pairs[own].own) || !rules_allow(r, own, type, srelation, wildcard, condition))
            continue;
        visits_add(&l->visits, object, pair, depth,
                   sure && is == TUPLE_PLAIN && (tupleset || only >= 0 || r->pairs[pair].own_sure));
    }
}

static void upwards(struct listing *l, const struct visit *v)
{
    const struct rules *r = l->rules;
    const struct rule_pair *p = &r->pairs[v->pair];
    for (int i = 0; i < p->nuses && !stopped(l); i++) {
        const struct rule_use *u = &r->uses[p->first_use + i];
        bool sure = v->sure && u->sure;
        if (!leads(l, u->pair))
            continue;
        if (u->op == RULE_COMPUTED)
            visits_add(&l->visits, v->object, u->pair, v->depth, sure);
        else if (u->op == RULE_TTU)
            through(l, v->object, p->type, 0, u->relation, u->pair, true, v->depth + 1, sure);
        else
            through(l, v->object, p->type, p->relation, u->relation, u->pair, false, v->depth + 1, sure);
    }
}

static void give(struct listing *l, struct engine_text id)
{
    char few[512];
    struct engine_text type = graph_name(l->tuples->engine, l->rules->pairs[l->target].type);
    struct engine_text name = {few, type.len + 1 + id.len};
    if (name.len > sizeof few) { /* no id that OpenFGA takes is so long */
        l->st = reader_refuse(l->reader, ENGINE_NOMEM, "the name is too long:", id);
        return;
    }
    memcpy(few, type.s, type.len);
    few[type.len] = ':';
    memcpy(few + type.len + 1, id.s, id.len);
    l->given++;
    if (!l->take(l->arg, name) || (l->limits && l->limits->results && l->given >= l->limits->results))
        l->st = ENGINE_STOPPED;
}

/* Whether a candidate is an answer. */
static bool holds(struct listing *l, object_id object, struct engine_text text)
{
    bool yes = false;
    enum engine_status st = check_object(l->check, object, text, l->target, &yes);
    if (st == ENGINE_CONDITIONAL)
        l->st = reader_refuse(l->reader, st, "a decision depends on the condition", check_condition(l->check));
    else if (st != ENGINE_OK)
        l->st = reader_refuse(l->reader, st, "not decided: object", tuples_name(l->tuples, object));
    return yes;
}

/* The subject's own userset has what it is, and what is computed from that. */
static void begin(struct listing *l, struct engine_text subject)
{
    const struct rules *r = l->rules;
    const struct engine *e = l->tuples->engine;
    const struct parts *p = &l->subject;
    name_id type = graph_name_find(e, p->type.s, p->type.len),
            relation = p->relation.len ? graph_name_find(e, p->relation.s, p->relation.len) : 0;
    object_id object = tuples_object(l->tuples, type, p->id.s, p->id.len),
              wildcard = tuples_object(l->tuples, type, "*", 1);
    int pair = relation ? rules_pair(r, type, relation) : -1;
    if (object && pair >= 0 && leads(l, pair))
        visits_add(&l->visits, object, pair, 0, true);
    if (!object && pair >= 0 && r->pairs[l->target].type == type && leads(l, pair)) {
        struct engine_text own = {subject.s, (size_t)(p->id.s + p->id.len - subject.s)};
        if (holds(l, 0, own))
            give(l, p->id);
    }
    if (object)
        through(l, object, type, relation, 0, -1, false, 0, true);
    if (!relation && wildcard && wildcard != object)
        through(l, wildcard, type, 0, 0, -1, false, 0, true);
}

static void answer(struct listing *l)
{
    for (size_t i = 0; i < l->visits.n && l->st == ENGINE_OK; i++) {
        const struct visit *v = &l->visits.items[i];
        if (v->pair != l->target || !visits_last(&l->visits, i) || tuples_is_wildcard(l->tuples, v->object))
            continue;
        struct engine_text id = tuples_name(l->tuples, v->object);
        if (v->sure || holds(l, v->object, id))
            give(l, id);
    }
}

enum engine_status engine_list_objects(struct engine_reader *r, const struct rules *rules,
                                       const struct engine_limits *limits, struct engine_text subject,
                                       struct engine_text relation, struct engine_text type, engine_take *take,
                                       void *arg)
{
    struct tuples t;
    struct listing l = {.reader = r, .rules = rules, .limits = limits, .tuples = &t, .take = take, .arg = arg};
    name_id of = graph_name_find(rules->engine, type.s, type.len);
    struct visit v;
    if (rules_type(rules, of) < 0)
        return reader_refuse(r, ENGINE_NO_TYPE, "the model has no type", type);
    l.target = rules_pair(rules, of, graph_name_find(rules->engine, relation.s, relation.len));
    if (l.target < 0)
        return reader_refuse(r, ENGINE_NO_RELATION, "the type has no relation", relation);
    l.st = contextual_fit(r, rules, limits);
    if (l.st != ENGINE_OK)
        return l.st;
    if (!tuples_open(&t, rules->engine, reader_view(r), limits ? limits->contextual : NULL,
                     limits ? limits->ncontextual : 0))
        return ENGINE_NOMEM;
    l.check = check_open(r, rules, &t, limits);
    l.subject = parts_of(subject);
    if (!l.check)
        l.st = ENGINE_NOMEM;
    else if (!check_subject(l.check, subject))
        l.st = reader_refuse(r, ENGINE_NO_TYPE, "the model has no such type, or relation of it:", subject);
    else
        begin(&l, subject);
    while (l.st == ENGINE_OK && visits_next(&l.visits, &v))
        upwards(&l, &v);
    if (l.visits.failed)
        l.st = ENGINE_NOMEM;
    if (l.st == ENGINE_OK)
        answer(&l);
    visits_free(&l.visits);
    tuples_close(&t);
    return l.st == ENGINE_STOPPED && limits && limits->results && l.given >= limits->results ? ENGINE_OK : l.st;
}
