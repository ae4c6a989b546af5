/*
 * leader.h - which process may write, and for how long it may still answer.
 *
 * One row (relata_store.leader) holds the epoch, a beat and the lease. The holder adds to the beat every quarter of the
 * lease; each of its transactions locks the row by its epoch and changes nothing if that is another one. Whoever sees
 * epoch and beat stand still for the whole lease, on its own monotonic clock from when it *got* the first look, may
 * take over; the holder counts nine tenths of the lease from before it *sent* its last beat that was answered. So it
 * has stopped answering before another one begins to write, however far their clocks of day are apart, frozen or cut
 * off alike: a decision is never older than a change that another process has acknowledged. A holder that ends in order
 * releases the lease: no wait.
 *
 * Functions block on Postgres until `deadline`; statuses are those of common/pg. One thread a connection.
 */
#ifndef RELATA_AUTHZ_DURABLE_LEADER_H
#define RELATA_AUTHZ_DURABLE_LEADER_H

#include "common/pg/pg.h"

/* SQL: the id of the last change that is there. */
#define LEADER_LAST_ID                                                                                                 \
    "greatest((SELECT l.last_id FROM relata_store.leader l), (SELECT max(c.id) FROM relata_store.change c), "          \
    "(SELECT max(s.change) FROM relata_store.store s), (SELECT max(m.change) FROM relata_store.model m), "             \
    "(SELECT max(a.change) FROM relata_store.assertion a))"

struct leader_row {
    int64_t epoch, beat, lease_ms;
    int64_t last_id; /* of the last change that was there */
    bool released;
    char holder[128];
    char token_key[80];
};

/* ST_MISSING: the schema is not there. */
enum status leader_look(struct pg *pg, struct leader_row *out, mono_us deadline, struct err *err) MUST_CHECK;
/* Takes over from what was `seen`, which is changed to the new row; its last_id is final for the epochs before.
 * ST_CONFLICT: it is no longer so. After any other failure the epoch may have begun. */
enum status leader_take(struct pg *pg, struct leader_row *seen, const char *holder, int64_t lease_ms, mono_us deadline,
                        struct err *err) MUST_CHECK;
/* ST_CONFLICT: another epoch has begun. */
enum status leader_renew(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err) MUST_CHECK;
enum status leader_release(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err) MUST_CHECK;
/* The last id that was committed in `epoch` or before. ST_NOT_FOUND: that epoch has not ended, or its end is not noted
 * yet. */
enum status leader_ended_at(struct pg *pg, int64_t epoch, int64_t *last_id, mono_us deadline,
                            struct err *err) MUST_CHECK;

#endif
