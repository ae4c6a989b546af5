/*
 * progress.h - one line that tells how it goes: rewritten in place on a terminal, else printed now and then.
 *
 * Used by one thread. Lines are at most 79 columns. No escape codes unless standard output is a terminal.
 */
#ifndef RELATA_DEMO_LIFE_PROGRESS_H
#define RELATA_DEMO_LIFE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool tty;
    int every; /* without a terminal: one line in so many calls */
    int calls;
};

void progress_init(struct progress *p, int every);
/* `last`: always printed, and stays. */
void progress_line(struct progress *p, bool last, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* 1234567 as "1,234,567"; `out` holds 32 bytes and is returned. */
const char *progress_count(uint64_t n, char *out);
/* Microseconds as "0.42 ms", "13.1 ms", "1.30 s". */
const char *progress_time(uint64_t us, char *out);

#endif
