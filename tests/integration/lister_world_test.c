/*
 * lister_world_test.c - the model in force followed on real Postgres and a real store, and the cache made old by events
 * on a real NATS server, some of them left out.
 */
#include <unistd.h>

#include "common/admin/metrics.h"
#include "common/events/events.h"
#include "inventory-lister/decide/world.h"
#include "tests/harness/fake_store.h"
#include "tests/harness/raw_events.h"
#include "tests/integration/writer_helpers.h"

#define LONG_MS 600000 /* a time-out that no test reaches */
#define WRITER 7, 1000

struct lister {
    struct harness *h;
    struct cfg_nats nats;
    struct cfg_store store_cfg;
    struct store *store; /* a client of its own, if it does not ask h->store_url */
    struct cache *cache;
    struct world *world;
    struct raw_events *writer;
    const char *model_id;
};

static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

static struct cfg_nats nats_settings(const char *url)
{
    char *none = text("");
    return (struct cfg_nats){.url = text(url ? url : ""),
                             .user = none,
                             .password = none,
                             .token = none,
                             .credentials_file = none,
                             .nkey_seed_file = none,
                             .ca_file = none,
                             .cert_file = none,
                             .key_file = none,
                             .flush_timeout_ms = 500};
}

/* The test's store, pinned under a name that no other test's events carry. */
static void pin(struct harness *h, const char *store_id, const char *model_id)
{
    harness_sqlf(h,
                 "INSERT INTO relata.store (name, store_id, model_id, pinned_at) VALUES ('%s', '%s', '%s', now()) "
                 "ON CONFLICT (name) DO UPDATE SET store_id = excluded.store_id, model_id = excluded.model_id",
                 h->id, store_id, model_id);
}

static struct lister *open_lister(struct harness *h, const char *store_url, int64_t heartbeat_timeout_ms)
{
    struct lister *l = calloc(1, sizeof *l);
    const struct cache_settings cs = {
        .bytes = 1 << 20, .allow_ttl_ms = LONG_MS, .deny_ttl_ms = LONG_MS, .suspect_ms = 1};
    struct err err;
    l->h = h;
    l->nats = nats_settings(h->nats_url);
    l->store_cfg = *h->store_cfg;
    l->store_cfg.url = text(store_url ? store_url : h->store_url);
    l->model_id = h->model_id;
    if (store_new(&l->store, &l->store_cfg, &err) != ST_OK || cache_new(&l->cache, &cs, &err) != ST_OK)
        fail_msg("%s", err.text);
    const struct world_settings ws = {
        .pg_dsn = h->dsn, .store_name = h->id, .nats = &l->nats, .heartbeat_timeout_ms = heartbeat_timeout_ms};
    if (world_start(&l->world, &ws, l->store, l->cache, NULL, &err) != ST_OK)
        fail_msg("%s", err.text);
    return l;
}

static void close_lister(struct lister *l)
{
    raw_events_free(l->writer);
    world_stop(l->world);
    cache_free(l->cache);
    store_free(l->store);
    free(l);
}

/* ---- the model ---- */
struct expected {
    struct lister *l;
    const char *model_id; /* NULL = none in force */
};

static bool in_force(void *arg)
{
    struct expected *e = arg;
    const struct in_force *f = world_hold(e->l->world);
    bool is = e->model_id ? f && strcmp(f->model_id, e->model_id) == 0 : !f;
    if (f)
        world_release(e->l->world, f);
    return is;
}

static void expect_model(struct lister *l, const char *model_id)
{
    struct expected e = {l, model_id};
    if (!eventually(in_force, &e, WAIT_MS))
        fail_msg("model %s did not come into force", model_id ? model_id : "(none)");
}

static uint64_t flushes(struct lister *l)
{
    struct cache_stats s;
    cache_stats(l->cache, &s);
    return s.flushes;
}

struct flushing {
    struct lister *l;
    uint64_t before;
};

