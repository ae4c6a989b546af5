#include "drift-checker/repair/repair.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"

#define BATCH 100
#define TRIES 5

void repair_count(const struct findings *f, struct repairs *out)
{
    *out = (struct repairs){.wanted = (int64_t)f->len};
    for (size_t i = 0; i < f->len; i++)
        out->deletions += f->items[i].deletes;
}

enum status repair_allowed(const struct settings *cfg, const struct findings *f, int64_t ledger, struct repairs *out,
                           struct err *err)
{
    struct cap repairs, deletions;
    enum status st = cap_parse(cfg->max_repairs, &repairs, err);

    if (st == ST_OK)
        st = cap_parse(cfg->max_deletions, &deletions, err);
    if (st != ST_OK)
        return st;
    repair_count(f, out);
    if (f->more)
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "there are more differences than audit.max_findings (%lld): nothing is repaired",
                       (long long)cfg->max_findings);
    if (out->wanted > cap_of(&repairs, ledger))
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "%lld repairs are needed and --max-repairs %s allows %lld of %lld tuples: nothing is repaired",
                       (long long)out->wanted, cfg->max_repairs, (long long)cap_of(&repairs, ledger),
                       (long long)ledger);
    if (out->deletions > cap_of(&deletions, ledger))
        return err_set(
            err, ST_INVALID, REPAIR_REFUSED,
            "%lld deletions are needed and --max-deletions %s allows %lld of %lld tuples: nothing is repaired",
            (long long)out->deletions, cfg->max_deletions, (long long)cap_of(&deletions, ledger), (long long)ledger);
    return ST_OK;
}

/* ---- one transaction ---- */

struct batch {
    const struct compare_job *job;
    const struct sources *sources;
    struct finding **items;
    size_t n;
    struct buf part[3], ids;
    char actor[48];
};

static mono_us soon(const struct batch *b)
{
    return deadline_in_ms(b->job->cfg->statement_timeout_ms);
}

static void keys_of(struct batch *b)
{
    for (int i = 0; i < 3; i++)
        pg_array_begin(&b->part[i]);
    pg_array_begin(&b->ids);
    for (size_t i = 0; i < b->n; i++) {
        pg_array_add(&b->part[0], b->items[i]->key->object);
        pg_array_add(&b->part[1], b->items[i]->key->relation);
        pg_array_add(&b->part[2], b->items[i]->key->subject);
        pg_array_add_int(&b->ids, b->items[i]->id);
    }
    for (int i = 0; i < 3; i++)
        pg_array_end(&b->part[i]);
    pg_array_end(&b->ids);
}

static enum status on_keys(struct batch *b, const char *sql, bool actor, struct pg_result **r, struct err *err)
{
    const struct pg_param params[] = {pg_p_buf(&b->part[0]), pg_p_buf(&b->part[1]), pg_p_buf(&b->part[2]),
                                      pg_p_text(b->job->cfg->store.name), pg_p_text(b->actor)};

    return pg_query(b->job->pg, NULL, sql, params, actor ? 5 : 4, soon(b), r, err);
}

/* What the inventory says of locked keys, as arrays beside them. */
static enum status emit(struct batch *b, struct err *err)
{
    struct pg_result *r = NULL;
    struct buf sql, present, names, contexts;
    int at = 0;
    enum status st = on_keys(b, "SELECT relata.audit_lock($4, $1, $2, $3)", false, NULL, err);

    buf_init(&sql, 1 << 20);
    buf_init(&present, 1 << 16);
    buf_init(&names, 1 << 20);
    buf_init(&contexts, 1 << 24);
    compare_yields_sql(b->sources, b->job->cfg, &sql);
    if (st == ST_OK)
        st = on_keys(b, buf_str(&sql), false, &r, err);
    pg_array_begin(&present);
    pg_array_begin(&names);
    pg_array_begin(&contexts);
    for (size_t i = 0; st == ST_OK && i < b->n; i++) {
        bool here;

        while (at < pg_rows(r) && pg_int(r, at, 0) <= (int64_t)i)
            at++; /* a further row of the key before */
        here = at < pg_rows(r) && pg_int(r, at, 0) == (int64_t)i + 1;
        pg_array_add(&present, here ? "t" : "f");
        pg_array_add(&names, here && !pg_is_null(r, at, 1) ? pg_text(r, at, 1) : NULL);
        pg_array_add(&contexts, here && !pg_is_null(r, at, 2) ? pg_text(r, at, 2) : NULL);
    }
    pg_array_end(&present);
    pg_array_end(&names);
    pg_array_end(&contexts);
    if (st == ST_OK) {
        const struct pg_param params[] = {pg_p_text(b->job->cfg->store.name),
                                          pg_p_buf(&b->part[0]),
                                          pg_p_buf(&b->part[1]),
                                          pg_p_buf(&b->part[2]),
                                          pg_p_buf(&present),
                                          pg_p_buf(&names),
                                          pg_p_buf(&contexts),
                                          pg_p_text(b->actor)};

        st = pg_query(b->job->pg, NULL, "SELECT relata.audit_emit($1, $2, $3, $4, $5, $6, $7, $8)", params, 8, soon(b),
                      NULL, err);
    }
    pg_result_free(r);
    buf_release(&sql);
    buf_release(&present);
    buf_release(&names);
    buf_release(&contexts);
    return st;
}

