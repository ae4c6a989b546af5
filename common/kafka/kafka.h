/*
 * kafka.h - librdkafka, wrapped once. Only this room includes rdkafka.h.
 *
 * Success of a message exists only in its delivery report. Any librdkafka
 * property passes through from section [kafka]; what correctness rests on
 * (enable.idempotence, acks, partitioner, enable.auto.commit, enable.auto.offset.store,
 * auto.offset.reset, allow.auto.create.topics, group.id, transactional.id,
 * delivery.report.only.error) is set by us and refused there with ST_CONFIG.
 *
 * Defaults of ours where the section is silent: small queues (10,000 messages and 4 MiB in the producer, 8 MiB in the
 * consumer), linger.ms=1, reconnect.backoff.max.ms=2000, partition.assignment.strategy=cooperative-sticky.
 * message.timeout.ms keeps librdkafka's 300 s: a message that is given up while its broker is down may be stored all
 * the same, so the bound should be above any outage; shorter only costs repeats.
 *
 * librdkafka's own log lines go to log.h. The properties are copied; the map need not outlive the call.
 */
#ifndef RELATA_KAFKA_KAFKA_H
#define RELATA_KAFKA_KAFKA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"

struct kafka_header {
    const char *name;
    const void *value;
    size_t len;
};

/* Whether producers and consumers would take these properties, the files that they name included; connects to nothing.
 * ST_OK, or ST_CONFIG with the reason. For a program's `validate`. */
enum status kafka_properties_check(const struct cfg_map *properties, struct err *err) MUST_CHECK;

/* ---- producer: one thread ---- */
struct kafka_producer;

/* The report of one message, from kafka_producer_poll(), in this thread. ST_OK: stored by all in-sync replicas.
 * ST_TOO_BIG / ST_INVALID: refused by size or content; the broker refuses whole batches, so only a message that was
 * alone in flight is surely the culprit. ST_MISSING: no such topic; ST_DENIED: not allowed. Anything else: not stored
 * or unknown. None but ST_OK means that it was stored, none that it was not: produce it again. */
typedef void kafka_on_delivery(void *arg, uint64_t tag, enum status st, const struct err *err);

/* Checks the properties (ST_CONFIG) and starts; connects in the background. */
enum status kafka_producer_new(struct kafka_producer **out, const struct cfg_map *properties,
                               kafka_on_delivery *on_delivery, void *arg, struct err *err) MUST_CHECK;
/* Purges what is queued, without reports; does not wait for brokers. Accepts NULL. */
void kafka_producer_free(struct kafka_producer *p);

/* Enqueue (payload, key and headers are copied). ST_OK; ST_THROTTLED: the local queue is full, poll and try again;
 * ST_TOO_BIG: over message.max.bytes; ST_MISSING: the topic is known not to exist; ST_FATAL: the producer is broken:
 * kafka_producer_reset, then replay from the first unreported. */
enum status kafka_produce(struct kafka_producer *p, const char *topic, const void *key, size_t key_len,
                          const void *payload, size_t payload_len, const struct kafka_header *headers, size_t nheaders,
                          uint64_t tag, struct err *err) MUST_CHECK;
/* Serve delivery reports, waiting at most timeout_ms (0 = not at all). Returns the number of events. */
int kafka_producer_poll(struct kafka_producer *p, int timeout_ms);
/* Readable when there is something to serve, for poll(2); the same descriptor for the producer's life. */
int kafka_producer_fd(struct kafka_producer *p);
/* True after a fatal error; *err (may be NULL) says which. */
bool kafka_producer_broken(const struct kafka_producer *p, struct err *err);
/* Purge, destroy and recreate. Undelivered messages get no further report. */
enum status kafka_producer_reset(struct kafka_producer *p, struct err *err) MUST_CHECK;
/* Batches of at most this many bytes from the next reset on; 0 = as configured. For topics that take less than a full
 * batch. Returns the bound in force now (batch.size). */
size_t kafka_producer_batch_limit(struct kafka_producer *p, size_t bytes);
/* Messages without a report yet. */
int kafka_producer_outstanding(const struct kafka_producer *p);
/* False from a report of all brokers being down or refusing us (in *err, may be NULL) until a message is stored or
 * kafka_producer_ping succeeds. */
bool kafka_producer_up(const struct kafka_producer *p, struct err *err);
/* Ask the cluster for the topic; blocks at most timeout_ms. ST_OK with *partitions, ST_MISSING, ST_DENIED, ST_RETRY. */
enum status kafka_producer_ping(struct kafka_producer *p, const char *topic, int timeout_ms, int *partitions,
                                struct err *err) MUST_CHECK;

