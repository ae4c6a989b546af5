/* BatchCheck's bodies: whatever the answer holds, an item is allowed only by one plain "allowed": true of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/store/batch_check_json.h"

#define MODEL "01HVMMBCMGZNT3SED4Z17ECXCB"
#define N 4

struct asked {
    struct store_check_item items[N];
    struct store_batch batch;
};

static void ask(struct asked *a)
{
    static const char *const objects[N] = {"doc:0", "doc:1", "doc:2", "doc:3"};

    memset(a, 0, sizeof(*a));
    for (size_t i = 0; i < N; i++) {
        a->items[i].object = objects[i];
        a->items[i].relation = "viewer";
    }
    a->batch = (struct store_batch){.model_id = MODEL, .subject = "user:anne", .items = a->items, .n = N};
}

static enum status answered(struct asked *a, const char *body, struct err *err)
{
    ask(a);
    return store_json_batch_answer((struct bytes){body, strlen(body)}, &a->batch, err);
}

static int allowed_count(const struct asked *a)
{
    int n = 0;

    for (size_t i = 0; i < N; i++)
        n += a->items[i].allowed;
    return n;
}

static void test_request_body(void **state)
{
    struct asked a;
    struct buf out;
    (void)state;

    buf_init(&out, 1 << 20);
    ask(&a);
    a.batch.n = 2;
    a.batch.higher = true;
    a.items[1].object = "doc:\"\xc3\xa9";
    assert_int_equal(store_json_batch(&out, &a.batch, NULL), ST_OK);
    assert_string_equal(
        buf_str(&out),
        "{\"authorization_model_id\":\"" MODEL "\",\"checks\":["
        "{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:0\"},\"correlation_id\":\"0\"}"
        ","
        "{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:\\\"\xc3\xa9\"},"
        "\"correlation_id\":\"1\"}],\"consistency\":\"HIGHER_CONSISTENCY\"}");
    /* An item that failed before is not sent; the others keep their ids. */
    a.batch.higher = false;
    a.items[0].status = ST_INVALID;
    assert_int_equal(store_json_batch(&out, &a.batch, NULL), ST_OK);
    assert_null(strstr(buf_str(&out), "doc:0"));
    assert_non_null(strstr(buf_str(&out), "\"correlation_id\":\"1\""));
    assert_null(strstr(buf_str(&out), "consistency"));
    buf_release(&out);
    buf_init(&out, 64);
    ask(&a);
    assert_int_equal(store_json_batch(&out, &a.batch, NULL), ST_TOO_BIG);
    buf_release(&out);
}

static void test_L31_errors_inside_a_200(void **state)
{
    struct asked a;
    struct err err;
    (void)state;

    assert_int_equal(answered(&a,
                              "{\"result\":{\"0\":{\"allowed\":true},\"1\":{\"allowed\":false},"
                              "\"2\":{\"error\":{\"internal_error\":\"deadline_exceeded\",\"message\":\"m\"}},"
                              "\"3\":{\"error\":{\"input_error\":\"validation_error\",\"message\":\"m\"}}}}",
                              &err),
                     ST_OK);
    assert_true(a.items[0].status == ST_OK && a.items[0].allowed);
    assert_true(a.items[1].status == ST_OK && !a.items[1].allowed);
    assert_int_equal(a.items[2].status, ST_UNKNOWN);
    assert_string_equal(a.items[2].code, "deadline_exceeded");
    assert_int_equal(a.items[3].status, ST_INVALID);
    assert_string_equal(a.items[3].code, "validation_error");
    assert_int_equal(allowed_count(&a), 1);
    assert_int_equal(a.batch.strange, 0);
}

static void test_L32_missing_and_unknown_ids(void **state)
{
    struct asked a;
    struct err err;
    (void)state;

    assert_int_equal(
        answered(&a,
                 "{\"result\":{\"0\":{\"allowed\":true},\"4\":{\"allowed\":true},\"01\":{\"allowed\":true},"
                 "\"\":{\"allowed\":true},\" 2\":{\"allowed\":true},\"3\":{\"allowed\":true},"
                 "\"99999999999999999999\":{\"allowed\":true},\"-1\":{\"allowed\":true}}}",
                 &err),
        ST_OK);
    assert_true(a.items[0].allowed && a.items[3].allowed);
    assert_int_equal(allowed_count(&a), 2);
    assert_int_equal(a.items[1].status, ST_UNKNOWN);
    assert_int_equal(a.items[2].status, ST_UNKNOWN);
    assert_int_equal(a.batch.strange, 6);
    /* An answer about an item that was not sent is strange too. */
    ask(&a);
    a.items[1].status = ST_INVALID;
    const char *body = "{\"result\":{\"1\":{\"allowed\":true}}}";
    assert_int_equal(store_json_batch_answer((struct bytes){body, strlen(body)}, &a.batch, &err), ST_OK);
    assert_int_equal(a.batch.strange, 1);
    assert_int_equal(a.items[1].status, ST_INVALID);
    assert_int_equal(allowed_count(&a), 0);
}

static void test_half_an_item_decides_nothing(void **state)
{
    static const char *const results[] = {
        "{}",
        "null",
        "true",
        "[]",
        "\"allowed\"",
        "{\"allowed\":\"true\"}",
        "{\"allowed\":1}",
        "{\"allowed\":null}",
        "{\"error\":{}}",
        "{\"allowed\":true,\"error\":{\"internal_error\":\"x\"}}",
        "{\"error\":\"x\",\"allowed\":true}",
        "{\"error\":{\"input_error\":7},\"allowed\":true}",
    };
    (void)state;

    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        struct asked a;
        struct err err;
        char body[256];
        (void)snprintf(body, sizeof(body), "{\"result\":{\"0\":%s,\"1\":{\"allowed\":true}}}", results[i]);
        assert_int_equal(answered(&a, body, &err), ST_OK);
        assert_int_not_equal(a.items[0].status, ST_OK);
        assert_false(a.items[0].allowed);
        assert_true(a.items[1].allowed);
    }
}

static void test_unusable_answers_fail_the_whole_call(void **state)
{
    static const char *const bodies[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"result\":[]}",
        "{\"result\":null}",
        "{\"result\":{\"0\":{\"allowed\":true}}",
        /* duplicate keys: whichever is taken could be the wrong one */
        "{\"result\":{\"0\":{\"allowed\":false},\"0\":{\"allowed\":true}}}",
        "{\"result\":{\"0\":{\"allowed\":false,\"allowed\":true}}}",
        "{\"result\":{},\"result\":{\"0\":{\"allowed\":true}}}",
        "{\"result\":{\"0\":{\"allowed\":true}}}{}",
        "{\"result\":{\"0\xff\":{\"allowed\":true}}}",
    };
    (void)state;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct asked a;
        struct err err;
        assert_int_equal(answered(&a, bodies[i], &err), ST_UNKNOWN);
        assert_int_equal(allowed_count(&a), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_body),
        cmocka_unit_test(test_L31_errors_inside_a_200),
        cmocka_unit_test(test_L32_missing_and_unknown_ids),
        cmocka_unit_test(test_half_an_item_decides_nothing),
        cmocka_unit_test(test_unusable_answers_fail_the_whole_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
