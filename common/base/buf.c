#include "common/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_FIRST_CAP 64

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

bool buf_reserve(struct buf *b, size_t extra)
{
    size_t need, cap;
    char *data;

    if (extra > b->max || b->len > b->max - extra || b->max == SIZE_MAX) {
        b->failed = true;
        return false;
    }
    need = b->len + extra + 1; /* the NUL does not count against the maximum */
    if (need <= b->cap)
        return true;
    cap = b->cap ? b->cap : BUF_FIRST_CAP;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    if (!b->data)
        data[0] = '\0';
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    if (len == 0 || !buf_reserve(b, len))
        return;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_adds(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_addc(struct buf *b, char c)
{
    /* The capacity never passes the maximum and its NUL. */
    if (b->cap < 2 || b->len > b->cap - 2) {
        buf_add(b, &c, 1);
        return;
    }
    b->data[b->len++] = c;
    b->data[b->len] = '\0';
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vaddf(b, fmt, ap);
    va_end(ap);
}

void buf_vaddf(struct buf *b, const char *fmt, va_list ap)
{
    size_t room = b->data ? b->cap - b->len : 0;
    va_list again;
    int n;

    va_copy(again, ap);
    n = vsnprintf(b->data ? b->data + b->len : NULL, room, fmt, ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n >= room) {
        if (b->data)
            b->data[b->len] = '\0';
        if (buf_reserve(b, (size_t)n)) {
            vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
            b->len += (size_t)n;
        }
    } else {
        b->len += (size_t)n;
    }
    va_end(again);
}