static bool flushed(void *arg)
{
    struct flushing *f = arg;
    return flushes(f->l) > f->before;
}

/* A model that comes into force is shown first, the cache flushed after. */
static void expect_flush(struct lister *l, uint64_t before)
{
    struct flushing f = {l, before};
    assert_eventually(flushed, &f, WAIT_MS);
}

static void test_the_model_is_followed_and_old_ones_live_while_held(void **state)
{
    struct harness *h = *state;
    struct err err;
    struct lister *l = open_lister(h, NULL, LONG_MS);
    assert_int_equal(world_wait(l->world, deadline_in_ms(300), &err), ST_DEADLINE);
    assert_non_null(strstr(err.text, "model"));
    pin(h, h->store_id, h->model_id);
    if (world_wait(l->world, deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    const struct in_force *old = world_hold(l->world);
    assert_string_equal(old->model_id, h->model_id);
    assert_string_equal(old->store_id, h->store_id);
    assert_true(model_pair(old->model, "folder", 6, "viewer") >= 0);
    uint64_t before = flushes(l);
    const char *next = harness_model_write(
        h, "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"page\",\"relations\":"
           "{\"viewer\":{\"this\":{}}},\"metadata\":{\"relations\":{\"viewer\":{\"directly_related_user_types\":"
           "[{\"type\":\"user\"}]}}}}]}");
    pin(h, h->store_id, next);
    expect_model(l, next);
    expect_flush(l, before);
    const struct in_force *new = world_hold(l->world);
    assert_true(model_has_type(new->model, "page"));
    assert_false(model_has_type(new->model, "folder"));
    assert_true(model_pair(old->model, "folder", 6, "viewer") >= 0);
    world_release(l->world, old);
    world_release(l->world, new);
    close_lister(l);
}

static void test_without_pin_or_with_one_that_cannot_be_read_nothing_is_in_force(void **state)
{
    struct harness *h = *state;
    struct err err;
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, NULL, LONG_MS);
    expect_model(l, h->model_id);
    pin(h, h->store_id, "01ARZ3NDEKTSV4RRFFQ69G5FAV"); /* no such model */
    expect_model(l, NULL);
    pin(h, h->store_id, h->model_id);
    expect_model(l, h->model_id);
    harness_sqlf(h, "DELETE FROM relata.store WHERE name = '%s'", h->id);
    expect_model(l, NULL);
    assert_int_equal(world_wait(l->world, deadline_in_ms(200), &err), ST_DEADLINE);
    assert_non_null(strstr(err.text, "relatactl store pin"));
    close_lister(l);
}

static void test_a_store_that_is_gone_ends_the_model_one_that_is_down_does_not(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, fake_store_url(f), LONG_MS);
    expect_model(l, h->model_id);
    int down = fake_store_rule(f, &(struct fake_rule){.action = FAKE_REPLY, .status = 503, .reply = "no"});
    assert_rule_used(f, down, 2);
    expect_model(l, h->model_id);
    fake_store_clear(f);
    fake_store_rule(f, &(struct fake_rule){.action = FAKE_REPLY,
                                           .status = 404,
                                           .reply = "{\"code\":\"store_id_not_found\",\"message\":\"gone\"}"});
    expect_model(l, NULL);
    fake_store_clear(f);
    expect_model(l, h->model_id);
    close_lister(l);
    fake_store_stop(f);
}

static void test_a_model_that_makes_no_sense_is_not_guessed_at(void **state)
{
    struct harness *h = *state;
    struct err err;
    struct fake_store *f = fake_store_start(h->store_url);
    fake_store_rule(f, &(struct fake_rule){.path = "/authorization-models/",
                                           .action = FAKE_REPLY,
                                           .status = 200,
                                           .reply = "{\"authorization_model\":{\"id\":\"x\",\"schema_version\":\"1.1\","
                                                    "\"type_definitions\":[{\"type\":\"user\",\"relations\":{\"v\":"
                                                    "{\"magic\":{}}}}]}}"});
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, fake_store_url(f), LONG_MS);
    while (fake_store_count(f, "/authorization-models/") < 2)
        assert_int_equal(world_wait(l->world, deadline_in_ms(20), &err), ST_DEADLINE);
    assert_non_null(strstr(err.text, "magic"));
    close_lister(l);
    fake_store_stop(f);
}

