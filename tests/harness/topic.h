/*
 * topic.h - a Kafka topic as a test sees it: made, changed, wiped, and read as tuple changes.
 *
 * Functions fail the test when Kafka does not do as it is told within 30 s. Main thread only.
 */
#ifndef RELATA_TESTS_TOPIC_H
#define RELATA_TESTS_TOPIC_H

#include "tests/harness/harness.h"

/* `config` is NULL or "name=value", e.g. "max.message.bytes=20000". */
void topic_create(struct harness *h, const char *topic, int partitions, const char *config);
void topic_delete(struct harness *h, const char *topic); /* waits until it is gone */
void topic_grow(struct harness *h, const char *topic, int partitions);

/* One message. */
struct change {
    int partition;
    int64_t offset;
    int64_t id; /* of the outbox row */
    int op;     /* Relata__V1__Op */
    char *key;  /* the message's */
    char *store;
    char *object, *relation, *subject;
    char *traceparent; /* NULL = no such header */
};

/* Reads as a consumer group of its own, from the start. The topic may appear later. */
struct topic_reader {
    struct harness *h;
    const char *topic, *group;
    struct kafka_consumer *consumer;
    struct change *changes; /* in the order of reading; within a partition that of the topic */
    size_t len, cap;
};

struct topic_reader *topic_read(struct harness *h, const char *topic);
/* The same in a group with a name. */
struct topic_reader *topic_read_as(struct harness *h, const char *topic, const char *group);
/* Commit all that was read, and wait until the group has it. */
void topic_reader_commit(struct topic_reader *r);
void topic_reader_free(struct topic_reader *r); /* accepts NULL */
/* Read what there is, for up to `ms` or until `n` changes were read in all. */
void topic_reader_poll(struct topic_reader *r, size_t n, int ms);
/* How often the outbox id was read. */
int topic_count(const struct topic_reader *r, int64_t id);
/* Distinct ids. */
size_t topic_distinct(const struct topic_reader *r);
/* Read until each id of the query's first column was read at least once. */
void assert_topic_has(struct topic_reader *r, const char *sql, int timeout_ms);
/* The last message of each tuple key is the one with its highest id; read on until it is, for a while: messages that
 * are sent again (a slot was made, Kafka came back) may be in the midst of it. */
void assert_last_is_newest(struct topic_reader *r);

#endif
