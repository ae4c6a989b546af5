/* admin_test.c - the admin port, asked over real HTTP. */
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/admin/admin.h"
#include "common/admin/metrics.h"
#include "common/base/clock.h"
#include "tests/harness/metrics_lint.h"

static struct metric asked = METRIC_INIT(METRIC_COUNTER, "relata_test_asked_total", "Times asked.", NULL);

struct answer {
    long code;
    struct buf head, body;
};

static char any_port[] = "127.0.0.1:0", nothing[] = "";

static struct admin *start(void)
{
    struct cfg_admin cfg = {any_port, nothing};
    struct admin *a = NULL;
    struct err err = {0};

    assert_int_equal(admin_start(&a, &cfg, &err), ST_OK);
    assert_memory_equal(admin_url(a), "http://127.0.0.1:", 17);
    return a;
}

static size_t collect(char *data, size_t size, size_t n, void *out)
{
    buf_add(out, data, size * n);
    return size * n;
}

static void answer_release(struct answer *r)
{
    buf_release(&r->head);
    buf_release(&r->body);
}

/* False if there was no answer. */
static bool try_ask(const char *url, const char *path, const char *method, struct answer *out)
{
    CURL *c = curl_easy_init();
    char full[300];
    CURLcode rc;

    assert_non_null(c);
    *out = (struct answer){.head.max = 1 << 16, .body.max = 1 << 22};
    snprintf(full, sizeof full, "%s%s", url, path);
    curl_easy_setopt(c, CURLOPT_URL, full);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, 60000L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &out->body);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, collect);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, &out->head);
    if (strcmp(method, "HEAD") == 0)
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    else if (strcmp(method, "POST") == 0)
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, "x=y");
    else
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
    rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &out->code);
    curl_easy_cleanup(c);
    if (rc != CURLE_OK)
        print_error("%s: %s\n", full, curl_easy_strerror(rc));
    return rc == CURLE_OK;
}

static void assert_page(const struct admin *a, const char *path, long code, const char *body)
{
    struct answer r;

    assert_true(try_ask(admin_url(a), path, "GET", &r));
    assert_int_equal(r.code, code);
    assert_string_equal(buf_str(&r.body), body);
    answer_release(&r);
}

static void test_metrics_page(void **state)
{
    struct admin *a = start();
    struct answer r, head;

    (void)state;
    metric_add(&asked, 7);
    assert_true(try_ask(admin_url(a), "/metrics", "GET", &r));
    assert_int_equal(r.code, 200);
    assert_non_null(strstr(buf_str(&r.head), "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert_non_null(strstr(buf_str(&r.body), "\nrelata_test_asked_total 7\n"));
    assert_null(metrics_lint(buf_str(&r.body)));
    assert_true(try_ask(admin_url(a), "/metrics", "HEAD", &head));
    assert_int_equal(head.code, 200);
    assert_int_equal(head.body.len, 0);
    answer_release(&r);
    answer_release(&head);
    admin_stop(a);
}

static void test_other_pages_and_methods(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "BREW"};
    struct admin *a = start();
    struct answer r;

    (void)state;
    assert_page(a, "/", 200, "here are /metrics, /healthz and /readyz\n");
    assert_page(a, "/nothing", 404, "here are /metrics, /healthz and /readyz\n");
    assert_page(a, "/metrics/", 404, "here are /metrics, /healthz and /readyz\n");
    assert_page(a, "/healthz?x=y", 200, "ok\n");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        assert_true(try_ask(admin_url(a), "/metrics", methods[i], &r));
        assert_int_equal(r.code, 405);
        assert_non_null(strstr(buf_str(&r.head), "Allow: GET, HEAD\r\n"));
        answer_release(&r);
    }
    admin_stop(a);
}

static void test_readiness_is_all_conditions(void **state)
{
    struct admin *a = start();

    (void)state;
    assert_page(a, "/readyz", 503, "starting\n");
    admin_ready(a, "postgres", false, "connecting");
    admin_ready(a, "store", false, NULL);
    assert_page(a, "/readyz", 503, "postgres: connecting\nstore: not ready\n");
    admin_ready(a, "postgres", true, NULL);
    assert_page(a, "/readyz", 503, "store: not ready\n");
    admin_ready(a, "store", true, "");
    assert_page(a, "/readyz", 200, "ready\n");
    admin_ready(a, "store", true, "standing by");
    assert_page(a, "/readyz", 200, "ready\nstore: standing by\n");
    admin_ready(a, "store", false, "circuit open:\nHTTP 500");
    assert_page(a, "/readyz", 503, "store: circuit open: HTTP 500\n");
    admin_stop(a);
}

