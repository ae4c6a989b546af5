/*
 * store_context.h - private to common/store: condition contexts as the store sees them (google.protobuf.Struct: every
 * number is a double, the order of keys means nothing).
 */
#ifndef RELATA_STORE_STORE_CONTEXT_H
#define RELATA_STORE_STORE_CONTEXT_H

#include <jansson.h>

#include "common/base/status.h"

/* Flags for every parse: numbers are read as doubles, as the store reads them (integers beyond int64 included). */
#define STORE_JSON_DECODE (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL)

/* Text to tree in canonical form: numbers that are whole become integers. NULL and "" are {}. ST_INVALID: not a JSON
 * object. The caller owns *out. */
enum status store_context_parse(const char *text, json_t **out, struct err *err) MUST_CHECK;
/* Bring a parsed tree into that form, in place. False = no memory. */
bool store_context_canonical(json_t *node);

#endif
