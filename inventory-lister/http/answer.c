#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "inventory-lister/http/internal.h"

#define DETAIL_MAX 1024
#define REQUEST_ID_MAX 256
#define ANSWER_BYTES_PER_S (64 * 1024)

/* ---- what handlers call ---- */

const char *request_param(const struct request *rq, const char *name)
{
    for (size_t i = 0; i < rq->nparams; i++) {
        if (strcmp(rq->params[i].name, name) == 0)
            return rq->params[i].value;
    }
    return NULL;
}

const char *request_header(const struct request *rq, const char *name)
{
    const struct job *job = rq->impl;

    return job ? MHD_lookup_connection_value(job->c, MHD_HEADER_KIND, name) : NULL;
}

/* Valid UTF-8 of at most DETAIL_MAX bytes; other bytes become '?'. */
static size_t clean(char *text)
{
    size_t len = strlen(text), n;

    for (size_t i = 0; i < len; i += n) {
        uint32_t cp;

        n = utf8_next(text + i, len - i, &cp);
        if (n == 0) {
            text[i] = '?';
            n = 1;
        }
    }
    return len;
}

static void problem_text(struct request *rq, int status, const char *code, char *detail)
{
    json_t *json;
    char type[128];

    snprintf(type, sizeof type, "urn:relata:problem:%s", code);
    clean(detail);
    json = json_pack("{s:s,s:s,s:i,s:s,s:s}", "type", type, "title", MHD_get_reason_phrase_for((unsigned)status),
                     "status", status, "code", code, "detail", detail);
    rq->status = status;
    rq->content_type = "application/problem+json";
    buf_clear(&rq->answer);
    if (!json || !json_add(&rq->answer, json, JSON_COMPACT)) {
        buf_clear(&rq->answer);
        buf_adds(&rq->answer, "{}");
    }
    json_decref(json);
}

