/* seed_run.c - walking the ledger, handing out batches, and knowing up to where all is done. */
#include <stdlib.h>

#include "common/base/wait.h"
#include "relatactl/seed.h"

#define PAGE_ROWS 5000
#define OUTSTANDING_MAX 512
#define TICK_US 1000000
#define NAP_MS 100

static const char present_sql[] =
    "SELECT object, relation, subject FROM relata.tuple WHERE store = $1 AND present AND (object, relation, subject) > "
    "($2, $3, $4) ORDER BY object, relation, subject LIMIT $5";
static const char changed_sql[] = "SELECT object, relation, subject FROM relata.tuple WHERE store = $1 AND version > "
                                  "$6 AND (object, relation, subject) > "
                                  "($2, $3, $4) ORDER BY object, relation, subject LIMIT $5";

static void batch_free(struct seed_batch *b)
{
    for (size_t i = 0; b && i < b->n; i++)
        free(b->keys[i]);
    free(b);
}

/* ---- under the lock ---- */

static void wait_a_little(struct seed *seed)
{
    (void)wait_cond(&seed->changed, &seed->lock, deadline_in_ms(NAP_MS));
}

static void ready_push(struct seed *seed, struct seed_batch *b)
{
    b->next_ready = NULL;
    if (seed->ready)
        seed->ready_last->next_ready = b;
    else
        seed->ready = b;
    seed->ready_last = b;
}

static struct seed_batch *ready_pop(struct seed *seed)
{
    struct seed_batch *b = seed->ready;
    if (b)
        seed->ready = b->next_ready;
    return b;
}

/* Batches whose late window is over are ready again. */
static void late_due(struct seed *seed)
{
    mono_us now = clock_mono_us();
    struct seed_batch **at = &seed->late;
    while (*at) {
        struct seed_batch *b = *at;
        if (b->late_until > now) {
            at = &b->next_ready;
            continue;
        }
        *at = b->next_ready;
        ready_push(seed, b);
    }
}

/* Take done batches off the front: the position is the last key before which nothing is left. */
static void advance(struct seed *seed)
{
    while (seed->first && seed->first->done) {
        struct seed_batch *b = seed->first;
        seed->first = b->next;
        if (!seed->first)
            seed->last = NULL;
        seed->outstanding--;
        seed->counts.done += (int64_t)b->n;
        free(seed->position);
        seed->position = b->keys[b->n - 1];
        b->keys[b->n - 1] = NULL;
        batch_free(b);
    }
}

static void fail(struct seed *seed, const struct err *err)
{
    if (!seed->failed)
        seed->err = *err;
    seed->failed = true;
}

static void finished(struct seed *seed, struct seed_batch *b, enum status st, const struct err *err)
{
    if (st != ST_OK) {
        fail(seed, err);
    } else if (b->late_until) {
        b->next_ready = seed->late;
        seed->late = b;
    } else {
        b->done = true;
        advance(seed);
    }
    (void)pthread_cond_broadcast(&seed->changed);
}

/* ---- threads ---- */

static void *worker_main(void *arg)
{
    struct seed_worker *w = arg;
    struct seed *seed = w->seed;
    (void)pthread_mutex_lock(&seed->lock);
    while (!seed->failed && !(seed->ending && !seed->outstanding)) {
        late_due(seed);
        struct seed_batch *b = stop_requested() ? NULL : ready_pop(seed);
        if (!b && stop_requested())
            break;
        if (!b) {
            wait_a_little(seed);
            continue;
        }
        struct err err = {.status = ST_OK};
        (void)pthread_mutex_unlock(&seed->lock);
        enum status st = seed_converge(w, b, &err);
        (void)pthread_mutex_lock(&seed->lock);
        finished(seed, b, st, &err);
    }
    (void)pthread_mutex_unlock(&seed->lock);
    return NULL;
}

/* ---- the calling thread: reads keys ---- */

struct walk {
    struct seed *seed;
    struct tuple_key *at; /* the last key read */
    int64_t since;
    enum status (*tick)(void *arg, struct err *err);
    void *arg;
    mono_us ticked;
};

static enum status tick(struct walk *walk, struct err *err)
{
    mono_us now = clock_mono_us();
    if (now - walk->ticked < TICK_US)
        return ST_OK;
    walk->ticked = now;
    return walk->tick(walk->arg, err);
}

/* Until fewer than `below` batches are outstanding. */
static enum status wait_below(struct walk *walk, size_t below, struct err *err)
{
    struct seed *seed = walk->seed;
    enum status st = ST_OK;
    (void)pthread_mutex_lock(&seed->lock);
    while (st == ST_OK && seed->outstanding >= below && !seed->failed && !stop_requested()) {
        wait_a_little(seed);
        (void)pthread_mutex_unlock(&seed->lock);
        st = tick(walk, err);
        (void)pthread_mutex_lock(&seed->lock);
    }
    if (st == ST_OK && seed->failed) {
        st = seed->err.status;
        if (err)
            *err = seed->err;
    }
    (void)pthread_mutex_unlock(&seed->lock);
    if (st == ST_OK && stop_requested())
        st = err_set(err, ST_STOPPED, "", "interrupted");
    return st;
}

