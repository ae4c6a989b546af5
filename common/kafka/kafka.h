/*
 * kafka.h - librdkafka, wrapped once. Only this room includes rdkafka.h.
 *
 * Success of a message exists only in its delivery report. Any librdkafka
 * property passes through from section [kafka]; what correctness rests on
 * (enable.idempotence, acks, partitioner, enable.auto.commit, enable.auto.offset.store,
 * auto.offset.reset, allow.auto.create.topics) is set by us and refused there.
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

/* ---- producer: one thread ---- */
struct kafka_producer;

/* The report of one message, from kafka_producer_poll(), in this thread. ST_OK: stored by all in-sync replicas.
 * ST_TOO_BIG / ST_INVALID: this message can never be stored. ST_RETRY: not stored or unknown; produce it again. */
typedef void kafka_on_delivery(void *arg, uint64_t tag, enum status st, const struct err *err);

enum status kafka_producer_new(struct kafka_producer **out, const struct cfg_map *properties,
                               kafka_on_delivery *on_delivery, void *arg, struct err *err) MUST_CHECK;
void kafka_producer_free(struct kafka_producer *p); /* purges what is queued; accepts NULL */

/* Enqueue (payload, key and headers are copied). ST_OK; ST_THROTTLED: the local queue is full, poll and try again;
 * ST_TOO_BIG; ST_FATAL: the producer is broken: kafka_producer_reset, then replay from the first unreported. */
enum status kafka_produce(struct kafka_producer *p, const char *topic, const void *key, size_t key_len,
                          const void *payload, size_t payload_len, const struct kafka_header *headers, size_t nheaders,
                          uint64_t tag, struct err *err) MUST_CHECK;
/* Serve delivery reports, waiting at most timeout_ms (0 = not at all). Returns the number of events. */
int kafka_producer_poll(struct kafka_producer *p, int timeout_ms);
/* Readable when there is something to serve, for poll(2). */
int kafka_producer_fd(struct kafka_producer *p);
/* True after a fatal error; *err (may be NULL) says which. */
bool kafka_producer_broken(const struct kafka_producer *p, struct err *err);
/* Purge, destroy and recreate. Undelivered messages get no further report. */
enum status kafka_producer_reset(struct kafka_producer *p, struct err *err) MUST_CHECK;
/* Messages without a report yet. */
int kafka_producer_outstanding(const struct kafka_producer *p);

/* ---- consumer: one thread; callbacks run inside kafka_consumer_poll() ---- */
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
    void (*assigned)(void *arg, int32_t partition);
    /* Drain what is in flight of it and store its offset before returning: then it is committed and released. */
    void (*revoked)(void *arg, int32_t partition);
    /* The partition is somebody else's already: discard, commit nothing. */
    void (*lost)(void *arg, int32_t partition);
    void *arg;
};

enum status kafka_consumer_new(struct kafka_consumer **out, const struct cfg_map *properties, const char *group,
                               const char *topic, const struct kafka_rebalance *cb, struct err *err) MUST_CHECK;
void kafka_consumer_free(struct kafka_consumer *c); /* leaves the group; accepts NULL */
/* One message (kafka_message_free it), ST_NOT_FOUND after timeout_ms, or an error. Call it at least every
 * max.poll.interval.ms, paused or not. */
enum status kafka_consumer_poll(struct kafka_consumer *c, int timeout_ms, struct kafka_message *out,
                                struct err *err) MUST_CHECK;
void kafka_message_free(struct kafka_message *m);
enum status kafka_consumer_pause(struct kafka_consumer *c, int32_t partition, bool paused, struct err *err) MUST_CHECK;
/* Commit `next` (the offset after the last done one) of a partition, asynchronously. */
enum status kafka_consumer_commit(struct kafka_consumer *c, int32_t partition, int64_t next,
                                  struct err *err) MUST_CHECK;

/* ---- admin: blocking, any thread ---- */
/* Create if missing. ST_OK also if it exists. */
enum status kafka_topic_ensure(const struct cfg_map *properties, const char *topic, int partitions, int replication,
                               mono_us deadline, struct err *err) MUST_CHECK;
/* ST_OK with the number of partitions, or ST_MISSING. */
enum status kafka_topic_partitions(const struct cfg_map *properties, const char *topic, int *partitions,
                                   mono_us deadline, struct err *err) MUST_CHECK;
struct kafka_lag {
    int64_t end;       /* high watermark */
    int64_t committed; /* -1 = none */
};
/* End offsets and the group's committed offsets, for `n` partitions. */
enum status kafka_group_lag(const struct cfg_map *properties, const char *group, const char *topic,
                            struct kafka_lag *lags, int n, mono_us deadline, struct err *err) MUST_CHECK;

#endif