static enum status change(struct batch *b, struct err *err)
{
    switch (b->items[0]->action) {
    case ACTION_EMIT:
        return emit(b, err);
    case ACTION_DELETE:
        return on_keys(b, "SELECT relata.delete_tuples($1, $2, $3, $4, $5)", true, NULL, err);
    case ACTION_TOUCH:
    default:
        return on_keys(b, "SELECT relata.touch_tuples($1, $2, $3, $4, $5)", true, NULL, err);
    }
}

static enum status mark(struct batch *b, struct err *err)
{
    const struct pg_param params[] = {pg_p_buf(&b->ids)};
    struct pg_result *r = NULL;
    enum status st =
        pg_query(b->job->pg, NULL,
                 "UPDATE relata.audit_finding SET repaired_at = clock_timestamp(), token = relata.token() WHERE "
                 "id = ANY ($1::bigint[]) RETURNING token",
                 params, 1, soon(b), &r, err);

    if (st == ST_OK && pg_rows(r) != (int)b->n)
        st = err_set(err, ST_FATAL, NULL, "the record has %d of %zu findings", pg_rows(r), b->n);
    for (size_t i = 0; st == ST_OK && i < b->n; i++)
        (void)snprintf(b->items[i]->token, sizeof b->items[i]->token, "%s", pg_text(r, 0, 0));
    pg_result_free(r);
    return st;
}

static enum status transaction(struct batch *b, struct err *err)
{
    struct err ignored;
    enum status st = pg_exec(b->job->pg, "BEGIN ISOLATION LEVEL READ COMMITTED", soon(b), err);

    if (st == ST_OK)
        st = change(b, err);
    if (st == ST_OK)
        st = mark(b, err);
    if (st == ST_OK)
        st = pg_exec(b->job->pg, "COMMIT", soon(b), err);
    if (st != ST_OK && pg_alive(b->job->pg) && pg_exec(b->job->pg, "ROLLBACK", soon(b), &ignored) != ST_OK)
        return st;
    return st;
}

/* A deadlock with a service, or the like, is tried again; an outcome that is not known is told. */
static enum status run_batch(struct batch *b, struct err *err)
{
    enum status st = ST_OK;

    keys_of(b);
    for (unsigned i = 0; i < TRIES; i++) {
        st = transaction(b, err);
        if (st != ST_RETRY || !pg_alive(b->job->pg))
            break;
        if (stop_sleep_until(deadline_in_ms(backoff_ms(i, 50, 1000))) != ST_OK)
            return err_set(err, ST_STOPPED, NULL, "interrupted");
    }
    for (size_t i = 0; st == ST_OK && i < b->n; i++)
        b->items[i]->repaired = true;
    return st;
}

static int by_action(const void *a, const void *b)
{
    const struct finding *x = *(struct finding *const *)a, *y = *(struct finding *const *)b;

    return x->action != y->action ? (int)x->action - (int)y->action : tuple_key_cmp(x->key, y->key);
}

enum status repair_run(const struct compare_job *job, const struct sources *sources, struct findings *f, int64_t run,
                       struct repairs *out, struct err *err)
{
    struct finding **items = calloc(f->len + 1, sizeof *items);
    struct batch b = {.job = job, .sources = sources};
    enum status st = items ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    for (size_t i = 0; items && i < f->len; i++)
        items[i] = &f->items[i];
    if (items && f->len)
        qsort(items, f->len, sizeof *items, by_action);
    for (int i = 0; i < 3; i++)
        buf_init(&b.part[i], 1 << 20);
    buf_init(&b.ids, 1 << 16);
    (void)snprintf(b.actor, sizeof b.actor, "drift-checker run %lld", (long long)run);
    for (size_t at = 0; at < f->len && st == ST_OK; at += b.n) {
        b.items = items + at;
        for (b.n = 1; b.n < BATCH && at + b.n < f->len && items[at + b.n]->action == items[at]->action; b.n++)
            ;
        if (stop_requested())
            st = err_set(err, ST_STOPPED, NULL, "interrupted");
        else
            st = run_batch(&b, err);
        if (st == ST_OK)
            out->done += (int64_t)b.n;
    }
    if (st != ST_OK)
        (void)err_prefix(err, "repaired %lld of %lld", (long long)out->done, (long long)out->wanted);
    for (int i = 0; i < 3; i++)
        buf_release(&b.part[i]);
    buf_release(&b.ids);
    free(items);
    return st;
}
