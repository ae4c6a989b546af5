/* row.c - GET /v1/inventory/{collection}/{id} and POST /v1/explain. */
#include <stdlib.h>
#include <string.h>

#include "common/tuple/tuple.h"
#include "inventory-lister/api/internal.h"
#include "inventory-lister/decide/world.h"
#include "inventory-lister/pages/keyset.h"
#include "inventory-lister/pages/row_json.h"

#define OBJECT_MAX 4096

/* One row, and the object that it is. */
struct found {
    struct pg_result *rows; /* none or one */
    struct buf object;      /* "type:id", also if there is no such row */
};

static void found_release(struct found *f)
{
    pg_result_free(f->rows);
    buf_release(&f->object);
}

static enum status run(struct worker *w, struct pg *pg, const struct statement *s, mono_us deadline, struct found *f,
                       struct err *err)
{
    enum status st;

    deadline = deadline_min(deadline, deadline_in_ms(w->api->statement_timeout_ms));
    st = pg_query(pg, s->name, buf_str(&s->sql), s->params, s->nparams, deadline, &f->rows, err);
    if ((st == ST_RETRY || st == ST_UNKNOWN) && !pg_alive(pg)) { /* it died since the last request */
        st = pg_reopen(pg, deadline, err);
        if (st == ST_OK)
            st = pg_query(pg, s->name, buf_str(&s->sql), s->params, s->nparams, deadline, &f->rows, err);
    }
    return st;
}

/* ST_OK also if there is no such row. `listed`: only if lists have it. */
static enum status find(struct worker *w, struct pg *pg, const struct collection *c, const char *bound, const char *id,
                        bool listed, mono_us deadline, struct found *f, struct err *err)
{
    struct statement s = {0};
    enum status st = listed ? keyset_build_one(&s, c, bound, id, err) : keyset_build_unlisted(&s, c, bound, id, err);

    buf_init(&f->object, OBJECT_MAX);
    buf_addf(&f->object, "%s:", c->type);
    if (st == ST_OK)
        st = run(w, pg, &s, deadline, f, err);
    statement_free(&s);
    if (st == ST_NOT_FOUND) /* no row can have such an id */
        st = ST_OK;
    if (st == ST_OK && f->rows && pg_rows(f->rows) > 0)
        buf_adds(&f->object, pg_text(f->rows, 0, row_json_columns(c)));
    else
        tuple_encode_id((struct bytes){id, strlen(id)}, &f->object);
    if (st == ST_OK && !buf_ok(&f->object))
        st = err_set(err, ST_NOT_FOUND, NULL, "the id is too long");
    return st;
}

static bool there(const struct found *f)
{
    return f->rows && pg_rows(f->rows) > 0;
}

/* ---- one row ---- */

static void not_found(struct request *rq)
{
    problem(rq, 404, "not_found", "there is no such row, or it may not be seen");
}

static void answer_row(struct request *rq, const struct asked *a, const struct found *f,
                       const struct decide_item *items)
{
    row_json(&rq->answer, a->collection, f->rows, 0);
    for (size_t i = 0; i < a->nwith; i++) {
        buf_adds(&rq->answer, i == 0 ? ",\"relations\":{" : ",");
        json_quote(&rq->answer, a->with[i], strlen(a->with[i]));
        buf_adds(&rq->answer, items[i + 1].decision == DECISION_ALLOW ? ":true" : ":false");
    }
    buf_adds(&rq->answer, a->nwith > 0 ? "}}" : "}");
    rq->status = 200;
    rq->content_type = "application/json";
}

/*
 * Hidden and absent are one and the same, in words and in work: the statement runs and all relations are asked for in
 * either case.
 */
static void decide_row(struct worker *w, struct request *rq, struct asked *a, const struct found *f, int64_t sql_us)
{
    struct decide_item items[1 + WITH_MAX];
    struct decide_group *g;
    mono_us begin = clock_mono_us();
    struct err err;
    bool failed = false;

    for (size_t i = 0; i <= a->nwith; i++)
        items[i] = (struct decide_item){.object = buf_str(&f->object), .relation = i ? a->with[i - 1] : a->relation};
    if (decide_start(w->api->decider, &a->query, items, 1 + a->nwith, &g, &err) != ST_OK) {
        problem_undecided(rq, &err);
        return;
    }
    decide_finish(g, &err);
    for (size_t i = 0; i <= a->nwith; i++)
        failed = failed || items[i].decision == DECISION_FAILED;
    if (failed)
        problem_undecided(rq, &err);
    else if (!there(f) || items[0].decision != DECISION_ALLOW)
        not_found(rq);
    else
        answer_row(rq, a, f, items);
    if (rq->caller->rights & RIGHT_DIAGNOSE)
        server_timing(rq, sql_us, clock_mono_us() - begin);
}

