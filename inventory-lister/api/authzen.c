/*
 * authzen.c - the AuthZEN Authorization API 1.0: evaluation, evaluations, and where they are.
 *
 * subject and resource are type and id, the id encoded as relata.encode_id() does; action.name is a relation. context
 * and properties take no part in a decision. What the model does not know is denied, and says so in "context". All of a
 * request's evaluations are asked together, as the API leaves open; its semantic says where the answer ends.
 */
#include <stdlib.h>
#include <string.h>

#include "common/tuple/tuple.h"
#include "inventory-lister/api/internal.h"

#define EVALUATIONS_MAX 1000
#define NAME_MAX_BYTES 4096

struct evaluation {
    struct buf subject, object;
    const char *relation; /* in the body */
    int status;           /* why it is not asked for; 0 = it is */
    bool malformed;       /* not what the API takes, as against not what the model knows */
    char why[256];
    size_t query; /* which subject */
    struct decide_item *item;
};

struct query {
    struct decide_query q;
    struct decide_group *group;
    struct decide_item *items;
    size_t n;
    struct err err;
};

/* ---- reading ---- */

static void refuse(struct evaluation *e, int status, const char *why, const char *what)
{
    if (e->status)
        return;
    e->status = status;
    snprintf(e->why, sizeof(e->why), "%s%.200s", why, what);
}

static void malformed(struct evaluation *e, const char *why, const char *what)
{
    refuse(e, 400, why, what);
    e->malformed = true;
}

/* A member is of its kind, if it is there. */
static bool is_object(const json_t *in, const char *name)
{
    const json_t *value = json_object_get(in, name);

    return !value || json_is_object(value);
}

static bool is_string(const json_t *in, const char *name)
{
    const json_t *value = json_object_get(in, name);

    return !value || json_is_string(value);
}

/* The members of an evaluation, or the defaults of several, are of the kinds that the API gives them. What lacks in
 * one of several is another matter: that one alone fails. */
static bool has_form(const json_t *in)
{
    static const char *const parts[] = {"subject", "resource", "action"};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const json_t *part = json_object_get(in, parts[i]);
        if (!is_object(in, parts[i]) || !is_object(part, "properties") || !is_string(part, "type") ||
            !is_string(part, "id") || !is_string(part, "name"))
            return false;
    }
    return json_is_object(in) && is_object(in, "context");
}

static bool all_have_form(const json_t *body)
{
    const json_t *list = json_object_get(body, "evaluations"), *one;
    size_t i;

    if (!has_form(body) || !is_object(body, "options"))
        return false;
    json_array_foreach(list, i, one) if (!has_form(one)) return false;
    return true;
}

/* {"type": .., "id": ..} as "type:id". */
static void entity(struct evaluation *e, const json_t *in, const char *name, struct buf *out)
{
    const char *type = member(in, "type");
    const json_t *id = json_object_get(in, "id");

    if (!type || !*type || !json_is_string(id) || json_string_length(id) == 0) {
        malformed(e, "type and id are needed in ", name);
        return;
    }
    buf_addf(out, "%s:", type);
    tuple_encode_id((struct bytes){json_string_value(id), json_string_length(id)}, out);
    if (!buf_ok(out))
        malformed(e, "type or id is too long in ", name);
}

static void check_subject(struct evaluation *e, const struct caller *c)
{
    const char *code, *why;
    int status = e->status ? 0 : subject_refusal(c, buf_str(&e->subject), &code, &why);

    if (status)
        refuse(e, status, why, "");
}

static void check_in_model(struct worker *w, struct evaluation *e)
{
    struct bytes relation = {e->relation, strlen(e->relation)};
    bool known;

    if (e->status)
        return;
    if (tuple_check((struct bytes){buf_str(&e->object), e->object.len}, relation,
                    (struct bytes){buf_str(&e->subject), e->subject.len}, NULL) != ST_OK)
        refuse(e, 400, "not of the store's grammar: ", buf_str(&e->object));
    else if (!model_has(w->api, buf_str(&e->object), e->relation, &known) && known)
        refuse(e, 400, "the model has no such action for the resource: ", e->relation);
}

