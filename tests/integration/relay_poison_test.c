/* outbox-relay: rows that can never be a message of the topic, and batches that the topic does not take. */
#include <pthread.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define SOON 60000

static void small(struct harness *h, int from, int to)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject) "
                 "SELECT 'write', 'doc:' || i, 'viewer', 'user:a' FROM generate_series(%d, %d) i",
                 from, to);
}

/* A row whose message has about `bytes` bytes. */
static void large(struct harness *h, const char *object, int bytes)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject, actor) "
                 "VALUES ('write', '%s', 'viewer', 'user:a', repeat('x', %d))",
                 object, bytes);
}

/* 20 small ones around a big one: in one transaction, so that they share batches. */
static void mixture(struct harness *h, int bytes)
{
    harness_sql(h, "BEGIN");
    small(h, 1, 10);
    large(h, "doc:big", bytes);
    small(h, 11, 20);
    harness_sql(h, "COMMIT");
}

static void check_mixture(struct harness *h, struct proc *p, const char *code)
{
    struct topic_reader *r = topic_read(h, h->topic);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL", "1", SOON);
    assert_string_equal(harness_sql_text(h, "SELECT object FROM relata.dead_letter"), "doc:big");
    assert_string_equal(harness_sql_text(h, "SELECT code FROM relata.dead_letter"), code);
    assert_true(harness_sql_int(h, "SELECT length(reason) FROM relata.dead_letter") > 10);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.outbox WHERE object = 'doc:big'"), 0);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_distinct(r), 20);
    assert_last_is_newest(r);
    assert_true(proc_metric(p, "relata_relay_dead_letters_total") == 1);
    assert_true(proc_logged(p, "change parked"));
    small(h, 21, 30); /* it goes on */
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
}

/* Over the client's own limit: seen before anything is sent. */
static void over_client_limit(struct harness *h, const char *mode)
{
    topic_create(h, h->topic, 1, NULL);
    mixture(h, 60000);
    struct proc *p = relay_start(h, "--set", mode, "--set", "kafka.message.max.bytes=20000", NULL);
    check_mixture(h, p, "MSG_SIZE_TOO_LARGE");
    assert_true(proc_metric(p, "relata_relay_replays_total") == 0);
    proc_stop(p);
}

static void test_R08_oversize_row_between_small_ones_wal(void **state)
{
    over_client_limit(*state, "relay.mode=wal");
}

static void test_R08_oversize_row_between_small_ones_poll(void **state)
{
    over_client_limit(*state, "relay.mode=poll");
}

/* Over the topic's limit: the broker refuses whole batches, and the small ones must not suffer. */
static void over_topic_limit(struct harness *h, const char *mode)
{
    topic_create(h, h->topic, 1, "max.message.bytes=20000");
    struct proc *p = relay_start(h, "--set", mode, "--set", "kafka.linger.ms=200", NULL);
    proc_ready_wait(p, SOON);
    mixture(h, 60000);
    check_mixture(h, p, "MSG_SIZE_TOO_LARGE");
    proc_stop(p);
}

static void test_R08_refused_by_the_broker_wal(void **state)
{
    over_topic_limit(*state, "relay.mode=wal");
}

static void test_R08_refused_by_the_broker_poll(void **state)
{
    over_topic_limit(*state, "relay.mode=poll");
}

