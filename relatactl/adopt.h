/*
 * adopt.h - taking the tuples of an existing store into the ledger.
 *
 * A page of the store is inserted where the ledger knows nothing of the key, then read again: what the store no longer
 * holds, or holds with another condition, is corrected, unless the ledger moved meanwhile. So a row that stays was true
 * after it was committed. Rows of services always win.
 */
#ifndef RELATA_CTL_ADOPT_H
#define RELATA_CTL_ADOPT_H

#include "relatactl/ctl.h"
#include "relatactl/identity.h"
#include "relatactl/job.h"

struct adopt_options {
    bool restart, dry_run;
    int64_t passes, patience_s;
};

struct adopt_counts {
    int64_t read;      /* tuples of the store, the current pass */
    int64_t adopted;   /* new in the ledger */
    int64_t known;     /* already present in the ledger */
    int64_t absent;    /* the ledger says absent: pending, or drift */
    int64_t foreign;   /* not owned by this database */
    int64_t refused;   /* the ledger cannot hold them */
    int64_t withdrawn; /* gone from the store before they were confirmed */
    int64_t corrected; /* another condition by then */
};

struct adopt {
    enum status (*save)(struct adopt *a, bool finished, struct err *err); /* job.counts from counts, then job_save */
    struct ctl *ctl;
    const struct adopt_options *options;
    struct pin pin;
    struct job job;
    struct adopt_counts counts;
    int64_t pass;
    json_t *owned; /* object of "type#relation"; empty = everything */
    char first_refused[512];
    struct buf objects, relations, subjects, names, contexts;
};

/*
 * adopt_page.c. job.position is the token of the page at hand, job.pending is {"rows": [...], "next": token} while rows
 * of it are in the ledger but not confirmed. Each step is one transaction and may be repeated after any failure.
 */
/* Insert the page's tuples; job.pending is set, in Postgres too. */
enum status adopt_insert(struct adopt *a, struct err *err) MUST_CHECK;
/* Read the page again and confirm job.pending's rows; job.position moves on, job.pending becomes null. Not saved yet.
 */
enum status adopt_confirm(struct adopt *a, struct err *err) MUST_CHECK;

#endif
