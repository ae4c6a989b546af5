/*
 * buf.h - the one growable byte buffer.
 *
 * Lengths travel with bytes; `data` is always NUL-terminated for convenience
 * but may hold anything. The maximum is set at init and can never be passed:
 * an append that would pass it, or for which there is no memory, leaves the
 * content as it was and marks the buffer as failed; `buf_ok` is asked once at
 * the end, so that a run of appends needs no check each.
 * Not thread-safe; one owner at a time.
 */
#ifndef RELATA_BASE_BUF_H
#define RELATA_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* NULL until the first append; use buf_str() where a string is wanted */
    size_t len;
    size_t cap;
    size_t max;
    bool failed;
};

/* A view of bytes that somebody else owns. */
struct bytes {
    const char *data;
    size_t len;
};

void buf_init(struct buf *b, size_t max);
/* Frees the memory; the buffer may be used again. Accepts a zeroed buffer. */
void buf_release(struct buf *b);
/* Length 0, not failed; keeps the memory. */
void buf_clear(struct buf *b);
bool buf_ok(const struct buf *b);
/* Never NULL. */
const char *buf_str(const struct buf *b);

void buf_add(struct buf *b, const void *data, size_t len);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vaddf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* Ensure room for `extra` more bytes; false (and failed) if not possible. */
bool buf_reserve(struct buf *b, size_t extra);

#endif
