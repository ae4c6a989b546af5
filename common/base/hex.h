/* hex.h - hexadecimal digits, in either case. */
#ifndef RELATA_BASE_HEX_H
#define RELATA_BASE_HEX_H

#include <stdint.h>

#include "common/base/buf.h"

/* The digit's value, -1 if it is none. */
int hex_digit(char c);
/* Exactly 2 * n digits into n bytes; false if it is anything else (`out` may be written to). */
bool hex_decode(struct bytes text, uint8_t *out, size_t n);

#endif
