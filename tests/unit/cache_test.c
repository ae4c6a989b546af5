/*
 * cache_test.c - what a cached decision survives and what it does not; the clock is the test's own.
 */
#include "inventory-lister/decide/cache.h"
#include "tests/harness/harness.h"

#define MS 1000

static mono_us now = 1000 * MS;

static mono_us test_clock(void)
{
    return now;
}

static struct cache *make(int64_t bytes)
{
    const struct cache_settings cfg = {
        .bytes = bytes, .allow_ttl_ms = 3000, .deny_ttl_ms = 1000, .suspect_ms = 500, .clock = test_clock};
    struct cache *c;
    struct err err;
    if (cache_new(&c, &cfg, &err) != ST_OK)
        fail_msg("%s", err.text);
    return c;
}

static int setup(void **state)
{
    now = 1000 * MS;
    *state = make(1 << 20);
    return 0;
}

static int teardown(void **state)
{
    cache_free(*state);
    return 0;
}

static struct cache_key key_of(const struct cache *c, int pair, const char *subject, const char *object)
{
    return cache_key(c, "store", "model", pair, subject, object);
}

/* Later by `ms`. */
static mono_us after(int64_t ms)
{
    return now += ms * MS;
}

static void put(struct cache *c, const struct cache_key *k, bool allowed)
{
    assert_true(cache_put(c, k, allowed, now));
    after(1);
}

static void test_decisions_live_for_their_time(void **state)
{
    struct cache *c = *state;
    struct cache_key a = key_of(c, 1, "user:a", "doc:1"), b = key_of(c, 1, "user:b", "doc:1");
    assert_int_equal(cache_get(c, &a, 0, now), CACHE_MISS);
    assert_true(cache_put(c, &a, true, now));
    assert_true(cache_put(c, &b, false, now));
    assert_int_equal(cache_get(c, &a, 0, now), CACHE_ALLOW);
    assert_int_equal(cache_get(c, &b, 0, after(1000)), CACHE_DENY);
    assert_int_equal(cache_get(c, &b, 0, after(1)), CACHE_MISS);
    assert_int_equal(cache_get(c, &a, 0, after(1999)), CACHE_ALLOW);
    assert_int_equal(cache_get(c, &a, 0, after(1)), CACHE_MISS);
}

/* The check began at t0, the tuple went at t1, the answer came at t2. */
static void test_P01_an_answer_from_before_a_revoke_is_refused(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    struct cache_stats s;
    mono_us began = now;
    after(1);
    cache_invalidate(c, 1, "user:a", NULL);
    after(1);
    assert_false(cache_current(c, &k, began));
    assert_false(cache_put(c, &k, true, began));
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_MISS);
    assert_true(cache_put(c, &k, false, now));
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_DENY);
    cache_stats(c, &s);
    assert_int_equal(s.refused_fills, 1);
    assert_int_equal(s.hits, 1);
    assert_int_equal(s.misses, 1);
    assert_int_equal(s.entries, 1);
}

/* A check that begins after an invalidation has read the clock and before its stamp is set knows of neither. */
static struct {
    struct cache *cache;
    struct cache_key key;
    mono_us began;
    bool suspect;
} within;

static mono_us clock_and_a_check(void)
{
    mono_us at = now;
    if (within.cache) {
        within.began = after(1);
        within.suspect = cache_suspect(within.cache, &within.key, now);
    }
    return at;
}

static void test_P01_a_check_that_begins_within_an_invalidation_is_suspect(void **state)
{
    const struct cache_settings cfg = {
        .bytes = 1 << 20, .allow_ttl_ms = 3000, .deny_ttl_ms = 1000, .suspect_ms = 500, .clock = clock_and_a_check};
    (void)state;
    assert_int_equal(cache_new(&within.cache, &cfg, NULL), ST_OK);
    within.key = key_of(within.cache, 1, "user:a", "doc:1");
    cache_invalidate(within.cache, 1, "user:a", NULL);
    assert_true(within.suspect);
    within.suspect = false;
    cache_flush(within.cache);
    assert_true(within.suspect);
    assert_true(cache_put(within.cache, &within.key, false, within.began)); /* it was asked for with consistency */
    cache_free(within.cache);
    within.cache = NULL;
}

static void test_P01_the_same_instant_is_too_old(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    assert_true(cache_put(c, &k, true, now));
    cache_invalidate(c, 1, NULL, NULL);
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_MISS);
    assert_false(cache_put(c, &k, true, now));
}

