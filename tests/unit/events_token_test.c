/*
 * events_token_test.c - strings as NATS subject tokens: nothing that NATS gives a meaning to, and no two alike.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/events/events.h"

static void expect(const char *in, const char *out)
{
    struct buf b;
    buf_init(&b, 4096);
    events_token(in, &b);
    assert_true(buf_ok(&b));
    assert_string_equal(buf_str(&b), out);
    buf_release(&b);
}

static void test_plain_names_stay(void **state)
{
    (void)state;
    expect("resource_instance", "resource_instance");
    expect("Team-42", "Team-42");
    expect("", "");
}

static void test_what_nats_would_read_is_escaped(void **state)
{
    (void)state;
    expect("a.b", "a%2Eb");
    expect("*", "%2A");
    expect(">", "%3E");
    expect("a b", "a%20b");
    expect("caf\xc3\xa9", "caf%C3%A9");
}

static void test_W40_different_strings_never_share_a_token(void **state)
{
    (void)state;
    /* The escape sign itself is escaped, so that no literal can look like an escape. */
    expect("a%2Eb", "a%252Eb");
    expect("a.b", "a%2Eb");
    expect("%", "%25");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_names_stay),
        cmocka_unit_test(test_what_nats_would_read_is_escaped),
        cmocka_unit_test(test_W40_different_strings_never_share_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
