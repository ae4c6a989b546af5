/*
 * page.h - one page of a list: rows from Postgres, decided in chunks while the next ones are read, refilled until it is
 * full, the list ends, or the scan budget or the deadline is reached.
 *
 * All rows of a page are read in one snapshot. A page looks on for one visible row more than it shows, so that whether
 * there is a next page does not tell of hidden rows behind the last visible one. A row whose check failed ends the page
 * before it: complete = false.
 */
#ifndef RELATA_LISTER_PAGES_PAGE_H
#define RELATA_LISTER_PAGES_PAGE_H

#include "inventory-lister/collections/collection.h"
#include "inventory-lister/decide/decide.h"
#include "inventory-lister/pages/page_token.h"

struct pg;
struct pg_result;

struct page_request {
    const struct collection *collection;
    const char *relation;
    const char *const *with_relations;
    size_t nwith;
    const struct order *order;
    const struct filters *filters;
    const char *bound;            /* value of the bound column, or NULL */
    const struct position *after; /* NULL = the first page */
    int64_t size;                 /* 1 .. 1000 */
    int64_t scan_budget;          /* rows looked at, at most */
    int64_t statement_timeout_ms; /* for one statement; 0 = only query->deadline */
    struct decide_query *query;
};

struct page {
    struct buf items; /* JSON array: each row an object of its shown columns, "relations": {..} if asked for */
    int64_t shown;
    bool complete;                    /* false: ended early */
    bool more;                        /* there is a next page, or this one ended early */
    struct position at;               /* where the next one goes on, if more */
    int64_t scanned, checked, cached; /* for those who may know */
    int64_t sql_us, check_us;
};

/* ST_OK also for a page that ended early. An error (no database, no decision for the very first row) is one: 503, never
 * an empty page called complete. */
enum status page_read(struct pg *pg, struct decider *d, const struct page_request *rq, struct page *out,
                      struct err *err) MUST_CHECK;
void page_free(struct page *p);

#endif