void get_row(struct worker *w, struct request *rq, const char *collection, const char *id)
{
    static const char *const also[] = {NULL};
    struct asked a;
    struct found f = {0};
    struct pg *pg;
    struct err err;
    mono_us begin;

    if (!asked_init(w, rq, collection, also, false, &a) || !asked_wait(w, rq, &a))
        goto cleanup;
    pg = worker_pg(w, rq, a.query.deadline);
    if (!pg)
        goto cleanup;
    begin = clock_mono_us();
    switch ((int)find(w, pg, a.collection, a.bound, id, true, a.query.deadline, &f, &err)) {
    case ST_OK:
        decide_row(w, rq, &a, &f, clock_mono_us() - begin);
        break;
    case ST_NOT_FOUND:
        not_found(rq);
        break;
    default:
        problem_undecided(rq, &err);
    }
cleanup:
    found_release(&f);
    asked_release(&a);
}

/* ---- explain ---- */

struct explaining {
    const char *subject, *relation;
    struct buf object;
    const char *row;  /* "exists", "left_out", "absent", or NULL if not asked for */
    char **relations; /* of the object's type, copied from the model */
    size_t nrelations;
};

/*
 * "left_out": the collection's `where` takes it out of lists. Rows of others than the caller's own claim are absent, as
 * those that do not exist: diagnosing is no way around the claim.
 */
static enum status look_at_row(struct worker *w, struct pg *pg, const struct collection *c, const char *bound,
                               const char *id, mono_us deadline, struct explaining *e, struct err *err)
{
    struct found f = {0}, any = {0};
    enum status st = find(w, pg, c, bound, id, true, deadline, &f, err);

    e->row = "exists";
    if (st == ST_OK && !there(&f)) {
        st = find(w, pg, c, bound, id, false, deadline, &any, err);
        e->row = st == ST_OK && there(&any) ? "left_out" : "absent";
    }
    if (st == ST_OK)
        buf_adds(&e->object, buf_str(&f.object));
    found_release(&f);
    found_release(&any);
    return st;
}

/* The object of {"collection", "id"}. False: answered. */
static bool find_object(struct worker *w, struct request *rq, const json_t *body, mono_us deadline,
                        struct explaining *e)
{
    const char *name = member(body, "collection"), *id = member(body, "id");
    const struct collection *c = name ? collection_find(w->api->collections, name) : NULL;
    const char *bound = c && c->bound >= 0 ? caller_claim(rq->caller, c->claim) : NULL;
    struct err err;
    struct pg *pg;

    if (!c || !id) {
        problem(rq, c ? 400 : 404, c ? "invalid_argument" : "unknown_collection",
                c ? "\"id\" is missing" : "there is no collection of this name");
        return false;
    }
    if (c->bound >= 0 && !bound) {
        problem(rq, 403, "missing_claim", "\"%s\" needs the claim \"%s\" of the caller", c->name, c->claim);
        return false;
    }
    pg = worker_pg(w, rq, deadline);
    if (!pg)
        return false;
    switch ((int)look_at_row(w, pg, c, bound, id, deadline, e, &err)) {
    case ST_OK:
        if (!e->relation)
            e->relation = c->relation;
        return true;
    case ST_NOT_FOUND:
        problem(rq, 400, "invalid_argument", "\"id\" is too long");
        return false;
    default:
        problem_undecided(rq, &err);
        return false;
    }
}

/* All relations of the object's type. */
static bool find_relations(struct worker *w, struct explaining *e)
{
    const struct in_force *f = world_hold(w->api->world);
    struct bytes type = tuple_type(buf_str(&e->object));
    int pairs = f ? model_pairs(f->model) : 0;
    bool ok = f != NULL;

    e->relations = calloc((size_t)pairs + 1, sizeof(e->relations[0]));
    for (int i = 0; ok && e->relations && i < pairs; i++) {
        const char *t = model_pair_type(f->model, i);
        if (strlen(t) == type.len && memcmp(t, type.data, type.len) == 0) {
            e->relations[e->nrelations] = strdup(model_pair_relation(f->model, i));
            ok = e->relations[e->nrelations++] != NULL;
        }
    }
    if (f)
        world_release(w->api->world, f);
    return ok && e->relations;
}

