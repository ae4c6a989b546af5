/*
 * world.c - follows relata.store and the store behind it; hands out the model in force by reference counts.
 *
 * The order of a change matters: the new model is put in force first, the cache flushed after. A check that begins
 * between the two is refused by the flush; one that begins later asks for higher consistency.
 */
#include "inventory-lister/decide/world.h"

#include <pthread.h>

#include "common/admin/admin.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/base/wait.h"
#include "common/pg/pg.h"
#include "common/store/store.h"
#include "inventory-lister/decide/hearing.h"
#include "inventory-lister/decide/world_internal.h"

#define ROUND_MS 1000 /* between two looks at relata.store */
#define HURRY_MS 50   /* the same if somebody is in a hurry */
#define CALL_MS 2000

struct held {
    struct in_force f; /* first: world_release finds the rest by it */
    int refs;          /* being in force counts as one */
    struct held *next;
};

struct world {
    struct world_settings cfg;
    struct cache *cache;
    struct admin *admin;
    struct hearing *hearing;
    /* The thread's own. */
    struct pg *pg;
    struct store_conn *conn;
    char said[512]; /* the last reason that was logged */

    pthread_mutex_t mu; /* everything below */
    pthread_cond_t wake, changed;
    bool stopping, hurry;
    struct held *current; /* NULL = no model is in force */
    struct held *all;     /* in force or held */
    struct err why;       /* why there is none */

    pthread_t thread;
};

/* ---- the model in force ---- */
static void held_free(struct held *h)
{
    union {
        const struct model *in;
        struct model *out;
    } m = {h->f.model};
    model_free(m.out);
    free(h);
}

/* With mu held. */
static void unref(struct world *w, struct held *h)
{
    if (--h->refs > 0)
        return;
    struct held **at = &w->all;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    held_free(h);
}

const struct in_force *world_hold(struct world *w)
{
    pthread_mutex_lock(&w->mu);
    struct held *h = w->current;
    if (h)
        h->refs++;
    pthread_mutex_unlock(&w->mu);
    return h ? &h->f : NULL;
}

void world_release(struct world *w, const struct in_force *f)
{
    union {
        const struct in_force *in;
        struct held *out;
    } h = {f};
    pthread_mutex_lock(&w->mu);
    unref(w, h.out);
    pthread_mutex_unlock(&w->mu);
}

size_t world_hold_all(struct world *w, const struct in_force **out, size_t max, bool *many)
{
    size_t n = 0;
    pthread_mutex_lock(&w->mu);
    struct held *h = w->all;
    for (; h && n < max; h = h->next) {
        h->refs++;
        out[n++] = &h->f;
    }
    *many = h != NULL;
    pthread_mutex_unlock(&w->mu);
    return n;
}

/* `next` may be NULL: nothing is in force then, because of `why`. */
static void put_in_force(struct world *w, struct held *next, const struct err *why)
{
    pthread_mutex_lock(&w->mu);
    struct held *before = w->current;
    if (next) {
        next->refs = 1;
        next->next = w->all;
        w->all = next;
    }
    w->current = next;
    if (why)
        w->why = *why;
    if (before)
        unref(w, before);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mu);
    if (next || before)
        world_flush(w->cache, FLUSH_MODEL);
}

/* No model is in force any more. */
static void drop(struct world *w, const struct err *why)
{
    put_in_force(w, NULL, why);
    admin_ready(w->admin, "model", false, why->text);
    if (strncmp(w->said, why->text, sizeof w->said - 1) != 0)
        log_err(LOG_LVL_WARN, "no model is in force: nothing can be decided", why, "store", w->cfg.store_name, NULL);
    snprintf(w->said, sizeof w->said, "%.511s", why->text);
}

/* ---- the thread ---- */
struct pin {
    char store_id[32], model_id[32];
};

