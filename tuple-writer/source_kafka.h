/*
 * source_kafka.h - hints from Kafka: source = kafka, the main thread.
 *
 * A message is a hint only: an offset is committed when the key's outbox rows are acknowledged, as the contiguous low
 * water mark of its partition. While the lanes hold too much, partitions are paused and polling goes on. A partition
 * that is revoked is drained of what is in flight, committed and given up; one that is lost is only given up, and its
 * waiting keys are not sent any more. While one key of a partition is not applied, newer ones are, but
 * no more than four windows of them: then the partition is paused. Messages that cannot be read are counted, logged and
 * skipped: the outbox row, which stays pending, is the truth, and the relay sends it again.
 */
#ifndef RELATA_WRITER_SOURCE_KAFKA_H
#define RELATA_WRITER_SOURCE_KAFKA_H

#include "common/base/status.h"
#include "tuple-writer/writer.h"

/* Longest wait for batches in flight when partitions are taken away, however many at once. */
int64_t source_kafka_drain_ms(const struct settings *cfg);
/* Runs until the stop flag is raised. Errors that will not pass end it. The consumer is kept until source_kafka_end().
 */
struct kafka_source;
enum status source_kafka_run(struct kafka_source **out, struct writer *w, struct err *err) MUST_CHECK;
/* After the lanes have ended: commit what they have done, leave the group, free. Accepts NULL. */
void source_kafka_end(struct kafka_source *s);

#endif