static void test_the_listers_role_can_follow(void **state)
{
    struct harness *h = *state;
    harness_sqlf(h, "CREATE ROLE %.40s LOGIN PASSWORD 'x' IN ROLE relata_lister", h->id);
    const char *admin = h->dsn;
    pin(h, h->store_id, h->model_id);
    h->dsn = harness_dsn(h, harness_strf(h, "%.40s:x", h->id), NULL, NULL);
    struct lister *l = open_lister(h, NULL, LONG_MS);
    h->dsn = admin;
    expect_model(l, h->model_id);
    close_lister(l);
    harness_sqlf(h, "DROP ROLE %.40s", h->id);
}

/* ---- events ---- */
static struct cache_key key_of(struct lister *l, const char *relation, const char *subject, const char *object)
{
    const struct in_force *f = world_hold(l->world);
    assert_non_null(f);
    int pair = model_pair(f->model, object, strcspn(object, ":"), relation);
    assert_true(pair >= 0);
    struct cache_key k = cache_key(l->cache, f->store_id, f->model_id, pair, subject, object);
    world_release(l->world, f);
    return k;
}

static bool cached(struct lister *l, const struct cache_key *k)
{
    return cache_get(l->cache, k, 0, clock_mono_us()) != CACHE_MISS;
}

static bool fill_taken(struct lister *l, const struct cache_key *k)
{
    return cache_put(l->cache, k, true, clock_mono_us());
}

struct wanted {
    struct lister *l;
    struct cache_key key;
    bool sees;
    uint64_t flushes; /* before OTHER was heard first */
};

static bool gone(void *arg)
{
    struct wanted *w = arg;
    return !cached(w->l, &w->key);
}

static void expect_gone(struct lister *l, const struct cache_key *k)
{
    struct wanted w = {.l = l, .key = *k};
    assert_eventually(gone, &w, WAIT_MS);
}

static bool sight_is(void *arg)
{
    struct wanted *w = arg;
    if (w->l->writer && w->sees)
        raw_events_beat(w->l->writer, WRITER, NULL, 0);
    return cache_suspect(w->l->cache, &w->key, clock_mono_us()) != w->sees;
}

static void expect_sight(struct lister *l, bool sees)
{
    struct wanted w = {.l = l, .key = key_of(l, "viewer", "user:nobody", "doc:none"), .sees = sees};
    if (!eventually(sight_is, &w, WAIT_MS))
        fail_msg("the cache is %s", sees ? "still blind" : "not blind");
}

/* A lister with its model that hears a writer. */
static struct lister *hearing_lister(struct harness *h, int64_t heartbeat_timeout_ms)
{
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, NULL, heartbeat_timeout_ms);
    expect_model(l, h->model_id);
    expect_sight(l, false);
    l->writer = raw_events_new(h->nats_url, h->id);
    expect_sight(l, true);
    return l;
}

static void test_P02_events_make_old_what_they_can_flip(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, LONG_MS);
    struct cache_key mine = key_of(l, "viewer", "user:anne", "doc:1"),
                     theirs = key_of(l, "viewer", "user:bob", "doc:1"),
                     blocked = key_of(l, "blocked", "user:anne", "doc:1");
    assert_true(fill_taken(l, &mine) && fill_taken(l, &theirs) && fill_taken(l, &blocked));
    uint64_t before = flushes(l);
    raw_events_tuple(l->writer, WRITER, 1, h->model_id, "team:1", "member", "user:anne");
    expect_gone(l, &mine);
    assert_true(cached(l, &theirs));
    assert_true(cached(l, &blocked));
    raw_events_tuple(l->writer, WRITER, 2, h->model_id, "team:1", "member", "team:2#member");
    expect_gone(l, &theirs);
    assert_true(cached(l, &blocked));
    raw_events_tuple(l->writer, WRITER, 1, h->model_id, "doc:1", "blocked", "user:anne");
    expect_gone(l, &blocked);
    assert_int_equal(flushes(l), before);
    close_lister(l);
}

