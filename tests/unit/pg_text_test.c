/* Array literals, COPY lines, DSNs and SQLSTATE classes of common/pg. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/pg/dsn.h"
#include "common/pg/internal.h"

static void test_array_quotes_every_element(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1024);
    pg_array_begin(&b);
    pg_array_add(&b, "plain");
    pg_array_add(&b, "");
    pg_array_add(&b, NULL);
    pg_array_add(&b, "NULL");
    pg_array_add(&b, "a,b {c} \"d\" \\e");
    pg_array_add(&b, "\xc3\xa9\n");
    pg_array_end(&b);
    assert_true(buf_ok(&b));
    assert_string_equal(buf_str(&b), "{\"plain\",\"\",NULL,\"NULL\",\"a,b {c} \\\"d\\\" \\\\e\",\"\xc3\xa9\n\"}");

    pg_array_begin(&b); /* starts anew */
    pg_array_add_int(&b, INT64_MIN);
    pg_array_add_int(&b, 0);
    pg_array_end(&b);
    assert_string_equal(buf_str(&b), "{-9223372036854775808,0}");

    pg_array_begin(&b);
    pg_array_end(&b);
    assert_string_equal(buf_str(&b), "{}");
    buf_release(&b);
}

static void test_failed_buffer_is_no_parameter(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 8);
    pg_array_begin(&b);
    pg_array_add(&b, "longer than eight");
    pg_array_end(&b);
    assert_false(buf_ok(&b));
    struct pg_param p = pg_p_buf(&b);
    assert_non_null(p.data); /* never SQL NULL */
    buf_release(&b);
}

static void test_int_parameter(void **state)
{
    (void)state;
    char scratch[24];
    assert_string_equal(pg_p_int(INT64_MIN, scratch).data, "-9223372036854775808");
    assert_string_equal(pg_p_int(INT64_MAX, scratch).data, "9223372036854775807");
    assert_int_equal(pg_p_int(-7, scratch).len, 2);
}

static void split(const char *text, int max, const char *const *want, int nwant)
{
    char line[256];
    char *fields[8];
    size_t len = strlen(text);
    memcpy(line, text, len + 1);
    assert_int_equal(pg_copy_split(line, len, fields, max), nwant);
    for (int i = 0; i < nwant && i < max; i++) {
        if (!want[i])
            assert_null(fields[i]);
        else
            assert_string_equal(fields[i], want[i]);
    }
}

static void test_copy_split(void **state)
{
    (void)state;
    split("a\tb\tc", 3, (const char *[]){"a", "b", "c"}, 3);
    split("", 3, (const char *[]){""}, 1);
    split("\t", 3, (const char *[]){"", ""}, 2);
    split("\\N\tx\t\\N", 3, (const char *[]){NULL, "x", NULL}, 3);
    split("\\\\N\t\\\\\t\\t\\n\\r\\b\\f\\v", 3, (const char *[]){"\\N", "\\", "\t\n\r\b\f\v"}, 3);
    split("\\Nx\ta", 2, (const char *[]){"Nx", "a"}, 2);               /* \N only as the whole field */
    split("end\\", 1, (const char *[]){"end\\"}, 1);                   /* a lone backslash at the end stays */
    split("a\tb\tc\td", 2, (const char *[]){"a", "b", NULL, NULL}, 4); /* more fields than wanted are counted */
}

static void test_copy_escape_is_read_back(void **state)
{
    (void)state;
    static const char *const values[] = {"plain",       "",    "tab\there", "line\nbreak\r",
                                         "back\\slash", "\\N", "\\.",       "\xe2\x82\xac \x01\x7f"};
    const int n = (int)(sizeof values / sizeof *values);
    struct buf b;
    buf_init(&b, 1024);
    for (int i = 0; i < n; i++) {
        pg_copy_escape(&b, values[i]);
        buf_addc(&b, '\t');
    }
    pg_copy_escape(&b, NULL);
    assert_null(strchr(buf_str(&b), '\n'));
    char *fields[16];
    assert_int_equal(pg_copy_split(b.data, b.len, fields, 16), n + 1);
    for (int i = 0; i < n; i++)
        assert_string_equal(fields[i], values[i]);
    assert_null(fields[n]);
    buf_release(&b);
}

static void redacts(const char *dsn, const char *want)
{
    struct buf b;
    buf_init(&b, 1024);
    buf_adds(&b, "old");
    pg_dsn_redact(dsn, &b);
    assert_string_equal(buf_str(&b), want);
    buf_release(&b);
}

static void test_redact_uri_and_keywords(void **state)
{
    (void)state;
    redacts("postgresql://me:s3cret@db.example:6432/app?sslmode=verify-full",
            "user=me password=*** dbname=app host=db.example port=6432 sslmode=verify-full");
    redacts("host=/var/run/pg user=me password='s3 cr\\'et' sslpassword=key application_name='my app'",
            "user=me password=*** host=/var/run/pg application_name='my app' sslpassword=***");
    redacts("postgres://me@a,b/app?password=s3cret", "user=me password=*** dbname=app host=a,b port=,");
    redacts("inventory", "dbname=inventory");
    redacts("", "");
    redacts("host=x password=se cret", "(unreadable DSN)");
    redacts(NULL, "");
}

