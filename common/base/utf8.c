#include "common/base/utf8.h"

size_t utf8_next(const char *s, size_t len, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t n;
    uint32_t v, least;

    if (len == 0)
        return 0;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] >= 0xC2 && p[0] < 0xE0) {
        n = 2;
        v = p[0] & 0x1FU;
        least = 0x80;
    } else if (p[0] >= 0xE0 && p[0] < 0xF0) {
        n = 3;
        v = p[0] & 0x0FU;
        least = 0x800;
    } else if (p[0] >= 0xF0 && p[0] < 0xF5) {
        n = 4;
        v = p[0] & 0x07U;
        least = 0x10000;
    } else {
        return 0;
    }
    if (len < n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0U) != 0x80)
            return 0;
        v = (v << 6) | (p[i] & 0x3FU);
    }
    if (v < least || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
        return 0;
    *cp = v;
    return n;
}

bool utf8_valid(const char *s, size_t len)
{
    uint32_t cp;

    for (size_t n; len > 0; s += n, len -= n)
        if ((n = utf8_next(s, len, &cp)) == 0)
            return false;
    return true;
}

size_t utf8_cut(const char *s, size_t len, size_t max)
{
    size_t n = max;

    if (len <= max)
        return len;
    /* A code point has at most three continuation bytes; more than that is no UTF-8 and may be cut anywhere. */
    for (int back = 0; back < 3 && n > 0 && ((unsigned char)s[n] & 0xC0U) == 0x80; back++)
        n--;
    return ((unsigned char)s[n] & 0xC0U) == 0x80 ? max : n;
}
