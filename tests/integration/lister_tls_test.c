/* lister_tls_test.c - the lister's TLS port: versions, hang-ups, and certificates that change without a restart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness/certs.h"
#include "tests/harness/lister_settings.h"

#define PATIENCE_MS 30000

static atomic_int blocked, cancelled;

static void handle(void *worker, struct request *rq)
{
    (void)worker;
    if (strcmp(rq->path, "/block") == 0) {
        atomic_fetch_add(&blocked, 1);
        while (!atomic_load(&rq->cancelled))
            usleep(500);
        atomic_fetch_add(&cancelled, 1);
        return;
    }
    rq->status = 200;
    rq->content_type = "text/plain";
    buf_adds(&rq->answer, "well\n");
    for (int i = 0; i < 20000 && strcmp(rq->path, "/big") == 0; i++)
        buf_adds(&rq->answer, "0123456789abcdef");
}

static void *begin(void *arg, int number)
{
    (void)number;
    return arg;
}

static void end(void *worker)
{
    (void)worker;
}

static bool needs_caller(const char *path)
{
    (void)path;
    return true;
}

struct world {
    char dir[64], cert[128], key[128];
    struct cfg_http cfg;
    struct cfg_callers callers_cfg;
    struct http_app app;
    struct callers *callers;
    struct http *http;
    int port;
};

/* cert.pem and cert.key become those of `name`, each in one step. */
static void install(const struct world *w, const char *name)
{
    char from[160];

    snprintf(from, sizeof from, "%s/%s.pem", w->dir, name);
    assert_int_equal(rename(from, w->cert), 0);
    snprintf(from, sizeof from, "%s/%s.key", w->dir, name);
    assert_int_equal(rename(from, w->key), 0);
}

static int setup(void **state)
{
    static struct world w;
    struct err err = {0};

    w = (struct world){
        .dir = "/tmp/lister_tls_test.XXXXXX",
        .cfg = http_small(),
        .callers_cfg = callers_defaults(),
        .app = {.arg = &w, .worker_begin = begin, .worker_end = end, .handle = handle, .needs_caller = needs_caller},
    };
    w.cfg.workers = 2;
    w.cfg.connections = 100;
    w.cfg.header_timeout_ms = 2000;
    w.callers_cfg.anonymous = true;
    atomic_store(&blocked, 0);
    atomic_store(&cancelled, 0);
    if (!mkdtemp(w.dir))
        return -1;
    snprintf(w.cert, sizeof w.cert, "%s/cert.pem", w.dir);
    snprintf(w.key, sizeof w.key, "%s/cert.key", w.dir);
    w.cfg.cert_file = w.cert;
    w.cfg.key_file = w.key;
    certs_make(w.dir, "ca1", NULL);
    certs_make(w.dir, "ca2", NULL);
    certs_make(w.dir, "first", "ca1");
    certs_make(w.dir, "second", "ca2");
    install(&w, "first");
    if (callers_new(&w.callers, &w.callers_cfg, &err) != ST_OK ||
        http_start(&w.http, &w.cfg, &w.app, w.callers, &err) != ST_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    w.port = (int)strtol(strrchr(http_url(w.http), ':') + 1, NULL, 10);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"ca1.pem",   "ca1.key",    "ca2.pem",    "ca2.key",  "first.pem",
                                        "first.key", "second.pem", "second.key", "cert.pem", "cert.key"};
    struct world *w = *state;
    char path[160];

    http_free(w->http);
    callers_free(w->callers);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", w->dir, names[i]);
        unlink(path);
    }
    return rmdir(w->dir);
}

struct client {
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
};

static void hang_up(struct client *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(c->ctx);
    close(c->fd);
}

/* False if the handshake fails; `authority` is whom the client trusts. */
static bool dial(const struct world *w, const char *authority, int max_version, struct client *c)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)w->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char ca[160];

    snprintf(ca, sizeof ca, "%s/%s.pem", w->dir, authority);
    c->ctx = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_load_verify_locations(c->ctx, ca, NULL), 1);
    SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_security_level(c->ctx, 0);
    if (max_version)
        SSL_CTX_set_max_proto_version(c->ctx, max_version);
    c->ssl = SSL_new(c->ctx);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof sa), 0);
    SSL_set_fd(c->ssl, c->fd);
    if (SSL_connect(c->ssl) == 1)
        return true;
    hang_up(c);
    return false;
}

