/*
 * lister_http_test.c - the lister's HTTP server with a tiny application: bounds, overload, hang-ups, drain. No
 * services; clients are raw sockets, so that they may misbehave.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <openssl/sha.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inventory-lister/http/internal.h"
#include "tests/harness/lister_settings.h"
#include "tests/harness/metrics_lint.h"

#define PATIENCE_MS 10000

/* ---- the application ---- */

static atomic_bool released;                             /* /block returns */
static atomic_int blocked, cancelled, ran, began, ended; /* requests in /block, cancelled there, run at all; workers */

static void block(struct request *rq)
{
    atomic_fetch_add(&blocked, 1);
    while (!atomic_load(&released) && !atomic_load(&rq->cancelled))
        usleep(500);
    atomic_fetch_sub(&blocked, 1);
    if (atomic_load(&rq->cancelled)) {
        atomic_fetch_add(&cancelled, 1);
        return;
    }
    rq->status = 200;
    rq->content_type = "text/plain";
    buf_adds(&rq->answer, "released\n");
}

static void echo(struct request *rq)
{
    const char *x = request_header(rq, "x-test");

    rq->status = 200;
    rq->content_type = "text/plain";
    buf_addf(&rq->answer, "%s %s\n", rq->method, rq->path);
    for (size_t i = 0; i < rq->nparams; i++)
        buf_addf(&rq->answer, "%s=%s\n", rq->params[i].name, rq->params[i].value);
    buf_addf(&rq->answer, "caller=%s\ntraceparent=%s\nx-test=%s\nbody=%.*s\n", rq->caller ? rq->caller->name : "",
             rq->traceparent ? rq->traceparent : "", x ? x : "", (int)rq->body.len, rq->body.data);
    buf_adds(&rq->link, "</next>; rel=\"next\"");
    buf_adds(&rq->timing, "sql;dur=1.5");
}

static void handle(void *worker, struct request *rq)
{
    static const struct err fatal = {.status = ST_FATAL, .text = "secret://internals"};

    assert_non_null(worker);
    atomic_fetch_add(&ran, 1);
    if (strcmp(rq->path, "/block") == 0) {
        block(rq);
    } else if (strcmp(rq->path, "/big") == 0) {
        rq->status = 200;
        rq->content_type = "text/plain";
        for (int i = 0; i < 4096; i++)
            buf_addf(&rq->answer, "%01023d\n", i);
    } else if (strcmp(rq->path, "/fail") == 0) {
        problem_of(rq, &fatal);
    } else if (strncmp(rq->path, "/nothing", 8) != 0) {
        echo(rq);
        while (strcmp(rq->path, "/link") == 0 && rq->link.len < HEADER_VALUE_MAX - 1)
            buf_addc(&rq->link, 'x');
    }
}

static void *begin(void *arg, int number)
{
    (void)number;
    atomic_fetch_add(&began, 1);
    return arg;
}

static void end(void *worker)
{
    (void)worker;
    atomic_fetch_add(&ended, 1);
}

static bool needs_caller(const char *path)
{
    return strcmp(path, "/open") != 0;
}

/* ---- the server ---- */

struct world {
    struct cfg_http cfg;
    struct cfg_callers callers_cfg;
    struct http_app app;
    struct callers *callers;
    struct http *http;
    int port;
};

static char none[] = "", loopback[] = "127.0.0.1:0";

static int setup(void **state)
{
    static struct world w;

    w = (struct world){
        .cfg = http_small(),
        .callers_cfg = callers_defaults(),
        .app = {.arg = &w, .worker_begin = begin, .worker_end = end, .handle = handle, .needs_caller = needs_caller},
    };
    w.callers_cfg.anonymous = true;
    atomic_store(&released, false);
    atomic_store(&blocked, 0);
    atomic_store(&cancelled, 0);
    atomic_store(&ran, 0);
    atomic_store(&began, 0);
    atomic_store(&ended, 0);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    bool started = w->http != NULL;

    atomic_store(&released, true);
    http_free(w->http);
    callers_free(w->callers);
    return started && atomic_load(&ended) != w->cfg.workers;
}

