/*
 * ledger.h - what a lane asks of Postgres: intent and state in one statement, acknowledgement, parking.
 *
 * One connection, one thread. All calls block until the statement's deadline; a lost connection is made anew at the
 * next call. None is retried here.
 */
#ifndef RELATA_WRITER_LEDGER_H
#define RELATA_WRITER_LEDGER_H

#include "common/pg/pg.h"
#include "tuple-writer/batch.h"
#include "tuple-writer/settings.h"

struct ledger {
    const struct settings *cfg;
    struct pg *pg;
    unsigned generation; /* of pg, for which the session is set up */
    struct pg_result *rows;
    struct buf objects, relations, subjects, numbers; /* of a batch, as binary arrays */
};

void ledger_init(struct ledger *l, const struct settings *cfg);
void ledger_release(struct ledger *l);

/*
 * Record the batch (sorted) as intent of this writer, durably, in place of its former intent, and read the state of its
 * keys, in one statement: no Write before it returned. Fills the items: known, present, version, conditions, visible;
 * items of which nothing is pending become ITEM_IDLE, those not visible yet ITEM_UNSEEN, unless they are written in any
 * case (forced, or late and not covered). Their strings live until the next call. b->intent is the new one; b->pinned
 * tells whether relata.store still names `store_id`. After ST_UNKNOWN an intent may be left over; intents_adopt() finds
 * it.
 */
enum status ledger_begin(struct ledger *l, struct batch *b, int64_t writer_id, const char *store_id,
                         struct err *err) MUST_CHECK;

/*
 * Acknowledge the items in ITEM_APPLIED that are not late at `now`: delete their outbox rows up to the version read,
 * close dead letters of theirs. They become ITEM_ACKED, or ITEM_MOVED if the ledger has another version by now. The
 * intent is deleted unless one moved or `keep_intent`. One statement; ITEM_APPLIED stays if it fails.
 */
enum status ledger_ack(struct ledger *l, struct batch *b, mono_us now, bool keep_intent, struct err *err) MUST_CHECK;

/* Make one item a dead letter: its outbox rows up to the version read, and the intent unless `keep_intent`, go.
 * ITEM_PARKED. */
enum status ledger_park(struct ledger *l, struct batch *b, struct item *it, const char *model_id, const struct err *why,
                        bool keep_intent, struct err *err) MUST_CHECK;

/* Delete an intent that covers nothing any more. */
enum status ledger_drop_intent(struct ledger *l, int64_t intent, struct err *err) MUST_CHECK;

#endif
