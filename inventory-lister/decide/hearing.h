/*
 * hearing.h - the events of the writers, heard: they make cached decisions old, and silence makes the cache blind.
 *
 * An event's tuples invalidate through model_effect() of every model that is in force or still held. Whatever may have
 * been missed (gap, a writer heard for the first time, reconnect) flushes, and so does an event made under another
 * model than ours, which also makes world read at once what is in force. Blind until the first heartbeat; blind again
 * while a writer that was heard is silent for the time-out, until it is back, or was silent for ten times that and is
 * forgotten (it has ended: the next writer is another). The cache is flushed before it sees again.
 */
#ifndef RELATA_LISTER_DECIDE_HEARING_H
#define RELATA_LISTER_DECIDE_HEARING_H

#include "inventory-lister/decide/world.h"

struct hearing;

/* The cache is blind from here on. The arguments must outlive it. */
enum status hearing_start(struct hearing **out, const struct world_settings *cfg, struct world *world,
                          struct cache *cache, struct err *err) MUST_CHECK;
void hearing_stop(struct hearing *h); /* waits for its thread; accepts NULL */

#endif
