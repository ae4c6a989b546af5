/*
 * parked.h - dead letters that deserve another try because the store's model is another than the one that refused them.
 */
#ifndef RELATA_WRITER_PARKED_H
#define RELATA_WRITER_PARKED_H

#include "common/pg/pg.h"
#include "tuple-writer/writer.h"

struct parked {
    int64_t after; /* dead letters up to this id were offered */
    bool running;
};

/* The pin changed: start over with the next parked_step(). */
void parked_start(struct parked *p);
/* Offer one page of keys to the lanes, if there is room. Blocks for one statement. */
enum status parked_step(struct parked *p, struct writer *w, struct pg *pg, struct err *err) MUST_CHECK;

#endif