static void start(struct world *w)
{
    struct err err = {0};
    const char *colon;

    if (callers_new(&w->callers, &w->callers_cfg, &err) != ST_OK ||
        http_start(&w->http, &w->cfg, &w->app, w->callers, &err) != ST_OK)
        fail_msg("start: %s", err.text);
    colon = strrchr(http_url(w->http), ':');
    w->port = w->cfg.listen[0] ? (int)strtol(colon + 1, NULL, 10) : 0;
}

/* ---- clients ---- */

static int dial(int port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int dial_world(const struct world *w)
{
    int fd = dial(w->port);

    assert_true(fd >= 0);
    return fd;
}

/* False if the server has ended the connection. */
static bool try_write(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static void say(int fd, const char *text)
{
    assert_true(try_write(fd, text, strlen(text)));
}

static void get(int fd, const char *target, const char *headers)
{
    struct buf out;

    buf_init(&out, 1 << 20);
    buf_addf(&out, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", target, headers);
    assert_true(try_write(fd, out.data, out.len));
    buf_release(&out);
}

struct reply {
    int status; /* 0 = the connection ended without one */
    char head[16384];
    char *body;
    size_t len;
};

/* One byte, or -1 at the end. */
static int next_byte(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    unsigned char c;

    if (poll(&p, 1, PATIENCE_MS) != 1)
        fail_msg("no answer within %d ms", PATIENCE_MS);
    return recv(fd, &c, 1, 0) == 1 ? c : -1;
}

static void read_body(int fd, struct reply *r, bool is_head)
{
    const char *length = strcasestr(r->head, "\r\nContent-Length:");
    size_t got = 0;

    r->len = length && !is_head ? strtoul(length + 17, NULL, 10) : 0;
    r->body = calloc(1, r->len + 1);
    assert_non_null(r->body);
    while (got < r->len) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, PATIENCE_MS) != 1)
            fail_msg("no body within %d ms", PATIENCE_MS);
        n = recv(fd, r->body + got, r->len - got, 0);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    assert_int_equal(got, r->len);
}

static struct reply reply_of(int fd, bool is_head)
{
    struct reply r = {0};
    size_t n = 0;
    int c;

    while (n < sizeof r.head - 1 && (c = next_byte(fd)) >= 0) {
        r.head[n++] = (char)c;
        if (n >= 4 && memcmp(r.head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    if (n == 0)
        return r;
    assert_int_equal(sscanf(r.head, "HTTP/1.1 %d", &r.status), 1);
    read_body(fd, &r, is_head);
    return r;
}

static struct reply next_reply(int fd)
{
    return reply_of(fd, false);
}

static void reply_free(struct reply *r)
{
    free(r->body);
    r->body = NULL;
}

/* Status, and what head or body must hold. */
static void expect(int fd, int status, const char *in_head, const char *in_body)
{
    struct reply r = next_reply(fd);
    bool good =
        r.status == status && (!in_head || strcasestr(r.head, in_head)) && (!in_body || strstr(r.body, in_body));
    char got[301];

    snprintf(got, sizeof got, "%s", r.body ? r.body : "");
    reply_free(&r);
    if (!good)
        fail_msg("wanted %d \"%s\" \"%s\", got %s%s", status, in_head ? in_head : "", in_body ? in_body : "", r.head,
                 got);
}

static void expect_end(int fd)
{
    int c = next_byte(fd);

    if (c >= 0)
        fail_msg("the connection goes on with '%c'", c);
}

static void ask(const struct world *w, const char *target, const char *headers, int status, const char *in_body)
{
    int fd = dial_world(w);

    get(fd, target, headers);
    expect(fd, status, NULL, in_body);
    close(fd);
}

static bool comes_to(atomic_int *n, int want)
{
    mono_us until = deadline_in_ms(PATIENCE_MS);

    while (atomic_load(n) != want) {
        if (clock_mono_us() > until)
            return false;
        usleep(500);
    }
    return true;
}

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

/* ---- time ---- */

/* Sends a byte each 20 ms until the server ends it. */
static void drip(int fd, const char *text, int status)
{
    struct reply r;
    mono_us until = deadline_in_ms(PATIENCE_MS);

    for (size_t i = 0;; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (poll(&p, 1, 20) == 1)
            break;
        if (clock_mono_us() > until)
            fail_msg("the slow client is still there");
        try_write(fd, i < strlen(text) ? text + i : "x", 1);
    }
    r = next_reply(fd);
    assert_int_equal(r.status, status);
    if (status)
        assert_non_null(strstr(r.body, "request_timeout"));
    reply_free(&r);
    expect_end(fd);
    close(fd);
}

static void test_slow_headers_are_ended(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.header_timeout_ms = 1500;
    w->cfg.idle_timeout_ms = 1000;
    start(w);
    drip(dial_world(w), "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", 408);
    fd = dial_world(w); /* says nothing at all */
    expect_end(fd);
    close(fd);
    fd = dial_world(w);
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    drip(fd, "GET / HTTP/1.1\r\nHost: localhost\r\nX: ", 0);
    ask(w, "/", "", 200, NULL);
}

static void test_slow_bodies_are_ended(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.request_timeout_ms = 300;
    start(w);
    fd = dial_world(w);
    say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n");
    drip(fd, "", 408);
    assert_int_equal(atomic_load(&ran), 0);
}

/* In a process of its own: its sockets are not ours to count. Writes how many there are, holds them until it is told.
 */
static pid_t hold_connections(int port, int n, int *control)
{
    int pair[2];
    pid_t pid;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int got = 0;
        char c;

        close(pair[0]);
        while (got < n && dial(port) >= 0)
            got++;
        if (write(pair[1], &got, sizeof got) != sizeof got)
            _exit(1);
        (void)!read(pair[1], &c, 1);
        _exit(0);
    }
    close(pair[1]);
    *control = pair[0];
    return pid;
}

static void test_ten_thousand_idle_connections(void **state)
{
    struct world *w = *state;
    struct rlimit files;
    int control, got = 0, want = 10000, status;
    pid_t pid;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < (rlim_t)want + 200) {
        want = (int)files.rlim_cur - 200;
        print_message("the limit of open files allows %d connections only\n", want);
    }
    w->cfg.connections = want + 10;
    start(w);
    pid = hold_connections(w->port, want, &control);
    assert_int_equal(read(control, &got, sizeof got), sizeof got);
    assert_int_equal(got, want);
    for (int i = 0; i < 20; i++)
        ask(w, "/", "", 200, NULL);
    close(control);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    ask(w, "/", "", 200, NULL);
}

/* At its bound the server takes no more until one leaves. */
static void test_connections_are_bounded(void **state)
{
    struct world *w = *state;
    int fds[8], fd;

    w->cfg.connections = 8;
    start(w);
    for (int i = 0; i < 8; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/", "");
        expect(fds[i], 200, NULL, NULL);
    }
    fd = dial_world(w);
    get(fd, "/", "");
    assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 50), 0);
    close(fds[3]);
    expect(fd, 200, NULL, NULL);
    close(fd);
    for (int i = 0; i < 8; i++) {
        if (i != 3)
            close(fds[i]);
    }
}

