/* relay_settings_test.c - O02: settings of outbox-relay change what it does. Modes, topic_partitions, resend_after and
 * drain_timeout are shown by the tests of what they are for; tests/cli/relay_options.sh tells what is refused. */
#include "common/kafka/kafka.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define SOON 30000

static void grants(struct harness *h, const char *word, int n)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject) "
                 "SELECT 'write', 'doc:%s' || i, 'viewer', 'user:a' FROM generate_series(1, %d) i",
                 word, n);
}

static void test_O02_name_slot_publication_and_topic(void **state)
{
    struct harness *h = *state;
    const char *slot = harness_strf(h, "%.40s_mine", h->id), *topic = harness_strf(h, "%s.mine", h->topic);
    harness_sql(h, "CREATE PUBLICATION mine FOR TABLE relata.outbox WITH (publish = 'insert')");
    harness_sql(h, "DROP PUBLICATION relata_outbox");
    struct proc *p = relay_start(h, "--set", "relay.name=mine", "--set", harness_strf(h, "relay.slot=%s", slot),
                                 "--set", "relay.publication=mine", "--set", harness_strf(h, "relay.topic=%s", topic),
                                 "--set", "relay.topic_partitions=3", "--set", "relay.topic_replication=1", NULL);
    struct topic_reader *r = topic_read(h, topic);
    proc_ready_wait(p, SOON);
    assert_logged(p, "msg=streaming", SOON);
    grants(h, "x", 30);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_string_equal(harness_sql_text(h, "SELECT name || ' ' || slot FROM relata.relay"),
                        harness_strf(h, "mine %s", slot));
    assert_string_equal(harness_sql_text(h, "SELECT slot_name FROM pg_replication_slots WHERE active AND database = "
                                            "current_database()"),
                        slot);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-relay "
                                        "mine' AND datname = current_database()") > 0,
                     1);
    topic_reader_free(r);
    proc_stop(p);
}

/* Five at most wait for their reports, however many there are to be sent. */
static void test_O02_in_flight(void **state)
{
    struct harness *h = *state;
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=1", "--set", "relay.in_flight=5", NULL);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_ready_wait(p, SOON);
    harness_service(h, "freeze", "kafka");
    grants(h, "x", 50);
    assert_metric_eventually(p, "relata_relay_in_flight", 5, SOON);
    assert_true(proc_metric(p, "relata_relay_in_flight") == 5);
    harness_service(h, "continue", "kafka");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_true(proc_metric(p, "relata_relay_in_flight") <= 5);
    topic_reader_free(r);
    proc_stop(p);
}

static bool swept(void *arg)
{
    struct harness *h = arg;
    return harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter") == 0;
}

/* Upkeep comes at start, then when its pause is over: what falls due meanwhile waits for that. */
static void test_O02_maintain_interval(void **state)
{
    struct harness *h = *state;
    const char *old =
        "INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, created_at, code, "
        "reason, attempts, closed_at, closed_how) VALUES (1, 'default', 'write', 'doc:1', 'viewer', "
        "'user:a', '2000-01-01', 'x', 'x', 1, '2000-01-01', 'dropped')";
    harness_sql(h, old);
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=1", "--set", "relay.maintain_interval=1h", NULL);
    assert_eventually(swept, h, SOON);
    harness_sql(h, old);
    grants(h, "x", 10);
    assert_metric_eventually(p, "relata_relay_rows_total", 10, SOON);
    assert_false(swept(h));
    proc_stop(p);
    p = relay_start(h, "--set", "relay.topic_partitions=1", "--set", "relay.maintain_interval=100ms", NULL);
    assert_eventually(swept, h, SOON);
    harness_sql(h, old);
    assert_eventually(swept, h, SOON);
    proc_stop(p);
}

/* Others write and nothing of it concerns us: the slot does not keep their WAL, and the metrics tell so. */
static void test_O02_the_slot_follows_what_others_write(void **state)
{
    struct harness *h = *state;
    struct proc *p = relay_start(h, "--set", "relay.topic_partitions=1", "--set", "relay.heartbeat_interval=100ms",
                                 "--set", "relay.status_interval=100ms", NULL);
    proc_ready_wait(p, SOON);
    assert_logged(p, "msg=streaming", SOON);
    proc_freeze(p); /* the slot falls behind */
    harness_sql(h, "CREATE TABLE public.others (x text)");
    harness_sql(h, "INSERT INTO public.others SELECT repeat('x', 500) FROM generate_series(1, 20000)");
    const char *end = harness_sql_text(h, "SELECT pg_current_wal_insert_lsn()");
    proc_continue(p);
    assert_sql_eventually(h,
                          harness_strf(h,
                                       "SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots WHERE database = "
                                       "current_database()",
                                       end),
                          "t", SOON);
    assert_metric_eventually(p, "relata_relay_slot_retained_bytes", 1, SOON);
    assert_true(proc_metric(p, "relata_relay_slot_behind_bytes") >= 0);
    assert_true(proc_metric(p, "relata_relay_confirmed_age_seconds") >= 0);
    assert_true(proc_metric(p, "relata_relay_handover_running") == 0);
    proc_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_O02_name_slot_publication_and_topic, PARTS),
        HARNESS_TEST(test_O02_in_flight, PARTS | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_O02_maintain_interval, PARTS),
        HARNESS_TEST(test_O02_the_slot_follows_what_others_write, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
