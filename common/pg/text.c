/* text.c - array literals and COPY lines. */
#include "common/pg/pg.h"

void pg_array_begin(struct buf *b)
{
    buf_clear(b);
    buf_addc(b, '{');
}

static void array_comma(struct buf *b)
{
    if (b->len > 1)
        buf_addc(b, ',');
}

void pg_array_add(struct buf *b, const char *s)
{
    array_comma(b);
    if (!s) {
        buf_adds(b, "NULL");
        return;
    }
    buf_addc(b, '"');
    while (*s) {
        size_t plain = strcspn(s, "\"\\");
        buf_add(b, s, plain);
        s += plain;
        if (*s) {
            buf_addc(b, '\\');
            buf_addc(b, *s++);
        }
    }
    buf_addc(b, '"');
}

void pg_array_add_int(struct buf *b, int64_t v)
{
    array_comma(b);
    buf_addf(b, "%lld", (long long)v);
}

void pg_array_end(struct buf *b)
{
    buf_addc(b, '}');
}

void pg_copy_escape(struct buf *b, const char *s)
{
    if (!s) {
        buf_adds(b, "\\N");
        return;
    }
    while (*s) {
        size_t plain = strcspn(s, "\\\t\n\r");
        buf_add(b, s, plain);
        s += plain;
        if (!*s)
            break;
        buf_addc(b, '\\');
        buf_addc(b, *s == '\t' ? 't' : *s == '\n' ? 'n' : *s == '\r' ? 'r' : '\\');
        s++;
    }
}

static char unescape(char c)
{
    switch (c) {
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'v':
        return '\v';
    default:
        return c;
    }
}

int pg_copy_split(char *line, size_t len, char **fields, int max)
{
    char *in = line, *end = line + len, *out = line;
    int n = 0;
    for (;;) {
        char *start = out;
        bool null = end - in >= 2 && in[0] == '\\' && in[1] == 'N' && (end - in == 2 || in[2] == '\t');
        while (in < end && *in != '\t') {
            if (*in == '\\' && in + 1 < end) {
                *out++ = unescape(in[1]);
                in += 2;
            } else {
                *out++ = *in++;
            }
        }
        bool last = in >= end;
        in++; /* the tab: what is written never passes what was read */
        *out++ = '\0';
        if (n < max)
            fields[n] = null ? NULL : start;
        n++;
        if (last)
            return n;
    }
}
