/*
 * judge.h - from candidates to findings: each difference is looked at again before anybody is told of it.
 *
 * A look takes the ledger's state of a tuple at the primary (and what is pending, parked or under way for it), reads
 * the tuple from the store with higher consistency, asks the inventory what it says now, then takes the ledger's state
 * once more. If that moved, or if anything is pending, nothing is known yet: such a tuple is looked at again until
 * audit.settle has passed, and counted as in flight then. An object of which a source cannot tell what it stands for is
 * judged by ledger and store alone. What differs is looked at again after
 * store.late_window, in which a request that somebody gave up may still take effect; only what differs in the same way
 * then is a finding.
 *
 * Main thread; reads of the store run on audit.concurrency threads, joined before each call returns. Memory: some 300
 * bytes a candidate, of which audit.max_findings are kept.
 */
#ifndef RELATA_DRIFT_JUDGE_H
#define RELATA_DRIFT_JUDGE_H

#include "drift-checker/compare/compare.h"

enum cause {
    CAUSE_NEVER_EMITTED,      /* the inventory stands for it; the ledger never heard of it */
    CAUSE_LOST,               /* the ledger has it, the store does not, and nothing is on its way */
    CAUSE_PARKED,             /* its change was refused and lies in relata.dead_letter */
    CAUSE_OUT_OF_BAND,        /* the store has it, and nobody who uses Relata wrote it */
    CAUSE_ORPHAN,             /* the ledger has it; nothing in the inventory stands for it */
    CAUSE_CONDITION_MISMATCH, /* both have it, with different conditions */
    CAUSE_INVALID_IN_MODEL,   /* the model in force does not know such a tuple: checks ignore it */
};
#define CAUSES 7
const char *cause_name(enum cause c);
/* -1: no such name. */
int cause_of(const char *name);

enum action {
    ACTION_TOUCH,  /* the ledger's state is enqueued again */
    ACTION_EMIT,   /* the inventory is asked under a lock, and what it says is enqueued */
    ACTION_DELETE, /* a deletion is enqueued */
    ACTION_NONE,   /* a person has to decide: see audit_finding's detail */
};
const char *action_name(enum action a);

/* What a side holds of a tuple. */
struct holding {
    bool present;
    char *condition; /* NULL = none */
    char *context;   /* JSON text; NULL = none */
};

struct finding {
    struct tuple_key *key;
    enum cause cause;
    bool excess;  /* somebody may do what nobody granted: the store has it, or has it without its condition */
    bool deletes; /* its repair takes something from somebody */
    enum action action;
    bool judged_expected; /* the inventory can tell, and `expected` is what it says */
    struct holding expected, ledger, observed;
    int64_t version; /* the ledger's; 0: it has no row */
    char *reason;    /* of the dead letter; NULL = none */
    /* from the record: */
    int64_t id;
    char first_seen[32];
    bool repaired;
    char token[64];
};

struct findings {
    struct finding *items; /* sorted: excess first, then by cause and key */
    size_t len;
    int64_t candidates; /* differences between snapshots, each once */
    int64_t in_flight;
    int64_t vanished; /* agreed on a second look */
    bool more;        /* candidates beyond audit.max_findings were not looked at */
};
void findings_free(struct findings *f);

struct judge;

/* `job` and `sources` must live until judge_free. Opens nothing yet. */
enum status judge_new(struct judge **out, const struct compare_job *job, struct store *store,
                      const struct sources *sources, struct err *err) MUST_CHECK;
void judge_free(struct judge *j); /* accepts NULL */
/* Of the type that compare_run() calls. Keeps the candidate. */
enum status judge_add(void *judge, const struct candidate *c, struct err *err) MUST_CHECK;
/* Looks, waits and looks again. ST_OK with what is confirmed; or what Postgres or the store said: then nothing is
 * known. */
enum status judge_finish(struct judge *j, struct findings *out, struct err *err) MUST_CHECK;

#endif
