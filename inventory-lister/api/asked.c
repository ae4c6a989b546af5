/* asked.c - what all requests have in common: the caller's rights, the subject, relations, min_token; small answers. */
#include <stdlib.h>
#include <string.h>

#include "common/admin/metrics.h"
#include "common/tuple/tuple.h"
#include "inventory-lister/api/internal.h"
#include "inventory-lister/decide/world.h"
#include "inventory-lister/pages/min_token.h"

/* Of a request's time, what is kept for making and sending the answer: a twentieth, within these. */
#define MARGIN_MIN_US 20000
#define MARGIN_MAX_US 250000

/* ---- answers ---- */

void problem_undecided(struct request *rq, const struct err *err)
{
    struct err e = *err;

    if (atomic_load(&rq->cancelled)) {
        rq->status = 0;
        return;
    }
    /* Nothing that the client could do otherwise: the store or the world behind it is at fault. */
    if (e.status == ST_CONFLICT || e.status == ST_INVALID || e.status == ST_NOT_FOUND || e.status == ST_FATAL)
        e.status = ST_RETRY;
    problem_of(rq, &e);
}

void answer_json(struct request *rq, int status, json_t *json)
{
    rq->status = status;
    rq->content_type = "application/json";
    if (!json || !json_add(&rq->answer, json, JSON_COMPACT))
        problem(rq, 503, "unavailable", "no memory for the answer");
    json_decref(json);
}

