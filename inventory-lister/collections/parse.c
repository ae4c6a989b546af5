/* parse.c - declarations of collections, as the configuration gives them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/collections/internal.h"

#define NAME_MAX_BYTES 64
#define COLUMNS_MAX 200

static const char *const property_names[P_COUNT] = {
    [P_TABLE] = "table",         [P_TYPE] = "type",   [P_ID] = "id",         [P_COLUMNS] = "columns",
    [P_SORT] = "sort",           [P_ORDER] = "order", [P_FILTER] = "filter", [P_RELATION] = "relation",
    [P_RELATIONS] = "relations", [P_WHERE] = "where", [P_BOUND] = "bound",   [P_CLAIM] = "claim",
    [P_UNIQUE_ID] = "unique_id"};

static enum status no_memory(struct err *err)
{
    return err_set(err, ST_NOMEM, NULL, "no memory for collections");
}

/* ---- lists and look-ups ---- */

bool list_next(const char **at, struct bytes *item)
{
    const char *s = *at, *end;

    if (!s)
        return false;
    end = s + strcspn(s, ",");
    *at = *end ? end + 1 : NULL;
    while (s < end && isspace((unsigned char)*s))
        s++;
    while (end > s && isspace((unsigned char)end[-1]))
        end--;
    *item = (struct bytes){s, (size_t)(end - s)};
    return true;
}

int column_find(const struct collection *c, struct bytes name)
{
    for (size_t i = 0; i < c->ncolumns; i++) {
        if (strlen(c->columns[i].name) == name.len && memcmp(c->columns[i].name, name.data, name.len) == 0)
            return (int)i;
    }
    return -1;
}

static bool list_has(const char *list, const char *name)
{
    struct bytes item;

    while (list_next(&list, &item)) {
        if (item.len == strlen(name) && memcmp(item.data, name, item.len) == 0)
            return true;
    }
    return false;
}

const char *column_origin(const struct collection *c, const char *name)
{
    static const enum property lists[] = {P_ID, P_COLUMNS, P_SORT, P_FILTER, P_WHERE, P_BOUND};
    const struct declaration *d = c->declared;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (list_has(d->values[lists[i]], name))
            return d->origins[lists[i]];
    }
    return d->origins[P_TABLE];
}

void columns_join(const struct collection *c, size_t flag_offset, struct buf *out)
{
    for (size_t i = 0; i < c->ncolumns; i++) {
        if (*(const bool *)((const char *)&c->columns[i] + flag_offset))
            buf_addf(out, "%s%s", out->len ? ", " : "", c->columns[i].name);
    }
}

/* ---- taking the lines ---- */

static bool name_is_fit(const char *s, size_t len)
{
    if (len == 0 || len > NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-')
            return false;
    }
    return true;
}

static struct collection *collection_named(struct collections *cs, const char *name, size_t len)
{
    struct collection *more;

    for (size_t i = 0; i < cs->len; i++) {
        if (strlen(cs->items[i].name) == len && memcmp(cs->items[i].name, name, len) == 0)
            return &cs->items[i];
    }
    more = realloc(cs->items, (cs->len + 1) * sizeof *more);
    if (!more)
        return NULL;
    cs->items = more;
    more += cs->len++;
    *more = (struct collection){.id = -1, .bound = -1, .name = strndup(name, len)};
    more->declared = calloc(1, sizeof *more->declared);
    return more->name && more->declared ? more : NULL;
}

static enum status unknown_property(const struct cfg_map_item *item, const char *given, struct err *err)
{
    char known[256] = "";
    size_t at = 0;

    for (int p = 0; p < P_COUNT; p++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", p ? ", " : "", property_names[p]);
    return err_set(err, ST_CONFIG, NULL, "%s: collection.%s: \"%s\" is no property of a collection: these are %s",
                   item->origin, item->key, given, known);
}

static enum status take_item(struct collections *cs, const struct cfg_map_item *item, struct err *err)
{
    const char *dot = strchr(item->key, '.');
    struct collection *c;
    int p = 0;

