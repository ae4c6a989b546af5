/*
 * standby.h - source = outbox, while another process is the active reader: who is, and does it get ahead?
 *
 * Its lock lasts as long as its session, and a process that is stopped (SIGSTOP, a frozen machine or container) keeps
 * its session: the kernel goes on answering for it. Only a person can tell that from a slow one, so this says whom it
 * waits for, and how to end that session.
 */
#ifndef RELATA_WRITER_STANDBY_H
#define RELATA_WRITER_STANDBY_H

#include "common/pg/pg.h"
#include "tuple-writer/writer.h"

struct standby {
    int64_t pid; /* of the session that holds the lock, as last seen; 0 = not standing by, or not known */
    bool waits;  /* standing by has been logged */
    bool warned; /* that this session does not get ahead */
};

/* About once a second: find out who holds the lock; sets readiness and metrics, logs changes. Blocks for one statement.
 */
enum status standby_step(struct standby *s, struct writer *w, struct pg *pg, mono_us deadline,
                         struct err *err) MUST_CHECK;
/* Not standing by any more. */
void standby_end(struct standby *s);

#endif
