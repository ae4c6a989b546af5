#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/hex.h"
#include "common/base/utf8.h"
#include "inventory-lister/http/internal.h"

#define RUN_GRACE_MS 5000 /* a handler that is so late (or twice its time) has its connection ended */

/* ---- decoding ---- */

static bool is_text(const char *s, size_t len)
{
    return utf8_valid(s, len) && !memchr(s, '\0', len);
}

bool intake_decode_text(char *text, size_t *len)
{
    size_t out = 0;

    for (size_t i = 0; i < *len; i++) {
        int high, low;

        if (text[i] != '%') {
            text[out++] = text[i];
            continue;
        }
        if (*len - i < 3)
            return false;
        high = hex_digit(text[i + 1]);
        low = hex_digit(text[i + 2]);
        if (high < 0 || low < 0)
            return false;
        text[out++] = (char)(high * 16 + low);
        i += 2;
    }
    text[out] = '\0';
    *len = out;
    return is_text(text, out);
}

size_t intake_unescape(void *arg, struct MHD_Connection *c, char *text)
{
    (void)arg, (void)c;
    return strlen(text);
}

/* Two rounds over the query: how much there is, then taking it. */
struct intake {
    size_t n, bytes;
    struct param *params;
    char *text;
    bool bad;
};

static enum MHD_Result count_param(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                   const char *value, size_t value_len)
{
    struct intake *in = arg;

    (void)kind, (void)name, (void)value;
    in->n++;
    in->bytes += name_len + value_len + 2;
    return MHD_YES;
}

static const char *take_text(struct intake *in, const char *text, size_t len)
{
    char *at = in->text;

    if (len > 0)
        memcpy(at, text, len);
    at[len] = '\0';
    in->text += len + 1;
    if (!intake_decode_text(at, &len))
        in->bad = true;
    return at;
}

static enum MHD_Result take_param(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                  const char *value, size_t value_len)
{
    struct intake *in = arg;
    struct param *p = &in->params[in->n++];

    (void)kind;
    p->name = take_text(in, name, name_len);
    p->value = take_text(in, value ? value : "", value ? value_len : 0);
    return MHD_YES;
}

bool intake_decode(struct job *job, const char *path)
{
    struct intake in = {0};
    size_t path_len = strlen(path);

    MHD_get_connection_values_n(job->c, MHD_GET_ARGUMENT_KIND, count_param, &in);
    job->text = malloc(in.n * sizeof *in.params + in.bytes + path_len + 1);
    if (!job->text)
        return false;
    in.params = (struct param *)(void *)job->text;
    in.text = job->text + in.n * sizeof *in.params;
    job->rq.path = take_text(&in, path, path_len);
    in.n = 0;
    MHD_get_connection_values_n(job->c, MHD_GET_ARGUMENT_KIND, take_param, &in);
    job->rq.params = in.params;
    job->rq.nparams = in.n;
    return !in.bad;
}

/* ---- headers ---- */

static bool is_hex(const char *s, size_t n, bool *all_zero)
{
    *all_zero = true;
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
        *all_zero = *all_zero && s[i] == '0';
    }
    return true;
}

bool traceparent_valid(const char *v)
{
    bool zero;
    size_t len = strlen(v);

    if (len < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-')
        return false;
    if (!is_hex(v, 2, &zero) || strncmp(v, "ff", 2) == 0 || (zero ? len != 55 : len > 55 && v[55] != '-'))
        return false;
    if (!is_hex(v + 3, 32, &zero) || zero || !is_hex(v + 36, 16, &zero) || zero)
        return false;
    return is_hex(v + 53, 2, &zero) && len <= 512;
}

struct singles {
    int authorization, traceparent, length, host;
    bool chunked, nul;
};

static enum MHD_Result count_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                    const char *value, size_t value_len)
{
    struct singles *s = arg;