static void test_P08_whatever_may_be_missing_flushes(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, LONG_MS);
    struct cache_key k = key_of(l, "viewer", "user:anne", "doc:1"), marker = key_of(l, "blocked", "user:x", "doc:9");
    raw_events_tuple(l->writer, WRITER, 1, h->model_id, "team:1", "member", "user:x");
    /* A gap. */
    assert_true(fill_taken(l, &k));
    raw_events_tuple(l->writer, WRITER, 3, h->model_id, "team:1", "member", "user:x");
    expect_gone(l, &k);
    /* Nothing is missing. */
    assert_true(fill_taken(l, &k) && fill_taken(l, &marker));
    raw_events_beat(l->writer, WRITER, "team", 3);
    raw_events_tuple(l->writer, WRITER, 4, h->model_id, "team:1", "member", "user:x");
    raw_events_tuple(l->writer, WRITER, 1, h->model_id, "doc:9", "blocked", "user:x");
    expect_gone(l, &marker);
    assert_true(cached(l, &k));
    /* The last event was lost: the heartbeat tells. */
    raw_events_beat(l->writer, WRITER, "team", 5);
    expect_gone(l, &k);
    /* A new epoch. */
    assert_true(fill_taken(l, &k));
    raw_events_beat(l->writer, 8, 2000, NULL, 0);
    expect_gone(l, &k);
    assert_false(cache_put(l->cache, &k, true, 1));
    close_lister(l);
}

static void test_an_event_of_another_model_flushes(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, LONG_MS);
    struct cache_key k = key_of(l, "viewer", "user:anne", "doc:1");
    const char *next = harness_model_write(h, harness_model);
    assert_true(fill_taken(l, &k));
    raw_events_tuple(l->writer, WRITER, 1, next, "page:1", "reader", "user:x");
    expect_gone(l, &k);
    pin(h, h->store_id, next);
    raw_events_tuple(l->writer, WRITER, 2, next, "page:1", "reader", "user:x");
    expect_model(l, next);
    struct cache_key now = key_of(l, "viewer", "user:anne", "doc:1");
    assert_false(memcmp(now.id, k.id, sizeof k.id) == 0);
    close_lister(l);
}

/* Decisions by a model that is held still are made old by its own numbers. */
static void test_an_old_model_that_is_held_follows_events_too(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, LONG_MS);
    struct cache_key k = key_of(l, "viewer", "user:anne", "doc:1");
    const struct in_force *old = world_hold(l->world);
    const char *next = harness_model_write(
        h, "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":"
           "{\"aaa\":{\"this\":{}},\"viewer\":{\"this\":{}}},\"metadata\":{\"relations\":{\"aaa\":"
           "{\"directly_related_user_types\":[{\"type\":\"user\"}]},\"viewer\":{\"directly_related_user_types\":"
           "[{\"type\":\"user\"}]}}}}]}");
    uint64_t before = flushes(l);
    pin(h, h->store_id, next);
    expect_model(l, next);
    expect_flush(l, before);
    assert_true(fill_taken(l, &k));
    raw_events_tuple(l->writer, WRITER, 1, next, "doc:1", "viewer", "user:anne");
    expect_gone(l, &k);
    world_release(l->world, old);
    close_lister(l);
}

