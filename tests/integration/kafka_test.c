/* common/kafka against a real broker: delivery, groups, offsets, rebalances, topics. */
#include <unistd.h>

#include "common/kafka/kafka.h"
#include "tests/harness/harness.h"

#define DRAIN_MS 3000
#include "tests/harness/proxy.h"
#include "tests/harness/topic.h"

#define SOON 30000

/* ---- properties ---- */

struct properties {
    struct cfg_map_item items[8];
    struct cfg_map map;
};

static struct cfg_map *properties(struct properties *p, const char *servers)
{
    *p = (struct properties){.map = {.items = p->items}};
    p->items[p->map.len++] = (struct cfg_map_item){.key = strdup("bootstrap.servers"), .value = strdup(servers)};
    return &p->map;
}

static void property(struct properties *p, const char *key, const char *value)
{
    p->items[p->map.len++] = (struct cfg_map_item){.key = strdup(key), .value = strdup(value)};
}

static void properties_free(struct properties *p)
{
    for (size_t i = 0; i < p->map.len; i++) {
        free(p->items[i].key);
        free(p->items[i].value);
    }
}

/* ---- producing ---- */

struct reports {
    int good, bad;
    enum status last;
};

static void on_delivery(void *arg, uint64_t tag, enum status st, const struct err *err)
{
    struct reports *r = arg;
    (void)tag;
    (void)err;
    if (st == ST_OK)
        r->good++;
    else
        r->bad++;
    r->last = st;
}

static struct kafka_producer *producer(struct properties *p, struct reports *r)
{
    struct kafka_producer *k;
    struct err err;
    if (kafka_producer_new(&k, &p->map, on_delivery, r, &err) != ST_OK)
        fail_msg("%s", err.text);
    return k;
}

/* Messages "0".."n-1", waited for. */
static void produce(struct harness *h, struct kafka_producer *k, struct reports *r, int n)
{
    int want = r->good + n;
    struct err err;
    for (int i = 0; i < n; i++) {
        char text[16];
        int len = snprintf(text, sizeof text, "%d", i);
        struct kafka_header header = {"number", text, (size_t)len};
        if (kafka_produce(k, h->topic, text, (size_t)len, text, (size_t)len, &header, 1, (uint64_t)i, &err) != ST_OK)
            fail_msg("%s", err.text);
    }
    mono_us end = deadline_in_ms(harness_ms(SOON));
    while (r->good < want && clock_mono_us() < end)
        kafka_producer_poll(k, 50);
    assert_int_equal(r->good, want);
    assert_int_equal(r->bad, 0);
}

static void fill(struct harness *h, int partitions, int n)
{
    struct properties p;
    struct reports r = {0};
    topic_create(h, h->topic, partitions, NULL);
    properties(&p, h->brokers);
    struct kafka_producer *k = producer(&p, &r);
    produce(h, k, &r, n);
    kafka_producer_free(k);
    properties_free(&p);
}

/* ---- consuming ---- */

struct member {
    struct kafka_consumer *c;
    int assigned, revoked, lost; /* partitions, so far */
    int revocations;             /* calls */
    bool ours[8];
    int64_t next[8];
    bool commit_on_revoke;
    int read;
    int seen[8][1000]; /* how often, by partition and offset */
};

static void on_assigned(void *arg, int32_t partition)
{
    struct member *m = arg;
    m->assigned++;
    m->ours[partition] = true;
    m->next[partition] = -1;
}

static void on_revoked(void *arg, const int32_t *partitions, int n, mono_us deadline)
{
    struct member *m = arg;
    m->revocations++;
    assert_true(deadline > clock_mono_us() && deadline <= deadline_in_ms(DRAIN_MS));
    for (int i = 0; i < n; i++) {
        int32_t p = partitions[i];
        m->revoked++;
        m->ours[p] = false;
        if (m->commit_on_revoke && m->next[p] >= 0)
            assert_int_equal(kafka_consumer_commit(m->c, p, m->next[p], NULL), ST_OK);
    }
}

static void on_lost(void *arg, int32_t partition)
{
    struct member *m = arg;
    m->lost++;
    m->ours[partition] = false;
}

static void join(struct harness *h, struct member *m, const char *group, const char *key, const char *value)
{
    struct properties p;
    struct err err;
    struct kafka_rebalance cb = {on_assigned, on_revoked, on_lost, m, DRAIN_MS};
    properties(&p, h->brokers);
    if (key)
        property(&p, key, value);
    property(&p, "session.timeout.ms", "6000");
    property(&p, "acks.of.nobody", "1");
    assert_int_equal(kafka_consumer_new(&m->c, &p.map, group, h->topic, &cb, &err), ST_CONFIG);
    free(p.items[--p.map.len].key);
    free(p.items[p.map.len].value);
    if (kafka_consumer_new(&m->c, &p.map, group, h->topic, &cb, &err) != ST_OK)
        fail_msg("%s", err.text);
    properties_free(&p);
}

