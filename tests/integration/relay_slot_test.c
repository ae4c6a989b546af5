/* outbox-relay and its replication slot: lost, invalidated, foreign, forbidden, and made anew under open transactions.
 */
#include <pthread.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/topic.h"

#define PARTS (HARNESS_DB | HARNESS_KAFKA)
#define OWN (PARTS | HARNESS_OWN_PG)
#define SOON 30000

static void exec(struct pg *pg, const char *sql)
{
    struct err err;
    if (pg_exec(pg, sql, deadline_in_ms(harness_ms(SOON)), &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

static void grants(struct harness *h, const char *word, int n)
{
    harness_sqlf(h,
                 "INSERT INTO relata.outbox (op, object, relation, subject) "
                 "SELECT 'write', 'doc:%s' || i, 'viewer', 'user:a' FROM generate_series(1, %d) i",
                 word, n);
}

static const char *slot_name(struct harness *h)
{
    return harness_strf(h, "%.50s", h->id);
}

static struct proc *start(struct harness *h)
{
    return relay_start(h, "--set", "relay.topic_partitions=2", NULL);
}

static struct proc *start_ready(struct harness *h)
{
    struct proc *p = start(h);
    proc_ready_wait(p, SOON);
    assert_logged(p, "msg=streaming", SOON);
    return p;
}

static void drop_slot(struct harness *h)
{
    for (mono_us end = deadline_in_ms(harness_ms(SOON)); clock_mono_us() < end;) {
        struct err err;
        harness_sqlf(h,
                     "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '%s' "
                     "AND active_pid IS NOT NULL",
                     slot_name(h));
        if (pg_exec(h->pg, harness_strf(h, "SELECT pg_drop_replication_slot('%s')", slot_name(h)), deadline_in_ms(5000),
                    &err) == ST_OK)
            return;
    }
    fail_msg("the slot could not be dropped");
}

static const char *handover(struct harness *h)
{
    return harness_sql_text(h, "SELECT coalesce(handover, '') FROM relata.relay WHERE name = 'main'");
}

/* ---- lost slots ---- */

static void test_slot_dropped_while_stopped(void **state)
{
    struct harness *h = *state;
    struct proc *p = start_ready(h);
    struct topic_reader *r = topic_read(h, h->topic);
    grants(h, "a", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_stop(p);
    drop_slot(h);
    grants(h, "b", 100); /* in no slot's stream */
    p = start_ready(h);
    grants(h, "c", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    assert_true(proc_logged(p, "why=\"the slot is missing\""));
    assert_true(proc_metric(p, "relata_relay_handovers_total") == 1);
    topic_reader_free(r);
    proc_stop(p);
}

static void test_slot_dropped_while_running(void **state)
{
    struct harness *h = *state;
    struct proc *p = start_ready(h);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_freeze(p);
    drop_slot(h);
    grants(h, "a", 100);
    proc_continue(p);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_metric_eventually(p, "relata_relay_handovers_total", 1, SOON);
    grants(h, "b", 100);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* The server gives the slot up because it keeps too much WAL. */
static void test_slot_invalidated_by_max_slot_wal_keep_size(void **state)
{
    struct harness *h = *state;
    struct proc *p = start_ready(h);
    struct topic_reader *r = topic_read(h, h->topic);
    harness_sql(h, "CREATE TABLE public.filler (x text)");
    grants(h, "a", 50);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_freeze(p);
    grants(h, "b", 50);
    for (int i = 0; i < 40; i++) {
        harness_sql(h, "INSERT INTO public.filler SELECT repeat('x', 500) FROM generate_series(1, 20000)");
        harness_sql(h, "SELECT pg_switch_wal()");
        harness_sql(h, "CHECKPOINT");
        if (!strcmp(harness_sql_text(h, harness_strf(h,
                                                     "SELECT wal_status FROM pg_replication_slots WHERE slot_name = "
                                                     "'%s'",
                                                     slot_name(h))),
                    "lost"))
            break;
    }
    assert_string_equal(harness_sql_text(h, harness_strf(h,
                                                         "SELECT wal_status FROM pg_replication_slots WHERE "
                                                         "slot_name = '%s'",
                                                         slot_name(h))),
                        "lost");
    proc_continue(p);
    grants(h, "c", 50);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_logged(p, "max_slot_wal_keep_size", SOON);
    assert_sql_eventually(h, "SELECT handover FROM relata.relay", "complete", SOON);
    grants(h, "d", 50);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* The slot stands at a time when the publication did not exist yet. */
static void test_publication_made_after_the_slot(void **state)
{
    struct harness *h = *state;
    struct proc *p = start_ready(h);
    proc_stop(p);
    harness_sql(h, "DROP PUBLICATION relata_outbox");
    grants(h, "a", 10);
    p = start(h);
    assert_logged(p, "CREATE PUBLICATION", SOON);
    const char *body;
    assert_int_equal(proc_get(p, "/readyz", &body), 503);
    assert_non_null(strstr(body, "CREATE PUBLICATION relata_outbox"));
    harness_sql(h, "CREATE PUBLICATION relata_outbox FOR TABLE relata.outbox WITH (publish = 'insert')");
    grants(h, "b", 10);
    struct topic_reader *r = topic_read(h, h->topic);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_ready_wait(p, SOON);
    grants(h, "c", 10);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* ---- handover under open transactions ---- */

static void wait_for_lock_on(struct harness *h, const char *xid)
{
    assert_sql_eventually(h,
                          harness_strf(h,
                                       "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
                                       "WHERE a.application_name = 'outbox-relay main slot' AND NOT l.granted "
                                       "AND l.locktype = 'transactionid' AND l.transactionid::text = '%s'",
                                       xid),
                          "t", SOON);
}

static struct pg *open_transaction(struct harness *h, const char **xid)
{
    struct pg *pg = harness_connect(h, NULL);
    struct pg_result *out = NULL;
    struct err err;
    exec(pg, "BEGIN");
    if (pg_query(pg, NULL, "SELECT pg_current_xact_id()", NULL, 0, deadline_in_ms(SOON), &out, &err) != ST_OK)
        fail_msg("%s", err.text);
    *xid = harness_strf(h, "%s", pg_text(out, 0, 0));
    pg_result_free(out);
    return pg;
}

/* Killed while it waits for the slot, killed while it waits for those that began meanwhile; rows flow all the time. */
static void test_crash_in_the_middle_of_a_handover(void **state)
{
    struct harness *h = *state;
    const char *xid_a, *xid_b, *xid_t;
    struct pg *a = open_transaction(h, &xid_a);
    exec(a,
         "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:open', 'viewer', 'user:a')");
    grants(h, "before", 20);
    struct proc *p = start(h);
    struct topic_reader *r = topic_read(h, h->topic);
    wait_for_lock_on(h, xid_a);
    grants(h, "meanwhile", 20);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_string_equal(handover(h), "started");
    assert_int_equal(proc_get(p, "/readyz", NULL), 200); /* it carries changes */
    proc_kill(p);
    assert_sql_eventually(h, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-relay main slot'",
                          "0", SOON); /* the server notices, although its process waits for a lock */

    p = start(h);
    wait_for_lock_on(h, xid_a);
    struct pg *b = open_transaction(h, &xid_b);
    exec(a, "COMMIT");
    wait_for_lock_on(h, xid_b);
    struct pg *t = open_transaction(h, &xid_t);
    exec(t, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:t', 'viewer', 'user:a')");
    exec(b, "COMMIT");
    assert_logged(p, "replication slot created", SOON);
    grants(h, "later", 20);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_string_equal(handover(h), "started"); /* t is open */
    proc_kill(p);

    p = start(h); /* the slot of the killed one is not trusted */
    assert_logged(p, "an earlier handover was not completed", SOON);
    exec(t, "COMMIT");
    assert_sql_eventually(h, "SELECT handover FROM relata.relay", "complete", SOON);
    proc_ready_wait(p, SOON);
    grants(h, "after", 20);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_last_is_newest(r);
    pg_close(a);
    pg_close(b);
    pg_close(t);
    topic_reader_free(r);
    proc_stop(p);
}

static void *commit_and_wait(void *arg)
{
    struct err err;
    /* Returns when a standby has answered, that is, when the test gives up on standbys. */
    return pg_exec(arg, "COMMIT", deadline_in_ms(120000), &err) == ST_OK ? arg : NULL;
}

/*
 * With synchronous replication a transaction can have its commit record before the slot's consistent point and become
 * visible after the slot was made: it is in no stream and in no snapshot taken at that time.
 */
static void test_handover_waits_for_commits_that_are_not_visible_yet(void **state)
{
    struct harness *h = *state;
    const char *xid_a, *xid_b, *xid_t;
    exec(h->pg, "SET synchronous_commit = local");
    struct pg *a = open_transaction(h, &xid_a);
    exec(a, "SET synchronous_commit = local");
    struct proc *p =
        relay_start(h, "--set", "relay.topic_partitions=2", "--set", "relay.maintain_interval=1h", NULL); /* no xids */
    struct topic_reader *r = topic_read(h, h->topic);
    wait_for_lock_on(h, xid_a);
    struct pg *b = open_transaction(h, &xid_b);
    exec(b, "SET synchronous_commit = local");
    exec(a, "COMMIT");
    wait_for_lock_on(h, xid_b);

    harness_sql(h, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    harness_sql(h, "SELECT pg_reload_conf()");
    harness_commits_wait(h);
    struct pg *t = open_transaction(h, &xid_t); /* the highest xid: above what snapshots call their end */
    exec(t, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:t', 'viewer', 'user:a')");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, commit_and_wait, t), 0);
    assert_sql_eventually(h,
                          harness_strf(h, "SELECT wait_event FROM pg_stat_activity WHERE pid = %d", pg_backend_pid(t)),
                          "SyncRep", SOON);

    exec(b, "COMMIT");
    assert_logged(p, "replication slot created", SOON);
    assert_string_equal(handover(h), "started");
    grants(h, "x", 20);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON); /* all but t's, which nobody can see */
    assert_int_equal(topic_distinct(r), 20);
    assert_string_equal(handover(h), "started");

    harness_sql(h, "ALTER SYSTEM RESET synchronous_standby_names");
    harness_sql(h, "SELECT pg_reload_conf()");
    void *committed;
    pthread_join(thread, &committed);
    assert_non_null(committed);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_distinct(r), 21);
    assert_sql_eventually(h, "SELECT handover FROM relata.relay", "complete", SOON);
    /* Proof that the case was met: the stream does not have it, so it came once. */
    grants(h, "y", 1);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    assert_int_equal(topic_count(r, harness_sql_int(h, "SELECT id FROM relata.outbox WHERE object = 'doc:t'")), 1);
    pg_close(a);
    pg_close(b);
    pg_close(t);
    topic_reader_free(r);
    proc_stop(p);
}

/* Stopped while it waits for the slot: it ends, and its server process does not stay. */
static void test_stop_while_the_slot_is_made(void **state)
{
    struct harness *h = *state;
    const char *xid;
    struct pg *a = open_transaction(h, &xid);
    struct proc *p = start(h);
    wait_for_lock_on(h, xid);
    proc_stop(p);
    assert_sql_eventually(h, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outbox-relay%'", "0",
                          SOON);
    assert_sql_eventually(h, "SELECT count(*) FROM pg_replication_slots", "0", SOON);
    pg_close(a);
}

/* ---- slots of others, missing rights ---- */

static void test_foreign_slots_are_left_alone(void **state)
{
    struct harness *h = *state;
    const char *body;
    harness_sqlf(h, "SELECT pg_create_logical_replication_slot('%s', 'test_decoding')", slot_name(h));
    struct proc *p = start(h);
    assert_logged(p, "is not of this relay (plugin test_decoding", SOON);
    assert_int_equal(proc_get(p, "/readyz", &body), 503);
    assert_non_null(strstr(body, "relay.slot"));
    assert_true(proc_running(p));
    harness_sqlf(h, "SELECT pg_drop_replication_slot('%s')", slot_name(h));
    proc_ready_wait(p, SOON);
    proc_stop(p);
}

static void test_slot_that_somebody_reads(void **state)
{
    struct harness *h = *state;
    struct proc *p = start_ready(h);
    proc_stop(p);
    assert_sql_eventually(
        h, harness_strf(h, "SELECT active FROM pg_replication_slots WHERE slot_name = '%s'", slot_name(h)), "f", SOON);
    struct pg *thief = NULL;
    struct err err;
    struct pg_config cfg = {.dsn = h->dsn, .application_name = "somebody", .replication = true};
    if (pg_open(&thief, &cfg, deadline_in_ms(SOON), &err) != ST_OK ||
        pg_stream_start(thief,
                        harness_strf(h,
                                     "START_REPLICATION SLOT \"%s\" LOGICAL 0/0 (proto_version '1', "
                                     "publication_names 'relata_outbox')",
                                     slot_name(h)),
                        deadline_in_ms(SOON), &err) != ST_OK)
        fail_msg("%s", err.text);
    p = start(h);
    assert_logged(p, "is being read by process", SOON);
    assert_logged(p, "somebody", SOON);
    assert_int_equal(proc_get(p, "/readyz", NULL), 503);
    pg_close(thief);
    proc_ready_wait(p, SOON);
    proc_stop(p);
}

static void test_wal_level_must_be_logical(void **state)
{
    struct harness *h = *state;
    grants(h, "a", 10);
    struct proc *p = start(h);
    assert_logged(p, "wal_level", SOON);
    struct topic_reader *r = topic_read(h, h->topic);
    proc_stop(p);
    p = relay_start(h, "--set", "relay.mode=poll", "--set", "relay.topic_partitions=2", NULL); /* needs none of that */
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    topic_reader_free(r);
    proc_stop(p);
}

/* The role of the relay and the right to replicate are all it needs; in mode poll, the role alone. */
static void test_least_privileges(void **state)
{
    struct harness *h = *state;
    harness_sqlf(h, "CREATE ROLE %.40s LOGIN PASSWORD 'x' IN ROLE relata_relay", h->id);
    const char *dsn = harness_strf(h, "pg.dsn=%s", harness_dsn(h, harness_strf(h, "%.40s:x", h->id), NULL, NULL));
    grants(h, "a", 10);
    struct proc *p = relay_start(h, "--set", dsn, "--set", "relay.topic_partitions=2", NULL);
    assert_logged(p, "code=42501", SOON);
    struct topic_reader *r = topic_read(h, h->topic);
    harness_sqlf(h, "ALTER ROLE %.40s REPLICATION", h->id);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_ready_wait(p, SOON);
    assert_sql_eventually(h, "SELECT handover FROM relata.relay", "complete", SOON);
    grants(h, "b", 10);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    proc_stop(p);
    harness_sqlf(h, "ALTER ROLE %.40s NOREPLICATION", h->id);
    p = relay_start(h, "--set", dsn, "--set", "relay.mode=poll", "--set", "kafka.message.max.bytes=20000", NULL);
    proc_ready_wait(p, SOON);
    grants(h, "c", 10);
    assert_topic_has(r, "SELECT id FROM relata.outbox", SOON);
    harness_sql(h, "INSERT INTO relata.outbox (op, object, relation, subject, actor) "
                   "VALUES ('write', 'doc:big', 'viewer', 'user:a', repeat('x', 60000))");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.dead_letter", "1", SOON);
    assert_true(proc_metric(p, "relata_relay_maintain_failures_total") == 0);
    proc_stop(p);
    topic_reader_free(r);
    harness_sqlf(h, "DROP OWNED BY %.40s; DROP ROLE %.40s", h->id, h->id);
}

static const char *const small_keep[] = {"--pg-set=max_slot_wal_keep_size=16MB", "--pg-set=max_wal_size=48MB",
                                         "--pg-set=min_wal_size=32MB", NULL};
static const char *const replica[] = {"--pg-set=wal_level=replica", NULL};

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_slot_dropped_while_stopped, PARTS),
        HARNESS_TEST(test_slot_dropped_while_running, PARTS),
        HARNESS_TEST_OPTIONS(test_slot_invalidated_by_max_slot_wal_keep_size, OWN, small_keep),
        HARNESS_TEST(test_publication_made_after_the_slot, PARTS),
        HARNESS_TEST(test_crash_in_the_middle_of_a_handover, OWN),
        HARNESS_TEST(test_handover_waits_for_commits_that_are_not_visible_yet, OWN),
        HARNESS_TEST(test_stop_while_the_slot_is_made, OWN),
        HARNESS_TEST(test_foreign_slots_are_left_alone, PARTS),
        HARNESS_TEST(test_slot_that_somebody_reads, PARTS),
        HARNESS_TEST_OPTIONS(test_wal_level_must_be_logical, OWN, replica),
        HARNESS_TEST(test_least_privileges, PARTS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
