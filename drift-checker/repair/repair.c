#include "drift-checker/repair/repair.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"
#include "drift-checker/judge/inventory.h"

#define BATCH 100
#define TRIES 5

void repair_count(const struct findings *f, struct repairs *out)
{
    *out = (struct repairs){0};
    for (size_t i = 0; i < f->len; i++) {
        out->wanted += f->items[i].action != ACTION_NONE;
        out->deletions += f->items[i].deletes;
    }
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
    bool settled[BATCH]; /* what is not was left alone: it is not what was found any more */
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
    for (size_t i = 0; i < b->n; i++) {
        pg_array_add(&b->part[0], b->items[i]->key->object);
        pg_array_add(&b->part[1], b->items[i]->key->relation);
        pg_array_add(&b->part[2], b->items[i]->key->subject);
    }
    for (int i = 0; i < 3; i++)
        pg_array_end(&b->part[i]);
}

/* A statement of which $1 .. $3 are the keys. If it has a row a key, that says what is settled; otherwise all is. */
static enum status on_keys(struct batch *b, const char *sql, const struct pg_param *more, int nmore, struct err *err)
{
    struct pg_param params[9] = {pg_p_buf(&b->part[0]), pg_p_buf(&b->part[1]), pg_p_buf(&b->part[2])};
    struct pg_result *r = NULL;
    bool each = strncmp(sql, "SELECT unnest", 13) == 0;
    enum status st;

    for (int i = 0; i < nmore; i++)
        params[3 + i] = more[i];
    st = pg_query(b->job->pg, NULL, sql, params, 3 + nmore, soon(b), &r, err);
    if (st == ST_OK && each && pg_rows(r) != (int)b->n)
        st = err_set(err, ST_FATAL, NULL, "%d of %zu repairs were answered", pg_rows(r), b->n);
    for (size_t i = 0; st == ST_OK && i < b->n; i++)
        b->settled[i] = !each || pg_bool(r, (int)i, 0);
    pg_result_free(r);
    return st;
}

static enum status touch(struct batch *b, struct err *err)
{
    const struct pg_param more[] = {pg_p_text(b->job->cfg->store.name), pg_p_text(b->actor)};

    return on_keys(b, "SELECT relata.touch_tuples($1, $2, $3, $4, $5)", more, 2, err);
}

static enum status delete_invalid(struct batch *b, struct err *err)
{
    const struct compare_job *job = b->job;
    struct buf versions;
    enum status st;

    buf_init(&versions, 1 << 16);
    pg_array_begin(&versions);
    for (size_t i = 0; i < b->n; i++)
        pg_array_add_int(&versions, b->items[i]->version);
    pg_array_end(&versions);
    st = on_keys(b, "SELECT unnest(relata.audit_delete($4, $1, $2, $3, $5, $6, $7, $8))",
                 (const struct pg_param[]){pg_p_text(job->cfg->store.name), pg_p_buf(&versions),
                                           pg_p_text(job->store_id), pg_p_text(job->model_id), pg_p_text(b->actor)},
                 5, err);
    buf_release(&versions);
    return st;
}

/* What was said of the keys, as arrays beside them. */
static enum status emit_said(struct batch *b, const struct said *said, struct err *err)
{
    struct buf present, names, contexts, deletes;
    enum status st;

    buf_init(&present, 1 << 16);
    buf_init(&names, 1 << 20);
    buf_init(&contexts, 1 << 24);
    buf_init(&deletes, 1 << 16);
    pg_array_begin(&present);
    pg_array_begin(&names);
    pg_array_begin(&contexts);
    pg_array_begin(&deletes);
    for (size_t i = 0; i < b->n; i++) {
        pg_array_add(&present, said[i].unknown ? NULL : said[i].holding.present ? "t" : "f");
        pg_array_add(&names, said[i].holding.condition);
        pg_array_add(&contexts, said[i].holding.context);
        pg_array_add(&deletes, b->items[i]->deletes ? "t" : "f");
    }
    pg_array_end(&present);
    pg_array_end(&names);
    pg_array_end(&contexts);
    pg_array_end(&deletes);
    st = on_keys(b, "SELECT unnest(relata.audit_emit($4, $1, $2, $3, $5, $6, $7, $8, $9))",
                 (const struct pg_param[]){pg_p_text(b->job->cfg->store.name), pg_p_buf(&present), pg_p_buf(&names),
                                           pg_p_buf(&contexts), pg_p_buf(&deletes), pg_p_text(b->actor)},
                 6, err);
    buf_release(&present);
    buf_release(&names);
    buf_release(&contexts);
    buf_release(&deletes);
    return st;
}

