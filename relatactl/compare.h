/* compare.h - the whole store against the ledger. */
#ifndef RELATA_CTL_COMPARE_H
#define RELATA_CTL_COMPARE_H

#include "relatactl/identity.h"

struct comparison {
    int64_t ledger, store; /* tuples */
    int64_t equal, missing, other_condition;
    int64_t extra; /* in the store, and absent in the ledger */
};

/* Reads every page of the pinned store and looks it up in the ledger. What changes meanwhile, or is pending, counts as
 * a difference too. Shows progress. */
enum status compare_store(struct ctl *ctl, const struct pin *pin, struct comparison *out, struct err *err) MUST_CHECK;
json_t *comparison_json(const struct comparison *c);
void comparison_print(const struct comparison *c);

#endif
