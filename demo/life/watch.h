/*
 * watch.h - commit-to-applied: from the return of a COMMIT to the moment when the store is known to have its changes.
 *
 * With NATS, by the events: each names the transaction that set the tuple's state, and one measurement is one changed
 * tuple. Without, the outbox is polled and one measurement is one transaction, to the step of the poll (5 ms). Clients
 * report every transaction: before its COMMIT (an event may come before the COMMIT's answer does: that measures 0),
 * after it, or its rollback: an event of a transaction that was rolled back is a fault and counted as such.
 * All functions are thread-safe; none blocks but watch_new, watch_free and watch_lag.
 */
#ifndef RELATA_DEMO_LIFE_WATCH_H
#define RELATA_DEMO_LIFE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/events/events.h"

struct watch;

struct watch_config {
    const struct cfg_nats *nats; /* an empty URL: poll */
    const char *dsn;             /* a login that may read relata.lag, relata.outbox and relata.tuple */
    const char *store;
};

struct watch_counts {
    uint64_t events, changes; /* NATS events seen, and the tuples in them */
    uint64_t gaps;            /* events missed, as the sequences tell */
    uint64_t epochs;          /* publishers seen */
    uint64_t heartbeats;
    uint64_t transactions; /* of ours that were seen applied */
    uint64_t ghosts;       /* events of a transaction that was rolled back */
};

struct watch_times { /* microseconds */
    uint64_t n;
    uint32_t p50, p99, max;
};

struct watch_lag {
    int64_t pending, parked;
    double oldest_s;
};

/* Blocks until the events' first heartbeat, at most 5 s. */
enum status watch_new(struct watch **out, const struct watch_config *cfg, mono_us deadline, struct err *err) MUST_CHECK;
void watch_free(struct watch *w); /* accepts NULL */
bool watch_has_events(const struct watch *w);

void watch_committing(struct watch *w, uint64_t xid);
/* `changed`: rows of the inventory were changed, so that there is something to see applied. */
void watch_committed(struct watch *w, uint64_t xid, mono_us at, bool changed);
void watch_rolled_back(struct watch *w, uint64_t xid);
/* The COMMIT's outcome is not known. */
void watch_forget(struct watch *w, uint64_t xid);

void watch_counts(struct watch *w, struct watch_counts *out);
/* Of all measurements, and of those since the last call with `since_last`. */
void watch_times(struct watch *w, bool since_last, struct watch_times *out);
/* One thread at a time. */
enum status watch_lag(struct watch *w, struct watch_lag *out, struct err *err) MUST_CHECK;
enum status watch_ledger(struct watch *w, int64_t *present, struct err *err) MUST_CHECK;
/* The error that ended polling, if one did: then nothing more is measured. */
enum status watch_failed(struct watch *w, struct err *err) MUST_CHECK;

#endif
