/* group.c - deciding the changes of a group in memory. */
#include "authz-store/stores/group.h"

#include <stdlib.h>
#include <xxhash.h>

#include "authz-store/stores/metrics.h"

/* A key that the group changes. */
struct touched {
    struct served_impl *store;
    const struct engine_tuple *tuple; /* the last change's */
    uint64_t hash;
    size_t last;          /* number of the last change */
    bool before, present; /* in the engine before the group; after what the group has so far */
};

struct change {
    struct served_impl *store;
    const struct engine_change *change;
    size_t touched; /* number of its key */
};

struct group {
    struct job *first, **tail;
    size_t njobs;
    struct change *changes;
    size_t nchanges, changes_cap;
    struct touched *touched;
    size_t ntouched, touched_cap;
    uint32_t *slots; /* of the hash table: number of the key + 1; 0 = free */
    size_t nslots;   /* a power of two */
    struct engine_change *apply;
    size_t apply_cap;
};

struct group *group_new(void)
{
    struct group *g = calloc(1, sizeof *g);

    if (g)
        g->tail = &g->first;
    return g;
}

void group_free(struct group *g)
{
    if (!g)
        return;
    free(g->changes);
    free(g->touched);
    free(g->slots);
    free(g->apply);
    free(g);
}

void group_begin(struct group *g)
{
    g->first = NULL;
    g->tail = &g->first;
    g->njobs = g->nchanges = g->ntouched = 0;
    if (g->nslots)
        memset(g->slots, 0, g->nslots * sizeof *g->slots);
}

/* ---- keys ---- */

static uint64_t hash_text(struct engine_text text, uint64_t seed)
{
    return XXH3_64bits_withSeed(text.s, text.len, seed);
}

static uint64_t hash_of(const struct served_impl *store, const struct engine_tuple *t)
{
    uint64_t seed = (uint64_t)(uintptr_t)store;

    return hash_text(t->subject, hash_text(t->relation, hash_text(t->object, seed)));
}

static bool same_text(struct engine_text a, struct engine_text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.s, b.s, a.len) == 0);
}

static bool same_key(const struct engine_tuple *a, const struct engine_tuple *b)
{
    return same_text(a->object, b->object) && same_text(a->relation, b->relation) && same_text(a->subject, b->subject);
}

/* Its slot, or the free one where it would be. The table has room. */
static uint32_t *slot_of(const struct group *g, const struct served_impl *store, const struct engine_tuple *t,
                         uint64_t hash)
{
    for (size_t i = hash & (g->nslots - 1);; i = (i + 1) & (g->nslots - 1)) {
        const struct touched *k = g->slots[i] ? &g->touched[g->slots[i] - 1] : NULL;
        if (!k || (k->hash == hash && k->store == store && same_key(k->tuple, t)))
            return &g->slots[i];
    }
}

static void *grown(void *items, size_t size, size_t *cap, size_t need)
{
    size_t want = *cap ? *cap : 256;

    if (need <= *cap)
        return items;
    while (want < need)
        want *= 2;
    items = realloc(items, want * size);
    if (items)
        *cap = want;
    return items;
}

/* Room for `n` more changes and keys; half of the slots stay free. */
static bool room(struct group *g, size_t n)
{
    void *p = grown(g->changes, sizeof *g->changes, &g->changes_cap, g->nchanges + n);
    if (!p)
        return false;
    g->changes = p;
    p = grown(g->touched, sizeof *g->touched, &g->touched_cap, g->ntouched + n);
    if (!p)
        return false;
    g->touched = p;
    size_t want = g->nslots ? g->nslots : 1024;
    while (want < 2 * (g->ntouched + n))
        want *= 2;
    if (want == g->nslots)
        return true;
    uint32_t *slots = calloc(want, sizeof *slots);
    if (!slots)
        return false;
    free(g->slots);
    g->slots = slots;
    g->nslots = want;
    for (size_t i = 0; i < g->ntouched; i++)
        *slot_of(g, g->touched[i].store, g->touched[i].tuple, g->touched[i].hash) = (uint32_t)i + 1;
    return true;
}

/* ---- deciding ---- */

