/* lister_helpers.h - collections declared and checked, for tests of the lister's SQL. */
#ifndef RELATA_TESTS_LISTER_HELPERS_H
#define RELATA_TESTS_LISTER_HELPERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/collections/collection.h"
#include "inventory-lister/pages/keyset.h"
#include "tests/harness/harness.h"

#define DECLARE_MAX 32

static inline struct model *lister_model(void)
{
    static const char json[] =
        "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"thing\",\"relations\":"
        "{\"viewer\":{\"this\":{}},\"editor\":{\"this\":{}}},\"metadata\":{\"relations\":{"
        "\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"}]},"
        "\"editor\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}}]}";
    struct model_err why;
    struct model *m = NULL;

    if (!model_parse(&m, json, sizeof json - 1, &why))
        fail_msg("%s", why.text);
    return m;
}

/* "t.table = public.t\nt.id = id\n.." as from relata.conf from line 1 on, parsed and checked through `pg`. */
static inline enum status lister_declare(struct collections *out, struct pg *pg, const char *text, struct err *err)
{
    struct cfg_map_item items[DECLARE_MAX];
    char origins[DECLARE_MAX][32], *copy = strdup(text), *save = NULL;
    struct cfg_map map = {.items = items};
    struct model *m = lister_model();
    enum status st;

    assert_non_null(copy);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *value = strstr(line, " = ");

        if (!value || map.len == DECLARE_MAX)
            fail_msg("cannot declare: %s", line);
        *value = '\0';
        snprintf(origins[map.len], sizeof origins[0], "relata.conf:%zu", map.len + 1);
        items[map.len] = (struct cfg_map_item){line, value + 3, origins[map.len]};
        map.len++;
    }
    *err = (struct err){0};
    st = collections_parse(out, &map, err);
    if (st == ST_OK)
        st = collections_check(out, pg, m, deadline_in_ms(harness_ms(20000)), err);
    model_free(m);
    free(copy);
    return st;
}

/* The one collection of a declaration that must be good. Free with lister_collection_free. */
static inline const struct collection *lister_collection(struct harness *h, const char *text)
{
    struct collections cs;
    struct err err;

    if (lister_declare(&cs, h->pg, text, &err) != ST_OK)
        fail_msg("%s", err.text);
    return cs.items;
}

static inline void lister_collection_free(const struct collection *c)
{
    struct collections cs = {.items = (struct collection *)(uintptr_t)c, .len = 1};

    collections_free(&cs);
}

/* A walk through all pages. */
struct walk {
    struct pg *pg;
    const struct collection *c;
    struct order order;
    struct filters filters;
    const char *bound;
    int64_t limit;
    struct position at; /* n = 0: at the start */
    struct buf ids;     /* "1,2,3" */
    int rows, pages;
};

static inline void walk_init(struct walk *w, struct pg *pg, const struct collection *c, const char *order,
                             int64_t limit)
{
    struct err err;

    memset(w, 0, sizeof *w);
    w->pg = pg;
    w->c = c;
    w->limit = limit;
    buf_init(&w->ids, 16 << 20);
    if (order_parse(c, order, &w->order, &err) != ST_OK)
        fail_msg("%s", err.text);
}

static inline void walk_release(struct walk *w)
{
    position_free(&w->at);
    filters_free(&w->filters);
    buf_release(&w->ids);
}

static inline size_t shown_columns(const struct collection *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->ncolumns; i++)
        n += c->columns[i].shown;
    return n;
}

/* The position of a row of a result. */
static inline void walk_move(struct walk *w, const struct pg_result *r, int row)
{
    int first = (int)shown_columns(w->c) + 1;

    position_free(&w->at);
    w->at.n = w->order.len;
    for (size_t i = 0; i < w->at.n; i++)
        w->at.values[i] = pg_is_null(r, row, first + (int)i) ? NULL : strdup(pg_text(r, row, first + (int)i));
}

/* The next page; its number of rows. */
static inline int walk_page(struct walk *w)
{
    struct statement s;
    struct pg_result *r = NULL;
    struct err err = {0};
    int n, id = (int)shown_columns(w->c);

    if (keyset_build(&s, w->c, &w->order, &w->filters, w->bound, w->at.n ? &w->at : NULL, w->limit, &err) != ST_OK)
        fail_msg("%s", err.text);
    if (pg_query(w->pg, s.name, buf_str(&s.sql), s.params, s.nparams, deadline_in_ms(harness_ms(20000)), &r, &err) !=
        ST_OK)
        fail_msg("%s: %s\n%s", err.code, err.text, buf_str(&s.sql));
    n = pg_rows(r);
    for (int i = 0; i < n; i++)
        buf_addf(&w->ids, "%s%s", w->ids.len ? "," : "", pg_text(r, i, id));
    if (n > 0)
        walk_move(w, r, n - 1);
    w->rows += n;
    w->pages++;
    pg_result_free(r);
    statement_free(&s);
    return n;
}

/* To the end: fails if there is none. */
static inline const char *walk_all(struct walk *w)
{
    while (walk_page(w) == w->limit) {
        if (w->rows > 1000000)
            fail_msg("no end after %d rows: %.500s", w->rows, buf_str(&w->ids));
    }
    return buf_str(&w->ids);
}

#endif
