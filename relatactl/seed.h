/*
 * seed.h - filling a store from the ledger, safely beside a running writer.
 *
 * Keys are walked in order, in pages; batches of them are converged by several threads. Converging is what a writer
 * does: record an intent and read the ledger in one durable statement, Write, then look whether the ledger moved, and
 * if so do it again. So an old state cannot win over a newer one, and what a killed seed may have sent late is
 * converged again by the writers, from its intents.
 */
#ifndef RELATA_CTL_SEED_H
#define RELATA_CTL_SEED_H

#include <pthread.h>

#include "relatactl/compare.h"
#include "relatactl/ctl.h"
#include "relatactl/identity.h"

struct seed_options {
    const char *store_id, *model_id, *model_file;
    bool create, merge, restart, no_verify;
    int64_t in_flight, patience_s;
};

/* Up to STORE_WRITE_MAX keys, in order. */
struct seed_batch {
    struct tuple_key *keys[STORE_WRITE_MAX];
    size_t n;
    int64_t intent;     /* row of relata.inflight, 0 = none */
    bool unknown;       /* a Write's outcome was not known since the last time that it was */
    mono_us late_until; /* converge again at this time; 0 = not needed */
    bool done;
    struct seed_batch *next;       /* in order, until the ones before are done */
    struct seed_batch *next_ready; /* to be worked on */
};

struct seed_counts {
    int64_t done; /* keys converged */
    int64_t writes, deletes;
    int64_t refused; /* parked */
    int64_t moved;   /* converged again because the ledger moved */
    int64_t retries, unknown, throttled;
};

/* One run over a set of keys. All but the constants under `lock`. */
struct seed {
    struct ctl *ctl;
    const struct seed_options *options;
    struct pin pin;
    int64_t writer_id;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct seed_batch *first, *last;              /* outstanding, in order */
    struct seed_batch *ready, *ready_last, *late; /* late: waiting for late_until */
    size_t outstanding;
    struct tuple_key *position; /* all keys up to it are done */
    bool ending;                /* no more batches come: threads end when all is done */
    bool failed;
    struct err err; /* of the first failure */
    struct seed_counts counts;
};

/* A thread's own connections. */
struct seed_worker {
    struct seed *seed;
    struct pg *pg;
    unsigned generation;
    struct store_conn *store;
    pthread_t thread;
    struct buf objects, relations, subjects, versions;
};

/* seed_converge.c: bring the batch's keys to the state of the ledger. ST_OK, with batch->late_until set if it has to be
 * done again later; ST_STOPPED; or what makes going on pointless. */
enum status seed_converge(struct seed_worker *w, struct seed_batch *b, struct err *err) MUST_CHECK;
enum status seed_worker_init(struct seed_worker *w, struct seed *seed, struct err *err) MUST_CHECK;
void seed_worker_release(struct seed_worker *w);

/* seed_run.c: all present keys after `from` (NULL = from the first), or with `since` >= 0 those changed after that
 * version, present or not. Calls `tick` about each second in the calling thread. */
enum status seed_keys(struct seed *seed, const struct tuple_key *from, int64_t since,
                      enum status (*tick)(void *arg, struct err *err), void *arg, struct err *err) MUST_CHECK;

#endif
