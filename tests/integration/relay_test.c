/* outbox-relay on real servers, both modes: what is carried, in which order, and by whom. */
#include <signal.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define SOON 30000

static const char *const modes[] = {"relay.mode=wal", "relay.mode=poll"};
enum { WAL, POLL };

static struct proc *start(struct harness *h, int mode)
{
    struct proc *p = relay_start(h, "--set", modes[mode], "--set", "relay.topic_partitions=4", NULL);
    proc_ready_wait(p, SOON);
    if (mode == WAL) /* before that, what is sent may be sent once more by the new stream */
        assert_logged(p, "msg=streaming", 2 * SOON);
    return p;
}

static void grant(struct harness *h, struct pg *pg, const char *object, const char *subject)
{
    struct err err;
    const char *sql = harness_strf(h,
                                   "INSERT INTO relata.outbox (op, object, relation, subject) "
                                   "VALUES ('write', '%s', 'viewer', '%s')",
                                   object, subject);
    if (pg_exec(pg, sql, deadline_in_ms(SOON), &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

static void exec(struct pg *pg, const char *sql)
{
    struct err err;
    if (pg_exec(pg, sql, deadline_in_ms(SOON), &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

/* ---- what is carried ---- */

static void carries(struct harness *h, int mode)
{
    harness_sql(
        h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write','doc:before','viewer','user:a')");
    struct proc *p = start(h, mode);
    harness_sql(h, "INSERT INTO relata.outbox (store, op, object, relation, subject, headers, actor) VALUES "
                   "('default', 'write', 'doc:1', 'viewer', 'user:anne', '{\"traceparent\": \"00-aa-bb-01\"}', 'x'), "
                   "('other', 'delete', 'doc:1', 'viewer', 'user:anne', NULL, NULL), "
                   "('default', 'touch', 'doc:2', 'editor', 'team:t#member', NULL, NULL)");
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    int seen = 0;
    for (size_t i = 0; i < r->len; i++) {
        struct change *c = &r->changes[i];
        assert_string_equal(c->key, harness_strf(h, "%s|%s", c->store, c->object));
        if (!strcmp(c->key, "default|doc:1")) {
            assert_string_equal(c->traceparent, "00-aa-bb-01");
            assert_int_equal(c->op, 1);
            seen++;
        } else if (!strcmp(c->key, "other|doc:1")) {
            assert_null(c->traceparent);
            assert_int_equal(c->op, 2);
            seen++;
        } else if (!strcmp(c->key, "default|doc:2")) {
            assert_int_equal(c->op, 3);
            assert_string_equal(c->subject, "team:t#member");
            seen++;
        }
    }
    assert_true(seen >= 3);
    assert_int_equal(topic_distinct(r), 4);
    /* The rows stay: a writer has to apply them. */
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox"), 4);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_carries_rows_wal(void **state)
{
    carries(*state, WAL);
}

static void test_carries_rows_poll(void **state)
{
    carries(*state, POLL);
}

/* A restart repeats nothing that was acknowledged, and misses nothing that came meanwhile. */
static void restarts(struct harness *h, int mode)
{
    struct topic_reader *r = topic_read(h, h->topic);
    struct proc *p = start(h, mode);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) "
                   "SELECT 'write', 'doc:' || i, 'viewer', 'user:a' FROM generate_series(1, 500) i");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_stop(p);
    size_t before = r->len;
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) "
                   "SELECT 'write', 'doc:' || i, 'viewer', 'user:b' FROM generate_series(1, 500) i");
    p = start(h, mode);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(r->len, before + 500);
    assert_last_is_newest(r);
    proc_stop(p);
    topic_reader_free(r);
}

static void test_R11_restart_repeats_nothing_wal(void **state)
{
    restarts(*state, WAL);
}

static void test_R11_restart_repeats_nothing_poll(void **state)
{
    restarts(*state, POLL);
}

/* ---- orders ---- */

/* tx1 takes its id, tx2 takes a later one and commits, the relay looks, tx1 commits. */
static void late_commit(struct harness *h, int mode)
{
    struct proc *p = start(h, mode);
    struct topic_reader *r = topic_read(h, h->topic);
    struct pg *tx1 = harness_connect(h, NULL);
    exec(tx1, "BEGIN");
    grant(h, tx1, "doc:early", "user:a");
    grant(h, h->pg, "doc:late", "user:a");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON); /* the later one alone is visible */
    assert_int_equal(topic_distinct(r), 1);
    exec(tx1, "COMMIT");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_distinct(r), 2);
    pg_close(tx1);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_R01_ids_taken_before_commit_wal(void **state)
{
    late_commit(*state, WAL);
}

static void test_R01_ids_taken_before_commit_poll(void **state)
{
    late_commit(*state, POLL);
}

/* The transaction with the lower xid changes the tuple last: its change is the last message, by commit order. */
static void test_R02_commit_order_of_overlapping_transactions(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, WAL);
    struct pg *a = harness_connect(h, NULL), *b = harness_connect(h, NULL);
    exec(a, "BEGIN");
    exec(a, "SELECT pg_current_xact_id()"); /* a is older .. */
    exec(b, "BEGIN");
    grant(h, b, "doc:x", "user:a");
    exec(b, "COMMIT");
    exec(a, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:x', 'viewer', 'user:a')");
    exec(a, "COMMIT"); /* .. and commits last */
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox d, relata.outbox w WHERE d.op = 'delete' "
                                        "AND w.op = 'write' AND d.xid < w.xid AND d.id > w.id"),
                     1);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    assert_int_equal(r->changes[r->len - 1].op, 2);
    pg_close(a);
    pg_close(b);
    topic_reader_free(r);
    proc_stop(p);
}

/* delete, grant again, delete of one tuple: every episode is a message of its own. */
static void episodes(struct harness *h, int mode)
{
    struct proc *p = start(h, mode);
    for (int i = 0; i < 3; i++)
        harness_sqlf(
            h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('%s','doc:x','viewer','user:a')",
            i == 1 ? "write" : "delete");
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_distinct(r), 3);
    assert_last_is_newest(r);
    assert_int_equal(r->changes[r->len - 1].op, 2);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_R13_every_episode_is_sent_wal(void **state)
{
    episodes(*state, WAL);
}

static void test_R13_every_episode_is_sent_poll(void **state)
{
    episodes(*state, POLL);
}

/* One transaction, one clock reading: the order is that of the ids. */
static void test_R17_order_by_id_not_by_clock(void **state)
{
    struct harness *h = *state;
    harness_sql(
        h, "BEGIN; "
           "INSERT INTO relata.outbox (op, object, relation, subject) SELECT CASE WHEN i % 2 = 0 THEN 'write' ELSE "
           "'delete' END, 'doc:x', 'viewer', 'user:' || i % 3 FROM generate_series(1, 60) i; COMMIT");
    for (int mode = WAL; mode <= POLL; mode++) {
        const char *topic = harness_strf(h, "%s.%d", h->topic, mode);
        struct proc *p = relay_start(h, "--set", modes[mode], "--set", "relay.topic_partitions=2", "--set",
                                     harness_strf(h, "relay.topic=%s", topic), "--set",
                                     harness_strf(h, "relay.name=r%d", mode), NULL);
        struct topic_reader *r = topic_read(h, topic);
        assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
        for (size_t i = 1; i < r->len; i++)
            assert_true(r->changes[i].id > r->changes[i - 1].id);
        topic_reader_free(r);
        proc_stop(p);
    }
}

/* ---- one relay at a time ---- */

static bool standing_by(void *arg)
{
    return proc_metric(arg, "relata_relay_standby") == 1;
}

static void two_relays(struct harness *h, int mode)
{
    struct proc *first = start(h, mode);
    struct proc *second = relay_start(h, "--set", modes[mode], NULL);
    assert_eventually(standing_by, second, SOON);
    proc_ready_wait(second, SOON); /* a standby is healthy */
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) "
                   "SELECT 'write', 'doc:x', 'viewer', 'user:' || i FROM generate_series(1, 200) i");
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    for (size_t i = 1; i < r->len; i++) /* one key, one partition: in order, once */
        assert_true(r->changes[i].id > r->changes[i - 1].id);
    assert_int_equal(r->len, 200);
    assert_true(proc_metric(second, "relata_relay_rows_total") == 0);

    proc_kill(first); /* its session and walsender may live on for a moment */
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject) "
                   "SELECT 'write', 'doc:x', 'viewer', 'user:b' || i FROM generate_series(1, 200) i");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_true(proc_metric(second, "relata_relay_standby") == 0);
    assert_last_is_newest(r);
    topic_reader_free(r);
    proc_stop(second);
}

