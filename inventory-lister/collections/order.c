/* order.c - orders of rows, from their text. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "inventory-lister/collections/internal.h"

static enum status not_sortable(const struct collection *c, struct bytes name, struct err *err)
{
    struct buf known;

    buf_init(&known, 600);
    columns_join(c, offsetof(struct column, sortable), &known);
    err_set(err, ST_INVALID, NULL, "\"%.*s\" cannot be sorted: these can: %s", (int)(name.len > 100 ? 100 : name.len),
            name.data, buf_str(&known));
    buf_release(&known);
    return ST_INVALID;
}

/* "-created_at", "created_at desc", "created_at asc", "created_at" */
static enum status key_parse(const struct collection *c, struct bytes item, struct sort_key *out, struct err *err)
{
    struct bytes name = item, word = {0};
    bool minus = item.len > 0 && item.data[0] == '-';

    out->descending = minus;
    if (minus)
        name = (struct bytes){item.data + 1, item.len - 1};
    for (size_t i = 0; i < name.len; i++) {
        if (isspace((unsigned char)name.data[i])) {
            word = (struct bytes){name.data + i, name.len - i};
            name.len = i;
        }
    }
    while (word.len > 0 && isspace((unsigned char)*word.data))
        word = (struct bytes){word.data + 1, word.len - 1};
    if (word.len == 4 && strncasecmp(word.data, "desc", 4) == 0 && !minus)
        out->descending = true;
    else if (word.len > 0 && !(word.len == 3 && strncasecmp(word.data, "asc", 3) == 0 && !minus))
        return err_set(err, ST_INVALID, NULL, "\"%.*s\" is no order: write \"-column\", \"column\" or \"column desc\"",
                       (int)(item.len > 100 ? 100 : item.len), item.data);
    out->column = column_find(c, name);
    if (out->column < 0 || !c->columns[out->column].sortable)
        return not_sortable(c, name, err);
    return ST_OK;
}

static bool is_blank(const char *s)
{
    return s[strspn(s, " \t\r\n")] == '\0';
}

enum status order_parse(const struct collection *c, const char *text, struct order *out, struct err *err)
{
    struct bytes item;
    bool has_id = false;

    if (is_blank(text) && c->order) {
        *out = *c->order;
        return ST_OK;
    }
    *out = (struct order){0};
    while (list_next(&text, &item)) {
        struct sort_key key = {0};
        enum status st = key_parse(c, item, &key, err);

        if (st != ST_OK)
            return st;
        if (has_id) /* the id is unique: nothing is left to be ordered */
            continue;
        for (size_t i = 0; i < out->len; i++) {
            if (out->keys[i].column == key.column)
                return err_set(err, ST_INVALID, NULL, "\"%s\" is named twice in the order",
                               c->columns[key.column].name);
        }
        has_id = key.column == c->id;
        if (out->len == SORT_MAX && !has_id)
            return err_set(err, ST_INVALID, NULL, "at most %d columns can be sorted by", SORT_MAX);
        out->keys[out->len++] = key;
    }
    if (!has_id) {
        out->keys[out->len] = (struct sort_key){c->id, out->keys[out->len - 1].descending};
        out->len++;
    }
    return ST_OK;
}
