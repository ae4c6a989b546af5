/*
 * writer_kafka_test.c - tuple-writer behind Kafka: offsets after acknowledgements, rebalances, records of all sorts.
 *
 * Most tests produce the records themselves, so that they decide what comes twice, early, late or broken; the rows are
 * in the outbox as ever.
 */
#include "common/kafka/kafka.h"
#include "proto/relata.pb-c.h"
#include "tests/integration/writer_helpers.h"

#define DEADLINE deadline_in_ms(harness_ms(20000))

static struct cfg_map properties(struct harness *h)
{
    static struct cfg_map_item item;
    item =
        (struct cfg_map_item){.key = (char *)(uintptr_t) "bootstrap.servers", .value = (char *)(uintptr_t)h->brokers};
    return (struct cfg_map){&item, 1};
}

static void make_topic(struct harness *h, int partitions)
{
    struct cfg_map map = properties(h);
    struct err err;
    if (kafka_topic_ensure(&map, h->topic, partitions, 1, DEADLINE, &err) != ST_OK)
        fail_msg("making the topic: %s", err.text);
}

static void on_delivery(void *arg, uint64_t tag, enum status st, const struct err *err)
{
    (void)tag;
    if (st != ST_OK)
        fail_msg("producing: %s", err->text);
    ++*(int *)arg;
}

struct producer {
    struct harness *h;
    struct kafka_producer *p;
    int sent, delivered;
};

static void producer_open(struct producer *p, struct harness *h)
{
    struct cfg_map map = properties(h);
    struct err err;
    *p = (struct producer){.h = h};
    if (kafka_producer_new(&p->p, &map, on_delivery, &p->delivered, &err) != ST_OK)
        fail_msg("a producer: %s", err.text);
}

static void produce(struct producer *p, const char *key, const void *data, size_t len)
{
    struct err err;
    if (kafka_produce(p->p, p->h->topic, key, strlen(key), data, len, NULL, 0, 0, &err) != ST_OK)
        fail_msg("producing: %s", err.text);
    p->sent++;
    for (mono_us end = DEADLINE; p->delivered < p->sent && clock_mono_us() < end;)
        kafka_producer_poll(p->p, 50);
    assert_int_equal(p->delivered, p->sent);
}

static void produce_change(struct producer *p, const char *store, int64_t id, uint64_t xid, const char *op,
                           const char *object, const char *relation, const char *subject)
{
    Relata__V1__TupleChange c;
    relata__v1__tuple_change__init(&c);
    c.store = (char *)(uintptr_t)store;
    c.id = id;
    c.xid = xid;
    c.op = strcmp(op, "delete") == 0 ? RELATA__V1__OP__OP_DELETE : RELATA__V1__OP__OP_WRITE;
    c.object = (char *)(uintptr_t)object;
    c.relation = (char *)(uintptr_t)relation;
    c.subject = (char *)(uintptr_t)subject;
    uint8_t data[4096];
    assert_true(relata__v1__tuple_change__get_packed_size(&c) <= sizeof data);
    produce(p, harness_strf(p->h, "%s|%s", store, object), data, relata__v1__tuple_change__pack(&c, data));
}

/* The records of rows of the outbox, in id order. */
static void produce_rows(struct producer *p, const char *where)
{
    struct pg_result *r = NULL;
    struct err err;
    const char *sql = harness_strf(p->h,
                                   "SELECT store, id, xid, op, object, relation, subject FROM relata.outbox WHERE %s "
                                   "ORDER BY id",
                                   where);
    if (pg_query(p->h->pg, NULL, sql, NULL, 0, DEADLINE, &r, &err) != ST_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < pg_rows(r); i++)
        produce_change(p, pg_text(r, i, 0), pg_int(r, i, 1), (uint64_t)pg_int(r, i, 2), pg_text(r, i, 3),
                       pg_text(r, i, 4), pg_text(r, i, 5), pg_text(r, i, 6));
    pg_result_free(r);
}