void problem(struct request *rq, int status, const char *code, const char *fmt, ...)
{
    char detail[DETAIL_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    problem_text(rq, status, code, detail);
}

static void problem_unavailable(struct request *rq, const struct err *err)
{
    log_err(LOG_LVL_ERROR, "request failed", err, "path", rq->path ? rq->path : "", NULL);
    if (err->status == ST_FATAL) {
        problem(rq, 500, "internal_error", "the request failed; the log of the server says why");
        return;
    }
    rq->retry_after_s = err->retry_after_ms ? (err->retry_after_ms + 999) / 1000 : RETRY_AFTER_S;
    problem(rq, 503, "unavailable", "the store or the database does not answer as it should; try again");
}

void problem_of(struct request *rq, const struct err *err)
{
    /* The API's own codes are lower case; others (SQLSTATE) are none of the client's business. */
    bool ours = err->code[0] && !err->code[strspn(err->code, "abcdefghijklmnopqrstuvwxyz_")];
    const char *code = ours ? err->code : NULL;

    switch (err->status) {
    case ST_INVALID:
        problem(rq, 400, code ? code : "invalid_argument", "%s", err->text);
        break;
    case ST_TOO_BIG:
        problem(rq, 413, code ? code : "too_large", "%s", err->text);
        break;
    case ST_NOT_FOUND:
        problem(rq, 404, code ? code : "not_found", "%s", err->text);
        break;
    case ST_CONFLICT:
        problem(rq, 409, code ? code : "conflict", "%s", err->text);
        break;
    case ST_DEADLINE:
        log_err(LOG_LVL_WARN, "request took too long", err, "path", rq->path ? rq->path : "", NULL);
        problem(rq, 504, "deadline_exceeded", "the store or the database did not answer in time");
        break;
    case ST_OK:
    case ST_RETRY:
    case ST_THROTTLED:
    case ST_UNKNOWN:
    case ST_DENIED:
    case ST_MISSING:
    case ST_CONFIG:
    case ST_STOPPED:
    case ST_NOMEM:
    case ST_FATAL:
    default:
        problem_unavailable(rq, err);
    }
}

void answer_refuse(struct job *job, struct metric *why, int status, const char *code, const char *detail)
{
    metric_add(why, 1);
    problem(&job->rq, status, code, "%s", detail);
    if (status == 503)
        job->rq.retry_after_s = RETRY_AFTER_S;
    job->state = JOB_ANSWERED;
}

/* ---- to the library ---- */

static void add(struct MHD_Response *r, const char *name, const char *value)
{
    if (value && *value && MHD_add_response_header(r, name, value) != MHD_YES)
        log_error("a header cannot be sent", "name", name, NULL);
}

static void add_cors(struct MHD_Response *r, const struct job *job)
{
    const char *allowed = job->http->cfg->cors_origin, *origin = request_header(&job->rq, "Origin");
    bool any = strcmp(allowed, "*") == 0;

    if (!allowed[0])
        return;
    if (!any)
        add(r, "Vary", "Origin");
    if (!origin || (!any && strcmp(origin, allowed) != 0))
        return;
    add(r, "Access-Control-Allow-Origin", allowed);
    if (strcmp(job->rq.method, "OPTIONS") == 0) {
        add(r, "Access-Control-Allow-Methods", "GET, HEAD, POST");
        add(r, "Access-Control-Allow-Headers",
            "Authorization, Content-Type, Relata-Min-Token, traceparent, X-Request-ID");
        add(r, "Access-Control-Max-Age", "600");
    } else {
        add(r, "Access-Control-Expose-Headers", "Link, Retry-After, Server-Timing, WWW-Authenticate, X-Request-ID");
    }
}

/* A client finds its request again by its own name for it. */
static void add_request_id(struct MHD_Response *r, const struct request *rq)
{
    const char *id = request_header(rq, "X-Request-ID");
    size_t len = id ? strlen(id) : 0;

    for (size_t i = 0; i < len; i++)
        if (id[i] <= ' ' || id[i] > '~')
            return;
    if (len <= REQUEST_ID_MAX)
        add(r, "X-Request-ID", id);
}

static void add_headers(struct MHD_Response *r, const struct job *job)
{
    const struct request *rq = &job->rq;
    char seconds[16];

    add(r, "Content-Type", rq->content_type);
    add(r, "Cache-Control", "no-store");
    add(r, "X-Content-Type-Options", "nosniff");
    add_request_id(r, rq);
    add(r, "Link", buf_str(&rq->link));
    add(r, "Server-Timing", buf_str(&rq->timing));
    add(r, "Allow", rq->allow);
    if (rq->retry_after_s > 0) {
        snprintf(seconds, sizeof seconds, "%u", rq->retry_after_s);
        add(r, "Retry-After", seconds);
    }
    add(r, "WWW-Authenticate", rq->www_authenticate);
    add_cors(r, job);
    if (job->close || atomic_load(&job->http->draining))
        add(r, "Connection", "close");
}

/* The body goes over to the library. */
static struct MHD_Response *make_response(struct buf *body)
{
    struct MHD_Response *r;

    if (body->len == 0)
        return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    r = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    if (r)
        body->data = NULL;
    return r;
}

enum MHD_Result answer_send(struct job *job)
{
    struct request *rq = &job->rq;
    struct MHD_Response *r;
    enum MHD_Result result;
    mono_us patience;

    if (rq->status == 0 && atomic_load(&rq->cancelled))
        return MHD_NO;
    if (rq->status == 0 || !buf_ok(&rq->answer)) {
        log_error("a request got no answer", "path", rq->path, NULL);
        problem(rq, 500, "internal_error", "the answer could not be made");
    }
    patience = job->http->cfg->idle_timeout_ms + (int64_t)rq->answer.len * 1000 / ANSWER_BYTES_PER_S;
    watch_phase(job->http->watch, job->conn, PHASE_ANSWER, deadline_in_ms(patience));
    r = make_response(&rq->answer);
    if (!r)
        return MHD_NO;
    add_headers(r, job);
    result = MHD_queue_response(job->c, (unsigned)rq->status, r);
    MHD_destroy_response(r);
    return result;
}
