/*
 * change.h - a right is taken away and given back, in the inventory; how long a warm list takes to follow.
 */
#ifndef RELATA_DEMO_LISTS_CHANGE_H
#define RELATA_DEMO_LISTS_CHANGE_H

#include <stdint.h>

#include "common/pg/pg.h"
#include "demo/lists/lister.h"

#define ROUNDS_MAX 100

/* Two statements of the service, and the row of a list that comes and goes with them. */
struct change {
    const char *what, *revoke, *grant;
    const char *subject, *relation, *team;
    int64_t row;
};

struct changed { /* microseconds from the end of COMMIT to the first list without, or with, the row; sorted */
    size_t rounds;
    int64_t gone[ROUNDS_MAX], back[ROUNDS_MAX];
    int64_t polls; /* lists asked for */
};

/* The list is the newest 50 instances of one team that the subject may see, asked for again and again, so that the
 * decisions are cached. ST_DEADLINE if the list does not follow within 10 s. */
enum status change_measure(struct lister *l, struct pg *service, const struct change *c, size_t rounds,
                           mono_us deadline, struct changed *out, struct err *err) MUST_CHECK;

#endif