static struct proc *start(struct harness *h, const char *url)
{
    return writer_start(h, "--set", "writer.source=kafka", "--set", harness_strf(h, "store.url=%s", url), "--set",
                        harness_strf(h, "store.late_window=%dms", harness_ms(500)), "--set",
                        "kafka.session.timeout.ms=6000", "--set", "kafka.heartbeat.interval.ms=500", "--set",
                        "kafka.max.poll.interval.ms=6000", "--set", "store.request_timeout=1s", "--set",
                        "pg.statement_timeout=2s", NULL);
}

static int64_t committed(struct harness *h, int partitions)
{
    struct kafka_lag lags[16];
    struct cfg_map map = properties(h);
    struct err err;
    int64_t sum = 0;
    if (kafka_group_lag(&map, harness_strf(h, "%s.%s", h->id, h->store_name), h->topic, lags, partitions, DEADLINE,
                        &err) != ST_OK)
        fail_msg("offsets: %s", err.text);
    for (int i = 0; i < partitions; i++)
        sum += lags[i].committed > 0 ? lags[i].committed : 0;
    return sum;
}

struct offsets {
    struct harness *h;
    int partitions;
    int64_t want;
};

static bool offsets_committed(void *arg)
{
    struct offsets *o = arg;
    return committed(o->h, o->partitions) == o->want;
}

static void assert_committed(struct harness *h, int partitions, int64_t want)
{
    struct offsets o = {h, partitions, want};
    if (!eventually(offsets_committed, &o, WAIT_MS))
        fail_msg("committed %lld, not %lld", (long long)committed(h, partitions), (long long)want);
}

/* ---- tests ---- */
static void test_outbox_to_store_through_kafka(void **state)
{
    struct harness *h = *state;
    struct proc *relay = relay_start(h, "--set", "relay.topic_partitions=4", NULL);
    proc_ready_wait(relay, WAIT_MS);
    struct proc *first = start(h, h->store_url), *second = start(h, h->store_url);
    harness_sql(h,
                "SELECT relata.write_tuple('doc:' || i % 300, 'viewer', 'user:' || i) FROM generate_series(1, 2000) i");
    harness_sql(
        h, "SELECT relata.delete_tuple('doc:' || i % 300, 'viewer', 'user:' || i) FROM generate_series(1, 2000, 3) "
           "i");
    assert_converged(h, 2 * CONVERGE_MS);
    proc_ready_wait(first, WAIT_MS);
    proc_ready_wait(second, WAIT_MS);
    proc_stop(first);
    harness_sql(
        h, "SELECT relata.delete_tuple('doc:' || i % 300, 'viewer', 'user:' || i) FROM generate_series(1, 2000) i");
    assert_converged(h, 2 * CONVERGE_MS);
    assert_int_equal(store_size(h), 0);
    proc_stop(second);
    proc_stop(relay);
}

static void test_W01_a_record_delivered_again_is_a_no_op(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    int64_t id = harness_sql_int(h, "SELECT id FROM relata.outbox");
    uint64_t xid = (uint64_t)harness_sql_int(h, "SELECT xid FROM relata.outbox");
    produce_change(&p, "default", id, xid, "write", "doc:1", "viewer", "user:x");
    struct proc *w = start(h, fake_store_url(f));
    assert_converged(h, CONVERGE_MS);
    int writes = write_count(f);
    produce_change(&p, "default", id, xid, "write", "doc:1", "viewer", "user:x");
    assert_committed(h, 1, 2);
    assert_int_equal(write_count(f), writes);
    assert_true(proc_metric(w, "relata_writer_duplicates_total") == 1);
    assert_converged(h, CONVERGE_MS); /* no intent is left either */
    kafka_producer_free(p.p);
    proc_stop(w);
    fake_store_stop(f);
}

