/* Credentials of the store client: preshared key, OIDC client credentials, TLS; and its settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/store/store.h"
#include "common/store/store_auth.h"
#include "tests/harness/certs.h"
#include "tests/harness/raw_server.h"

#define STORE_ID "01HVMMBCMGZNT3SED4Z17ECXCA"
#define MODEL_ID "01HVMMBCMGZNT3SED4Z17ECXCB"
#define SECRET "s3cr3t&of=the client"

/* One peer that is both store and token endpoint. All fields but `server` are guarded by the lock. */
struct peer {
    struct raw_server *server;
    pthread_mutex_t lock;
    int token_status; /* 0 = give tokens token-1, token-2, ..; -1 = garbage; -2 = hang */
    const char *token_body, *token_headers;
    int expires_in;
    int refuse_below; /* the store answers 401 to tokens with a lower number */
    int tokens, calls;
    char form[1024], authorization[256];
};

struct world {
    struct peer peer;
    struct cfg_store cfg;
    struct store *store;
    struct store_conn *conn;
    struct err err;
    char url[160], token_url[200];
};

static enum raw_next give_token(struct raw_peer *p, const struct raw_request *rq, struct peer *peer)
{
    char body[256];
    int status, number;

    pthread_mutex_lock(&peer->lock);
    snprintf(peer->form, sizeof(peer->form), "%s", rq->body);
    number = ++peer->tokens;
    status = peer->token_status;
    snprintf(body, sizeof(body), "{\"access_token\":\"token-%d\",\"token_type\":\"Bearer\",\"expires_in\":%d}", number,
             peer->expires_in);
    pthread_mutex_unlock(&peer->lock);
    if (status == -2)
        raw_pause(p, -1);
    else if (status == -1)
        raw_reply(p, 200, "", "welcome");
    else if (status > 0)
        raw_reply(p, status, peer->token_headers ? peer->token_headers : "", peer->token_body ? peer->token_body : "");
    else
        raw_reply(p, 200, "", body);
    return status == -2 ? RAW_CLOSE : RAW_KEEP;
}

static enum raw_next handle(struct raw_peer *p, const struct raw_request *rq, void *arg)
{
    struct peer *peer = arg;
    const char *header = strstr(rq->head, "Authorization: ");
    int number = 0;
    bool refuse;

    if (strncmp(rq->head, "POST /token ", 12) == 0)
        return give_token(p, rq, peer);
    pthread_mutex_lock(&peer->lock);
    peer->calls++;
    snprintf(peer->authorization, sizeof(peer->authorization), "%.*s", header ? (int)strcspn(header, "\r") : 0,
             header ? header : "");
    if (header)
        sscanf(header, "Authorization: Bearer token-%d", &number);
    refuse = number < peer->refuse_below;
    pthread_mutex_unlock(&peer->lock);
    if (refuse)
        raw_reply(p, 401, "", "{\"code\":\"invalid_bearer_token\",\"message\":\"bad token\"}");
    else
        raw_reply(p, 200, "", "{}");
    return RAW_KEEP;
}

static void world_prepare(struct world *w)
{
    static char id[] = "the client", secret[] = SECRET, audience[] = "https://store/", scope[] = "a b";

    *w = (struct world){.peer = {.expires_in = 3600}};
    pthread_mutex_init(&w->peer.lock, NULL);
    w->peer.server = raw_server_start(&(struct raw_options){.handler = handle, .arg = &w->peer});
    snprintf(w->url, sizeof(w->url), "%s", raw_server_url(w->peer.server));
    snprintf(w->token_url, sizeof(w->token_url), "%s/token", w->url);
    w->cfg = (struct cfg_store){.url = w->url,
                                .oidc_token_url = w->token_url,
                                .oidc_client_id = id,
                                .oidc_client_secret = secret,
                                .oidc_audience = audience,
                                .oidc_scope = scope,
                                .connect_timeout_ms = 5000,
                                .request_timeout_ms = 60000};
}

static void world_connect(struct world *w)
{
    assert_int_equal(store_new(&w->store, &w->cfg, &w->err), ST_OK);
    assert_int_equal(store_conn_new(&w->conn, w->store, STORE_ID, &w->err), ST_OK);
}

static void world_close(struct world *w)
{
    store_conn_free(w->conn);
    store_free(w->store);
    raw_server_stop(w->peer.server);
    pthread_mutex_destroy(&w->peer.lock);
}

