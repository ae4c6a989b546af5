/*
 * observe.h - late batches: does the store show an old state, that is now undone? Conflicts: another condition? And
 * refused changes: what stays in force? Point Reads; blocking, a lane's thread.
 */
#ifndef RELATA_WRITER_OBSERVE_H
#define RELATA_WRITER_OBSERVE_H

#include "tuple-writer/batch.h"

/* Before the ledger is read: note what the store shows of the late items. Stops at the first Read that fails; a key
 * that was not read is not judged. Each Read has request_timeout_ms. */
void observe_late(struct store_conn *conn, struct batch *b, int64_t request_timeout_ms);
/* After the ledger was read: item.differs where the store showed what is not the ledger's state and nothing newer
 * explains it. Returns how many. */
size_t observe_judge(struct batch *b);

/* Items in ITEM_SENT that are to be present, but that the store holds with another condition, get `replace`. Returns
 * how many, or -1 if a Read failed (then with *err). */
int observe_conflicts(struct store_conn *conn, struct batch *b, int64_t request_timeout_ms, struct err *err);

/* A change that the store refuses leaves what the store had: add that to the reason *why if it is access that the
 * ledger does not want so. A Read that fails adds that it is not known. */
void observe_refused(struct store_conn *conn, const struct item *it, int64_t request_timeout_ms, struct err *why);

#endif