static const char *by_name(enum decided_by by)
{
    return by == BY_CACHE ? "cache" : by == BY_STORE ? "store" : "nobody";
}

static json_t *decision_json(enum decision d)
{
    return d == DECISION_FAILED ? json_null() : json_boolean(d == DECISION_ALLOW);
}

/* The relation in question as any request would get it, cache included; then each relation from the store. */
static void decide_explanation(struct worker *w, struct request *rq, struct explaining *e, struct decide_query *q)
{
    struct decide_item one = {.object = buf_str(&e->object), .relation = e->relation};
    struct decide_item *all = calloc(e->nrelations + 1, sizeof(*all));
    struct decide_query fresh = *q;
    struct decide_group *g = NULL;
    struct err err = {.status = ST_OK};
    json_t *reasons, *answer;
    enum status st = all ? ST_OK : err_set(&err, ST_NOMEM, NULL, "no memory");

    for (size_t i = 0; all && i < e->nrelations; i++)
        all[i] = (struct decide_item){.object = buf_str(&e->object), .relation = e->relations[i]};
    if (st == ST_OK)
        st = decide_start(w->api->decider, q, &one, 1, &g, &err);
    if (st == ST_OK) {
        decide_finish(g, &err);
        st = one.decision == DECISION_FAILED ? err.status : ST_OK;
    }
    fresh.no_cache = true;
    if (st == ST_OK)
        st = decide_start(w->api->decider, &fresh, all, e->nrelations, &g, &err);
    if (st != ST_OK) {
        problem_undecided(rq, &err);
        free(all);
        return;
    }
    decide_finish(g, NULL);
    reasons = json_array();
    for (size_t i = 0; i < e->nrelations; i++)
        json_array_append_new(
            reasons, json_pack("{s:s,s:o}", "relation", e->relations[i], "allowed", decision_json(all[i].decision)));
    answer = json_pack("{s:s,s:s,s:s,s:o,s:s,s:s,s:o}", "object", buf_str(&e->object), "relation", e->relation,
                       "subject", e->subject, "allowed", decision_json(one.decision), "by", by_name(one.by), "model_id",
                       q->model_id, "reasons", reasons);
    if (answer && e->row)
        json_object_set_new(answer, "row", json_string(e->row));
    answer_json(rq, 200, answer);
    free(all);
}

static bool explain_object(struct worker *w, struct request *rq, const json_t *body, mono_us deadline,
                           struct explaining *e)
{
    const char *object = member(body, "object");
    bool known;

    e->relation = member(body, "relation");
    if (!object && !find_object(w, rq, body, deadline, e))
        return false;
    if (object)
        buf_adds(&e->object, object);
    if (!e->relation) {
        problem(rq, 400, "invalid_argument", "\"relation\" is missing");
        return false;
    }
    if (!buf_ok(&e->object) || tuple_check_object((struct bytes){buf_str(&e->object), e->object.len}, NULL) != ST_OK ||
        tuple_check_relation((struct bytes){e->relation, strlen(e->relation)}, NULL) != ST_OK) {
        problem(rq, 400, "invalid_argument", "object and relation must be of the form type:id and name");
        return false;
    }
    if (model_has(w->api, buf_str(&e->object), e->relation, &known) || !known)
        return true;
    problem(rq, 400, "unknown_relation", "the model has no relation \"%s\" for \"%s\"", e->relation,
            buf_str(&e->object));
    return false;
}

void explain(struct worker *w, struct request *rq)
{
    struct explaining e = {0};
    struct decide_query q;
    static const char *const names[] = {"collection", "id", "object", "relation", "subject", NULL};
    json_t *body;

    if (!need_right(rq, RIGHT_DIAGNOSE))
        return;
    body = body_object(rq);
    if (!body || !members_are_strings(rq, body, names)) {
        json_decref(body);
        return;
    }
    buf_init(&e.object, OBJECT_MAX);
    e.subject = subject_for(rq, member(body, "subject"));
    if (e.subject) {
        q = query_for(rq, e.subject);
        if (!explain_object(w, rq, body, q.deadline, &e))
            ; /* answered */
        else if (!find_relations(w, &e))
            problem(rq, 503, "unavailable", "the authorization store or its model is not known yet");
        else
            decide_explanation(w, rq, &e, &q);
    }
    for (size_t i = 0; i < e.nrelations; i++)
        free(e.relations[i]);
    free(e.relations);
    buf_release(&e.object);
    json_decref(body);
}
