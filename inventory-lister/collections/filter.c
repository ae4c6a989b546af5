/* filter.c - conditions of a request, from its parameters. */
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/collections/internal.h"

#define PREFIX "filter."

static const char *const op_names[] = {[F_EQ] = "eq",   [F_IN] = "in", [F_PREFIX] = "prefix", [F_LT] = "lt",
                                       [F_LTE] = "lte", [F_GT] = "gt", [F_GTE] = "gte",       [F_NULL] = "null"};
#define OPS (sizeof op_names / sizeof *op_names)

static enum status no_memory(struct err *err)
{
    return err_set(err, ST_NOMEM, NULL, "no memory for a filter");
}

static enum status not_filterable(const struct collection *c, const char *name, struct err *err)
{
    struct buf known;

    buf_init(&known, 600);
    columns_join(c, offsetof(struct column, filterable), &known);
    err_set(err, ST_INVALID, NULL, "\"%.100s\" cannot be filtered: these can: %s", name, buf_str(&known));
    buf_release(&known);
    return ST_INVALID;
}

/* "status", "status.in", or a column whose own name holds a dot. */
static enum status name_parse(const struct collection *c, const char *name, int *column, enum filter_op *op,
                              struct err *err)
{
    const char *dot = strrchr(name, '.');
    size_t i = 0;

    *op = F_EQ;
    *column = column_find(c, (struct bytes){name, strlen(name)});
    if (*column < 0 && dot) {
        *column = column_find(c, (struct bytes){name, (size_t)(dot - name)});
        while (i < OPS && strcmp(op_names[i], dot + 1) != 0)
            i++;
        *op = (enum filter_op)i;
    }
    /* Whether a column that cannot be filtered exists is nobody's business. */
    if (*column < 0 || !c->columns[*column].filterable)
        return not_filterable(c, name, err);
    if (i == OPS)
        return err_set(err, ST_INVALID, NULL,
                       "\"%.100s\" is no operator: these are eq, in, prefix, lt, lte, gt, gte, null", dot + 1);
    return ST_OK;
}

static enum status op_check(const struct column *col, enum filter_op op, const char *value, struct err *err)
{
    bool range = op == F_LT || op == F_LTE || op == F_GT || op == F_GTE;

    if (op == F_NULL && strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return err_set(err, ST_INVALID, NULL, "%s.null takes true or false", col->name);
    if (op == F_PREFIX && (col->kind != COL_TEXT || col->labels))
        return err_set(err, ST_INVALID, NULL, "\"%s\" is no text: prefix does not apply", col->name);
    if (range && col->kind == COL_BOOL)
        return err_set(err, ST_INVALID, NULL, "\"%s\" is true or false: %s does not apply", col->name, op_names[op]);
    return ST_OK;
}

static enum status value_add(const struct collection *c, struct filter *f, const char *value, struct err *err)
{
    enum status st;

    if (f->op != F_NULL && (st = column_value_check(&c->columns[f->column], value, err)) != ST_OK)
        return st;
    for (size_t i = 0; i < f->nvalues; i++) {
        if (strcmp(f->values[i], value) == 0)
            return ST_OK;
    }
    if (f->nvalues == IN_LIST_MAX)
        return err_set(err, ST_INVALID, NULL, "%s.in takes at most %d values", c->columns[f->column].name, IN_LIST_MAX);
    f->values[f->nvalues] = strdup(value);
    if (!f->values[f->nvalues])
        return no_memory(err);
    f->nvalues++;
    return ST_OK;
}

/* The next value of a list into `out`; false at the end. */
static bool in_list_next(const char **at, char *out)
{
    const char *s = *at;

    if (!s)
        return false;
    for (; *s && *s != ','; s++) {
        if (*s == '\\' && (s[1] == ',' || s[1] == '\\'))
            s++;
        *out++ = *s;
    }
    *out = '\0';
    *at = *s ? s + 1 : NULL;
    return true;
}

static enum status list_add(const struct collection *c, struct filter *f, const char *list, struct err *err)
{
    char *value = malloc(strlen(list) + 1);
    enum status st = ST_OK;

    if (!value)
        return no_memory(err);
    while (st == ST_OK && in_list_next(&list, value))
        st = value_add(c, f, value, err);
    free(value);
    return st;
}

enum status filter_add(const struct collection *c, struct filters *f, const char *name, const char *value,
                       struct err *err)
{
    struct filter *item = NULL;
    enum filter_op op;
    enum status st;
    int column;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return err_set(err, ST_INVALID, NULL, "\"%.100s\" is no filter: write filter.<column>", name);
    st = name_parse(c, name + strlen(PREFIX), &column, &op, err);
    if (st == ST_OK)
        st = op_check(&c->columns[column], op, value, err);
    if (st != ST_OK)
        return st;
    for (size_t i = 0; i < f->len; i++) {
        if (f->items[i].column == column && f->items[i].op == op)
            item = &f->items[i];
    }
    if (item && op != F_IN)
        return err_set(err, ST_INVALID, NULL, "%s.%s is given twice", c->columns[column].name, op_names[op]);
    if (!item && f->len == FILTER_MAX)
        return err_set(err, ST_INVALID, NULL, "at most %d conditions can be given", FILTER_MAX);
    if (!item) {
        item = &f->items[f->len++];
        *item = (struct filter){.column = column, .op = op};
    }
    st = op == F_IN ? list_add(c, item, value, err) : value_add(c, item, value, err);
    if (st != ST_OK && item->nvalues == 0)
        f->len--; /* a condition without a value is none */
    return st;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

static int by_column(const void *a, const void *b)
{
    const struct filter *x = a, *y = b;

    if (x->column != y->column)
        return x->column < y->column ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

void filters_sort(struct filters *f)
{
    for (size_t i = 0; i < f->len; i++)
        qsort(f->items[i].values, f->items[i].nvalues, sizeof *f->items[i].values, by_text);
    qsort(f->items, f->len, sizeof *f->items, by_column);
}

void filters_free(struct filters *f)
{
    for (size_t i = 0; i < f->len; i++) {
        for (size_t v = 0; v < f->items[i].nvalues; v++)
            free(f->items[i].values[v]);
    }
    f->len = 0;
}
