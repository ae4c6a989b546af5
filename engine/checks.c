/* checks.c - the call that decides many checks: grouped by subject, each with its status and reason. */
#include <stdio.h>
#include <string.h>

#include "engine/check.h"
#include "engine/graph_internal.h"

enum engine_status reader_refuse(struct engine_reader *r, enum engine_status st, const char *what,
                                 struct engine_text name)
{
    snprintf(r->reason, sizeof r->reason, "%s \"%.*s\"", what, (int)(name.len < 300 ? name.len : 300), name.s);
    return st;
}

static enum engine_status one(struct engine_reader *r, const struct rules *rules, struct check *c, struct tuples *t,
                              const struct engine_check *q, bool *allowed)
{
    struct parts o = parts_of(q->object);
    name_id type = graph_name_find(t->engine, o.type.s, o.type.len);
    if (rules_type(rules, type) < 0)
        return reader_refuse(r, ENGINE_NO_TYPE, "the model has no type", o.type);
    int pair = rules_pair(rules, type, graph_name_find(t->engine, q->relation.s, q->relation.len));
    if (pair < 0)
        return reader_refuse(r, ENGINE_NO_RELATION, "the object's type has no relation", q->relation);
    enum engine_status st = check_object(c, tuples_object(t, type, o.id.s, o.id.len), q->object, pair, allowed);
    if (st == ENGINE_CONDITIONAL)
        reader_refuse(r, st, "the decision depends on the condition", check_condition(c));
    if (st == ENGINE_TOO_DEEP)
        reader_refuse(r, st, "too many usersets and parents on the way from", q->object);
    return st;
}

static bool same(struct engine_text a, struct engine_text b)
{
    return a.len == b.len && memcmp(a.s, b.s, a.len) == 0;
}

enum engine_status contextual_fit(struct engine_reader *r, const struct rules *rules,
                                  const struct engine_limits *limits)
{
    for (size_t i = 0; limits && i < limits->ncontextual; i++) {
        const struct engine_tuple *x = &limits->contextual[i];
        struct parts o = parts_of(x->object), s = parts_of(x->subject);
        const struct engine *e = rules->engine;
        int pair = rules_pair(rules, graph_name_find(e, o.type.s, o.type.len),
                              graph_name_find(e, x->relation.s, x->relation.len));
        name_id relation = s.relation.len ? graph_name_find(e, s.relation.s, s.relation.len) : 0;
        if (pair < 0 || (s.relation.len && !relation) ||
            !rules_allow(rules, pair, graph_name_find(e, s.type.s, s.type.len), relation,
                         s.id.len == 1 && *s.id.s == '*', x->condition))
            return reader_refuse(r, ENGINE_BAD_TUPLE, "the model does not take the contextual tuple of", x->object);
    }
    return ENGINE_OK;
}

enum engine_status engine_checks(struct engine_reader *r, const struct rules *rules, const struct engine_limits *limits,
                                 struct engine_check *checks, size_t n)
{
    struct tuples t;
    enum engine_status st = contextual_fit(r, rules, limits);
    for (size_t i = 0; i < n; i++) {
        checks[i].status = st == ENGINE_OK ? ENGINE_STOPPED : st;
        checks[i].allowed = false;
    }
    if (st != ENGINE_OK)
        return st;
    if (!tuples_open(&t, rules->engine, r->view, limits ? limits->contextual : NULL, limits ? limits->ncontextual : 0))
        return ENGINE_NOMEM;
    struct check *c = check_open(r, rules, &t, limits);
    size_t done = 0;
    for (size_t i = 0; c && done < n && st == ENGINE_OK; i++) {
        if (checks[i].status != ENGINE_STOPPED)
            continue;
        struct engine_text subject = checks[i].subject;
        bool known = check_subject(c, subject);
        for (size_t k = i; k < n && st == ENGINE_OK; k++) {
            struct engine_check *q = &checks[k];
            if (q->status != ENGINE_STOPPED || (k > i && !same(q->subject, subject)))
                continue;
            enum engine_status got =
                known ? one(r, rules, c, &t, q, &q->allowed)
                      : reader_refuse(r, ENGINE_NO_TYPE, "the model has no such type, or relation of it:", subject);
            if (got == ENGINE_NOMEM || got == ENGINE_STOPPED)
                st = got;
            else
                done++;
            q->status = got;
        }
    }
    tuples_close(&t);
    return c ? st : ENGINE_NOMEM;
}
