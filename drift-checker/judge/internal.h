/* internal.h - what the files of drift-checker/judge share; nobody else includes it. */
#ifndef RELATA_DRIFT_JUDGE_INTERNAL_H
#define RELATA_DRIFT_JUDGE_INTERNAL_H

#include "common/pg/pg.h"
#include "drift-checker/judge/inventory.h"
#include "drift-checker/judge/judge.h"

#define BATCH 500

/* What is known of a candidate after a look. */
struct facts {
    struct holding expected, ledger, observed;
    int64_t version;
    bool unknown; /* the inventory cannot tell what the object stands for */
    bool pending; /* an outbox row, or a Write that may be under way: the store is not asked then */
    bool moved;   /* the ledger's state changed while the store was read */
    char *reason; /* of an open dead letter */
};
void facts_clear(struct facts *f);

struct suspect {
    struct tuple_key *key;
    bool judged_expected;
    struct facts facts;
    int cause; /* -1: all agree; means nothing while something is pending */
};

struct judge {
    const struct compare_job *job;
    struct store *store;
    const struct sources *sources;
    struct suspect *items;
    size_t len, cap;
    bool more;
};

/* A look at up to BATCH suspects. */
enum status look(struct judge *j, struct suspect **batch, size_t n, struct err *err) MUST_CHECK;
/* Point Reads of a batch, several at once. */
enum status reads_run(struct judge *j, struct suspect **batch, size_t n, struct err *err) MUST_CHECK;
/* -1, or what the facts say. */
int cause_of_facts(const struct judge *j, const struct suspect *s);
/* Neither ledger nor store hold what the model forbids. */
bool is_allowed(const struct judge *j, const struct suspect *s);
/* Nothing can be said yet: something is pending, or moved. */
static inline bool unsettled(const struct suspect *s)
{
    return s->facts.pending || s->facts.moved;
}

#endif
