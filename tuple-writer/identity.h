/*
 * identity.h - is the store behind the URL the one that was written to? A thread that verifies it whenever the gate is
 * shut, and now and then.
 *
 * The store must exist, the model in force must exist, and the keys applied last (relata.probe) must be there as the
 * ledger has them, as far as nothing pends on them. A store that was wiped, restored from a backup or swapped fails the
 * last test. It stops all Writes, with the command that helps; nothing is parked. One differing key among many is drift
 * (somebody wrote to the store), which is counted and logged.
 */
#ifndef RELATA_WRITER_IDENTITY_H
#define RELATA_WRITER_IDENTITY_H

#include "common/base/status.h"
#include "tuple-writer/writer.h"

struct verifier;

enum status verifier_start(struct verifier **out, struct writer *w, struct err *err) MUST_CHECK;
/* After gate_stop(). Accepts NULL. */
void verifier_stop(struct verifier *v);

#endif
