/*
 * log.h - levelled, structured logs on standard error, one event a line.
 *
 *   log_info("slot created", "slot", slot, "lsn", lsn, NULL);
 *   -> ts=2026-01-02T03:04:05.678Z level=info program=outbox-relay msg="slot created" slot=relata lsn=0/16B3748
 *
 * Messages are lower case and constant; what varies goes into key/value
 * pairs, all `const char *`, ended by NULL. Values are escaped (a newline or
 * control byte never leaves raw; invalid UTF-8 becomes U+FFFD) and cut at 2,048
 * bytes, "..." telling so. Secrets never come here: callers pass DSNs through
 * pg_dsn_redact(). Thread-safe; a line is one write(2). Lines below the level
 * cost one comparison.
 */
#ifndef RELATA_BASE_LOG_H
#define RELATA_BASE_LOG_H

#include <stdbool.h>

#include "common/base/status.h"

enum log_level { LOG_LVL_DEBUG, LOG_LVL_INFO, LOG_LVL_WARN, LOG_LVL_ERROR };
enum log_format { LOG_FMT_LOGFMT, LOG_FMT_JSON };

/* Before threads start. `program` must live as long as the process. */
void log_init(const char *program, enum log_level level, enum log_format format);

void log_event(enum log_level level, const char *msg, ...) __attribute__((sentinel));
#define log_debug(...) log_event(LOG_LVL_DEBUG, __VA_ARGS__)
#define log_info(...) log_event(LOG_LVL_INFO, __VA_ARGS__)
#define log_warn(...) log_event(LOG_LVL_WARN, __VA_ARGS__)
#define log_error(...) log_event(LOG_LVL_ERROR, __VA_ARGS__)

/* The error as pairs status=, code=, error=, after the caller's own pairs. */
void log_err(enum log_level level, const char *msg, const struct err *err, ...) __attribute__((sentinel));

#endif
