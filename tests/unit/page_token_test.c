/* page_token_test.c - tokens open for the question they were made for, and for nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "inventory-lister/pages/page_token.h"

#define A_KEY "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define B_KEY "F0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFFf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
#define HOUR 3600000

static char path[64];
static struct err err;

static struct bytes of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

/* Whole files are put in place by rename, so that a reader sees one or the other. */
static void write_keys(const char *text)
{
    char temp[80];
    FILE *f;

    snprintf(temp, sizeof temp, "%s.new", path);
    f = fopen(temp, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(temp, path), 0);
}

static struct token_keys *keys_of(const char *text, int64_t lifetime_ms)
{
    struct token_keys *k = NULL;

    if (text)
        write_keys(text);
    err = (struct err){0};
    assert_int_equal(token_keys_new(&k, text ? path : NULL, lifetime_ms, &err), ST_OK);
    return k;
}

static const char *seal(struct token_keys *k, const char *question, size_t n, ...)
{
    static struct buf b;
    struct position p = {.n = n};
    va_list ap;

    if (b.max == 0)
        buf_init(&b, 20000);
    buf_clear(&b);
    va_start(ap, n);
    for (size_t i = 0; i < n; i++)
        p.values[i] = va_arg(ap, char *);
    va_end(ap);
    err = (struct err){0};
    assert_int_equal(token_seal(k, of(question), &p, &b, &err), ST_OK);
    return buf_str(&b);
}

static enum status open_with(struct token_keys *k, const char *question, const char *token, size_t n,
                             struct position *out)
{
    err = (struct err){0};
    return token_open(k, of(question), token, n, out, &err);
}

static bool opens(struct token_keys *k, const char *question, const char *token, size_t n)
{
    struct position p;
    enum status st = open_with(k, question, token, n, &p);

    if (st != ST_OK) {
        assert_int_equal(st, ST_INVALID);
        assert_int_equal(p.n, 0);
        /* One text for all: nothing is told about why. */
        assert_string_equal(err.text,
                            "the page token does not fit this request: it was made for another one, is damaged, "
                            "or too old; begin at the first page");
    }
    position_free(&p);
    return st == ST_OK;
}

static void test_values_come_back(void **state)
{
    struct token_keys *k = keys_of(A_KEY "\n", HOUR);
    struct position p;
    char *token = strdup(seal(k, "q", 4, "2026-01-31 00:00:00.123456", NULL, "", "\xF0\x9F\x98\x80 a\tb"));

    (void)state;
    assert_int_equal(open_with(k, "q", token, 4, &p), ST_OK);
    assert_int_equal(p.n, 4);
    assert_string_equal(p.values[0], "2026-01-31 00:00:00.123456");
    assert_null(p.values[1]);
    assert_string_equal(p.values[2], "");
    assert_string_equal(p.values[3], "\xF0\x9F\x98\x80 a\tb");
    position_free(&p);
    assert_true(strspn(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") == strlen(token));
    assert_null(strstr(token, "2026"));
    /* The same position twice gives different tokens. */
    assert_string_not_equal(token, seal(k, "q", 4, "2026-01-31 00:00:00.123456", NULL, "", "\xF0\x9F\x98\x80 a\tb"));
    free(token);
    token_keys_free(k);
}

static void test_L23_another_number_of_values(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR);
    char *token = strdup(seal(k, "q", 3, "a", "b", "c"));

    (void)state;
    assert_true(opens(k, "q", token, 3));
    assert_false(opens(k, "q", token, 2));
    assert_false(opens(k, "q", token, 4));
    assert_false(opens(k, "q", token, 0));
    assert_false(opens(k, "q", token, 99));
    assert_false(opens(k, "q", "", 3));
    assert_false(opens(k, "q", "e30", 1));
    assert_false(opens(k, "q", "eyJpZCI6MX0=", 1));
    free(token);
    token_keys_free(k);
}

static void test_L25_every_flipped_bit(void **state)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    struct token_keys *k = keys_of(A_KEY, HOUR);
    char *token = strdup(seal(k, "u1", 1, "42"));
    size_t len = strlen(token);

    (void)state;
    for (size_t i = 0; i < len; i++) {
        char was = token[i];
        size_t at = (size_t)(strchr(alphabet, was) - alphabet);

        for (int bit = 0; bit < 6; bit++) {
            token[i] = alphabet[at ^ (1U << bit)];
            assert_false(opens(k, "u1", token, 1));
        }
        token[i] = was;
    }
    assert_true(opens(k, "u1", token, 1));
    for (size_t cut = 0; cut < len; cut += 7) {
        char was = token[cut];

        token[cut] = '\0';
        assert_false(opens(k, "u1", token, 1));
        token[cut] = was;
    }
    free(token);
    token_keys_free(k);
}

