/*
 * cache.c - the entries, in sets of eight behind a few locks, and the stamps that make them old.
 *
 * Why nothing stale gets through: an invalidation raises `busy`, reads the clock, writes its stamps, lowers `busy`. A
 * check reads the clock, then asks cache_suspect(), which looks at `busy` first and at the stamps after. If it saw
 * neither, the invalidation began later than the check, so that its stamp is not before the check's begin: put, get and
 * current refuse it, since equal is too old. If it saw one, the check asked for higher consistency and its answer is
 * fresh. Stamps only grow, and are read without locks; entries are judged again at every get, so that a put may race
 * with an invalidation.
 */
#define XXH_STATIC_LINKING_ONLY /* the state of a hash on the stack */
#include "inventory-lister/decide/cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <xxhash.h>

#define SET 8
#define LOCKS 256
#define SECRET 192
#define PAIR_SLOTS 4096
#define SLOTS_MIN (1 << 14)
#define SLOTS_MAX (1 << 19)
#define SLOT_SHARE 4 /* entries for one slot */
#define VALUE_DENY 1
#define VALUE_ALLOW 2

struct entry {
    uint64_t id[2];
    mono_us began;
    uint64_t value; /* 0 = free */
};
_Static_assert(sizeof(struct entry) == CACHE_ENTRY_BYTES, "the header states the size");

/* When decisions were last made old; 0 = never. */
struct stamp {
    _Atomic mono_us at;
};

struct shard {
    _Alignas(64) pthread_mutex_t mu; /* of the sets with this number modulo LOCKS */
};

struct cache {
    struct cache_settings cfg;
    unsigned char secret[SECRET];
    struct entry *entries;
    uint64_t sets;
    struct stamp *pairs, *subjects, *objects, *both;
    uint32_t slots; /* of the last three; a power of two */
    struct stamp flushed;
    atomic_int busy; /* invalidations at work */
    atomic_bool blind;
    _Atomic uint64_t hits, misses, refused, by_pair, by_subject, by_object, by_both, flushes, used;
    struct shard shards[LOCKS];
};

static void count(_Atomic uint64_t *n, uint64_t by)
{
    atomic_fetch_add_explicit(n, by, memory_order_relaxed);
}

static uint32_t slots_for(uint64_t entries)
{
    uint32_t n = SLOTS_MIN;
    while (n < SLOTS_MAX && n < entries / SLOT_SHARE)
        n *= 2;
    return n;
}

enum status cache_new(struct cache **out, const struct cache_settings *cfg, struct err *err)
{
    *out = NULL;
    struct cache *c;
    if (cfg->deny_ttl_ms > cfg->allow_ttl_ms)
        return err_set(err, ST_CONFIG, NULL, "denials must not be cached longer than permissions");
    c = aligned_alloc(_Alignof(struct cache), sizeof *c);
    if (!c)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    memset(c, 0, sizeof *c);
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&c->shards[i].mu, NULL);
    c->cfg = *cfg;
    if (!c->cfg.clock)
        c->cfg.clock = clock_mono_us;
    c->sets = (uint64_t)cfg->bytes / (SET * sizeof *c->entries);
    c->slots = slots_for(c->sets * SET);
    c->entries = calloc(c->sets * SET + 1, sizeof *c->entries);
    c->pairs = calloc(PAIR_SLOTS, sizeof *c->pairs);
    c->subjects = calloc(c->slots, sizeof *c->subjects);
    c->objects = calloc(c->slots, sizeof *c->objects);
    c->both = calloc(c->slots, sizeof *c->both);
    if (!c->entries || !c->pairs || !c->subjects || !c->objects || !c->both) {
        cache_free(c);
        return err_set(err, ST_NOMEM, NULL, "no memory for a cache of %lld bytes", (long long)cfg->bytes);
    }
    if (getrandom(c->secret, sizeof c->secret, 0) != (ssize_t)sizeof c->secret) {
        cache_free(c);
        return err_set(err, ST_FATAL, NULL, "the system gives no random bytes");
    }
    *out = c;
    return ST_OK;
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_destroy(&c->shards[i].mu);
    free(c->entries);
    free(c->pairs);
    free(c->subjects);
    free(c->objects);
    free(c->both);
    free(c);
}