static void test_bad_dsn_shows_no_password(void **state)
{
    (void)state;
    struct err err;
    assert_int_equal(pg_dsn_check("host=x password=se cret", &err), ST_CONFIG);
    assert_null(strstr(err.text, "cret"));
    assert_non_null(strstr(err.text, "bad Postgres DSN: missing \"="));
    assert_int_equal(pg_dsn_check("postgresql://me:s3cret%zz@db/app", &err), ST_CONFIG);
    assert_null(strstr(err.text, "s3cret"));
    assert_int_equal(pg_dsn_check("hots=x", &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "hots")); /* nothing secret here: say which */
    assert_int_equal(pg_dsn_check("host=x", &err), ST_OK);
    assert_int_equal(pg_dsn_check("inventory", &err), ST_OK); /* a database's name */
    assert_int_equal(pg_dsn_check("", &err), ST_OK);
    assert_int_equal(pg_dsn_check("host=a,b port=,2", &err), ST_OK);
    static const char *const bad[] = {
        "bogus://x",      "mysql://me:s3cret@db/app", "host=a,b port=1,2,3", "host=x port=0",
        "host=x port=1x", "host=x port=65536",        "host=x sslmode=req",  "host=x sslmode='verify-ca verify-full'"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(pg_dsn_check(bad[i], &err), ST_CONFIG);
        assert_null(strstr(err.text, "s3cret"));
    }
}

static void test_hosts_of_a_dsn(void **state)
{
    (void)state;
    struct pg_hosts h;
    struct err err;
    assert_int_equal(pg_hosts_parse("inventory", &h, &err), ST_OK);
    assert_int_equal(h.n, 1);
    assert_null(h.items[0].host);
    pg_hosts_release(&h);
    assert_int_equal(pg_hosts_parse("postgresql://u@a:1,b:2/x?connect_timeout=3", &h, &err), ST_OK);
    assert_int_equal(h.n, 2);
    assert_string_equal(h.items[1].host, "b");
    assert_string_equal(h.items[1].port, "2");
    assert_null(h.items[1].session_attrs);
    assert_int_equal(h.connect_ms, 3000);
    pg_hosts_release(&h);
    assert_int_equal(pg_hosts_parse("host=a,b,/run/pg port=7 target_session_attrs=prefer-standby", &h, &err), ST_OK);
    assert_int_equal(h.n, 6);
    assert_string_equal(h.items[2].host, "/run/pg");
    assert_string_equal(h.items[4].port, "7");
    assert_string_equal(h.items[2].session_attrs, "standby");
    assert_string_equal(h.items[3].session_attrs, "any");
    pg_hosts_release(&h);
    assert_int_equal(pg_hosts_parse("host=a,b,c port=1,2", &h, &err), ST_CONFIG);
    assert_int_equal(pg_hosts_parse("host=a,b hostaddr=10.0.0.1", &h, &err), ST_CONFIG);
    assert_int_equal(pg_hosts_parse("host=a,b prot=1,2", &h, &err), ST_CONFIG);
}

static void test_sqlstate_classes(void **state)
{
    (void)state;
    static const struct {
        const char *code;
        enum status want;
    } cases[] = {
        {"40001", ST_RETRY},   {"40P01", ST_RETRY},   {"40003", ST_UNKNOWN}, {"53300", ST_RETRY},
        {"55P03", ST_RETRY},   {"57P03", ST_RETRY},   {"57P04", ST_MISSING}, {"25006", ST_RETRY},
        {"28P01", ST_DENIED},  {"28000", ST_DENIED},  {"42501", ST_DENIED},  {"3D000", ST_MISSING},
        {"3F000", ST_MISSING}, {"42P01", ST_MISSING}, {"42704", ST_MISSING}, {"42883", ST_MISSING},
        {"42703", ST_MISSING}, {"42601", ST_INVALID}, {"23505", ST_INVALID}, {"RL001", ST_INVALID},
        {"22021", ST_INVALID}, {"XX000", ST_FATAL},   {"", ST_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(pg_sqlstate_status(cases[i].code), cases[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_array_quotes_every_element),
        cmocka_unit_test(test_failed_buffer_is_no_parameter),
        cmocka_unit_test(test_int_parameter),
        cmocka_unit_test(test_copy_split),
        cmocka_unit_test(test_copy_escape_is_read_back),
        cmocka_unit_test(test_redact_uri_and_keywords),
        cmocka_unit_test(test_bad_dsn_shows_no_password),
        cmocka_unit_test(test_hosts_of_a_dsn),
        cmocka_unit_test(test_sqlstate_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
