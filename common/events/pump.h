/*
 * pump.h - the publisher's connection to NATS, in a thread of its own: connecting, publishing and flushing may take
 * seconds while a server is frozen or away, and nobody else is to wait for that.
 *
 * All functions are thread-safe.
 */
#ifndef RELATA_EVENTS_PUMP_H
#define RELATA_EVENTS_PUMP_H

#include "common/events/internal.h"

struct pump;
struct batch;

/* Starts connecting, and waits for the first attempt, at most `flush_ms`. ST_OK also if it failed or still runs: it
 * goes on by itself. ST_CONFIG, ST_NOMEM, ST_FATAL. Takes `opts`, whatever is returned. */
enum status pump_new(struct pump **out, natsOptions *opts, int64_t flush_ms, struct err *err) MUST_CHECK;
/* What is queued is dropped. Waits for what the thread does now: for a connection attempt up to 2 s a server. Accepts
 * NULL. */
void pump_free(struct pump *p);
/* The server takes messages: connected, and the last flush was answered in time. */
bool pump_ready(const struct pump *p);
uint64_t pump_reconnects(const struct pump *p);

/* Queue messages, in order. Does not block. NULL if they cannot be sent now (pump_ready) or there is no memory. Takes
 * the messages either way, but not the array. */
struct batch *pump_queue(struct pump *p, natsMsg **msgs, size_t n);
/* Wait until the server has them, at most flush_ms. False: it is not known to. Frees the batch. */
bool pump_wait(struct pump *p, struct batch *b);
/* Queue a message behind all others, in place of an earlier one of this kind that still waits. It is tried even if the
 * last flush was not answered: when this one is, the pump is ready again. Does not block. Takes the message. */
void pump_beat(struct pump *p, natsMsg *msg);

#endif
