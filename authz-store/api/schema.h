/*
 * schema.h - the shape of OpenFGA's requests, as its protobuf definitions have it: which fields a message has and what
 * they must match. One table serves checking, and giving a message back with every field that it has.
 *
 * Source: openfga/api proto/openfga/v1, its *.pb.validate.go and protobuf's JSON mapping as grpc-gateway sets it up:
 * unknown fields are passed over, null is absent, absent fields are shown with their defaults.
 */
#ifndef RELATA_AUTHZ_API_SCHEMA_H
#define RELATA_AUTHZ_API_SCHEMA_H

#include <jansson.h>

#include "common/base/buf.h"

struct message;

enum field_kind {
    FIELD_STRING,
    FIELD_BOOL,
    FIELD_INT,  /* a wrapped 32-bit integer: may be absent */
    FIELD_ENUM, /* a string of `names`, or a number */
    FIELD_TIME, /* RFC 3339 */
    FIELD_MESSAGE,
    FIELD_LIST,  /* of messages */
    FIELD_MAP,   /* of messages */
    FIELD_STRUCT /* any JSON object */
};

enum pattern {
    PATTERN_NONE,
    PATTERN_ID,     /* of a store, a model */
    PATTERN_OBJECT, /* also a condition's name */
    PATTERN_USER,
    PATTERN_TYPE,
    PATTERN_RELATION,
    PATTERN_CORRELATION,
    PATTERN_STORE_NAME,
    PATTERN_READ_USER,
    PATTERN_TOKEN,
    PATTERN_OBJECT_ID,
    PATTERN_CHANGES_TYPE,
    PATTERN_SCHEMA,
    PATTERN_FILE
};

struct field {
    const char *name;  /* in JSON */
    const char *label; /* in errors */
    enum field_kind kind;
    const struct message *of; /* FIELD_MESSAGE, FIELD_LIST, FIELD_MAP */
    enum pattern pattern;     /* of a string; of a map's keys */
    bool may_be_empty;        /* "" passes the pattern */
    bool required;            /* FIELD_MESSAGE */
    bool one_of;              /* not shown when absent */
    int bytes_min, bytes_max; /* of a string; 0 = any */
    int items_min, items_max; /* of a list or map; FIELD_INT: the range; 0 = any */
    const char *const *names; /* FIELD_ENUM; ends with NULL */
};

struct message {
    const char *label;
    const struct field *fields; /* ends with name NULL */
};

/* Whether `json` is such a message: its members have the right types; then, that they match what they must. Else `why`
 * (cleared first) gets OpenFGA's text: of types the first fault, of rules all, the innermost message's alone; the code
 * is schema_code(why). */
bool schema_types(const struct message *m, const json_t *json, struct buf *why);
bool schema_rules(const struct message *m, const json_t *json, struct buf *why);
const char *schema_code(const char *why);
/* With every field, in the table's order; NULL: no memory. `json` has passed both. */
json_t *schema_complete(const struct message *m, const json_t *json);
bool pattern_matches(enum pattern p, const char *s);
/* "value does not match regex pattern ..." */
const char *pattern_reason(enum pattern p);

/* Members by name: null is absent. */
const json_t *member(const json_t *json, const char *name);
const char *member_text(const json_t *json, const char *name); /* "" if absent */

extern const struct message message_check, message_batch_check, message_list_objects, message_streamed_list_objects,
    message_list_users, message_expand, message_write, message_read, message_create_store, message_write_model,
    message_write_assertions, message_model, message_assertions;

#endif
