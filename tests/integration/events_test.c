/*
 * events_test.c - events on a real NATS server: what subscribers see of gaps, new epochs, lost last events; and that
 * NATS never holds anything up.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "common/events/events.h"
#include "tests/integration/writer_helpers.h"

#define SEEN_MAX 4096

struct seen {
    bool heartbeat, new_epoch, unknown;
    int64_t writer_id, epoch;
    uint64_t sequence, gap;
    char subject[128], first[128];
    bool present;
    size_t n;
};

struct listener {
    pthread_mutex_t mu;
    struct seen items[SEEN_MAX];
    size_t n;
    struct events_sub *sub;
};

static void on_event(void *arg, const struct events_seen *e)
{
    struct listener *l = arg;
    pthread_mutex_lock(&l->mu);
    if (l->n < SEEN_MAX) {
        struct seen *s = &l->items[l->n++];
        *s = (struct seen){.heartbeat = e->heartbeat,
                           .new_epoch = e->new_epoch,
                           .unknown = e->unknown,
                           .writer_id = e->writer_id,
                           .epoch = e->epoch,
                           .sequence = e->sequence,
                           .gap = e->gap,
                           .n = e->n};
        snprintf(s->subject, sizeof s->subject, "%s", e->subject);
        if (e->n > 0) {
            snprintf(s->first, sizeof s->first, "%s", e->changes[0].key.object);
            s->present = e->changes[0].present;
        }
    }
    pthread_mutex_unlock(&l->mu);
}

static struct cfg_nats settings(const char *url)
{
    char *none = (char *)(uintptr_t) "";
    return (struct cfg_nats){.url = (char *)(uintptr_t)url,
                             .user = none,
                             .password = none,
                             .token = none,
                             .credentials_file = none,
                             .nkey_seed_file = none,
                             .ca_file = none,
                             .cert_file = none,
                             .key_file = none,
                             .flush_timeout_ms = harness_ms(500)};
}

static struct listener *listen_to(const char *url, const char *store)
{
    struct listener *l = calloc(1, sizeof *l);
    struct cfg_nats cfg = settings(url);
    struct err err;
    pthread_mutex_init(&l->mu, NULL);
    if (events_sub_new(&l->sub, &cfg, store, on_event, l, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("subscribing: %s", err.text);
    return l;
}

static void listener_free(struct listener *l)
{
    events_sub_free(l->sub);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

/* Number of events that match; heartbeats if `subject` is NULL. */
static size_t count(struct listener *l, const char *subject, uint64_t min_gap)
{
    size_t n = 0;
    pthread_mutex_lock(&l->mu);
    for (size_t i = 0; i < l->n; i++) {
        struct seen *s = &l->items[i];
        if (subject ? strstr(s->subject, subject) && (!s->heartbeat || s->gap > 0) && s->gap >= min_gap
                    : s->heartbeat && s->gap == 0 && !s->unknown)
            n++;
    }
    pthread_mutex_unlock(&l->mu);
    return n;
}

struct expectation {
    struct listener *l;
    const char *subject;
    uint64_t min_gap;
    size_t want;
    struct events_pub *heart; /* beats while waiting; may be NULL */
};

static bool has_come(void *arg)
{
    struct expectation *e = arg;
    if (e->heart)
        events_heartbeat(e->heart);
    return count(e->l, e->subject, e->min_gap) >= e->want;
}

static void expect(struct listener *l, const char *subject, uint64_t min_gap, size_t want, struct events_pub *heart)
{
    struct expectation e = {l, subject, min_gap, want, heart};
    if (!eventually(has_come, &e, WAIT_MS))
        fail_msg("%zu of %zu events on %s with gap >= %llu", count(l, subject, min_gap), want,
                 subject ? subject : "heartbeat", (unsigned long long)min_gap);
}

static size_t new_epochs(struct listener *l)
{
    size_t n = 0;
    pthread_mutex_lock(&l->mu);
    for (size_t i = 0; i < l->n; i++)
        n += l->items[i].new_epoch;
    pthread_mutex_unlock(&l->mu);
    return n;
}

struct rebirth {
    struct listener *l;
    struct events_pub *p;
};

static bool two_epochs(void *arg)
{
    struct rebirth *r = arg;
    events_heartbeat(r->p);
    return new_epochs(r->l) >= 2; /* more if it connected more than once */
}

static struct seen last_on(struct listener *l, const char *subject)
{
    struct seen found = {0};
    pthread_mutex_lock(&l->mu);
    for (size_t i = 0; i < l->n; i++)
        if (strstr(l->items[i].subject, subject))
            found = l->items[i];
    pthread_mutex_unlock(&l->mu);
    return found;
}

