/* text.c - array literals, their binary form, and COPY lines. */
#include <endian.h>

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

/* Binary form of a one-dimensional array, all numbers in network order: header, then length and bytes of each element.
 */
struct bin_header {
    uint32_t dimensions, has_null, elem, len, lower_bound;
};

static void put_u32(struct buf *b, uint32_t v)
{
    v = htobe32(v);
    buf_add(b, &v, sizeof v);
}

/* The header's `len` counts in the host's order until the end. */
void pg_bin_begin(struct buf *b, enum pg_elem elem)
{
    struct bin_header h = {htobe32(1), 0, htobe32((uint32_t)elem), 0, htobe32(1)};
    buf_clear(b);
    buf_add(b, &h, sizeof h);
}

static struct bin_header *bin_header(struct buf *b)
{
    return buf_ok(b) ? (struct bin_header *)(void *)b->data : NULL;
}

static void bin_count(struct buf *b, bool null)
{
    struct bin_header *h = bin_header(b);
    if (!h)
        return;
    h->len++;
    if (null)
        h->has_null = htobe32(1);
}

void pg_bin_add(struct buf *b, const char *s)
{
    pg_bin_add_bytes(b, s, s ? strlen(s) : 0);
}

void pg_bin_add_bytes(struct buf *b, const char *s, size_t len)
{
    put_u32(b, s ? (uint32_t)len : UINT32_MAX);
    buf_add(b, s ? s : "", len);
    bin_count(b, !s);
}

void pg_bin_add_int(struct buf *b, int64_t v)
{
    uint64_t bits = htobe64((uint64_t)v);
    put_u32(b, sizeof bits);
    buf_add(b, &bits, sizeof bits);
    bin_count(b, false);
}

void pg_bin_end(struct buf *b)
{
    struct bin_header *h = bin_header(b);
    if (!h)
        return;
    if (h->len == 0) { /* an empty array has no dimension */
        h->dimensions = 0;
        b->len = offsetof(struct bin_header, len);
    }
    h->len = htobe32(h->len);
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
