/* answer.c - answers and errors as OpenFGA gives them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "authz-store/api/internal.h"
#include "common/base/json.h"

static int status_of(const char *code)
{
    static const struct {
        const char *code;
        int status;
    } others[] = {
        {"bearer_token_missing", 401}, {"unauthenticated", 401},    {"Aborted", 409},
        {"store_id_not_found", 404},   {"undefined_endpoint", 404}, {"unimplemented", 404},
        {"internal_error", 500},       {"deadline_exceeded", 500},  {"unavailable", 503},
        {"resource_exhausted", 500},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].code, code) == 0)
            return others[i].status;
    return 400;
}

void api_error(struct call *c, const char *code, const char *fmt, ...)
{
    struct buf text;
    va_list ap;
    buf_init(&text, 64 << 10);
    va_start(ap, fmt);
    buf_vaddf(&text, fmt, ap);
    va_end(ap);
    api_answer(c, status_of(code), json_pack("{s:s, s:s}", "code", code, "message", buf_str(&text)));
    buf_release(&text);
}

void api_answer(struct call *c, int status, json_t *json)
{
    struct http_call *h = c->http;
    h->status = status;
    buf_clear(&h->answer);
    if (!json || !json_add(&h->answer, json, JSON_COMPACT)) {
        h->status = 500;
        buf_clear(&h->answer);
        buf_adds(&h->answer, "{\"code\":\"internal_error\",\"message\":\"Internal Server Error\"}");
    }
    json_decref(json);
}

void api_failed(struct call *c, enum status st, const struct err *err)
{
    switch (st) {
    case ST_DEADLINE:
        api_error(c, "deadline_exceeded", "Request Deadline Exceeded");
        break;
    case ST_THROTTLED:
        api_error(c, "resource_exhausted", "too many requests wait; try again");
        break;
    case ST_RETRY:
    case ST_STOPPED:
        api_error(c, "unavailable", "not available now: %s", err->text);
        break;
    case ST_NOT_FOUND:
        api_error(c, "store_id_not_found", "Store ID not found");
        break;
    case ST_INVALID:
        api_error(c, "invalid_continuation_token", "Invalid continuation token");
        break;
    case ST_OK:
    case ST_CONFLICT:
    case ST_UNKNOWN:
    case ST_TOO_BIG:
    case ST_DENIED:
    case ST_MISSING:
    case ST_CONFIG:
    case ST_NOMEM:
    case ST_FATAL:
        api_error(c, "internal_error", "Internal Server Error");
        break;
    }
}

const char *undecided_code(enum engine_status st)
{
    return st == ENGINE_TOO_DEEP  ? "authorization_model_resolution_too_complex"
           : st == ENGINE_STOPPED ? "deadline_exceeded"
           : st == ENGINE_NOMEM   ? "internal_error"
                                  : "validation_error";
}

void undecided_text(struct buf *out, enum engine_status st, const char *what)
{
    if (st == ENGINE_TOO_DEEP)
        buf_adds(out, "Authorization Model resolution required too many rewrite rules to be resolved. Check your "
                      "authorization model for infinite recursion or too much nesting");
    else if (st == ENGINE_STOPPED)
        buf_adds(out, "Request Deadline Exceeded");
    else if (st == ENGINE_NOMEM)
        buf_adds(out, "Internal Server Error");
    else if (st == ENGINE_CONDITIONAL)
        buf_addf(out, "%s, and conditions cannot be evaluated here; ask an OpenFGA", what);
    else
        buf_adds(out, what);
}

void api_undecided(struct call *c, enum engine_status st, const char *what)
{
    struct buf text;
    buf_init(&text, 4096);
    undecided_text(&text, st, what);
    api_error(c, undecided_code(st), "%s", buf_str(&text));
    buf_release(&text);
}
