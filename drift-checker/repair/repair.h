/*
 * repair.h - mends findings through the outbox, as a service would: nothing is written to the store from here.
 *
 * A batch is a transaction of at most 100 tuples of one kind of repair, in key order, and marks its findings as
 * repaired in that same transaction: there is no repair without a record. A touch enqueues what the ledger says at that
 * moment, and an emission what the inventory says under the key's lock: never what the finding remembered. So a revoke
 * committed between finding and repair stays a revoke. What would take more from somebody than was counted, or is not
 * what was found any more, is left alone: for the next audit. Main thread only; blocks for a few statements a batch.
 */
#ifndef RELATA_DRIFT_REPAIR_H
#define RELATA_DRIFT_REPAIR_H

#include "drift-checker/judge/judge.h"

#define REPAIR_REFUSED "refused" /* err.code: a cap, or something moved */

struct repairs {
    int64_t wanted, deletions; /* of them; findings that only a person can mend are not wanted */
    int64_t done;              /* the others were left alone, or not come to */
};

/* What there is to repair. */
void repair_count(const struct findings *f, struct repairs *out);
/* The same, held against the caps; `ledger` tuples are judged. ST_INVALID with
 * REPAIR_REFUSED. */
enum status repair_allowed(const struct settings *cfg, const struct findings *f, int64_t ledger, struct repairs *out,
                           struct err *err) MUST_CHECK;
/* Repairs all. Findings must have their ids (record.h). `out->done` counts also when it fails: the rest is as it was.
 */
enum status repair_run(const struct compare_job *job, const struct sources *sources, struct findings *f, int64_t run,
                       struct repairs *out, struct err *err) MUST_CHECK;

/*
 * A plan: JSON lines. The first says for which store, model and sources of expected tuples, when and by which run, and
 * how many repairs and deletions; each further one is a repair: tuple, cause, action, ledger version, and what each
 * side holds. Written under another name and renamed. ST_INVALID with REPAIR_REFUSED if not all was looked at.
 */
enum status plan_write(const char *path, const struct compare_job *job, const struct sources *sources, int64_t run,
                       const struct findings *f, const struct repairs *counts, struct err *err) MUST_CHECK;

struct planned {
    struct tuple_key *key;
    enum cause cause;
    enum action action;
    bool judged_expected;
    struct holding expected, ledger, observed;
    int64_t version;
};
struct plan {
    char *store; /* name */
    char store_id[64], model_id[64];
    char **sources;
    size_t nsources;
    struct planned *items;
    size_t len;
};
/* ST_CONFIG with the line that is not as it should be. */
enum status plan_read(const char *path, struct plan *out, struct err *err) MUST_CHECK;
enum status plan_parse(struct bytes text, struct plan *out, struct err *err) MUST_CHECK;
void plan_free(struct plan *p);
/* ST_INVALID with REPAIR_REFUSED and what has moved, unless the findings are the plan's. */
enum status plan_holds(const struct plan *p, const struct compare_job *job, const struct sources *sources,
                       const struct findings *f, struct err *err) MUST_CHECK;

#endif
