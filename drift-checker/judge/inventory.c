#include "drift-checker/judge/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void holding_free(struct holding *h)
{
    free(h->condition);
    free(h->context);
    *h = (struct holding){0};
}

bool holding_equal(const struct holding *a, const struct holding *b)
{
    return a->present == b->present && !a->condition == !b->condition &&
           (!a->condition || (strcmp(a->condition, b->condition) == 0 && store_context_equal(a->context, b->context)));
}

static bool copy(char **out, const struct pg_result *r, int row, int col)
{
    if (pg_is_null(r, row, col) || !*pg_text(r, row, col))
        return true;
    *out = strdup(pg_text(r, row, col));
    return *out;
}

enum status inventory_ask(const struct compare_job *job, const struct sources *sources, const struct pg_param *keys,
                          size_t n, struct said *out, struct err *err)
{
    struct pg_result *r = NULL;
    struct buf sql;
    bool fine = true;
    enum status st;

    if (!sources->len)
        return ST_OK;
    buf_init(&sql, 1 << 20);
    compare_yields_sql(sources, job->cfg, &sql);
    st = pg_query(job->pg, NULL, buf_str(&sql), keys, 4, deadline_in_ms(job->cfg->statement_timeout_ms), &r, err);
    buf_release(&sql);
    if (st != ST_OK) {
        (void)err_prefix(err, "a source of expected tuples failed");
        (void)snprintf(err->code, sizeof err->code, "expected");
    }
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        int64_t at = pg_int(r, i, 0) - 1;
        struct said *s;

        if (at < 0 || at >= (int64_t)n || (i > 0 && pg_int(r, i - 1, 0) == at + 1))
            continue; /* the first one of a key counts */
        s = &out[at];
        s->unknown = pg_bool(r, i, 3);
        if (s->unknown)
            continue;
        s->holding.present = true;
        fine = copy(&s->holding.condition, r, i, 1) && copy(&s->holding.context, r, i, 2) && fine;
    }
    pg_result_free(r);
    return st == ST_OK && !fine ? err_set(err, ST_NOMEM, NULL, "no memory") : st;
}