static void test_R05_two_relays_wal(void **state)
{
    two_relays(*state, WAL);
}

static void test_R05_two_relays_poll(void **state)
{
    two_relays(*state, POLL);
}

/* ---- large and idle ---- */

/* One transaction far larger than what may be in flight: memory stays flat, nothing is confirmed before its end. */
static void test_large_transaction_is_not_buffered(void **state)
{
    struct harness *h = *state;
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=4", "--set", "relay.in_flight=2000", NULL);
    assert_logged(p, "msg=streaming", 2 * SOON);
    harness_sql(
        h, "SELECT relata.write_tuples(array_agg('doc:' || i), array_agg('viewer'::text), array_agg('user:a'::text)) "
           "FROM generate_series(1, 60000) i");
    assert_metric_eventually(p, "relata_relay_rows_total", 60000, 120000);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(proc_metric(p, "process_resident_memory_bytes") <= 32 << 20);
#endif
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", 60000);
    assert_int_equal(r->len, 60000);
    topic_reader_free(r);
    proc_stop(p);
}

/* Others write, the outbox is idle: the slot moves on all the same. */
static void test_idle_outbox_pins_no_wal(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, WAL);
    harness_sql(h, "CREATE TABLE public.filler (x text)");
    harness_sql(h, "INSERT INTO public.filler SELECT repeat('x', 500) FROM generate_series(1, 40000)");
    const char *end = harness_strf(h, "%s", harness_sql_text(h, "SELECT pg_current_wal_lsn()"));
    assert_sql_eventually(h,
                          harness_strf(h,
                                       "SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots "
                                       "WHERE slot_name = left('%s', 50)",
                                       end, h->id),
                          "t", SOON);
    proc_stop(p);
}

