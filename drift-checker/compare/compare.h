/*
 * compare.h - three sides of one truth: what the inventory stands for (expected), what the ledger says (relata.tuple),
 * and what the store holds (observed). Finds the tuples in which they differ.
 *
 * Sides that agree are not read: each database sums the hashes of its tuples, over all where that tells enough, else by
 * type and relation; where the sums differ, by bucket too; and only the buckets that differ are streamed, in key order,
 * and merged. A hash is hashtextextended() of subject, relation and object, each the next one's seed, with a salt of
 * its own for each run, so that nobody can make two tuples whose hashes cancel out; sums, unlike XOR, see a tuple
 * twice. Conditional tuples are always streamed: their contexts are compared by meaning.
 *
 * Expected and ledger are read in one snapshot, the store a moment later: what differs is a candidate and no more.
 * Main thread only; starts threads of its own and joins them. Memory: COMPARE_BUCKETS * 64 bytes, a few thousand
 * rows a side, and what the caller keeps of the candidates. The stop flag and the bound on the snapshots' age end it.
 */
#ifndef RELATA_DRIFT_COMPARE_H
#define RELATA_DRIFT_COMPARE_H

#include "common/base/status.h"
#include "common/store/store.h"
#include "drift-checker/settings.h"
#include "engine/model.h"

#define COMPARE_BUCKETS 65536

struct candidate {
    struct tuple_key key;
    bool judged_expected; /* sources of expected tuples speak of this pair (type, relation), and of this object */
    bool invalid;         /* the model in force does not allow it */
};

/* One source of expected tuples: a tracked table, or a view. */
struct source {
    char *name;     /* "inventory.memberships" */
    bool tracked;   /* by relata.track */
    uint32_t table; /* of a tracked one: its oid; naming it takes rights on its schema, which audits do without */
    char *type;     /* of a view: the type it was configured for; NULL for tables */
    bool condition; /* of a view: it has columns for conditions */
    int64_t tuples; /* rows that stand for one: duplicates count */
    int64_t nulls;  /* rows of a view that lack a part */
    int64_t before; /* what the last audit counted; -1: not known */
};

struct sources {
    struct source *items;
    size_t len;
};

struct compare_job {
    const struct settings *cfg;
    struct pg *pg; /* the primary, with relata_auditor's rights; Read pages come to a temporary table of it */
    struct store_conn *store;
    const char *store_id, *model_id;
    const struct model *model;
    bool check_model; /* hold every tuple against the model */
    /* "type#relation" that earlier audits found expected, ended by NULL; or NULL. A table whose rows name the relation
     * says what it speaks of only while it has such rows. */
    const char *const *known_pairs;
    /* Called on the way, with what is being done and how far it is; either count may be 0. */
    void (*progress)(void *arg, const char *what, int64_t done, int64_t total);
    void *progress_arg;
};

struct comparison {
    struct sources sources;             /* with `before` as the caller set it in compare_sources() */
    int64_t expected, ledger, observed; /* tuples that are judged, conditional ones included */
    int64_t not_owned_ledger, not_owned_observed;
    int64_t skipped_ledger, skipped_observed;
    int64_t buckets, buckets_differ, streamed;
    int64_t unresolvable; /* objects of which a view's row lacks a part: nothing of theirs counts as an orphan */
    bool by_tuple;        /* digests were not asked */
    bool conditional;     /* some tuple has a condition */
    bool pages;           /* the store was read by its API */
    bool authz;           /* or from authz-store's table */
    char **known_pairs;   /* for the next audit; ended by NULL, on the heap */
    int64_t invalid;      /* tuples that the model does not allow */
    int64_t snapshot_ms;  /* how long the snapshots were held */
};

/* The sources that the settings name, found in the database: ST_CONFIG or ST_MISSING, naming the source, if one is not
 * as it must be. Free with sources_free. */
enum status compare_sources(const struct compare_job *job, struct sources *out, struct err *err) MUST_CHECK;
void sources_free(struct sources *s);

void comparison_free(struct comparison *c);

/*
 * `out->sources` comes from compare_sources(). `found` is called for each candidate, in no order, some perhaps twice;
 * the key is valid during the call. ST_OK, or ST_INVALID with err.code "expected": a source failed, is empty though the
 * ledger has tuples of its pairs, or shrank; ST_DEADLINE: the snapshots would have been held for too long; ST_STOPPED;
 * or what Postgres or the store said.
 */
enum status compare_run(const struct compare_job *job, struct comparison *out,
                        enum status (*found)(void *arg, const struct candidate *c, struct err *err), void *arg,
                        struct err *err) MUST_CHECK;

/* SQL with $1 .. $3 as text[] of object, relation, subject and $4 as the store's name: rows (n, condition_name,
 * condition_context, unknown) of the keys, counted from 1, that some source yields; or, with `unknown`, of whose object
 * some source cannot tell what it stands for. Of several rows for a key the first one counts. For a fresh look at
 * single tuples. */
void compare_yields_sql(const struct sources *s, const struct settings *cfg, struct buf *out);

#endif