/* ---- consumer: one thread; callbacks run inside kafka_consumer_poll() and kafka_consumer_free() ---- */
struct kafka_consumer;

struct kafka_message {
    const char *topic;
    int32_t partition;
    int64_t offset;
    const void *key;
    size_t key_len;
    const void *payload; /* NULL for a tombstone */
    size_t payload_len;
    void *handle; /* private; kafka_message_free */
};

struct kafka_rebalance {
    void (*assigned)(void *arg, int32_t partition); /* not paused, whatever it was before */
    /* All that a rebalance takes at once: drain what is in flight of them and commit their offsets, both by the
     * deadline (drain_ms after the call), before returning. The commits are then waited for (KAFKA_COMMIT_WAIT_MS) and
     * the partitions released. */
    void (*revoked)(void *arg, const int32_t *partitions, int n, mono_us deadline);
    /* The partition is somebody else's already: discard, commit nothing. */
    void (*lost)(void *arg, int32_t partition);
    void *arg;
    int64_t drain_ms;
};
/* Together with drain_ms the longest that a rebalance keeps kafka_consumer_poll(): the group's timeouts must be above.
 */
#define KAFKA_COMMIT_WAIT_MS 2000

/* `cb` is copied. A group without a committed offset starts at the earliest message. */
enum status kafka_consumer_new(struct kafka_consumer **out, const struct cfg_map *properties, const char *group,
                               const char *topic, const struct kafka_rebalance *cb, struct err *err) MUST_CHECK;
void kafka_consumer_free(struct kafka_consumer *c); /* revokes, leaves the group; accepts NULL */
/* One message (kafka_message_free it), ST_NOT_FOUND after timeout_ms, or an error: ST_RETRY (go on polling), ST_MISSING
 * (no such topic; polling goes on looking), ST_DENIED, ST_FATAL (free and make a new one). Call it at least every
 * max.poll.interval.ms, paused or not. */
enum status kafka_consumer_poll(struct kafka_consumer *c, int timeout_ms, struct kafka_message *out,
                                struct err *err) MUST_CHECK;
void kafka_message_free(struct kafka_message *m);
/* The last header of that name: *value (not NUL-terminated) belongs to the message. False if there is none. */
bool kafka_message_header(const struct kafka_message *m, const char *name, const void **value, size_t *len);
/* What was fetched but not yet returned is fetched again after resuming; with librdkafka before 2.4 sometimes the last
 * message that was returned, too. */
enum status kafka_consumer_pause(struct kafka_consumer *c, int32_t partition, bool paused, struct err *err) MUST_CHECK;
/* Commit `next` (the offset after the last done one) of a partition, asynchronously: a failed commit is sent again by
 * kafka_consumer_poll, once a second. One request each: call it at a moderate rate. ST_NOT_FOUND if the partition is
 * not ours. */
enum status kafka_consumer_commit(struct kafka_consumer *c, int32_t partition, int64_t next,
                                  struct err *err) MUST_CHECK;

/* ---- admin: blocking until the deadline (DEADLINE_NONE counts as 30 s), any thread ---- */
/* Create if missing, and wait until it is visible. ST_OK also if it exists, with however many partitions. */
enum status kafka_topic_ensure(const struct cfg_map *properties, const char *topic, int partitions, int replication,
                               mono_us deadline, struct err *err) MUST_CHECK;
/* ST_OK with the number of partitions, or ST_MISSING. */
enum status kafka_topic_partitions(const struct cfg_map *properties, const char *topic, int *partitions,
                                   mono_us deadline, struct err *err) MUST_CHECK;
/* The topic's max.message.bytes: the largest batch that it takes. ST_DENIED if this client may not ask. */
enum status kafka_topic_max_bytes(const struct cfg_map *properties, const char *topic, int64_t *bytes, mono_us deadline,
                                  struct err *err) MUST_CHECK;
struct kafka_lag {
    int64_t begin;     /* low watermark: the first offset that still exists */
    int64_t end;       /* high watermark: the offset of the next message */
    int64_t committed; /* -1 = none */
};
/* Watermarks and the group's committed offsets, for partitions 0..n-1. `group` NULL: watermarks only, committed -1. */
enum status kafka_group_lag(const struct cfg_map *properties, const char *group, const char *topic,
                            struct kafka_lag *lags, int n, mono_us deadline, struct err *err) MUST_CHECK;

#endif
