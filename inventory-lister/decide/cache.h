/*
 * cache.h - decisions remembered for a short while, and what makes them too old.
 *
 * A decision is stored with the moment at which its check *began*. An invalidation stores the moment at which it came.
 * An entry is good if it began after every invalidation that touches it and is not older than its TTL; the same test
 * decides whether a fill is accepted, so an answer that was asked for before a revoke can never be served after it.
 * Invalidations do not look for entries: they stamp tables of fixed size (per pair; per pair and subject; per pair and
 * object; per pair, subject and object; each but the first by hash, a collision only makes more entries old), so one
 * costs the same however full the cache is.
 *
 * Entries are keyed by a 128-bit hash, seeded at random at start, of (store id, model id, subject, relation, object)
 * and hold no text: CACHE_ENTRY_BYTES each, in sets of 8, the oldest of a set gives way. The stamp tables take up to a
 * quarter of that besides (8 bytes a slot, three tables of one slot for four entries, 384 KiB .. 12 MiB together). All
 * functions are thread-safe and never block on anything but a short lock.
 *
 * One rule for whoever asks the store: read the clock (`began`), THEN ask cache_suspect(), then send the check. An
 * invalidation that cache_suspect() does not know of yet is later than `began`, so that its fill is refused.
 */
#ifndef RELATA_LISTER_DECIDE_CACHE_H
#define RELATA_LISTER_DECIDE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define CACHE_ENTRY_BYTES 32

struct cache;

struct cache_settings {
    int64_t bytes;          /* for entries; 0 = cache nothing */
    int64_t allow_ttl_ms;   /* 1 .. 5 s */
    int64_t deny_ttl_ms;    /* not longer: a creator waits for this to see the own new object */
    int64_t suspect_ms;     /* for so long after an invalidation affected checks ask for higher consistency: the store's
                               own cache TTL plus its request timeout */
    mono_us (*clock)(void); /* of invalidations; NULL = clock_mono_us */
};

enum status cache_new(struct cache **out, const struct cache_settings *cfg, struct err *err) MUST_CHECK;
void cache_free(struct cache *c); /* accepts NULL */

/* Everything that names one decision, hashed once. */
struct cache_key {
    uint64_t id[2];
    uint32_t pair, by_subject, by_object, by_both; /* slots of the stamp tables */
};
/* `pair` is the model's number of (type of object, relation); a new model comes with a flush. While requests still hold
 * an old model, invalidations are made by its numbers too. */
struct cache_key cache_key(const struct cache *c, const char *store_id, const char *model_id, int pair,
                           const char *subject, const char *object);

enum cached { CACHE_MISS, CACHE_DENY, CACHE_ALLOW };
/* `not_before`: entries whose check began earlier do not count. */
enum cached cache_get(struct cache *c, const struct cache_key *k, mono_us not_before, mono_us now);
/* False: refused, because something that touches it was invalidated after `began`. */
bool cache_put(struct cache *c, const struct cache_key *k, bool allowed, mono_us began);
/* Whether a check that begins now must ask for higher consistency. */
bool cache_suspect(const struct cache *c, const struct cache_key *k, mono_us now);
/* Whether an answer to a check that began then may still be given out (not only cached): nothing touched it since. */
bool cache_current(const struct cache *c, const struct cache_key *k, mono_us began);

/* The decisions of this pair are old now; subject or object NULL = not narrowed by it. */
void cache_invalidate(struct cache *c, int pair, const char *subject, const char *object);
/* The same for many pairs at once. */
void cache_invalidate_all(struct cache *c, const int *pairs, size_t n, const char *subject, const char *object);
/* Everything is old now. */
void cache_flush(struct cache *c);
/* While set, every check asks for higher consistency: events may be missing. */
void cache_blind(struct cache *c, bool blind);

struct cache_stats {
    uint64_t hits, misses, refused_fills; /* a miss: nothing there, or too old */
    /* of one pair each, by what they were narrowed to */
    uint64_t invalidations_pair, invalidations_subject, invalidations_object, invalidations_both, flushes;
    uint64_t entries, capacity;
};
void cache_stats(const struct cache *c, struct cache_stats *out);

#endif
