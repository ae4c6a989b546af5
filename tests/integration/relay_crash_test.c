/* outbox-relay when Postgres restarts, and when it is itself killed or paused. */
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

static void let_pass(int ms)
{
    mono_us end = deadline_in_ms(ms);
    while (clock_mono_us() < end)
        usleep(10000);
}

/* ---- Postgres ---- */

static void postgres_restart(struct harness *h, int mode)
{
    struct proc *p = start(h, mode);
    struct topic_reader *r = topic_read(h, h->topic);
    struct err err;
    proc_ready_wait(p, SOON);
    for (int i = 0; i < 3; i++) {
        grants(h, harness_strf(h, "r%d-", i), 200);
        if (i < 2)
            harness_service(h, i == 0 ? "restart" : "kill", "postgres");
        if (i == 1)
            harness_service(h, "start", "postgres");
        if (i < 2 && pg_reopen(h->pg, deadline_in_ms(SOON), &err) != ST_OK)
            fail_msg("%s", err.text);
    }
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    proc_ready_wait(p, SOON);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_postgres_restart_wal(void **state)
{
    postgres_restart(*state, WAL);
}

static void test_postgres_restart_poll(void **state)
{
    postgres_restart(*state, POLL);
}

/* ---- the relay itself ---- */

/* Killed again and again while rows come in: every row is sent, and each tuple's last message is its last change. */
static void kill_loop(struct harness *h, int mode)
{
    uint64_t seed = harness_seed();
    struct topic_reader *r = topic_read(h, h->topic);
    struct proc *p = NULL;
    for (int i = 0; i < harness_soak(80); i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407U;
        if (!p)
            p = start(h, mode);
        harness_sqlf(
            h,
            "INSERT INTO relata.outbox (op, object, relation, subject) SELECT CASE WHEN (i + %d) %% 3 = 0 THEN "
            "'delete' ELSE 'write' END, 'doc:' || i %% 7, 'viewer', 'user:' || i %% 5 FROM generate_series(1, %d) i",
            i, 1 + (int)(seed >> 33) % 400);
        let_pass((int)(seed >> 40) % 700);
        topic_reader_poll(r, r->len + 1, 1);
        if ((seed >> 50) % 4 != 0) {
            proc_kill(p);
            p = NULL;
        }
    }
    if (!p)
        p = start(h, mode);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_killed_again_and_again_wal(void **state)
{
    kill_loop(*state, WAL);
}

static void test_killed_again_and_again_poll(void **state)
{
    kill_loop(*state, POLL);
}

static bool standing_by(void *arg)
{
    return proc_metric(arg, "relata_relay_standby") == 1;
}

/* The active one is paused until its session is gone, another takes over, the first one comes back. */
static void paused(struct harness *h, int mode)
{
    struct proc *a = start(h, mode);
    proc_ready_wait(a, SOON);
    struct proc *b = start(h, mode);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_eventually(standing_by, b, SOON);
    grants(h, "a", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_freeze(a);
    grants(h, "b", 100);
    harness_sql(h,
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1380270084 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())");
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    grants(h, "c", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_true(proc_metric(b, "relata_relay_standby") == 0);
    proc_continue(a);
    assert_eventually(standing_by, a, SOON);
    grants(h, "d", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(a);
    proc_stop(b);
}

static void test_paused_relay_is_replaced_wal(void **state)
{
    paused(*state, WAL);
}

static void test_paused_relay_is_replaced_poll(void **state)
{
    paused(*state, POLL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_postgres_restart_wal, PARTS | HARNESS_OWN_PG),
        HARNESS_TEST(test_postgres_restart_poll, PARTS | HARNESS_OWN_PG),
        HARNESS_TEST(test_killed_again_and_again_wal, PARTS),
        HARNESS_TEST(test_killed_again_and_again_poll, PARTS),
        HARNESS_TEST(test_paused_relay_is_replaced_wal, PARTS),
        HARNESS_TEST(test_paused_relay_is_replaced_poll, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
