/*
 * lister_http_test.c - the lister's HTTP server: requests as they may come, and their sizes.
 */
#include "tests/harness/http_world.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- requests ---- */

static void test_answers_and_keeps_the_connection(void **state)
{
    struct world *w = *state;
    struct reply r;
    int fd;

    start(w);
    fd = dial_world(w);
    get(fd, "/a%20b/%C3%A9?x=1&y=a+b%2B%26&empty&=v", "X-Test: yes\r\n");
    expect(fd, 200, "Cache-Control: no-store", "GET /a b/\xC3\xA9\nx=1\ny=a b+&\nempty=\n=v\ncaller=anonymous\n");
    get(fd, "/", "");
    expect(fd, 200, "X-Content-Type-Options: nosniff", "x-test=\n");
    get(fd, "/", "");
    expect(fd, 200, "Link: </next>; rel=\"next\"\r\n", "GET /\n");
    get(fd, "/", "");
    expect(fd, 200, "Server-Timing: sql;dur=1.5\r\n", NULL);
    say(fd, "HEAD /h HTTP/1.1\r\nHost: localhost\r\n\r\n");
    r = reply_of(fd, true);
    assert_int_equal(r.status, 200);
    assert_non_null(strcasestr(r.head, "Content-Length: 52"));
    reply_free(&r);
    say(fd, "POST /p HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
    expect(fd, 200, NULL, "body=hello\n");
    say(fd,
        "POST /p HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n");
    expect(fd, 200, NULL, "body=hello\n");
    get(fd, "/nothing", "");
    expect(fd, 500, "application/problem+json", "internal_error");
    get(fd, "/fail", "");
    r = next_reply(fd);
    assert_int_equal(r.status, 500);
    assert_null(strstr(r.body, "secret"));
    reply_free(&r);
    close(fd);
    assert_int_equal(atomic_load(&began), 4);
}

static void test_pipelined_requests_are_answered_in_order(void **state)
{
    struct world *w = *state;
    struct buf out;
    char want[32];
    int fd;

    start(w);
    fd = dial_world(w);
    buf_init(&out, 1 << 20);
    for (int i = 0; i < 50; i++)
        buf_addf(&out, "GET /?n=%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i);
    assert_true(try_write(fd, out.data, out.len));
    for (int i = 0; i < 50; i++) {
        snprintf(want, sizeof want, "\nn=%d\n", i);
        expect(fd, 200, NULL, want);
    }
    buf_release(&out);
    close(fd);
}

static void test_bad_encodings_are_refused(void **state)
{
    static const char *const targets[] = {"/%ff",    "/?a=%ff",       "/?a=%00", "/a%00b",   "/?%c0%af=1", "/?a=%",
                                          "/?a=%zz", "/?a=%ed%a0%80", "/\xff",   "/?a=\x80", "/?a=%1"};
    struct world *w = *state;
    struct reply r;

    start(w);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        int fd = dial_world(w);

        get(fd, targets[i], "");
        r = next_reply(fd);
        if (r.status != 400)
            fail_msg("%s: %s", targets[i], r.head);
        assert_non_null(strcasestr(r.head, "application/problem+json"));
        assert_non_null(strstr(r.body, "\"type\":\"urn:relata:problem:bad_request\""));
        reply_free(&r);
        get(fd, "/", ""); /* the connection goes on */
        expect(fd, 200, NULL, NULL);
        close(fd);
    }
    assert_int_equal(atomic_load(&ran), (int)(sizeof targets / sizeof *targets));
}

static void test_doubled_headers_are_refused(void **state)
{
    struct world *w = *state;

    start(w);
    ask(w, "/", "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", 400, "given twice");
    ask(w, "/", "Host: evil\r\n", 400, NULL);
    ask(w, "/", "Content-Length: 0\r\nContent-Length: 3\r\n", 400, NULL);
    assert_int_equal(atomic_load(&ran), 0);
}

static void test_methods(void **state)
{
    static const char *const methods[] = {"PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "BREW"};
    struct world *w = *state;
    char text[128];

    start(w);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        int fd = dial_world(w);

        snprintf(text, sizeof text, "%s / HTTP/1.1\r\nHost: localhost\r\n\r\n", methods[i]);
        say(fd, text);
        expect(fd, 405, "Allow: GET, HEAD, POST\r\n", "method_not_allowed");
        close(fd);
    }
    assert_int_equal(atomic_load(&ran), 0);
}

static void test_cors(void **state)
{
    struct world *w = *state;
    char origin[] = "https://console.example";
    struct reply r;
    int fd;

    w->cfg.cors_origin = origin;
    start(w);
    fd = dial_world(w);
    say(fd, "OPTIONS /x HTTP/1.1\r\nHost: localhost\r\nOrigin: https://console.example\r\n"
            "Access-Control-Request-Method: GET\r\n\r\n");
    r = next_reply(fd);
    assert_int_equal(r.status, 204);
    assert_non_null(strcasestr(r.head, "Access-Control-Allow-Origin: https://console.example\r\n"));
    assert_non_null(strcasestr(r.head, "Access-Control-Allow-Headers: Authorization"));
    reply_free(&r);
    get(fd, "/", "Origin: https://console.example\r\n");
    expect(fd, 200, "Access-Control-Allow-Origin: https://console.example\r\n", NULL);
    get(fd, "/", "Origin: https://console.example.evil\r\n");
    r = next_reply(fd);
    assert_int_equal(r.status, 200);
    assert_null(strcasestr(r.head, "Access-Control-Allow"));
    assert_non_null(strcasestr(r.head, "Vary: Origin"));
    reply_free(&r);
    close(fd);
}

static void test_traceparent(void **state)
{
#define GOOD "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    static const char *const bad[] = {"",
                                      "00",
                                      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
                                      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                                      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                                      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                                      "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
                                      "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
                                      "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"};
    struct world *w = *state;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (traceparent_valid(bad[i]))
            fail_msg("%s", bad[i]);
    }
    assert_true(traceparent_valid(GOOD));
    assert_true(traceparent_valid("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
    start(w);
    ask(w, "/", "traceparent: " GOOD "\r\n", 200, "traceparent=" GOOD "\n");
    ask(w, "/", "traceparent: nonsense\r\n", 200, "traceparent=\n");
    ask(w, "/", "traceparent: " GOOD "\r\ntraceparent: " GOOD "\r\n", 200, "traceparent=\n");
#undef GOOD
}

/* ---- sizes ---- */

static char *filler(size_t n)
{
    char *text = malloc(n + 32);

    assert_non_null(text);
    memcpy(text, "X-Fill: ", 8);
    memset(text + 8, 'x', n);
    memcpy(text + 8 + n, "\r\n", 3);
    return text;
}

/* The longest request that is taken, by cookies too (of which the library makes a copy), gets the longest answer. */
static void test_long_headers_both_ways(void **state)
{
    struct world *w = *state;
    char *text = filler(15900), link[HEADER_VALUE_MAX - 100];
    int fd;

    memset(link, 'x', sizeof link - 1);
    link[sizeof link - 1] = '\0';
    start(w);
    fd = dial_world(w);
    get(fd, "/link", text);
    expect(fd, 200, link, NULL);
    memcpy(text, "Cookie: a=", 10);
    get(fd, "/link", text);
    expect(fd, 200, link, NULL);
    close(fd);
    free(text);
}

static void test_headers_are_bounded(void **state)
{
    struct world *w = *state;
    char *text;

    start(w);
    text = filler(15000);
    ask(w, "/", text, 200, NULL);
    free(text);
    text = filler(17000);
    ask(w, "/", text, 431, "headers_too_large");
    free(text);

    assert_int_equal(atomic_load(&ran), 1);
    ask(w, "/", "", 200, NULL);
}

/* What the library refuses before we see it: its own answer, in HTML, and the end of the connection. A client that
 * sends far more than is read may find the connection reset before it has the answer. */
static void expect_of_library(const struct world *w, const struct buf *request, int status, bool maybe_none)
{
    int fd = dial_world(w);
    struct reply r;

    assert_true(buf_ok(request));
    assert_true(try_write(fd, buf_str(request), request->len) || maybe_none);
    r = next_reply(fd);
    if (!(maybe_none && r.status == 0)) {
        assert_int_equal(r.status, status);
        assert_non_null(strcasestr(r.head, "\r\nConnection: close\r\n"));
        assert_null(strcasestr(r.head, "\r\nContent-Type:"));
        assert_non_null(strstr(r.body, "<html>"));
        assert_int_equal(next_byte(fd), -1);
    }
    reply_free(&r);
    close(fd);
}

static void test_what_the_library_refuses_itself(void **state)
{
    struct world *w = *state;
    struct buf b;

    buf_init(&b, 2 << 20);
    start(w);
    /* Beyond its buffer: headers, a request line, header lines. */
    buf_addf(&b, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %048000d\r\n\r\n", 1);
    expect_of_library(w, &b, 431, false);
    buf_clear(&b);
    buf_addf(&b, "GET /?a=%048000d HTTP/1.1\r\nHost: localhost\r\n\r\n", 1);
    expect_of_library(w, &b, 414, false);
    buf_clear(&b);
    buf_adds(&b, "GET / HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 1000; i++)
        buf_addf(&b, "X-%d: a\r\n", i);
    buf_adds(&b, "\r\n");
    expect_of_library(w, &b, 431, false);
    buf_clear(&b);
    buf_addf(&b, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %01000000d\r\n\r\n", 1);
    expect_of_library(w, &b, 431, true);
    assert_int_equal(atomic_load(&ran), 0);
    buf_release(&b);
    ask(w, "/", "", 200, NULL);
}

/* Short lines and parameters are taken as far as the documentation says. */
static void test_many_headers_and_parameters(void **state)
{
    struct world *w = *state;
    struct buf b;
    int fd;

    start(w);
    for (int params = 0; params < 2; params++) {
        buf_init(&b, 1 << 20);
        fd = dial_world(w);
        buf_adds(&b, "GET /open?z=1");
        for (int i = 0; params && i < 300; i++)
            buf_addf(&b, "&a%d=%040d", i, i);
        buf_adds(&b, " HTTP/1.1\r\nHost: localhost\r\n");
        for (int i = 0; !params && i < 300; i++)
            buf_addf(&b, "X-%d: %040d\r\n", i, i);
        buf_adds(&b, "\r\n");
        assert_true(b.len < HEADERS_MAX);
        say(fd, buf_str(&b));
        expect(fd, 200, NULL, "z=1");
        close(fd);
        buf_release(&b);
    }
}

static void test_bodies_are_bounded(void **state)
{
    struct world *w = *state;
    char *chunk = calloc(1, 8192);
    int fd;

    start(w);
    memset(chunk, 'x', 8191);
    fd = dial_world(w);
    say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4097\r\nExpect: 100-continue\r\n\r\n");
    expect(fd, 413, "Connection: close", "body_too_large");
    close(fd);
    fd = dial_world(w);
    say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n");
    {
        struct reply r = next_reply(fd);

        assert_true(r.status == 413 || r.status == 400);
        reply_free(&r);
    }
    close(fd);
    fd = dial_world(w);
    say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1fff\r\n");
    say(fd, chunk);
    say(fd, "\r\n0\r\n\r\n");
    expect(fd, 413, NULL, "body_too_large");
    close(fd);
    free(chunk);
    assert_int_equal(atomic_load(&ran), 0);
}

static void test_large_answers(void **state)
{
    struct world *w = *state;
    struct reply r;
    int fd;

    start(w);
    fd = dial_world(w);
    for (int i = 0; i < 3; i++) {
        get(fd, "/big", "");
        r = next_reply(fd);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.len, 4 << 20);
        reply_free(&r);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        HTTP_TEST(test_answers_and_keeps_the_connection),
        HTTP_TEST(test_pipelined_requests_are_answered_in_order),
        HTTP_TEST(test_bad_encodings_are_refused),
        HTTP_TEST(test_doubled_headers_are_refused),
        HTTP_TEST(test_methods),
        HTTP_TEST(test_cors),
        HTTP_TEST(test_traceparent),
        HTTP_TEST(test_long_headers_both_ways),
        HTTP_TEST(test_headers_are_bounded),
        HTTP_TEST(test_what_the_library_refuses_itself),
        HTTP_TEST(test_many_headers_and_parameters),
        HTTP_TEST(test_bodies_are_bounded),
        HTTP_TEST(test_large_answers),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
