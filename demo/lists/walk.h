/*
 * walk.h - all pages of a list, and the same list by plain SQL: row by row, in order.
 */
#ifndef RELATA_DEMO_LISTS_WALK_H
#define RELATA_DEMO_LISTS_WALK_H

#include <stddef.h>

#include "common/pg/pg.h"
#include "demo/lists/lister.h"

struct walk {
    const char *user;     /* id in inventory.users */
    const char *relation; /* "can_edit" */
    const char *since;    /* RFC 3339; "" = instances of any age */
    const char *from;     /* sorted by name, from this one on; NULL = all, newest first */
};

struct walked {
    size_t rows, pages, incomplete; /* pages that ended early: budget, deadline */
    double seconds;
    bool equal;
    char difference[400]; /* the first, if not equal */
};

/* `truth` is a login that may read the inventory; nothing may change meanwhile. A difference is no error. */
enum status walk_compare(struct lister *l, struct pg *truth, const struct walk *w, mono_us deadline, struct walked *out,
                         struct err *err) MUST_CHECK;

#endif
