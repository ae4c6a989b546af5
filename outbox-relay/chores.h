/*
 * chores.h - what the active relay does beside carrying changes, in a thread and on a connection of its own, so that it
 * never delays them: relata.maintain(), metrics of lag and slot, heartbeats, and finding rows to be sent again.
 *
 * All functions are for the relay's thread; they only exchange values under a lock.
 */
#ifndef RELATA_RELAY_CHORES_H
#define RELATA_RELAY_CHORES_H

#include "outbox-relay/resend.h"
#include "outbox-relay/settings.h"

struct chores;

/* `cfg` must outlive the process; the names are copied. */
enum status chores_start(struct chores **out, const struct settings *cfg, const char *application_name,
                         const char *slot, struct err *err) MUST_CHECK;
/* Waits 1 s for the call that runs now, then cancels it; `db` (which need not be connected) serves for that. After 6 s
 * it leaves the thread to end by itself, which a server that does not answer can delay to the call's own deadline.
 * Accepts NULL. */
void chores_stop(struct chores *c, struct db *db);
/* Readable when rows are to be sent again. */
int chores_fd(const struct chores *c);
void chores_progress(struct chores *c, const struct progress *p);
/* True if a store's rows are to be sent again: `out` (zeroed before) is filled and owned by the caller. */
bool chores_resend_take(struct chores *c, struct resender *out);
/* That store is done. */
void chores_resend_done(struct chores *c, const char *store);

#endif