static enum status write_by(struct store_conn *c, mono_us deadline, struct err *err)
{
    struct store_tuple t = {{"doc:1", "viewer", "user:u1"}, NULL, NULL};

    memset(err, 0, sizeof(*err));
    return store_write(c, MODEL_ID, &t, 1, NULL, 0, deadline, err);
}

static enum status write_one(struct world *w)
{
    enum status st = write_by(w->conn, DEADLINE_NONE, &w->err);

    assert_null(strstr(w->err.text, "s3cr3t"));
    assert_null(strstr(w->err.text, "token-"));
    return st;
}

static int tokens(struct world *w)
{
    int n;
    pthread_mutex_lock(&w->peer.lock);
    n = w->peer.tokens;
    pthread_mutex_unlock(&w->peer.lock);
    return n;
}

static int calls(struct world *w)
{
    int n;
    pthread_mutex_lock(&w->peer.lock);
    n = w->peer.calls;
    pthread_mutex_unlock(&w->peer.lock);
    return n;
}

static void peer_set(struct world *w, int token_status, int refuse_below)
{
    pthread_mutex_lock(&w->peer.lock);
    w->peer.token_status = token_status;
    w->peer.refuse_below = refuse_below;
    pthread_mutex_unlock(&w->peer.lock);
}

/* ---- preshared key ---- */

static void test_preshared_key_is_sent_and_never_told(void **state)
{
    static char key[] = "token-7s3cr3t", none[] = "";
    struct world w;
    (void)state;

    world_prepare(&w);
    w.cfg.oidc_token_url = w.cfg.oidc_client_id = w.cfg.oidc_client_secret = none;
    w.cfg.token = key;
    world_connect(&w);
    assert_int_equal(write_one(&w), ST_OK);
    assert_string_equal(w.peer.authorization, "Authorization: Bearer token-7s3cr3t");
    peer_set(&w, 0, 8);
    assert_int_equal(write_one(&w), ST_DENIED);
    assert_string_equal(w.err.code, "invalid_bearer_token");
    assert_int_equal(calls(&w), 2); /* no second try with the same key */
    world_close(&w);
}

/* ---- OIDC ---- */

static void test_oidc_token_is_fetched_once_and_used(void **state)
{
    struct world w;
    (void)state;

    world_prepare(&w);
    world_connect(&w);
    for (int i = 0; i < 5; i++)
        assert_int_equal(write_one(&w), ST_OK);
    assert_int_equal(tokens(&w), 1);
    assert_string_equal(w.peer.authorization, "Authorization: Bearer token-1");
    assert_string_equal(w.peer.form, "grant_type=client_credentials&client_id=the%20client"
                                     "&client_secret=s3cr3t%26of%3Dthe%20client&audience=https%3A%2F%2Fstore%2F"
                                     "&scope=a%20b");
    world_close(&w);
}

struct thread_arg {
    struct store *store;
    enum status st;
};

static void *write_in_thread(void *arg)
{
    struct thread_arg *t = arg;
    struct store_conn *c;
    struct err err;

    t->st = store_conn_new(&c, t->store, STORE_ID, &err);
    for (int i = 0; i < 10 && t->st == ST_OK; i++)
        t->st = write_by(c, DEADLINE_NONE, &err);
    store_conn_free(c);
    return NULL;
}

