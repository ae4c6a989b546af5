/* topic.c - see topic.h. */
#include "tests/harness/topic.h"

#include <librdkafka/rdkafka.h>
#include <unistd.h>

#include "common/kafka/kafka.h"
#include "proto/relata.pb-c.h"
#include "tests/harness/internal.h"

#define CALL_MS 30000

/* ---- administration ---- */

static rd_kafka_t *client(struct harness *h)
{
    char reason[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", h->brokers, reason, sizeof reason);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    if (!rk)
        fail_msg("kafka client: %s", reason);
    return rk;
}

static void finish(rd_kafka_t *rk, rd_kafka_queue_t *q, const char *what)
{
    size_t n = 0;
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, harness_ms(CALL_MS));
    if (!ev)
        fail_msg("%s: no answer", what);
    const rd_kafka_topic_result_t **results = NULL;
    if (rd_kafka_event_CreateTopics_result(ev))
        results = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(ev), &n);
    else if (rd_kafka_event_DeleteTopics_result(ev))
        results = rd_kafka_DeleteTopics_result_topics(rd_kafka_event_DeleteTopics_result(ev), &n);
    else if (rd_kafka_event_CreatePartitions_result(ev))
        results = rd_kafka_CreatePartitions_result_topics(rd_kafka_event_CreatePartitions_result(ev), &n);
    if (rd_kafka_event_error(ev) || n != 1 || rd_kafka_topic_result_error(results[0]))
        fail_msg("%s: %s", what,
                 n == 1 ? rd_kafka_err2str(rd_kafka_topic_result_error(results[0])) : rd_kafka_event_error_string(ev));
    rd_kafka_event_destroy(ev);
    rd_kafka_queue_destroy(q);
    rd_kafka_destroy(rk);
}

struct wanted_partitions {
    struct harness *h;
    const char *topic;
    int n; /* 0 = gone */
};

static bool has_partitions(void *arg)
{
    struct wanted_partitions *w = arg;
    struct cfg_map_item item = {.key = strdup("bootstrap.servers"), .value = strdup(w->h->brokers)};
    struct cfg_map map = {.items = &item, .len = 1};
    int n = 0;
    enum status st = kafka_topic_partitions(&map, w->topic, &n, deadline_in_ms(harness_ms(5000)), NULL);
    free(item.key);
    free(item.value);
    return w->n == 0 ? st == ST_MISSING : st == ST_OK && n == w->n;
}

static void wait_partitions(struct harness *h, const char *topic, int n)
{
    struct wanted_partitions w = {h, topic, n};
    assert_eventually(has_partitions, &w, CALL_MS);
}

void topic_create(struct harness *h, const char *topic, int partitions, const char *config)
{
    char reason[256];
    rd_kafka_t *rk = client(h);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    rd_kafka_NewTopic_t *t = rd_kafka_NewTopic_new(topic, partitions, 1, reason, sizeof reason);
    if (config) {
        const char *equals = strchr(config, '=');
        rd_kafka_NewTopic_set_config(t, harness_strf(h, "%.*s", (int)(equals - config), config), equals + 1);
    }
    rd_kafka_CreateTopics(rk, &t, 1, NULL, q);
    finish(rk, q, "creating a topic");
    rd_kafka_NewTopic_destroy(t);
    wait_partitions(h, topic, partitions);
}

void topic_delete(struct harness *h, const char *topic)
{
    rd_kafka_t *rk = client(h);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    rd_kafka_DeleteTopic_t *t = rd_kafka_DeleteTopic_new(topic);
    rd_kafka_DeleteTopics(rk, &t, 1, NULL, q);
    finish(rk, q, "deleting a topic");
    rd_kafka_DeleteTopic_destroy(t);
    wait_partitions(h, topic, 0);
}

void topic_grow(struct harness *h, const char *topic, int partitions)
{
    char reason[256];
    rd_kafka_t *rk = client(h);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    rd_kafka_NewPartitions_t *t = rd_kafka_NewPartitions_new(topic, (size_t)partitions, reason, sizeof reason);
    rd_kafka_CreatePartitions(rk, &t, 1, NULL, q);
    finish(rk, q, "adding partitions");
    rd_kafka_NewPartitions_destroy(t);
    wait_partitions(h, topic, partitions);
}

/* ---- reading ---- */

static void ignore(void *arg, int32_t partition)
{
    (void)arg;
    (void)partition;
}

static void ignore_all(void *arg, const int32_t *partitions, int n, mono_us deadline)
{
    (void)arg;
    (void)partitions;
    (void)n;
    (void)deadline;
}

struct topic_reader *topic_read(struct harness *h, const char *topic)
{
    static unsigned serial;
    return topic_read_as(h, topic, harness_strf(h, "%s.reader.%u", h->id, ++serial));
}

