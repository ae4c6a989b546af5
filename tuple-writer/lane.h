/*
 * lane.h - the lanes: threads that each converge one batch of keys at a time.
 *
 * They share the table of hints (hints.h), in which an object is under way once, so that changes of one object keep
 * their order and one key is never under way twice; and the late batches. A lane decides there, without a detour, what
 * is next: its batches to be tried again, a late batch that is due, or what is queued, revocations first. A full batch
 * begins as soon as there is a lane; a smaller one when no Write is under way, or as long after the last one began as a
 * Write takes.
 *
 * All functions are thread-safe, but for those named as the source's.
 */
#ifndef RELATA_WRITER_LANE_H
#define RELATA_WRITER_LANE_H

#include "common/base/status.h"
#include "tuple-writer/hints.h"
#include "tuple-writer/writer.h"

struct lanes;

/* Threads start with lanes_start(). */
enum status lanes_new(struct lanes **out, struct writer *w, struct err *err) MUST_CHECK;
enum status lanes_start(struct lanes *l, struct err *err) MUST_CHECK;
/* Lanes finish the attempt that they are at (Write, event, acknowledgement) and end; nothing else is begun. */
void lanes_stop(struct lanes *l);
/* False if some still run at the deadline: then nothing that they use may be freed. */
bool lanes_join(struct lanes *l, mono_us deadline);
void lanes_free(struct lanes *l); /* after lanes_join(); accepts NULL */

/* Hints of one page or poll, in order: they enter the table together, so that a transaction's changes to an object find
 * each other. Copies the strings, takes the refs. Never blocks on work. */
void lanes_offer(struct lanes *l, const struct hint *hints, size_t n);
/* Keys held that count against the window of revocations, or of others. */
size_t lanes_held(struct lanes *l, bool revokes);

/* An eventfd that becomes readable when refs are done, and once after lanes_want_room() when both kinds of keys held
 * are at most `level`. */
int lanes_fd(struct lanes *l);
void lanes_want_room(struct lanes *l, size_t level);
void lanes_fd_clear(struct lanes *l);
/* source = outbox. True once after a lane that had dropped hints goes on: rows that were offered are to be offered
 * again. lanes_fd() becomes readable. */
bool lanes_take_reread(struct lanes *l);
void lanes_reread(struct lanes *l);
/* Refs done since the last call; the caller frees them. */
struct offset_ref *lanes_done(struct lanes *l);
/* A partition is not ours any more (see hint_table_forget). Returns how many refs were freed. */
size_t lanes_forget(struct lanes *l, const void *part, bool keep_taken);
/* True while some lane has a batch in flight. */
bool lanes_busy(struct lanes *l);

/* Keys that may still be changed by a request whose sender is gone, covered by this intent of ours: to be
 * converged when `due` has come, and not to be acknowledged before. */
void lanes_adopt(struct lanes *l, int64_t intent, const struct tuple_key *keys, size_t n, mono_us due);
/* Intents that lanes hold now. Returns how many there are; fills at most `max`. */
size_t lanes_intents(struct lanes *l, int64_t *out, size_t max);

/* The last key applied since the last call, for relata.probe. The caller frees *key; NULL if there is none. */
struct tuple_key *lanes_last_applied(struct lanes *l, int64_t *version);
/* Gauges. */
void lanes_metrics(struct lanes *l);

#endif
