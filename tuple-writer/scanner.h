/*
 * scanner.h - pages through the outbox in rounds.
 *
 * A round reads, in (xid, id) order, the rows that the snapshot taken at the start of the round before could not see;
 * the first round reads all. Rows that are dealt with disappear, rows that are not stay in the lanes, so none is read
 * twice but those that commit during a round. The last transaction of a full page is kept back until the next page, so
 * that its changes to one object enter a lane together.
 */
#ifndef RELATA_WRITER_SCANNER_H
#define RELATA_WRITER_SCANNER_H

#include "common/pg/pg.h"
#include "tuple-writer/hints.h"
#include "tuple-writer/lane.h"

#define SCAN_PAGE 1000

struct scanner {
    bool revokes; /* rows with op = 'delete', or all others */
    bool running; /* within a round */
    char *last;   /* snapshot at the start of the round before; NULL = the first round */
    char *round;  /* snapshot at the start of this one */
    char xid[24]; /* keyset: read up to here */
    int64_t id;
};

void scanner_init(struct scanner *s, bool revokes);
void scanner_release(struct scanner *s);
/* Start over: everything that is pending is read again. */
void scanner_reset(struct scanner *s);

struct scanned {
    size_t rows; /* that were offered */
    bool more;   /* a page was full: there is more to be read at once */
};

/* Read a page for the scanner of revocations and one for the other, each if it has room, and offer them. Blocks for one
 * or two statements. */
enum status scanners_step(struct scanner *const scanners[2], const bool room[2], struct writer *w, struct pg *pg,
                          struct scanned *out, struct err *err) MUST_CHECK;

#endif