/* R11: the whole topic again, in mid-stream: an old grant does not come back. */
static void test_R11_a_replayed_topic_brings_nothing_back(void **state)
{
    struct harness *h = *state;
    struct producer p;
    make_topic(h, 2);
    producer_open(&p, h);
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 50) i");
    harness_sql(h, "CREATE TABLE public.kept AS TABLE relata.outbox");
    produce_rows(&p, "true");
    struct proc *w = start(h, h->store_url);
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "SELECT relata.delete_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 50) i");
    produce_rows(&p, "true");
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:y')");
    struct pg_result *r = NULL;
    struct err err;
    assert_int_equal(
        pg_query(h->pg, NULL, "SELECT id, xid, object FROM public.kept ORDER BY id", NULL, 0, DEADLINE, &r, &err),
        ST_OK);
    for (int i = 0; i < pg_rows(r); i++)
        produce_change(&p, "default", pg_int(r, i, 0), (uint64_t)pg_int(r, i, 1), "write", pg_text(r, i, 2), "viewer",
                       "user:x");
    pg_result_free(r);
    produce_rows(&p, "true");
    assert_committed(h, 2, 151);
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(store_size(h), 1);
    kafka_producer_free(p.p);
    proc_stop(w);
}

static void test_W43_offsets_are_committed_after_the_acknowledgement(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    produce_rows(&p, "true");
    int held = fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_HANG});
    struct proc *w = start(h, fake_store_url(f));
    assert_rule_used(f, held, 1);
    assert_int_equal(committed(h, 1), 0);
    proc_kill(w);
    assert_int_equal(committed(h, 1), 0);
    fake_store_clear(f);
    w = start(h, fake_store_url(f));
    assert_converged(h, CONVERGE_MS);
    assert_committed(h, 1, 1);
    kafka_producer_free(p.p);
    proc_stop(w);
    fake_store_stop(f);
}

/* The store is away for longer than the consumer may go without a poll. */
static void test_W44_polling_goes_on_during_an_outage(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *w = start(h, fake_store_url(f));
    proc_ready_wait(w, WAIT_MS);
    fake_store_rule(f, &(struct fake_rule){.action = FAKE_CUT});
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 50) i");
    produce_rows(&p, "true");
    assert_unready_eventually(w, "store:");
    nanosleep(&(struct timespec){.tv_sec = 9}, NULL); /* longer than max.poll.interval.ms */
    assert_true(proc_metric(w, "relata_writer_active") == 1);
    assert_false(proc_logged(w, "partition lost"));
    assert_int_equal(committed(h, 1), 0);
    fake_store_clear(f);
    assert_converged(h, CONVERGE_MS);
    assert_committed(h, 1, 50);
    kafka_producer_free(p.p);
    proc_stop(w);
    fake_store_stop(f);
}

