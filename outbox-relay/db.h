/*
 * db.h - the relay's statements, on its session connection. Every call is bounded by the statement timeout of the
 * settings, and returns the statuses of pg.h.
 */
#ifndef RELATA_RELAY_DB_H
#define RELATA_RELAY_DB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/pg/pg.h"
#include "outbox-relay/row.h"

/* The advisory locks, class numbers shared with the other programs. */
#define LOCK_OUTBOX_AWAKE "1380270083" /* (.., hashtext(store)): held by a reader that sleeps */
#define LOCK_RELAY "1380270084"        /* (.., hashtext(relay name)): held by the active relay */

struct db {
    struct pg *pg;
    int64_t timeout_ms;
};

/* Connect, or make sure that the connection is there; after a connect the session is set up. ST_OK also if it lives. */
enum status db_connect(struct db *db, const char *dsn, const char *application_name, struct err *err) MUST_CHECK;
void db_close(struct db *db);

/* ---- being the active relay ---- */
/* *got tells whether this session holds the lock of that name now. */
enum status db_lock(struct db *db, const char *name, bool *got, struct err *err) MUST_CHECK;

/* ---- relata.relay ---- */
struct relay_state {
    bool handover_complete;
    char slot[64];
    char *poll_snapshot; /* malloc'd; NULL = none */
};
enum status db_state_load(struct db *db, const char *name, struct relay_state *out, struct err *err) MUST_CHECK;
void relay_state_release(struct relay_state *s);
/* handover: "started" or "complete". `lsn` may be NULL. */
enum status db_state_handover(struct db *db, const char *name, const char *slot, const char *handover, const char *lsn,
                              struct err *err) MUST_CHECK;
enum status db_state_snapshot(struct db *db, const char *name, const char *snapshot, struct err *err) MUST_CHECK;

/* ---- the slot ---- */
struct slot_info {
    bool exists;
    bool ours;   /* logical, pgoutput, of this database */
    bool lost;   /* the WAL it needs is gone */
    bool usable; /* it has reached its consistent point once */
    uint64_t confirmed_lsn;
    int active_pid; /* 0 = nobody reads it */
    char plugin[64];
    char database[64];
    char active_name[64]; /* application_name of that process, "" if unknown */
};
enum status db_slot(struct db *db, const char *slot, struct slot_info *out, struct err *err) MUST_CHECK;
enum status db_slot_drop(struct db *db, const char *slot, struct err *err) MUST_CHECK;
enum status db_terminate(struct db *db, int pid, struct err *err) MUST_CHECK;
enum status db_cancel(struct db *db, int pid, struct err *err) MUST_CHECK;
/* ST_MISSING with what to do if the publication does not exist or does not publish relata.outbox. */
enum status db_publication(struct db *db, const char *publication, struct err *err) MUST_CHECK;

/* ---- pending rows ---- */
/* "xmin:xmax:xip,xip": what pg_current_snapshot() gives. */
struct snapshot {
    uint64_t xmin, xmax;
    const char *open; /* the list of open ones, inside the parsed text; may be "" */
};
bool snapshot_parse(const char *text, struct snapshot *out);
/* Sees nothing: every row is new to it. */
#define SNAPSHOT_NONE "1:1:"

/* An xid of our own: every xid that was assigned before is below it. */
enum status db_take_xid(struct db *db, uint64_t *xid, struct err *err) MUST_CHECK;
/* The oldest xid that is still open; all below have ended and are visible, or are rolled back. */
enum status db_oldest_open(struct db *db, uint64_t *xid, struct err *err) MUST_CHECK;
/* Names of stores: those that have pending rows, those in relata.store, "default". One column; pg_result_free. */
enum status db_stores(struct db *db, struct pg_result **out, struct err *err) MUST_CHECK;

/*
 * One page of a store's rows that `since` does not see, in the order (xid, id), after (after_xid, after_id). Free with
 * pg_result_free; db_page_row() reads it. pg_rows() is at least 1: the snapshot of the page stands in each row, and
 * db_page_len() is 0 if there is nothing more.
 */
enum status db_page(struct db *db, const char *store, const char *since, uint64_t after_xid, int64_t after_id,
                    int limit, struct pg_result **out, struct err *err) MUST_CHECK;
int db_page_len(const struct pg_result *page);
const char *db_page_snapshot(const struct pg_result *page);
/* Borrowed from the page. */
void db_page_row(const struct pg_result *page, int row, const char *store, struct outbox_row *out);

/* One page of a store's rows that `seen` does see and that are older than `age_ms`, in the order of id, after
 * `after_id`. Read like the other. */
enum status db_old_page(struct db *db, const char *store, const char *seen, int64_t age_ms, int64_t after_id, int limit,
                        struct pg_result **out, struct err *err) MUST_CHECK;

/* Move the row to relata.dead_letter, and with it the older rows of its key. *parked is false if it was not pending.
 * ST_NOT_FOUND: the transaction `xid`, which wrote it, is not visible yet, so nobody can say; ask again. */
enum status db_park(struct db *db, const char *store, int64_t outbox_id, uint64_t xid, const char *code,
                    const char *reason, bool *parked, struct err *err) MUST_CHECK;

/* ---- sleeping (see docs/outbox-relay.md) ---- */
/* Announce that the reader of these stores (a text[] literal) sleeps. *all is false if a transaction that wrote the
 * outbox is open; then nothing is announced. */
enum status db_sleep(struct db *db, const char *stores, bool *all, struct err *err) MUST_CHECK;
enum status db_wake(struct db *db, const char *stores, struct err *err) MUST_CHECK;

#endif
