/*
 * Decisions by the store: batches, flights, repetitions, deadlines. The store is a peer in this process that allows
 * what ends in "y"; world and cache are played here, so that events come exactly when the test says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/store/store.h"
#include "inventory-lister/decide/decide_store.h"
#include "inventory-lister/decide/world.h"
#include "tests/harness/raw_server.h"

#define STORE_ID "01HVMMBCMGZNT3SED4Z17ECXCA"
#define MODEL_ID "01HVMMBCMGZNT3SED4Z17ECXCB"

static const char model_json[] =
    "{\"schema_version\":\"1.1\",\"id\":\"" MODEL_ID "\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\","
    "\"relations\":{\"viewer\":{\"this\":{}},\"editor\":{\"this\":{}},\"timed\":{\"this\":{}}},\"metadata\":{"
    "\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"}]},\"editor\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"}]},\"timed\":{\"directly_related_user_types\":[{\"type\":"
    "\"user\",\"condition\":\"c\"}]}}}}],\"conditions\":{\"c\":{\"name\":\"c\",\"expression\":\"x < 1\","
    "\"parameters\":{\"x\":{\"type_name\":\"TYPE_NAME_INT\"}}}}}";

/* ---- the world, played ---- */

static struct in_force force = {.store_id = STORE_ID, .model_id = MODEL_ID};
static _Atomic bool has_model = true;
static _Atomic int held;

const struct in_force *world_hold(struct world *w)
{
    (void)w;
    if (!has_model)
        return NULL;
    held++;
    return &force;
}

void world_release(struct world *w, const struct in_force *f)
{
    (void)w, (void)f;
    held--;
}

/* ---- the cache, played: entries by (relation, object), one moment of invalidation for all ---- */

#define ENTRIES 512
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t id[2];
    bool allowed;
    mono_us began;
} entries[ENTRIES];
static size_t nentries;
static _Atomic mono_us invalidated;
static _Atomic bool suspect;