static void write_in_threads(struct world *w, enum status want)
{
    struct thread_arg args[8];
    pthread_t threads[8];

    for (int i = 0; i < 8; i++) {
        args[i] = (struct thread_arg){.store = w->store};
        assert_int_equal(pthread_create(&threads[i], NULL, write_in_thread, &args[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(args[i].st, want);
    }
}

static void test_oidc_threads_share_one_fetch(void **state)
{
    struct world w;
    (void)state;

    world_prepare(&w);
    world_connect(&w);
    write_in_threads(&w, ST_OK);
    assert_int_equal(tokens(&w), 1);
    assert_int_equal(calls(&w), 80);
    world_close(&w);
}

static void test_oidc_refused_token_is_fetched_anew_once(void **state)
{
    struct world w;
    (void)state;

    world_prepare(&w);
    world_connect(&w);
    assert_int_equal(write_one(&w), ST_OK);
    peer_set(&w, 0, 2); /* token-1 is revoked */
    assert_int_equal(write_one(&w), ST_OK);
    assert_int_equal(tokens(&w), 2);
    assert_int_equal(calls(&w), 3);
    peer_set(&w, 0, 1000); /* the store takes none at all */
    assert_int_equal(write_one(&w), ST_DENIED);
    assert_int_equal(tokens(&w), 3);
    assert_int_equal(calls(&w), 5);
    world_close(&w);
}

static void test_oidc_token_is_renewed_before_its_end(void **state)
{
    mono_us until;
    struct world w;
    (void)state;

    world_prepare(&w);
    w.peer.expires_in = 2;
    world_connect(&w);
    until = deadline_in_ms(30000);
    while (tokens(&w) < 3 && clock_mono_us() < until)
        assert_int_equal(write_one(&w), ST_OK);
    assert_in_range(tokens(&w), 3, 100);
    world_close(&w);
}

static void test_oidc_lifetimes(void **state)
{
    (void)state;
    assert_int_equal(store_auth_lifetime_s(3600), 3540);
    assert_int_equal(store_auth_lifetime_s(301), 241);
    assert_int_equal(store_auth_lifetime_s(300), 240);
    assert_int_equal(store_auth_lifetime_s(10), 8);
    assert_int_equal(store_auth_lifetime_s(1), 0);
    assert_int_equal(store_auth_lifetime_s(0), 240);
}

static void test_oidc_endpoint_failures(void **state)
{
    static const struct {
        int status;
        const char *body, *headers;
        enum status want;
        const char *code;
    } cases[] = {
        {401, "{\"error\":\"invalid_client\",\"error_description\":\"s3cr3t\"}", NULL, ST_DENIED, "invalid_client"},
        {400, "{\"error\":\"invalid_grant\"}", NULL, ST_DENIED, "invalid_grant"},
        {403, "", NULL, ST_DENIED, ""},
        {404, "", NULL, ST_CONFIG, ""},
        {302, "", "Location: /elsewhere\r\n", ST_CONFIG, ""},
        {500, "", NULL, ST_RETRY, ""},
        {503, "", NULL, ST_RETRY, ""},
        {429, "", "Retry-After: 7\r\n", ST_THROTTLED, ""},
        {-1, NULL, NULL, ST_RETRY, ""},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world w;

        world_prepare(&w);
        w.peer.token_body = cases[i].body;
        w.peer.token_headers = cases[i].headers;
        w.peer.token_status = cases[i].status;
        world_connect(&w);
        if (write_one(&w) != cases[i].want)
            fail_msg("%d is %s: %s", cases[i].status, status_name(w.err.status), w.err.text);
        assert_int_equal(w.err.status, cases[i].want);
        assert_string_equal(w.err.code, cases[i].code);
        assert_non_null(strstr(w.err.text, w.token_url));
        assert_int_equal(w.err.retry_after_ms, cases[i].status == 429 ? 7000 : 0);
        assert_int_equal(calls(&w), 0);
        /* Right after a failure the endpoint is left alone, and the reason is told again. */
        assert_int_equal(write_one(&w), cases[i].want);
        assert_int_equal(tokens(&w), 1);
        world_close(&w);
    }
}

static void test_oidc_recovers(void **state)
{
    enum status st = ST_RETRY;
    mono_us until;
    struct world w;
    (void)state;

    world_prepare(&w);
    w.peer.token_status = 500;
    world_connect(&w);
    assert_int_equal(write_one(&w), ST_RETRY);
    peer_set(&w, 0, 0);
    until = deadline_in_ms(30000);
    while (st == ST_RETRY && clock_mono_us() < until)
        st = write_one(&w);
    assert_int_equal(st, ST_OK);
    world_close(&w);
}

static void test_oidc_endpoint_that_hangs_ends_at_the_deadline(void **state)
{
    struct world w;
    (void)state;

    world_prepare(&w);
    w.peer.token_status = -2;
    world_connect(&w);
    assert_int_equal(write_by(w.conn, deadline_in_ms(200), &w.err), ST_DEADLINE);
    w.cfg.request_timeout_ms = 200;
    assert_int_equal(write_one(&w), ST_RETRY);
    assert_int_equal(calls(&w), 0);
    world_close(&w);
}

static void test_oidc_old_token_serves_while_the_endpoint_is_down(void **state)
{
    mono_us until;
    struct world w;
    (void)state;

    world_prepare(&w);
    w.peer.expires_in = 40; /* renewed after 32 s: not in this test, but a refusal below asks for a new one */
    world_connect(&w);
    assert_int_equal(write_one(&w), ST_OK);
    peer_set(&w, 500, 0);
    assert_int_equal(write_one(&w), ST_OK);
    assert_int_equal(tokens(&w), 1);
    /* Refused and no new one to be had: nothing was handled. */
    peer_set(&w, 500, 1000);
    assert_int_equal(write_one(&w), ST_RETRY);
    peer_set(&w, 0, 0);
    until = deadline_in_ms(30000);
    while (write_one(&w) != ST_OK)
        assert_true(clock_mono_us() < until);
    world_close(&w);
}

/* ---- TLS ---- */

struct tls_world {
    char dir[40], ca[64], other[64], cert[64], key[64], client[64], client_key[64];
    struct raw_server *server;
    struct peer peer;
    struct cfg_store cfg;
    struct err err;
};

static void tls_open(struct tls_world *w, bool ask_client)
{
    *w = (struct tls_world){.dir = "/tmp/relata-tls-XXXXXX"};
    assert_non_null(mkdtemp(w->dir));
    certs_make(w->dir, "ca", NULL);
    certs_make(w->dir, "other", NULL);
    certs_make(w->dir, "server", "ca");
    certs_make(w->dir, "client", "ca");
    snprintf(w->ca, sizeof(w->ca), "%s/ca.pem", w->dir);
    snprintf(w->other, sizeof(w->other), "%s/other.pem", w->dir);
    snprintf(w->cert, sizeof(w->cert), "%s/server.pem", w->dir);
    snprintf(w->key, sizeof(w->key), "%s/server.key", w->dir);
    snprintf(w->client, sizeof(w->client), "%s/client.pem", w->dir);
    snprintf(w->client_key, sizeof(w->client_key), "%s/client.key", w->dir);
    pthread_mutex_init(&w->peer.lock, NULL);
    w->server = raw_server_start(&(struct raw_options){.handler = handle,
                                                       .arg = &w->peer,
                                                       .cert_file = w->cert,
                                                       .key_file = w->key,
                                                       .client_ca_file = ask_client ? w->ca : NULL});
    w->cfg = (struct cfg_store){
        .url = strdup(raw_server_url(w->server)), .connect_timeout_ms = 5000, .request_timeout_ms = 60000};
}

static void tls_close(struct tls_world *w)
{
    static const char *const names[] = {"ca", "other", "server", "client"};
    char path[128];

    raw_server_stop(w->server);
    pthread_mutex_destroy(&w->peer.lock);
    free(w->cfg.url);
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s.pem", w->dir, names[i]);
        unlink(path);
        snprintf(path, sizeof(path), "%s/%s.key", w->dir, names[i]);
        unlink(path);
    }
    rmdir(w->dir);
}

static enum status tls_write(struct tls_world *w)
{
    struct store *s;
    struct store_conn *c = NULL;
    enum status st = store_new(&s, &w->cfg, &w->err);

    if (st == ST_OK)
        st = store_conn_new(&c, s, STORE_ID, &w->err);
    if (st == ST_OK)
        st = write_by(c, DEADLINE_NONE, &w->err);
    store_conn_free(c);
    store_free(s);
    return st;
}

static void test_tls_trusts_only_the_given_authority(void **state)
{
    struct tls_world w;
    (void)state;

    tls_open(&w, false);
    w.cfg.ca_file = w.ca;
    assert_int_equal(tls_write(&w), ST_OK);
    w.cfg.ca_file = w.other;
    assert_int_equal(tls_write(&w), ST_CONFIG);
    assert_non_null(strstr(w.err.text, "certificate"));
    w.cfg.ca_file = NULL; /* the system's do not know it */
    assert_int_equal(tls_write(&w), ST_CONFIG);
    assert_int_equal(w.peer.calls, 1);
    tls_close(&w);
}

static void test_tls_client_certificate(void **state)
{
    struct tls_world w;
    (void)state;

    tls_open(&w, true);
    w.cfg.ca_file = w.ca;
    assert_int_not_equal(tls_write(&w), ST_OK);
    assert_int_equal(w.peer.calls, 0);
    w.cfg.cert_file = w.client;
    w.cfg.key_file = w.client_key;
    assert_int_equal(tls_write(&w), ST_OK);
    tls_close(&w);
}

static void test_tls_settings_are_checked(void **state)
{
    static char http[] = "http://127.0.0.1:1", missing[] = "/nonexistent/x.pem";
    struct tls_world w;
    struct store *s;
    (void)state;

    tls_open(&w, false);
#define REFUSED(word)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(store_new(&s, &w.cfg, &w.err), ST_CONFIG);                                                    \
        assert_null(s);                                                                                                \
        if (!strstr(w.err.text, word))                                                                                 \
            fail_msg("no \"%s\" in: %s", word, w.err.text);                                                            \
    } while (0)
    w.cfg.ca_file = missing;
    REFUSED("store.ca_file");
    w.cfg.ca_file = w.key;
    REFUSED("store.ca_file");
    w.cfg.ca_file = w.ca;
    w.cfg.cert_file = w.client;
    REFUSED("store.key_file");
    w.cfg.key_file = w.key;
    REFUSED("is not the key of");
    w.cfg.key_file = w.client;
    REFUSED("no PEM key");
    w.cfg.cert_file = w.cfg.key_file = NULL;
    free(w.cfg.url);
    w.cfg.url = strdup(http);
    REFUSED("https");
    tls_close(&w);
}

/* ---- settings ---- */

static void test_settings_are_checked(void **state)
{
    static const struct {
        const char *url, *token, *token_url, *id, *secret, *word;
    } cases[] = {
        {"", "", "", "", "", "store.url"},
        {"127.0.0.1:8080", "", "", "", "", "store.url"},
        {"ftp://host/", "", "", "", "", "store.url"},
        {"http://user:s3cr3t@host/", "", "", "", "", "store.url"},
        {"http://host/?a=b", "", "", "", "", "store.url"},
        {"http://host/#x", "", "", "", "", "store.url"},
        {"http://ho st/", "", "", "", "", "store.url"},
        {"unix:relative", "", "", "", "", "store.url"},
        {"http://h", "s3cr3t\n", "", "", "", "store.token"},
        {"http://h", "s3cr3t two", "", "", "", "store.token"},
        {"http://h", "s3cr3t", "http://t", "i", "s", "exclude"},
        {"http://h", "", "http://t", "", "s3cr3t", "store.oidc_client_id"},
        {"http://h", "", "http://t", "i", "", "store.oidc_client_secret"},
        {"http://h", "", "", "i", "s3cr3t", "store.oidc_token_url"},
        {"http://h", "", "gopher://t", "i", "s3cr3t", "store.oidc_token_url"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cfg_store cfg = {.url = strdup(cases[i].url),
                                .token = strdup(cases[i].token),
                                .oidc_token_url = strdup(cases[i].token_url),
                                .oidc_client_id = strdup(cases[i].id),
                                .oidc_client_secret = strdup(cases[i].secret)};
        struct err err = {0};
        struct store *s;

        if (store_new(&s, &cfg, &err) != ST_CONFIG)
            fail_msg("taken: %s %s %s", cases[i].url, cases[i].token, cases[i].token_url);
        if (!strstr(err.text, cases[i].word) || strstr(err.text, "s3cr3t"))
            fail_msg("wrong words: %s", err.text);
        free(cfg.url);
        free(cfg.token);
        free(cfg.oidc_token_url);
        free(cfg.oidc_client_id);
        free(cfg.oidc_client_secret);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preshared_key_is_sent_and_never_told),
        cmocka_unit_test(test_oidc_token_is_fetched_once_and_used),
        cmocka_unit_test(test_oidc_threads_share_one_fetch),
        cmocka_unit_test(test_oidc_refused_token_is_fetched_anew_once),
        cmocka_unit_test(test_oidc_token_is_renewed_before_its_end),
        cmocka_unit_test(test_oidc_lifetimes),
        cmocka_unit_test(test_oidc_endpoint_failures),
        cmocka_unit_test(test_oidc_recovers),
        cmocka_unit_test(test_oidc_endpoint_that_hangs_ends_at_the_deadline),
        cmocka_unit_test(test_oidc_old_token_serves_while_the_endpoint_is_down),
        cmocka_unit_test(test_tls_trusts_only_the_given_authority),
        cmocka_unit_test(test_tls_client_certificate),
        cmocka_unit_test(test_tls_settings_are_checked),
        cmocka_unit_test(test_settings_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
