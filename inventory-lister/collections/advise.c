/* advise.c - whether an index gives rows in an order, and which one would. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/pg/pg.h"
#include "inventory-lister/collections/internal.h"

/* ---- what there is ---- */

static const char index_sql[] =
    "SELECT i.indexrelid, coalesce(a.attname, ''), (i.indoption[n] & 1) = 1, (i.indoption[n] & 2) = 2, "
    "o.opcdefault AND i.indcollation[n] = coalesce(a.attcollation, 0), coalesce(pg_get_expr(i.indpred, i.indrelid), "
    "'') "
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree' "
    "CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) n JOIN pg_opclass o ON o.oid = i.indclass[n] "
    "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n] "
    "WHERE i.indrelid = $1::oid AND i.indisvalid ORDER BY i.indexrelid, n";

static struct index_shape *index_new(struct index_list *l, const char *predicate)
{
    struct index_shape *more = realloc(l->items, (l->len + 1) * sizeof *more);

    if (!more)
        return NULL;
    l->items = more;
    more += l->len++;
    *more = (struct index_shape){.predicate = strdup(predicate)};
    return more->predicate ? more : NULL;
}

static bool index_add(struct index_shape *ix, const struct pg_result *r, int row)
{
    struct index_column *col;

    if (!ix || ix->ncolumns == sizeof ix->columns / sizeof *ix->columns)
        return false;
    col = &ix->columns[ix->ncolumns];
    *col =
        (struct index_column){strdup(pg_text(r, row, 1)), pg_bool(r, row, 2), pg_bool(r, row, 3), pg_bool(r, row, 4)};
    if (!col->name)
        return false;
    ix->ncolumns++;
    return true;
}

enum status indexes_read(struct pg *pg, const char *oid, mono_us deadline, struct index_list *out, struct err *err)
{
    struct pg_param p = pg_p_text(oid);
    struct pg_result *r = NULL;
    struct index_shape *ix = NULL;
    int64_t last = -1;
    enum status st = pg_query(pg, NULL, index_sql, &p, 1, deadline, &r, err);

    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        if (pg_int(r, i, 0) != last)
            ix = index_new(out, pg_text(r, i, 5));
        last = pg_int(r, i, 0);
        if (!index_add(ix, r, i))
            st = err_set(err, ST_NOMEM, NULL, "no memory for a table's indexes");
    }
    pg_result_free(r);
    return st;
}

void index_list_free(struct index_list *l)
{
    for (size_t i = 0; i < l->len; i++) {
        for (size_t n = 0; n < l->items[i].ncolumns; n++)
            free(l->items[i].columns[n].name);
        free(l->items[i].predicate);
    }
    free(l->items);
    *l = (struct index_list){0};
}

/* ---- what is asked for ---- */

/* As pg_get_expr() writes it: (a IS NULL), ((a IS NULL) AND (b IS NULL)). */
static void null_predicate(const struct collection *c, struct buf *out)
{
    if (c->nbound_null > 1)
        buf_addc(out, '(');
    for (size_t i = 0; i < c->nbound_null; i++)
        buf_addf(out, "%s(%s IS NULL)", i ? " AND " : "", c->columns[c->bound_null[i]].quoted);
    if (c->nbound_null > 1)
        buf_addc(out, ')');
}

static bool predicate_fits(const struct collection *c, const char *predicate)
{
    struct buf b;
    bool same;

    if (*predicate == '\0')
        return true;
    buf_init(&b, 65536);
    null_predicate(c, &b);
    same = buf_ok(&b) && strcmp(buf_str(&b), predicate) == 0;
    buf_release(&b);
    return same;
}

static bool is_column(const struct index_column *ic, const struct column *col)
{
    return ic->own && strcmp(ic->name, col->name) == 0;
}

bool index_serves(const struct collection *c, const struct order *o, const struct index_shape *ix)
{
    size_t skip = c->bound >= 0 ? 1 : 0;
    bool forward = true, backward = true;

    if (!predicate_fits(c, ix->predicate) || ix->ncolumns < skip + o->len)
        return false;
    if (skip && !is_column(&ix->columns[0], &c->columns[c->bound]))
        return false;
    for (size_t i = 0; i < o->len; i++) {
        const struct index_column *ic = &ix->columns[skip + i];
        const struct column *col = &c->columns[o->keys[i].column];
        bool down = o->keys[i].descending;

        if (!is_column(ic, col))
            return false;
        forward = forward && ic->descending == down && (!col->nullable || ic->nulls_first == down);
        backward = backward && ic->descending != down && (!col->nullable || ic->nulls_first != down);
    }
    return forward || backward;
}

void index_statement(const struct collection *c, const struct order *o, bool partitioned, struct buf *out)
{
    buf_addf(out, "CREATE INDEX %sON %s (", partitioned ? "" : "CONCURRENTLY ", c->table);
    if (c->bound >= 0)
        buf_addf(out, "%s, ", c->columns[c->bound].quoted);
    for (size_t i = 0; i < o->len; i++)
        buf_addf(out, "%s%s%s", i ? ", " : "", c->columns[o->keys[i].column].quoted,
                 o->keys[i].descending ? " DESC" : "");
    buf_addc(out, ')');
    for (size_t i = 0; i < c->nbound_null; i++)
        buf_addf(out, "%s%s IS NULL", i ? " AND " : " WHERE ", c->columns[c->bound_null[i]].quoted);
}

/* ---- saying so ---- */

static bool is_served(const struct collection *c, const struct order *o, const struct index_list *indexes)
{
    for (size_t i = 0; i < indexes->len; i++) {
        if (index_serves(c, o, &indexes->items[i]))
            return true;
    }
    return false;
}

static enum status advise(const struct collection *c, const struct order *o, const struct index_list *indexes,
                          bool partitioned, struct err *err)
{
    struct buf order, statement;
    enum status st = ST_OK;

    if (is_served(c, o, indexes))
        return ST_OK;
    buf_init(&order, 2000);
    buf_init(&statement, 65536);
    for (size_t i = 0; i < o->len; i++)
        buf_addf(&order, "%s%s%s", i ? "," : "", o->keys[i].descending ? "-" : "", c->columns[o->keys[i].column].name);
    index_statement(c, o, partitioned, &statement);
    if (buf_ok(&statement))
        log_warn("no index gives rows in this order: each page sorts the table", "collection", c->name, "order",
                 buf_str(&order), "create", buf_str(&statement), NULL);
    else
        st = err_set(err, ST_NOMEM, NULL, "no memory for the statement of an index");
    buf_release(&order);
    buf_release(&statement);
    return st;
}

enum status indexes_advise(const struct collection *c, const struct index_list *indexes, bool partitioned,
                           struct err *err)
{
    enum status st = advise(c, c->order, indexes, partitioned, err);

    for (size_t i = 0; i < c->ncolumns && st == ST_OK; i++) {
        struct order one = {.keys = {{.column = (int)i}, {.column = c->id}}, .len = (int)i == c->id ? 1 : 2};

        /* The default order speaks for its first column, whichever way it goes. */
        if (c->columns[i].sortable && c->order->keys[0].column != (int)i)
            st = advise(c, &one, indexes, partitioned, err);
    }
    return st;
}