/* A member of the evaluation, or else of the whole request. */
static const json_t *part(const json_t *one, const json_t *all, const char *name)
{
    const json_t *own = json_object_get(one, name);

    return own ? own : json_object_get(all, name);
}

static void read_evaluation(struct worker *w, struct request *rq, const json_t *one, const json_t *all,
                            struct evaluation *e)
{
    buf_init(&e->subject, NAME_MAX_BYTES);
    buf_init(&e->object, NAME_MAX_BYTES);
    e->relation = member(part(one, all, "action"), "name");
    entity(e, part(one, all, "subject"), "subject", &e->subject);
    entity(e, part(one, all, "resource"), "resource", &e->object);
    if (!e->relation || !*e->relation)
        malformed(e, "name is needed in ", "action");
    check_subject(e, rq->caller);
    if (!e->status)
        check_in_model(w, e);
}

/* ---- deciding ---- */

static size_t query_index(struct query *queries, size_t *n, const struct request *rq, const struct evaluation *e)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(queries[i].q.subject, buf_str(&e->subject)) == 0)
            return i;
    queries[*n] = (struct query){.q = query_for(rq, buf_str(&e->subject))};
    return (*n)++;
}

static void start_query(struct worker *w, struct query *q)
{
    if (decide_start(w->api->decider, &q->q, q->items, q->n, &q->group, &q->err) != ST_OK)
        q->group = NULL;
}

/* All of one subject together. */
static void decide_all(struct worker *w, const struct request *rq, struct evaluation *list, size_t n,
                       struct query *queries, struct decide_item *items)
{
    size_t nqueries = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        if (!list[i].status) {
            list[i].query = query_index(queries, &nqueries, rq, &list[i]);
            queries[list[i].query].n++;
        }
    for (size_t k = 0; k < nqueries; k++) {
        queries[k].items = &items[at];
        at += queries[k].n;
        queries[k].n = 0;
    }
    for (size_t i = 0; i < n; i++)
        if (!list[i].status) {
            struct query *q = &queries[list[i].query];
            list[i].item = &q->items[q->n++];
            *list[i].item = (struct decide_item){.object = buf_str(&list[i].object), .relation = list[i].relation};
        }
    for (size_t k = 0; k < nqueries; k++)
        start_query(w, &queries[k]);
    for (size_t k = 0; k < nqueries; k++)
        if (queries[k].group)
            decide_finish(queries[k].group, &queries[k].err);
}

/* ---- answering ---- */

static bool allowed(const struct evaluation *e)
{
    return !e->status && e->item->decision == DECISION_ALLOW;
}

static json_t *decision_json(const struct evaluation *e)
{
    json_t *json = json_pack("{s:b}", "decision", allowed(e));
    int status = e->status;
    const char *why = e->why;

    if (!status && e->item->decision == DECISION_FAILED) {
        status = 503;
        why = "the authorization store gave no answer";
    }
    if (json && status)
        json_object_set_new(json, "context", json_pack("{s:{s:i,s:s}}", "error", "status", status, "message", why));
    return json;
}

static void evaluation_release(struct evaluation *e)
{
    buf_release(&e->subject);
    buf_release(&e->object);
}

static void evaluate_one(struct worker *w, struct request *rq, const json_t *body)
{
    struct evaluation e = {.status = 0};
    struct query q = {.n = 0};
    struct decide_item item;

    read_evaluation(w, rq, body, body, &e);
    if (!e.status)
        decide_all(w, rq, &e, 1, &q, &item);
    if (e.status == 403)
        problem(rq, 403, "missing_right", "%s", e.why);
    else if (e.malformed)
        problem(rq, 400, "invalid_argument", "%s", e.why);
    else if (!e.status && item.decision == DECISION_FAILED)
        problem_undecided(rq, &q.err);
    else
        answer_json(rq, 200, decision_json(&e));
    evaluation_release(&e);
}