/* ---- names ---- */
static void hash_text(XXH3_state_t *state, const char *s)
{
    XXH3_128bits_update(state, s, strlen(s) + 1); /* the NUL keeps neighbours apart */
}

static uint64_t name_hash(const struct cache *c, const char *s)
{
    return XXH3_64bits_withSecret(s, strlen(s), c->secret, sizeof c->secret);
}

/* The slot of a pair with a subject's hash, an object's, or both. */
static uint32_t slot_of(const struct cache *c, int pair, uint64_t subject, uint64_t object)
{
    uint64_t x = (subject ^ ((object << 32) | (object >> 32))) + (uint64_t)(uint32_t)pair * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ULL;
    return (uint32_t)(x >> 32) & (c->slots - 1);
}

struct cache_key cache_key(const struct cache *c, const char *store_id, const char *model_id, int pair,
                           const char *subject, const char *object)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset_withSecret(&state, c->secret, sizeof c->secret);
    XXH3_128bits_update(&state, &pair, sizeof pair);
    hash_text(&state, store_id);
    hash_text(&state, model_id);
    hash_text(&state, subject);
    hash_text(&state, object);
    XXH128_hash_t id = XXH3_128bits_digest(&state);
    uint64_t s = name_hash(c, subject), o = name_hash(c, object);
    return (struct cache_key){.id = {id.low64, id.high64},
                              .pair = (uint32_t)pair & (PAIR_SLOTS - 1),
                              .by_subject = slot_of(c, pair, s, 0),
                              .by_object = slot_of(c, pair, 0, o),
                              .by_both = slot_of(c, pair, s, o)};
}

/* ---- stamps ---- */
/* The latest invalidation that touches the key. */
static mono_us stamp_of(const struct cache *c, const struct cache_key *k)
{
    const struct stamp *const stamps[] = {&c->pairs[k->pair], &c->subjects[k->by_subject], &c->objects[k->by_object],
                                          &c->both[k->by_both], &c->flushed};
    mono_us latest = 0;
    for (size_t i = 0; i < sizeof stamps / sizeof *stamps; i++) {
        mono_us at = atomic_load_explicit(&stamps[i]->at, memory_order_acquire);
        latest = at > latest ? at : latest;
    }
    return latest;
}

static void stamp_set(struct stamp *s, mono_us now)
{
    mono_us was = atomic_load_explicit(&s->at, memory_order_relaxed);
    while (was < now &&
           !atomic_compare_exchange_weak_explicit(&s->at, &was, now, memory_order_release, memory_order_relaxed))
        ;
}

static mono_us stamping_begin(struct cache *c)
{
    atomic_fetch_add(&c->busy, 1);
    return c->cfg.clock();
}

static void stamping_end(struct cache *c)
{
    atomic_fetch_sub(&c->busy, 1);
}

void cache_invalidate_all(struct cache *c, const int *pairs, size_t n, const char *subject, const char *object)
{
    uint64_t s = subject ? name_hash(c, subject) : 0, o = object ? name_hash(c, object) : 0;
    mono_us now = stamping_begin(c);
    for (size_t i = 0; i < n; i++) {
        if (subject && object)
            stamp_set(&c->both[slot_of(c, pairs[i], s, o)], now);
        else if (subject)
            stamp_set(&c->subjects[slot_of(c, pairs[i], s, 0)], now);
        else if (object)
            stamp_set(&c->objects[slot_of(c, pairs[i], 0, o)], now);
        else
            stamp_set(&c->pairs[(uint32_t)pairs[i] & (PAIR_SLOTS - 1)], now);
    }
    stamping_end(c);
    count(subject ? object ? &c->by_both : &c->by_subject : object ? &c->by_object : &c->by_pair, n);
}

