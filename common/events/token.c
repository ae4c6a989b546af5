/*
 * token.c - strings as NATS subject tokens.
 */
#include "common/events/events.h"

static bool token_plain(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

void events_token(const char *s, struct buf *out)
{
    static const char hex[] = "0123456789ABCDEF";
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (token_plain(c)) {
            buf_addc(out, (char)c);
        } else {
            char e[3] = {'%', hex[c >> 4], hex[c & 15]};
            buf_add(out, e, sizeof e);
        }
    }
}
