/* Request bodies, and answers that may hold anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/store/store_json.h"

#define MODEL "01HVMMBCMGZNT3SED4Z17ECXCB"

static struct bytes of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

/* ---- requests ---- */

static void test_write_body(void **state)
{
    struct store_tuple writes[] = {
        {{"doc:1", "viewer", "user:\"q\""}, NULL, NULL},
        {{"doc:1", "viewer", "user:b"}, "c", "{\"b\":[1.0],\"a\":\"\xc3\xa9\"}"},
        {{"doc:2", "viewer", "user:*"}, "c", NULL},
        {{"doc:2", "owner", "team:t#member"}, "", "{\"ignored\":1}"},
    };
    struct tuple_key deletes[] = {{"doc:1", "viewer", "user:d"}};
    struct buf out;
    (void)state;

    buf_init(&out, 1 << 20);
    assert_int_equal(store_json_write(&out, MODEL, writes, 4, deletes, 1, NULL), ST_OK);
    assert_string_equal(
        buf_str(&out),
        "{\"writes\":{\"tuple_keys\":["
        "{\"user\":\"user:\\\"q\\\"\",\"relation\":\"viewer\",\"object\":\"doc:1\"},"
        "{\"user\":\"user:b\",\"relation\":\"viewer\",\"object\":\"doc:1\","
        "\"condition\":{\"name\":\"c\",\"context\":{\"b\":[1],\"a\":\"\xc3\xa9\"}}},"
        "{\"user\":\"user:*\",\"relation\":\"viewer\",\"object\":\"doc:2\",\"condition\":{\"name\":\"c\",\"context\":{}"
        "}},"
        "{\"user\":\"team:t#member\",\"relation\":\"owner\",\"object\":\"doc:2\"}],\"on_duplicate\":\"ignore\"},"
        "\"deletes\":{\"tuple_keys\":[{\"user\":\"user:d\",\"relation\":\"viewer\",\"object\":\"doc:1\"}],"
        "\"on_missing\":\"ignore\"},\"authorization_model_id\":\"" MODEL "\"}");
    assert_int_equal(out.len, strlen(buf_str(&out)));
    assert_int_equal(store_json_write(&out, MODEL, NULL, 0, deletes, 1, NULL), ST_OK);
    assert_null(strstr(buf_str(&out), "writes"));
    buf_release(&out);
}

static void test_write_refuses_what_cannot_be_sent(void **state)
{
    struct store_tuple bad[] = {
        {{"doc:1", "viewer", "user:\xff"}, NULL, NULL},
        {{"doc:1\xc3", "viewer", "user:a"}, NULL, NULL},
        {{"doc:1", "viewer", "user:a"}, "\xed\xa0\x80", NULL},
        {{"doc:1", "viewer", "user:a"}, "c", "[1]"},
        {{"doc:1", "viewer", "user:a"}, "c", "{"},
        {{"doc:1", "viewer", "user:a"}, "c", "{\"a\":1,\"a\":2}"},
        {{"doc:1", "viewer", "user:a"}, "c", "{\"a\":1e999}"},
    };
    struct err err;
    struct buf out;
    (void)state;

    buf_init(&out, 1 << 20);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(store_json_write(&out, MODEL, &bad[i], 1, NULL, 0, &err), ST_INVALID);
        assert_int_equal(err.status, ST_INVALID);
    }
    buf_release(&out);
    buf_init(&out, 100);
    bad[0].key.subject = "user:a";
    assert_int_equal(store_json_write(&out, MODEL, bad, 1, NULL, 0, &err), ST_TOO_BIG);
    buf_release(&out);
}

static void test_D16_read_bodies(void **state)
{
    struct tuple_key key = {"doc:1", "viewer", "user:a"};
    struct buf out;
    (void)state;

    buf_init(&out, 1 << 20);
    assert_int_equal(store_json_read_page(&out, NULL, NULL, "", 100, NULL), ST_OK);
    assert_string_equal(buf_str(&out), "{\"page_size\":100,\"consistency\":\"HIGHER_CONSISTENCY\"}");
    assert_int_equal(store_json_read_page(&out, NULL, NULL, "to\"ken", 7, NULL), ST_OK);
    assert_string_equal(buf_str(&out), "{\"page_size\":7,\"continuation_token\":\"to\\\"ken\","
                                       "\"consistency\":\"HIGHER_CONSISTENCY\"}");
    assert_int_equal(store_json_read_tuple(&out, &key, NULL), ST_OK);
    assert_string_equal(buf_str(&out),
                        "{\"tuple_key\":{\"user\":\"user:a\",\"relation\":\"viewer\",\"object\":\"doc:1\"},"
                        "\"consistency\":\"HIGHER_CONSISTENCY\"}");
    assert_int_equal(store_json_check(&out, MODEL, &key, false, NULL), ST_OK);
    assert_null(strstr(buf_str(&out), "consistency"));
    buf_release(&out);
}

