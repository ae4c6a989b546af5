/*
 * cache_race_test.c - fills, reads and invalidations at once, against a shadow truth.
 *
 * Writers change what is true, invalidate, and only then publish the new version. Checkers ask a store that answers
 * slowly, and from a cache of its own unless higher consistency is asked for. A reader that finds a decision while the
 * published version and the truth are the same before and after must have found that version's.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "inventory-lister/decide/cache.h"
#include "tests/harness/harness.h"
#include "tests/model/rebac.h"

#define PAIRS 2
#define SUBJECTS 6
#define OBJECTS 6
#define STORE_TTL_MS 2
#define THREADS 2 /* of each kind */

/* One decision: allowed if its version is odd. */
struct truth {
    atomic_uint version, published;
    struct cache_key key;
    /* the store's cache */
    pthread_mutex_t mu;
    unsigned cached;
    mono_us fetched;
};

struct race {
    struct cache *cache;
    struct truth truths[PAIRS][SUBJECTS][OBJECTS];
    char subjects[SUBJECTS][16], objects[OBJECTS][16];
    int changes;
    atomic_bool over;
    _Atomic uint64_t verified, stale, refused, from_store_cache;
};

struct job {
    struct race *race;
    uint64_t rng;
    int pair; /* a writer's own */
};

static int pick(struct job *j, int n)
{
    return (int)rebac_random(&j->rng, (uint64_t)n);
}

static struct truth *any(struct job *j)
{
    return &j->race->truths[pick(j, PAIRS)][pick(j, SUBJECTS)][pick(j, OBJECTS)];
}

/* Change all decisions of the pair that the scope names (-1 = all), as the store would, then tell the cache. */
static void change(struct job *j, int subject, int object, bool flush)
{
    struct race *r = j->race;
    for (int s = 0; s < SUBJECTS; s++)
        for (int o = 0; o < OBJECTS; o++)
            if ((subject < 0 || s == subject) && (object < 0 || o == object) && pick(j, 4))
                atomic_fetch_add(&r->truths[j->pair][s][o].version, 1);
    if (flush)
        cache_flush(r->cache);
    else
        cache_invalidate(r->cache, j->pair, subject < 0 ? NULL : r->subjects[subject],
                         object < 0 ? NULL : r->objects[object]);
    for (int s = 0; s < SUBJECTS; s++)
        for (int o = 0; o < OBJECTS; o++) {
            struct truth *t = &r->truths[j->pair][s][o];
            atomic_store(&t->published, atomic_load(&t->version)); /* only this writer changes them */
        }
}

static void *writer(void *arg)
{
    struct job *j = arg;
    for (int i = 0; i < j->race->changes; i++) {
        int scope = pick(j, 40);
        change(j, scope % 2 ? pick(j, SUBJECTS) : -1, scope % 4 > 1 ? pick(j, OBJECTS) : -1, scope == 0);
        if (pick(j, 20) == 0)
            usleep(1000 * (unsigned)pick(j, 2 * STORE_TTL_MS + 2));
        else if (pick(j, 2))
            sched_yield();
    }
    return NULL;
}

static unsigned store_answer(struct race *r, struct truth *t, bool higher)
{
    if (higher)
        return atomic_load(&t->version);
    pthread_mutex_lock(&t->mu);
    mono_us at = clock_mono_us();
    if (at - t->fetched >= 1000 * STORE_TTL_MS) {
        t->fetched = at;
        t->cached = atomic_load(&t->version);
    } else {
        atomic_fetch_add(&r->from_store_cache, 1);
    }
    unsigned version = t->cached;
    pthread_mutex_unlock(&t->mu);
    return version;
}

static void *checker(void *arg)
{
    struct job *j = arg;
    struct race *r = j->race;
    while (!atomic_load(&r->over)) {
        struct truth *t = any(j);
        mono_us began = clock_mono_us();
        if (pick(j, 4) == 0)
            sched_yield();
        bool higher = cache_suspect(r->cache, &t->key, clock_mono_us());
        unsigned version = store_answer(r, t, higher);
        if (pick(j, 8) == 0)
            usleep((unsigned)pick(j, 400));
        if (!cache_put(r->cache, &t->key, version & 1, began))
            atomic_fetch_add(&r->refused, 1);
    }
    return NULL;
}

static void *reader(void *arg)
{
    struct job *j = arg;
    struct race *r = j->race;
    while (!atomic_load(&r->over)) {
        struct truth *t = any(j);
        unsigned published = atomic_load(&t->published), version = atomic_load(&t->version);
        enum cached got = cache_get(r->cache, &t->key, 0, clock_mono_us());
        if (got == CACHE_MISS || published != version || atomic_load(&t->version) != version)
            continue;
        atomic_fetch_add(&r->verified, 1);
        if ((got == CACHE_ALLOW) != (version & 1))
            atomic_fetch_add(&r->stale, 1);
    }
    return NULL;
}

static void race_setup(struct race *r)
{
    const struct cache_settings cfg = {
        .bytes = 1 << 20, .allow_ttl_ms = 5000, .deny_ttl_ms = 5000, .suspect_ms = STORE_TTL_MS};
    struct err err;
    if (cache_new(&r->cache, &cfg, &err) != ST_OK)
        fail_msg("%s", err.text);
    for (int s = 0; s < SUBJECTS; s++)
        snprintf(r->subjects[s], sizeof r->subjects[s], "user:%d", s);
    for (int o = 0; o < OBJECTS; o++)
        snprintf(r->objects[o], sizeof r->objects[o], "doc:%d", o);
    for (int p = 0; p < PAIRS; p++)
        for (int s = 0; s < SUBJECTS; s++)
            for (int o = 0; o < OBJECTS; o++) {
                struct truth *t = &r->truths[p][s][o];
                pthread_mutex_init(&t->mu, NULL);
                t->key = cache_key(r->cache, "store", "model", p, r->subjects[s], r->objects[o]);
            }
}

static void test_P01_nothing_older_than_its_invalidation_is_served(void **state)
{
    static struct race r;
    void *(*const kinds[])(void *) = {writer, checker, reader};
    struct job jobs[3][THREADS];
    pthread_t threads[3][THREADS];
    uint64_t seed = harness_seed();
    (void)state;
    race_setup(&r);
    r.changes = harness_soak(50000);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < THREADS; i++) {
            jobs[k][i] = (struct job){&r, (seed ^ (uint64_t)(k * THREADS + i + 1) * 0x9e3779b97f4a7c15ULL) | 1, i};
            assert_int_equal(pthread_create(&threads[k][i], NULL, kinds[k], &jobs[k][i]), 0);
        }
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[k][i], NULL);
        atomic_store(&r.over, true); /* the writers are done */
    }
    print_message("%llu decisions verified, %llu fills refused, %llu answers from the store's cache\n",
                  (unsigned long long)r.verified, (unsigned long long)r.refused,
                  (unsigned long long)r.from_store_cache);
    assert_int_equal(r.stale, 0);
    assert_true(r.verified > 1000);
    assert_true(r.refused > 0);
    assert_true(r.from_store_cache > 0);
    cache_free(r.cache);
}

int main(void)
{
    _Static_assert(PAIRS == THREADS, "each writer has a pair of its own");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_P01_nothing_older_than_its_invalidation_is_served)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