static void test_health_follows_the_main_loop(void **state)
{
    struct admin *a = start();
    mono_us until = deadline_in_ms(30000);
    struct answer r = {0};

    (void)state;
    assert_page(a, "/healthz", 200, "ok\n"); /* no bound yet */
    admin_health_bound(a, 20);
    while (r.code != 503 && clock_mono_us() < until) {
        assert_true(try_ask(admin_url(a), "/healthz", "GET", &r));
        answer_release(&r);
    }
    assert_int_equal(r.code, 503);
    assert_true(try_ask(admin_url(a), "/healthz", "GET", &r));
    assert_memory_equal(buf_str(&r.body), "stalled: the main loop has not moved for ", 41);
    assert_non_null(strstr(buf_str(&r.body), " ms (bound 20 ms)\n"));
    answer_release(&r);
    admin_health_bound(a, 600000);
    admin_alive(a);
    assert_page(a, "/healthz", 200, "ok\n");
    admin_stop(a);
}

static void test_no_port(void **state)
{
    struct cfg_admin cfg = {nothing, nothing};
    struct admin *a = NULL;
    struct err err = {0};

    (void)state;
    assert_int_equal(admin_start(&a, &cfg, &err), ST_OK);
    assert_string_equal(admin_url(a), "");
    admin_ready(a, "x", true, NULL);
    admin_alive(a);
    admin_stop(a);
    admin_ready(NULL, "x", true, NULL);
    admin_alive(NULL);
    admin_health_bound(NULL, 5);
    assert_string_equal(admin_url(NULL), "");
    admin_stop(NULL);
}

