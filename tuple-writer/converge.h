/*
 * converge.h - one attempt to bring the store in line with the ledger for the keys of a batch. Blocks; a lane's thread.
 */
#ifndef RELATA_WRITER_CONVERGE_H
#define RELATA_WRITER_CONVERGE_H

#include <stdatomic.h>

#include "tuple-writer/batch.h"
#include "tuple-writer/gate.h"
#include "tuple-writer/ledger.h"
#include "tuple-writer/writer.h"

/* What a lane's thread works with. */
struct worker {
    struct writer *w;
    struct ledger ledger;
    struct store_conn *conn;
    char store_id[GATE_ID_MAX]; /* that conn is for */
    _Atomic int64_t intent;     /* of the attempt under way */
    _Atomic int *batch_limit;   /* tuples in one Write; lowered when the server's limit is below it */
    /* The store has answered (or was not asked): only the record of it is left. */
    void (*answered)(void *arg, bool ok);
    void *arg;
};

enum verdict_kind {
    VERDICT_SETTLED, /* every item has its end state */
    VERDICT_AGAIN,   /* the batch is to be tried again after wait_ms */
    VERDICT_HALVE,   /* the store refuses the batch: find out why with less */
};

struct verdict {
    enum verdict_kind kind;
    int64_t wait_ms;
    mono_us began;     /* items late until then may be acknowledged */
    mono_us unknown;   /* not 0: when a Write of the items in ITEM_SENT was given up with its outcome unknown */
    enum status store; /* what the store said, for the gate; ST_STOPPED = it was not asked */
    struct err err;
    char model_id[GATE_ID_MAX];
    int64_t generation;
};

enum status worker_init(struct worker *k, struct writer *w, struct err *err) MUST_CHECK;
void worker_release(struct worker *k);

void converge(struct worker *k, struct batch *b, const struct pin *pin, struct verdict *out);

#endif