    (void)kind;
    s->nul = s->nul || memchr(name, '\0', name_len) || (value && memchr(value, '\0', value_len));
    s->authorization += strcasecmp(name, "Authorization") == 0;
    s->traceparent += strcasecmp(name, "traceparent") == 0;
    s->length += strcasecmp(name, "Content-Length") == 0;
    s->host += strcasecmp(name, "Host") == 0;
    s->chunked = s->chunked || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

static const char *header(const struct job *job, const char *name)
{
    return MHD_lookup_connection_value(job->c, MHD_HEADER_KIND, name);
}

static bool method_is(const struct job *job, const char *method)
{
    return strcmp(job->rq.method, method) == 0;
}

/* ---- a request's parts as they come ---- */

static const char *method_of(const char *method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "OPTIONS"};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(method, known[i]) == 0)
            return known[i];
    }
    return "";
}

static struct job *job_new(struct http *h, struct MHD_Connection *c, const char *method)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *conn = info ? info->socket_context : NULL;
    struct job *job = conn ? calloc(1, sizeof *job) : NULL;

    if (!job)
        return NULL;
    job->http = h;
    job->c = c;
    job->conn = conn;
    job->rq.impl = job;
    job->rq.method = method_of(method);
    job->rq.received = clock_mono_us();
    job->rq.deadline = deadline_in_ms(h->cfg->request_timeout_ms);
    buf_init(&job->rq.answer, ANSWER_MAX);
    buf_init(&job->rq.link, HEADER_VALUE_MAX);
    buf_init(&job->rq.timing, HEADER_VALUE_MAX);
    buf_init(&job->body, (size_t)h->cfg->body_max);
    watch_begin(h->watch);
    watch_phase(h->watch, conn, PHASE_BODY, job->rq.deadline);
    return job;
}

static void drop_body(struct job *job)
{
    atomic_fetch_sub(&job->http->bodies, job->counted);
    job->counted = 0;
    buf_release(&job->body);
}

void job_free(struct job *job)
{
    if (job->entered)
        caller_leave(job->rq.caller);
    caller_release(job->rq.caller);
    buf_release(&job->rq.answer);
    buf_release(&job->rq.link);
    buf_release(&job->rq.timing);
    drop_body(job);
    free(job->text);
    free(job);
}

/* What headers alone tell. An answer that is made here ends the connection if a body is still to come. */
static void check_headers(struct job *job, const char *path)
{
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(job->c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *length = header(job, "Content-Length");
    struct singles s = {0};

    MHD_get_connection_values_n(job->c, MHD_HEADER_KIND, count_header, &s);
    job->has_body = s.chunked || (length && strcmp(length, "0") != 0);
    if (size && size->header_size > HEADERS_MAX)
        answer_refuse(job, &http_refused_headers, 431, "headers_too_large",
                      "request line and headers are larger than 16 KiB");
    else if (s.nul || s.authorization > 1 || s.length > 1 || s.host > 1 || (s.chunked && s.length > 0))
        answer_refuse(job, &http_refused_bad, 400, "bad_request", "a header is given twice, or holds a NUL");
    else if (!*job->rq.method || (method_is(job, "OPTIONS") && !job->http->cfg->cors_origin[0])) {
        answer_refuse(job, &http_refused_bad, 405, "method_not_allowed",
                      "this path does not take this method; see Allow");
        job->rq.allow = job->http->app->methods ? job->http->app->methods(path) : "GET, HEAD, POST";
    } else if (length && (strlen(length) > 18 || strtoll(length, NULL, 10) > job->http->cfg->body_max))
        answer_refuse(job, &http_refused_body, 413, "body_too_large", "the body is larger than http.body_max");
    if (s.traceparent == 1 && traceparent_valid(header(job, "traceparent")))
        job->rq.traceparent = header(job, "traceparent");
}

/* What is too much is read and dropped: the library takes an answer only before a body or after it. */
static void take_body(struct job *job, const char *data, size_t len)
{
    if (job->over_body || job->over_bodies)
        return;
    job->counted += (int64_t)len;
    if (atomic_fetch_add(&job->http->bodies, (int64_t)len) + (int64_t)len > BODIES_MAX)
        job->over_bodies = true;
    else
        buf_add(&job->body, data, len);
    job->over_body = !buf_ok(&job->body);
    if (job->over_body || job->over_bodies)
        drop_body(job);
}

/* ---- on its way to a worker ---- */

/* A name that only this machine has: [::1], 127.0.0.1, localhost, with or without a port. */
static bool is_loopback_host(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
        size_t len = strlen(names[i]);

        if (strncasecmp(host, names[i], len) == 0 && (!host[len] || host[len] == ':'))
            return true;
    }
    return false;
}