static void test_model_body_loses_its_id(void **state)
{
    struct buf out;
    (void)state;

    buf_init(&out, 1 << 20);
    assert_int_equal(store_json_model(&out, "{\"id\":\"x\",\"schema_version\":\"1.1\"}", NULL), ST_OK);
    assert_string_equal(buf_str(&out), "{\"schema_version\":\"1.1\"}");
    assert_int_equal(store_json_model(&out, "model\n  schema 1.1", NULL), ST_INVALID);
    assert_int_equal(store_json_model(&out, "[]", NULL), ST_INVALID);
    buf_release(&out);
}

/* ---- answers ---- */

static void test_tuples_of_a_page(void **state)
{
    static const char body[] =
        "{\"tuples\":[{\"key\":{\"user\":\"user:a\",\"relation\":\"viewer\",\"object\":\"doc:1\",\"condition\":null},"
        "\"timestamp\":\"2026-01-01T00:00:00Z\"},"
        "{\"key\":{\"user\":\"user:b\",\"relation\":\"viewer\",\"object\":\"doc:1\",\"condition\":{\"name\":\"c\","
        "\"context\":{\"z\":1,\"a\":100000000000000000000,\"n\":\"\\u0000\"}}},\"timestamp\":\"\"},"
        "{\"key\":{\"user\":\"user:c\",\"relation\":\"viewer\",\"object\":\"doc:1\",\"condition\":{\"name\":\"c\"}}}],"
        "\"continuation_token\":\"next\",\"later\":{\"field\":1}}";
    struct store_tuples t;
    char *next;
    (void)state;

    assert_int_equal(store_json_tuples(of(body), &t, &next, NULL), ST_OK);
    assert_int_equal(t.len, 3);
    assert_string_equal(next, "next");
    assert_string_equal(t.items[0].key.subject, "user:a");
    assert_null(t.items[0].condition_name);
    assert_string_equal(t.items[1].condition_name, "c");
    assert_string_equal(t.items[1].condition_context, "{\"a\":1e20,\"n\":\"\\u0000\",\"z\":1}");
    assert_string_equal(t.items[2].condition_name, "c");
    assert_null(t.items[2].condition_context);
    store_tuples_free(&t);
    store_tuples_free(&t);
    free(next);
}

static void test_hostile_pages_are_unknown(void **state)
{
    static const char *const bodies[] = {
        "",
        "nonsense",
        "[]",
        "{}",
        "{\"tuples\":null,\"continuation_token\":\"\"}",
        "{\"tuples\":{},\"continuation_token\":\"\"}",
        "{\"tuples\":[1],\"continuation_token\":\"\"}",
        "{\"tuples\":[{}],\"continuation_token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\",\"relation\":\"r\"}}],\"continuation_token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":1,\"relation\":\"r\",\"object\":\"d:1\"}}],\"continuation_token\":\"\"}",
        /* W35: never cut at a NUL */
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\\u0000x\",\"relation\":\"r\",\"object\":\"d:1\"}}],\"continuation_"
        "token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\",\"user\":\"u:2\",\"relation\":\"r\",\"object\":\"d:1\"}}],"
        "\"continuation_token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\",\"relation\":\"r\",\"object\":\"d:1\",\"condition\":{}}}],"
        "\"continuation_token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\",\"relation\":\"r\",\"object\":\"d:1\",\"condition\":7}}],"
        "\"continuation_token\":\"\"}",
        "{\"tuples\":[{\"key\":{\"user\":\"u:1\",\"relation\":\"r\",\"object\":\"d:1\",\"condition\":{\"name\":\"c\","
        "\"context\":[1]}}}],\"continuation_token\":\"\"}",
        "{\"tuples\":[]}",
        "{\"tuples\":[],\"continuation_token\":null}",
        "{\"tuples\":[],\"continuation_token\":5}",
        "{\"tuples\":[],\"continuation_token\":\"a\\u0000b\"}",
        "{\"tuples\":[],\"continuation_token\":\"\"} trailing",
        "{\"tuples\":[],\"continuation_token\":\"\xff\"}",
    };
    (void)state;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct store_tuples t = {.len = 9};
        char *next = NULL;
        struct err err = {0};

        if (store_json_tuples(of(bodies[i]), &t, &next, &err) != ST_UNKNOWN)
            fail_msg("taken: %s", bodies[i]);
        assert_int_equal(err.status, ST_UNKNOWN);
        assert_null(t.items);
        assert_int_equal(t.len, 0);
        assert_null(next);
    }
}

