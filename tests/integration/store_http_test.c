/* The store client against a peer that misbehaves: what is certainly without effect, what is unknown, what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/store/store.h"
#include "tests/harness/raw_server.h"

#define STORE_ID "01HVMMBCMGZNT3SED4Z17ECXCA"
#define MODEL_ID "01HVMMBCMGZNT3SED4Z17ECXCB"
#define LONG_MS 60000

/* ---- a peer, a client ---- */

struct world {
    struct raw_server *server;
    struct cfg_store cfg;
    struct store *store;
    struct store_conn *conn;
    struct err err;
};

/* What the peer does; a copy lives in the handler's argument. */
struct script {
    enum raw_next (*answer)(struct raw_peer *p, const struct raw_request *rq, struct script *script);
    struct raw_server *server;
    int status;
    const char *headers, *body;
    _Atomic int seen;
};

static enum raw_next run(struct raw_peer *p, const struct raw_request *rq, void *arg)
{
    struct script *script = arg;
    atomic_fetch_add(&script->seen, 1);
    return script->answer(p, rq, script);
}

static void world_open(struct world *w, struct script *script, const char *url)
{
    static char none[] = "";

    *w = (struct world){.cfg = {.token = none, .connect_timeout_ms = 5000, .request_timeout_ms = LONG_MS}};
    if (script) {
        w->server = raw_server_start(&(struct raw_options){.handler = run, .arg = script});
        script->server = w->server;
        url = raw_server_url(w->server);
    }
    w->cfg.url = strdup(url);
    assert_int_equal(store_new(&w->store, &w->cfg, &w->err), ST_OK);
    assert_int_equal(store_conn_new(&w->conn, w->store, STORE_ID, &w->err), ST_OK);
}

static void world_close(struct world *w)
{
    store_conn_free(w->conn);
    store_free(w->store);
    raw_server_stop(w->server);
    free(w->cfg.url);
}

static enum status write_one(struct world *w, mono_us deadline)
{
    struct store_tuple t = {{"doc:1", "viewer", "user:u1"}, NULL, NULL};
    return store_write(w->conn, MODEL_ID, &t, 1, NULL, 0, deadline, &w->err);
}

/* One Write against a peer that runs the script. */
static enum status write_against(struct script *script, struct err *err)
{
    struct world w;
    enum status st;

    world_open(&w, script, NULL);
    st = write_one(&w, DEADLINE_NONE);
    *err = w.err;
    world_close(&w);
    return st;
}

static enum raw_next reply(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq;
    raw_reply(p, script->status, script->headers ? script->headers : "", script->body ? script->body : "");
    return RAW_KEEP;
}

static enum status write_reply(int status, const char *headers, const char *body, struct err *err)
{
    struct script script = {.answer = reply, .status = status, .headers = headers, .body = body};
    return write_against(&script, err);
}

/* ---- nothing was sent ---- */

static void test_refused_connection_is_without_effect(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    raw_server_refuse(w.server);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_RETRY);
    assert_non_null(strstr(w.err.text, "no connection"));
    assert_int_equal(script.seen, 0);
    world_close(&w);
}

static void test_missing_socket_is_without_effect(void **state)
{
    struct world w;
    (void)state;

    world_open(&w, NULL, "unix:/nonexistent/relata.sock");
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_RETRY);
    world_close(&w);
}

static void test_passed_deadline_sends_nothing(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, clock_mono_us() - 1), ST_DEADLINE);
    assert_int_equal(script.seen, 0);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    world_close(&w);
}

static enum raw_next hang(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq, (void)script;
    raw_pause(p, -1);
    return RAW_CLOSE;
}

/* A TLS handshake that the peer never answers: a connection, but no request left. */
static void test_deadline_in_the_handshake_is_without_effect(void **state)
{
    struct script script = {.answer = hang};
    struct raw_server *silent = raw_server_start(&(struct raw_options){.handler = run, .arg = &script});
    struct world w;
    char url[160];
    (void)state;

    snprintf(url, sizeof(url), "https%s", raw_server_url(silent) + strlen("http"));
    world_open(&w, NULL, url);
    assert_int_equal(write_one(&w, deadline_in_ms(200)), ST_DEADLINE);
    w.cfg.request_timeout_ms = 200;
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_RETRY);
    assert_int_equal(script.seen, 0);
    world_close(&w);
    raw_server_stop(silent);
}

