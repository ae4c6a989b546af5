/*
 * Parameters of a list: the first line as order_by, the others as "filter.column.op=value". What is accepted becomes
 * SQL that holds nothing of them but names of the declaration.
 */
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/pages/keyset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *copy_of(const char *s)
{
    char *copy = strdup(s);

    if (!copy)
        abort();
    return copy;
}

/* One column of each kind; every second one may be null. */
static const struct collection *collection(void)
{
    static const struct {
        const char *name, *type;
        enum column_kind kind;
    } kinds[] = {{"id", "bigint", COL_INT},
                 {"name", "text", COL_TEXT},
                 {"at", "timestamp with time zone", COL_TIME},
                 {"local", "timestamp without time zone", COL_TIME},
                 {"n", "integer", COL_INT},
                 {"f", "double precision", COL_FLOAT},
                 {"price", "numeric", COL_NUMERIC},
                 {"live", "boolean", COL_BOOL},
                 {"day", "date", COL_DATE},
                 {"key", "uuid", COL_UUID}};
    static struct cfg_map_item items[] = {
        {(char *)(uintptr_t) "a.table", (char *)(uintptr_t) "app.t", (char *)(uintptr_t) "f:1"},
        {(char *)(uintptr_t) "a.type", (char *)(uintptr_t) "t", (char *)(uintptr_t) "f:2"},
        {(char *)(uintptr_t) "a.id", (char *)(uintptr_t) "id", (char *)(uintptr_t) "f:3"},
        {(char *)(uintptr_t) "a.columns", (char *)(uintptr_t) "id, name", (char *)(uintptr_t) "f:4"},
        {(char *)(uintptr_t) "a.relation", (char *)(uintptr_t) "viewer", (char *)(uintptr_t) "f:5"},
        {(char *)(uintptr_t) "a.sort", (char *)(uintptr_t) "name,at,local,n,f,price,live,day,key",
         (char *)(uintptr_t) "f:6"},
        {(char *)(uintptr_t) "a.filter", (char *)(uintptr_t) "name,at,local,n,f,price,live,day,key",
         (char *)(uintptr_t) "f:7"}};
    static struct collections made;
    struct cfg_map map = {items, sizeof items / sizeof *items};

    if (made.len > 0)
        return made.items;
    if (collections_parse(&made, &map, NULL) != ST_OK)
        abort();
    for (size_t i = 0; i < made.items->ncolumns; i++) {
        struct column *col = &made.items->columns[i];

        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (strcmp(kinds[k].name, col->name) != 0)
                continue;
            col->quoted = copy_of(col->name);
            col->type = copy_of(kinds[k].type);
            col->kind = kinds[k].kind;
            col->nullable = k % 2 == 1;
        }
    }
    return made.items;
}

/* 'UTC' is the only literal, "C" the only quoted name. */
static void check_sql(const struct statement *s)
{
    size_t quotes = 0, utcs = 0;

    for (const char *p = buf_str(&s->sql); *p; p++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ .,()$:\"=<>[]'", *p))
            abort();
        quotes += *p == '\'';
        utcs += strncmp(p, "'UTC'", 5) == 0;
    }
    if (quotes != 2 * utcs || s->nparams > KEYSET_PARAMS)
        abort();
}

static void check_filters(const struct filters *f, const struct statement *s)
{
    for (size_t i = 0; i < f->len; i++) {
        const struct filter *item = &f->items[i];

        if (item->nvalues == 0 || item->nvalues > IN_LIST_MAX || !collection()->columns[item->column].filterable)
            abort();
        if (item->op == F_PREFIX && s->scratch[i].len > 0 && strcmp(buf_str(&s->scratch[i]), item->values[0]) <= 0)
            abort();
    }
}

static void check_statement(const struct order *o, const struct filters *f, const struct position *after)
{
    struct statement s;

    if (keyset_build(&s, collection(), o, f, NULL, after, 51, NULL) == ST_OK) {
        check_sql(&s);
        check_filters(f, &s);
    } else if (!after) {
        abort();
    }
    statement_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *line, *save = NULL, *equals;
    struct filters *f = calloc(1, sizeof *f);
    struct position after = {0};
    struct order o;

    if (!text || !f)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    line = strtok_r(text, "\n", &save);
    if (!line || order_parse(collection(), line, &o, NULL) != ST_OK)
        o = *collection()->order;
    while ((line = strtok_r(NULL, "\n", &save)) != NULL) {
        equals = strchr(line, '=');
        if (!equals)
            continue;
        *equals = '\0';
        if (filter_add(collection(), f, line, equals + 1, NULL) == ST_OK && after.n < o.len)
            after.values[after.n++] = equals + 1;
    }
    filters_sort(f);
    check_statement(&o, f, NULL);
    after.n = o.len;
    check_statement(&o, f, &after);
    filters_free(f);
    free(f);
    free(text);
    return 0;
}
