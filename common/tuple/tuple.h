/*
 * tuple.h - a relationship tuple's key, and the store's grammar for it.
 *
 * The grammar is OpenFGA's (v1.22.1), as its server enforces it on Write whatever the model says:
 *   object    type:id       at most 256 code points; the id is not "*"
 *   relation                at most 50 code points, none of '#' ':' '@'
 *   subject   type:id | type:* | type:id#relation    at most 512 bytes; no '*' anywhere behind the ':' of the last form
 * A type has at most 254 code points, none of '#' ':' '@'. An id holds no '#' and no ':'; '@', '*' and Unicode
 * white space other than U+0020 are letters to the store. Control characters (U+0000-001F, 007F-009F), spaces and
 * invalid UTF-8 are refused everywhere, and so is the tuple that always holds: object#relation as its own subject. That
 * a type or relation exists, and which subjects it takes, is the model's matter (the words "self" and "this" too). The
 * same rules stand in SQL (migrations/, relata.check_tuple); tests hold this file, the SQL and a real OpenFGA equal.
 * All functions are thread-safe and never block.
 */
#ifndef RELATA_TUPLE_TUPLE_H
#define RELATA_TUPLE_TUPLE_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

#define TUPLE_OBJECT_MAX_CHARS 256
#define TUPLE_RELATION_MAX_CHARS 50
#define TUPLE_SUBJECT_MAX_BYTES 512
#define TUPLE_TYPE_MAX_CHARS 254

/* The key within one store. NUL-terminated strings; valid ones hold no NUL. */
struct tuple_key {
    const char *object;
    const char *relation;
    const char *subject;
};

/* Byte order of (object, relation, subject): the order in which batches are sorted and ledger rows are locked (COLLATE
 * "C"). */
int tuple_key_cmp(const struct tuple_key *a, const struct tuple_key *b);
/* 64-bit hash of all three parts, unambiguously separated; stable across machines and versions. */
uint64_t tuple_key_hash(const struct tuple_key *k);
/* 64-bit hash of the object alone (the lane). */
uint64_t tuple_object_hash(const char *object);

/* ST_OK or ST_INVALID with the reason; err.code is the part: "object", "relation" or "subject". Lengths are given so
 * that an embedded NUL is seen. */
enum status tuple_check(struct bytes object, struct bytes relation, struct bytes subject, struct err *err) MUST_CHECK;
/* One part alone. */
enum status tuple_check_object(struct bytes object, struct err *err) MUST_CHECK;
enum status tuple_check_relation(struct bytes relation, struct err *err) MUST_CHECK;
enum status tuple_check_subject(struct bytes subject, struct err *err) MUST_CHECK;

/* An id that may hold anything, as relata.encode_id() encodes it (docs/sql.md): injective, and fit for the grammar but
 * for its length. Bytes that are no UTF-8 are encoded too. Appends. */
void tuple_encode_id(struct bytes id, struct buf *out);

/* One heap block with all three strings; free() it. NULL = no memory. */
struct tuple_key *tuple_key_dup(const struct tuple_key *k) MUST_CHECK;

/* "object#relation@subject", for people. Parsing is exact for every valid key: no object holds '#', no relation '@'. It
 * checks the grammar (ST_INVALID). *out is one heap block as of tuple_key_dup. */
void tuple_key_format(const struct tuple_key *k, struct buf *out);
enum status tuple_key_parse(const char *text, struct tuple_key **out, struct err *err) MUST_CHECK;

/* The type part of an object or subject: bytes up to the first ':'; empty if there is none. */
struct bytes tuple_type(const char *object);

#endif