/* The old owner is paused in the middle of a Write until the group has given its partition away, then goes on. */
static void test_W44_an_evicted_owner_sends_nothing_more(void **state)
{
    struct harness *h = *state;
    struct fake_store *slow = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *old = start(h, fake_store_url(slow));
    proc_ready_wait(old, WAIT_MS);
    int held = fake_store_rule(slow, &(struct fake_rule){.path = "/write", .action = FAKE_REPLY, .status = 503});
    grant_tuple(h, "doc:1", "viewer", "user:x");
    produce_rows(&p, "true");
    assert_rule_used(slow, held, 1);
    proc_freeze(old);
    revoke_tuple(h, "doc:1", "viewer", "user:x");
    produce_rows(&p, "op = 'delete'");
    struct proc *fresh = start(h, h->store_url);
    assert_committed(h, 1, 2);
    fake_store_clear(slow);
    proc_continue(old);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    produce_rows(&p, "object = 'doc:2'");
    assert_converged(h, 2 * CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    assert_logged(old, "partition lost", WAIT_MS);
    kafka_producer_free(p.p);
    proc_stop(fresh);
    proc_stop(old);
    fake_store_stop(slow);
}

static void test_W46_a_fresh_group_begins_with_the_first_record(void **state)
{
    struct harness *h = *state;
    struct producer p;
    make_topic(h, 3);
    producer_open(&p, h);
    for (int i = 1; i <= 3; i++)
        grant_tuple(h, harness_strf(h, "doc:%d", i), "viewer", "user:x");
    produce_rows(&p, "true");
    struct proc *w = start(h, h->store_url);
    assert_converged(h, CONVERGE_MS);
    assert_committed(h, 3, 3);
    kafka_producer_free(p.p);
    proc_stop(w);
}

/* Skipped, counted, logged: the row is still pending, so nothing is lost, and the relay produces it again. */
static void test_W47_an_unreadable_record_stalls_nobody(void **state)
{
    struct harness *h = *state;
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *w = start(h, h->store_url);
    grant_tuple(h, "doc:1", "viewer", "user:x");
    grant_tuple(h, "doc:2", "viewer", "user:x");
    produce(&p, "default|doc:1", "\xff\xff\xff nonsense", 12);
    produce(&p, "default|doc:1", NULL, 0);
    produce_change(&p, "default", 7, 1, "write", "doc:1", "viewer", "");
    produce_change(&p, "default", 7, 1, "write", "doc:\xff", "viewer", "user:x");
    produce_change(&p, "another", 7, 1, "write", "doc:1", "viewer", "user:x");
    produce_rows(&p, "object = 'doc:2'");
    assert_sql_eventually(h, "SELECT string_agg(object, ' ') FROM relata.outbox", "doc:1", WAIT_MS);
    assert_committed(h, 1, 6);
    assert_metric_eventually(w, "relata_writer_unreadable_messages_total", 4, WAIT_MS);
    assert_logged(w, "skipped a Kafka message", WAIT_MS);
    produce_rows(&p, "object = 'doc:1'");
    assert_converged(h, CONVERGE_MS);
    kafka_producer_free(p.p);
    proc_stop(w);
}

/* A record can be read before SQL shows its row (synchronous replication): what SQL shows is not taken for the end. */
static void test_a_record_ahead_of_its_row_waits(void **state)
{
    struct harness *h = *state;
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *w = start(h, h->store_url);
    struct pg *slow = harness_connect(h, NULL);
    struct pg_result *r = NULL;
    struct err err;
    assert_int_equal(pg_exec(slow, "BEGIN; SELECT relata.write_tuple('doc:1', 'viewer', 'user:x')", DEADLINE, &err),
                     ST_OK);
    assert_int_equal(pg_query(slow, NULL, "SELECT id, xid FROM relata.outbox", NULL, 0, DEADLINE, &r, &err), ST_OK);
    produce_change(&p, "default", pg_int(r, 0, 0), (uint64_t)pg_int(r, 0, 1), "write", "doc:1", "viewer", "user:x");
    pg_result_free(r);
    grant_tuple(h, "doc:2", "viewer", "user:x");
    produce_rows(&p, "object = 'doc:2'");
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", WAIT_MS); /* others go on */
    assert_metric_eventually(w, "relata_writer_unseen_total", 2, WAIT_MS);
    assert_int_equal(committed(h, 1), 0);
    assert_int_equal(pg_exec(slow, "COMMIT", DEADLINE, &err), ST_OK);
    assert_committed(h, 1, 2);
    assert_converged(h, CONVERGE_MS);
    assert_true(store_has(h, "doc:1", "viewer", "user:x"));
    pg_close(slow);
    kafka_producer_free(p.p);
    proc_stop(w);
}

/* The same while the key is late: its old state is written again at the end of the window, its new one is waited for.
 */
static void test_a_record_ahead_of_its_row_waits_when_its_key_was_late(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    int lost = fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_CUT_AFTER});
    struct proc *w =
        writer_start(h, "--set", "writer.source=kafka", "--set", harness_strf(h, "store.url=%s", fake_store_url(f)),
                     "--set", harness_strf(h, "store.late_window=%dms", harness_ms(3000)), NULL);
    struct pg *slow = harness_connect(h, NULL);
    struct pg_result *r = NULL;
    struct err err;
    grant_tuple(h, "doc:1", "viewer", "user:x");
    produce_rows(&p, "true");
    assert_rule_used(f, lost, 1);
    assert_int_equal(pg_exec(slow, "BEGIN; SELECT relata.delete_tuple('doc:1', 'viewer', 'user:x')", DEADLINE, &err),
                     ST_OK);
    assert_int_equal(
        pg_query(slow, NULL, "SELECT id, xid FROM relata.outbox WHERE op = 'delete'", NULL, 0, DEADLINE, &r, &err),
        ST_OK);
    produce_change(&p, "default", pg_int(r, 0, 0), (uint64_t)pg_int(r, 0, 1), "delete", "doc:1", "viewer", "user:x");
    pg_result_free(r);
    assert_metric_eventually(w, "relata_writer_late_batches_total", 1, WAIT_MS);
    assert_int_equal(pg_exec(slow, "COMMIT", DEADLINE, &err), ST_OK);
    assert_converged(h, CONVERGE_MS);
    assert_committed(h, 1, 2);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    pg_close(slow);
    kafka_producer_free(p.p);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_a_record_of_a_row_that_never_comes_is_given_up(void **state)
{
    struct harness *h = *state;
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *w = writer_start(h, "--set", "writer.source=kafka", "--set", "writer.visible_timeout=500ms", NULL);
    produce_change(&p, "default", 1000000, 4000000000, "write", "doc:1", "viewer", "user:x");
    assert_committed(h, 1, 1);
    assert_metric_eventually(w, "relata_writer_future_hints_total", 1, WAIT_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:x"));
    assert_converged(h, CONVERGE_MS);
    kafka_producer_free(p.p);
    proc_stop(w);
}

/* A second writer joins while the first has a batch in flight: it drains, commits and gives up. */
static void test_a_rebalance_in_the_middle_of_a_batch(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 4);
    producer_open(&p, h);
    struct proc *first = start(h, fake_store_url(f));
    proc_ready_wait(first, WAIT_MS);
    for (int i = 0; i < 4; i++)
        fake_store_rule(
            f, &(struct fake_rule){.path = "/write", .times = 20, .action = FAKE_PASS, .delay_ms = harness_ms(150)});
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 400) i");
    produce_rows(&p, "true");
    struct proc *second = start(h, h->store_url);
    assert_metric_eventually(second, "relata_writer_active", 1, 2 * WAIT_MS);
    harness_sql(h, "SELECT relata.delete_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 400, 2) i");
    produce_rows(&p, "op = 'delete'");
    assert_converged(h, 2 * CONVERGE_MS);
    assert_committed(h, 4, 600);
    assert_int_equal(store_size(h), 200);
    kafka_producer_free(p.p);
    proc_stop(second);
    proc_stop(first);
    fake_store_stop(f);
}

