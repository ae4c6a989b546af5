/*
 * utf8.h - reading UTF-8 one code point at a time. Thread-safe, never blocks.
 */
#ifndef RELATA_BASE_UTF8_H
#define RELATA_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at `s` (`len` > 0 bytes left) and its length in bytes, 1 to 4; 0 if the bytes are not valid UTF-8
 * (overlong forms, surrogates and values above U+10FFFF included). */
size_t utf8_next(const char *s, size_t len, uint32_t *cp);

/* All of it is valid. */
bool utf8_valid(const char *s, size_t len);

/* The largest number of bytes, at most `max`, that cuts no code point of `s` in two. */
size_t utf8_cut(const char *s, size_t len, size_t max);

#endif
