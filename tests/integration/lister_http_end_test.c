/*
 * lister_http_end_test.c - the lister's HTTP server: who asks, many at once, its end, and settings that it refuses.
 */
#include "tests/harness/http_world.h"

#include <openssl/sha.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char none[] = "", loopback[] = "127.0.0.1:0";

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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        HTTP_TEST(test_callers_are_asked_for),        HTTP_TEST(test_anonymous_is_for_this_machine_only),
        HTTP_TEST(test_unix_socket_tells_its_peer),   HTTP_TEST(test_requests_do_not_mix),
        HTTP_TEST(test_drain_finishes_what_is_there), HTTP_TEST(test_free_cancels_what_runs),
        HTTP_TEST(test_settings_that_are_refused),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
