/* harness_test.c - the test harness itself: its worlds are fresh, its faults real, its comparisons see differences. */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness/compare.h"
#include "tests/harness/proc.h"
#include "tests/harness/proxy.h"

static void test_database_is_fresh_and_migrated(void **state)
{
    struct harness *h = *state;

    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 0);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) "
                   "VALUES ('write', 'doc:1', 'viewer', 'user:anne')");
    assert_string_equal(harness_sql_text(h, "SELECT object FROM relata.tuple WHERE present"), "doc:1");
}

static void test_store_is_fresh_and_pinned(void **state)
{
    struct harness *h = *state;
    struct tuple_set *s = tuple_set_store(h);

    assert_int_equal(tuple_set_len(s), 0);
    tuple_set_free(s);
    assert_string_equal(harness_sql_text(h, "SELECT store_id FROM relata.store"), h->store_id);
    assert_string_equal(harness_sql_text(h, "SELECT model_id FROM relata.store"), h->model_id);
}

static void test_ledger_and_store_are_compared(void **state)
{
    struct harness *h = *state;
    struct store_tuple writes[] = {
        {{"doc:1", "viewer", "user:anne"}, NULL, NULL},
        {{"doc:2", "viewer", "user:bob"}, "in_hours", "{\"until\":17,\"from\":9}"},
        {{"doc:3", "viewer", "team:x#member"}, NULL, NULL},
    };
    struct tuple_set *ledger, *store;
    struct err err;
    struct buf out;

    harness_sql(h,
                "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) VALUES "
                "('write', 'doc:1', 'viewer', 'user:anne', NULL, NULL),"
                "('write', 'doc:2', 'viewer', 'user:bob', 'in_hours', '{\"from\": 9.0, \"until\": 17}'),"
                "('write', 'doc:4', 'viewer', 'user:bob', NULL, NULL)");
    assert_int_equal(
        store_write(h->store_conn, h->model_id, writes, 3, NULL, 0, deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    ledger = tuple_set_ledger(h);
    store = tuple_set_store(h);
    buf_init(&out, 4096);
    assert_int_equal(tuple_set_diff(ledger, "ledger", store, "store", &out), 2);
    assert_non_null(strstr(buf_str(&out), "only in store: doc:3#viewer@team:x#member"));
    assert_non_null(strstr(buf_str(&out), "only in ledger: doc:4#viewer@user:bob"));
    tuple_set_remove(store, "doc:3", "viewer", "team:x#member");
    tuple_set_remove(ledger, "doc:4", "viewer", "user:bob");
    assert_tuple_sets_equal(ledger, "ledger", store, "store");
    tuple_set_add(ledger, "doc:2", "viewer", "user:bob", "in_hours", "{\"from\": 8, \"until\": 17}");
    assert_int_equal(tuple_set_diff(ledger, "ledger", store, "store", &out), 1);
    buf_release(&out);
    tuple_set_free(ledger);
    tuple_set_free(store);
}

static void test_private_servers_crash_freeze_and_return(void **state)
{
    struct harness *h = *state;
    struct pg_config cfg = {.dsn = h->dsn};
    struct pg *pg = NULL;
    struct err err;

    harness_sql(h, "CREATE TABLE public.kept (x int); INSERT INTO public.kept VALUES (7)");
    harness_service(h, "freeze", "postgres");
    assert_int_not_equal(pg_open(&pg, &cfg, deadline_in_ms(300), &err), ST_OK);
    harness_service(h, "continue", "postgres");
    assert_int_equal(harness_sql_int(h, "SELECT x FROM public.kept"), 7);
    harness_service(h, "kill", "postgres");
    assert_int_not_equal(pg_open(&pg, &cfg, deadline_in_ms(2000), &err), ST_OK);
    harness_service(h, "restart", "postgres");
    assert_sql_eventually(h, "SELECT x FROM public.kept", "7", 10000);
    harness_service(h, "restart", "nats");
    assert_true(kill(harness_service_pid(h, "nats"), 0) == 0);
}

/* ---- programs ---- */

static void test_programs_are_frozen_continued_and_killed(void **state)
{
    struct harness *h = *state;
    struct proc *p =
        proc_start(h, "/bin/sh", "-c", "trap 'echo drained; exit 0' TERM; echo up; while :; do sleep 0.01; done", NULL);

    assert_logged(p, "up", 5000);
    proc_freeze(p);
    proc_continue(p);
    proc_stop(p);
    assert_true(proc_logged(p, "drained"));
    p = proc_start(h, "/bin/sh", "-c", "exec sleep 1000", NULL);
    assert_true(proc_running(p));
    proc_kill(p);
    assert_false(proc_running(p));
    assert_int_equal(proc_wait(p, 1000), 128 + SIGKILL);
    p = proc_start(h, "/bin/sh", "-c", "exit 3", NULL);
    assert_int_equal(proc_wait(p, 5000), 3);
}

/* ---- the proxy, in front of Postgres ---- */

static struct pg *connect_by(struct harness *h, struct proxy *proxy)
{
    return harness_connect(h, harness_dsn(h, NULL, proxy_address(proxy), NULL));
}

static void test_proxy_freezes_cuts_and_refuses(void **state)
{
    struct harness *h = *state;
    const char *port = harness_sql_text(h, "SHOW port");
    struct proxy *proxy = proxy_start(harness_strf(h, "127.0.0.1:%s", port));
    struct pg *pg, *other = NULL;
    struct pg_config cfg = {0};
    struct err err;

    assert_non_null(proxy);
    pg = connect_by(h, proxy);
    assert_int_equal(pg_exec(pg, "CREATE TABLE public.t (x int)", deadline_in_ms(5000), &err), ST_OK);
    assert_int_equal(proxy_accepted(proxy), 1);
    assert_true(proxy_bytes(proxy, PROXY_UP) > 0 && proxy_bytes(proxy, PROXY_DOWN) > 0);

    /* The statement arrives, its answer does not. */
    proxy_freeze(proxy, PROXY_DOWN);
    assert_int_not_equal(pg_exec(pg, "INSERT INTO public.t VALUES (1)", deadline_in_ms(300), &err), ST_OK);
    assert_sql_eventually(h, "SELECT count(*) FROM public.t", "1", 5000);
    proxy_pass(proxy);
    pg_close(pg);

    pg = connect_by(h, proxy);
    proxy_cut(proxy);
    assert_int_not_equal(pg_exec(pg, "SELECT 1", deadline_in_ms(5000), &err), ST_OK);
    assert_false(pg_alive(pg));
    pg_close(pg);

    proxy_refuse(proxy, true);
    cfg.dsn = harness_dsn(h, NULL, proxy_address(proxy), NULL);
    assert_int_not_equal(pg_open(&other, &cfg, deadline_in_ms(300), &err), ST_OK);
    proxy_refuse(proxy, false);
    pg = connect_by(h, proxy);
    pg_close(pg);
    proxy_stop(proxy);
}

static void test_proxy_delivers_late_after_the_sender_gave_up(void **state)
{
    struct harness *h = *state;
    const char *port = harness_sql_text(h, "SHOW port");
    struct proxy *proxy = proxy_start(harness_strf(h, "127.0.0.1:%s", port));
    struct pg *pg = connect_by(h, proxy);
    struct err err;

    harness_sql(h, "CREATE TABLE public.t (x int)");
    proxy_late(proxy, 1500);
    assert_int_not_equal(pg_exec(pg, "INSERT INTO public.t VALUES (1)", deadline_in_ms(100), &err), ST_OK);
    pg_close(pg);
    proxy_cut(proxy);
    assert_true(proxy_held(proxy) > 0);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM public.t"), 0);
    assert_sql_eventually(h, "SELECT count(*) FROM public.t", "1", 10000);
    proxy_stop(proxy);
}

/* ---- bytes that vanish ---- */

static int tcp_pair_through(struct proxy *proxy, int listener, int *server)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)proxy_port(proxy)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(client, (struct sockaddr *)&to, sizeof(to)), 0);
    *server = accept(listener, NULL, NULL);
    assert_true(*server >= 0);
    return client;
}