/* ---- sent, outcome unknown ---- */

/* The peer's threads may be later than the client's deadline. */
static void expect_seen(struct script *script, int want)
{
    for (mono_us end = deadline_in_ms(10000); atomic_load(&script->seen) < want && clock_mono_us() < end;)
        usleep(1000);
    assert_int_equal(script->seen, want);
}

static void test_W23_no_answer_in_time_is_unknown(void **state)
{
    struct script script = {.answer = hang};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, deadline_in_ms(1000)), ST_UNKNOWN);
    w.cfg.request_timeout_ms = 1000;
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_UNKNOWN);
    expect_seen(&script, 2);
    world_close(&w);
}

static enum raw_next cut_half(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq;
    raw_sendf(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":");
    return script->status ? RAW_RESET : RAW_CLOSE;
}

static enum raw_next cut_at_once(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)p, (void)rq;
    return script->status ? RAW_RESET : RAW_CLOSE;
}

static enum raw_next cut_in_headers(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq;
    raw_sendf(p, "HTTP/1.1 200 OK\r\nContent-Le");
    return script->status ? RAW_RESET : RAW_CLOSE;
}

static enum raw_next cut_in_chunks(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq, (void)script;
    raw_sendf(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n");
    return RAW_CLOSE;
}

static void test_cut_answers_are_unknown(void **state)
{
    enum raw_next (*const ways[])(struct raw_peer *, const struct raw_request *,
                                  struct script *) = {cut_at_once, cut_in_headers, cut_half, cut_in_chunks};
    struct err err;
    (void)state;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        for (int reset = 0; reset < 2; reset++) {
            struct script script = {.answer = ways[i], .status = reset};
            assert_int_equal(write_against(&script, &err), ST_UNKNOWN);
            assert_non_null(strstr(err.text, "Write"));
        }
}

static enum raw_next drip(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    (void)rq, (void)script;
    raw_sendf(p, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{");
    while (raw_pause(p, 10) && raw_send(p, " ", 1))
        ;
    return RAW_CLOSE;
}

static void test_answer_that_drips_ends_at_the_deadline(void **state)
{
    struct script script = {.answer = drip};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, deadline_in_ms(300)), ST_UNKNOWN);
    world_close(&w);
}

static enum raw_next endless(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    static const char block[65536] = {'['};
    (void)rq;

    if (script->status)
        raw_sendf(p, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
    else
        raw_sendf(p, "HTTP/1.1 200 OK\r\n\r\n");
    for (int i = 0; i < 16384; i++)
        if (!raw_send(p, block, sizeof(block)))
            return RAW_CLOSE;
    /* Only a client without a bound comes here. */
    script->seen = 1000;
    return RAW_CLOSE;
}

static void test_answer_of_1_gb_is_bounded(void **state)
{
    struct err err;
    (void)state;

    for (int told = 0; told < 2; told++) {
        struct script script = {.answer = endless, .status = told};
        assert_int_equal(write_against(&script, &err), ST_UNKNOWN);
        assert_non_null(strstr(err.text, "larger than"));
        assert_int_equal(script.seen, 1);
    }
}

static void test_unreadable_bodies_are_unknown(void **state)
{
    static const char *const bodies[] = {
        "",         "<html>welcome</html>", "[]", "null", "{", "{} {}", "{\"a\":1,\"a\":2}",
        "\"text\"", "{\"a\":\"\xff\"}",     "{]",
    };
    struct err err;
    (void)state;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        assert_int_equal(write_reply(200, "", bodies[i], &err), ST_UNKNOWN);
}

static void test_W41_classes_by_status_and_code(void **state)
{
    static const struct {
        int status;
        const char *body;
        enum status want;
    } cases[] = {
        {409, "{\"code\":\"Aborted\",\"message\":\"m\"}", ST_CONFLICT},
        {500, "{\"code\":\"internal_error\",\"message\":\"m\"}", ST_UNKNOWN},
        {400, "{\"code\":\"write_failed_due_to_invalid_input\",\"message\":\"m\"}", ST_CONFLICT},
        {502, "<html>bad gateway</html>", ST_UNKNOWN},
        {503, "", ST_UNKNOWN},
        {504, "", ST_UNKNOWN},
        {400, "<html>bad request</html>", ST_CONFIG},
        {401, "{\"code\":\"bearer_token_missing\",\"message\":\"m\"}", ST_DENIED},
        {403, "", ST_DENIED},
        {413, "", ST_TOO_BIG},
        {302, "", ST_CONFIG},
    };
    struct err err;
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (write_reply(cases[i].status, "", cases[i].body, &err) != cases[i].want)
            fail_msg("%d %s is %s: %s", cases[i].status, cases[i].body, status_name(err.status), err.text);
}

static enum raw_next redirect(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    char header[256];
    (void)rq;

    snprintf(header, sizeof(header), "Location: %s/elsewhere\r\n", raw_server_url(script->server));
    raw_reply(p, 307, header, "{}");
    return RAW_KEEP;
}

static void test_redirects_are_not_followed(void **state)
{
    struct script script = {.answer = redirect};
    struct err err;
    (void)state;

    assert_int_equal(write_against(&script, &err), ST_CONFIG);
    assert_int_equal(script.seen, 1);
    assert_non_null(strstr(err.text, "redirect"));
}

/* ---- Retry-After ---- */

static void http_date(char *out, size_t size, int64_t seconds_from_now)
{
    time_t t = time(NULL) + seconds_from_now;
    struct tm tm;
    char date[64];

    gmtime_r(&t, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    snprintf(out, size, "Retry-After: %s\r\n", date);
}

static unsigned retry_after(const char *headers)
{
    struct err err;

    assert_int_equal(write_reply(429, headers, "{}", &err), ST_THROTTLED);
    return err.retry_after_ms;
}

static void test_W26_retry_after_seconds_and_date(void **state)
{
    char date[128];
    (void)state;

    assert_int_equal(retry_after("Retry-After: 2\r\nX-RateLimit-Reset: 1725260000\r\n"), 2000);
    assert_int_equal(retry_after("X-RateLimit-Reset: 1725260000\r\n"), 0);
    assert_int_equal(retry_after("Retry-After: 1725260000\r\n"), 60000);
    assert_int_equal(retry_after("Retry-After: 99999999999999999999\r\n"), 60000);
    assert_int_equal(retry_after("Retry-After: 0\r\n"), 0);
    assert_int_equal(retry_after("Retry-After: -5\r\n"), 0);
    assert_int_equal(retry_after("Retry-After: soon\r\n"), 0);
    assert_int_equal(retry_after("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n"), 0);
    http_date(date, sizeof(date), 30);
    assert_in_range(retry_after(date), 20000, 30000);
    http_date(date, sizeof(date), 86400);
    assert_int_equal(retry_after(date), 60000);
}

static void test_retry_after_of_an_unknown_outcome_is_told(void **state)
{
    struct err err;
    (void)state;

    assert_int_equal(write_reply(503, "Retry-After: 3\r\n", "", &err), ST_UNKNOWN);
    assert_int_equal(err.retry_after_ms, 3000);
}

/* ---- oversize ---- */

static void test_resource_exhausted_by_size(void **state)
{
    static const char body[] =
        "{\"code\":\"resource_exhausted\",\"message\":\"grpc: received message larger than max\"}";
    struct script script = {.answer = reply, .status = 500, .body = body};
    struct store_tuple tuples[4];
    char context[40000], subjects[4][16];
    struct world w;
    (void)state;

    memset(context, ' ', sizeof(context));
    snprintf(context, sizeof(context), "{\"x\":\"");
    memset(context + 6, 'a', sizeof(context) - 9);
    memcpy(context + sizeof(context) - 3, "\"}", 3);
    for (int i = 0; i < 4; i++) {
        snprintf(subjects[i], sizeof(subjects[i]), "user:%d", i);
        tuples[i] = (struct store_tuple){{"doc:1", "viewer", subjects[i]}, "c", context};
    }
    world_open(&w, &script, NULL);
    assert_int_equal(store_write(w.conn, MODEL_ID, tuples, 4, NULL, 0, DEADLINE_NONE, &w.err), ST_TOO_BIG);
    assert_int_equal(store_write(w.conn, MODEL_ID, tuples, 1, NULL, 0, DEADLINE_NONE, &w.err), ST_THROTTLED);
    world_close(&w);
}

/* ---- connections ---- */

static void test_connection_is_kept(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    for (int i = 0; i < 20; i++)
        assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    assert_int_equal(raw_server_connections(w.server), 1);
    world_close(&w);
}

/* The second request of the first connection is read and not answered; others are. */
static enum raw_next die_on_second(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    if (rq->connection == 0 && rq->number == 1) {
        if (script->status)
            raw_server_refuse(script->server);
        return RAW_CLOSE;
    }
    raw_reply(p, 200, "", "{}");
    return RAW_KEEP;
}

/* curl sends a request again by itself when a kept-alive connection ends without an answer byte: reads only. */
static void test_curl_sends_a_read_again_on_a_fresh_connection(void **state)
{
    const struct tuple_key key = {"doc:1", "viewer", "user:anne"};
    struct script script = {.answer = die_on_second};
    struct world w;
    bool found;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    assert_int_equal(store_read_tuple(w.conn, &key, &found, NULL, DEADLINE_NONE, &w.err),
                     ST_UNKNOWN); /* "{}" is no page */
    assert_int_equal(raw_server_requests(w.server), 3);
    assert_int_equal(raw_server_connections(w.server), 2);
    world_close(&w);
}

/* A Write is not: its first copy may take effect after the second, and after what was written later. */
static void test_W22_a_write_is_never_sent_twice(void **state)
{
    struct script script = {.answer = die_on_second};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_UNKNOWN);
    assert_int_equal(raw_server_requests(w.server), 2);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    world_close(&w);
}

/* If that second try finds no connection, the first may still have been handled. */
static void test_W23_failed_reconnect_after_a_sent_request_is_unknown(void **state)
{
    struct script script = {.answer = die_on_second, .status = 1};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_UNKNOWN);
    assert_int_equal(raw_server_requests(w.server), 2);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_RETRY);
    world_close(&w);
}

