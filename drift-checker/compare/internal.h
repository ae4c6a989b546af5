/* internal.h - what the files of drift-checker/compare share; nobody else includes it. */
#ifndef RELATA_DRIFT_COMPARE_INTERNAL_H
#define RELATA_DRIFT_COMPARE_INTERNAL_H

#include <pthread.h>

#include "common/pg/pg.h"
#include "drift-checker/compare/compare.h"

enum side { SIDE_EXPECTED, SIDE_LEDGER, SIDE_OBSERVED, SIDES };

/* ---- pairs.c: (type, relation), and what is to be judged of it ---- */

struct pair {
    char *type, *relation;
    bool owned, skipped;
    bool expected;    /* sources speak of it */
    int64_t n[SIDES]; /* tuples without a condition */
    uint64_t sum[SIDES];
    bool differs;      /* by these */
    struct pair *next; /* of the same hash */
};

struct pairs;
/* Reads relata.owned, relata.tracked_rule and the pairs that the last audit saw expected. */
enum status pairs_new(struct pairs **out, const struct compare_job *job, const struct sources *sources,
                      struct err *err) MUST_CHECK;
void pairs_free(struct pairs *p);
/* The pair; known from now on. Any thread. NULL = no memory. */
struct pair *pairs_get(struct pairs *p, const char *type, size_t type_len, const char *relation);
static inline bool pair_judged(const struct pair *p)
{
    return p->owned && !p->skipped;
}
/* Whatever the pair. */
bool pairs_all_judged(const struct pairs *p);
/* All of them. */
struct pair *pairs_first(struct pairs *p, size_t *at);
struct pair *pairs_next(struct pairs *p, size_t *at, struct pair *last);

/* ---- sides.c: each side as SQL ---- */

struct sides {
    const struct compare_job *job;
    const struct sources *sources;
    uint64_t salt;
    struct pg *pg[SIDES]; /* inside a transaction each; expected and ledger in one snapshot */
    mono_us until;        /* the bound on the snapshots' age */
    bool pages;           /* read by the store's API; else from its table: */
    bool authz;           /* authz-store's, not OpenFGA's */
    bool same[SIDES];     /* as the ledger, by sums: there is nothing to stream */
};

/* Opens the connections and their snapshots; the store's pages are in pg_temp.observed of pg[SIDE_OBSERVED] then. */
enum status sides_open(struct sides *s, const struct compare_job *job, const struct sources *sources,
                       struct err *err) MUST_CHECK;
void sides_close(struct sides *s);
/* How long a statement may take. */
int64_t sides_ms(const struct sides *s);
enum digest_by { BY_ALL, BY_PAIR, BY_BUCKET };
/* COPY .. TO STDOUT of (type, relation, bucket or -1 for conditional ones, count, sum of hashes); by anything but pair
 * the type is '', and the relation 'x' if no source speaks of the pair, or ''. Tracked tables give pairs always.
 * `source` is for the expected side. `only`: the pairs that differ, NULL for all. */
void side_digest_sql(const struct sides *s, enum side side, const struct source *source, enum digest_by by,
                     struct pairs *only, struct buf *out);
/* SELECT of (object, relation, subject, condition_name, condition_context) in key order; `buckets`, a text array, NULL:
 * all. */
void side_stream_sql(const struct sides *s, enum side side, const char *buckets, struct buf *out);
/* The same columns of a side, without an order. */
void side_rows_sql(const struct sides *s, enum side side, const char *buckets, struct buf *out);
void add_literal(struct buf *out, const char *text);
/* One statement on a connection of the sides, its result in *r. */
enum status side_ask(const struct sides *s, struct pg *pg, const char *sql, struct pg_result **r,
                     struct err *err) MUST_CHECK;

/* ---- pages.c ---- */

enum status pages_read(struct sides *s, struct err *err) MUST_CHECK;

/* ---- digest.c ---- */

/* Sums of all sides, at once. Fills counts; `buckets` (COMPARE_BUCKETS) says which differ. */
enum status digest_sides(struct sides *s, struct pairs *pairs, struct comparison *out, bool *buckets,
                         struct err *err) MUST_CHECK;

/* ---- merge.c ---- */

typedef enum status found_fn(void *arg, const struct candidate *c, struct err *err);
enum status merge_sides(struct sides *s, struct pairs *pairs, const char *buckets, bool count, struct comparison *out,
                        found_fn *found, void *arg, struct err *err) MUST_CHECK;

/* ---- invalid.c ---- */

/* Holds all tuples against the model. */
enum status invalid_find(struct sides *s, struct pairs *pairs, struct comparison *out, found_fn *found, void *arg,
                         struct err *err) MUST_CHECK;

/* ---- context.c: condition contexts of OpenFGA's table ---- */

/* A google.protobuf.Struct, in hexadecimal digits, as the text of a JSON object. False: it is none. */
bool context_decode(const char *hex, struct buf *out);

#endif