static void test_proxy_drops_and_delays(void **state)
{
    struct harness *h = *state;
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(self);
    int listener = socket(AF_INET, SOCK_STREAM, 0), client, server;
    struct proxy *proxy;
    mono_us began;
    char c;

    assert_int_equal(bind(listener, (struct sockaddr *)&self, sizeof(self)), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&self, &len), 0);
    proxy = proxy_start(harness_strf(h, "127.0.0.1:%d", ntohs(self.sin_port)));
    client = tcp_pair_through(proxy, listener, &server);

    proxy_drop(proxy, PROXY_UP);
    assert_int_equal(write(client, "x", 1), 1);
    while (proxy_bytes(proxy, PROXY_UP) < 1)
        usleep(1000);
    proxy_pass(proxy);
    assert_int_equal(write(client, "y", 1), 1);
    assert_int_equal(read(server, &c, 1), 1);
    assert_int_equal(c, 'y');

    proxy_delay(proxy, PROXY_DOWN, 200);
    began = clock_mono_us();
    assert_int_equal(write(server, "z", 1), 1);
    assert_int_equal(read(client, &c, 1), 1);
    assert_true(clock_mono_us() - began >= 190000);

    /* The server's close reaches the client. */
    proxy_pass(proxy);
    close(server);
    assert_int_equal(read(client, &c, 1), 0);
    close(client);
    close(listener);
    proxy_stop(proxy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_database_is_fresh_and_migrated, HARNESS_DB),
        HARNESS_TEST(test_store_is_fresh_and_pinned, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_ledger_and_store_are_compared, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_private_servers_crash_freeze_and_return,
                     HARNESS_EMPTY_DB | HARNESS_OWN_PG | HARNESS_OWN_NATS),
        HARNESS_TEST(test_programs_are_frozen_continued_and_killed, 0),
        HARNESS_TEST(test_proxy_freezes_cuts_and_refuses, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_proxy_delivers_late_after_the_sender_gave_up, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_proxy_drops_and_delays, 0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
