#include "common/base/hex.h"

int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool hex_decode(struct bytes text, uint8_t *out, size_t n)
{
    if (text.len != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text.data[2 * i]), low = hex_digit(text.data[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}
