/*
 * hearing.h - the events of the writers, heard: they make cached decisions old, and silence makes the cache blind.
 *
 * An event's tuples invalidate through model_effect() of every model that is in force or still held. Whatever may have
 * been missed (gap, a writer heard for the first time, reconnect) flushes, and so does an event made under another
 * model than ours, which also makes world read at once what is in force. Blind until the first heartbeat; blind again
 * while a writer, heard before or only known to live, is silent for the time-out: until it is back, or has ended and is
 * forgotten. Whether it lives, Postgres tells (hearing_living), so that one that is cut off from NATS alone is waited
 * for. The cache is flushed before it sees again.
 */
#ifndef RELATA_LISTER_DECIDE_HEARING_H
#define RELATA_LISTER_DECIDE_HEARING_H

#include "inventory-lister/decide/world.h"

struct hearing;

/* The cache is blind from here on. The arguments must outlive it. */
enum status hearing_start(struct hearing **out, const struct world_settings *cfg, struct world *world,
                          struct cache *cache, struct err *err) MUST_CHECK;
void hearing_stop(struct hearing *h); /* waits for its thread; accepts NULL */

#define HEARING_WRITERS 64
struct hearing_writer {
    int64_t id, epoch; /* as in its events and in relata.writer */
};
/* The writers of this store that lived at some time since `asked`. Any thread. */
void hearing_living(struct hearing *h, const struct hearing_writer *living, size_t n, mono_us asked);

#endif
