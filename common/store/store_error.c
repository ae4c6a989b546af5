#include "common/store/store_error.h"

#include <string.h>

#include "common/store/store_json.h"

/*
 * A request above this size that meets "resource_exhausted" was too large, below it the store was overloaded: OpenFGA
 * answers both with 500 resource_exhausted. Its default limit is 616,448 bytes of protobuf, where a small number of a
 * context takes up to six times its JSON.
 */
#define MAYBE_TOO_BIG (96u << 10)

/* First match wins; 0 = any status, NULL = any code, "" = no code. */
static const struct rule {
    long http;
    const char *code;
    enum status st;
} rules[] = {
    {401, NULL, ST_DENIED},
    {403, NULL, ST_DENIED},

    {409, NULL, ST_CONFLICT},
    /* Without "ignore" (or with a server that does not know it): stored already, or not there. */
    {400, "write_failed_due_to_invalid_input", ST_CONFLICT},

    {404, "store_id_not_found", ST_MISSING},
    {400, "latest_authorization_model_not_found", ST_MISSING},
    {400, "authorization_model_not_found", ST_MISSING},
    {404, NULL, ST_CONFIG},

    {429, NULL, ST_THROTTLED},
    {422, "throttled_timeout_error", ST_THROTTLED},
    {0, "resource_exhausted", ST_THROTTLED},

    {413, NULL, ST_TOO_BIG},
    {400, "exceeded_entity_limit", ST_TOO_BIG},

    /* The server gave up midway; what its database did is not known. */
    {400, "cancelled", ST_UNKNOWN},
    {408, NULL, ST_UNKNOWN},

    /* A 400 that the store did not write itself tells nothing about the tuples. */
    {400, "", ST_CONFIG},
    {400, NULL, ST_INVALID},
    {422, "", ST_CONFIG},
    {422, NULL, ST_INVALID},
};

enum status store_error_class(long http_status, const char *code)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const struct rule *r = &rules[i];

        if ((r->http == 0 || r->http == http_status) && (!r->code || strcmp(r->code, code) == 0))
            return r->st;
    }
    /* 5xx, gateways' 502 and 503 included: those are also sent after the request was passed on. */
    return http_status >= 500 ? ST_UNKNOWN : ST_CONFIG;
}

static const char *hint(enum status st, long http_status, bool coded)
{
    if (st == ST_DENIED)
        return "; check the token or the OIDC settings in [store]";
    if (st == ST_CONFIG && http_status >= 300 && http_status < 400)
        return "redirected; redirects are not followed: give the final address in store.url";
    if (st == ST_CONFIG && !coded)
        return "not an answer of an OpenFGA API; check store.url";
    return "";
}

enum status store_error_from_answer(long http_status, struct bytes body, size_t request_len, unsigned retry_after_ms,
                                    struct err *err)
{
    struct store_fault fault;
    bool coded = store_json_fault(body, &fault);
    enum status st = store_error_class(http_status, fault.code);

    if (st == ST_THROTTLED && http_status >= 500 && request_len > MAYBE_TOO_BIG)
        st = ST_TOO_BIG;
    err_set(err, st, coded ? fault.code : NULL, "HTTP %ld%s%s: %s%s", http_status, coded ? " " : "", fault.code,
            fault.message, hint(st, http_status, coded));
    if (err)
        err->retry_after_ms = retry_after_ms;
    return st;
}