/* One poll; true if it was a message. */
static bool take(struct member *m, int ms)
{
    struct kafka_message msg;
    struct err err;
    enum status st = kafka_consumer_poll(m->c, ms, &msg, &err);
    if (st == ST_FATAL)
        fail_msg("%s", err.text);
    if (st != ST_OK)
        return false;
    const void *value;
    size_t len;
    assert_true(msg.partition < 8 && msg.offset < 1000);
    assert_true(kafka_message_header(&msg, "number", &value, &len));
    assert_int_equal(len, msg.payload_len);
    assert_memory_equal(value, msg.payload, len);
    assert_false(kafka_message_header(&msg, "other", &value, &len));
    m->seen[msg.partition][msg.offset]++;
    m->next[msg.partition] = msg.offset + 1;
    m->read++;
    kafka_message_free(&msg);
    return true;
}

static void take_until(struct member *m, int n)
{
    mono_us end = deadline_in_ms(harness_ms(SOON));
    while (m->read < n && clock_mono_us() < end)
        take(m, 50);
    assert_int_equal(m->read, n);
}

static bool committed_is(struct harness *h, const char *group, int64_t want)
{
    struct properties p;
    struct kafka_lag lag;
    struct err err;
    if (kafka_group_lag(properties(&p, h->brokers), group, h->topic, &lag, 1, deadline_in_ms(SOON), &err) != ST_OK)
        fail_msg("%s", err.text);
    properties_free(&p);
    return lag.committed == want;
}

/* A group that is new reads what was there before it. */
static void test_W46_new_group_starts_at_the_earliest(void **state)
{
    struct harness *h = *state;
    struct member m = {0};
    fill(h, 1, 3);
    join(h, &m, h->id, NULL, NULL);
    take_until(&m, 3);
    kafka_consumer_free(m.c);
}

/* What was polled but not committed comes again, whatever way the member ended. */
static void test_W43_offsets_count_only_when_committed(void **state)
{
    struct harness *h = *state;
    fill(h, 1, 10);
    struct member a = {0}, b = {0}, c = {0};
    join(h, &a, h->id, NULL, NULL);
    take_until(&a, 10);
    kafka_consumer_free(a.c);
    assert_true(committed_is(h, h->id, -1));
    join(h, &b, h->id, NULL, NULL);
    take_until(&b, 10);
    assert_int_equal(kafka_consumer_commit(b.c, 0, 4, NULL), ST_OK);
    mono_us end = deadline_in_ms(SOON);
    while (!committed_is(h, h->id, 4) && clock_mono_us() < end)
        take(&b, 20);
    assert_int_equal(kafka_consumer_commit(b.c, 5, 4, NULL), ST_NOT_FOUND); /* not ours */
    kafka_consumer_free(b.c);
    join(h, &c, h->id, NULL, NULL);
    take_until(&c, 6);
    assert_int_equal(c.seen[0][3], 0);
    assert_int_equal(c.seen[0][4], 1);
    kafka_consumer_free(c.c);
}

/* A second member joins in mid-stream: what the first one has done is committed before the partition moves. */
static void rebalance(struct harness *h, const char *strategy, bool repeats)
{
    enum { N = 400 };
    struct member *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    fill(h, 4, N);
    a->commit_on_revoke = b->commit_on_revoke = true;
    join(h, a, h->id, "partition.assignment.strategy", strategy);
    take_until(a, 37);
    join(h, b, h->id, "partition.assignment.strategy", strategy);
    mono_us end = deadline_in_ms(harness_ms(SOON));
    while ((a->revoked == 0 || b->assigned == 0) &&
           clock_mono_us() < end) { /* keep what was read: no commits but these */
        int before = a->assigned;
        for (int i = 0; i < 8; i++)
            if (a->ours[i])
                assert_int_equal(kafka_consumer_pause(a->c, i, true, NULL), ST_OK);
        if (take(a, 10)) /* of a paused partition, unless it was assigned anew in the same call */
            assert_true(a->assigned > before);
        take(b, 10);
    }
    assert_true(a->revoked > 0 && b->assigned > 0);
    assert_int_equal(a->lost, 0);
    assert_true(a->revoked > a->revocations); /* one deadline for all that a rebalance takes */
    for (int i = 0; i < 8; i++)
        if (a->ours[i])
            assert_int_equal(kafka_consumer_pause(a->c, i, false, NULL), ST_OK);
    int missing = N;
    while (missing > 0 && clock_mono_us() < end) {
        take(a, 10);
        take(b, 10);
        missing = N;
        for (int p = 0; p < 4; p++)
            for (int o = 0; o < 1000; o++)
                missing -= a->seen[p][o] + b->seen[p][o] > 0;
    }
    assert_int_equal(missing, 0);
    if (!repeats)
        assert_int_equal(a->read + b->read, N);
    kafka_consumer_free(a->c);
    kafka_consumer_free(b->c);
    free(a);
    free(b);
}

