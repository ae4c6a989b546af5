/*
 * txgen.h - random transactions of services, the same for the same seed.
 *
 * Each transaction is one text of SQL. Beside what it tells relata (functions, set forms, plain INSERTs), it keeps the
 * table `truth` in the same transaction, by plain upserts: an account of the wanted state that owes nothing to the
 * ledger. Tuples of subjects user:e<N>, which are erased at times, and of objects doc:d<N>, which are deleted at times,
 * are not in it.
 */
#ifndef RELATA_TESTS_MODEL_TXGEN_H
#define RELATA_TESTS_MODEL_TXGEN_H

#include <stdint.h>

#include "common/base/buf.h"

struct txgen {
    uint64_t state;
    int client;
    unsigned made; /* changes (outbox rows, if nothing is dropped or rolled back) so far */
};

/* Table `truth`, in schema public. */
extern const char txgen_schema_sql[];
/* The authorization model that the transactions fit, JSON. */
extern const char txgen_model_json[];

void txgen_init(struct txgen *g, uint64_t seed, int client);
/* The next transaction, from BEGIN to COMMIT or ROLLBACK, into `sql` (cleared first). Returns its number of changes. */
unsigned txgen_next(struct txgen *g, struct buf *sql);

/* A number below n from the generator's stream; for the test's own random choices. */
unsigned txgen_below(struct txgen *g, unsigned n);

#endif
