/*
 * raw_events.h - events and heartbeats said by hand to a NATS server, in its own text protocol: any writer, epoch and
 * sequence, so that a test can leave one out. Fails the running test when the server does not do as it is told.
 */
#ifndef RELATA_TESTS_RAW_EVENTS_H
#define RELATA_TESTS_RAW_EVENTS_H

#include <stdint.h>

struct raw_events;

/* `url`: nats://host:port; `store`: a name of [A-Za-z0-9_-]. */
struct raw_events *raw_events_new(const char *url, const char *store);
void raw_events_free(struct raw_events *r); /* accepts NULL */
/* Both return once the server has handled it. An event tells of one tuple; its subject is made of the object's type. */
void raw_events_tuple(struct raw_events *r, int64_t writer, int64_t epoch, uint64_t sequence, const char *model_id,
                      const char *object, const char *relation, const char *subject);
/* A heartbeat that names one object type (NULL = none) with its last sequence. */
void raw_events_beat(struct raw_events *r, int64_t writer, int64_t epoch, const char *type, uint64_t last);

#endif
