/* Condition contexts: equal when the store would call them equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/store/store.h"
#include "common/store/store_context.h"

static void same(const char *a, const char *b)
{
    if (!store_context_equal(a, b) || !store_context_equal(b, a))
        fail_msg("not equal: %s and %s", a ? a : "NULL", b ? b : "NULL");
}

static void differ(const char *a, const char *b)
{
    if (store_context_equal(a, b) || store_context_equal(b, a))
        fail_msg("equal: %s and %s", a ? a : "NULL", b ? b : "NULL");
}

static void test_nothing_is_an_empty_object(void **state)
{
    (void)state;
    same(NULL, NULL);
    same(NULL, "");
    same(NULL, "{}");
    same("", " { } ");
    differ(NULL, "{\"a\":null}");
}

static void test_D29_numbers_are_doubles(void **state)
{
    (void)state;
    same("{\"b\":1,\"a\":[2]}", "{\"a\":[2.0],\"b\":1.0}");
    same("{\"x\":100}", "{\"x\":1e2}");
    same("{\"x\":0}", "{\"x\":-0.0}");
    same("{\"x\":0.1}", "{\"x\":0.1000000000000000055511151231257827}");
    same("{\"x\":9007199254740993}", "{\"x\":9007199254740992}");
    same("{\"x\":100000000000000000000}", "{\"x\":1e20}");
    same("{\"x\":9223372036854775808}", "{\"x\":9223372036854775807}");
    same("{\"x\":-9007199254740992}", "{\"x\":-9007199254740992.0}");
    differ("{\"x\":9007199254740991}", "{\"x\":9007199254740992}");
    differ("{\"x\":1}", "{\"x\":1.5}");
    differ("{\"x\":1}", "{\"x\":\"1\"}");
    differ("{\"x\":1}", "{\"x\":true}");
    differ("{\"x\":1}", "{\"x\":[1]}");
    differ("{\"x\":1e300}", "{\"x\":1e301}");
}

static void test_key_order_is_free_everywhere(void **state)
{
    (void)state;
    same("{\"a\":1,\"b\":{\"c\":[1,{\"d\":2,\"e\":3}],\"f\":null}}",
         "{\"b\":{\"f\":null,\"c\":[1.0,{\"e\":3,\"d\":2}]},\"a\":1}");
    differ("{\"a\":[1,2]}", "{\"a\":[2,1]}");
    differ("{\"a\":1,\"b\":2}", "{\"a\":2,\"b\":1}");
    differ("{\"a\":1}", "{\"a\":1,\"b\":null}");
    differ("{\"a\":[1]}", "{\"a\":[1,1]}");
}

static void test_strings_are_bytes(void **state)
{
    (void)state;
    same("{\"a\":\"\\u00e9\"}", "{\"a\":\"\xc3\xa9\"}");
    differ("{\"a\":\"jos\xc3\xa9\"}", "{\"a\":\"jose\xcc\x81\"}"); /* composed and decomposed (W38) */
    differ("{\"a\":\"x\"}", "{\"a\":\"x\\u0000\"}");
    same("{\"a\":\"x\\u0000y\"}", "{\"a\":\"x\\u0000y\"}");
    differ("{\"a\":\"x\\u0000y\"}", "{\"a\":\"x\\u0000z\"}");
}

static void test_what_is_no_object_equals_nothing(void **state)
{
    static const char *const bad[] = {
        "[",    "[]", "1", "null", "{\"a\":1,\"a\":1}", "{\"a\":1e400}", "{\"a\":\"\xff\"}", "{\"a\":\"\\ud800\"}",
        "{} {}"};
    (void)state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err;
        json_t *node;

        differ(bad[i], bad[i]);
        differ(bad[i], NULL);
        assert_int_equal(store_context_parse(bad[i], &node, &err), ST_INVALID);
        assert_null(node);
    }
}

static void test_deep_nesting_is_bounded(void **state)
{
    size_t depth = 100000;
    char *text = malloc(depth * 6 + 3);
    size_t len = 0;
    (void)state;

    assert_non_null(text);
    for (size_t i = 0; i < depth; i++, len += 5)
        memcpy(text + len, "{\"a\":", 5);
    memcpy(text + len, "1", 2);
    differ(text, text);
    free(text);
}

static void test_canonical_form_has_whole_numbers(void **state)
{
    json_t *node;
    char *text;
    (void)state;

    assert_int_equal(store_context_parse("{\"a\":5,\"b\":[1.0,2.5,{\"c\":1e3}],\"d\":1e30}", &node, NULL), ST_OK);
    text = json_dumps(node, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"a\":5,\"b\":[1,2.5,{\"c\":1000}],\"d\":1e30}");
    free(text);
    json_decref(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_an_empty_object),       cmocka_unit_test(test_D29_numbers_are_doubles),
        cmocka_unit_test(test_key_order_is_free_everywhere),     cmocka_unit_test(test_strings_are_bytes),
        cmocka_unit_test(test_what_is_no_object_equals_nothing), cmocka_unit_test(test_deep_nesting_is_bounded),
        cmocka_unit_test(test_canonical_form_has_whole_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
