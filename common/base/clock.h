/*
 * clock.h - time. Deadlines are monotonic, wall time is for people and records only.
 * All functions are thread-safe and never block. Sleeping is in stop.h, so that every sleep can be ended.
 */
#ifndef RELATA_BASE_CLOCK_H
#define RELATA_BASE_CLOCK_H

#include <stdint.h>

/* A point on the monotonic clock, in microseconds. DEADLINE_NONE never passes. */
typedef int64_t mono_us;
#define DEADLINE_NONE INT64_MAX

mono_us clock_mono_us(void);
/* Microseconds since the Unix epoch. */
int64_t clock_wall_us(void);
/* RFC 3339 in UTC with 3 or 6 decimals: "2026-01-02T03:04:05.678Z". For years up to 9999. */
#define CLOCK_TEXT_MAX 32
void clock_text(int64_t wall_us, int decimals, char out[CLOCK_TEXT_MAX]);
/* CPU time used by this process, in microseconds. */
int64_t clock_cpu_us(void);

/* The deadline `ms` milliseconds from now (saturating). */
mono_us deadline_in_ms(int64_t ms);
/* The earlier of the two. */
mono_us deadline_min(mono_us a, mono_us b);
/* Milliseconds left, rounded up, at least 0, at most INT_MAX: fits poll(2). DEADLINE_NONE gives -1. */
int deadline_poll_ms(mono_us deadline);

/* Exponential back-off with full jitter: a random wait in [base/2, min(cap, base * 2^attempt)] milliseconds. */
int64_t backoff_ms(unsigned attempt, int64_t base_ms, int64_t cap_ms);

#endif
