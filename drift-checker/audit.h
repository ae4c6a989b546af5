/* audit.h - one audit, from the pin to the report. */
#ifndef RELATA_DRIFT_AUDIT_H
#define RELATA_DRIFT_AUDIT_H

#include "common/base/stop.h"
#include "drift-checker/settings.h"

/* Exit codes of drift-checker (DESIGN.md, docs/drift-checker.md). */
enum audit_exit { AUDIT_CLEAN = 0, AUDIT_DRIFT = 1, AUDIT_INCOMPLETE = 2, AUDIT_REFUSED = 3 };

/* Runs it, reports on standard output and error, and returns the exit code. Blocks until it is done or stop is
 * requested; main thread. */
enum audit_exit audit_run(const struct settings *cfg);

#endif