static void test_P02_each_scope_touches_what_it_names(void **state)
{
    static const struct {
        const char *subject, *object;
    } scopes[] = {{NULL, NULL}, {"user:a", NULL}, {NULL, "doc:1"}, {"user:a", "doc:1"}};
    struct cache *c = *state;
    for (size_t i = 0; i < 4; i++) {
        struct cache_key hit = key_of(c, 1, "user:a", "doc:1"), other_pair = key_of(c, 2, "user:a", "doc:1"),
                         other_subject = key_of(c, 1, "user:b", "doc:1"),
                         other_object = key_of(c, 1, "user:a", "doc:2");
        put(c, &hit, true);
        put(c, &other_pair, true);
        put(c, &other_subject, true);
        put(c, &other_object, true);
        cache_invalidate(c, 1, scopes[i].subject, scopes[i].object);
        after(1);
        assert_int_equal(cache_get(c, &hit, 0, now), CACHE_MISS);
        assert_int_equal(cache_get(c, &other_pair, 0, now), CACHE_ALLOW);
        assert_int_equal(cache_get(c, &other_subject, 0, now), scopes[i].subject ? CACHE_ALLOW : CACHE_MISS);
        assert_int_equal(cache_get(c, &other_object, 0, now), scopes[i].object ? CACHE_ALLOW : CACHE_MISS);
    }
    struct cache_stats s;
    cache_stats(c, &s);
    assert_int_equal(s.invalidations_pair, 1);
    assert_int_equal(s.invalidations_subject, 1);
    assert_int_equal(s.invalidations_object, 1);
    assert_int_equal(s.invalidations_both, 1);
}

static void test_P04_a_grant_ends_denials_at_once(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    const int pairs[] = {0, 1, 2};
    put(c, &k, false);
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_DENY);
    cache_invalidate_all(c, pairs, 3, "user:a", "doc:1");
    after(1);
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_MISS);
    struct cache_settings bad = {.bytes = 1024, .allow_ttl_ms = 1000, .deny_ttl_ms = 1001};
    struct cache *none;
    assert_int_equal(cache_new(&none, &bad, NULL), ST_CONFIG);
    assert_null(none);
}

static void test_P05_each_part_of_the_key_counts(void **state)
{
    struct cache *c = *state;
    struct cache_key k = cache_key(c, "store", "model", 1, "user:a", "doc:1");
    const struct cache_key others[] = {
        cache_key(c, "stor", "emodel", 1, "user:a", "doc:1"),  cache_key(c, "store2", "model", 1, "user:a", "doc:1"),
        cache_key(c, "store", "model2", 1, "user:a", "doc:1"), cache_key(c, "store", "model", 2, "user:a", "doc:1"),
        cache_key(c, "store", "model", 1, "user:b", "doc:1"),  cache_key(c, "store", "model", 1, "user:a", "doc:2"),
        cache_key(c, "store", "model", 1, "user:adoc:", "1"),
    };
    put(c, &k, true);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(cache_get(c, &others[i], 0, now), CACHE_MISS);
    struct cache_key again = cache_key(c, "store", "model", 1, "user:a", "doc:1");
    assert_int_equal(cache_get(c, &again, 0, now), CACHE_ALLOW);
}

static void test_P08_a_flush_makes_everything_old(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    struct cache_stats s;
    put(c, &k, true);
    mono_us began = now;
    after(1);
    cache_flush(c);
    assert_int_equal(cache_get(c, &k, 0, after(1)), CACHE_MISS);
    assert_false(cache_put(c, &k, true, began));
    put(c, &k, true);
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_ALLOW);
    cache_stats(c, &s);
    assert_int_equal(s.flushes, 1);
}

static void test_P08_while_blind_every_check_is_suspect(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    assert_false(cache_suspect(c, &k, now));
    cache_blind(c, true);
    assert_true(cache_suspect(c, &k, now));
    put(c, &k, true);
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_ALLOW); /* until its TTL */
    cache_blind(c, false);
    assert_false(cache_suspect(c, &k, now));
}