static enum raw_next fail_twice(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    if (rq->number == 0)
        return hang(p, rq, script);
    if (rq->number == 1)
        return cut_half(p, rq, script);
    raw_reply(p, 200, "", "{}");
    return RAW_KEEP;
}

static void test_connection_works_again_after_every_failure(void **state)
{
    struct script script = {.answer = fail_twice};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(write_one(&w, deadline_in_ms(1000)), ST_UNKNOWN);
    expect_seen(&script, 1); /* the peer counts the next as the second */
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_UNKNOWN);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    world_close(&w);
}

static void test_unix_socket(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    char dir[] = "/tmp/relata-store-XXXXXX", path[64];
    struct raw_server *server;
    struct world w;
    (void)state;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/s", dir);
    server = raw_server_start(&(struct raw_options){.handler = run, .arg = &script, .socket_path = path});
    world_open(&w, NULL, raw_server_url(server));
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    world_close(&w);
    raw_server_stop(server);
    rmdir(dir);
}

static enum raw_next want_prefix(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    bool ok = strncmp(rq->head, script->body, strlen(script->body)) == 0;
    raw_reply(p, ok ? 200 : 500, "", "{}");
    return RAW_KEEP;
}

static void test_url_with_a_prefix(void **state)
{
    struct script script = {.answer = want_prefix, .body = "POST /fga/stores/" STORE_ID "/write HTTP/1.1\r\n"};
    struct raw_server *server = raw_server_start(&(struct raw_options){.handler = run, .arg = &script});
    struct world w;
    char url[200];
    (void)state;

    snprintf(url, sizeof(url), "%s/fga//", raw_server_url(server));
    world_open(&w, NULL, url);
    assert_int_equal(write_one(&w, DEADLINE_NONE), ST_OK);
    world_close(&w);
    raw_server_stop(server);
}

