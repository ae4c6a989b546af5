/* buf_test.c - buffers, statuses, UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

static void test_appends_and_terminates(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    assert_string_equal(buf_str(&b), "");
    buf_adds(&b, "one");
    buf_addc(&b, ' ');
    buf_addf(&b, "%d-%s", 2, "two");
    buf_add(&b, "\0x", 2);
    assert_true(buf_ok(&b));
    assert_int_equal(b.len, 11);
    assert_memory_equal(b.data, "one 2-two\0x", 12);
    buf_clear(&b);
    assert_string_equal(buf_str(&b), "");
    buf_release(&b);
    buf_release(&b);
}

static void test_maximum_is_never_passed(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 10);
    buf_adds(&b, "0123456789");
    assert_true(buf_ok(&b));
    buf_addc(&b, 'x');
    assert_false(buf_ok(&b));
    assert_string_equal(buf_str(&b), "0123456789");
    buf_add(&b, "", 0);
    assert_false(buf_ok(&b));
    buf_clear(&b);
    buf_addf(&b, "%s", "01234567890");
    assert_false(buf_ok(&b));
    assert_string_equal(buf_str(&b), "");
    buf_clear(&b);
    buf_addf(&b, "%s", "9876543210");
    assert_true(buf_ok(&b));
    assert_string_equal(buf_str(&b), "9876543210");
    assert_false(buf_reserve(&b, 1));
    assert_false(buf_reserve(&b, SIZE_MAX));
    assert_string_equal(buf_str(&b), "9876543210");
    buf_release(&b);
}

static void test_refused_format_keeps_content(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 100);
    buf_adds(&b, "kept");
    buf_addf(&b, "%200d", 1);
    assert_false(buf_ok(&b));
    assert_string_equal(buf_str(&b), "kept");
    buf_release(&b);
}

static void test_zeroed_buffer_takes_nothing(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_addc(&b, 'x');
    assert_false(buf_ok(&b));
    buf_clear(&b);
    buf_addf(&b, "%s", "");
    assert_true(buf_ok(&b));
    buf_release(&b);
}

static void test_grows_to_any_size(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 100000; i++)
        buf_addf(&b, "%d,", i % 10);
    assert_true(buf_ok(&b));
    assert_int_equal(b.len, 200000);
    assert_memory_equal(b.data + 199980, "0,1,2,3,4,5,6,7,8,9,", 21);
    buf_release(&b);
}

static void test_err_is_one_line_cut_at_a_character(void **state)
{
    struct err err = {0};
    char longer[1100];

    (void)state;
    assert_int_equal(err_set(&err, ST_DENIED, "28P01", "first\nsecond\r\n"), ST_DENIED);
    assert_string_equal(err.text, "first second");
    assert_string_equal(err.code, "28P01");
    err.retry_after_ms = 5;
    assert_int_equal(err_prefix(&err, "reading %s", "slot"), ST_DENIED);
    assert_string_equal(err.text, "reading slot: first second");
    assert_string_equal(err.code, "28P01");
    assert_int_equal(err.retry_after_ms, 5);

    memset(longer, 'a', sizeof longer);
    memcpy(longer + 1021, "\xE2\x82\xAC", 3); /* a character over the limit of 1,023 bytes */
    longer[sizeof longer - 1] = '\0';
    err_set(&err, ST_INVALID, NULL, "%s", longer);
    assert_int_equal(strlen(err.text), 1021);
    assert_string_equal(err.code, "");
    assert_int_equal(err.retry_after_ms, 0);
}

static void test_err_may_be_made_of_itself_or_null(void **state)
{
    struct err err = {0};

    (void)state;
    err_set(&err, ST_INVALID, "code", "inner");
    err_set(&err, ST_CONFIG, err.code, "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
    assert_string_equal(err.code, "code");
    assert_int_equal(err_set(NULL, ST_RETRY, NULL, "x"), ST_RETRY);
}

static void test_status_names_and_classes(void **state)
{
    (void)state;
    for (int st = ST_OK; st <= ST_FATAL; st++) {
        assert_string_not_equal(status_name((enum status)st), "invalid_status");
        assert_int_equal(status_is_retryable((enum status)st), st >= ST_RETRY && st <= ST_DEADLINE);
    }
    assert_string_equal(status_name((enum status)99), "invalid_status");
}

static void test_utf8_accepts_and_refuses(void **state)
{
    static const struct {
        const char *s;
        size_t len, n;
        uint32_t cp;
    } cases[] = {
        {"a", 1, 1, 'a'},
        {"\0", 1, 1, 0},
        {"\xC3\xA9", 2, 2, 0xE9},
        {"\xE2\x82\xAC", 3, 3, 0x20AC},
        {"\xF0\x9F\x98\x80", 4, 4, 0x1F600},
        {"\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF},
        {"\xF4\x90\x80\x80", 4, 0, 0}, /* above U+10FFFF */
        {"\xC0\x80", 2, 0, 0},         /* overlong */
        {"\xE0\x80\x80", 3, 0, 0},
        {"\xF0\x80\x80\x80", 4, 0, 0},
        {"\xED\xA0\x80", 3, 0, 0}, /* surrogate */
        {"\xC3", 1, 0, 0},
        {"\xE2\x82", 2, 0, 0},
        {"\xC3(", 2, 0, 0},
        {"\x80", 1, 0, 0},
        {"\xFF", 1, 0, 0},
        {"", 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t cp = 0;

        assert_int_equal(utf8_next(cases[i].s, cases[i].len, &cp), cases[i].n);
        if (cases[i].n)
            assert_int_equal(cp, cases[i].cp);
    }
}

static void test_utf8_cut(void **state)
{
    static const char s[] = "ab\xE2\x82\xAC"
                            "c";

    (void)state;
    assert_int_equal(utf8_cut(s, 6, 6), 6);
    assert_int_equal(utf8_cut(s, 6, 5), 5);
    assert_int_equal(utf8_cut(s, 6, 4), 2);
    assert_int_equal(utf8_cut(s, 6, 3), 2);
    assert_int_equal(utf8_cut(s, 6, 2), 2);
    assert_int_equal(utf8_cut(s, 6, 0), 0);
    assert_int_equal(utf8_cut("\x80\x80\x80\x80\x80\x80", 6, 5), 5); /* no UTF-8: any place will do */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends_and_terminates),
        cmocka_unit_test(test_maximum_is_never_passed),
        cmocka_unit_test(test_refused_format_keeps_content),
        cmocka_unit_test(test_zeroed_buffer_takes_nothing),
        cmocka_unit_test(test_grows_to_any_size),
        cmocka_unit_test(test_err_is_one_line_cut_at_a_character),
        cmocka_unit_test(test_err_may_be_made_of_itself_or_null),
        cmocka_unit_test(test_status_names_and_classes),
        cmocka_unit_test(test_utf8_accepts_and_refuses),
        cmocka_unit_test(test_utf8_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
