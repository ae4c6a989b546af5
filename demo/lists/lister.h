/*
 * lister.h - a client of inventory-lister's list API: one connection, one page at a time.
 *
 * A refusal because of load, or a store that did not answer in time (503, 504), is asked again until the deadline, as
 * long as Retry-After says, and counted. One thread at a time.
 */
#ifndef RELATA_DEMO_LISTS_LISTER_H
#define RELATA_DEMO_LISTS_LISTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/clock.h"
#include "common/base/status.h"

struct lister;

#define CONDITIONS_MAX 4

/* What is asked for; the texts stay the caller's. */
struct question {
    const char *relation, *subject, *order;
    struct {
        const char *name; /* "filter.name.prefix" */
        const char *value;
    } conditions[CONDITIONS_MAX];
    size_t nconditions;
};

struct page {
    json_t *items; /* an array of rows */
    char *next;    /* "" = this was the last page */
    bool complete;
};
void page_release(struct page *p); /* accepts a zeroed one */

/* Both texts must outlive it. */
enum status lister_new(struct lister **out, const char *url, const char *token, struct err *err) MUST_CHECK;
void lister_free(struct lister *l); /* accepts NULL */
/* One page of the collection "instances"; `token` is the former page's `next`, "" for the first. */
enum status lister_page(struct lister *l, const struct question *q, int64_t size, const char *token, mono_us deadline,
                        struct page *out, struct err *err) MUST_CHECK;
/* How often a page was asked for again. */
unsigned lister_retries(const struct lister *l);

#endif