static void test_L25_L26_another_question(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR), *other;
    char *token = strdup(seal(k, "u1|acme|name", 1, "42"));

    (void)state;
    assert_true(opens(k, "u1|acme|name", token, 1));
    assert_false(opens(k, "u2|acme|name", token, 1));
    assert_false(opens(k, "u1|evil|name", token, 1));
    assert_false(opens(k, "u1|acme|-created_at", token, 1));
    assert_false(opens(k, "", token, 1));
    other = keys_of(B_KEY, HOUR);
    assert_false(opens(other, "u1|acme|name", token, 1));
    token_keys_free(other);
    free(token);
    token_keys_free(k);
}

static void test_only_one_text_for_a_token(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR);
    struct buf b;

    (void)state;
    buf_init(&b, 20000);
    buf_adds(&b, seal(k, "q", 1, "42"));
    assert_true(opens(k, "q", buf_str(&b), 1));
    buf_addc(&b, '=');
    assert_false(opens(k, "q", buf_str(&b), 1));
    buf_clear(&b);
    buf_addf(&b, " %s", seal(k, "q", 1, "42"));
    assert_false(opens(k, "q", buf_str(&b), 1));
    buf_clear(&b);
    buf_addf(&b, "%sA", seal(k, "q", 1, "42"));
    assert_false(opens(k, "q", buf_str(&b), 1));
    for (int i = 0; i < 20000; i++)
        buf_addc(&b, 'A');
    assert_false(opens(k, "q", buf_str(&b), 1));
    buf_release(&b);
    token_keys_free(k);
}

static void test_length_tells_little(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR);
    char *long_value = calloc(1, 8002);
    size_t small = strlen(seal(k, "q", 2, "", "1"));
    struct buf b;
    struct position p = {.n = 1, .values = {long_value}};

    (void)state;
    memset(long_value, 'x', 400);
    assert_int_equal(strlen(seal(k, "q", 2, long_value, "1")), small);
    assert_int_equal(strlen(seal(k, "a much longer question", 5, "", NULL, "", "", "1")), small);
    memset(long_value, 'x', 8000);
    assert_int_equal(strlen(seal(k, "q", 1, long_value)), (8192 + 30) * 4 / 3 + 1);
    assert_true(opens(k, "q", seal(k, "q", 1, long_value), 1));
    long_value[8000] = 'x';
    buf_init(&b, 20000);
    assert_int_equal(token_seal(k, of("q"), &p, &b, &err), ST_TOO_BIG);
    assert_int_equal(b.len, 0);
    buf_release(&b);
    free(long_value);
    token_keys_free(k);
}

static void test_old_tokens(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR), *strict = keys_of(A_KEY, -1);
    char *token = strdup(seal(k, "q", 1, "42"));

    (void)state;
    assert_true(opens(k, "q", token, 1));
    assert_false(opens(strict, "q", token, 1)); /* older than it may be */
    free(token);
    token_keys_free(strict);
    token_keys_free(k);
}

