/*
 * min_token.h - read your writes: wait until the transaction that a token names is applied to the store.
 *
 * A token is "r1.<system identifier>.<timeline>.<transaction id>" (relata.token(), relata.write_tuple). Asked in this
 * order, each in its own statement: is it of this cluster; is the transaction committed; is none of its rows pending.
 * In one statement the rows could be looked for as of before the commit, and the commit seen after it.
 */
#ifndef RELATA_LISTER_PAGES_MIN_TOKEN_H
#define RELATA_LISTER_PAGES_MIN_TOKEN_H

#include "common/base/clock.h"
#include "common/base/status.h"

struct pg;

/*
 * `pg` is in no transaction. Blocks until `deadline` at most; ends early with ST_STOPPED when the stop flag is raised.
 *   ST_OK        applied; *applied_at is a moment after that (decide_query.not_before)
 *   ST_INVALID   no token, one of another cluster or timeline, one that was never given out, or so old that Postgres no
 *                longer knows what became of its transaction (400)
 *   ST_CONFLICT  rolled back, parked (err.code "parked": err.text names the change, which is not for everybody), or not
 *                applied by the deadline (err.text says how far replication is) (409)
 *   others       of the connection (pg.h); ST_DEADLINE if nothing at all could be learned in time
 * Polls, 1 ms growing to 20 ms.
 */
enum status min_token_wait(struct pg *pg, const char *store, const char *token, mono_us deadline, mono_us *applied_at,
                           struct err *err) MUST_CHECK;

/* The same without waiting: ST_CONFLICT with err.code "pending" if it would have to. */
enum status min_token_look(struct pg *pg, const char *store, const char *token, mono_us deadline, mono_us *applied_at,
                           struct err *err) MUST_CHECK;

#endif