/* Every row fits, a full batch does not: none may be parked. */
static void test_batches_over_the_topics_limit(void **state)
{
    struct harness *h = *state;
    topic_create(h, h->topic, 1, "max.message.bytes=4000");
    small(h, 1, 3000);
    struct proc *p = relay_start(h, "--set", "kafka.linger.ms=50", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    assert_int_equal(topic_distinct(r), 3000);
    topic_reader_free(r);
    proc_stop(p);
}

/* A newer change of the parked key goes its way; a second oversize one takes the open dead letter's place. */
static void test_a_parked_key_is_not_stuck(void **state)
{
    struct harness *h = *state;
    topic_create(h, h->topic, 1, NULL);
    struct proc *p = relay_start(h, "--set", "kafka.message.max.bytes=20000", NULL);
    assert_logged(p, "msg=streaming", SOON);
    struct topic_reader *r = topic_read(h, h->topic);
    large(h, "doc:big", 60000);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter", "1", SOON);
    large(h, "doc:big", 70000);
    assert_sql_eventually(h, "SELECT attempts FROM relata.dead_letter", "2", SOON);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 1);
    assert_int_equal(harness_sql_int(h, "SELECT length(actor) FROM relata.dead_letter"), 70000);
    harness_sql(
        h, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete','doc:big','viewer','user:a')");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(r->len, 1);
    topic_reader_free(r);
    proc_stop(p);
}

static void *insert_and_wait(void *arg)
{
    struct err err;
    /* Returns when a standby has answered, that is, when the test gives up on standbys. */
    return pg_exec(arg,
                   "INSERT INTO relata.outbox (op, object, relation, subject, actor) "
                   "VALUES ('write', 'doc:big', 'viewer', 'user:a', repeat('x', 60000))",
                   deadline_in_ms(120000), &err) == ST_OK
               ? arg
               : NULL;
}

static struct pg *waits_for_a_standby(struct harness *h)
{
    harness_sql(h, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    harness_sql(h, "SELECT pg_reload_conf()");
    harness_commits_wait(h);
    return harness_connect(h, NULL);
}

/* With synchronous replication the stream brings a row before queries show it. If it is refused then, it is neither
 * gone nor to be passed over: nothing is confirmed beyond it until it is parked; its neighbours go on. */
static void test_R08_refused_row_that_is_not_visible_yet(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "SET synchronous_commit = local");
    topic_create(h, h->topic, 1, NULL);
    struct proc *p = relay_start(h, "--set", "kafka.message.max.bytes=20000", "--set", "relay.resend_after=0", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    assert_logged(p, "msg=streaming", SOON);
    struct pg *t = waits_for_a_standby(h);
    const char *before = harness_sql_text(h, "SELECT pg_current_wal_insert_lsn()");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, insert_and_wait, t), 0);
    assert_sql_eventually(h,
                          harness_strf(h, "SELECT wait_event FROM pg_stat_activity WHERE pid = %d", pg_backend_pid(t)),
                          "SyncRep", SOON);
    const char *after = harness_sql_text(h, "SELECT pg_current_wal_insert_lsn()");
    for (int i = 0; i < 5; i++) { /* transactions of their own, all behind it */
        small(h, 10 * i + 1, 10 * i + 10);
        assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    }
    assert_true(proc_metric(p, "relata_relay_dead_letters_total") == 0);
    assert_metric_eventually(p, "relata_relay_hidden_rows", 1, SOON);
    assert_false(proc_logged(p, "change parked"));
    const char *slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()";
    assert_string_equal(harness_sql_text(h, harness_strf(h, "SELECT (%s) <= '%s'::pg_lsn", slot, after)), "t");

    harness_sql(h, "ALTER SYSTEM RESET synchronous_standby_names");
    harness_sql(h, "SELECT pg_reload_conf()");
    void *committed;
    pthread_join(thread, &committed);
    assert_non_null(committed);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter WHERE object = 'doc:big'", "1", SOON);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox WHERE object = 'doc:big'", "0", SOON);
    assert_sql_eventually(h, harness_strf(h, "SELECT (%s) > '%s'::pg_lsn", slot, before), "t", SOON);
    assert_true(proc_metric(p, "relata_relay_replays_total") == 0);
    pg_close(t);
    topic_reader_free(r);
    proc_stop(p);
}

/* The database refuses such a row; if its guards are taken away, the relay's second check parks it. */
static void test_R10_row_without_key(void **state)
{
    struct harness *h = *state;
    harness_sql(h, "ALTER TABLE relata.outbox DISABLE TRIGGER ALL");
    harness_sql(h,
                "INSERT INTO relata.outbox (id, op, object, relation, subject, xid, created_at, key) "
                "SELECT nextval('relata.outbox_id'), 'write', CASE WHEN i = 5 THEN '' ELSE 'doc:' || i END, 'viewer', "
                "'user:a', pg_current_xact_id(), clock_timestamp(), i FROM generate_series(1, 9) i");
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=1", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_sql_eventually(h, "SELECT code FROM relata.dead_letter WHERE object = ''", "row_incomplete", SOON);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_distinct(r), 8);
    topic_reader_free(r);
    proc_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_R08_oversize_row_between_small_ones_wal, PARTS),
        HARNESS_TEST(test_R08_oversize_row_between_small_ones_poll, PARTS),
        HARNESS_TEST(test_R08_refused_by_the_broker_wal, PARTS),
        HARNESS_TEST(test_R08_refused_by_the_broker_poll, PARTS),
        HARNESS_TEST(test_batches_over_the_topics_limit, PARTS),
        HARNESS_TEST(test_a_parked_key_is_not_stuck, PARTS),
        HARNESS_TEST(test_R08_refused_row_that_is_not_visible_yet, PARTS | HARNESS_OWN_PG),
        HARNESS_TEST(test_R10_row_without_key, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
