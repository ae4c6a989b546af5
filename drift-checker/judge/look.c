/* look.c - what ledger, inventory and store say of some tuples now. */
#include <stdlib.h>
#include <string.h>

#include "drift-checker/judge/internal.h"

#define MATCHES "x.object = k.object AND x.relation = k.relation AND x.subject = k.subject"

static const char ledger_sql[] =
    "SELECT k.n, t.present, t.version, t.condition_name, t.condition_context::text, "
    "EXISTS (SELECT FROM relata.outbox x WHERE x.store = $4 AND x.key = relata.key_hash(k.object, k.relation, "
    "k.subject) "
    "AND " MATCHES ") OR i.object IS NOT NULL, d.code || ': ' || d.reason "
    "FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k(object, relation, subject, n) "
    "LEFT JOIN relata.tuple t ON t.object = k.object AND t.relation = k.relation AND t.subject = k.subject AND t.store "
    "= "
    "$4 "
    "LEFT JOIN relata.dead_letter d ON d.store = $4 AND d.object = k.object AND d.relation = k.relation AND d.subject "
    "= "
    "k.subject AND d.closed_at IS NULL "
    "LEFT JOIN (SELECT DISTINCT f.object, f.relation, f.subject FROM relata.inflight w, unnest(w.objects, w.relations, "
    "w.subjects) AS f(object, relation, subject) WHERE w.store = $4) i ON i.object = k.object AND i.relation = "
    "k.relation "
    "AND i.subject = k.subject ORDER BY k.n";

void facts_clear(struct facts *f)
{
    holding_free(&f->expected);
    holding_free(&f->ledger);
    holding_free(&f->observed);
    free(f->reason);
    *f = (struct facts){0};
}

static char *text_or_null(const struct pg_result *r, int row, int col, bool *ok)
{
    char *copy;

    if (pg_is_null(r, row, col))
        return NULL;
    copy = strdup(pg_text(r, row, col));
    *ok = *ok && copy;
    return copy;
}

struct arrays {
    struct buf part[3];
    struct pg_param params[4];
};

static void arrays_of(struct arrays *a, const struct judge *j, struct suspect **batch, size_t n)
{
    for (int i = 0; i < 3; i++) {
        buf_init(&a->part[i], 1 << 24);
        pg_array_begin(&a->part[i]);
    }
    for (size_t i = 0; i < n; i++) {
        pg_array_add(&a->part[0], batch[i]->key->object);
        pg_array_add(&a->part[1], batch[i]->key->relation);
        pg_array_add(&a->part[2], batch[i]->key->subject);
    }
    for (int i = 0; i < 3; i++) {
        pg_array_end(&a->part[i]);
        a->params[i] = pg_p_buf(&a->part[i]);
    }
    a->params[3] = pg_p_text(j->job->cfg->store.name);
}

static void arrays_release(struct arrays *a)
{
    for (int i = 0; i < 3; i++)
        buf_release(&a->part[i]);
}

static mono_us soon(const struct judge *j)
{
    return deadline_in_ms(j->job->cfg->statement_timeout_ms);
}

static enum status ask_ledger(struct judge *j, struct suspect **batch, size_t n, struct arrays *a, bool again,
                              struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(j->job->pg, NULL, ledger_sql, a->params, 4, soon(j), &r, err);
    bool ok = true;

    if (st == ST_OK && pg_rows(r) != (int)n)
        st = err_set(err, ST_FATAL, NULL, "the ledger gave %d rows for %zu tuples", pg_rows(r), n);
    for (int i = 0; st == ST_OK && i < (int)n; i++) {
        struct facts *f = &batch[i]->facts;
        int64_t version = pg_int(r, i, 2);

        f->pending = f->pending || pg_bool(r, i, 5);
        if (again) {
            f->moved = f->moved || version != f->version || pg_bool(r, i, 1) != f->ledger.present;
            continue;
        }
        f->version = version;
        f->ledger.present = pg_bool(r, i, 1);
        if (f->ledger.present) {
            f->ledger.condition = text_or_null(r, i, 3, &ok);
            f->ledger.context = text_or_null(r, i, 4, &ok);
        }
        f->reason = text_or_null(r, i, 6, &ok);
    }
    pg_result_free(r);
    return st == ST_OK && !ok ? err_set(err, ST_NOMEM, NULL, "no memory") : st;
}

/* Asked for what it is judged by, and for what the model forbids: its repair hangs on it. */
static enum status ask_inventory(struct judge *j, struct suspect **batch, size_t n, struct arrays *a, struct err *err)
{
    struct said *said;
    bool any = false;
    enum status st;

    for (size_t i = 0; i < n; i++)
        any = any || (!unsettled(batch[i]) && (batch[i]->judged_expected || !is_allowed(j, batch[i])));
    if (!any)
        return ST_OK;
    said = calloc(n, sizeof *said);
    if (!said)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    st = inventory_ask(j->job, j->sources, a->params, n, said, err);
    for (size_t i = 0; i < n; i++) {
        batch[i]->facts.expected = said[i].holding;
        batch[i]->facts.unknown = said[i].unknown;
    }
    free(said);
    return st;
}

enum status look(struct judge *j, struct suspect **batch, size_t n, struct err *err)
{
    struct arrays a;
    enum status st;

    for (size_t i = 0; i < n; i++)
        facts_clear(&batch[i]->facts);
    arrays_of(&a, j, batch, n);
    st = ask_ledger(j, batch, n, &a, false, err);
    if (st == ST_OK)
        st = reads_run(j, batch, n, err);
    if (st == ST_OK)
        st = ask_inventory(j, batch, n, &a, err);
    if (st == ST_OK)
        st = ask_ledger(j, batch, n, &a, true, err);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        batch[i]->cause = cause_of_facts(j, batch[i]);
    arrays_release(&a);
    return st;
}