static bool identify(struct job *job)
{
    struct http *h = job->http;
    struct err err = {0};
    enum status st =
        callers_identify(h->callers, header(job, "Authorization"), job->conn->peer_uid, &job->rq.caller, &err);

    if (st == ST_OK)
        return true;
    if (st == ST_DENIED) {
        answer_refuse(job, &http_refused_token, 401, err.code, err.text);
        job->rq.www_authenticate = strcmp(err.code, "missing_token") == 0
                                       ? "Bearer realm=\"relata\""
                                       : "Bearer realm=\"relata\", error=\"invalid_token\"";
    } else
        answer_refuse(job, &http_refused_queue, 503, "overloaded", "no memory");
    return false;
}

/* Whether it may go on; if not it is answered. The cheapest tests come first: what is refused should cost little. */
static bool admit(struct job *job, const char *path)
{
    struct http *h = job->http;

    if (job->over_body) {
        answer_refuse(job, &http_refused_body, 413, "body_too_large", "the body is larger than http.body_max");
    } else if (job->over_bodies) {
        answer_refuse(job, &http_refused_queue, 503, "overloaded", "too many bodies are being sent");
    } else if (!intake_decode(job, path)) {
        answer_refuse(job, &http_refused_bad, 400, "bad_request",
                      "path and query must be percent-encoded UTF-8 without NUL");
    } else if (job->conn->peer_uid < 0 && callers_anonymous(h->callers) && !is_loopback_host(header(job, "Host"))) {
        answer_refuse(job, &http_refused_bad, 403, "forbidden_host",
                      "with callers.anonymous the Host must be localhost, 127.0.0.1 or [::1]");
    } else if (method_is(job, "OPTIONS")) {
        job->rq.status = 204; /* of a browser, before a request to another origin */
        job->state = JOB_ANSWERED;
    } else if (!queue_reserve(h->queue)) {
        answer_refuse(job, &http_refused_queue, 503, "overloaded", "too many requests are waiting");
    } else if (h->app->needs_caller(job->rq.path) && !identify(job)) {
        queue_cancel(h->queue);
    } else if (job->rq.caller && !(job->entered = caller_enter(job->rq.caller, h->cfg->caller_in_flight))) {
        queue_cancel(h->queue);
        answer_refuse(job, &http_refused_caller, 503, "caller_busy", "this caller has too many requests in flight");
    }
    return job->state != JOB_ANSWERED;
}

static enum MHD_Result dispatch(struct job *job, const char *path)
{
    struct http *h = job->http;
    int64_t grace_ms = h->cfg->request_timeout_ms < RUN_GRACE_MS ? h->cfg->request_timeout_ms : RUN_GRACE_MS;

    if (!admit(job, path))
        return answer_send(job);
    job->rq.body = (struct bytes){buf_str(&job->body), job->body.len};
    job->queued = clock_mono_us();
    job->state = JOB_QUEUED;
    MHD_suspend_connection(job->c);
    watch_run(h->watch, job->conn, job, job->rq.deadline + grace_ms * 1000);
    if (!queue_push(h->queue, job)) {
        answer_refuse(job, &http_refused_queue, 503, "overloaded", "the server is ending");
        watch_answer(h->watch, job->conn, job->rq.deadline);
        MHD_resume_connection(job->c);
    }
    return MHD_YES;
}

enum MHD_Result intake_on_request(void *arg, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **state)
{
    struct job *job = *state;

    (void)version;
    if (!job) {
        job = job_new(arg, c, method);
        if (!job)
            return MHD_NO;
        *state = job;
        check_headers(job, path);
        if (job->state == JOB_ANSWERED && job->has_body) {
            job->close = true;
            return answer_send(job);
        }
        return MHD_YES;
    }
    if (*body_len > 0) {
        take_body(job, body, *body_len);
        *body_len = 0;
        return MHD_YES;
    }
    return job->state == JOB_TAKING_IN ? dispatch(job, path) : answer_send(job);
}
