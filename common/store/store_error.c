#include "common/store/store_error.h"

#include <string.h>

#include "common/store/store_json.h"

/*
 * A request above this size that meets "resource_exhausted" may have been too large, below it the store was overloaded:
 * OpenFGA answers both with 500 resource_exhausted. Its default limit is 616,448 bytes of protobuf, where a small
 * number of a context takes up to six times its JSON.
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

    /* Any other 400 or 422 tells nothing about the tuples: a gateway's, or a later version's. */
};

/* 400: something in this request is refused, and will be however often it is sent. All that OpenFGA 1.22.1 has for
 * tuples, for the models of WriteAuthorizationModel, and for the rest of a request. */
static const char *const refused[] = {
    "validation_error",
    "invalid_write_input",
    "invalid_tuple",
    "invalid_tuple_set",
    "invalid_user",
    "invalid_object_format",
    "unsupported_user_set",
    "type_not_found",
    "relation_not_found",
    "unknown_relation",
    "tuple_key_value_not_specified",
    "object_too_long",
    "object_invalid_pattern",
    "relation_too_long",
    "cannot_allow_duplicate_tuples_in_one_request",

    "invalid_authorization_model",
    "unsupported_schema_version",
    "type_definitions_too_few_items",
    "type_invalid_length",
    "type_invalid_pattern",
    "relations_too_few_items",
    "relations_too_long",
    "relations_invalid_pattern",
    "empty_relation_definition",
    "difference_base_missing_value",
    "subtract_base_missing_value",
    "cannot_allow_duplicate_types_in_one_request",
    "cannot_allow_multiple_references_to_one_relation",

    "authorization_model_resolution_too_complex",
    "invalid_check_input",
    "invalid_expand_input",
    "invalid_contextual_tuple",
    "duplicate_contextual_tuple",
    "invalid_continuation_token",
    "query_string_type_continuation_token_mismatch",
    "invalid_start_time",
    "page_size_invalid",
    "param_missing_value",
};

enum status store_error_class(long http_status, const char *code)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const struct rule *r = &rules[i];

        if ((r->http == 0 || r->http == http_status) && (!r->code || strcmp(r->code, code) == 0))
            return r->st;
    }
    for (size_t i = 0; http_status == 400 && i < sizeof(refused) / sizeof(refused[0]); i++)
        if (strcmp(refused[i], code) == 0)
            return ST_INVALID;
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
    if (st == ST_CONFIG && (http_status == 400 || http_status == 422))
        return "; not a code of OpenFGA 1.22.1, so nothing is concluded from it: is a gateway in between, or a newer "
               "server behind?";
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
