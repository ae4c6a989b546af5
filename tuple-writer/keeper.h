/*
 * keeper.h - a thread that tends to what Postgres knows of this process, about once a second, on a connection of its
 * own.
 *
 * It registers the process in relata.writer and holds the session lock that says it lives; with source = outbox it
 * holds (or waits for) the lock of the active reader on the same session, so that both end together. It takes over
 * intents of writers that ended, polls the pinned store and model, tries parked changes again when these change, writes
 * relata.probe, and measures lag. When its session is lost it registers anew, with a new id and epoch.
 */
#ifndef RELATA_WRITER_KEEPER_H
#define RELATA_WRITER_KEEPER_H

#include "common/base/status.h"
#include "tuple-writer/writer.h"

struct keeper;

enum status keeper_start(struct keeper **out, struct writer *w, struct err *err) MUST_CHECK;
/* Ends the registration and the thread; accepts NULL. Call after lanes_join(). */
void keeper_stop(struct keeper *k);

#endif