struct topic_reader *topic_read_as(struct harness *h, const char *topic, const char *group)
{
    struct topic_reader *r = calloc(1, sizeof *r);
    struct cfg_map_item items[] = {
        {.key = strdup("bootstrap.servers"), .value = strdup(h->brokers)},
        {.key = strdup("topic.metadata.refresh.interval.ms"), .value = strdup("500")},
    };
    struct cfg_map map = {.items = items, .len = 2};
    struct kafka_rebalance cb = {.assigned = ignore, .revoked = ignore_all, .lost = ignore};
    struct err err;
    if (!r)
        fail_msg("no memory");
    r->h = h;
    r->topic = harness_strf(h, "%s", topic);
    r->group = harness_strf(h, "%s", group);
    if (kafka_consumer_new(&r->consumer, &map, group, topic, &cb, &err) != ST_OK)
        fail_msg("consumer: %s", err.text);
    for (size_t i = 0; i < map.len; i++) {
        free(items[i].key);
        free(items[i].value);
    }
    return r;
}

void topic_reader_free(struct topic_reader *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->len; i++) {
        struct change *c = &r->changes[i];
        free(c->key);
        free(c->store);
        free(c->object);
        free(c->relation);
        free(c->subject);
        free(c->traceparent);
    }
    free(r->changes);
    kafka_consumer_free(r->consumer);
    free(r);
}

static void add(struct topic_reader *r, const struct kafka_message *m)
{
    const void *value;
    size_t len;
    Relata__V1__TupleChange *c = relata__v1__tuple_change__unpack(NULL, m->payload_len, m->payload);
    if (!c)
        fail_msg("a message that is no TupleChange");
    if (r->len == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 1024;
        r->changes = realloc(r->changes, r->cap * sizeof *r->changes);
        if (!r->changes)
            fail_msg("no memory");
    }
    struct change *out = &r->changes[r->len++];
    *out = (struct change){.partition = m->partition,
                           .offset = m->offset,
                           .id = c->id,
                           .op = (int)c->op,
                           .key = strndup(m->key, m->key_len),
                           .store = strdup(c->store),
                           .object = strdup(c->object),
                           .relation = strdup(c->relation),
                           .subject = strdup(c->subject)};
    if (kafka_message_header(m, "traceparent", &value, &len))
        out->traceparent = strndup(value, len);
    relata__v1__tuple_change__free_unpacked(c, NULL);
}

void topic_reader_poll(struct topic_reader *r, size_t n, int ms)
{
    mono_us end = deadline_in_ms(ms);
    while (r->len < n && clock_mono_us() < end) {
        struct kafka_message m;
        struct err err;
        enum status st = kafka_consumer_poll(r->consumer, 50, &m, &err);
        if (st == ST_FATAL)
            fail_msg("consumer: %s", err.text);
        if (st == ST_OK) {
            add(r, &m);
            kafka_message_free(&m);
        }
    }
}

struct to_commit {
    struct topic_reader *r;
    size_t n; /* changes; what is read while waiting is not meant */
};

static bool committed(void *arg)
{
    struct to_commit *what = arg;
    struct topic_reader *r = what->r;
    struct cfg_map_item item = {.key = strdup("bootstrap.servers"), .value = strdup(r->h->brokers)};
    struct cfg_map map = {.items = &item, .len = 1};
    struct kafka_lag lags[64];
    int64_t next[64] = {0};
    int n = 0;
    bool done = kafka_topic_partitions(&map, r->topic, &n, deadline_in_ms(5000), NULL) == ST_OK && n <= 64 &&
                kafka_group_lag(&map, r->group, r->topic, lags, n, deadline_in_ms(5000), NULL) == ST_OK;
    for (size_t i = 0; i < what->n; i++)
        if (r->changes[i].offset + 1 > next[r->changes[i].partition])
            next[r->changes[i].partition] = r->changes[i].offset + 1;
    for (int i = 0; done && i < n; i++)
        if (lags[i].committed < next[i] && next[i] > 0) {
            done = false;
            if (kafka_consumer_commit(r->consumer, i, next[i], NULL) != ST_OK)
                break;
        }
    topic_reader_poll(r, r->len + 1, 20);
    free(item.key);
    free(item.value);
    return done;
}

void topic_reader_commit(struct topic_reader *r)
{
    struct to_commit what = {r, r->len};
    assert_eventually(committed, &what, CALL_MS);
}