static void test_a_full_window_pauses_and_goes_on(void **state)
{
    struct harness *h = *state;
    struct proc *relay = relay_start(h, "--set", "relay.topic_partitions=2", NULL);
    harness_sql(h, "SELECT relata.write_tuples(array_agg('doc:' || i), array_agg('viewer'::text), "
                   "array_agg('user:x'::text)) FROM generate_series(1, 6000) i");
    struct proc *w =
        writer_start(h, "--set", "writer.source=kafka", "--set", "writer.window=500", "--set", "writer.lanes=2", NULL);
    assert_sql_eventually(h, "SELECT count(*) < 5500 FROM relata.outbox", "t", 2 * CONVERGE_MS);
    assert_true(proc_metric(w, "relata_writer_keys_held") < 1600);
    assert_converged(h, 4 * CONVERGE_MS);
    assert_int_equal(store_size(h), 6000);
    proc_stop(w);
    proc_stop(relay);
}

static bool reads_on(void *arg)
{
    struct proc *w = arg;
    return proc_metric(w, "relata_writer_uncommitted_messages") < 400;
}

/* One key gets 503 for ever. Others go on, but what is read beyond it, to be repeated after a crash and kept in memory
 * until then, is bounded: the partition is paused. */
static void test_W43_one_key_that_fails_for_ever_bounds_what_is_read_beyond_it(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct producer p;
    make_topic(h, 1);
    producer_open(&p, h);
    struct proc *w = writer_start(h, "--set", "writer.source=kafka", "--set", "writer.window=100", "--set",
                                  harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    proc_ready_wait(w, WAIT_MS);
    int refused = fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .body = "doc:stuck", .action = FAKE_REPLY, .status = 503});
    grant_tuple(h, "doc:stuck", "viewer", "user:x");
    produce_rows(&p, "true");
    assert_rule_used(f, refused, 1);
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 2500) i");
    produce_rows(&p, "object <> 'doc:stuck'");
    assert_logged(w, "a partition is read no further", 2 * WAIT_MS);
    assert_metric_eventually(w, "relata_writer_uncommitted_messages", 400, WAIT_MS);
    assert_true(proc_metric(w, "relata_writer_uncommitted_messages") <= 900); /* and one poll's worth */
    assert_metric_eventually(w, "relata_writer_uncommitted_seconds", 1, WAIT_MS);
    assert_true(harness_sql_int(h, "SELECT count(*) FROM relata.outbox") > 2500 - 900);
    assert_int_equal(committed(h, 1), 0);

    fake_store_clear(f);
    assert_converged(h, 2 * CONVERGE_MS);
    assert_committed(h, 1, 2501);
    assert_eventually(reads_on, w, WAIT_MS);
    assert_int_equal(store_size(h), 2501);
    kafka_producer_free(p.p);
    proc_stop(w);
    fake_store_stop(f);
}