/* Numbers are doubles to the store, so that 1 is 1.0. */
static bool same_context(struct engine_text a, struct engine_text b)
{
    if (same_text(a, b))
        return true;
    json_t *x = a.len ? json_loadb(a.s, a.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL) : json_object();
    json_t *y = b.len ? json_loadb(b.s, b.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL) : json_object();
    bool same = x && y && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

struct state {
    bool present;
    struct engine_text condition, context;
};

static struct state state_of(const struct group *g, struct served_impl *store, const struct engine_tuple *t)
{
    struct state now = {.present = false};
    uint32_t slot = g->nslots ? *slot_of(g, store, t, hash_of(store, t)) : 0;

    if (slot) {
        const struct touched *k = &g->touched[slot - 1];
        return (struct state){k->present, k->tuple->condition, k->tuple->context};
    }
    now.present = engine_find(store->find, t, &now.condition, &now.context);
    return now;
}

enum verdict { CHANGES, IGNORED, REFUSED };

static enum verdict judge(const struct group *g, struct job *job, const struct engine_change *c)
{
    struct state now = state_of(g, job->store->impl, &c->tuple);

    if (c->remove)
        return now.present ? CHANGES : job->ignore_missing ? IGNORED : REFUSED;
    if (!now.present)
        return CHANGES;
    job->other_condition =
        !same_text(now.condition, c->tuple.condition) || !same_context(now.context, c->tuple.context);
    return job->ignore_duplicate && !job->other_condition ? IGNORED : REFUSED;
}

static void take(struct group *g, struct served_impl *store, const struct engine_change *c)
{
    uint64_t hash = hash_of(store, &c->tuple);
    uint32_t *slot = slot_of(g, store, &c->tuple, hash);

    if (!*slot) {
        struct engine_text condition, context;
        g->touched[g->ntouched] = (struct touched){
            .store = store, .hash = hash, .before = engine_find(store->find, &c->tuple, &condition, &context)};
        *slot = (uint32_t)++g->ntouched;
    }
    struct touched *k = &g->touched[*slot - 1];
    k->tuple = &c->tuple;
    k->present = !c->remove;
    k->last = g->nchanges;
    g->changes[g->nchanges++] = (struct change){store, c, *slot - 1};
}

static void put_job(struct group *g, struct job *job)
{
    job->next = NULL;
    *g->tail = job;
    g->tail = &job->next;
    g->njobs++;
}

enum status group_add(struct group *g, struct job *job, struct err *err)
{
    struct served_impl *store = job->store->impl;
    size_t i = 0;

    if (!room(g, job->nchanges))
        return err_set(err, ST_NOMEM, NULL, "no memory for a group of changes");
    job->st = ST_OK;
    engine_begin(store->find);
    for (; i < job->nchanges; i++)
        if (judge(g, job, &job->changes[i]) == REFUSED)
            break;
    if (i < job->nchanges) {
        job->conflict = i;
        job->st = err_set(&job->err, ST_CONFLICT, NULL, "%s",
                          job->changes[i].remove ? "the tuple is not there" : "the tuple is there already");
    }
    for (size_t n = 0; job->st == ST_OK && n < job->nchanges; n++)
        if (judge(g, job, &job->changes[n]) == CHANGES)
            take(g, store, &job->changes[n]);
    engine_end(store->find);
    put_job(g, job);
    return ST_OK;
}

size_t group_changes(const struct group *g)
{
    return g->nchanges;
}

size_t group_jobs(const struct group *g)
{
    return g->njobs;
}

/* ---- carrying out ---- */

static enum commit_kind kind_of(const struct group *g, size_t i)
{
    const struct touched *k = &g->touched[g->changes[i].touched];
    bool remove = g->changes[i].change->remove;

    if (k->last != i)
        return remove ? COMMIT_REMOVE : COMMIT_WRITE;
    if (remove)
        return k->before ? COMMIT_REMOVE_ROW : COMMIT_REMOVE;
    return COMMIT_WRITE_ROW;
}

void group_fill(struct group *g, int64_t first_id, struct commit_batch *batch)
{
    commit_batch_begin(batch);
    for (size_t i = 0; i < g->nchanges; i++)
        commit_batch_add(batch, first_id + (int64_t)i, g->changes[i].store->pub.id, &g->changes[i].change->tuple,
                         kind_of(g, i));
}

/* The changes of one store, in order; its own are marked as done. */
static enum status apply_store(struct group *g, size_t from, uint64_t revision, struct err *err)
{
    struct served_impl *store = g->changes[from].store;
    size_t n = 0, removed = 0;

    for (size_t i = from; i < g->nchanges; i++)
        if (g->changes[i].store == store) {
            g->apply[n++] = *g->changes[i].change;
            g->changes[i].store = NULL;
            removed += g->changes[i].change->remove;
        }
    if (engine_apply(store->pub.engine, g->apply, n, revision) != ENGINE_OK)
        return err_set(err, ST_NOMEM, NULL, "no memory for committed changes of store %s", store->pub.id);
    metric_add(&m_removed, (int64_t)removed);
    metric_add(&m_written, (int64_t)(n - removed));
    return ST_OK;
}

enum status group_apply(struct group *g, uint64_t revision, struct err *err)
{
    void *p = grown(g->apply, sizeof *g->apply, &g->apply_cap, g->nchanges);

    if (!p)
        return err_set(err, ST_NOMEM, NULL, "no memory for committed changes");
    g->apply = p;
    for (size_t i = 0; i < g->nchanges; i++) {
        enum status st = g->changes[i].store ? apply_store(g, i, revision, err) : ST_OK;
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

struct job *group_detach(struct group *g)
{
    struct job *first = g->first;

    g->first = NULL;
    g->tail = &g->first;
    g->njobs = 0;
    return first;
}

void group_end(struct group *g, enum status st, const char *why)
{
    struct job *job = group_detach(g);

    while (job) {
        struct job *next = job->next; /* the job is its owner's again */
        if (st == ST_OK)
            job->done(job);
        else
            job_end(job, st, why);
        job = next;
    }
}
