/*
 * source_outbox.h - hints from the outbox itself: source = outbox, the main thread.
 *
 * Two scanners page through the pending rows, one through revocations, one through the rest, each with its own window,
 * so that memory stays flat whatever is pending, and a revocation never waits behind grants. What was seen is known by
 * snapshots, not by positions: rows that commit late, with low ids and transactions, are never passed over. Reads only
 * while this process is the active reader (keeper.h).
 */
#ifndef RELATA_WRITER_SOURCE_OUTBOX_H
#define RELATA_WRITER_SOURCE_OUTBOX_H

#include "common/base/status.h"
#include "tuple-writer/writer.h"

/* Runs until the stop flag is raised. */
enum status source_outbox_run(struct writer *w, struct err *err) MUST_CHECK;

#endif