static void test_deadlines_that_do_not_fit_are_refused_at_start(void **state)
{
    struct harness *h = *state;
    const char *out;
    const char *const args[] = {
        "--set", "writer.source=kafka",           "--set", harness_strf(h, "kafka.bootstrap.servers=%s", h->brokers),
        "--set", "kafka.session.timeout.ms=6000", "--set", "store.request_timeout=30s",
        NULL};
    assert_int_equal(proc_run(h, &out, "tuple-writer", args), 2);
    assert_non_null(strstr(out, "kafka.session.timeout.ms"));
    /* Short statements, but a rebalance waits for batches and for offsets. */
    const char *const more[] = {
        "--set", "writer.source=kafka",           "--set", harness_strf(h, "kafka.bootstrap.servers=%s", h->brokers),
        "--set", "pg.statement_timeout=100ms",    "--set", "store.request_timeout=1s",
        "--set", "kafka.session.timeout.ms=4999", "--set", "kafka.max.poll.interval.ms=4999",
        NULL};
    assert_int_equal(proc_run(h, &out, "tuple-writer", more), 2);
    assert_non_null(strstr(out, "must be above 5000 ms"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_outbox_to_store_through_kafka, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W01_a_record_delivered_again_is_a_no_op, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_R11_a_replayed_topic_brings_nothing_back, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W43_offsets_are_committed_after_the_acknowledgement,
                     HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W44_polling_goes_on_during_an_outage, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W44_an_evicted_owner_sends_nothing_more, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W46_a_fresh_group_begins_with_the_first_record, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W47_an_unreadable_record_stalls_nobody, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_a_record_ahead_of_its_row_waits, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_a_record_ahead_of_its_row_waits_when_its_key_was_late,
                     HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_a_record_of_a_row_that_never_comes_is_given_up, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_a_rebalance_in_the_middle_of_a_batch, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_W43_one_key_that_fails_for_ever_bounds_what_is_read_beyond_it,
                     HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_a_full_window_pauses_and_goes_on, HARNESS_DB | HARNESS_STORE | HARNESS_KAFKA),
        HARNESS_TEST(test_deadlines_that_do_not_fit_are_refused_at_start, HARNESS_DB | HARNESS_KAFKA),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
