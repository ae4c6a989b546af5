/* pages.c - pages of tuples and of changes, from their tables. */
#include "authz-store/durable/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pages_time(int64_t us, char out[CLOCK_TEXT_MAX])
{
    clock_text(us, us % 1000 ? 6 : 3, out);
    char *dot = strchr(out, '.');
    if (dot && us % 1000000 == 0)
        memcpy(dot, "Z", 2);
}

/* {"user", "relation", "object", "condition"}; columns 0 .. 4 are object, relation, subject, condition, context. */
static json_t *tuple_key(const struct pg_result *r, int row)
{
    json_t *condition = json_null();

    if (!pg_is_null(r, row, 3)) {
        json_t *context = pg_is_null(r, row, 4)
                              ? json_object()
                              : json_loadb(pg_text(r, row, 4), pg_len(r, row, 4), JSON_ALLOW_NUL, NULL);
        condition = json_pack("{s:s, s:o}", "name", pg_text(r, row, 3), "context", context);
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "user", pg_text(r, row, 2), "relation", pg_text(r, row, 1), "object",
                     pg_text(r, row, 0), "condition", condition);
}

static json_t *tuples_json(const struct pg_result *r, int n)
{
    json_t *out = json_array();
    char time[CLOCK_TEXT_MAX];

    for (int i = 0; i < n; i++) {
        pages_time(pg_int(r, i, 5), time);
        if (json_array_append_new(out, json_pack("{s:o, s:s}", "key", tuple_key(r, i), "timestamp", time)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Grows by the conditions that there are; parameters in the same order. */
struct where {
    struct buf sql;
    struct pg_param params[12];
    int n;
};

static int where_param(struct where *w, const char *value)
{
    w->params[w->n] = (struct pg_param){.data = value, .len = strlen(value)};
    return ++w->n;
}

static void where_equal(struct where *w, const char *column, const char *value)
{
    if (*value)
        buf_addf(&w->sql, " AND %s = $%d", column, where_param(w, value));
}

/* ';' is the byte after ':'. */
static void where_type(struct where *w, const char *type, char end[300])
{
    (void)snprintf(end, 300, "%s", type);
    end[strlen(end) - 1] = ';';
    buf_addf(&w->sql, " AND object >= $%d", where_param(w, type));
    buf_addf(&w->sql, " AND object < $%d", where_param(w, end));
}

enum status pages_read(struct pg *pg, const struct pages_read *what, json_t **out, struct pages_last *last,
                       mono_us deadline, struct err *err)
{
    struct where w = {.n = 0};
    struct pg_result *r = NULL;
    char type_end[300];
    size_t len = strlen(what->object);

    *out = NULL;
    *last = (struct pages_last){0};
    buf_init(&w.sql, 4096);
    buf_adds(
        &w.sql,
        "SELECT object, relation, subject, condition, context, (extract(epoch FROM inserted_at) * 1000000)::bigint "
        "FROM relata_store.tuple WHERE true");
    where_equal(&w, "store", what->store);
    if (len && what->object[len - 1] == ':' && len < sizeof type_end)
        where_type(&w, what->object, type_end);
    else
        where_equal(&w, "object", what->object);
    where_equal(&w, "relation", what->relation);
    where_equal(&w, "subject", what->subject);
    if (what->after) {
        int first = where_param(&w, what->after->object);
        (void)where_param(&w, what->after->relation);
        (void)where_param(&w, what->after->subject);
        buf_addf(&w.sql, " AND (object, relation, subject) > ($%d, $%d, $%d)", first, first + 1, first + 2);
    }
    buf_addf(&w.sql, " ORDER BY object, relation, subject LIMIT %u", what->size + 1);
    enum status st = pg_query(pg, NULL, buf_str(&w.sql), w.params, w.n, deadline, &r, err);
    int n = st == ST_OK ? pg_rows(r) : 0;
    if (st == ST_OK && n > (int)what->size) {
        n = (int)what->size;
        *last = (struct pages_last){strdup(pg_text(r, n - 1, 0)), strdup(pg_text(r, n - 1, 1)),
                                    strdup(pg_text(r, n - 1, 2))};
    }
    if (st == ST_OK && !(*out = tuples_json(r, n)))
        st = err_set(err, ST_NOMEM, NULL, "no memory for a page");
    pg_result_free(r);
    buf_release(&w.sql);
    return st;
}

void pages_last_free(struct pages_last *last)
{
    free(last->object);
    free(last->relation);
    free(last->subject);
    *last = (struct pages_last){0};
}

static json_t *changes_json(const struct pg_result *r)
{
    json_t *out = json_array();
    char time[CLOCK_TEXT_MAX];

    for (int i = 0; i < pg_rows(r); i++) {
        pages_time(pg_int(r, i, 5), time);
        const char *operation = pg_bool(r, i, 6) ? "TUPLE_OPERATION_DELETE" : "TUPLE_OPERATION_WRITE";
        if (json_array_append_new(out, json_pack("{s:o, s:s, s:s}", "tuple_key", tuple_key(r, i), "operation",
                                                 operation, "timestamp", time)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

enum status pages_changes(struct pg *pg, const char *store, const char *type, int64_t after, unsigned size,
                          json_t **out, int64_t *last, mono_us deadline, struct err *err)
{
    char id[24], low[300], high[300];
    struct pg_result *r = NULL;
    struct where w = {.n = 0};

    *out = NULL;
    *last = after;
    buf_init(&w.sql, 4096);
    buf_adds(&w.sql,
             "SELECT object, relation, subject, condition, context, id, removed FROM relata_store.change WHERE true");
    where_equal(&w, "store", store);
    w.params[w.n] = pg_p_int(after, id);
    buf_addf(&w.sql, " AND id > $%d::bigint", ++w.n);
    if (type && *type) {
        (void)snprintf(low, sizeof low, "%s:", type);
        where_type(&w, low, high);
    }
    buf_addf(&w.sql, " ORDER BY id LIMIT %u", size);
    enum status st = pg_query(pg, NULL, buf_str(&w.sql), w.params, w.n, deadline, &r, err);
    if (st == ST_OK && pg_rows(r))
        *last = pg_int(r, pg_rows(r) - 1, 5);
    if (st == ST_OK && !(*out = changes_json(r)))
        st = err_set(err, ST_NOMEM, NULL, "no memory for a page");
    pg_result_free(r);
    buf_release(&w.sql);
    return st;
}