/* The store may answer from its own cache for a while after a change. */
static void test_P11_after_an_invalidation_checks_are_suspect_for_a_while(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1"), other = key_of(c, 1, "user:b", "doc:1");
    cache_invalidate(c, 1, "user:a", NULL);
    assert_true(cache_suspect(c, &k, now));
    assert_false(cache_suspect(c, &other, now));
    assert_true(cache_suspect(c, &k, after(499)));
    assert_false(cache_suspect(c, &k, after(1)));
    cache_flush(c);
    assert_true(cache_suspect(c, &other, after(1)));
}

static void test_not_before_is_heeded(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    mono_us began = now;
    put(c, &k, true);
    assert_int_equal(cache_get(c, &k, began, now), CACHE_ALLOW);
    assert_int_equal(cache_get(c, &k, began + 1, now), CACHE_MISS);
}

/* Two checks of one decision overlap: the one that was asked for later stays. */
static void test_the_later_question_wins(void **state)
{
    struct cache *c = *state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    mono_us first = now, second = after(5);
    assert_true(cache_put(c, &k, false, second));
    assert_true(cache_put(c, &k, true, first));
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_DENY);
}

static void test_a_full_cache_forgets_the_oldest_and_stays_in_its_bounds(void **state)
{
    enum { ENTRIES = 64, MANY = 1000 };
    struct cache *c = make(ENTRIES * CACHE_ENTRY_BYTES);
    struct cache_stats s;
    char object[32];
    (void)state;
    for (int i = 0; i < MANY; i++) {
        snprintf(object, sizeof object, "doc:%d", i);
        struct cache_key k = key_of(c, 1, "user:a", object);
        assert_true(cache_put(c, &k, true, now + i));
        assert_int_equal(cache_get(c, &k, 0, now + i), CACHE_ALLOW);
    }
    int found = 0;
    for (int i = 0; i < MANY; i++) {
        snprintf(object, sizeof object, "doc:%d", i);
        struct cache_key k = key_of(c, 1, "user:a", object);
        bool hit = cache_get(c, &k, 0, now + MANY) == CACHE_ALLOW;
        found += hit;
        if (i < MANY / 2)
            assert_false(hit);
    }
    cache_stats(c, &s);
    assert_int_equal(s.capacity, ENTRIES);
    assert_int_equal(s.entries, found);
    assert_true(s.entries <= ENTRIES && s.entries > ENTRIES / 2);
    cache_free(c);
}

static void test_without_memory_nothing_is_cached(void **state)
{
    struct cache *c = make(0);
    (void)state;
    struct cache_key k = key_of(c, 1, "user:a", "doc:1");
    mono_us began = now;
    assert_true(cache_put(c, &k, true, after(1)));
    assert_int_equal(cache_get(c, &k, 0, now), CACHE_MISS);
    cache_flush(c);
    assert_false(cache_put(c, &k, true, began));
    cache_free(c);
    cache_free(NULL);
}

/* Pair numbers beyond the table share stamps: too much becomes old, never too little. */
static void test_large_pair_numbers_are_touched(void **state)
{
    struct cache *c = *state;
    for (int pair = 1; pair < 200000; pair = pair * 3 + 1) {
        struct cache_key k = key_of(c, pair, "user:a", "doc:1");
        put(c, &k, true);
        cache_invalidate(c, pair, NULL, NULL);
        assert_int_equal(cache_get(c, &k, 0, after(1)), CACHE_MISS);
        put(c, &k, true);
        cache_invalidate(c, pair, "user:a", NULL);
        assert_int_equal(cache_get(c, &k, 0, after(1)), CACHE_MISS);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_decisions_live_for_their_time),
        TEST(test_P01_an_answer_from_before_a_revoke_is_refused),
        TEST(test_P01_a_check_that_begins_within_an_invalidation_is_suspect),
        TEST(test_P01_the_same_instant_is_too_old),
        TEST(test_P02_each_scope_touches_what_it_names),
        TEST(test_P04_a_grant_ends_denials_at_once),
        TEST(test_P05_each_part_of_the_key_counts),
        TEST(test_P08_a_flush_makes_everything_old),
        TEST(test_P08_while_blind_every_check_is_suspect),
        TEST(test_P11_after_an_invalidation_checks_are_suspect_for_a_while),
        TEST(test_not_before_is_heeded),
        TEST(test_the_later_question_wins),
        TEST(test_a_full_cache_forgets_the_oldest_and_stays_in_its_bounds),
        TEST(test_without_memory_nothing_is_cached),
        TEST(test_large_pair_numbers_are_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