static enum status read_pin(struct world *w, struct pin *pin, struct err *err)
{
    mono_us deadline = deadline_in_ms(CALL_MS);
    if (w->pg && !pg_alive(w->pg)) {
        pg_close(w->pg);
        w->pg = NULL;
    }
    if (!w->pg) {
        const struct pg_config pc = {
            .dsn = w->cfg.pg_dsn, .application_name = "relata inventory-lister", .watch_stop = true};
        enum status st = pg_open(&w->pg, &pc, deadline, err);
        if (st != ST_OK)
            return st;
    }
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(w->cfg.store_name)};
    enum status st = pg_query(w->pg, "lister_pin",
                              "SELECT store_id, model_id FROM relata.store WHERE name = $1 "
                              "AND store_id <> '' AND model_id <> ''",
                              params, 1, deadline, &r, err);
    if (st != ST_OK)
        return st;
    if (pg_rows(r) == 1) {
        snprintf(pin->store_id, sizeof pin->store_id, "%s", pg_text(r, 0, 0));
        snprintf(pin->model_id, sizeof pin->model_id, "%s", pg_text(r, 0, 1));
    } else {
        st = err_set(err, ST_NOT_FOUND, NULL,
                     "store \"%.100s\" is not pinned in relata.store: run 'relatactl store pin' to say which store and "
                     "model it is",
                     w->cfg.store_name);
    }
    pg_result_free(r);
    return st;
}

/* Which writers of the store live: each registers and holds a lock as long as its session (docs/sql.md). If that cannot
 * be read, what was read last stays. */
static enum status read_living(struct world *w, struct err *err)
{
    struct hearing_writer living[HEARING_WRITERS];
    struct pg_result *r = NULL;
    mono_us asked = clock_mono_us();
    const struct pg_param params[] = {pg_p_text(w->cfg.store_name)};
    enum status st = pg_query(w->pg, "lister_living",
                              "SELECT w.id, w.epoch FROM relata.session_lock l JOIN relata.writer w ON w.id = l.id "
                              "WHERE l.kind = 1380270081 AND w.store = $1",
                              params, 1, deadline_in_ms(CALL_MS), &r, err);
    if (st != ST_OK)
        return st;
    size_t n = 0;
    for (int i = 0; i < pg_rows(r) && n < HEARING_WRITERS; i++)
        living[n++] = (struct hearing_writer){pg_int(r, i, 0), pg_int(r, i, 1)};
    pg_result_free(r);
    hearing_living(w->hearing, living, n, asked);
    return ST_OK;
}

static enum status parse_model(struct held *next, const char *json, struct err *err)
{
    struct model *m;
    struct model_err why;
    if (!model_parse(&m, json, strlen(json), &why))
        return err_set(err, ST_INVALID, NULL, "model %s: %s", next->f.model_id, why.text);
    next->f.model = m;
    return ST_OK;
}

/* Read what is pinned from the store and put it in force. */
static enum status load(struct world *w, const struct pin *pin, struct err *err)
{
    char *json = NULL;
    struct held *next = calloc(1, sizeof *next);
    if (!next)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    memcpy(next->f.store_id, pin->store_id, sizeof pin->store_id);
    memcpy(next->f.model_id, pin->model_id, sizeof pin->model_id);
    metric_add(&m_model_reads, 1);
    enum status st = store_model(w->conn, pin->model_id, &json, deadline_in_ms(CALL_MS), err);
    if (st == ST_OK)
        st = parse_model(next, json, err);
    free(json);
    if (st != ST_OK) {
        free(next);
        return st;
    }
    put_in_force(w, next, NULL);
    admin_ready(w->admin, "model", true, "");
    w->said[0] = '\0';
    log_info("store and model in force", "store", w->cfg.store_name, "store_id", pin->store_id, "model_id",
             pin->model_id, NULL);
    return ST_OK;
}

/* Whether the store knows its id still; only a clear no counts against a model that is in force. */
static enum status look_at_store(struct world *w, const struct pin *pin, struct err *err)
{
    char *name = NULL;
    enum status st = store_conn_use(w->conn, pin->store_id, err);
    if (st == ST_OK)
        st = store_get(w->conn, &name, deadline_in_ms(CALL_MS), err);
    free(name);
    return st;
}