static struct events_pub *publisher(struct harness *h, const char *url)
{
    struct cfg_nats cfg = settings(url);
    struct events_pub *p;
    struct err err;
    if (events_pub_new(&p, &cfg, h->id, &err) != ST_OK)
        fail_msg("a publisher: %s", err.text);
    events_pub_identity(p, 7, 1000);
    return p;
}

static bool connected(void *arg)
{
    struct events_stats s;
    events_pub_stats(arg, &s);
    return s.connected;
}

static enum status publish(struct events_pub *p, const char *object)
{
    const struct events_change c = {.key = {object, "viewer", "user:x"}, .present = true, .version = 1, .xid = 2};
    return events_publish(p, "model", &c, 1, NULL);
}

static void test_events_of_one_batch_go_by_type(void **state)
{
    struct harness *h = *state;
    struct listener *l = listen_to(h->nats_url, h->id);
    struct events_pub *p = publisher(h, h->nats_url);
    assert_eventually(connected, p, WAIT_MS);
    const struct events_change c[] = {{.key = {"doc:1", "viewer", "user:x"}, .present = true, .version = 3, .xid = 9},
                                      {.key = {"doc:2", "viewer", "user:x"}, .version = 4},
                                      {.key = {"do.c>*:1", "viewer", "user:x"}, .version = 5},
                                      {.key = {"team:1", "member", "user:x"}, .present = true, .version = 6}};
    assert_int_equal(events_publish(p, "model", c, 4, NULL), ST_OK);
    expect(l, ".doc", 0, 1, NULL);
    expect(l, ".do%2Ec%3E%2A", 0, 1, NULL);
    expect(l, ".team", 0, 1, NULL);
    struct seen s = last_on(l, ".doc");
    assert_int_equal(s.n, 2);
    assert_int_equal(s.writer_id, 7);
    assert_int_equal(s.epoch, 1000);
    assert_int_equal(s.sequence, 1);
    assert_string_equal(s.first, "doc:1");
    assert_true(s.present);
    struct events_stats stats;
    events_pub_stats(p, &stats);
    assert_int_equal(stats.published, 3);
    assert_int_equal(stats.failed, 0);
    events_pub_free(p);
    listener_free(l);
}

static void test_P08_gaps_and_epochs_are_seen(void **state)
{
    struct harness *h = *state;
    struct listener *l = listen_to(h->nats_url, h->id);
    struct events_pub *p = publisher(h, h->nats_url);
    assert_eventually(connected, p, WAIT_MS);
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 1, NULL);
    assert_true(last_on(l, ".doc").new_epoch);
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 2, NULL);
    assert_false(last_on(l, ".doc").new_epoch);
    assert_int_equal(last_on(l, ".doc").gap, 0);
    assert_int_equal(publish(p, "team:1"), ST_OK); /* a subject that is new within a known epoch begins with 1 */
    expect(l, ".team", 0, 1, NULL);
    assert_int_equal(last_on(l, ".team").gap, 0);
    events_pub_identity(p, 8, 2000);
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 3, NULL);
    assert_true(last_on(l, ".doc").new_epoch);
    assert_int_equal(last_on(l, ".doc").sequence, 1);
    expect(l, NULL, 0, 1, p);
    events_pub_free(p);
    listener_free(l);
}

/* Who joins in mid-stream has missed nothing, and knows nothing of what was before: told once a subject, not as gaps.
 */
static void test_P08_joining_in_mid_stream_is_no_gap(void **state)
{
    struct harness *h = *state;
    struct events_pub *p = publisher(h, h->nats_url);
    assert_eventually(connected, p, WAIT_MS);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(publish(p, "doc:1"), ST_OK);
        assert_int_equal(publish(p, "team:1"), ST_OK);
        assert_int_equal(publish(p, "folder:1"), ST_OK);
    }
    struct listener *l = listen_to(h->nats_url, h->id);
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 1, NULL);
    struct seen s = last_on(l, ".doc");
    assert_true(s.new_epoch && s.unknown);
    assert_true(s.sequence == 6 && s.gap == 0);
    assert_int_equal(publish(p, "team:1"), ST_OK); /* the epoch is known by now, this subject is not */
    assert_int_equal(publish(p, "user:1"), ST_OK); /* the first of its subject: nothing was before it */
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 2, NULL);
    s = last_on(l, ".team");
    assert_true(s.unknown && !s.new_epoch);
    assert_true(s.sequence == 6 && s.gap == 0);
    s = last_on(l, ".user");
    assert_false(s.unknown || s.new_epoch);
    assert_false(last_on(l, ".doc").unknown);
    /* The heartbeat tells of the folder: what was before is unknown. From then on everything is known. */
    expect(l, NULL, 0, 1, p);
    s = last_on(l, ".folder");
    assert_true(s.heartbeat && s.unknown);
    assert_true(s.sequence == 5 && s.gap == 0);
    assert_int_equal(publish(p, "folder:1"), ST_OK);
    expect(l, ".folder", 0, 1, NULL);
    s = last_on(l, ".folder");
    assert_false(s.heartbeat || s.unknown);
    assert_true(s.sequence == 6 && s.gap == 0);
    events_pub_free(p);
    listener_free(l);
}