void authzen_evaluation(struct worker *w, struct request *rq)
{
    json_t *body = need_right(rq, RIGHT_LIST) ? body_object(rq) : NULL;

    if (body && !has_form(body))
        problem(rq, 400, "invalid_argument", "a member of the body is not of its kind");
    else if (body)
        evaluate_one(w, rq, body);
    json_decref(body);
}

enum semantic { ALL, FIRST_DENY, FIRST_PERMIT, UNKNOWN };

static enum semantic semantic_of(const json_t *body)
{
    const json_t *option = json_object_get(json_object_get(body, "options"), "evaluations_semantic");
    const char *name = json_string_value(option);

    if (!option || (name && strcmp(name, "execute_all") == 0))
        return ALL;
    if (name && strcmp(name, "deny_on_first_deny") == 0)
        return FIRST_DENY;
    return name && strcmp(name, "permit_on_first_permit") == 0 ? FIRST_PERMIT : UNKNOWN;
}

static json_t *answers(const struct evaluation *list, size_t n, enum semantic s)
{
    json_t *out = json_array();

    for (size_t i = 0; i < n; i++) {
        json_array_append_new(out, decision_json(&list[i]));
        if ((s == FIRST_DENY && !allowed(&list[i])) || (s == FIRST_PERMIT && allowed(&list[i])))
            break;
    }
    return json_pack("{s:o}", "evaluations", out);
}

static void evaluate_list(struct worker *w, struct request *rq, const json_t *body, const json_t *in)
{
    size_t n = json_array_size(in);
    struct evaluation *list = calloc(n, sizeof(*list));
    struct query *queries = calloc(n, sizeof(*queries));
    struct decide_item *items = calloc(n, sizeof(*items));

    if (!list || !queries || !items) {
        problem(rq, 503, "unavailable", "no memory");
    } else {
        for (size_t i = 0; i < n; i++)
            read_evaluation(w, rq, json_array_get(in, i), body, &list[i]);
        decide_all(w, rq, list, n, queries, items);
        answer_json(rq, 200, answers(list, n, semantic_of(body)));
        for (size_t i = 0; i < n; i++)
            evaluation_release(&list[i]);
    }
    free(list);
    free(queries);
    free(items);
}

void authzen_evaluations(struct worker *w, struct request *rq)
{
    json_t *body = need_right(rq, RIGHT_LIST) ? body_object(rq) : NULL;
    const json_t *list = json_object_get(body, "evaluations");

    if (!body)
        return;
    if (list && !json_is_array(list))
        problem(rq, 400, "invalid_argument", "\"evaluations\" must be a list");
    else if (!all_have_form(body))
        problem(rq, 400, "invalid_argument", "a member of the body, or of an evaluation, is not of its kind");
    else if (semantic_of(body) == UNKNOWN)
        problem(rq, 400, "invalid_argument", "options.evaluations_semantic is not known");
    else if (json_array_size(list) > EVALUATIONS_MAX)
        problem(rq, 400, "too_many_evaluations", "at most %d evaluations at once", EVALUATIONS_MAX);
    else if (json_array_size(list) == 0)
        evaluate_one(w, rq, body);
    else
        evaluate_list(w, rq, body, list);
    json_decref(body);
}

/* ---- where it is ---- */

void authzen_configuration(struct worker *w, struct request *rq)
{
    const char *base = *w->api->public_url ? w->api->public_url : atomic_load(&w->api->base_url);
    char one[1024], many[1024];
    size_t len;

    base = base ? base : "";
    len = strlen(base);
    while (len > 0 && base[len - 1] == '/')
        len--;
    snprintf(one, sizeof(one), "%.*s/access/v1/evaluation", (int)len, base);
    snprintf(many, sizeof(many), "%.*s/access/v1/evaluations", (int)len, base);
    answer_json(rq, 200,
                json_pack("{s:s%,s:s,s:s}", "policy_decision_point", base, len, "access_evaluation_endpoint", one,
                          "access_evaluations_endpoint", many));
}