/* A sleeping poll relay is woken by the transaction; a row of a store that it never saw is found too. */
static void test_poll_wakes_for_known_and_new_stores(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, POLL);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_sql_eventually(h,
                          "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1380270083 "
                          "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                          "t", SOON); /* it sleeps */
    harness_sql(h,
                "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write','doc:1','viewer','user:a')");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    harness_sql(h, "INSERT INTO relata.outbox (store, op, object, relation, subject) "
                   "VALUES ('new', 'write', 'doc:1', 'viewer', 'user:a')");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* Rows of a large store do not keep those of a small one waiting. */
static void test_poll_gives_every_store_its_turn(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "INSERT INTO relata.outbox (store, op, object, relation, subject) "
                   "SELECT 'big', 'write', 'doc:' || i, 'viewer', 'user:a' FROM generate_series(1, 30000) i");
    harness_sql(h, "INSERT INTO relata.outbox (store, op, object, relation, subject) "
                   "SELECT 'small', 'write', 'doc:' || i, 'viewer', 'user:a' FROM generate_series(1, 100) i");
    topic_create(h, h->topic, 1, NULL);
    struct proc *p = relay_start(h, "--set", modes[POLL], "--set", "relay.in_flight=300", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    topic_reader_poll(r, 30100, harness_ms(60000));
    assert_int_equal(topic_distinct(r), 30100);
    size_t last_small = 0;
    for (size_t i = 0; i < r->len; i++)
        if (!strcmp(r->changes[i].store, "small"))
            last_small = i;
    assert_true(last_small < 5000);
    topic_reader_free(r);
    proc_stop(p);
}

/* ---- stopping ---- */

static void test_second_signal_ends_at_once(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, WAL);
    proc_freeze(p);
    proc_signal(p, SIGTERM);
    proc_signal(p, SIGINT);
    proc_continue(p);
    int code = proc_wait(p, 20000);
    assert_true(code == 0 || code == 137);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_carries_rows_wal, PARTS),
        HARNESS_TEST(test_carries_rows_poll, PARTS),
        HARNESS_TEST(test_R11_restart_repeats_nothing_wal, PARTS),
        HARNESS_TEST(test_R11_restart_repeats_nothing_poll, PARTS),
        HARNESS_TEST(test_R01_ids_taken_before_commit_wal, PARTS),
        HARNESS_TEST(test_R01_ids_taken_before_commit_poll, PARTS),
        HARNESS_TEST(test_R02_commit_order_of_overlapping_transactions, PARTS),
        HARNESS_TEST(test_R13_every_episode_is_sent_wal, PARTS),
        HARNESS_TEST(test_R13_every_episode_is_sent_poll, PARTS),
        HARNESS_TEST(test_R17_order_by_id_not_by_clock, PARTS),
        HARNESS_TEST(test_R05_two_relays_wal, PARTS),
        HARNESS_TEST(test_R05_two_relays_poll, PARTS),
        HARNESS_TEST(test_large_transaction_is_not_buffered, PARTS),
        HARNESS_TEST(test_idle_outbox_pins_no_wal, PARTS),
        HARNESS_TEST(test_poll_wakes_for_known_and_new_stores, PARTS),
        HARNESS_TEST(test_poll_gives_every_store_its_turn, PARTS),
        HARNESS_TEST(test_second_signal_ends_at_once, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