static enum status hand_out(struct walk *walk, const struct pg_result *r, int from, int to, struct err *err)
{
    struct seed *seed = walk->seed;
    struct seed_batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(err, ST_NOMEM, "", "no memory for a batch");
    for (int i = from; i < to; i++) {
        const struct tuple_key key = {pg_text(r, i, 0), pg_text(r, i, 1), pg_text(r, i, 2)};
        b->keys[b->n] = tuple_key_dup(&key);
        if (!b->keys[b->n++]) {
            batch_free(b);
            return err_set(err, ST_NOMEM, "", "no memory for a batch");
        }
    }
    (void)pthread_mutex_lock(&seed->lock);
    if (seed->last)
        seed->last->next = b;
    else
        seed->first = b;
    seed->last = b;
    seed->outstanding++;
    ready_push(seed, b);
    (void)pthread_cond_broadcast(&seed->changed);
    (void)pthread_mutex_unlock(&seed->lock);
    return wait_below(walk, OUTSTANDING_MAX, err);
}

/* A page at a time, each in a snapshot of its own: no long transaction holds vacuum back, and whoever changes a key
 * behind the walk leaves an outbox row for the writers. */
static enum status read_page(struct walk *walk, struct pg_result **r, struct err *err)
{
    struct seed *seed = walk->seed;
    char limit[24], since[24];
    const struct pg_param params[] = {pg_p_text(seed->ctl->settings.store.name),
                                      pg_p_text(walk->at ? walk->at->object : ""),
                                      pg_p_text(walk->at ? walk->at->relation : ""),
                                      pg_p_text(walk->at ? walk->at->subject : ""),
                                      pg_p_int(PAGE_ROWS, limit),
                                      pg_p_int(walk->since, since)};
    bool all = walk->since < 0;
    enum status st = ST_RETRY;
    for (unsigned tries = 0; status_is_retryable(st) && tries < 10; tries++) {
        if (tries && stop_sleep_until(deadline_in_ms(backoff_ms(tries, 100, 3000))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
        /* A lost session is made again by the tick, which knows what it held. */
        st = pg_alive(seed->ctl->pg)
                 ? pg_query(seed->ctl->pg, all ? "seed_present" : "seed_changed", all ? present_sql : changed_sql,
                            params, all ? 5 : 6, ctl_deadline(seed->ctl), r, err)
                 : walk->tick(walk->arg, err);
        if (st == ST_OK && !*r)
            st = ST_RETRY;
    }
    return st;
}

static enum status walk_keys(struct walk *walk, struct err *err)
{
    for (;;) {
        struct pg_result *r = NULL;
        enum status st = read_page(walk, &r, err);
        int rows = st == ST_OK ? pg_rows(r) : 0;
        for (int i = 0; st == ST_OK && i < rows; i += STORE_WRITE_MAX)
            st = hand_out(walk, r, i, i + STORE_WRITE_MAX < rows ? i + STORE_WRITE_MAX : rows, err);
        if (st == ST_OK && rows) {
            const struct tuple_key last = {pg_text(r, rows - 1, 0), pg_text(r, rows - 1, 1), pg_text(r, rows - 1, 2)};
            free(walk->at);
            walk->at = tuple_key_dup(&last);
            if (!walk->at)
                st = err_set(err, ST_NOMEM, "", "no memory for a key");
        }
        pg_result_free(r);
        if (st != ST_OK || rows < PAGE_ROWS)
            return st;
    }
}

static void drop_batches(struct seed *seed)
{
    while (seed->first) {
        struct seed_batch *b = seed->first;
        seed->first = b->next;
        batch_free(b);
    }
    seed->last = seed->ready = seed->late = NULL;
    seed->outstanding = 0;
}

static void end_threads(struct seed *seed, struct seed_worker *workers, size_t n, bool aborted)
{
    (void)pthread_mutex_lock(&seed->lock);
    seed->ending = true;
    seed->failed = seed->failed || aborted;
    (void)pthread_cond_broadcast(&seed->changed);
    (void)pthread_mutex_unlock(&seed->lock);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(workers[i].thread, NULL);
}

enum status seed_keys(struct seed *seed, const struct tuple_key *from, int64_t since,
                      enum status (*tick_fn)(void *arg, struct err *err), void *arg, struct err *err)
{
    size_t n = (size_t)seed->options->in_flight, started = 0;
    struct seed_worker *workers = calloc(n, sizeof *workers);
    if (!workers)
        return err_set(err, ST_NOMEM, "", "no memory for threads");
    struct walk walk = {.seed = seed, .since = since, .tick = tick_fn, .arg = arg, .ticked = clock_mono_us()};
    enum status st = ST_OK;
    seed->ending = seed->failed = false;
    if (st == ST_OK && from && !(walk.at = tuple_key_dup(from)))
        st = err_set(err, ST_NOMEM, "", "no memory for a key");
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        st = seed_worker_init(&workers[i], seed, err);
        if (st == ST_OK && pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
            st = err_set(err, ST_NOMEM, "", "cannot start a thread");
        if (st == ST_OK)
            started++;
    }
    if (st == ST_OK)
        st = walk_keys(&walk, err);
    if (st == ST_OK)
        st = wait_below(&walk, 1, err);
    end_threads(seed, workers, started, st != ST_OK);
    for (size_t i = 0; i < n; i++)
        seed_worker_release(&workers[i]);
    drop_batches(seed);
    free(workers);
    free(walk.at);
    return st;
}