    if (!dot || !name_is_fit(item->key, (size_t)(dot - item->key)))
        return err_set(err, ST_CONFIG, NULL,
                       "%s: collection.%s: must be NAME.PROPERTY, the name of letters, digits, '_' and '-'",
                       item->origin, item->key);
    while (p < P_COUNT && strcmp(property_names[p], dot + 1) != 0)
        p++;
    if (p == P_COUNT)
        return unknown_property(item, dot + 1, err);
    c = collection_named(cs, item->key, (size_t)(dot - item->key));
    if (!c)
        return no_memory(err);
    if (c->declared->origins[p])
        return err_set(err, ST_CONFIG, NULL, "%s: collection.%s is given twice: also %s", item->origin, item->key,
                       c->declared->origins[p]);
    c->declared->origins[p] = strdup(item->origin);
    if (*item->value)
        c->declared->values[p] = strdup(item->value);
    if (!c->declared->origins[p] || (*item->value && !c->declared->values[p]))
        return no_memory(err);
    return ST_OK;
}

/* ---- making collections of them ---- */

static enum status refuse(const struct collection *c, enum property p, const char *why, const char *what,
                          struct err *err)
{
    return err_set(err, ST_CONFIG, NULL, "%s: collection.%s.%s: %s%s%s%s", c->declared->origins[p], c->name,
                   property_names[p], why, what ? " \"" : "", what ? what : "", what ? "\"" : "");
}

/* The first line of the collection, for what is missing. */
static const char *any_origin(const struct collection *c)
{
    for (int p = 0; p < P_COUNT; p++) {
        if (c->declared->origins[p])
            return c->declared->origins[p];
    }
    return "?";
}

static enum status check_required(const struct collection *c, struct err *err)
{
    static const enum property required[] = {P_TABLE, P_TYPE, P_ID, P_COLUMNS, P_RELATION};
    const struct declaration *d = c->declared;

    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        if (!d->values[required[i]])
            return err_set(err, ST_CONFIG, NULL, "%s: collection.%s.%s is required", any_origin(c), c->name,
                           property_names[required[i]]);
    }
    if (!d->values[P_BOUND] != !d->values[P_CLAIM])
        return err_set(err, ST_CONFIG, NULL, "%s: collection.%s: bound (a column) and claim (its value) go together",
                       d->origins[d->values[P_BOUND] ? P_BOUND : P_CLAIM], c->name);
    return ST_OK;
}

/* The column of that name, made if it is not there; -1 without memory. */
static int column_take(struct collection *c, struct bytes name)
{
    int at = column_find(c, name);
    struct column *more;

    if (at >= 0)
        return at;
    more = realloc(c->columns, (c->ncolumns + 1) * sizeof *more);
    if (!more)
        return -1;
    c->columns = more;
    more[c->ncolumns] = (struct column){.name = strndup(name.data, name.len), .kind = COL_OTHER};
    if (!more[c->ncolumns].name)
        return -1;
    return (int)c->ncolumns++;
}

/* Every column that the property lists gets the flag at `offset`. */
static enum status take_columns(struct collection *c, enum property p, size_t offset, struct err *err)
{
    const char *at = c->declared->values[p];
    struct bytes item;

    while (list_next(&at, &item)) {
        bool *flag;
        int i;

        if (item.len == 0)
            return refuse(c, p, "a name is empty", NULL, err);
        if (c->ncolumns >= COLUMNS_MAX)
            return refuse(c, p, "the collection has more than 200 columns", NULL, err);
        i = column_take(c, item);
        if (i < 0)
            return no_memory(err);
        flag = (bool *)((char *)&c->columns[i] + offset);
        if (*flag)
            return refuse(c, p, "named twice:", c->columns[i].name, err);
        *flag = true;
    }
    return ST_OK;
}

static enum status take_one_column(struct collection *c, enum property p, int *out, struct err *err)
{
    const char *at = c->declared->values[p];
    struct bytes item;

    if (!at)
        return ST_OK;
    if (!list_next(&at, &item) || item.len == 0 || at)
        return refuse(c, p, "must be one column", NULL, err);
    *out = column_take(c, item);
    return *out >= 0 ? ST_OK : no_memory(err);
}

static enum status take_where(struct collection *c, struct err *err)
{
    const char *at = c->declared->values[P_WHERE];
    struct bytes item;

    while (list_next(&at, &item)) {
        int *more = realloc(c->bound_null, (c->nbound_null + 1) * sizeof *more);
        int i = column_take(c, item);

        if (!more)
            return no_memory(err);
        c->bound_null = more;
        if (i < 0)
            return no_memory(err);
        if (item.len == 0)
            return refuse(c, P_WHERE, "a name is empty", NULL, err);
        c->bound_null[c->nbound_null++] = i;
    }
    return ST_OK;
}

static enum status take_relations(struct collection *c, struct err *err)
{
    const char *at = c->declared->values[P_RELATIONS];
    struct bytes item;

    while (list_next(&at, &item)) {
        char **more = realloc(c->relations, (c->nrelations + 1) * sizeof *more);

        if (!more)
            return no_memory(err);
        c->relations = more;
        if (item.len == 0)
            return refuse(c, P_RELATIONS, "a name is empty", NULL, err);
        more[c->nrelations] = strndup(item.data, item.len);
        if (!more[c->nrelations])
            return no_memory(err);
        for (size_t i = 0; i < c->nrelations; i++) {
            if (strcmp(more[i], more[c->nrelations]) == 0) {
                c->nrelations++;
                return refuse(c, P_RELATIONS, "named twice:", more[i], err);
            }
        }
        c->nrelations++;
    }
    if (c->nrelations > 0 && !list_has(c->declared->values[P_RELATIONS], c->relation))
        return refuse(c, P_RELATIONS, "does not hold the default relation", c->relation, err);
    return ST_OK;
}