static void test_events_of_another_store_are_none_of_ours(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, LONG_MS);
    struct cache_key k = key_of(l, "viewer", "user:anne", "doc:1"), marker = key_of(l, "blocked", "user:x", "doc:9");
    struct raw_events *other = raw_events_new(h->nats_url, harness_strf(h, "%s_2", h->id));
    assert_true(fill_taken(l, &k) && fill_taken(l, &marker));
    raw_events_tuple(other, 9, 9, 5, "model", "doc:1", "viewer", "user:anne");
    raw_events_tuple(l->writer, WRITER, 1, h->model_id, "doc:9", "blocked", "user:x");
    expect_gone(l, &marker);
    assert_true(cached(l, &k));
    raw_events_free(other);
    close_lister(l);
}

#define OTHER 8, 2000

/* The first beat of OTHER, a new epoch, has made old what was cached, too. */
static bool two_are_heard(void *arg)
{
    struct wanted *w = arg;
    raw_events_beat(w->l->writer, OTHER, NULL, 0);
    raw_events_beat(w->l->writer, WRITER, NULL, 0);
    return flushes(w->l) > w->flushes && !cache_suspect(w->l->cache, &w->key, clock_mono_us());
}

static bool blind_though_one_is_heard(void *arg)
{
    struct wanted *w = arg;
    raw_events_beat(w->l->writer, WRITER, NULL, 0);
    if (!cache_suspect(w->l->cache, &w->key, clock_mono_us()))
        return false;
    usleep(2000); /* longer than a flush makes suspect */
    return cache_suspect(w->l->cache, &w->key, clock_mono_us());
}

/* A session as that of a writer that lives. */
static struct pg *writer_session(struct harness *h, int id, int epoch)
{
    struct pg *pg = harness_connect(h, NULL);
    struct err err;
    harness_sqlf(
        h, "INSERT INTO relata.writer (id, store, name, epoch) OVERRIDING SYSTEM VALUE VALUES (%d, '%s', 't', %d)", id,
        h->id, epoch);
    if (pg_exec(pg, harness_strf(h, "SELECT pg_advisory_lock(1380270081, %d)", id), deadline_in_ms(WAIT_MS), &err) !=
        ST_OK)
        fail_msg("%s", err.text);
    return pg;
}

static bool sees_though_one_is_silent(void *arg)
{
    return !blind_though_one_is_heard(arg);
}

/* A writer that is cut off from NATS, but goes on, is waited for; one that has ended is not. */
static void test_P08_one_silent_writer_of_two_makes_blind(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, harness_ms(400));
    struct wanted w = {.l = l, .key = key_of(l, "viewer", "user:anne", "doc:1")};
    struct pg *session = writer_session(h, OTHER);
    w.flushes = flushes(l);
    assert_eventually(two_are_heard, &w, WAIT_MS);
    assert_true(fill_taken(l, &w.key));
    assert_eventually(blind_though_one_is_heard, &w, WAIT_MS);
    assert_false(eventually(sees_though_one_is_silent, &w, 6000)); /* far more than it takes to ask who lives */
    pg_close(session);
    assert_eventually(sees_though_one_is_silent, &w, WAIT_MS);
    assert_false(cached(l, &w.key));
    close_lister(l);
}

/* It has not been heard at all: its NATS settings may be wrong. */
static void test_P08_a_writer_that_lives_and_was_never_heard_makes_blind(void **state)
{
    struct harness *h = *state;
    struct lister *l = hearing_lister(h, harness_ms(400));
    struct wanted w = {.l = l, .key = key_of(l, "viewer", "user:anne", "doc:1")};
    struct pg *session = writer_session(h, OTHER);
    w.flushes = flushes(l);
    assert_eventually(blind_though_one_is_heard, &w, WAIT_MS);
    assert_eventually(two_are_heard, &w, WAIT_MS);
    pg_close(session);
    close_lister(l);
}

struct beating {
    struct lister *l;
    struct events_pub *pub;
    struct cache_key key;
};

static bool sees_by_publisher(void *arg)
{
    struct beating *b = arg;
    events_heartbeat(b->pub);
    return !cache_suspect(b->l->cache, &b->key, clock_mono_us());
}