static void test_bytes_end_at_their_length(void **state)
{
    static const char body[] = "{\"id\":\"abc\"}{\"id\":\"def\"}";
    char *id;
    (void)state;

    assert_int_equal(store_json_member((struct bytes){body, 12}, "id", &id, NULL), ST_OK);
    assert_string_equal(id, "abc");
    free(id);
    assert_int_equal(store_json_member((struct bytes){body, 11}, "id", &id, NULL), ST_UNKNOWN);
    assert_null(id);
    assert_int_equal(store_json_member(of("{\"id\":\"\"}"), "id", &id, NULL), ST_UNKNOWN);
    assert_int_equal(store_json_member(of("{\"id\":1}"), "id", &id, NULL), ST_UNKNOWN);
}

static void test_models(void **state)
{
    char *s;
    (void)state;

    assert_int_equal(store_json_first_model(of("{\"authorization_models\":[]}"), &s, NULL), ST_OK);
    assert_null(s);
    assert_int_equal(store_json_first_model(of("{\"authorization_models\":[{\"id\":\"B\"},{\"id\":\"A\"}]}"), &s, NULL),
                     ST_OK);
    assert_string_equal(s, "B");
    free(s);
    assert_int_equal(store_json_first_model(of("{\"authorization_models\":[{}]}"), &s, NULL), ST_UNKNOWN);
    assert_int_equal(store_json_first_model(of("{}"), &s, NULL), ST_UNKNOWN);
    assert_int_equal(store_json_model_text(of("{\"authorization_model\":{\"id\":\"A\",\"x\":[1]}}"), &s, NULL), ST_OK);
    assert_string_equal(s, "{\"id\":\"A\",\"x\":[1]}");
    free(s);
    assert_int_equal(store_json_model_text(of("{\"authorization_model\":{}}"), &s, NULL), ST_UNKNOWN);
    assert_null(s);
}

static void test_faults(void **state)
{
    struct store_fault f;
    char body[3000], *p;
    (void)state;

    assert_true(store_json_fault(of("{\"code\":\"c\",\"message\":\"m\"}"), &f));
    assert_string_equal(f.message, "m");
    assert_false(store_json_fault(of("{\"code\":5,\"message\":\"m\"}"), &f));
    assert_false(store_json_fault(of("{\"message\":\"m\"}"), &f));
    assert_false(store_json_fault(of("gateway"), &f));
    /* Cut at a code point. */
    p = body + snprintf(body, sizeof(body), "{\"code\":\"c\",\"message\":\"x");
    for (int i = 0; i < 600; i++, p += 2)
        memcpy(p, "\xc3\xa9", 2);
    memcpy(p, "\"}", 3);
    assert_true(store_json_fault(of(body), &f));
    assert_int_equal(strlen(f.message) % 2, 1);
}

static void test_token_answers(void **state)
{
    char *token, refusal[8];
    int64_t s;
    (void)state;

    assert_int_equal(store_json_token(of("{\"access_token\":\"t\",\"token_type\":\"bearer\",\"expires_in\":3600}"),
                                      &token, &s, NULL),
                     ST_OK);
    assert_string_equal(token, "t");
    assert_int_equal(s, 3600);
    free(token);
    assert_int_equal(store_json_token(of("{\"access_token\":\"t\",\"expires_in\":\"x\"}"), &token, &s, NULL), ST_OK);
    assert_int_equal(s, 0);
    free(token);
    assert_int_equal(store_json_token(of("{\"access_token\":\"t\",\"expires_in\":-1}"), &token, &s, NULL), ST_OK);
    assert_int_equal(s, 0);
    free(token);
    assert_int_equal(store_json_token(of("{\"access_token\":\"t\",\"token_type\":\"mac\"}"), &token, &s, NULL),
                     ST_UNKNOWN);
    assert_null(token);
    assert_int_equal(store_json_token(of("{\"access_token\":\"\"}"), &token, &s, NULL), ST_UNKNOWN);
    store_json_token_refusal(of("{\"error\":\"invalid_client\"}"), refusal, sizeof(refusal));
    assert_string_equal(refusal, "invalid");
    store_json_token_refusal(of("x"), refusal, sizeof(refusal));
    assert_string_equal(refusal, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_body),
        cmocka_unit_test(test_write_refuses_what_cannot_be_sent),
        cmocka_unit_test(test_D16_read_bodies),
        cmocka_unit_test(test_model_body_loses_its_id),
        cmocka_unit_test(test_tuples_of_a_page),
        cmocka_unit_test(test_hostile_pages_are_unknown),
        cmocka_unit_test(test_bytes_end_at_their_length),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_token_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
