/*
 * ops.h - what ordinary people do with the inventory, as a weighted catalogue of transactions.
 *
 * Every operation is a few SQL statements on the inventory's own tables, in one transaction. Only "a user is erased"
 * calls Relata; all other tuples follow from the rows by relata.track. Pure data: thread-safe.
 */
#ifndef RELATA_DEMO_LIFE_OPS_H
#define RELATA_DEMO_LIFE_OPS_H

#include <stddef.h>

#define OP_STEPS_MAX 4
#define OP_ARGS_MAX 4

struct op_step {
    const char *name; /* of the prepared statement; NULL ends the list */
    const char *sql;
    /* What $1, $2, .. are, a letter each: 'a', 'b' = two random numbers in [0, 1), the same in all steps; 'n' = a name
     * that was never used; 'r' = the first column of the step before. */
    const char *args;
};

struct op {
    const char *what; /* for the report: "joins a team" */
    unsigned weight;
    /* A step that returns or changes no row ends the operation: there was nothing to do it to. */
    struct op_step steps[OP_STEPS_MAX];
};

extern const struct op ops[];
extern const size_t ops_len;

/* The operation at `r` in [0, 1) of the summed weights. */
const struct op *op_pick(double r);

#endif
