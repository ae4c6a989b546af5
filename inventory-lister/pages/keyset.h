/*
 * keyset.h - the SQL of a page: rows after a position in an order, by index ranges.
 *
 * Names come quoted from the checked declaration, values only as parameters with a cast to the column's type. As far as
 * columns are NOT NULL and go one way they are one row comparison; otherwise there is one branch per prefix of the
 * order (equal so far, then beyond; NULLs as the direction puts them), joined by UNION ALL under the same ORDER BY and
 * LIMIT, each an index range of its own. Predicate, order and index use the column's own collation. Nothing depends on
 * the session's time zone.
 *
 * The limit is part of the text: with a parameter a prepared statement's plan would not know that few rows are wanted.
 * Ask with few different limits. Functions are thread-safe; nothing blocks.
 */
#ifndef RELATA_LISTER_PAGES_KEYSET_H
#define RELATA_LISTER_PAGES_KEYSET_H

#include "common/pg/pg.h"
#include "inventory-lister/collections/collection.h"
#include "inventory-lister/pages/page_token.h"

#define KEYSET_PARAMS (2 * FILTER_MAX + POSITION_MAX + 2) /* in-lists are one array each, a prefix has two ends */
#define KEYSET_NAMES 256

struct statement {
    struct buf sql;
    /* For pg_query: stays valid and stands for this text as long as the process lives. NULL = do not prepare: a process
     * prepares at most KEYSET_NAMES texts, those that come first at least twice. */
    const char *name;
    struct pg_param params[KEYSET_PARAMS];
    int nparams;
    struct buf scratch[FILTER_MAX]; /* array literals, ends of prefixes */
};

/*
 * Result columns: the collection's shown columns in their order, then the object's id as relata.encode_id gives it
 * (without its type), then the order's values as text: a struct position. `after` NULL = from the start. `bound` is the
 * claim's value. `limit` rows, at least 1. What filters, bound and after hold must outlive the statement, which is
 * freed by statement_free() in any case. ST_DENIED: the collection binds a claim and `bound` is NULL. ST_INVALID:
 * `bound` or a value of `after` is no value of its column, or `after` is of another order.
 */
enum status keyset_build(struct statement *out, const struct collection *c, const struct order *o,
                         const struct filters *f, const char *bound, const struct position *after, int64_t limit,
                         struct err *err) MUST_CHECK;
/* The one row with this id (as in the column, not encoded); same columns without order values. ST_NOT_FOUND: no row can
 * have it. */
enum status keyset_build_one(struct statement *out, const struct collection *c, const char *bound, const char *id,
                             struct err *err) MUST_CHECK;
/* The same, also if the collection's `where` leaves it out of lists. */
enum status keyset_build_unlisted(struct statement *out, const struct collection *c, const char *bound, const char *id,
                                  struct err *err) MUST_CHECK;
void statement_free(struct statement *s); /* accepts a zeroed one */

#endif
