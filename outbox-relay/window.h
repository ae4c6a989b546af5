/*
 * window.h - what is in flight, in order: messages that have no good delivery report yet, and positions that may be
 * confirmed once everything before them has one.
 *
 * Messages are numbered 1, 2, 3 .. in the order they are sent. Reports come in any order; `low` is the first number
 * without a report. A mark says "everything sent so far is covered by this position". Bounded: the caller asks
 * window_full() before it sends. One thread.
 */
#ifndef RELATA_RELAY_WINDOW_H
#define RELATA_RELAY_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

/* Where in the stream a message came from: the `index`-th row (from 0) of the transaction whose commit record is at
 * `lsn`. lsn 0: it did not come from the stream. */
struct position {
    uint64_t lsn;
    uint64_t index;
};

struct window_item {
    int64_t outbox_id;
    struct position from;
    mono_us sent_at;
    uint32_t size; /* bytes of key and payload */
    bool done;
};

struct window_mark {
    uint64_t after; /* numbers below this one are covered */
    uint64_t value;
};

struct window {
    struct window_item *items;
    size_t capacity; /* a power of two */
    size_t limit;
    uint64_t low, next;
    size_t open;               /* messages in flight that are not done */
    struct window_mark *marks; /* as many as items */
    uint64_t marks_low, marks_next;
    uint64_t confirmed; /* value of the last mark that is covered; only grows */
};

/* Room for `limit` messages in flight. ST_OK or ST_NOMEM. */
enum status window_init(struct window *w, size_t limit, struct err *err) MUST_CHECK;
void window_release(struct window *w); /* accepts a zeroed struct */
/* Forget everything in flight, and marks that are not covered; numbers go on. `confirmed` stays. */
void window_clear(struct window *w);
/* The same, and `confirmed` becomes `value`. */
void window_restart(struct window *w, uint64_t value);

bool window_full(const struct window *w);
bool window_empty(const struct window *w);
size_t window_len(const struct window *w); /* sent and not yet passed by `low` */

/* The next message is sent; returns its number. The window must not be full. */
uint64_t window_add(struct window *w, int64_t outbox_id, struct position from, uint32_t size);
/* It will not be sent after all; only for the last one added. */
void window_undo(struct window *w, uint64_t number);
/* Its item, or NULL if it is not in flight. */
struct window_item *window_item(struct window *w, uint64_t number);
/* A good report, or nothing more to do for it. Unknown numbers are ignored. */
void window_done(struct window *w, uint64_t number);
/* What was sent so far is covered by `value`; at once in force if nothing is in flight. Values must not shrink. */
void window_mark(struct window *w, uint64_t value);
/* The first message of the stream without a good report; lsn 0 if there is none. */
struct position window_first_open(const struct window *w);

#endif