static void follow(struct world *w, const struct pin *pin)
{
    struct err err = {0};
    const struct in_force *f = world_hold(w);
    bool same = f && strcmp(f->store_id, pin->store_id) == 0 && strcmp(f->model_id, pin->model_id) == 0;
    if (f)
        world_release(w, f);
    enum status st = look_at_store(w, pin, &err);
    if (st == ST_OK && !same)
        st = load(w, pin, &err);
    if (st == ST_OK || (same && st != ST_MISSING) || st == ST_STOPPED)
        return;
    err_prefix(&err, "store %s, model %s", pin->store_id, pin->model_id);
    drop(w, &err);
}

static void step(struct world *w)
{
    struct pin pin = {0};
    struct err err = {0};
    enum status st = read_pin(w, &pin, &err);
    if (st == ST_OK)
        st = read_living(w, &err);
    if (st == ST_OK) {
        follow(w, &pin);
        return;
    }
    const struct in_force *f = st == ST_NOT_FOUND || st == ST_STOPPED ? NULL : world_hold(w);
    if (f) /* what was read last holds while the database is away */
        world_release(w, f);
    else if (st != ST_STOPPED)
        drop(w, &err);
}

static void *world_main(void *arg)
{
    struct world *w = arg;
    pthread_mutex_lock(&w->mu);
    while (!w->stopping) {
        w->hurry = false;
        pthread_mutex_unlock(&w->mu);
        step(w);
        mono_us soon = deadline_in_ms(HURRY_MS), next = deadline_in_ms(ROUND_MS);
        pthread_mutex_lock(&w->mu);
        while (!w->stopping && wait_cond(&w->wake, &w->mu, w->hurry ? soon : next))
            ;
    }
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

void world_hurry(struct world *w)
{
    pthread_mutex_lock(&w->mu);
    w->hurry = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mu);
}

/* ---- start and end ---- */
static void world_free(struct world *w)
{
    while (w->all) {
        struct held *h = w->all;
        w->all = h->next;
        held_free(h);
    }
    pg_close(w->pg);
    store_conn_free(w->conn);
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mu);
    free(w);
}

enum status world_start(struct world **out, const struct world_settings *cfg, struct store *store, struct cache *cache,
                        struct admin *admin, struct err *err)
{
    *out = NULL;
    enum status st = pg_dsn_check(cfg->pg_dsn, err);
    if (st != ST_OK)
        return st;
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    w->cfg = *cfg;
    w->cache = cache;
    w->admin = admin;
    err_set(&w->why, ST_RETRY, NULL, "relata.store has not been read yet");
    pthread_mutex_init(&w->mu, NULL);
    wait_cond_init(&w->wake);
    wait_cond_init(&w->changed);
    world_metrics_init();
    admin_ready(admin, "model", false, w->why.text);
    st = store_conn_new(&w->conn, store, "", err);
    if (st == ST_OK) {
        store_conn_heed_stop(w->conn, true);
        st = hearing_start(&w->hearing, &w->cfg, w, cache, err);
    }
    if (st == ST_OK && pthread_create(&w->thread, NULL, world_main, w) != 0)
        st = err_set(err, ST_NOMEM, NULL, "no thread could be started");
    if (st != ST_OK) {
        hearing_stop(w->hearing);
        world_free(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

void world_stop(struct world *w)
{
    if (!w)
        return;
    hearing_stop(w->hearing);
    pthread_mutex_lock(&w->mu);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mu);
    pthread_join(w->thread, NULL);
    world_free(w);
}

enum status world_wait(struct world *w, mono_us deadline, struct err *err)
{
    enum status st = ST_OK;
    pthread_mutex_lock(&w->mu);
    while (!w->current && st == ST_OK) {
        (void)wait_cond(&w->changed, &w->mu, deadline_in_ms(100));
        if (w->current)
            break;
        if (stop_requested())
            st = err_set(err, ST_STOPPED, NULL, "stopped while waiting for a model");
        else if (clock_mono_us() >= deadline)
            st = err_set(err, ST_DEADLINE, w->why.code, "no model is in force: %s", w->why.text);
    }
    pthread_mutex_unlock(&w->mu);
    return st;
}
