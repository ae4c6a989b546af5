/*
 * intents.h - taking over what writers that ended may have left under way.
 */
#ifndef RELATA_WRITER_INTENTS_H
#define RELATA_WRITER_INTENTS_H

#include "common/pg/pg.h"
#include "tuple-writer/writer.h"

/*
 * Take over intents whose writer's session is gone, and old ones of ours that no lane knows (their statement's answer
 * was lost): recorded as ours, a batch of keys a row, and handed to the lanes as late batches due one late window from
 * now. The time counts from now, not from the intent's: its writer may have sent its Write just before it ended. Blocks
 * for a few statements. *more: there may be others.
 */
enum status intents_adopt(struct writer *w, struct pg *pg, bool *more, struct err *err) MUST_CHECK;

#endif