static void get(struct client *c, const char *path)
{
    char text[128];
    int len = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);

    assert_int_equal(SSL_write(c->ssl, text, len), len);
}

static void expect_well(struct client *c, size_t want)
{
    char head[8192] = "";
    size_t n = 0, body;
    char *end_of_head;

    while (!(end_of_head = strstr(head, "\r\n\r\n"))) {
        int got = SSL_read(c->ssl, head + n, (int)(sizeof head - 1 - n));

        assert_true(got > 0);
        n += (size_t)got;
        head[n] = '\0';
    }
    assert_int_equal(strncmp(head, "HTTP/1.1 200 ", 13), 0);
    body = n - (size_t)(end_of_head + 4 - head);
    while (body < want) {
        int got = SSL_read(c->ssl, head, sizeof head);

        assert_true(got > 0);
        body += (size_t)got;
    }
    assert_int_equal(body, want);
}

static bool trusted_by(const struct world *w, const char *authority)
{
    struct client c;

    if (!dial(w, authority, 0, &c))
        return false;
    get(&c, "/");
    expect_well(&c, 5);
    hang_up(&c);
    return true;
}

static void test_certificate_changes_without_a_restart(void **state)
{
    struct world *w = *state;
    mono_us until = deadline_in_ms(PATIENCE_MS);
    struct client old;

    assert_int_equal(strncmp(http_url(w->http), "https://127.0.0.1:", 18), 0);
    assert_true(dial(w, "ca1", 0, &old));
    get(&old, "/");
    expect_well(&old, 5);
    assert_false(trusted_by(w, "ca2"));

    /* Half of a pair: the former one stays. */
    {
        char from[160], aside[160];

        snprintf(from, sizeof from, "%s/second.pem", w->dir);
        snprintf(aside, sizeof aside, "%s/first.pem", w->dir);
        assert_int_equal(rename(w->cert, aside), 0);
        assert_int_equal(rename(from, w->cert), 0);
        for (int i = 0; i < 20; i++)
            assert_true(trusted_by(w, "ca1"));
        snprintf(from, sizeof from, "%s/second.key", w->dir);
        assert_int_equal(rename(from, w->key), 0);
    }
    while (!trusted_by(w, "ca2")) {
        if (clock_mono_us() > until)
            fail_msg("the new certificate is not served");
        usleep(2000);
    }
    assert_false(trusted_by(w, "ca1"));
    get(&old, "/"); /* connections go on */
    expect_well(&old, 5);
    hang_up(&old);
}

static void test_versions(void **state)
{
    static const struct {
        int version;
        bool taken;
    } cases[] = {{TLS1_VERSION, false}, {TLS1_1_VERSION, false}, {TLS1_2_VERSION, true}, {TLS1_3_VERSION, true}};
    struct world *w = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct client c;
        bool taken = dial(w, "ca1", cases[i].version, &c);

        assert_int_equal(taken, cases[i].taken);
        if (!taken)
            continue;
        get(&c, "/big");
        expect_well(&c, 5 + 20000 * 16);
        hang_up(&c);
    }
}

static void test_hanging_up_cancels(void **state)
{
    struct world *w = *state;
    mono_us until = deadline_in_ms(PATIENCE_MS);
    struct client c;

    assert_true(dial(w, "ca1", 0, &c));
    get(&c, "/block");
    while (atomic_load(&blocked) == 0 && clock_mono_us() < until)
        usleep(500);
    hang_up(&c);
    while (atomic_load(&cancelled) == 0) {
        if (clock_mono_us() > until)
            fail_msg("the request goes on without its client");
        usleep(500);
    }
    assert_true(trusted_by(w, "ca1"));
}

/* A peer that opens the connection and says nothing, or nothing of TLS. */
static void test_unfinished_handshakes_are_ended(void **state)
{
    struct world *w = *state;
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)w->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    char byte[64];

    for (int i = 0; i < 2; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ssize_t n;

        assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
        if (i == 1)
            assert_true(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        while ((n = recv(fd, byte, sizeof byte, 0)) > 0)
            assert_null(memmem(byte, (size_t)n, "HTTP", 4));
        assert_true(n == 0 || errno == ECONNRESET);
        close(fd);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_certificate_changes_without_a_restart),
        TEST(test_versions),
        TEST(test_hanging_up_cancels),
        TEST(test_unfinished_handshakes_are_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