static uint64_t hash(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

struct cache_key cache_key(const struct cache *c, const char *store_id, const char *model_id, int pair,
                           const char *subject, const char *object)
{
    (void)c, (void)store_id, (void)model_id;
    return (struct cache_key){.id = {hash(object) + (unsigned)pair, hash(subject)}, .pair = (unsigned)pair};
}

enum cached cache_get(struct cache *c, const struct cache_key *k, mono_us not_before, mono_us now)
{
    enum cached found = CACHE_MISS;
    (void)c, (void)now;
    pthread_mutex_lock(&cache_lock);
    for (size_t i = 0; i < nentries && i < ENTRIES; i++)
        if (entries[i].id[0] == k->id[0] && entries[i].id[1] == k->id[1] && entries[i].began >= not_before &&
            entries[i].began > invalidated)
            found = entries[i].allowed ? CACHE_ALLOW : CACHE_DENY;
    pthread_mutex_unlock(&cache_lock);
    return found;
}

bool cache_current(const struct cache *c, const struct cache_key *k, mono_us began)
{
    (void)c, (void)k;
    return began > invalidated;
}

bool cache_put(struct cache *c, const struct cache_key *k, bool allowed, mono_us began)
{
    if (!cache_current(c, k, began))
        return false;
    pthread_mutex_lock(&cache_lock);
    size_t at = nentries++ % ENTRIES;
    entries[at].id[0] = k->id[0];
    entries[at].id[1] = k->id[1];
    entries[at].allowed = allowed;
    entries[at].began = began;
    pthread_mutex_unlock(&cache_lock);
    return true;
}

bool cache_suspect(const struct cache *c, const struct cache_key *k, mono_us now)
{
    (void)c, (void)k, (void)now;
    return suspect;
}

static void invalidate(void)
{
    invalidated = clock_mono_us();
}

/* ---- the store, played ---- */

enum mode {
    NORMAL,
    FAULT_500,
    FOUR_500 /* once there are four */,
    HALF_FAIL,
    NO_CONTEXT,
    MALFORMED,
    THROTTLE,
    HANG,
    SLOW,
    GATED,
    DENIED
};

struct peer {
    struct raw_server *server;
    pthread_mutex_t lock;
    enum mode mode;
    int faults;     /* that many requests, -1 = all .. */
    enum mode then; /* .. the others */
    bool gate;
    int events;          /* that many requests see an event come before their answer */
    int order[64];       /* each request's first object's number, as they come */
    _Atomic int hangups; /* requests whose client went away before the answer */
    _Atomic int requests, checks, higher, now, most;
    char trace[128];
};

static void peer_mode(struct peer *p, enum mode mode, int faults)
{
    pthread_mutex_lock(&p->lock);
    p->mode = mode;
    p->faults = faults;
    p->gate = false;
    pthread_mutex_unlock(&p->lock);
}

/* What comes after the faults, and how many events come before. */
static void peer_after(struct peer *p, enum mode then, int events)
{
    pthread_mutex_lock(&p->lock);
    p->then = then;
    p->events = events;
    pthread_mutex_unlock(&p->lock);
}

static enum mode peer_note(struct peer *p, const json_t *rq, const char *head)
{
    enum mode mode;
    const char *trace = strcasestr(head, "traceparent: ");

    pthread_mutex_lock(&p->lock);
    mode = p->then;
    const json_t *first = json_object_get(json_array_get(json_object_get(rq, "checks"), 0), "tuple_key");
    const char *object = json_string_value(json_object_get(first, "object"));
    if (object && p->requests < 64)
        p->order[p->requests] = (int)strtol(object + strlen("doc:"), NULL, 10);
    p->requests++;
    p->checks += (int)json_array_size(json_object_get(rq, "checks"));
    p->higher += json_object_get(rq, "consistency") != NULL;
    if (trace)
        snprintf(p->trace, sizeof(p->trace), "%.60s", trace + 13);
    if (p->faults != 0) {
        mode = p->mode;
        p->faults -= p->faults > 0;
    }
    if (p->events > 0 && p->events--)
        invalidate();
    if (++p->now > p->most)
        p->most = p->now;
    pthread_mutex_unlock(&p->lock);
    return mode;
}

static bool gate_open(struct peer *p)
{
    pthread_mutex_lock(&p->lock);
    bool open = p->gate;
    pthread_mutex_unlock(&p->lock);
    return open;
}

static void open_gate(struct peer *p)
{
    pthread_mutex_lock(&p->lock);
    p->gate = true;
    p->mode = p->then = NORMAL;
    p->faults = 0;
    pthread_mutex_unlock(&p->lock);
}

static char *results(const json_t *rq, enum mode mode)
{
    json_t *result = json_object(), *check;
    size_t i;

    json_array_foreach(json_object_get(rq, "checks"), i, check)
    {
        const char *object = json_string_value(json_object_get(json_object_get(check, "tuple_key"), "object"));
        const char *id = json_string_value(json_object_get(check, "correlation_id"));
        json_t *r = mode == NO_CONTEXT
                        ? json_pack("{s:{s:s,s:s}}", "error", "input_error", "validation_error", "message", "x")
                    : mode == HALF_FAIL && i % 2
                        ? json_pack("{s:{s:s,s:s}}", "error", "internal_error", "deadline_exceeded", "message", "x")
                        : json_pack("{s:b}", "allowed", object[strlen(object) - 1] == 'y');
        json_object_set_new(result, id, r);
    }
    json_t *root = json_pack("{s:o}", "result", result);
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

static void answer(struct raw_peer *rp, struct peer *p, enum mode mode, const json_t *rq)
{
    char *text = results(rq, mode);

    if (mode == SLOW)
        raw_pause(rp, 50);
    while (mode == GATED && !gate_open(p))
        if (!raw_pause(rp, 2)) {
            p->hangups++;
            break;
        }
    while (mode == FOUR_500 && p->requests < 4 && raw_pause(rp, 2))
        ;
    if (mode == HANG)
        while (raw_pause(rp, 1000))
            ;
    else if (mode == FAULT_500 || mode == FOUR_500)
        raw_reply(rp, 500, "", "{\"code\":\"internal_error\",\"message\":\"x\"}");
    else if (mode == MALFORMED)
        raw_reply(rp, 200, "", "{\"result\":{\"0\":{\"allowed\":tru");
    else if (mode == THROTTLE)
        raw_reply(rp, 429, "Retry-After: 1\r\n", "{\"code\":\"rate_limit\",\"message\":\"x\"}");
    else if (mode == DENIED)
        raw_reply(rp, 401, "", "{\"code\":\"unauthenticated\",\"message\":\"x\"}");
    else
        raw_reply(rp, 200, "", text);
    free(text);
}

static enum raw_next handle(struct raw_peer *rp, const struct raw_request *rq, void *arg)
{
    struct peer *p = arg;
    json_t *body = json_loadb(rq->body, rq->body_len, 0, NULL);

    answer(rp, p, peer_note(p, body, rq->head), body);
    pthread_mutex_lock(&p->lock);
    p->now--;
    pthread_mutex_unlock(&p->lock);
    json_decref(body);
    return RAW_KEEP;
}

/* ---- one test's world ---- */

struct fixture {
    struct peer peer;
    struct cfg_store cfg;
    struct store *store;
    struct decider *d;
    struct model *model;
    struct decide_query q;
};

static void open_decider(struct fixture *f, int64_t in_flight, int64_t queue)
{
    struct decide_store_settings cfg = {.in_flight = in_flight, .batch_size = 50, .queue = queue};
    struct err err;

    assert_int_equal(decide_store_new(&f->d, &cfg, f->store, NULL, NULL, &err), ST_OK);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct model_err why;
    struct err err;

    pthread_mutex_init(&f->peer.lock, NULL);
    f->peer.server = raw_server_start(&(struct raw_options){.handler = handle, .arg = &f->peer});
    f->cfg = (struct cfg_store){.url = strdup(raw_server_url(f->peer.server)),
                                .name = strdup("default"),
                                .connect_timeout_ms = 2000,
                                .request_timeout_ms = 30000};
    assert_int_equal(store_new(&f->store, &f->cfg, &err), ST_OK);
    assert_true(model_parse(&f->model, model_json, strlen(model_json), &why));
    force.model = f->model;
    snprintf(force.model_id, sizeof(force.model_id), "%s", MODEL_ID);
    has_model = true;
    nentries = 0;
    invalidated = 0;
    suspect = false;
    f->q = (struct decide_query){.subject = "user:anne", .deadline = deadline_in_ms(60000)};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    raw_server_stop(f->peer.server);
    decide_store_free(f->d);
    store_free(f->store);
    model_free(f->model);
    free(f->cfg.url);
    free(f->cfg.name);
    free(f);
    assert_int_equal(held, 0);
    return 0;
}

#define MANY 1000
struct asked {
    struct decide_item items[MANY];
    char objects[MANY][24];
    size_t n;
    struct decide_group *g;
};

/* "doc:<first>n", "doc:<first + 1>y", ...: every second is allowed. */
static enum status begin(struct fixture *f, struct asked *a, struct decide_query *q, size_t n, int first,
                         struct err *err)
{
    a->n = n;
    for (size_t i = 0; i < n; i++) {
        snprintf(a->objects[i], sizeof(a->objects[i]), "doc:%d%c", first + (int)i, i % 2 ? 'y' : 'n');
        a->items[i] = (struct decide_item){.object = a->objects[i], .relation = "viewer", .decision = DECISION_ALLOW};
    }
    return decide_start(f->d, q, a->items, n, &a->g, err);
}

static void assert_all(const struct asked *a, enum decided_by by)
{
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(a->items[i].decision, i % 2 ? DECISION_ALLOW : DECISION_DENY);
        assert_int_equal(a->items[i].by, by);
    }
}

static void assert_none(const struct asked *a)
{
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(a->items[i].decision, DECISION_FAILED);
        assert_int_equal(a->items[i].by, BY_NOBODY);
    }
}

