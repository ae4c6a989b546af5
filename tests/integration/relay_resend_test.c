/* outbox-relay: pending rows that no lag explains are sent again, others are not. */
#include <unistd.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define SOON 60000

static const char *const modes[] = {"relay.mode=wal", "relay.mode=poll"};
enum { WAL, POLL };

static void grants(struct harness *h, const char *word, int n)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject) "
                 "SELECT 'write', 'doc:' || i %% 50, 'viewer', 'user:%s' || i FROM generate_series(1, %d) i",
                 word, n);
}

static void let_pass(int ms)
{
    mono_us end = deadline_in_ms(ms);
    while (clock_mono_us() < end)
        usleep(10000);
}

static struct proc *resending(struct harness *h, int mode)
{
    struct proc *p =
        relay_start(h, "--set", modes[mode], "--set", "relay.topic_partitions=3", "--set", "relay.resend_after=2s",
                    "--set", "relay.writer_group=w.%s", "--set", "kafka.topic.metadata.refresh.interval.ms=500", NULL);
    proc_ready_wait(p, SOON);
    if (mode == WAL) /* before that, what is sent may be sent once more by the new stream */
        assert_logged(p, "msg=streaming", SOON);
    return p;
}

/* While the writers have not read it all, there is an explanation. When they have, the rows are sent again. */
static void lost_by_the_writers(struct harness *h, int mode)
{
    struct proc *p = resending(h, mode);
    struct topic_reader *r = topic_read_as(h, h->topic, "w.default");
    grants(h, "a", 300);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    let_pass(6000);
    assert_true(proc_metric(p, "relata_relay_resent_rows_total") == 0);
    harness_sql(h, "DELETE FROM relata.outbox WHERE id % 3 <> 0"); /* applied */
    topic_reader_commit(r);
    assert_metric_eventually(p, "relata_relay_resends_total", 1, SOON);
    int64_t pending = harness_sql_int(h, "SELECT count(*) FROM relata.outbox");
    assert_true(proc_metric(p, "relata_relay_resent_rows_total") == (double)pending);
    topic_reader_poll(r, 300 + (size_t)pending, harness_ms(SOON));
    assert_int_equal(r->len, 300 + pending);
    assert_last_is_newest(r);
    assert_true(proc_logged(p, "changes sent again"));
    topic_reader_free(r);
    proc_stop(p);
}

static void test_rows_lost_by_the_writers_are_sent_again_wal(void **state)
{
    lost_by_the_writers(*state, WAL);
}

static void test_rows_lost_by_the_writers_are_sent_again_poll(void **state)
{
    lost_by_the_writers(*state, POLL);
}

/* What is read is committed, repetitions too: what nobody has read would explain the pending rows. */
static bool all_came(void *arg)
{
    struct topic_reader *r = arg;
    topic_reader_poll(r, r->len + 10000, 200);
    topic_reader_commit(r);
    return (int64_t)topic_distinct(r) == harness_sql_int(r->h, "SELECT count(*) FROM relata.outbox");
}

static void topic_wiped(struct harness *h, int mode, bool made_anew)
{
    struct proc *p = resending(h, mode);
    struct topic_reader *r = topic_read_as(h, h->topic, "w.default");
    grants(h, "a", 300);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_freeze(p); /* what is committed may be sent again soon, and would make the topic again too early */
    topic_reader_commit(r);
    topic_reader_free(r);
    topic_delete(h, h->topic);
    if (made_anew)
        topic_create(h, h->topic, 5, NULL);
    proc_continue(p);
    grants(h, "b", 100);
    r = topic_read_as(h, h->topic, "w.default");
    assert_topic_has(r, "SELECT id FROM relata.outbox WHERE subject LIKE 'user:b%'", SOON);
    assert_eventually(all_came, r, SOON);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_topic_wiped_and_made_anew_wal(void **state)
{
    topic_wiped(*state, WAL, true);
}

static void test_topic_wiped_wal(void **state)
{
    topic_wiped(*state, WAL, false); /* the relay makes it */
}

static void test_topic_wiped_poll(void **state)
{
    topic_wiped(*state, POLL, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_rows_lost_by_the_writers_are_sent_again_wal, PARTS),
        HARNESS_TEST(test_rows_lost_by_the_writers_are_sent_again_poll, PARTS),
        HARNESS_TEST(test_topic_wiped_and_made_anew_wal, PARTS),
        HARNESS_TEST(test_topic_wiped_wal, PARTS),
        HARNESS_TEST(test_topic_wiped_poll, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
