#include "inventory-lister/pages/row_json.h"

#include <string.h>

#include "common/base/json.h"
#include "common/pg/pg.h"

static bool is_plain(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '"' || s[i] == '\\' || s[i] == 0x7f)
            return false;
    return true;
}

void json_quote(struct buf *out, const char *s, size_t len)
{
    json_t *node;

    if (is_plain(s, len)) {
        buf_addc(out, '"');
        buf_add(out, s, len);
        buf_addc(out, '"');
        return;
    }
    node = json_stringn(s, len);
    if (!node || !json_add(out, node, JSON_ENCODE_ANY))
        out->failed = true;
    json_decref(node);
}

static bool digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return true;
}

/* "2026-01-02 03:04:05.678+00" as "2026-01-02T03:04:05.678Z". What is no such time ("infinity", "... BC", years of five
 * digits) stays as it is. */
static void add_time(struct buf *out, const char *s, size_t len)
{
    bool zone = len > 3 && strcmp(s + len - 3, "+00") == 0;
    size_t end = zone ? len - 3 : len;

    if (end < 19 || !digits(s, 4) || s[4] != '-' || s[10] != ' ' || !digits(s + end - 2, 2) ||
        strspn(s + 11, "0123456789:.") < end - 11) {
        json_quote(out, s, len);
        return;
    }
    buf_addc(out, '"');
    buf_add(out, s, 10);
    buf_addc(out, 'T');
    buf_add(out, s + 11, end - 11);
    buf_adds(out, zone ? "Z\"" : "\"");
}

static void add_value(struct buf *out, const struct column *col, const char *s, size_t len)
{
    switch (col->kind) {
    case COL_INT:
    case COL_JSON:
        buf_add(out, s, len);
        break;
    case COL_FLOAT:
        if (s[0] == 'N' || s[0] == 'I' || strncmp(s, "-I", 2) == 0)
            json_quote(out, s, len);
        else
            buf_add(out, s, len);
        break;
    case COL_BOOL:
        buf_adds(out, s[0] == 't' ? "true" : "false");
        break;
    case COL_TIME:
        add_time(out, s, len);
        break;
    case COL_TEXT:
    case COL_NUMERIC:
    case COL_DATE:
    case COL_UUID:
    case COL_OTHER:
        json_quote(out, s, len);
        break;
    }
}

void row_json(struct buf *out, const struct collection *c, const struct pg_result *r, int row)
{
    int at = 0;

    buf_addc(out, '{');
    for (size_t i = 0; i < c->ncolumns; i++) {
        const struct column *col = &c->columns[i];
        if (!col->shown)
            continue;
        if (at > 0)
            buf_addc(out, ',');
        json_quote(out, col->name, strlen(col->name));
        buf_addc(out, ':');
        if (pg_is_null(r, row, at))
            buf_adds(out, "null");
        else
            add_value(out, col, pg_text(r, row, at), pg_len(r, row, at));
        at++;
    }
}

int row_json_columns(const struct collection *c)
{
    int n = 0;

    for (size_t i = 0; i < c->ncolumns; i++)
        n += c->columns[i].shown;
    return n;
}
