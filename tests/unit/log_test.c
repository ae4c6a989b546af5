/* log_test.c - lines as they leave on standard error. */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/log.h"

static int saved_fd = -1;
static FILE *sink;
static struct buf lines;

/* Standard error goes to a file until captured() is called. */
static void capture(void)
{
    sink = tmpfile();
    assert_non_null(sink);
    saved_fd = dup(STDERR_FILENO);
    dup2(fileno(sink), STDERR_FILENO);
}

static const char *captured(void)
{
    char chunk[4096];
    size_t n;

    dup2(saved_fd, STDERR_FILENO);
    close(saved_fd);
    rewind(sink);
    lines.max = 1 << 24;
    buf_clear(&lines);
    while ((n = fread(chunk, 1, sizeof chunk, sink)) > 0)
        buf_add(&lines, chunk, n);
    fclose(sink);
    return buf_str(&lines);
}

/* What follows the time stamp, which is checked for its form. */
static const char *after_time(const char *line)
{
    int y, mo, d, h, mi, s, ms, n = 0;

    assert_int_equal(sscanf(line, "ts=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &y, &mo, &d, &h, &mi, &s, &ms, &n), 7);
    assert_int_equal(n, 28);
    return line + n;
}

static void test_logfmt_line(void **state)
{
    (void)state;
    log_init("outbox-relay", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    capture();
    log_info("slot created", "slot", "relata", "lsn", "0/16B3748", NULL);
    assert_string_equal(after_time(captured()),
                        "level=info program=outbox-relay msg=\"slot created\" slot=relata lsn=0/16B3748\n");
}

static void test_levels(void **state)
{
    (void)state;
    log_init("p", LOG_LVL_WARN, LOG_FMT_LOGFMT);
    capture();
    log_debug("no", NULL);
    log_info("no", "k", "v", NULL);
    log_warn("yes", NULL);
    assert_string_equal(after_time(captured()), "level=warn program=p msg=yes\n");
}

static void test_values_are_escaped(void **state)
{
    (void)state;
    log_init("p", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    capture();
    log_info("m", "a", "", "b", "x=y", "c", "say \"hi\"\\", "d", "l1\nl2\r\tx", "e", "\x1b[1m", "f",
             "a\xFF"
             "b\xC3\xA9",
             "g", "\x7F\xC2\x9B", NULL);
    assert_string_equal(after_time(captured()),
                        "level=info program=p msg=m a=\"\" b=\"x=y\" c=\"say \\\"hi\\\"\\\\\" d=\"l1\\nl2\\r\\tx\" "
                        "e=\"\\u001b[1m\" f=a\xEF\xBF\xBD"
                        "b\xC3\xA9 g=\xEF\xBF\xBD\xEF\xBF\xBD\n");
}

static void test_long_value_is_cut_and_says_so(void **state)
{
    char value[5000];
    const char *line;

    (void)state;
    memset(value, 'v', sizeof value);
    value[sizeof value - 1] = '\0';
    memcpy(value + 2047, "\xC3\xA9", 2);
    log_init("p", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    capture();
    log_info("m", "k", value, "next", "1", NULL);
    line = strstr(captured(), " k=");
    assert_non_null(line);
    assert_int_equal(strspn(line + 3, "v"), 2047);
    assert_string_equal(line + 3 + 2047, "... next=1\n");
}

static void test_null_value_ends_the_list(void **state)
{
    (void)state;
    log_init("p", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    capture();
    log_info("m", "k", NULL, NULL);
    assert_string_equal(after_time(captured()), "level=info program=p msg=m k=\"\"\n");
}

static void test_json_line(void **state)
{
    json_error_t why;
    json_t *root;
    const char *line;

    (void)state;
    log_init("p", LOG_LVL_INFO, LOG_FMT_JSON);
    capture();
    log_error("it \"broke\"", "k", "a\nb\x01\xFF", NULL);
    line = captured();
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    root = json_loads(line, JSON_REJECT_DUPLICATES, &why);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "level")), "error");
    assert_string_equal(json_string_value(json_object_get(root, "program")), "p");
    assert_string_equal(json_string_value(json_object_get(root, "msg")), "it \"broke\"");
    assert_string_equal(json_string_value(json_object_get(root, "k")), "a\nb\x01\xEF\xBF\xBD");
    assert_int_equal(json_string_length(json_object_get(root, "ts")), 24);
    json_decref(root);
}

static void test_error_pairs_come_last(void **state)
{
    struct err err = {0};

    (void)state;
    err_set(&err, ST_DENIED, "28P01", "no such user");
    log_init("p", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    errno = 77;
    capture();
    log_err(LOG_LVL_ERROR, "cannot connect", &err, "host", "db", NULL);
    assert_string_equal(after_time(captured()), "level=error program=p msg=\"cannot connect\" host=db status=denied "
                                                "code=28P01 error=\"no such user\"\n");
    capture();
    log_err(LOG_LVL_ERROR, "odd", NULL, NULL);
    errno = 77;
    log_info("keeps errno", NULL);
    assert_int_equal(errno, 77);
    assert_non_null(strstr(captured(), "msg=odd"));
    assert_null(strstr(buf_str(&lines), "error="));
}

static void *write_many(void *arg)
{
    for (int i = 0; i < 500; i++)
        log_info("from a thread", "k", arg, NULL);
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state)
{
    static char values[4][300];
    pthread_t threads[4];
    char *line, *save = NULL;
    int n = 0;

    (void)state;
    log_init("p", LOG_LVL_INFO, LOG_FMT_LOGFMT);
    capture();
    for (int i = 0; i < 4; i++) {
        memset(values[i], 'a' + i, sizeof values[i] - 1);
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, values[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    captured();
    for (line = strtok_r(lines.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *value = strstr(line, " k=");
        char letter[2] = {0};

        assert_non_null(value);
        letter[0] = value[3];
        assert_int_equal(strspn(value + 3, letter), 299);
        assert_int_equal(strlen(value + 3), 299);
        n++;
    }
    assert_int_equal(n, 2000);
}

static int release(void **state)
{
    (void)state;
    buf_release(&lines);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logfmt_line),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_values_are_escaped),
        cmocka_unit_test(test_long_value_is_cut_and_says_so),
        cmocka_unit_test(test_null_value_ends_the_list),
        cmocka_unit_test(test_json_line),
        cmocka_unit_test(test_error_pairs_come_last),
        cmocka_unit_test(test_lines_of_threads_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, release);
}
