/*
 * leader.h - which process may write, and for how long it may still answer.
 *
 * One row (relata_store.leader) holds the epoch, a beat and the lease. The holder adds to the beat with each commit
 * and, when idle, every quarter of the lease; each of its transactions names its epoch and changes nothing if the row
 * has another one. Whoever sees epoch and beat stand still for the whole lease, on its own monotonic clock from when it
 * *got* the first look, may take over; the holder counts nine tenths of the lease from before it *sent* its last sign
 * of life that was answered. So it has stopped answering before another one begins to write, however far their clocks
 * of day are apart, frozen or cut off alike: a decision is never older than a change that another process has
 * acknowledged. A holder that ends in order releases the lease: no wait.
 *
 * Functions block on Postgres until `deadline`; statuses are those of common/pg. One thread a connection.
 */
#ifndef RELATA_AUTHZ_DURABLE_LEADER_H
#define RELATA_AUTHZ_DURABLE_LEADER_H

#include "common/pg/pg.h"

struct leader_row {
    int64_t epoch, beat, lease_ms, last_id;
    bool released;
    char holder[128];
    char token_key[80];
};

/* ST_MISSING: the schema is not there. */
enum status leader_look(struct pg *pg, struct leader_row *out, mono_us deadline, struct err *err) MUST_CHECK;
/* Takes over from what was `seen`, which is changed to the new row. ST_CONFLICT: it is no longer so. */
enum status leader_take(struct pg *pg, struct leader_row *seen, const char *holder, int64_t lease_ms, mono_us deadline,
                        struct err *err) MUST_CHECK;
/* ST_CONFLICT: another epoch has begun. */
enum status leader_renew(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err) MUST_CHECK;
enum status leader_release(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err) MUST_CHECK;
/* The last id that the holder of `epoch` committed. ST_NOT_FOUND: that epoch has not ended. */
enum status leader_ended_at(struct pg *pg, int64_t epoch, int64_t *last_id, mono_us deadline,
                            struct err *err) MUST_CHECK;

#endif