void cache_invalidate(struct cache *c, int pair, const char *subject, const char *object)
{
    cache_invalidate_all(c, &pair, 1, subject, object);
}

void cache_flush(struct cache *c)
{
    mono_us now = stamping_begin(c);
    stamp_set(&c->flushed, now);
    stamping_end(c);
    count(&c->flushes, 1);
}

void cache_blind(struct cache *c, bool blind)
{
    atomic_store(&c->blind, blind);
}

bool cache_suspect(const struct cache *c, const struct cache_key *k, mono_us now)
{
    if (atomic_load(&c->blind) || atomic_load(&c->busy) > 0)
        return true;
    mono_us at = stamp_of(c, k);
    return at > 0 && now < at + 1000 * c->cfg.suspect_ms;
}

bool cache_current(const struct cache *c, const struct cache_key *k, mono_us began)
{
    return began > stamp_of(c, k);
}

/* ---- entries ---- */
static struct entry *set_lock(struct cache *c, const struct cache_key *k, pthread_mutex_t **mu)
{
    uint64_t set = k->id[0] % c->sets;
    *mu = &c->shards[set % LOCKS].mu;
    pthread_mutex_lock(*mu);
    return &c->entries[set * SET];
}

enum cached cache_get(struct cache *c, const struct cache_key *k, mono_us not_before, mono_us now)
{
    struct entry found = {.value = 0};
    if (c->sets > 0) {
        pthread_mutex_t *mu;
        const struct entry *set = set_lock(c, k, &mu);
        for (int i = 0; i < SET && !found.value; i++)
            if (set[i].value && set[i].id[0] == k->id[0] && set[i].id[1] == k->id[1])
                found = set[i];
        pthread_mutex_unlock(mu);
    }
    int64_t ttl_ms = found.value == VALUE_ALLOW ? c->cfg.allow_ttl_ms : c->cfg.deny_ttl_ms;
    bool good = found.value && found.began >= not_before && now - found.began <= 1000 * ttl_ms &&
                cache_current(c, k, found.began);
    count(good ? &c->hits : &c->misses, 1);
    return !good ? CACHE_MISS : found.value == VALUE_ALLOW ? CACHE_ALLOW : CACHE_DENY;
}

/* Where the key's decision goes: its own place, a free one, or that of the oldest. */
static struct entry *place_for(struct entry *set, const struct cache_key *k)
{
    struct entry *place = &set[0];
    for (int i = 0; i < SET; i++) {
        if (set[i].value && set[i].id[0] == k->id[0] && set[i].id[1] == k->id[1])
            return &set[i];
        if (place->value && (!set[i].value || set[i].began < place->began))
            place = &set[i];
    }
    return place;
}

bool cache_put(struct cache *c, const struct cache_key *k, bool allowed, mono_us began)
{
    if (!cache_current(c, k, began)) {
        count(&c->refused, 1);
        return false;
    }
    if (c->sets == 0)
        return true;
    pthread_mutex_t *mu;
    struct entry *at = place_for(set_lock(c, k, &mu), k);
    bool same = at->value && at->id[0] == k->id[0] && at->id[1] == k->id[1];
    count(&c->used, at->value == 0);
    if (!same || at->began <= began) /* of two answers the one that was asked for later stays */
        *at = (struct entry){{k->id[0], k->id[1]}, began, allowed ? VALUE_ALLOW : VALUE_DENY};
    pthread_mutex_unlock(mu);
    return true;
}

void cache_stats(const struct cache *c, struct cache_stats *out)
{
    *out = (struct cache_stats){.hits = atomic_load(&c->hits),
                                .misses = atomic_load(&c->misses),
                                .refused_fills = atomic_load(&c->refused),
                                .invalidations_pair = atomic_load(&c->by_pair),
                                .invalidations_subject = atomic_load(&c->by_subject),
                                .invalidations_object = atomic_load(&c->by_object),
                                .invalidations_both = atomic_load(&c->by_both),
                                .flushes = atomic_load(&c->flushes),
                                .entries = atomic_load(&c->used),
                                .capacity = c->sets * SET};
}
