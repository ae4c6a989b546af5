/* world_internal.h - private to world.c and hearing.c. */
#ifndef RELATA_LISTER_DECIDE_WORLD_INTERNAL_H
#define RELATA_LISTER_DECIDE_WORLD_INTERNAL_H

#include "common/admin/metrics.h"
#include "inventory-lister/decide/world.h"

/* Why the cache was flushed. */
enum flush_why {
    FLUSH_GAP,     /* events of a subject are missing */
    FLUSH_EPOCH,   /* a writer that was not heard before, or a reconnect */
    FLUSH_SUBJECT, /* a subject heard for the first time, not with its first event */
    FLUSH_SILENCE, /* heartbeats are back after having been away */
    FLUSH_MODEL,   /* another store or model is in force */
    FLUSH_OTHER,   /* an event was made under a model that is not in force here */
    FLUSH_REASONS
};
void world_flush(struct cache *cache, enum flush_why why);

extern struct metric m_events, m_event_delay, m_blind, m_model_reads;
/* What the cache counted since the last call, into the metrics; one thread. */
void world_metrics_cache(const struct cache *cache, struct cache_stats *last);

/* Every model that is held by somebody or in force, held now; 0 if there is none or more than `max`, with *many. The
 * caller releases them. */
size_t world_hold_all(struct world *w, const struct in_force **out, size_t max, bool *many);
/* Read relata.store at once. */
void world_hurry(struct world *w);

#endif