static enum status emit(struct batch *b, struct err *err)
{
    const struct pg_param store = pg_p_text(b->job->cfg->store.name);
    const struct pg_param keys[] = {pg_p_buf(&b->part[0]), pg_p_buf(&b->part[1]), pg_p_buf(&b->part[2]), store};
    struct said *said = calloc(b->n, sizeof *said);
    enum status st = said ? on_keys(b, "SELECT relata.audit_lock($4, $1, $2, $3)", &store, 1, err)
                          : err_set(err, ST_NOMEM, NULL, "no memory");

    if (st == ST_OK)
        st = inventory_ask(b->job, b->sources, keys, b->n, said, err);
    if (st == ST_OK)
        st = emit_said(b, said, err);
    for (size_t i = 0; said && i < b->n; i++)
        holding_free(&said[i].holding);
    free(said);
    return st;
}

/* May be interrupted: it is rolled back then. */
static enum status change(struct batch *b, struct err *err)
{
    enum status st;

    pg_heed(b->job->pg, stop_flag());
    switch (b->items[0]->action) {
    case ACTION_EMIT:
        st = emit(b, err);
        break;
    case ACTION_DELETE:
        st = delete_invalid(b, err);
        break;
    case ACTION_TOUCH:
    case ACTION_NONE:
    default:
        st = touch(b, err);
        break;
    }
    pg_heed(b->job->pg, NULL);
    return st;
}

static enum status mark(struct batch *b, struct err *err)
{
    struct pg_result *r = NULL;
    size_t n = 0;
    enum status st;

    pg_array_begin(&b->ids);
    for (size_t i = 0; i < b->n; i++) {
        if (b->settled[i])
            pg_array_add_int(&b->ids, b->items[i]->id);
        n += b->settled[i];
    }
    pg_array_end(&b->ids);
    if (!n)
        return ST_OK;
    st = pg_query(b->job->pg, NULL,
                  "UPDATE relata.audit_finding SET repaired_at = clock_timestamp(), token = relata.token() WHERE "
                  "id = ANY ($1::bigint[]) RETURNING token",
                  (const struct pg_param[]){pg_p_buf(&b->ids)}, 1, soon(b), &r, err);
    if (st == ST_OK && pg_rows(r) != (int)n)
        st = err_set(err, ST_FATAL, NULL, "the record has %d of %zu findings", pg_rows(r), n);
    for (size_t i = 0; st == ST_OK && i < b->n; i++) {
        if (b->settled[i])
            (void)snprintf(b->items[i]->token, sizeof b->items[i]->token, "%s", pg_text(r, 0, 0));
    }
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
        b->items[i]->repaired = b->settled[i];
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
    size_t n = 0;

    for (size_t i = 0; items && i < f->len; i++) {
        if (f->items[i].action != ACTION_NONE)
            items[n++] = &f->items[i];
    }
    if (n)
        qsort(items, n, sizeof *items, by_action);
    for (int i = 0; i < 3; i++)
        buf_init(&b.part[i], 1 << 20);
    buf_init(&b.ids, 1 << 16);
    (void)snprintf(b.actor, sizeof b.actor, "drift-checker run %lld", (long long)run);
    for (size_t at = 0; at < n && st == ST_OK; at += b.n) {
        b.items = items + at;
        for (b.n = 1; b.n < BATCH && at + b.n < n && items[at + b.n]->action == items[at]->action; b.n++)
            ;
        st = stop_requested() ? err_set(err, ST_STOPPED, NULL, "interrupted") : run_batch(&b, err);
        for (size_t i = 0; st == ST_OK && i < b.n; i++)
            out->done += b.settled[i];
    }
    if (st != ST_OK)
        (void)err_prefix(err, "repaired %lld of %lld", (long long)out->done, (long long)out->wanted);
    for (int i = 0; i < 3; i++)
        buf_release(&b.part[i]);
    buf_release(&b.ids);
    free(items);
    return st;
}