static void test_keys_are_rotated(void **state)
{
    struct token_keys *k = keys_of(A_KEY "\n", HOUR);
    char *old = strdup(seal(k, "q", 1, "42")), *fresh;

    (void)state;
    assert_int_equal(token_keys_refresh(k, &err), ST_OK);
    assert_true(opens(k, "q", old, 1));

    write_keys(B_KEY "\r\n\n" A_KEY "\n");
    assert_int_equal(token_keys_refresh(k, &err), ST_OK);
    assert_true(opens(k, "q", old, 1));
    fresh = strdup(seal(k, "q", 1, "42"));
    assert_memory_not_equal(old, fresh, 2); /* sealed by another key */
    assert_true(opens(k, "q", fresh, 1));

    write_keys(B_KEY);
    assert_int_equal(token_keys_refresh(k, &err), ST_OK);
    assert_false(opens(k, "q", old, 1));
    assert_true(opens(k, "q", fresh, 1));
    free(old);
    free(fresh);
    token_keys_free(k);
}

static void test_a_bad_file_keeps_the_keys(void **state)
{
    struct token_keys *k = keys_of(A_KEY, HOUR);
    char *token = strdup(seal(k, "q", 1, "42"));

    (void)state;
    write_keys("not a key\n");
    assert_int_equal(token_keys_refresh(k, &err), ST_CONFIG);
    assert_true(opens(k, "q", token, 1));
    assert_int_equal(token_keys_refresh(k, &err), ST_CONFIG); /* said again, until it is mended */
    unlink(path);
    assert_int_equal(token_keys_refresh(k, &err), ST_CONFIG);
    assert_true(opens(k, "q", token, 1));
    write_keys(B_KEY "\n" A_KEY);
    assert_int_equal(token_keys_refresh(k, &err), ST_OK);
    assert_true(opens(k, "q", token, 1));
    free(token);
    token_keys_free(k);
}

static void test_files_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", " holds no key: make one by `openssl rand -hex 32`"},
        {"\n \n", " holds no key: make one by `openssl rand -hex 32`"},
        {"\nabc\n", ":2: not 64 hex digits: make one by `openssl rand -hex 32`"},
        {A_KEY "0", ":1: not 64 hex digits: make one by `openssl rand -hex 32`"},
        {"g" A_KEY, ":1: not 64 hex digits: make one by `openssl rand -hex 32`"},
        {A_KEY "\n" B_KEY "\n" A_KEY, ":3: more than two keys"},
    };
    struct token_keys *k;
    char *big = calloc(1, 5001);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[200];

        write_keys(cases[i].text);
        snprintf(want, sizeof want, "%s%s", path, cases[i].want);
        assert_int_equal(token_keys_new(&k, path, HOUR, &err), ST_CONFIG);
        assert_null(k);
        assert_string_equal(err.text, want);
        assert_null(strstr(err.text, "0001")); /* never the key */
    }
    memset(big, '\n', 5000);
    write_keys(big);
    assert_int_equal(token_keys_new(&k, path, HOUR, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "too large"));
    assert_int_equal(token_keys_new(&k, "/nonexistent/keys", HOUR, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "/nonexistent/keys: No such file"));
    free(big);
}

static void test_without_a_file(void **state)
{
    struct token_keys *a = keys_of(NULL, HOUR), *b = keys_of(NULL, HOUR);
    char *token = strdup(seal(a, "q", 1, "42"));

    (void)state;
    assert_true(opens(a, "q", token, 1));
    assert_false(opens(b, "q", token, 1));
    assert_int_equal(token_keys_refresh(a, &err), ST_OK);
    free(token);
    token_keys_free(a);
    token_keys_free(b);
    token_keys_free(NULL);
}

static int setup(void **state)
{
    int fd;

    (void)state;
    log_init("test", LOG_LVL_ERROR, LOG_FMT_LOGFMT);
    snprintf(path, sizeof path, "/tmp/relata-page-token-XXXXXX");
    fd = mkstemp(path);
    return fd >= 0 ? close(fd) : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_come_back),
        cmocka_unit_test(test_L23_another_number_of_values),
        cmocka_unit_test(test_L25_every_flipped_bit),
        cmocka_unit_test(test_L25_L26_another_question),
        cmocka_unit_test(test_only_one_text_for_a_token),
        cmocka_unit_test(test_length_tells_little),
        cmocka_unit_test(test_old_tokens),
        cmocka_unit_test(test_keys_are_rotated),
        cmocka_unit_test(test_a_bad_file_keeps_the_keys),
        cmocka_unit_test(test_files_refused),
        cmocka_unit_test(test_without_a_file),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
