/*
 * sender.h - outbox rows to the topic, with the window of what is in flight.
 *
 * A message counts as sent with its good delivery report only. After a failed one the sender refuses everything until
 * sender_reset(): the caller then reads again from the first message without a good report. A row that can never be a
 * message of this topic (too big, not encodable) is handed to `park` and counts as done; its neighbours do not notice:
 * a broker refuses a batch as a whole, so after such a refusal the suspects are sent again one at a time. One thread.
 */
#ifndef RELATA_RELAY_SENDER_H
#define RELATA_RELAY_SENDER_H

#include "common/kafka/kafka.h"
#include "outbox-relay/message.h"
#include "outbox-relay/window.h"

/* Move the row to relata.dead_letter. ST_OK: it is there, or pends no more. ST_NOT_FOUND: queries do not show it yet (a
 * stream brings rows before their transaction becomes visible); it is asked again, and stays open in the window
 * meanwhile. Anything else is a failure of the sender too. */
typedef enum status sender_park(void *arg, const char *store, int64_t outbox_id, uint64_t xid, const struct err *why,
                                struct err *err);

/* A refused row that queries do not show yet. */
struct hidden_row {
    uint64_t number; /* in the window */
    int64_t outbox_id;
    uint64_t xid;
    char *store;
    enum status status;
    char code[sizeof((struct err *)0)->code];
    char *text;
};

struct sender {
    struct kafka_producer *kafka;
    const char *topic;
    struct window window;
    struct message message;
    sender_park *park;
    void *park_arg;

    struct err failure; /* status ST_OK = none */

    /* Refusals by the broker. */
    size_t alone_from; /* messages of this size or more are sent one at a time; SIZE_MAX = none */
    uint64_t alone;    /* the number of the one that is in flight alone; 0 = none */
    char *alone_store; /* its store */
    uint64_t alone_xid;
    struct err refused; /* why it was refused; status ST_OK = not */
    size_t largest;     /* of the refused ones, none of which was alone */
    size_t suspects;    /* messages still to be sent until the culprit must have shown */
    bool found;         /* it has */

    struct hidden_row *hidden;
    size_t nhidden, hidden_cap;
    mono_us ask_at; /* for them again */
};

/* `topic` must outlive the sender. ST_OK, ST_CONFIG (a Kafka property), ST_NOMEM. */
enum status sender_init(struct sender *s, const struct cfg_map *kafka, const char *topic, size_t in_flight,
                        sender_park *park, void *park_arg, struct err *err) MUST_CHECK;
void sender_release(struct sender *s);

/* ST_OK: in flight, parked, or waiting to be parked. ST_THROTTLED: no room; serve and try the same row again. Else the
 * failure: reset. */
enum status sender_send(struct sender *s, const struct outbox_row *row, struct position from,
                        struct err *err) MUST_CHECK;
/* Serve delivery reports, waiting up to timeout_ms for the first; park what has become visible. ST_OK, or the failure.
 */
enum status sender_serve(struct sender *s, int timeout_ms, struct err *err) MUST_CHECK;
/* When sender_serve() has something to do beside reports; DEADLINE_NONE if nothing. */
mono_us sender_due(const struct sender *s);
/* The topic takes batches of at most this many bytes. Resets the producer if that is less than what it makes; nothing
 * must be in flight. ST_OK or ST_CONFIG. */
enum status sender_batch_bytes(struct sender *s, int64_t bytes, struct err *err) MUST_CHECK;
/* The stream begins anew at `confirmed`: what it has not covered comes again and is forgotten. */
void sender_restart(struct sender *s, uint64_t confirmed);
/* Forget what is in flight and start a fresh producer. window.confirmed stays. ST_OK or ST_CONFIG. */
enum status sender_reset(struct sender *s, struct err *err) MUST_CHECK;

#endif
