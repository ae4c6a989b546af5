/*
 * inventory.h - what the inventory says of single tuples at this moment: for confirmations, and for repairs under a
 * lock. One statement, so that a row that becomes unresolvable meanwhile is never taken for one that is gone.
 */
#ifndef RELATA_DRIFT_INVENTORY_H
#define RELATA_DRIFT_INVENTORY_H

#include "common/pg/pg.h"
#include "drift-checker/judge/judge.h"

struct said {
    struct holding holding;
    bool unknown; /* a source cannot tell what this object stands for: that is not "absent" */
};

/* `keys` are $1 .. $4 of compare_yields_sql(), `n` tuples; on job->pg. Fills out[0 .. n-1], which must be zeroed; free
 * each one's holding, after errors too. A source that fails: err.code "expected". */
enum status inventory_ask(const struct compare_job *job, const struct sources *sources, const struct pg_param *keys,
                          size_t n, struct said *out, struct err *err) MUST_CHECK;

void holding_free(struct holding *h);
bool holding_equal(const struct holding *a, const struct holding *b);

#endif
