#include "demo/life/client.h"

#include <pthread.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"
#include "demo/life/ops.h"

#define QUERY_MS 30000
#define RECONNECT_MS 60000

struct client {
    struct client_config cfg;
    pthread_t thread;
    struct pg *pg;
    struct err err;
    uint64_t random;
    unsigned names; /* given so far */
    int64_t born;   /* makes names differ from those of an earlier run */
};

static double next_random(struct client *c)
{
    /* splitmix64 */
    uint64_t z = c->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static enum status command(struct client *c, const char *sql, struct err *err)
{
    return pg_exec(c->pg, sql, deadline_in_ms(QUERY_MS), err);
}

/* The steps of one operation; *changed if rows were. */
static enum status run_op(struct client *c, const struct op *op, bool *changed, struct err *err)
{
    char a[32], b[32], name[64], previous[128] = "";
    snprintf(a, sizeof a, "%.9f", next_random(c));
    snprintf(b, sizeof b, "%.9f", next_random(c));
    snprintf(name, sizeof name, "n%llx-%u-%u", (unsigned long long)c->born, c->cfg.number, c->names++);
    for (size_t i = 0; i < OP_STEPS_MAX && op->steps[i].name; i++) {
        const struct op_step *step = &op->steps[i];
        struct pg_param params[OP_ARGS_MAX];
        int n = 0;
        for (const char *arg = step->args; *arg; arg++)
            params[n++] = pg_p_text(*arg == 'a' ? a : *arg == 'b' ? b : *arg == 'n' ? name : previous);
        struct pg_result *r = NULL;
        enum status st = pg_query(c->pg, step->name, step->sql, params, n, deadline_in_ms(QUERY_MS), &r, err);
        if (st != ST_OK)
            return st;
        int64_t rows = pg_affected(r) > pg_rows(r) ? pg_affected(r) : pg_rows(r);
        *changed |= pg_affected(r) > 0;
        if (pg_rows(r) > 0)
            snprintf(previous, sizeof previous, "%s", pg_text(r, 0, 0));
        pg_result_free(r);
        if (rows == 0)
            break;
    }
    return ST_OK;
}

/* Something that a savepoint takes back: it must leave no trace in the store. */
static enum status false_start(struct client *c, struct err *err)
{
    bool changed = false;
    enum status st = command(c, "SAVEPOINT s", err);
    if (st == ST_OK)
        st = run_op(c, op_pick(next_random(c)), &changed, err);
    if (st == ST_OK)
        st = command(c, "ROLLBACK TO s", err);
    return st;
}

static enum status transaction_id(struct client *c, uint64_t *xid, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(c->pg, "xid", "SELECT pg_current_xact_id_if_assigned()::text", NULL, 0,
                              deadline_in_ms(QUERY_MS), &r, err);
    if (st != ST_OK)
        return st;
    *xid = strtoull(pg_text(r, 0, 0), NULL, 10);
    pg_result_free(r);
    return ST_OK;
}

static enum status finish(struct client *c, const struct op *op, uint64_t xid, bool rollback, bool changed,
                          struct err *err)
{
    struct life_counts *counts = c->cfg.counts;
    struct watch *watch = c->cfg.watch;
    if (rollback) {
        if (xid)
            watch_rolled_back(watch, xid);
        atomic_fetch_add(&counts->rolled_back, 1);
        return command(c, "ROLLBACK", err);
    }
    if (xid)
        watch_committing(watch, xid);
    enum status st = command(c, "COMMIT", err);
    if (st != ST_OK) {
        if (xid)
            watch_forget(watch, xid);
        return st;
    }
    if (xid)
        watch_committed(watch, xid, clock_mono_us(), changed);
    if (changed) {
        atomic_fetch_add(&counts->committed, 1);
        atomic_fetch_add(&counts->done[op - ops], 1);
    } else {
        atomic_fetch_add(&counts->empty, 1);
    }
    return ST_OK;
}

static enum status transaction(struct client *c, struct err *err)
{
    const struct op *op = op_pick(next_random(c));
    double fate = next_random(c);
    bool changed = false;
    uint64_t xid = 0;
    enum status st = command(c, "BEGIN", err);
    if (st == ST_OK && fate < 0.05)
        st = false_start(c, err);
    if (st == ST_OK)
        st = run_op(c, op, &changed, err);
    if (st == ST_OK)
        st = transaction_id(c, &xid, err);
    if (st == ST_OK)
        st = finish(c, op, xid, fate > 0.95, changed, err);
    return st;
}

/* Counts what may happen in ordinary life and makes the connection usable again; else gives the error back. */
static enum status survive(struct client *c, enum status st, struct err *err)
{
    struct life_counts *counts = c->cfg.counts;
    if (!pg_alive(c->pg)) {
        if (status_is_retryable(st))
            atomic_fetch_add(&counts->lost, 1);
        return status_is_retryable(st) ? pg_reopen(c->pg, deadline_in_ms(RECONNECT_MS), err) : st;
    }
    bool refused = strncmp(err->code, "23", 2) == 0;
    bool collided = strcmp(err->code, "40P01") == 0 || strcmp(err->code, "40001") == 0;
    if (!refused && !collided)
        return st;
    atomic_fetch_add(refused ? &counts->refused : &counts->deadlocks, 1);
    return command(c, "ROLLBACK", err);
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    struct err err = {0};
    enum status st = ST_OK;
    double pause_us = 1e6 / c->cfg.rate;
    double next = (double)clock_mono_us() + pause_us * next_random(c);
    while (st == ST_OK && next < (double)c->cfg.until && clock_mono_us() < c->cfg.until) {
        st = stop_sleep_until((mono_us)next);
        if (st != ST_OK)
            break;
        st = transaction(c, &err);
        if (st != ST_OK)
            st = survive(c, st, &err);
        next += pause_us;
    }
    if (st != ST_OK && st != ST_STOPPED)
        c->err = err;
    return NULL;
}

enum status client_start(struct client **out, const struct client_config *cfg, struct err *err)
{
    struct pg_config pg = {.dsn = cfg->dsn, .application_name = "demo-life client", .watch_stop = true};
    struct client *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return err_set(err, ST_NOMEM, "", "no memory for a client");
    c->cfg = *cfg;
    c->random = cfg->seed * 1000003 + cfg->number;
    c->born = clock_wall_us();
    enum status st = pg_open(&c->pg, &pg, deadline_in_ms(RECONNECT_MS), err);
    if (st == ST_OK && pthread_create(&c->thread, NULL, client_main, c) != 0)
        st = err_set(err, ST_NOMEM, "", "cannot start a thread");
    if (st != ST_OK) {
        pg_close(c->pg);
        free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

enum status client_join(struct client *c, struct err *err)
{
    if (!c)
        return ST_OK;
    pthread_join(c->thread, NULL);
    enum status st = c->err.status;
    if (st != ST_OK)
        *err = c->err;
    pg_close(c->pg);
    free(c);
    return st;
}