json_t *body_object(struct request *rq)
{
    const char *type = request_header(rq, "Content-Type");
    json_error_t why;
    json_t *body;

    if (type && strncasecmp(type, "application/json", 16) != 0) {
        problem(rq, 415, "unsupported_media_type", "the body must be application/json");
        return NULL;
    }
    /* No number means anything here: a context may hold larger ones than fit an integer. */
    body = json_loadb(rq->body.data ? rq->body.data : "", rq->body.len,
                      JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (!body)
        problem(rq, 400, "invalid_json", "the body is no JSON: %s, at byte %d", why.text, why.position);
    else if (!json_is_object(body))
        problem(rq, 400, "invalid_json", "the body is no JSON object");
    else
        return body;
    json_decref(body);
    return NULL;
}

bool members_are_strings(struct request *rq, const json_t *object, const char *const *names)
{
    for (; *names; names++) {
        const json_t *value = json_object_get(object, *names);
        if (value && !json_is_string(value)) {
            problem(rq, 400, "invalid_argument", "\"%s\" must be a string", *names);
            return false;
        }
    }
    return true;
}

const char *member(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

void server_timing(struct request *rq, int64_t sql_us, int64_t check_us)
{
    buf_addf(&rq->timing, "sql;dur=%.3f, check;dur=%.3f", (double)sql_us / 1000, (double)check_us / 1000);
}

/* ---- who ---- */

bool need_right(struct request *rq, enum caller_right right)
{
    const char *name = right == RIGHT_LIST ? "list" : right == RIGHT_NAME_SUBJECT ? "name-subject" : "diagnose";

    if (rq->caller && (rq->caller->rights & right))
        return true;
    problem(rq, 403, "missing_right", "this needs the right \"%s\"", name);
    return false;
}

int subject_refusal(const struct caller *c, const char *subject, const char **code, const char **why)
{
    if (strcmp(subject, c->subject) == 0 && *subject)
        return 0;
    if (!(c->rights & RIGHT_NAME_SUBJECT)) {
        *code = "missing_right";
        *why = "naming another subject needs the right \"name-subject\"";
        return 403;
    }
    if (tuple_check_subject((struct bytes){subject, strlen(subject)}, NULL) != ST_OK) {
        *code = "invalid_subject";
        *why = "the subject is not of the form type:id, type:* or type:id#relation";
        return 400;
    }
    return 0;
}

const char *subject_for(struct request *rq, const char *named)
{
    const char *code, *why;
    int status;

    if (!named && !*rq->caller->subject) {
        problem(rq, 400, "subject_required", "the caller has no subject of its own: name one");
        return NULL;
    }
    if (!named)
        return rq->caller->subject;
    status = subject_refusal(rq->caller, named, &code, &why);
    if (status == 0)
        return named;
    problem(rq, status, code, "%s", why);
    return NULL;
}

struct decide_query query_for(const struct request *rq, const char *subject)
{
    mono_us margin = (rq->deadline - rq->received) / 20;

    margin = margin < MARGIN_MIN_US ? MARGIN_MIN_US : margin > MARGIN_MAX_US ? MARGIN_MAX_US : margin;
    return (struct decide_query){.subject = subject,
                                 .deadline = rq->deadline == DEADLINE_NONE ? DEADLINE_NONE : rq->deadline - margin,
                                 .cancelled = &rq->cancelled,
                                 .traceparent = rq->traceparent};
}

bool model_has(const struct api *api, const char *object, const char *relation, bool *known)
{
    const struct in_force *f = world_hold(api->world);
    struct bytes type = tuple_type(object);
    bool has = false;

    *known = f != NULL;
    if (f) {
        has = model_pair(f->model, type.data, type.len, relation) >= 0;
        world_release(api->world, f);
    }
    return has;
}

/* ---- what ---- */

static bool is_known(const char *name, const char *const *also, bool filters)
{
    static const char *const common[] = {"relation", "with_relations", "subject", "min_token"};

    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
        if (strcmp(name, common[i]) == 0)
            return true;
    for (; *also; also++)
        if (strcmp(name, *also) == 0)
            return true;
    return filters && strncmp(name, "filter.", 7) == 0;
}

static bool check_params(struct request *rq, const char *const *also, bool filters)
{
    for (size_t i = 0; i < rq->nparams; i++) {
        const char *name = rq->params[i].name;
        if (!is_known(name, also, filters)) {
            problem(rq, 400, "unknown_parameter", "there is no parameter \"%s\" here", name);
            return false;
        }
        if (strncmp(name, "filter.", 7) == 0) /* in-lists may be repeated; filter_add() knows */
            continue;
        for (size_t k = 0; k < i; k++)
            if (strcmp(rq->params[k].name, name) == 0) {
                problem(rq, 400, "repeated_parameter", "the parameter \"%s\" is there twice", name);
                return false;
            }
    }
    return true;
}

static const char *relation_of(const struct collection *c, const char *name)
{
    for (size_t i = 0; i < c->nrelations; i++)
        if (strcmp(c->relations[i], name) == 0)
            return c->relations[i];
    return NULL;
}

static bool unknown_relation(struct request *rq, const struct collection *c, const char *name)
{
    problem(rq, 400, "unknown_relation", "\"%s\" has no relation \"%s\" that may be asked for", c->name, name);
    return false;
}

static bool parse_relations(struct request *rq, struct asked *a)
{
    const char *relation = request_param(rq, "relation"), *with = request_param(rq, "with_relations");
    char *save = NULL;

    a->relation = relation && *relation ? relation_of(a->collection, relation) : a->collection->relation;
    if (!a->relation)
        return unknown_relation(rq, a->collection, relation);
    if (!with || !*with)
        return true;
    a->with_text = strdup(with);
    for (char *name = a->with_text ? strtok_r(a->with_text, ",", &save) : NULL; name;
         name = strtok_r(NULL, ",", &save)) {
        const char *known = relation_of(a->collection, name);
        if (!known)
            return unknown_relation(rq, a->collection, name);
        bool repeated = false;
        for (size_t i = 0; i < a->nwith; i++)
            repeated = repeated || a->with[i] == known;
        if (repeated || a->nwith == WITH_MAX) {
            problem(rq, 400, "invalid_argument", "with_relations: a relation is there twice, or there are over %d",
                    WITH_MAX);
            return false;
        }
        a->with[a->nwith++] = known;
    }
    return true;
}

static bool find_bound(struct request *rq, struct asked *a)
{
    const struct collection *c = a->collection;

    if (c->bound < 0)
        return true;
    a->bound = caller_claim(rq->caller, c->claim);
    if (a->bound && column_value_check(&c->columns[c->bound], a->bound, NULL) == ST_OK)
        return true;
    problem(rq, 403, "missing_claim", "\"%s\" needs the claim \"%s\" of the caller", c->name, c->claim);
    return false;
}

/* The model may have changed since the collections were checked against one. That there is none is for decide to say.
 */
static bool fits_model(struct worker *w, struct request *rq, const struct asked *a)
{
    const struct in_force *f = world_hold(w->api->world);
    const struct collection *c = a->collection;
    bool fits = !f || collection_fits(c, f->model, NULL) == ST_OK;

    if (f) {
        fits = fits && model_pair(f->model, c->type, strlen(c->type), a->relation) >= 0;
        for (size_t i = 0; fits && i < a->nwith; i++)
            fits = model_pair(f->model, c->type, strlen(c->type), a->with[i]) >= 0;
        world_release(w->api->world, f);
    }
    if (fits)
        return true;
    rq->retry_after_s = 1;
    problem(rq, 503, "collection_unavailable", "the authorization model in force lacks what \"%s\" rests on", c->name);
    return false;
}

bool asked_init(struct worker *w, struct request *rq, const char *collection, const char *const *also, bool filters,
                struct asked *out)
{
    const char *subject, *header = request_header(rq, "Relata-Min-Token");

    *out = (struct asked){.min_token = ""};
    if (!need_right(rq, RIGHT_LIST) || !check_params(rq, also, filters))
        return false;
    out->collection = collection_find(w->api->collections, collection);
    if (!out->collection) {
        problem(rq, 404, "unknown_collection", "there is no collection of this name");
        return false;
    }
    subject = subject_for(rq, request_param(rq, "subject"));
    if (!subject || !parse_relations(rq, out) || !find_bound(rq, out) || !fits_model(w, rq, out))
        return false;
    if (request_param(rq, "min_token"))
        out->min_token = request_param(rq, "min_token");
    else if (header)
        out->min_token = header;
    out->query = query_for(rq, subject);
    return true;
}

void asked_release(struct asked *a)
{
    free(a->with_text);
    *a = (struct asked){0};
}

struct metric m_min_token_waiting = METRIC_INIT(METRIC_GAUGE, "relata_lister_min_token_waiting",
                                                "Requests that wait until their min_token is applied.", NULL);

/* A worker that waits does nothing else: half of them may. */
static bool enter_wait(const struct worker *w)
{
    const struct api *api = w->api;

    if (atomic_fetch_add(api->waiting, 1) < (api->workers > 1 ? api->workers / 2 : 1))
        return true;
    atomic_fetch_sub(api->waiting, 1);
    return false;
}

static enum status look_or_wait(struct worker *w, struct asked *a, struct pg *pg, struct err *err)
{
    const char *store = w->api->store_name;
    mono_us until = deadline_min(a->query.deadline, deadline_in_ms(w->api->min_token_wait_ms));
    enum status st = min_token_look(pg, store, a->min_token, a->query.deadline, &a->query.not_before, err);

    if (st != ST_CONFLICT || strcmp(err->code, "pending") != 0 || w->api->min_token_wait_ms == 0)
        return st;
    if (!enter_wait(w)) {
        err_set(err, ST_THROTTLED, "too_many_wait", "too many requests wait for their min_token already");
        err->retry_after_ms = 1000;
        return ST_THROTTLED;
    }
    metric_set(&m_min_token_waiting, (double)atomic_load(w->api->waiting));
    st = min_token_wait(pg, store, a->min_token, until, &a->query.not_before, err);
    atomic_fetch_sub(w->api->waiting, 1);
    metric_set(&m_min_token_waiting, (double)atomic_load(w->api->waiting));
    return st;
}

static void not_applied(struct request *rq, const struct err *err)
{
    /* Tokens can be counted up: they are no proof that the change is the caller's own. */
    bool tell = strcmp(err->code, "parked") != 0 || (rq->caller->rights & RIGHT_DIAGNOSE);

    problem(rq, 409, "not_applied", "%s",
            tell ? err->text : "a change of this token's transaction is parked; an operator can replay or drop it");
}

bool asked_wait(struct worker *w, struct request *rq, struct asked *a)
{
    struct pg *pg;
    struct err err;
    enum status st = ST_OK;

    if (!*a->min_token)
        return true;
    for (int tries = 0; tries < 2; tries++) {
        pg = worker_pg(w, rq, a->query.deadline);
        if (!pg)
            return false;
        st = look_or_wait(w, a, pg, &err);
        if ((st != ST_RETRY && st != ST_UNKNOWN) || pg_alive(pg)) /* else it died since the last request */
            break;
    }
    if (st == ST_OK)
        return true;
    if (st == ST_INVALID)
        problem(rq, 400, "invalid_min_token", "%s", err.text);
    else if (st == ST_CONFLICT)
        not_applied(rq, &err);
    else
        problem_undecided(rq, &err);
    return false;
}
