/*
 * pages.h - Read and ReadChanges: one page each, as OpenFGA's API writes it.
 *
 * Tuples come by key, changes by id. Blocks on Postgres until `deadline`; statuses are those of common/pg.
 */
#ifndef RELATA_AUTHZ_DURABLE_PAGES_H
#define RELATA_AUTHZ_DURABLE_PAGES_H

#include <jansson.h>

#include "common/pg/pg.h"

struct pages_key {
    const char *object, *relation, *subject;
};

struct pages_read {
    const char *store;
    const char *object;             /* "type:id", "type:" for any of the type, "" for any */
    const char *relation, *subject; /* "" = any */
    const struct pages_key *after;  /* NULL = from the first */
    unsigned size;
};
/* *out: the tuples; *last: the key to go on from, each malloc'd (pages_key_free), or NULLs at the end. */
struct pages_last {
    char *object, *relation, *subject;
};
enum status pages_read(struct pg *pg, const struct pages_read *what, json_t **out, struct pages_last *last,
                       mono_us deadline, struct err *err) MUST_CHECK;
void pages_last_free(struct pages_last *last);

/* Changes above `after`, of objects of `type` (NULL = any). *last: the id of the page's last change, `after` if it is
 * empty. */
enum status pages_changes(struct pg *pg, const char *store, const char *type, int64_t after, unsigned size,
                          json_t **out, int64_t *last, mono_us deadline, struct err *err) MUST_CHECK;

/* RFC 3339 with as few decimals as need be, as protobuf's JSON has it. */
void pages_time(int64_t us, char out[CLOCK_TEXT_MAX]);

#endif
