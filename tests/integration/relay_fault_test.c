/* outbox-relay when Kafka fails: down, frozen, full, without a topic, with more partitions. */
#include <signal.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define SOON 60000

static const char *const modes[] = {"relay.mode=wal", "relay.mode=poll"};
enum { WAL, POLL };

static struct proc *start(struct harness *h, int mode)
{
    return relay_start(h, "--set", modes[mode], "--set", "relay.topic_partitions=3", NULL);
}

static void grants(struct harness *h, const char *word, int n)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject) "
                 "SELECT 'write', 'doc:' || i %% 50, 'viewer', 'user:%s' || i FROM generate_series(1, %d) i",
                 word, n);
}

/* Seconds of an outage: all of it in `make soak`. */
static int outage_ms(void)
{
    return harness_soak(60000);
}

static void let_pass(int ms)
{
    mono_us end = deadline_in_ms(ms);
    while (clock_mono_us() < end)
        usleep(10000);
}

static const char *slot_is_behind(struct harness *h, const char *lsn)
{
    return harness_strf(h, "SELECT confirmed_flush_lsn < '%s' FROM pg_replication_slots WHERE database = '%s'", lsn,
                        h->id);
}

/* ---- Kafka ---- */

/* Nothing counts as sent before its report: neither the slot moves nor the recorded snapshot. */
static void kafka_frozen(struct harness *h, int mode)
{
    struct proc *p = start(h, mode);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    if (mode == WAL)
        assert_logged(p, "msg=streaming", SOON);
    grants(h, "a", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    harness_service(h, "freeze", "kafka");
    const char *snapshot = harness_strf(h, "%s", harness_sql_text(h, "SELECT poll_snapshot FROM relata.relay"));
    const char *pid = harness_strf(
        h, "%s", harness_sql_text(h, "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_replication"));
    grants(h, "b", 100);
    const char *lsn = harness_strf(h, "%s", harness_sql_text(h, "SELECT pg_current_wal_insert_lsn()"));
    assert_metric_eventually(p, "relata_relay_in_flight", 100, SOON);
    let_pass(outage_ms()); /* longer than the server waits for its standbys: feedback goes on */
    if (mode == WAL) {
        assert_string_equal(harness_sql_text(h, slot_is_behind(h, lsn)), "t");
        assert_string_equal(
            harness_sql_text(h, "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_replication"), pid);
    } else {
        assert_true(
            harness_sql_int(h, harness_strf(h, "SELECT count(*) FROM relata.outbox WHERE subject LIKE 'user:b%%' "
                                               "AND pg_visible_in_snapshot(xid, (SELECT poll_snapshot FROM "
                                               "relata.relay))")) == 0);
        assert_true(strlen(snapshot) > 0);
    }
    harness_service(h, "continue", "kafka");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    if (mode == WAL)
        assert_sql_eventually(h, slot_is_behind(h, lsn), "f", SOON);
    assert_true(proc_metric(p, "relata_relay_replays_total") == 0);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_R07_nothing_is_sent_before_its_report_wal(void **state)
{
    kafka_frozen(*state, WAL);
}

static void test_R07_nothing_is_sent_before_its_report_poll(void **state)
{
    kafka_frozen(*state, POLL);
}

static bool kafka_is_down(void *arg)
{
    const char *body;
    return proc_get(arg, "/readyz", &body) == 503 && strstr(body, "kafka") != NULL;
}

static void kafka_down(struct harness *h, int mode)
{
    struct proc *p = start(h, mode);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    grants(h, "a", 200);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    harness_service(h, "kill", "kafka");
    grants(h, "b", 200);
    assert_eventually(kafka_is_down, p, SOON);
    let_pass(outage_ms());
    grants(h, "c", 200);
    harness_service(h, "restart", "kafka");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    proc_ready_wait(p, SOON);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_R04_kafka_down_60s_wal(void **state)
{
    kafka_down(*state, WAL);
}

static void test_R04_kafka_down_60s_poll(void **state)
{
    kafka_down(*state, POLL);
}

/* Messages that time out are sent again, all from the first one on, so that the order of each key holds. */
static void test_R04_timed_out_messages_are_sent_again(void **state)
{
    struct harness *h = *state;
    struct proc *p =
        relay_start(h, "--set", "relay.topic_partitions=3", "--set", "kafka.message.timeout.ms=1500", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    harness_service(h, "freeze", "kafka");
    grants(h, "a", 200);
    assert_metric_eventually(p, "relata_relay_delivery_failures_total", 1, SOON);
    grants(h, "b", 200);
    assert_metric_eventually(p, "relata_relay_replays_total", 1, SOON);
    harness_service(h, "continue", "kafka");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    proc_ready_wait(p, SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* The broker's disk is full: it ends; with room again it goes on, and nothing is missing. */
static void test_disk_full_for_kafka(void **state)
{
    struct harness *h = *state;
    struct proc *p = start(h, WAL);
    proc_ready_wait(p, SOON);
    struct topic_reader *r = topic_read(h, h->topic);
    grants(h, "a", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    /* The small file system lives in a mount namespace of its own, held by a process: it is reached through /proc. */
    const char *filler =
        harness_strf(h, "/proc/%d/root%s/s/kafka/data/filler", harness_service_pid(h, "kafka/disk"), h->dir);
    FILE *f = fopen(filler, "w");
    assert_non_null(f);
    char block[65536];
    memset(block, 'x', sizeof block);
    assert_int_equal(setvbuf(f, NULL, _IONBF, 0), 0);
    while (fwrite(block, 1, sizeof block, f) == sizeof block)
        ;
    for (int i = 0; i < 20; i++) {
        grants(h, harness_strf(h, "b%d-", i), 1000);
        if (kafka_is_down(p))
            break;
    }
    assert_eventually(kafka_is_down, p, SOON);
    int64_t rows = harness_sql_int(h, "SELECT count(*) FROM relata.outbox");
    assert_true(proc_metric(p, "relata_relay_rows_total") < (double)rows);
    fclose(f);
    assert_int_equal(unlink(filler), 0);
    harness_service(h, "restart", "kafka");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_partition_count_raised(void **state)
{
    struct harness *h = *state;
    topic_create(h, h->topic, 2, NULL);
    struct proc *p = relay_start(h, "--set", "kafka.topic.metadata.refresh.interval.ms=300", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    grants(h, "a", 200);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_grow(h, h->topic, 7);
    int beyond = 0;
    for (int i = 0; i < 200 && !beyond; i++) {
        grants(h, harness_strf(h, "b%d-", i), 50);
        assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
        for (size_t j = 0; j < r->len; j++)
            beyond += r->changes[j].partition > 1;
    }
    assert_true(beyond > 0);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_missing_topic_is_waited_for(void **state)
{
    struct harness *h = *state;
    const char *body;
    struct proc *p = relay_start(h, NULL);
    grants(h, "a", 10);
    assert_logged(p, "does not exist: create it, or set relay.topic_partitions", SOON);
    assert_int_equal(proc_get(p, "/readyz", &body), 503);
    assert_non_null(strstr(body, "does not exist"));
    topic_create(h, h->topic, 2, NULL);
    proc_ready_wait(p, SOON);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* SIGTERM while Kafka does not answer: ends within the bound, and the next one sends what was open. */
static void test_drain_is_bounded(void **state)
{
    struct harness *h = *state;
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=3", "--set", "relay.drain_timeout=1s", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    harness_service(h, "freeze", "kafka");
    grants(h, "a", 100);
    assert_metric_eventually(p, "relata_relay_in_flight", 100, SOON);
    proc_stop(p);
    assert_true(proc_logged(p, "unacknowledged=100"));
    harness_service(h, "continue", "kafka");
    p = start(h, WAL);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* SIGTERM while a call of the upkeep hangs: it is cancelled, not waited for. */
static void test_a_hanging_upkeep_does_not_hold_the_end_up(void **state)
{
    struct harness *h = *state;
    struct proc *p =
        relay_start(h, "--set", "relay.topic_partitions=1", "--set", "relay.maintain_interval=100ms", NULL);
    assert_logged(p, "msg=streaming", SOON); /* making the slot would wait for the lock's transaction, too */
    struct pg *other = harness_connect(h, NULL);
    struct err err;
    if (pg_exec(other, "BEGIN; LOCK TABLE relata.request", deadline_in_ms(harness_ms(SOON)), &err) != ST_OK)
        fail_msg("%s", err.text);
    const char *hangs = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
                        "application_name LIKE 'outbox-relay%' AND wait_event_type = 'Lock'";
    assert_sql_eventually(h, hangs, "1", SOON);
    proc_signal(p, SIGTERM);
    assert_int_equal(proc_wait(p, 15000), 0); /* the call itself would take 30 s */
    assert_false(proc_logged(p, "upkeep does not end"));
    assert_sql_eventually(h, hangs, "0", SOON);
    pg_close(other);
}

static const char *const impatient[] = {"--pg-set=wal_sender_timeout=3s", NULL};
static const char *const small_disk[] = {"--kafka-disk=64M", "--kafka-set=log.segment.bytes=1048576", NULL};

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST_OPTIONS(test_R07_nothing_is_sent_before_its_report_wal, PARTS | HARNESS_OWN_KAFKA | HARNESS_OWN_PG,
                             impatient),
        HARNESS_TEST(test_R07_nothing_is_sent_before_its_report_poll, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_R04_kafka_down_60s_wal, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_R04_kafka_down_60s_poll, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_R04_timed_out_messages_are_sent_again, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST_OPTIONS(test_disk_full_for_kafka, PARTS | HARNESS_OWN_KAFKA, small_disk),
        HARNESS_TEST(test_partition_count_raised, PARTS),
        HARNESS_TEST(test_missing_topic_is_waited_for, PARTS),
        HARNESS_TEST(test_drain_is_bounded, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_a_hanging_upkeep_does_not_hold_the_end_up, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
