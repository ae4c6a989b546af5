/*
 * snapshot.h - several statements in one snapshot, without round trips of their own for BEGIN and COMMIT. Part of
 * common/pg; pg.h tells what the statuses mean.
 *
 * REPEATABLE READ READ ONLY: all statements see the rows as of the first one. Nothing is ever at stake.
 */
#ifndef RELATA_PG_SNAPSHOT_H
#define RELATA_PG_SNAPSHOT_H

#include "common/pg/pg.h"

/*
 * As pg_query(). Outside a transaction it opens one: BEGIN travels with the statement. After an error the transaction
 * is to be ended. A prepared statement that is gone is made anew if it was the first one of its transaction, else
 * ST_RETRY.
 */
enum status pg_snapshot_query(struct pg *pg, const char *name, const char *sql, const struct pg_param *params,
                              int nparams, mono_us deadline, struct pg_result **out, struct err *err) MUST_CHECK;
/* Sends COMMIT and does not wait: the next use of the connection reads its outcome. Does nothing outside a transaction,
 * or if the connection is lost. */
void pg_snapshot_end(struct pg *pg);

#endif