/* A server that is frozen: one bounded wait, then events are counted as lost at once; the next heartbeat after it goes
 * on tells subscribers what they missed, the last event included. */
static void test_a_frozen_server_costs_one_wait_and_leaves_a_gap(void **state)
{
    struct harness *h = *state;
    struct listener *l = listen_to(h->nats_url, h->id);
    struct events_pub *p = publisher(h, h->nats_url);
    struct events_stats before, after;
    assert_eventually(connected, p, WAIT_MS);
    assert_int_equal(publish(p, "doc:1"), ST_OK);
    expect(l, ".doc", 0, 1, NULL);
    events_pub_stats(p, &before);
    harness_service(h, "freeze", "nats");
    assert_int_equal(publish(p, "doc:2"), ST_RETRY);
    for (int i = 0; i < 200; i++)
        assert_int_equal(publish(p, "doc:3"), ST_RETRY);
    harness_service(h, "continue", "nats");
    expect(l, ".doc", 200, 1, p);
    events_pub_stats(p, &after);
    assert_int_equal(after.failed - before.failed, 201);
    assert_int_equal(publish(p, "doc:4"), ST_OK);
    events_pub_free(p);
    listener_free(l);
}

/* Beats and publishes, as a writer does, until enough are done. */
struct worker {
    struct events_pub *p;
    _Atomic int rounds;
    _Atomic bool end;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    while (!atomic_load(&w->end)) {
        events_heartbeat(w->p);
        (void)publish(w->p, "doc:1");
        struct events_stats s;
        events_pub_stats(w->p, &s);
        atomic_fetch_add(&w->rounds, 1);
    }
    return NULL;
}

struct rounds {
    struct worker *w;
    int want;
};

static bool rounds_done(void *arg)
{
    struct rounds *r = arg;
    return atomic_load(&r->w->rounds) >= r->want;
}

/* A server that takes connections and says nothing: each attempt to connect waits two seconds, in which nobody else
 * does. A wait for each round would make this take over an hour. */
static void test_nobody_waits_for_connecting_to_a_frozen_server(void **state)
{
    struct harness *h = *state;
    harness_service(h, "freeze", "nats");
    struct worker w = {.p = publisher(h, h->nats_url)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, work, &w), 0);
    assert_eventually(rounds_done, (&(struct rounds){&w, 2000}), WAIT_MS);
    harness_service(h, "continue", "nats");
    assert_eventually(connected, w.p, WAIT_MS);
    harness_service(h, "freeze", "nats"); /* and one that stops in the middle */
    assert_eventually(rounds_done, (&(struct rounds){&w, atomic_load(&w.rounds) + 2000}), WAIT_MS);
    harness_service(h, "continue", "nats");
    assert_eventually(connected, w.p, WAIT_MS);
    atomic_store(&w.end, true);
    pthread_join(thread, NULL);
    events_pub_free(w.p);
}

static void test_a_server_that_is_away_at_first(void **state)
{
    struct harness *h = *state;
    harness_service(h, "stop", "nats");
    struct events_pub *p = publisher(h, h->nats_url);
    assert_int_equal(publish(p, "doc:1"), ST_RETRY);
    harness_service(h, "start", "nats");
    assert_eventually(connected, p, WAIT_MS);
    struct listener *l = listen_to(h->nats_url, "*");
    assert_int_equal(publish(p, "doc:2"), ST_OK);
    expect(l, ".doc", 0, 1, NULL);
    harness_service(h, "restart", "nats");
    assert_eventually(connected, p, WAIT_MS);
    assert_eventually(two_epochs, (&(struct rebirth){l, p}),
                      WAIT_MS); /* the subscriber is back, and knows not what it missed */
    events_pub_free(p);
    listener_free(l);
}

static void test_bad_settings(void **state)
{
    struct harness *h = *state;
    struct cfg_nats cfg = settings("nats://127.0.0.1:1");
    struct events_pub *p;
    struct err err;
    cfg.credentials_file = (char *)(uintptr_t) "/nonexistent.creds";
    assert_int_equal(events_pub_new(&p, &cfg, h->id, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "credentials_file"));
    cfg = settings("nats://127.0.0.1:1");
    cfg.cert_file = (char *)(uintptr_t) "/dev/null";
    assert_int_equal(events_pub_new(&p, &cfg, h->id, &err), ST_CONFIG);
    cfg = settings(",");
    assert_int_equal(events_pub_new(&p, &cfg, h->id, &err), ST_CONFIG);
    cfg = settings("nats://127.0.0.1:1");
    cfg.nkey_seed_file = (char *)(uintptr_t) "/etc/passwd";
    assert_int_equal(events_pub_new(&p, &cfg, h->id, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "no user seed"));
}

