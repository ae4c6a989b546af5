/* Which class an answer of the store belongs to: by HTTP status and code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/store/store_error.h"
#include "common/store/store_http.h"

struct answer_case {
    long http;
    const char *code;
    enum status want;
};

static void check_all(const struct answer_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        enum status st = store_error_class(cases[i].http, cases[i].code);
        if (st != cases[i].want)
            fail_msg("%ld %s: %s, not %s", cases[i].http, cases[i].code, status_name(st), status_name(cases[i].want));
    }
}
#define CHECK_ALL(cases) check_all(cases, sizeof(cases) / sizeof((cases)[0]))

static void test_W41_conflicts_of_all_versions(void **state)
{
    static const struct answer_case cases[] = {
        {409, "Aborted", ST_CONFLICT},
        {409, "", ST_CONFLICT},
        {409, "aborted", ST_CONFLICT},
        {500, "internal_error", ST_UNKNOWN},
        {400, "write_failed_due_to_invalid_input", ST_CONFLICT},
    };
    (void)state;
    CHECK_ALL(cases);
}

static void test_S01_wrong_store_or_model_parks_nothing(void **state)
{
    static const struct answer_case cases[] = {
        {404, "store_id_not_found", ST_MISSING},
        {400, "latest_authorization_model_not_found", ST_MISSING},
        {400, "authorization_model_not_found", ST_MISSING},
        {401, "bearer_token_missing", ST_DENIED},
        {401, "unauthenticated", ST_DENIED},
        {401, "", ST_DENIED},
        {403, "forbidden", ST_DENIED},
        {403, "", ST_DENIED},
    };
    (void)state;
    CHECK_ALL(cases);
}

static void test_only_known_codes_of_a_400_blame_the_tuples(void **state)
{
    static const struct answer_case cases[] = {
        {400, "validation_error", ST_INVALID},
        {400, "invalid_write_input", ST_INVALID},
        {400, "invalid_tuple", ST_INVALID},
        {400, "type_not_found", ST_INVALID},
        {400, "invalid_authorization_model", ST_INVALID},
        {400, "a_code_of_a_later_version", ST_CONFIG},
        {400, "bad_request", ST_CONFIG},
        {422, "validation_error", ST_CONFIG},
        {422, "a_code_of_a_later_version", ST_CONFIG},
        {400, "cannot_allow_duplicate_tuples_in_one_request", ST_INVALID},
        {400, "", ST_CONFIG},
        {404, "", ST_CONFIG},
        {404, "undefined_endpoint", ST_CONFIG},
        {404, "unimplemented", ST_CONFIG},
        {405, "", ST_CONFIG},
        {301, "", ST_CONFIG},
        {307, "", ST_CONFIG},
        {422, "", ST_CONFIG},
        {426, "", ST_CONFIG},
        {400, "exceeded_entity_limit", ST_TOO_BIG},
        {413, "", ST_TOO_BIG},
    };
    (void)state;
    CHECK_ALL(cases);
}

static void test_W25_overload_and_unknown_outcomes(void **state)
{
    static const struct answer_case cases[] = {
        {429, "", ST_THROTTLED},
        {429, "rate_limit_exceeded", ST_THROTTLED},
        {422, "throttled_timeout_error", ST_THROTTLED},
        {500, "resource_exhausted", ST_THROTTLED},
        {400, "cancelled", ST_UNKNOWN},
        {408, "", ST_UNKNOWN},
        {500, "deadline_exceeded", ST_UNKNOWN},
        {500, "unavailable", ST_UNKNOWN},
        {500, "aborted", ST_UNKNOWN},
        {500, "", ST_UNKNOWN},
        {502, "", ST_UNKNOWN},
        {503, "", ST_UNKNOWN},
        {504, "", ST_UNKNOWN},
        {599, "", ST_UNKNOWN},
    };
    (void)state;
    CHECK_ALL(cases);
}

static enum status from(long http, const char *body, size_t request_len, struct err *err)
{
    memset(err, 0, sizeof(*err));
    return store_error_from_answer(http, (struct bytes){body, strlen(body)}, request_len, 1500, err);
}

static void test_error_carries_code_message_and_wait(void **state)
{
    struct err err;
    (void)state;

    assert_int_equal(from(400, "{\"code\":\"validation_error\",\"message\":\"no such type\"}", 10, &err), ST_INVALID);
    assert_int_equal(err.status, ST_INVALID);
    assert_string_equal(err.code, "validation_error");
    assert_string_equal(err.text, "HTTP 400 validation_error: no such type");
    assert_int_equal(from(429, "slow down", 10, &err), ST_THROTTLED);
    assert_int_equal(err.retry_after_ms, 1500);
    assert_string_equal(err.code, "");
    assert_int_equal(from(404, "", 10, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "store.url"));
}

/* OpenFGA says 500 resource_exhausted both for a message that is too large and for a database that throttles. */
static void test_resource_exhausted_by_size(void **state)
{
    static const char body[] = "{\"code\":\"resource_exhausted\",\"message\":\"m\"}";
    struct err err;
    (void)state;

    assert_int_equal(from(500, body, 20000, &err), ST_THROTTLED);
    assert_int_equal(from(500, body, 700000, &err), ST_TOO_BIG);
    assert_int_equal(err.status, ST_TOO_BIG);
    assert_int_equal(from(429, "{}", 700000, &err), ST_THROTTLED);
}

static void test_W26_retry_after(void **state)
{
    const int64_t now = 1445412480 - 30; /* 30 s before the date below */
    static const char date[] = "Wed, 21 Oct 2015 07:28:00 GMT";
    (void)state;

    assert_int_equal(store_retry_after_ms("2", now), 2000);
    assert_int_equal(store_retry_after_ms(" 2 ", now), 2000);
    assert_int_equal(store_retry_after_ms("60", now), 60000);
    assert_int_equal(store_retry_after_ms("61", now), 60000);
    assert_int_equal(store_retry_after_ms("1725260000", now), 60000);
    assert_int_equal(store_retry_after_ms("99999999999999999999999999", now), 60000);
    assert_int_equal(store_retry_after_ms("0", now), 0);
    assert_int_equal(store_retry_after_ms("-5", now), 0);
    assert_int_equal(store_retry_after_ms("2.5", now), 0);
    assert_int_equal(store_retry_after_ms("", now), 0);
    assert_int_equal(store_retry_after_ms("soon", now), 0);
    assert_int_equal(store_retry_after_ms(date, now), 30000);
    assert_int_equal(store_retry_after_ms(date, now + 30), 0);
    assert_int_equal(store_retry_after_ms(date, now + 100000), 0);
    assert_int_equal(store_retry_after_ms(date, now - 100000), 60000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_W41_conflicts_of_all_versions),
        cmocka_unit_test(test_S01_wrong_store_or_model_parks_nothing),
        cmocka_unit_test(test_only_known_codes_of_a_400_blame_the_tuples),
        cmocka_unit_test(test_W25_overload_and_unknown_outcomes),
        cmocka_unit_test(test_error_carries_code_message_and_wait),
        cmocka_unit_test(test_resource_exhausted_by_size),
        cmocka_unit_test(test_W26_retry_after),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