static void test_rebalance_repeats_nothing_cooperative(void **state)
{
    rebalance(*state, "cooperative-sticky", false);
}

/* Before 2.4, librdkafka fetches a message twice when its partition is paused at once after it was assigned. */
static void test_rebalance_misses_nothing_eager(void **state)
{
    rebalance(*state, "range", true);
}

/* Paused and polled: a member stays for longer than max.poll.interval.ms. Not polled: it is out, and told so. */
static void test_W44_paused_members_stay_silent_ones_go(void **state)
{
    struct harness *h = *state;
    struct member m = {0}, n = {0};
    fill(h, 1, 5);
    join(h, &m, h->id, "max.poll.interval.ms", "6000");
    take_until(&m, 1);
    assert_int_equal(kafka_consumer_pause(m.c, 0, true, NULL), ST_OK);
    mono_us end = deadline_in_ms(8000);
    while (clock_mono_us() < end)
        assert_false(take(&m, 100));
    assert_int_equal(m.lost + m.revoked, 0);
    assert_int_equal(kafka_consumer_pause(m.c, 0, false, NULL), ST_OK);
    take_until(&m, 5); /* what was fetched before the pause is not lost */
    for (int o = 0; o < 5; o++)
        assert_int_equal(m.seen[0][o], 1);

    join(h, &n, h->id, NULL, NULL);
    end = deadline_in_ms(harness_ms(SOON));
    while (n.read < 5 && clock_mono_us() < end) /* m says nothing: after 6 s its partition is n's */
        take(&n, 100);
    assert_int_equal(n.read, 5);
    end = deadline_in_ms(harness_ms(SOON));
    while (m.lost == 0 && clock_mono_us() < end)
        take(&m, 100);
    assert_int_equal(m.lost, 1);
    assert_int_equal(kafka_consumer_commit(m.c, 0, 5, NULL), ST_NOT_FOUND);
    kafka_consumer_free(m.c);
    kafka_consumer_free(n.c);
}

/* ---- topics ---- */

static void test_topics(void **state)
{
    struct harness *h = *state;
    struct properties p;
    struct err err;
    int n = -1;
    int64_t bytes = 0;
    properties(&p, h->brokers);
    assert_int_equal(kafka_topic_partitions(&p.map, h->topic, &n, deadline_in_ms(SOON), &err), ST_MISSING);
    assert_int_equal(kafka_topic_ensure(&p.map, h->topic, 3, 1, deadline_in_ms(SOON), &err), ST_OK);
    assert_int_equal(kafka_topic_ensure(&p.map, h->topic, 9, 1, deadline_in_ms(SOON), &err), ST_OK); /* it is there */
    assert_int_equal(kafka_topic_partitions(&p.map, h->topic, &n, deadline_in_ms(SOON), &err), ST_OK);
    assert_int_equal(n, 3);
    assert_int_equal(kafka_topic_max_bytes(&p.map, h->topic, &bytes, deadline_in_ms(SOON), &err), ST_OK);
    assert_int_equal(bytes, 1048588);
    struct kafka_lag lag[3];
    assert_int_equal(kafka_group_lag(&p.map, h->id, h->topic, lag, 3, deadline_in_ms(SOON), &err), ST_OK);
    assert_true(lag[2].begin == 0 && lag[2].end == 0 && lag[2].committed == -1);
    assert_int_equal(kafka_topic_ensure(&p.map, "no such name!", 1, 1, deadline_in_ms(SOON), &err), ST_CONFIG);
    assert_int_equal(kafka_topic_ensure(&p.map, harness_strf(h, "%s.b", h->topic), 1, 7, deadline_in_ms(SOON), &err),
                     ST_CONFIG); /* more copies than brokers */
    properties_free(&p);
}

