/*
 * progress.h - how far a long command is, on standard error: a bar on a terminal, else a line every few seconds.
 * Main thread, or callers that take turns; writes to standard error and waits for nothing else.
 */
#ifndef RELATA_CLI_PROGRESS_H
#define RELATA_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

struct progress {
    const char *what; /* "seeding" */
    const char *unit; /* "tuples" */
    int64_t total;    /* 0 = not known */
    int64_t base;     /* done before this run (resumed): not counted in the rate */
    int64_t done;
    mono_us started, shown;
    bool terminal;
};

void progress_start(struct progress *p, const char *what, const char *unit, int64_t total, int64_t base);
/* Cheap to call often. */
void progress_set(struct progress *p, int64_t done);
/* Shows the last state and ends the line. */
void progress_end(struct progress *p);

/* "850 ms", "3.0 s", "12 min", "5.0 h", "2.0 d" into a buffer of the caller. */
const char *age_text(double seconds, char out[static 32]);

#endif