static bool event_is_heard(void *arg)
{
    struct beating *b = arg;
    const struct events_change c = {.key = {"team:1", "member", "user:anne"}, .present = true, .version = 1, .xid = 2};
    if (events_publish(b->pub, b->l->h->model_id, &c, 1, NULL) != ST_OK)
        return false;
    return !cached(b->l, &b->key);
}

static bool metric_shown(const char *line)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    metrics_render(&b);
    assert_non_null(strstr(buf_str(&b), "relata_lister_event_delay_seconds_count"));
    bool shown = strstr(buf_str(&b), line) != NULL;
    buf_release(&b);
    return shown;
}

static void test_P08_a_restart_of_NATS_is_survived_and_flushes(void **state)
{
    struct harness *h = *state;
    struct err err;
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, NULL, harness_ms(600));
    expect_model(l, h->model_id);
    struct beating b = {.l = l, .key = key_of(l, "viewer", "user:anne", "doc:1")};
    if (events_pub_new(&b.pub, &l->nats, h->id, &err) != ST_OK)
        fail_msg("%s", err.text);
    events_pub_identity(b.pub, WRITER);
    assert_eventually(sees_by_publisher, &b, WAIT_MS);
    assert_true(fill_taken(l, &b.key));
    assert_eventually(event_is_heard, &b, WAIT_MS);
    assert_false(metric_shown("relata_lister_event_delay_seconds_count 0\n"));
    assert_false(metric_shown("relata_lister_events_total 0\n"));
    harness_service(h, "kill", "nats");
    expect_sight(l, false);
    assert_true(fill_taken(l, &b.key));
    assert_true(cached(l, &b.key)); /* until its TTL */
    harness_service(h, "start", "nats");
    assert_eventually(sees_by_publisher, &b, WAIT_MS);
    assert_false(cached(l, &b.key));
    assert_true(fill_taken(l, &b.key));
    assert_eventually(event_is_heard, &b, WAIT_MS);
    events_pub_free(b.pub);
    close_lister(l);
}

static void test_without_events_every_check_is_suspect(void **state)
{
    struct harness *h = *state;
    pin(h, h->store_id, h->model_id);
    struct lister *l = open_lister(h, NULL, LONG_MS); /* no NATS: the URL is empty */
    expect_model(l, h->model_id);
    expect_sight(l, false);
    close_lister(l);
}

int main(void)
{
    const unsigned base = HARNESS_DB | HARNESS_STORE;
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_the_model_is_followed_and_old_ones_live_while_held, base),
        HARNESS_TEST(test_without_pin_or_with_one_that_cannot_be_read_nothing_is_in_force, base),
        HARNESS_TEST(test_a_store_that_is_gone_ends_the_model_one_that_is_down_does_not, base),
        HARNESS_TEST(test_a_model_that_makes_no_sense_is_not_guessed_at, base),
        HARNESS_TEST(test_the_listers_role_can_follow, base),
        HARNESS_TEST(test_without_events_every_check_is_suspect, base),
        HARNESS_TEST(test_P02_events_make_old_what_they_can_flip, base | HARNESS_NATS),
        HARNESS_TEST(test_P08_whatever_may_be_missing_flushes, base | HARNESS_NATS),
        HARNESS_TEST(test_an_event_of_another_model_flushes, base | HARNESS_NATS),
        HARNESS_TEST(test_an_old_model_that_is_held_follows_events_too, base | HARNESS_NATS),
        HARNESS_TEST(test_events_of_another_store_are_none_of_ours, base | HARNESS_NATS),
        HARNESS_TEST(test_P08_one_silent_writer_of_two_makes_blind, base | HARNESS_NATS),
        HARNESS_TEST(test_P08_a_writer_that_lives_and_was_never_heard_makes_blind, base | HARNESS_NATS),
        HARNESS_TEST(test_P08_a_restart_of_NATS_is_survived_and_flushes, base | HARNESS_OWN_NATS),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