static enum status take_unique(struct collection *c, struct err *err)
{
    const char *v = c->declared->values[P_UNIQUE_ID];

    if (v && strcmp(v, "yes") != 0 && strcmp(v, "no") != 0)
        return refuse(c, P_UNIQUE_ID, "must be yes or no", NULL, err);
    c->declared->unique_id = v && strcmp(v, "yes") == 0;
    return ST_OK;
}

static enum status take_order(struct collection *c, struct err *err)
{
    const char *text = c->declared->values[P_ORDER];
    struct order o = {.keys = {{.column = c->id}}, .len = 1};
    struct err why = {0};

    if (text && order_parse(c, text, &o, &why) != ST_OK)
        return refuse(c, P_ORDER, why.text, NULL, err);
    c->order = malloc(sizeof o);
    if (!c->order)
        return no_memory(err);
    *c->order = o;
    return ST_OK;
}

static enum status make_collection(struct collection *c, struct err *err)
{
    const struct declaration *d = c->declared;
    enum status st = check_required(c, err);

    if (st == ST_OK && (!strchr(d->values[P_TABLE], '.') || d->values[P_TABLE][0] == '.'))
        return refuse(c, P_TABLE, "must be named with its schema: schema.table, not", d->values[P_TABLE], err);
    if (st != ST_OK)
        return st;
    c->table = strdup(d->values[P_TABLE]);
    c->type = strdup(d->values[P_TYPE]);
    c->relation = strdup(d->values[P_RELATION]);
    c->claim = d->values[P_CLAIM] ? strdup(d->values[P_CLAIM]) : NULL;
    if (!c->table || !c->type || !c->relation || (d->values[P_CLAIM] && !c->claim))
        return no_memory(err);
    /* Shown columns come first, so that rows have them in the declared order. */
    st = take_columns(c, P_COLUMNS, offsetof(struct column, shown), err);
    if (st == ST_OK && list_has(d->values[P_COLUMNS], "relations"))
        return refuse(c, P_COLUMNS, "rows have a member of their own called", "relations", err);
    if (st == ST_OK)
        st = take_one_column(c, P_ID, &c->id, err);
    if (st == ST_OK)
        st = take_columns(c, P_SORT, offsetof(struct column, sortable), err);
    if (st == ST_OK)
        st = take_columns(c, P_FILTER, offsetof(struct column, filterable), err);
    if (st == ST_OK)
        st = take_where(c, err);
    if (st == ST_OK)
        st = take_one_column(c, P_BOUND, &c->bound, err);
    if (st != ST_OK)
        return st;
    c->columns[c->id].sortable = true;
    st = take_relations(c, err);
    if (st == ST_OK)
        st = take_unique(c, err);
    return st == ST_OK ? take_order(c, err) : st;
}

enum status collections_parse(struct collections *out, const struct cfg_map *map, struct err *err)
{
    enum status st = ST_OK;

    *out = (struct collections){0};
    for (size_t i = 0; i < map->len && st == ST_OK; i++)
        st = take_item(out, &map->items[i], err);
    for (size_t i = 0; i < out->len && st == ST_OK; i++)
        st = make_collection(&out->items[i], err);
    return st;
}

/* ---- the end ---- */

static void strings_free(char **list, size_t n)
{
    for (size_t i = 0; list && i < n; i++)
        free(list[i]);
    free(list);
}

static void collection_release(struct collection *c)
{
    for (size_t i = 0; i < c->ncolumns; i++) {
        free(c->columns[i].name);
        free(c->columns[i].quoted);
        free(c->columns[i].type);
        strings_free(c->columns[i].labels, c->columns[i].nlabels);
    }
    for (int p = 0; c->declared && p < P_COUNT; p++) {
        free(c->declared->values[p]);
        free(c->declared->origins[p]);
    }
    free(c->columns);
    free(c->declared);
    free(c->name);
    free(c->table);
    free(c->type);
    free(c->relation);
    free(c->claim);
    free(c->order);
    free(c->bound_null);
    strings_free(c->relations, c->nrelations);
}

void collections_free(struct collections *c)
{
    for (size_t i = 0; i < c->len; i++)
        collection_release(&c->items[i]);
    free(c->items);
    *c = (struct collections){0};
}

const struct collection *collection_find(const struct collections *c, const char *name)
{
    for (size_t i = 0; i < c->len; i++) {
        if (strcmp(c->items[i].name, name) == 0)
            return &c->items[i];
    }
    return NULL;
}