static long resident_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long pages = 0;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_memory_of_a_thousand_connections(void **state)
{
    struct world *w = *state;
    static int fds[1000];
    long before, after;

    w->cfg.connections = 1100;
    start(w);
    ask(w, "/", "", 200, NULL);
    before = resident_kib();
    for (int i = 0; i < 1000; i++) {
        fds[i] = dial_world(w);
        for (int k = 0; k < 2; k++) {
            get(fds[i], "/?some=parameter", "X-Some: header\r\n");
            expect(fds[i], 200, NULL, NULL);
        }
    }
    after = resident_kib();
    print_message("1,000 connections take %ld KiB\n", after - before);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(after - before < 48 * 1024);
#endif
    for (int i = 0; i < 1000; i++)
        close(fds[i]);
}

/* ---- overload ---- */

static double gauge(struct metric *m)
{
    int64_t bits = atomic_load(&m->value);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Requests that are queued or worked on, as the metric shows them. */
static bool in_flight_comes_to(int want)
{
    mono_us until = deadline_in_ms(PATIENCE_MS);

    for (;;) {
        if ((int)gauge(&http_in_flight) == want)
            return true;
        if (clock_mono_us() > until)
            return false;
        usleep(500);
    }
}

static void test_a_full_queue_refuses_at_once(void **state)
{
    struct world *w = *state;
    int fds[4], fd;

    w->cfg.workers = 2;
    w->cfg.queue = 2;
    start(w);
    for (int i = 0; i < 4; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/block", "");
        assert_true(in_flight_comes_to(i + 1));
        if (i < 2) /* a worker has it: it takes no place in the queue */
            assert_true(comes_to(&blocked, i + 1));
    }
    /* Nothing here waits for a worker: both are blocked. */
    fd = dial_world(w);
    for (int i = 0; i < 3; i++) {
        struct reply r;

        get(fd, "/open", "");
        r = next_reply(fd);
        assert_int_equal(r.status, 503);
        assert_non_null(strcasestr(r.head, "Retry-After: 1\r\n"));
        assert_non_null(strstr(r.body, "\"code\":\"overloaded\""));
        reply_free(&r);
    }
    assert_int_equal(atomic_load(&blocked), 2);
    assert_int_equal(atomic_load(&ran), 2);
    atomic_store(&released, true);
    for (int i = 0; i < 4; i++) {
        expect(fds[i], 200, NULL, "released");
        close(fds[i]);
    }
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    close(fd);
}

static void test_one_caller_cannot_take_all(void **state)
{
    struct world *w = *state;
    int fds[3], fd;

    w->cfg.caller_in_flight = 3;
    start(w);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/block", "");
    }
    assert_true(comes_to(&blocked, 3));
    fd = dial_world(w);
    get(fd, "/", "");
    expect(fd, 503, "Retry-After", "caller_busy");
    get(fd, "/open", ""); /* needs no caller */
    expect(fd, 200, NULL, "caller=\n");
    atomic_store(&released, true);
    for (int i = 0; i < 3; i++) {
        expect(fds[i], 200, NULL, NULL);
        close(fds[i]);
    }
    get(fd, "/", "");
    expect(fd, 200, NULL, NULL);
    close(fd);
}

