/*
 * slot_maker.h - making a logical replication slot without waiting for it.
 *
 * Creating a slot waits for every transaction that is open (with an xid) at that moment, however long; so it has a
 * thread and a connection of its own, and the relay goes on meanwhile.
 */
#ifndef RELATA_RELAY_SLOT_MAKER_H
#define RELATA_RELAY_SLOT_MAKER_H

#include "outbox-relay/db.h"
#include "outbox-relay/settings.h"

struct slot_maker;

/* Starts. `cfg` must outlive the process; the names are copied. */
enum status slot_maker_start(struct slot_maker **out, const struct settings *cfg, const char *application_name,
                             const char *slot, struct err *err) MUST_CHECK;
/* Readable once there is a result. */
int slot_maker_fd(const struct slot_maker *m);
/* False while it works. True: *st and *err say how it went; with ST_OK `lsn` is the consistent point. */
bool slot_maker_result(struct slot_maker *m, enum status *st, char lsn[24], struct err *err);
/* Ends it: cancels what runs through `db`, waits at most 2 s; a slot that became ready all the same stays. Accepts
 * NULL. */
void slot_maker_stop(struct slot_maker *m, struct db *db);

#endif
