/*
 * record.h - audits as Postgres remembers them: relata.audit_run, relata.audit_finding. One audit of a store at a time,
 * by advisory lock (1380270088, hashtext of the store's name) on the connection that is given; it goes with the
 * session. Main thread; each call is a few statements.
 */
#ifndef RELATA_DRIFT_RECORD_H
#define RELATA_DRIFT_RECORD_H

#include <jansson.h>

#include "common/pg/pg.h"
#include "drift-checker/judge/judge.h"

struct run {
    int64_t id;
    const char *store; /* name */
    char store_id[64], model_id[64];
    char scope[1100]; /* "", "type doc", "object doc:1", "subject user:anne", "plan" */
    char started_at[40];
    /* of the last complete audit of everything: */
    json_t *sources;    /* {"inventory.shares": 5000}; NULL = none */
    char **known_pairs; /* ended by NULL; NULL = none */
    bool check_model;   /* that one did not hold all tuples against this model, or found some that it does not allow */
};

/* Takes the lock (ST_CONFLICT: another audit runs), marks what ended without a word as incomplete, and opens a run. The
 * pin must be in `run`. */
enum status record_begin(struct pg *pg, const struct settings *cfg, struct run *run, struct err *err) MUST_CHECK;
/* Records findings, and fills their ids and when they were first seen. */
enum status record_findings(struct pg *pg, const struct settings *cfg, const struct run *run, struct findings *f,
                            struct err *err) MUST_CHECK;
/* How a run ended. */
struct run_end {
    const char *state; /* "clean", "drift", "incomplete" or "refused" */
    const char *why;
    const json_t *counts, *sources;
    bool models_seen; /* every tuple was held against the model */
    bool all_seen;    /* every difference of the scope was followed up */
};
/* Closes the run. A complete one that saw all closes the findings of its scope that it did not see, but for those on
 * which a change is pending: they are undecided. */
enum status record_end(struct pg *pg, const struct settings *cfg, const struct run *run, const struct run_end *end,
                       struct err *err) MUST_CHECK;
/* Objects all of whose findings are those of another, missing and too many: ("cluster:c1", "cluster:c2", tuples). */
enum status record_renamed(struct pg *pg, const struct settings *cfg, const struct run *run, struct pg_result **out,
                           struct err *err) MUST_CHECK;
void run_release(struct run *run);

#endif