/* The brokers would create topics for whoever asks; we do not ask. */
static void test_no_topic_is_made_by_accident(void **state)
{
    struct harness *h = *state;
    struct properties p;
    struct reports r = {0};
    struct err err;
    int n;
    properties(&p, h->brokers);
    property(&p, "topic.metadata.propagation.max.ms", "500");
    struct kafka_producer *k = producer(&p, &r);
    assert_int_equal(kafka_producer_ping(k, h->topic, SOON, &n, &err), ST_MISSING);
    enum status st = kafka_produce(k, h->topic, "k", 1, "v", 1, NULL, 0, 1, &err);
    mono_us end = deadline_in_ms(harness_ms(SOON));
    while (st == ST_OK && r.bad == 0 && clock_mono_us() < end)
        kafka_producer_poll(k, 50);
    assert_int_equal(st == ST_OK ? r.last : st, ST_MISSING);
    struct member m = {0};
    struct kafka_rebalance cb = {on_assigned, on_revoked, on_lost, &m, DRAIN_MS};
    struct kafka_message msg;
    assert_int_equal(kafka_consumer_new(&m.c, &p.map, h->id, h->topic, &cb, &err), ST_OK);
    while ((st = kafka_consumer_poll(m.c, 100, &msg, &err)) == ST_NOT_FOUND && clock_mono_us() < end)
        ;
    assert_int_equal(st, ST_MISSING);
    kafka_consumer_free(m.c);
    assert_int_equal(kafka_topic_partitions(&p.map, h->topic, &n, deadline_in_ms(SOON), &err), ST_MISSING);
    kafka_producer_free(k);
    properties_free(&p);
}

/* ---- brokers that cannot be reached ---- */

static void test_brokers_down_are_noticed_and_found_again(void **state)
{
    struct harness *h = *state;
    struct properties p;
    struct reports r = {0};
    struct err err;
    int n;
    fill(h, 1, 1);
    properties(&p, h->brokers);
    struct kafka_producer *k = producer(&p, &r);
    produce(h, k, &r, 5);
    assert_true(kafka_producer_up(k, &err));
    harness_service(h, "kill", "kafka");
    mono_us end = deadline_in_ms(harness_ms(SOON));
    while (kafka_producer_up(k, &err) && clock_mono_us() < end)
        kafka_producer_poll(k, 50);
    assert_false(kafka_producer_up(k, &err));
    assert_true(strlen(err.text) > 10);
    assert_int_equal(kafka_producer_ping(k, h->topic, 100, &n, &err), ST_RETRY);
    assert_int_equal(kafka_topic_partitions(&p.map, h->topic, &n, deadline_in_ms(500), &err), ST_RETRY);
    harness_service(h, "restart", "kafka");
    end = deadline_in_ms(harness_ms(SOON));
    while (kafka_producer_ping(k, h->topic, 500, &n, &err) != ST_OK && clock_mono_us() < end)
        ;
    assert_true(kafka_producer_up(k, &err));
    produce(h, k, &r, 5);
    kafka_producer_free(k);
    properties_free(&p);
}

/* Queued messages do not keep a producer from ending, and a reset forgets them. */
static void test_ending_and_reset_do_not_wait_for_brokers(void **state)
{
    struct harness *h = *state;
    struct properties p;
    struct reports r = {0};
    struct err err;
    fill(h, 1, 1);
    struct proxy *proxy = proxy_start(h->brokers);
    proxy_freeze(proxy, PROXY_BOTH);
    properties(&p, proxy_address(proxy));
    struct kafka_producer *k = producer(&p, &r);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(kafka_produce(k, h->topic, "k", 1, "v", 1, NULL, 0, i, &err), ST_OK);
    assert_int_equal(kafka_producer_outstanding(k), 50);
    assert_int_equal(kafka_producer_reset(k, &err), ST_OK);
    assert_int_equal(kafka_producer_outstanding(k), 0);
    assert_int_equal(kafka_produce(k, h->topic, "k", 1, "v", 1, NULL, 0, 1, &err), ST_OK);
    kafka_producer_free(k);
    assert_int_equal(r.good + r.bad, 0); /* no report of what was given up */
    proxy_stop(proxy);
    properties_free(&p);
}

static const char *const auto_create[] = {"--kafka-set=auto.create.topics.enable=true", NULL};

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_W46_new_group_starts_at_the_earliest, HARNESS_KAFKA),
        HARNESS_TEST(test_W43_offsets_count_only_when_committed, HARNESS_KAFKA),
        HARNESS_TEST(test_rebalance_repeats_nothing_cooperative, HARNESS_KAFKA),
        HARNESS_TEST(test_rebalance_misses_nothing_eager, HARNESS_KAFKA),
        HARNESS_TEST(test_W44_paused_members_stay_silent_ones_go, HARNESS_KAFKA),
        HARNESS_TEST(test_topics, HARNESS_KAFKA),
        HARNESS_TEST_OPTIONS(test_no_topic_is_made_by_accident, HARNESS_KAFKA | HARNESS_OWN_KAFKA, auto_create),
        HARNESS_TEST(test_brokers_down_are_noticed_and_found_again, HARNESS_KAFKA | HARNESS_OWN_KAFKA),
        HARNESS_TEST(test_ending_and_reset_do_not_wait_for_brokers, HARNESS_KAFKA),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