/* ---- answers to reads ---- */

static void test_D14_repeated_token_ends_the_scan(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{\"tuples\":[],\"continuation_token\":\"again\"}"};
    struct store_tuples page;
    struct world w;
    char *next;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(store_read_page(w.conn, "", &page, &next, DEADLINE_NONE, &w.err), ST_OK);
    assert_string_equal(next, "again");
    store_tuples_free(&page);
    free(next);
    /* An empty page with a new token is no end and no error. */
    assert_int_equal(store_read_page(w.conn, "other", &page, &next, DEADLINE_NONE, &w.err), ST_OK);
    store_tuples_free(&page);
    free(next);
    assert_int_equal(store_read_page(w.conn, "again", &page, &next, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_null(next);
    assert_null(page.items);
    world_close(&w);
}

static void test_L31_only_true_allows(void **state)
{
    static const char *const bodies[] = {
        "{}",
        "{\"allowed\":\"true\"}",
        "{\"allowed\":1}",
        "{\"allowed\":null}",
        "{\"allowed\":false,\"allowed\":true}",
        "{\"result\":{\"allowed\":true}}",
        "[true]",
    };
    struct tuple_key key = {"doc:1", "viewer", "user:u1"};
    struct script script = {.answer = reply, .status = 200};
    struct world w;
    bool allowed = true;
    (void)state;

    world_open(&w, &script, NULL);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        script.body = bodies[i];
        assert_int_equal(store_check(w.conn, MODEL_ID, &key, false, &allowed, DEADLINE_NONE, &w.err), ST_UNKNOWN);
        assert_false(allowed);
    }
    script.body = "{\"allowed\":true}";
    assert_int_equal(store_check(w.conn, MODEL_ID, &key, false, &allowed, DEADLINE_NONE, &w.err), ST_OK);
    assert_true(allowed);
    world_close(&w);
}

static void test_another_tuple_than_asked_for_is_no_answer(void **state)
{
    static const char other[] =
        "{\"tuples\":[{\"key\":{\"user\":\"user:u2\",\"relation\":\"viewer\",\"object\":\"doc:1\"}}],"
        "\"continuation_token\":\"\"}";
    struct script script = {.answer = reply, .status = 200, .body = other};
    struct tuple_key key = {"doc:1", "viewer", "user:u1"};
    struct world w;
    bool found = true;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(store_read_tuple(w.conn, &key, &found, NULL, DEADLINE_NONE, &w.err), ST_UNKNOWN);
    assert_false(found);
    world_close(&w);
}

static enum raw_next want_no_tuple_key(struct raw_peer *p, const struct raw_request *rq, struct script *script)
{
    bool ok = !strstr(rq->body, "tuple_key") && strstr(rq->body, "\"page_size\":100");
    (void)script;
    raw_reply(p, ok ? 200 : 500, "", "{\"tuples\":[],\"continuation_token\":\"\"}");
    return RAW_KEEP;
}

static void test_D16_full_read_names_no_tuple_key(void **state)
{
    struct script script = {.answer = want_no_tuple_key};
    struct store_tuples page;
    struct world w;
    char *next;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(store_read_page(w.conn, "", &page, &next, DEADLINE_NONE, &w.err), ST_OK);
    assert_string_equal(next, "");
    store_tuples_free(&page);
    free(next);
    world_close(&w);
}

/* ---- refused before they are sent ---- */

static void test_D17_type_only_subject_is_not_read(void **state)
{
    static const char *const subjects[] = {"user:", "user", ""};
    struct script script = {.answer = reply, .status = 200, .body = "{\"tuples\":[],\"continuation_token\":\"\"}"};
    struct world w;
    bool found;
    (void)state;

    world_open(&w, &script, NULL);
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++) {
        struct tuple_key key = {"doc:1", "viewer", subjects[i]};
        assert_int_equal(store_read_tuple(w.conn, &key, &found, NULL, DEADLINE_NONE, &w.err), ST_INVALID);
    }
    assert_int_equal(script.seen, 0);
    world_close(&w);
}