static void test_refused_addresses(void **state)
{
#define ADVICE "; give host:port such as 127.0.0.1:9090 or [::1]:9090"
    static const char *const cases[][2] = {
        {"nonsense", "admin.listen = \"nonsense\": the port is missing" ADVICE},
        {"9090", "admin.listen = \"9090\": the port is missing" ADVICE},
        {"127.0.0.1:", "admin.listen = \"127.0.0.1:\": the port is missing" ADVICE},
        {"127.0.0.1:http", "admin.listen = \"127.0.0.1:http\": the port is no number" ADVICE},
        {"127.0.0.1:-1", "admin.listen = \"127.0.0.1:-1\": the port is no number" ADVICE},
        {"127.0.0.1:65536", "admin.listen = \"127.0.0.1:65536\": the port is above 65535" ADVICE},
        {"127.0.0.1:1000000000000", "admin.listen = \"127.0.0.1:1000000000000\": the port is above 65535" ADVICE},
        {":9090", "admin.listen = \":9090\": the host is missing (0.0.0.0 is every interface)" ADVICE},
        {"[]:9090", "admin.listen = \"[]:9090\": the host is missing (0.0.0.0 is every interface)" ADVICE},
        {"::1:9090", "admin.listen = \"::1:9090\": an IPv6 address stands in brackets" ADVICE},
        {"[::1:9090", "admin.listen = \"[::1:9090\": the \"]\" before the port is missing" ADVICE},
        {"[::1]", "admin.listen = \"[::1]\": the \"]\" before the port is missing" ADVICE},
        {"http://127.0.0.1:90", "admin.listen = \"http://127.0.0.1:90\": it is an address, not a URL" ADVICE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char address[100];
        struct cfg_admin cfg = {address, nothing};
        struct admin *a = NULL;
        struct err err = {0};

        snprintf(address, sizeof address, "%s", cases[i][0]);
        assert_int_equal(admin_start(&a, &cfg, &err), ST_CONFIG);
        assert_null(a);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void test_taken_port(void **state)
{
    struct admin *a = start(), *b = NULL;
    struct err err = {0};
    char address[100], wanted[300];
    struct cfg_admin cfg = {address, nothing};

    (void)state;
    snprintf(address, sizeof address, "%s", admin_url(a) + strlen("http://"));
    assert_int_equal(admin_start(&b, &cfg, &err), ST_CONFIG);
    assert_null(b);
    snprintf(wanted, sizeof wanted, "cannot listen on %s: %s; choose another admin.listen, port 0 picks a free one",
             address, strerror(EADDRINUSE));
    assert_string_equal(err.text, wanted);
    admin_stop(a);
    /* Free again at once. */
    assert_int_equal(admin_start(&b, &cfg, &err), ST_OK);
    admin_stop(b);
}

static void test_ipv6(void **state)
{
    char address[] = "[::1]:0";
    struct cfg_admin cfg = {address, nothing};
    struct admin *a = NULL;
    struct err err = {0};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool usable = fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0;

    (void)state;
    if (fd >= 0)
        close(fd);
    if (!usable)
        skip(); /* no IPv6 on this machine */
    assert_int_equal(admin_start(&a, &cfg, &err), ST_OK);
    assert_memory_equal(admin_url(a), "http://[::1]:", 13);
    assert_page(a, "/healthz", 200, "ok\n");
    admin_stop(a);
}

static void test_url_file(void **state)
{
    char dir[] = "/tmp/relata-admin-test-XXXXXX", path[100], text[200] = "";
    struct cfg_admin cfg = {any_port, path};
    struct admin *a = NULL;
    struct err err = {0};
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/url", dir);
    assert_int_equal(admin_start(&a, &cfg, &err), ST_OK);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_int_equal(text[strlen(text) - 1], '\n');
    text[strlen(text) - 1] = '\0';
    assert_string_equal(text, admin_url(a));
    admin_stop(a);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* no other file was left there */

    assert_int_equal(admin_start(&a, &cfg, &err), ST_CONFIG);
    assert_null(a);
    snprintf(text, sizeof text, "cannot write admin.url_file %s: %s", path, strerror(ENOENT));
    assert_string_equal(err.text, text);
}

static int dial(const struct admin *a)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET};

    assert_true(fd >= 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sa.sin_port = htons((uint16_t)strtoul(strrchr(admin_url(a), ':') + 1, NULL, 10));
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void test_oversized_and_broken_requests(void **state)
{
    static char request[20000];
    struct admin *a = start();
    char reply[100] = "";
    ssize_t n;
    int fd;

    (void)state;
    memset(request, 'x', sizeof request);
    memcpy(request, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: ", 35);
    fd = dial(a);
    /* It may hang up before everything is sent. */
    for (size_t sent = 0; sent < sizeof request; sent += (size_t)n) {
        n = send(fd, request + sent, sizeof request - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break;
    }
    n = recv(fd, reply, sizeof reply - 1, 0);
    if (n > 0)
        assert_memory_equal(reply, "HTTP/1.1 4", 10);
    close(fd);

    fd = dial(a);
    assert_int_equal(send(fd, "\x16\x03\x01 no HTTP\r\n\r\n", 16, MSG_NOSIGNAL), 16);
    n = recv(fd, reply, sizeof reply - 1, 0);
    if (n > 0)
        assert_memory_equal(reply, "HTTP/1.1 4", 10);
    close(fd);
    assert_page(a, "/healthz", 200, "ok\n");
    admin_stop(a);
}

struct dribble {
    int fds[64];
    atomic_bool end;
};

/* Sends a byte on every connection again and again: none is ever idle. */
static void *dribble(void *arg)
{
    struct dribble *d = arg;

    while (!atomic_load(&d->end)) {
        for (size_t i = 0; i < 64; i++)
            (void)!send(d->fds[i], "x", 1, MSG_NOSIGNAL);
        usleep(50000);
    }
    return NULL;
}

/* All places are taken by visitors that never finish: they are ended, and others are served. */
static void test_slow_visitors_do_not_keep_the_port(void **state)
{
    struct admin *a = start();
    static struct dribble d;
    pthread_t thread;
    char rest[1000];
    size_t ended = 0;

    (void)state;
    for (size_t i = 0; i < 64; i++) {
        d.fds[i] = dial(a);
        assert_int_equal(send(d.fds[i], "GET /metrics HTTP/1.1\r\nX: ", 26, MSG_NOSIGNAL), 26);
    }
    assert_int_equal(pthread_create(&thread, NULL, dribble, &d), 0);
    assert_page(a, "/healthz", 200, "ok\n"); /* waits until a place is free, a minute at most */
    for (size_t i = 0; i < 64; i++) {
        struct timeval wait = {.tv_sec = 30};

        setsockopt(d.fds[i], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
        ended += recv(d.fds[i], rest, sizeof rest, 0) == 0 || errno == ECONNRESET;
    }
    assert_int_equal(ended, 64);
    atomic_store(&d.end, true);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < 64; i++)
        close(d.fds[i]);
    admin_stop(a);
}

static void *change(void *arg)
{
    struct admin *a = arg;

    for (int i = 0; i < 2000; i++) {
        char name[10];

        snprintf(name, sizeof name, "c%d", i % 8);
        admin_ready(a, name, i % 3 != 0, "because");
        admin_alive(a);
        metric_add(&asked, 1);
    }
    return NULL;
}

static void test_changes_while_it_is_asked(void **state)
{
    struct admin *a = start();
    pthread_t threads[3];
    struct answer r;

    (void)state;
    admin_health_bound(a, 600000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, change, a), 0);
    for (int i = 0; i < 30; i++) {
        static const char *const paths[] = {"/readyz", "/healthz", "/metrics"};

        assert_true(try_ask(admin_url(a), paths[i % 3], "GET", &r));
        assert_true(r.code == 200 || (i % 3 == 0 && r.code == 503));
        answer_release(&r);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    admin_stop(a);
}

/* Stops with a visitor in the middle of a request. */
static void test_stop_does_not_wait_for_visitors(void **state)
{
    struct admin *a = start();
    int fd = dial(a);
    char byte;

    (void)state;
    assert_int_equal(send(fd, "GET", 3, MSG_NOSIGNAL), 3);
    assert_page(a, "/healthz", 200, "ok\n");
    admin_stop(a);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static int begin(void **state)
{
    (void)state;
    metric_register(&asked);
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    curl_global_cleanup();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_page),
        cmocka_unit_test(test_other_pages_and_methods),
        cmocka_unit_test(test_readiness_is_all_conditions),
        cmocka_unit_test(test_health_follows_the_main_loop),
        cmocka_unit_test(test_no_port),
        cmocka_unit_test(test_refused_addresses),
        cmocka_unit_test(test_taken_port),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_url_file),
        cmocka_unit_test(test_oversized_and_broken_requests),
        cmocka_unit_test(test_slow_visitors_do_not_keep_the_port),
        cmocka_unit_test(test_changes_while_it_is_asked),
        cmocka_unit_test(test_stop_does_not_wait_for_visitors),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