int topic_count(const struct topic_reader *r, int64_t id)
{
    int n = 0;
    for (size_t i = 0; i < r->len; i++)
        n += r->changes[i].id == id;
    return n;
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int64_t *sorted_ids(const struct topic_reader *r)
{
    int64_t *ids = calloc(r->len + 1, sizeof *ids);
    if (!ids)
        fail_msg("no memory");
    for (size_t i = 0; i < r->len; i++)
        ids[i] = r->changes[i].id;
    qsort(ids, r->len, sizeof *ids, compare_ids);
    return ids;
}

size_t topic_distinct(const struct topic_reader *r)
{
    size_t n = 0;
    int64_t *ids = sorted_ids(r);
    for (size_t i = 0; i < r->len; i++)
        n += i == 0 || ids[i] != ids[i - 1];
    free(ids);
    return n;
}

/* For the message of a failure: was it not sent, or not read? */
static int64_t messages_in_topic(struct topic_reader *r)
{
    struct cfg_map_item item = {.key = strdup("bootstrap.servers"), .value = strdup(r->h->brokers)};
    struct cfg_map map = {.items = &item, .len = 1};
    struct kafka_lag lags[64];
    int64_t sum = 0;
    int n = 0;
    if (kafka_topic_partitions(&map, r->topic, &n, deadline_in_ms(5000), NULL) != ST_OK || n > 64 ||
        kafka_group_lag(&map, NULL, r->topic, lags, n, deadline_in_ms(5000), NULL) != ST_OK)
        sum = -1;
    for (int i = 0; sum >= 0 && i < n; i++)
        sum += lags[i].end;
    free(item.key);
    free(item.value);
    return sum;
}

void assert_topic_has(struct topic_reader *r, const char *sql, int timeout_ms)
{
    struct pg_result *rows = NULL;
    struct err err;
    mono_us end = deadline_in_ms(harness_ms(timeout_ms));
    int64_t missing = -1;
    size_t nmissing = 0;
    if (pg_query(r->h->pg, NULL, sql, NULL, 0, deadline_in_ms(harness_ms(CALL_MS)), &rows, &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
    do {
        topic_reader_poll(r, r->len + 100000, 200);
        int64_t *ids = sorted_ids(r);
        nmissing = 0;
        for (int i = 0; i < pg_rows(rows); i++) {
            int64_t id = pg_int(rows, i, 0);
            if (!bsearch(&id, ids, r->len, sizeof *ids, compare_ids)) {
                missing = id;
                nmissing++;
            }
        }
        free(ids);
    } while (nmissing > 0 && clock_mono_us() < end);
    if (nmissing > 0)
        fail_msg("%zu of %d outbox ids were not read, among them %lld; the topic has %lld messages, %zu were read",
                 nmissing, pg_rows(rows), (long long)missing, (long long)messages_in_topic(r), r->len);
    pg_result_free(rows);
}

static int compare_tuples(const struct change *a, const struct change *b)
{
    int c = strcmp(a->key, b->key);
    if (c == 0)
        c = strcmp(a->relation, b->relation);
    return c ? c : strcmp(a->subject, b->subject);
}

/* By tuple, then by place: messages of one key share a partition. */
static int compare_places(const void *a, const void *b)
{
    const struct change *x = *(const struct change *const *)a, *y = *(const struct change *const *)b;
    int c = compare_tuples(x, y);
    if (c == 0)
        c = x->partition - y->partition;
    return c ? c : (x->offset > y->offset) - (x->offset < y->offset);
}

/* A change that comes last in its key's messages and is not the newest of them; NULL = none is. */
static const struct change *last_but_old(const struct topic_reader *r, int64_t *newest)
{
    const struct change **sorted = calloc(r->len + 1, sizeof *sorted), *found = NULL;
    if (!sorted)
        fail_msg("no memory");
    for (size_t i = 0; i < r->len; i++)
        sorted[i] = &r->changes[i];
    qsort(sorted, r->len, sizeof *sorted, compare_places);
    *newest = 0;
    for (size_t i = 0; i < r->len && !found; i++) {
        const struct change *c = sorted[i];
        if (c->id > *newest)
            *newest = c->id;
        if (i + 1 < r->len && compare_tuples(c, sorted[i + 1]) == 0)
            continue;
        if (c->id != *newest)
            found = c;
        else
            *newest = 0;
    }
    free(sorted);
    return found;
}

void assert_last_is_newest(struct topic_reader *r)
{
    mono_us end = deadline_in_ms(harness_ms(CALL_MS));
    const struct change *c;
    int64_t newest;
    while ((c = last_but_old(r, &newest)) && clock_mono_us() < end)
        topic_reader_poll(r, r->len + 1, 200);
    if (c)
        fail_msg("%s %s %s: id %lld came last, after %lld", c->key, c->relation, c->subject, (long long)c->id,
                 (long long)newest);
}