static void test_W20_malformed_delete_is_not_sent(void **state)
{
    static const struct tuple_key keys[] = {
        {"doc:1", "viewer", ""},          {"doc:1", "viewer", "user"},     {"doc:1", "viewer", "user:"},
        {"doc:1", "", "user:u1"},         {"doc:", "viewer", "user:u1"},   {"doc", "viewer", "user:u1"},
        {"doc:1", "viewer", "user:\xff"}, {"doc:1", "viewer", "user:a b"},
    };
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_int_equal(store_write(w.conn, MODEL_ID, NULL, 0, &keys[i], 1, DEADLINE_NONE, &w.err), ST_INVALID);
    assert_int_equal(script.seen, 0);
    world_close(&w);
}

static void test_contract_of_a_batch_is_checked(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct store_tuple a = {{"doc:1", "viewer", "user:a"}, NULL, NULL}, b = {{"doc:1", "viewer", "user:b"}, NULL, NULL};
    struct store_tuple twice[] = {a, a}, unsorted[] = {b, a}, sorted[] = {a, b};
    struct tuple_key both = b.key;
    struct world w;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(store_write(w.conn, MODEL_ID, twice, 2, NULL, 0, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_int_equal(store_write(w.conn, MODEL_ID, unsorted, 2, NULL, 0, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_int_equal(store_write(w.conn, MODEL_ID, sorted, 2, &both, 1, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_int_equal(store_write(w.conn, MODEL_ID, NULL, 0, NULL, 0, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_int_equal(store_write(w.conn, MODEL_ID, sorted, 101, NULL, 0, DEADLINE_NONE, &w.err), ST_FATAL);
    assert_int_equal(script.seen, 0);
    assert_int_equal(store_write(w.conn, MODEL_ID, sorted, 1, &both, 1, DEADLINE_NONE, &w.err), ST_OK);
    world_close(&w);
}

static void test_ids_of_a_wrong_form_are_not_sent(void **state)
{
    struct script script = {.answer = reply, .status = 200, .body = "{}"};
    struct store_tuple t = {{"doc:1", "viewer", "user:a"}, NULL, NULL};
    struct world w;
    char *name;
    (void)state;

    world_open(&w, &script, NULL);
    assert_int_equal(store_write(w.conn, "latest", &t, 1, NULL, 0, DEADLINE_NONE, &w.err), ST_CONFIG);
    assert_int_equal(store_conn_use(w.conn, "../admin", &w.err), ST_CONFIG);
    assert_int_equal(store_conn_use(w.conn, "01HVMMBCMGZNT3SED4Z17ECXCa", &w.err), ST_CONFIG);
    assert_int_equal(store_conn_use(w.conn, STORE_ID "0", &w.err), ST_CONFIG);
    assert_int_equal(store_conn_use(w.conn, "", &w.err), ST_OK);
    assert_int_equal(store_get(w.conn, &name, DEADLINE_NONE, &w.err), ST_MISSING);
    assert_int_equal(script.seen, 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_connection_is_without_effect),
        cmocka_unit_test(test_missing_socket_is_without_effect),
        cmocka_unit_test(test_passed_deadline_sends_nothing),
        cmocka_unit_test(test_deadline_in_the_handshake_is_without_effect),
        cmocka_unit_test(test_W23_no_answer_in_time_is_unknown),
        cmocka_unit_test(test_cut_answers_are_unknown),
        cmocka_unit_test(test_answer_that_drips_ends_at_the_deadline),
        cmocka_unit_test(test_answer_of_1_gb_is_bounded),
        cmocka_unit_test(test_unreadable_bodies_are_unknown),
        cmocka_unit_test(test_W41_classes_by_status_and_code),
        cmocka_unit_test(test_redirects_are_not_followed),
        cmocka_unit_test(test_W26_retry_after_seconds_and_date),
        cmocka_unit_test(test_retry_after_of_an_unknown_outcome_is_told),
        cmocka_unit_test(test_resource_exhausted_by_size),
        cmocka_unit_test(test_connection_is_kept),
        cmocka_unit_test(test_curl_sends_a_read_again_on_a_fresh_connection),
        cmocka_unit_test(test_W22_a_write_is_never_sent_twice),
        cmocka_unit_test(test_W23_failed_reconnect_after_a_sent_request_is_unknown),
        cmocka_unit_test(test_connection_works_again_after_every_failure),
        cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_url_with_a_prefix),
        cmocka_unit_test(test_D14_repeated_token_ends_the_scan),
        cmocka_unit_test(test_L31_only_true_allows),
        cmocka_unit_test(test_another_tuple_than_asked_for_is_no_answer),
        cmocka_unit_test(test_D16_full_read_names_no_tuple_key),
        cmocka_unit_test(test_D17_type_only_subject_is_not_read),
        cmocka_unit_test(test_W20_malformed_delete_is_not_sent),
        cmocka_unit_test(test_contract_of_a_batch_is_checked),
        cmocka_unit_test(test_ids_of_a_wrong_form_are_not_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