static void test_what_waited_too_long_is_not_run(void **state)
{
    struct world *w = *state;
    int first, second;

    w->cfg.workers = 1;
    w->cfg.request_timeout_ms = 2000; /* the first, which runs, has twice that */
    start(w);
    first = dial_world(w);
    get(first, "/block", "");
    assert_true(comes_to(&blocked, 1));
    second = dial_world(w);
    get(second, "/", "");
    assert_int_equal(poll(&(struct pollfd){.fd = second, .events = POLLIN}, 1, 3000), 0);
    atomic_store(&released, true);
    expect(first, 200, NULL, NULL);
    expect(second, 503, "Retry-After", "waited too long");
    assert_int_equal(atomic_load(&ran), 1);
    close(first);
    close(second);
}

/* Each body is within its bound, all together are not. */
static void test_bodies_of_all_are_bounded(void **state)
{
    enum { N = 40, SIZE = 1 << 20 };
    struct world *w = *state;
    char *body = malloc(SIZE);
    int fds[N], taken = 0, refused = 0;

    w->cfg.body_max = SIZE;
    w->cfg.queue = N;
    start(w);
    assert_non_null(body);
    memset(body, 'x', SIZE);
    for (int i = 0; i < N; i++) {
        fds[i] = dial_world(w);
        say(fds[i], "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n");
        assert_true(try_write(fds[i], body, SIZE - 1));
    }
    for (int i = 0; i < N; i++) {
        struct reply r;

        assert_true(try_write(fds[i], body, 1));
        r = next_reply(fds[i]);
        taken += r.status == 200;
        refused += r.status == 503 && strstr(r.body, "\"overloaded\"");
        reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(taken + refused, N);
    assert_true(taken >= 1 && refused >= 1);
    free(body);
    ask(w, "/", "", 200, NULL);
}

/* Answers that nobody reads do not stay. */
static void test_clients_that_do_not_read_are_ended(void **state)
{
    struct world *w = *state;
    mono_us until = deadline_in_ms(PATIENCE_MS);
    int fd;

    w->cfg.idle_timeout_ms = 1000;
    start(w);
    fd = dial_world(w);
    for (int i = 0; i < 8; i++)
        get(fd, "/big", "");
    while (gauge(&http_connections) < 1 && clock_mono_us() < until)
        usleep(500);
    while (gauge(&http_connections) > 0) {
        if (clock_mono_us() > until)
            fail_msg("the connection is still there");
        usleep(5000);
    }
    close(fd);
}

/* A handler that is far over its time is cancelled. */
static void test_late_handlers_are_cancelled(void **state)
{
    struct world *w = *state;
    int fd;

    w->cfg.request_timeout_ms = 1000;
    start(w);
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    expect_end(fd);
    assert_true(comes_to(&cancelled, 1));
    close(fd);
}

static void test_metrics(void **state)
{
    struct world *w = *state;
    struct buf page;

    http_metrics_register();
    callers_metrics_register();
    start(w);
    ask(w, "/", "", 200, NULL);
    buf_init(&page, 1 << 20);
    metrics_render(&page);
    assert_non_null(strstr(buf_str(&page), "relata_lister_http_requests_total{status=\"2xx\"} "));
    assert_non_null(strstr(buf_str(&page), "relata_lister_http_refused_total{reason=\"queue_full\"} "));
    assert_non_null(strstr(buf_str(&page), "relata_lister_callers_identified_total{by=\"anonymous\"} "));
    if (metrics_lint(buf_str(&page)))
        fail_msg("%s", metrics_lint(buf_str(&page)));
    buf_release(&page);
}

/* ---- hang-ups ---- */

static void test_hanging_up_cancels(void **state)
{
    struct world *w = *state;
    struct linger reset = {.l_onoff = 1};
    int fd;

    start(w);
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    close(fd);
    assert_true(comes_to(&cancelled, 1));
    fd = dial_world(w);
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    close(fd);
    assert_true(comes_to(&cancelled, 2));
    assert_true(comes_to(&blocked, 0));
    ask(w, "/", "", 200, NULL);
}

static void test_hanging_up_in_the_queue_costs_no_work(void **state)
{
    struct world *w = *state;
    int64_t hangups = metric_count(&http_hangups);
    mono_us until = deadline_in_ms(PATIENCE_MS);
    int first, second;

    w->cfg.workers = 1;
    start(w);
    first = dial_world(w);
    get(first, "/block", "");
    assert_true(comes_to(&blocked, 1));
    second = dial_world(w);
    get(second, "/", "");
    while (metric_count(&http_hangups) == hangups && clock_mono_us() < until) {
        if (second >= 0)
            close(second);
        second = -1;
        usleep(500);
    }
    /* It may have left before it was queued, or after: in neither case is it run. */
    atomic_store(&released, true);
    expect(first, 200, NULL, NULL);
    ask(w, "/", "", 200, NULL);
    assert_int_equal(atomic_load(&ran), 2);
    close(first);
}

/* ---- who ---- */

static const char *digest(const char *token)
{
    static char hex[65];
    unsigned char hash[32];

    SHA256((const unsigned char *)token, strlen(token), hash);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    return hex;
}

static void test_callers_are_asked_for(void **state)
{
    struct world *w = *state;
    char path[] = "/tmp/lister_http_test.XXXXXX";
    int fd = mkstemp(path);
    struct reply r;

    assert_true(fd >= 0);
    dprintf(fd, "console %s subject=user:anne\n", digest("sesame"));
    close(fd);
    w->callers_cfg.anonymous = false;
    w->callers_cfg.tokens_file = path;
    start(w);
    unlink(path);
    fd = dial_world(w);
    get(fd, "/", "Authorization: Bearer sesame\r\n");
    expect(fd, 200, NULL, "caller=console\n");
    get(fd, "/", "");
    r = next_reply(fd);
    assert_int_equal(r.status, 401);
    assert_non_null(strcasestr(r.head, "WWW-Authenticate: Bearer realm=\"relata\"\r\n"));
    assert_non_null(strstr(r.body, "missing_token"));
    reply_free(&r);
    get(fd, "/", "Authorization: Bearer open\r\n");
    expect(fd, 401, "error=\"invalid_token\"", "invalid_token");
    get(fd, "/open", "");
    expect(fd, 200, NULL, "caller=\n");
    close(fd);
}

static void test_anonymous_is_for_this_machine_only(void **state)
{
    struct world *w = *state;
    char everywhere[] = "0.0.0.0:0";
    struct err err = {0};
    int fd;

    w->cfg.listen = everywhere;
    assert_int_equal(callers_new(&w->callers, &w->callers_cfg, &err), ST_OK);
    assert_int_equal(http_start(&w->http, &w->cfg, &w->app, w->callers, &err), ST_CONFIG);
    assert_null(w->http);
    assert_non_null(strstr(err.text, "callers.anonymous"));
    callers_free(w->callers);
    w->cfg.listen = loopback;
    start(w);
    fd = dial_world(w);
    say(fd, "GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n");
    expect(fd, 403, NULL, "forbidden_host");
    say(fd, "GET / HTTP/1.1\r\nHost: localhost.example\r\n\r\n");
    expect(fd, 403, NULL, "forbidden_host");
    say(fd, "GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n");
    expect(fd, 200, NULL, NULL);
    close(fd);
}

static int dial_local(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, path, strlen(path) + 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void test_unix_socket_tells_its_peer(void **state)
{
    struct world *w = *state;
    char dir[] = "/tmp/lister_http_test.XXXXXX", path[64], key[32], value[] = "local subject=user:anne", origin[] = "";
    struct cfg_map_item item = {.key = key, .value = value, .origin = origin};
    struct stat st;
    struct err err = {0};
    struct http *second = NULL;
    int fd;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/http.sock", dir);
    snprintf(key, sizeof key, "uid.%u", (unsigned)getuid());
    w->callers_cfg.anonymous = false;
    w->callers_cfg.peers = (struct cfg_map){&item, 1};
    w->cfg.unix_socket = path;
    start(w); /* both doors */
    fd = dial_local(path);
    assert_true(fd >= 0);
    get(fd, "/", "");
    expect(fd, 200, NULL, "caller=local\n");
    get(fd, "/block", "");
    assert_true(comes_to(&blocked, 1));
    close(fd);
    assert_true(comes_to(&cancelled, 1));
    ask(w, "/", "", 401, "missing_token"); /* TCP tells no peer */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);

    /* A socket that is served is not taken over; a leftover is. */
    assert_int_equal(http_start(&second, &w->cfg, &w->app, w->callers, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "in use"));
    fd = dial_local(path);
    assert_true(fd >= 0);
    close(fd);
    http_free(w->http);
    w->http = NULL;
    assert_int_not_equal(stat(path, &st), 0);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    {
        struct sockaddr_un sa = {.sun_family = AF_UNIX};

        memcpy(sa.sun_path, path, strlen(path) + 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
        close(fd);
    }
    w->cfg.listen = none;
    assert_int_equal(http_start(&w->http, &w->cfg, &w->app, w->callers, &err), ST_OK);
    assert_int_equal(strncmp(http_url(w->http), "unix:/", 6), 0);
    fd = dial_local(path);
    assert_true(fd >= 0);
    get(fd, "/", "");
    expect(fd, 200, NULL, "caller=local\n");
    close(fd);
    http_free(w->http);
    w->http = NULL;
    rmdir(dir);
}

/* ---- many at once, and the end ---- */

struct client {
    const struct world *w;
    pthread_t thread;
    int number, wrong;
};

static void *chatter(void *arg)
{
    struct client *c = arg;
    int fd = dial(c->w->port);

    for (int i = 0; i < 100 && fd >= 0; i++) {
        char text[256], want[64];
        struct reply r;

        snprintf(text, sizeof text, "GET /?who=%d.%d HTTP/1.1\r\nHost: localhost\r\nX-Test: %d\r\n\r\n", c->number, i,
                 c->number * 1000 + i);
        if (!try_write(fd, text, strlen(text)))
            break;
        r = next_reply(fd);
        snprintf(want, sizeof want, "GET /\nwho=%d.%d\n", c->number, i);
        snprintf(text, sizeof text, "x-test=%d\n", c->number * 1000 + i);
        c->wrong += r.status != 200 || strncmp(r.body, want, strlen(want)) != 0 || !strstr(r.body, text);
        reply_free(&r);
    }
    c->wrong += fd < 0;
    if (fd >= 0)
        close(fd);
    return NULL;
}

static void test_requests_do_not_mix(void **state)
{
    struct world *w = *state;
    struct client clients[16];

    w->cfg.queue = 64;
    start(w);
    for (int i = 0; i < 16; i++) {
        clients[i] = (struct client){.w = w, .number = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, chatter, &clients[i]), 0);
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    assert_int_equal(atomic_load(&ran), 1600);
}

static void *drain(void *arg)
{
    struct world *w = arg;

    return http_drain(w->http, deadline_in_ms(PATIENCE_MS)) ? w : NULL;
}

static void test_drain_finishes_what_is_there(void **state)
{
    struct world *w = *state;
    int idle, busy, fd;
    pthread_t thread;
    void *drained = NULL;

    start(w);
    idle = dial_world(w);
    get(idle, "/", "");
    expect(idle, 200, NULL, NULL);
    busy = dial_world(w);
    get(busy, "/block", "");
    assert_true(comes_to(&blocked, 1));
    assert_false(http_drain(w->http, deadline_in_ms(20))); /* one is still running */
    expect_end(idle);
    fd = dial(w->port);
    if (fd >= 0)
        expect_end(fd);
    assert_int_equal(pthread_create(&thread, NULL, drain, w), 0);
    atomic_store(&released, true);
    expect(busy, 200, "Connection: close", "released");
    expect_end(busy);
    pthread_join(thread, &drained);
    assert_non_null(drained);
    close(idle);
    close(busy);
    if (fd >= 0)
        close(fd);
}

/* Without drain: what runs is cancelled, what waits is answered, nothing hangs. */
static void test_free_cancels_what_runs(void **state)
{
    struct world *w = *state;
    int fds[3];

    w->cfg.workers = 1;
    start(w);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial_world(w);
        get(fds[i], "/block", "");
        assert_true(comes_to(&blocked, 1));
    }
    http_free(w->http);
    w->http = NULL;
    assert_int_equal(atomic_load(&blocked), 0);
    assert_int_equal(atomic_load(&ended), 1);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void test_settings_that_are_refused(void **state)
{
    struct world *w = *state;
    char relative[] = "http.sock", file[] = "/nowhere/cert.pem", nonsense[] = "localhost";
    struct err err = {0};

    w->cfg.listen = none;
    assert_int_equal(http_check(&w->cfg, &err), ST_CONFIG);
    w->cfg.unix_socket = relative;
    assert_int_equal(http_check(&w->cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "absolute"));
    w->cfg.unix_socket = none;
    w->cfg.listen = nonsense;
    assert_int_equal(http_check(&w->cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "http.listen"));
    w->cfg.listen = loopback;
    w->cfg.cert_file = file;
    assert_int_equal(http_check(&w->cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "http.key_file"));
    w->cfg.key_file = file;
    assert_int_equal(http_check(&w->cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, file));
    w->cfg.cert_file = w->cfg.key_file = none;
    assert_int_equal(http_check(&w->cfg, &err), ST_OK);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_answers_and_keeps_the_connection),
        TEST(test_pipelined_requests_are_answered_in_order),
        TEST(test_bad_encodings_are_refused),
        TEST(test_doubled_headers_are_refused),
        TEST(test_methods),
        TEST(test_cors),
        TEST(test_traceparent),
        TEST(test_long_headers_both_ways),
        TEST(test_headers_are_bounded),
        TEST(test_what_the_library_refuses_itself),
        TEST(test_many_headers_and_parameters),
        TEST(test_bodies_are_bounded),
        TEST(test_large_answers),
        TEST(test_slow_headers_are_ended),
        TEST(test_slow_bodies_are_ended),
        TEST(test_ten_thousand_idle_connections),
        TEST(test_connections_are_bounded),
        TEST(test_memory_of_a_thousand_connections),
        TEST(test_a_full_queue_refuses_at_once),
        TEST(test_one_caller_cannot_take_all),
        TEST(test_what_waited_too_long_is_not_run),
        TEST(test_bodies_of_all_are_bounded),
        TEST(test_clients_that_do_not_read_are_ended),
        TEST(test_late_handlers_are_cancelled),
        TEST(test_metrics),
        TEST(test_hanging_up_cancels),
        TEST(test_hanging_up_in_the_queue_costs_no_work),
        TEST(test_callers_are_asked_for),
        TEST(test_anonymous_is_for_this_machine_only),
        TEST(test_unix_socket_tells_its_peer),
        TEST(test_requests_do_not_mix),
        TEST(test_drain_finishes_what_is_there),
        TEST(test_free_cancels_what_runs),
        TEST(test_settings_that_are_refused),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
