/*
 * batch.h - the keys of one attempt at a Write. Owned by one lane's thread; its entries are taken.
 */
#ifndef RELATA_WRITER_BATCH_H
#define RELATA_WRITER_BATCH_H

#include "common/store/store.h"
#include "tuple-writer/hints.h"

enum item_state {
    ITEM_TODO,    /* to be converged */
    ITEM_UNSEEN,  /* its row is not visible yet: not sent */
    ITEM_IDLE,    /* nothing of it is pending: not sent */
    ITEM_SENT,    /* part of the Write */
    ITEM_APPLIED, /* written, its event sent; not acknowledged (late) */
    ITEM_ACKED,   /* written and acknowledged, nothing newer */
    ITEM_MOVED,   /* written and acknowledged, but its version is another by now */
    ITEM_PARKED,  /* refused alone: a dead letter now */
};

struct item {
    struct entry *entry;
    const struct tuple_key *key; /* the entry's */
    enum item_state state;
    /* What was known of the entry when the attempt began. */
    int64_t hint_id;
    uint64_t hint_xid;
    uint64_t group;
    bool unseen;
    bool force; /* a hint says so; or written and not acknowledged with its version yet: that may have replaced a newer
                 * state, which another writer has applied and acknowledged */
    bool covered; /* late, and in a late batch that lasts long enough */
    mono_us late_until;
    mono_us unseen_since;
    int64_t created_us;
    int64_t applied_version; /* what this process wrote last, 0 = nothing */
    char traceparent[56];
    /* What the ledger says; the strings live as long as the attempt. */
    bool known, present, visible, pending;
    int64_t version;
    uint64_t xid;
    const char *condition_name, *condition_context;
    /* Another condition is stored: delete first, in a call of its own. Kept from one attempt to the next. */
    bool replace;
    /* Late batches: what the store shows before it is written again. */
    bool observed, observed_present, differs;
    char *observed_name, *observed_context;
};

struct batch {
    struct batch *next;
    struct item items[STORE_WRITE_MAX];
    size_t n;
    int64_t intent; /* row of relata.inflight that covers these keys, 0 = none */
    bool pinned;    /* as of the state read, relata.store names the store that the batch is for */
    bool alone;     /* a part of a refused batch: nothing may join it */
    bool late;      /* made of a late batch: reading back tells whether a late effect is undone */
    bool conflicted;
    unsigned tries;
};

struct batch *batch_new(void); /* NULL = no memory */
/* Add a taken entry, copying what is known of it. False: full. With the lane's mutex held. */
bool batch_add(struct batch *b, struct entry *e);
/* Copy again what is known of the entries. With the lane's mutex held. */
void batch_refresh(struct batch *b);
/* By key: the order of Writes, intents and row locks. */
void batch_sort(struct batch *b);
/* Move about half of the items into a new batch, at the end of a group; a single group is halved. The new batch keeps
 * the intent, `b` has none then. NULL = no memory (b is unchanged). n must be at least 2. */
struct batch *batch_split(struct batch *b);

#endif
