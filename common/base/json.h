/* json.h - JSON values (jansson) into buffers. */
#ifndef RELATA_BASE_JSON_H
#define RELATA_BASE_JSON_H

#include <jansson.h>

#include "common/base/buf.h"

/* Appends the value's text; `flags` are jansson's. False: no room or no memory, and the buffer holds a part of it. */
bool json_add(struct buf *out, const json_t *json, size_t flags);

/* Appends a string's text, quoted; bytes that are no UTF-8 become U+FFFD. */
void json_add_text(struct buf *out, const char *s, size_t len);

#endif