/* ---- the writer's events ---- */
/* The server is shared with other tests, whose writers' store has the same name. */
struct told {
    struct listener *l;
    const char *object;
    int64_t writer_id, epoch;
};

static bool revocation_was_told(void *arg)
{
    struct told *t = arg;
    int seen = 0;
    bool last = true;
    pthread_mutex_lock(&t->l->mu);
    for (size_t i = 0; i < t->l->n; i++) {
        if (strcmp(t->l->items[i].first, t->object) != 0)
            continue;
        seen++;
        last = t->l->items[i].present;
    }
    pthread_mutex_unlock(&t->l->mu);
    return seen >= 2 && !last;
}

static bool writer_beats(void *arg)
{
    struct told *t = arg;
    bool found = false;
    pthread_mutex_lock(&t->l->mu);
    for (size_t i = 0; i < t->l->n && !found; i++) {
        const struct seen *s = &t->l->items[i];
        found = s->heartbeat && s->gap == 0 && !s->unknown && s->writer_id == t->writer_id && s->epoch == t->epoch;
    }
    pthread_mutex_unlock(&t->l->mu);
    return found;
}

static void test_the_writer_tells_what_it_wrote(void **state)
{
    struct harness *h = *state;
    struct listener *l = listen_to(h->nats_url, "default");
    struct proc *w = writer_start(h, "--set", harness_strf(h, "nats.flush_timeout=%dms", harness_ms(5000)), NULL);
    const char *object = harness_strf(h, "doc:%s", h->id);
    assert_metric_eventually(w, "relata_writer_events_connected", 1, WAIT_MS);
    grant_tuple(h, object, "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    revoke_tuple(h, object, "viewer", "user:x");
    assert_converged(h, CONVERGE_MS);
    struct told told = {.l = l,
                        .object = object,
                        .writer_id = harness_sql_int(h, "SELECT id FROM relata.writer ORDER BY id DESC LIMIT 1"),
                        .epoch = harness_sql_int(h, "SELECT epoch FROM relata.writer ORDER BY id DESC LIMIT 1")};
    assert_eventually(revocation_was_told, &told, WAIT_MS);
    assert_eventually(writer_beats, &told, WAIT_MS);
    assert_metric_eventually(w, "relata_writer_events_total", 2, WAIT_MS);
    proc_stop(w);
    listener_free(l);
}

static void test_nats_being_down_holds_nothing_up(void **state)
{
    struct harness *h = *state;
    harness_service(h, "freeze", "nats");
    struct proc *w = writer_start(h, NULL);
    harness_sql(h, "SELECT relata.write_tuple('doc:' || i, 'viewer', 'user:x') FROM generate_series(1, 500) i");
    assert_converged(h, CONVERGE_MS);
    proc_ready_wait(w, WAIT_MS);
    assert_metric_eventually(w, "relata_writer_events_failed_total", 1, WAIT_MS);
    harness_service(h, "continue", "nats");
    assert_metric_eventually(w, "relata_writer_events_connected", 1, WAIT_MS);
    grant_tuple(h, "doc:x", "viewer", "user:x");
    assert_metric_eventually(w, "relata_writer_events_total", 1, WAIT_MS);
    proc_stop(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_events_of_one_batch_go_by_type, HARNESS_NATS),
        HARNESS_TEST(test_P08_gaps_and_epochs_are_seen, HARNESS_NATS),
        HARNESS_TEST(test_P08_joining_in_mid_stream_is_no_gap, HARNESS_NATS),
        HARNESS_TEST(test_a_frozen_server_costs_one_wait_and_leaves_a_gap, HARNESS_OWN_NATS),
        HARNESS_TEST(test_nobody_waits_for_connecting_to_a_frozen_server, HARNESS_OWN_NATS),
        HARNESS_TEST(test_a_server_that_is_away_at_first, HARNESS_OWN_NATS),
        HARNESS_TEST(test_bad_settings, HARNESS_NATS),
        HARNESS_TEST(test_the_writer_tells_what_it_wrote, HARNESS_DB | HARNESS_STORE | HARNESS_NATS),
        HARNESS_TEST(test_nats_being_down_holds_nothing_up, HARNESS_DB | HARNESS_STORE | HARNESS_OWN_NATS),
    };
    cmocka_set_test_filter(getenv("TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