static void wait_requests(struct peer *p, int n)
{
    while (p->requests < n)
        (void)clock_mono_us();
}

/* ---- tests ---- */

static void batches_with(struct fixture *f, int64_t in_flight)
{
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, in_flight, 10000);
    peer_mode(&f->peer, SLOW, -1);
    assert_int_equal(begin(f, a, &f->q, 101, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_int_equal(err.status, ST_OK);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.requests, 3);
    assert_int_equal(f->peer.checks, 101);
    assert_true(f->peer.most <= in_flight);
    assert_string_equal(f->q.model_id, MODEL_ID);
    /* Now from the cache, at once. */
    assert_int_equal(begin(f, a, &f->q, 101, 0, &err), ST_OK);
    assert_true(decide_done(a->g));
    decide_finish(a->g, &err);
    assert_all(a, BY_CACHE);
    assert_int_equal(f->peer.requests, 3);
    free(a);
}

static void test_L35_more_checks_than_connections(void **state)
{
    batches_with(*state, 1);
}

static void test_L35_two_at_once(void **state)
{
    batches_with(*state, 2);
}

static void test_L34_nothing_to_ask(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 1, 10);
    assert_int_equal(begin(f, a, &f->q, 0, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_int_equal(err.status, ST_OK);
    assert_int_equal(f->peer.requests, 0);
    free(a);
}

static void test_equal_checks_in_flight_are_asked_once(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(3, sizeof(*a));
    struct decide_query q[3] = {f->q, f->q, f->q};
    struct err err = {0};

    open_decider(f, 4, 10000);
    peer_mode(&f->peer, GATED, -1);
    assert_int_equal(begin(f, &a[0], &q[0], 40, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[1], 40, 0, &err), ST_OK); /* joins all */
    q[2].subject = "user:bob";                                    /* another subject joins nothing */
    assert_int_equal(begin(f, &a[2], &q[2], 40, 0, &err), ST_OK);
    wait_requests(&f->peer, 2);
    open_gate(&f->peer);
    for (int i = 0; i < 3; i++) {
        decide_finish(a[i].g, &err);
        assert_all(&a[i], BY_STORE);
    }
    assert_int_equal(f->peer.checks, 80);
    free(a);
}

/* The one who asked first hangs up; the one who joined gets the answer all the same. */
static void test_joiner_outlives_the_first(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(2, sizeof(*a));
    atomic_bool gone = false;
    struct decide_query q[2] = {f->q, f->q};
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_mode(&f->peer, GATED, -1);
    q[0].cancelled = &gone;
    assert_int_equal(begin(f, &a[0], &q[0], 10, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[1], 10, 0, &err), ST_OK);
    gone = true;
    decide_finish(a[0].g, &err);
    assert_int_equal(err.status, ST_STOPPED);
    assert_none(&a[0]);
    memset(&q[0], 0xff, sizeof(q[0]));
    open_gate(&f->peer);
    decide_finish(a[1].g, &err);
    assert_all(&a[1], BY_STORE);
    assert_int_equal(f->peer.requests, 1);
    free(a);
}

/* Checks that wait for a connection are not sent once their client is gone. */
static void test_cancelled_checks_are_not_sent(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(3, sizeof(*a));
    atomic_bool gone = false;
    struct decide_query q[3] = {f->q, f->q, f->q};
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_mode(&f->peer, GATED, -1);
    assert_int_equal(begin(f, &a[0], &q[0], 10, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    q[1].cancelled = &gone;
    assert_int_equal(begin(f, &a[1], &q[1], 200, 100, &err), ST_OK);
    assert_int_equal(begin(f, &a[2], &q[2], 3, 298, &err), ST_OK); /* two of them joined the other's, one is new */
    gone = true;
    decide_finish(a[1].g, &err);
    assert_none(&a[1]);
    open_gate(&f->peer);
    decide_finish(a[0].g, &err);
    decide_finish(a[2].g, &err);
    assert_all(&a[0], BY_STORE);
    assert_all(&a[2], BY_STORE);
    assert_int_equal(f->peer.checks, 13);
    free(a);
}

/* A BatchCheck that only clients who are gone wait for is ended, and its connection with it; one that somebody else
 * waits for is not, and who asks the same afterwards does not wait for the one that was ended. */
static void test_cancelled_checks_in_flight_are_given_up(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(4, sizeof(*a));
    atomic_bool gone = false;
    struct decide_query q[4] = {f->q, f->q, f->q, f->q};
    struct err err = {0};

    open_decider(f, 2, 10000);
    peer_mode(&f->peer, GATED, -1);
    q[0].cancelled = q[1].cancelled = &gone;
    assert_int_equal(begin(f, &a[0], &q[0], 50, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[1], 50, 100, &err), ST_OK);
    wait_requests(&f->peer, 2);
    assert_int_equal(begin(f, &a[2], &q[2], 1, 102, &err), ST_OK); /* joins the second */
    gone = true;
    decide_finish(a[0].g, &err);
    assert_int_equal(err.status, ST_STOPPED);
    decide_finish(a[1].g, &err);
    while (f->peer.hangups < 1)
        (void)clock_mono_us();
    assert_int_equal(begin(f, &a[3], &q[3], 50, 0, &err), ST_OK);
    wait_requests(&f->peer, 3);
    assert_int_equal(f->peer.hangups, 1);
    open_gate(&f->peer);
    decide_finish(a[2].g, &err);
    assert_int_equal(a[2].items[0].decision, DECISION_DENY);
    decide_finish(a[3].g, &err);
    assert_all(&a[3], BY_STORE);
    assert_int_equal(f->peer.requests, 3);
    assert_int_equal(f->peer.hangups, 1);
    free(a);
}

/* Where in the order of requests the one comes that begins with this object. */
static int place_of(struct peer *p, int first)
{
    int place = -1;

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->requests && i < 64 && place < 0; i++)
        place = p->order[i] == first ? i : -1;
    pthread_mutex_unlock(&p->lock);
    if (place < 0)
        fail_msg("doc:%d was not asked for", first);
    return place;
}

/* A page of 1,000 rows is 20 BatchChecks; who comes after it does not wait for all of them. */
static void test_requests_take_turns(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(4, sizeof(*a));
    struct decide_query q[4] = {f->q, f->q, f->q, f->q};
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_mode(&f->peer, GATED, -1);
    assert_int_equal(begin(f, &a[0], &q[0], 1000, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[1], 3, 10000, &err), ST_OK);
    assert_int_equal(begin(f, &a[2], &q[2], 100, 20000, &err), ST_OK);
    assert_int_equal(begin(f, &a[3], &q[3], 10, 900, &err), ST_OK); /* joins the large one's 19th */
    open_gate(&f->peer);
    for (int i = 0; i < 4; i++) {
        decide_finish(a[i].g, &err);
        for (size_t k = 0; i < 3 && k < a[i].n; k++)
            assert_int_equal(a[i].items[k].decision, k % 2 ? DECISION_ALLOW : DECISION_DENY);
    }
    /* Turn 1: 0. Turn 2: 50, 10000, 20000, and 900, brought forward. Turn 3: 100, 20050. */
    assert_int_equal(place_of(&f->peer, 0), 0);
    assert_true(place_of(&f->peer, 10000) <= 4);
    assert_true(place_of(&f->peer, 20000) <= 4);
    assert_true(place_of(&f->peer, 900) <= 4);
    assert_true(place_of(&f->peer, 20050) <= 6);
    assert_true(place_of(&f->peer, 150) > place_of(&f->peer, 20050));
    assert_true(place_of(&f->peer, 950) == 22);
    assert_int_equal(f->peer.requests, 23);
    free(a);
}

static void test_P01_answer_older_than_a_revoke(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(2, sizeof(*a));
    struct decide_query q[2] = {f->q, f->q};
    struct err err = {0};

    open_decider(f, 2, 10000);
    peer_mode(&f->peer, GATED, 1);
    assert_int_equal(begin(f, &a[0], &q[0], 10, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    invalidate();                                                 /* the check in flight began before */
    assert_int_equal(begin(f, &a[1], &q[1], 10, 0, &err), ST_OK); /* must not join it */
    decide_finish(a[1].g, &err);
    assert_all(&a[1], BY_STORE);
    assert_int_equal(f->peer.checks, 20);
    open_gate(&f->peer);
    decide_finish(a[0].g, &err); /* asked again, with higher consistency */
    assert_all(&a[0], BY_STORE);
    assert_int_equal(f->peer.checks, 30);
    assert_int_equal(f->peer.higher, 1);
    for (size_t i = 0; i < nentries; i++)
        assert_true(entries[i].began > invalidated);
    free(a);
}

/* Events that come faster than answers: nothing old is given out, and it ends with the request's time. */
static void test_always_stale_fails(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 1, 10000);
    invalidated = DEADLINE_NONE - 1;
    f->q.deadline = deadline_in_ms(500);
    assert_int_equal(begin(f, a, &f->q, 10, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_none(a);
    assert_true(err.status == ST_CONFLICT || err.status == ST_DEADLINE);
    assert_true(f->peer.requests > 2);
    assert_true(f->peer.requests < 64); /* pauses grow */
    assert_int_equal(nentries, 0);
    free(a);
}

/* Events that come during several tries running, as while tuples are loaded, cost time and no answer. */
static void test_stale_several_times(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_after(&f->peer, NORMAL, 9);
    assert_int_equal(begin(f, a, &f->q, 10, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.requests, 10);
    assert_int_equal(f->peer.higher, 9);
    for (size_t i = 0; i < nentries; i++)
        assert_true(entries[i].began > invalidated);
    free(a);
}

static void test_consistency(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(2, sizeof(*a));
    struct decide_query q[2] = {f->q, f->q};
    struct err err = {0};

    open_decider(f, 2, 10000);
    assert_int_equal(begin(f, a, &q[0], 2, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_int_equal(f->peer.higher, 0);
    /* Read your writes: past older cache entries, and from the store itself. */
    q[0].not_before = clock_mono_us();
    assert_int_equal(begin(f, a, &q[0], 2, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.higher, 1);
    /* Not even a newer entry will do, if its check was content with the store's own cache. */
    q[0].not_before = clock_mono_us();
    assert_int_equal(begin(f, a, &q[1], 2, 50, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_int_equal(f->peer.higher, 1);
    assert_int_equal(begin(f, a, &q[0], 2, 50, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.higher, 2);
    suspect = true;
    assert_int_equal(begin(f, a, &q[1], 2, 100, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_int_equal(f->peer.higher, 3);
    suspect = false;
    /* A flight of lower consistency, or one that began too early, is not joined. */
    peer_mode(&f->peer, GATED, 1);
    assert_int_equal(begin(f, &a[0], &q[1], 2, 200, &err), ST_OK);
    wait_requests(&f->peer, 6);
    q[0].not_before = 1;
    assert_int_equal(begin(f, &a[1], &q[0], 2, 200, &err), ST_OK);
    decide_finish(a[1].g, &err);
    assert_all(&a[1], BY_STORE);
    assert_int_equal(f->peer.higher, 4);
    open_gate(&f->peer);
    decide_finish(a[0].g, &err);
    assert_all(&a[0], BY_STORE);
    free(a);
}

static void test_conditional_pairs_are_not_cached(void **state)
{
    struct fixture *f = *state;
    struct decide_item item = {.object = "doc:1y", .relation = "timed"};
    struct decide_group *g;
    struct err err = {0};

    open_decider(f, 1, 10);
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(decide_start(f->d, &f->q, &item, 1, &g, &err), ST_OK);
        decide_finish(g, &err);
        assert_int_equal(item.decision, DECISION_ALLOW);
        assert_int_equal(item.by, BY_STORE);
        assert_int_equal(f->peer.requests, i);
    }
    assert_int_equal(nentries, 0);
}

/* A row whose condition needs what nobody can give is hidden, and no list ends there; the same error about a relation
 * without a condition is none that is known to be the row's own. */
static void test_conditions_without_context(void **state)
{
    struct fixture *f = *state;
    struct decide_item timed = {.object = "doc:1y", .relation = "timed"},
                       viewer = {.object = "doc:1y", .relation = "viewer"};
    struct decide_group *g;
    struct err err = {0};

    open_decider(f, 1, 10);
    peer_mode(&f->peer, NO_CONTEXT, -1);
    assert_int_equal(decide_start(f->d, &f->q, &timed, 1, &g, &err), ST_OK);
    decide_finish(g, &err);
    assert_int_equal(err.status, ST_OK);
    assert_int_equal(timed.decision, DECISION_DENY);
    assert_int_equal(f->peer.requests, 2);
    assert_int_equal(nentries, 0);
    assert_int_equal(decide_start(f->d, &f->q, &viewer, 1, &g, &err), ST_OK);
    decide_finish(g, &err);
    assert_int_equal(err.status, ST_INVALID);
    assert_int_equal(viewer.decision, DECISION_FAILED);
}

/* No tuple can be about it, whatever the store would say to the question: a row with such an id must not stop a list.
 */
static void test_objects_that_no_tuple_can_have(void **state)
{
    struct fixture *f = *state;
    char longest[300] = "doc:", spaced[] = "doc:a b", nothing[] = "doc:", fine[] = "doc:1y";
    struct decide_item items[] = {{.object = longest, .relation = "viewer"},
                                  {.object = spaced, .relation = "viewer"},
                                  {.object = nothing, .relation = "viewer"},
                                  {.object = fine, .relation = "viewer"}};
    struct decide_group *g;
    struct err err = {0};

    memset(longest + 4, 'y', sizeof(longest) - 5);
    open_decider(f, 1, 10);
    assert_int_equal(decide_start(f->d, &f->q, items, 4, &g, &err), ST_OK);
    decide_finish(g, &err);
    assert_int_equal(err.status, ST_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(items[i].decision, DECISION_DENY);
        assert_int_equal(items[i].by, BY_NOBODY);
    }
    assert_int_equal(items[3].decision, DECISION_ALLOW);
    assert_int_equal(f->peer.checks, 1);
}

static void fails_once(struct fixture *f, enum mode mode, int want_requests)
{
    struct asked *a = calloc(1, sizeof(*a));
    struct decide_query q = f->q;
    struct err err = {0};
    int before = f->peer.requests;

    peer_mode(&f->peer, mode, 1);
    assert_int_equal(begin(f, a, &q, 40, before * 1000, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.requests - before, want_requests);
    free(a);
}

static void test_one_failure_is_repeated(void **state)
{
    struct fixture *f = *state;

    open_decider(f, 1, 10000);
    fails_once(f, FAULT_500, 4); /* 40, then 14, 14 and 12 */
    fails_once(f, MALFORMED, 4);
    fails_once(f, THROTTLE, 4);
    int checks = f->peer.checks;
    fails_once(f, HALF_FAIL, 3);
    assert_int_equal(f->peer.checks - checks, 60); /* only those that failed */
}

static void fails_for_good(struct fixture *f, enum mode mode, enum status want, int want_requests)
{
    struct asked *a = calloc(1, sizeof(*a));
    struct decide_query q = f->q;
    struct err err = {0};
    int before = f->peer.requests;

    peer_mode(&f->peer, mode, -1);
    assert_int_equal(begin(f, a, &q, 4, before * 1000, &err), ST_OK);
    decide_finish(a->g, &err);
    for (size_t i = 0; i < a->n; i++)
        assert_int_equal(a->items[i].decision, mode == HALF_FAIL && i % 2 == 0 ? DECISION_DENY : DECISION_FAILED);
    assert_int_equal(err.status, want);
    assert_int_equal(f->peer.requests - before, want_requests);
    free(a);
}

static void test_L31_what_fails_twice_stays_undecided(void **state)
{
    struct fixture *f = *state;

    open_decider(f, 1, 10000);
    fails_for_good(f, FAULT_500, ST_UNKNOWN, 2);
    fails_for_good(f, MALFORMED, ST_UNKNOWN, 2);
    fails_for_good(f, DENIED, ST_DENIED, 1); /* repeating would not help */
    size_t before = nentries;
    peer_mode(&f->peer, HALF_FAIL, -1);
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};
    assert_int_equal(begin(f, a, &f->q, 4, 90000, &err), ST_OK);
    decide_finish(a->g, &err);
    /* 1 and 3 failed; asked again as 0 and 1 of a new call, of which the second failed again */
    assert_int_equal(a->items[0].decision, DECISION_DENY);
    assert_int_equal(a->items[1].decision, DECISION_ALLOW);
    assert_int_equal(a->items[2].decision, DECISION_DENY);
    assert_int_equal(a->items[3].decision, DECISION_FAILED);
    assert_int_equal(err.status, ST_UNKNOWN);
    assert_string_equal(err.code, "deadline_exceeded");
    assert_int_equal(nentries - before, 3);
    free(a);
}

static void test_throttled_beyond_the_deadline_fails_at_once(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct decide_query q = f->q;
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_mode(&f->peer, THROTTLE, -1);
    q.deadline = deadline_in_ms(900);
    assert_int_equal(begin(f, a, &q, 4, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_none(a);
    assert_int_equal(err.status, ST_THROTTLED);
    assert_int_equal(err.retry_after_ms, 1000);
    /* The next one is told before it waits. */
    assert_int_equal(begin(f, a, &q, 4, 0, &err), ST_THROTTLED);
    assert_true(err.retry_after_ms > 0);
    assert_int_equal(f->peer.requests, 1);
    free(a);
}

/* A store that has too much to do gets less at once. */
static void test_overload_narrows(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 4, 10000);
    peer_mode(&f->peer, FOUR_500, 4);
    peer_after(&f->peer, GATED, 0);
    assert_int_equal(begin(f, a, &f->q, 200, 0, &err), ST_OK);
    wait_requests(&f->peer, 6); /* four at once; of the repeated ones, two */
    mono_us until = deadline_in_ms(100);
    while (clock_mono_us() < until)
        assert_int_equal(f->peer.requests, 6);
    open_gate(&f->peer);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    assert_int_equal(f->peer.checks, 400);
    free(a);
}

static void test_deadline(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 1, 10000);
    peer_mode(&f->peer, HANG, -1);
    f->q.deadline = deadline_in_ms(100);
    assert_int_equal(begin(f, a, &f->q, 60, 0, &err), ST_OK);
    assert_false(decide_done(a->g));
    decide_finish(a->g, &err);
    assert_none(a);
    assert_true(err.status == ST_DEADLINE || err.status == ST_UNKNOWN);
    free(a);
}

/* A page of 1,000 rows with 16 flags each is more than fits, and is decided all the same. */
static void test_one_request_may_be_larger_than_the_queue(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};

    open_decider(f, 2, 100);
    assert_int_equal(begin(f, a, &f->q, 500, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    assert_all(a, BY_STORE);
    free(a);
}

static void test_queue_is_bounded(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(3, sizeof(*a));
    struct decide_query q[3] = {f->q, f->q, f->q};
    struct err err = {0};

    open_decider(f, 1, 100);
    peer_mode(&f->peer, GATED, -1);
    assert_int_equal(begin(f, &a[0], &q[0], 50, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[1], 100, 1000, &err), ST_OK);
    assert_int_equal(begin(f, &a[2], &q[2], 1, 2000, &err), ST_THROTTLED);
    assert_null(a[2].g);
    open_gate(&f->peer);
    decide_finish(a[0].g, &err);
    decide_finish(a[1].g, &err);
    assert_all(&a[1], BY_STORE);
    free(a);
}

static void test_model_changes(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(2, sizeof(*a));
    struct decide_query q[2] = {f->q, f->q};
    struct decide_item item = {.object = "doc:1y", .relation = "nobody"};
    struct decide_group *g;
    struct err err = {0};

    open_decider(f, 1, 10000);
    assert_int_equal(decide_start(f->d, &q[1], &item, 1, &g, &err), ST_OK);
    decide_finish(g, &err);
    assert_int_equal(item.decision, DECISION_FAILED);
    assert_int_equal(err.status, ST_INVALID);
    peer_mode(&f->peer, GATED, -1);
    assert_int_equal(begin(f, &a[0], &q[0], 50, 0, &err), ST_OK);
    wait_requests(&f->peer, 1);
    assert_int_equal(begin(f, &a[1], &q[0], 50, 100, &err), ST_OK); /* waits for the connection */
    snprintf(force.model_id, sizeof(force.model_id), "01HVMMBCMGZNT3SED4Z17ECXCC");
    open_gate(&f->peer);
    decide_finish(a[0].g, &err);
    assert_all(&a[0], BY_STORE); /* no flush came: it is as good as before */
    decide_finish(a[1].g, &err);
    assert_none(&a[1]); /* not sent under a model that is no longer in force */
    assert_string_equal(err.code, "model_changed");
    assert_int_equal(begin(f, &a[0], &q[0], 1, 0, &err), ST_CONFLICT); /* one request, one model */
    has_model = false;
    assert_int_equal(begin(f, &a[0], &q[0], 1, 0, &err), ST_RETRY);
    free(a);
}

static void test_traceparent_is_passed_on(void **state)
{
    struct fixture *f = *state;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err = {0};
    static const char trace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    open_decider(f, 1, 10);
    f->q.traceparent = trace;
    assert_int_equal(begin(f, a, &f->q, 1, 0, &err), ST_OK);
    decide_finish(a->g, &err);
    pthread_mutex_lock(&f->peer.lock);
    assert_memory_equal(f->peer.trace, trace, strlen(trace));
    pthread_mutex_unlock(&f->peer.lock);
    free(a);
}

/* Many threads, few objects, events all the time: nothing wrong, nothing lost, no race. */
struct crowd {
    struct fixture *f;
    int wrong, undecided;
};

static void *crowd_run(void *arg)
{
    struct crowd *c = arg;
    struct asked *a = calloc(1, sizeof(*a));
    struct err err;

    for (int round = 0; round < 30; round++) {
        struct decide_query q = c->f->q;
        if (begin(c->f, a, &q, 70, 2 * (round % 5), &err) != ST_OK)
            continue;
        decide_finish(a->g, NULL);
        for (size_t i = 0; i < a->n; i++) {
            c->wrong += a->items[i].decision == (i % 2 ? DECISION_DENY : DECISION_ALLOW);
            c->undecided += a->items[i].decision == DECISION_FAILED;
        }
        if (round % 7 == 0)
            invalidate();
    }
    free(a);
    return NULL;
}

static void test_crowd(void **state)
{
    struct fixture *f = *state;
    struct crowd c[4];
    pthread_t t[4];

    open_decider(f, 3, 10000);
    peer_mode(&f->peer, HALF_FAIL, 3);
    for (int i = 0; i < 4; i++) {
        c[i] = (struct crowd){.f = f};
        assert_int_equal(pthread_create(&t[i], NULL, crowd_run, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].wrong, 0);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_L35_more_checks_than_connections),
        T(test_L35_two_at_once),
        T(test_L34_nothing_to_ask),
        T(test_equal_checks_in_flight_are_asked_once),
        T(test_joiner_outlives_the_first),
        T(test_cancelled_checks_are_not_sent),
        T(test_cancelled_checks_in_flight_are_given_up),
        T(test_requests_take_turns),
        T(test_P01_answer_older_than_a_revoke),
        T(test_always_stale_fails),
        T(test_stale_several_times),
        T(test_consistency),
        T(test_conditional_pairs_are_not_cached),
        T(test_conditions_without_context),
        T(test_objects_that_no_tuple_can_have),
        T(test_one_failure_is_repeated),
        T(test_L31_what_fails_twice_stays_undecided),
        T(test_throttled_beyond_the_deadline_fails_at_once),
        T(test_overload_narrows),
        T(test_deadline),
        T(test_one_request_may_be_larger_than_the_queue),
        T(test_queue_is_bounded),
        T(test_model_changes),
        T(test_traceparent_is_passed_on),
        T(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
