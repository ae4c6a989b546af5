/* history.h - which times history can be asked about. */
#ifndef RELATA_CTL_HISTORY_H
#define RELATA_CTL_HISTORY_H

#include "relatactl/ctl.h"

#define HISTORY_WHEN_MAX 40

struct history_window {
    int64_t period;
    char at[HISTORY_WHEN_MAX];    /* the time in question, for Postgres: in microseconds */
    char shown[HISTORY_WHEN_MAX]; /* RFC 3339 */
};

/* The period of history that knows what was at `at` (text that Postgres takes for a time; NULL = now). ST_CONFIG if it
 * is none, or lies in the future; CTL_REFUSED, with the times that can be asked about, if history does not reach there.
 */
enum status history_window(struct ctl *ctl, const char *at, struct history_window *out, struct err *err) MUST_CHECK;

#endif
