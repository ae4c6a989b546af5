/*
 * poller.h - pending rows by rounds of snapshots, store by store.
 *
 * A round of a store sends the rows that the snapshot at the start of its previous round did not see, in the order
 * (xid, id), page by page; the snapshot of its own first page becomes the next round's base once every message of the
 * round has its delivery report. This is exact: whatever commits, however late, is new to the first snapshot that sees
 * it. Rows stay until a writer has applied them, so looking for "what is there" again would not do. Stores take turns,
 * one page each. What a snapshot misses because it was seen by two is sent twice, which is harmless.
 *
 * Used by mode = poll for ever, and by mode = wal while a slot is made.
 */
#ifndef RELATA_RELAY_POLLER_H
#define RELATA_RELAY_POLLER_H

#include "outbox-relay/db.h"
#include "outbox-relay/sender.h"

#define POLLER_ROUNDS 16 /* rounds of a store that may wait for their reports */

struct poller_round {
    char *snapshot;
    mono_us taken_at;
    uint64_t after; /* messages below this number belong to it or to earlier ones */
};

struct poller_store {
    char *name;
    struct poller_round base;    /* everything it sees was sent and acknowledged */
    char *since;                 /* everything it sees was sent */
    struct poller_round current; /* the round that is running; snapshot NULL = none */
    uint64_t after_xid;
    int64_t after_id;
    struct pg_result *page; /* being sent */
    int row;
    struct poller_round waiting[POLLER_ROUNDS]; /* a ring: sent, not yet acknowledged */
    unsigned first, count;
};

struct poller {
    struct db *db;
    struct sender *sender;
    char *start; /* base of stores that turn up */
    struct poller_store *stores;
    size_t nstores;
    size_t turn; /* the store that comes first */
    mono_us listed_at;
    bool moved; /* the base of a store with rows has moved since poller_snapshot() */
};

/* `start` is copied; NULL = send everything that is pending. */
enum status poller_init(struct poller *p, struct db *db, struct sender *sender, const char *start,
                        struct err *err) MUST_CHECK;
void poller_release(struct poller *p); /* accepts a zeroed struct */

/*
 * One turn of every store: at most one page each. ST_OK with *idle true if no store had anything new (then everything
 * is sent, not necessarily acknowledged); ST_THROTTLED: no room in the window, serve the sender and go on; else the
 * error of the database or the sender.
 */
enum status poller_turn(struct poller *p, bool *idle, struct err *err) MUST_CHECK;
/* Take note of delivery reports: moves the bases. */
void poller_settle(struct poller *p);
/* Whether rounds wait for reports or are running. */
bool poller_busy(const struct poller *p);
/* When the oldest base was taken: everything that was committed before is acknowledged. 0 without any store. */
mono_us poller_covered(const struct poller *p);
/* The oldest base, to be recorded; NULL if it has not moved for rows since the last call. Valid until the next turn. */
const char *poller_snapshot(struct poller *p);
/* Names as a text[] literal. */
void poller_names(const struct poller *p, struct buf *out);
/* Look for new stores with the next turn. */
void poller_relist(struct poller *p);

#endif
