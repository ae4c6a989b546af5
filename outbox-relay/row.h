/*
 * row.h - one row of relata.outbox as the relay carries it, whether it came from the stream or from a query.
 *
 * Strings are borrowed from whoever filled the struct (a stream message, a query result) and valid as long as that is;
 * they are UTF-8 and NUL-terminated; NULL is SQL NULL.
 */
#ifndef RELATA_RELAY_ROW_H
#define RELATA_RELAY_ROW_H

#include <stdint.h>

struct outbox_row {
    int64_t id;
    uint64_t xid;
    int64_t created_at_us; /* since the Unix epoch */
    const char *store;
    const char *op; /* "write", "delete", "touch" */
    const char *object;
    const char *relation;
    const char *subject;
    const char *condition_name;
    const char *condition_context; /* JSON text */
    const char *actor;
    const char *headers; /* JSON text */
};

#endif
