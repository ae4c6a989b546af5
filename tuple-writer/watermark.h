/*
 * watermark.h - how far one Kafka partition is dealt with: the contiguous low water mark of its messages.
 *
 * Messages are added in the order of their offsets and done in any order; what may be committed is the offset after the
 * last message before which all are done. One thread.
 *
 * Messages that are done behind one that is not are kept: the caller must stop adding when there are too many.
 */
#ifndef RELATA_WRITER_WATERMARK_H
#define RELATA_WRITER_WATERMARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"

struct watermark {
    int32_t partition;
    int64_t next;      /* may be committed; -1 = nothing yet */
    int64_t committed; /* was */
    size_t refs;       /* messages that somebody holds a ref of */
    bool full, paused; /* the caller's: too many are kept; its consumption is paused */
    /* private: a ring of what was added and is not below the mark */
    struct watermark_slot *slots;
    size_t cap, len, head;
    uint64_t base; /* sequence of the slot at head */
};

void watermark_init(struct watermark *w, int32_t partition);
void watermark_release(struct watermark *w);
/* Add the next message. False = no memory. *seq names it. */
bool watermark_add(struct watermark *w, int64_t offset, mono_us now, uint64_t *seq);
/* Messages that the mark has not passed, done or not. */
size_t watermark_kept(const struct watermark *w);
/* The first of them: *offset, and when it was added (in whole seconds, rounded down). False if there is none. */
bool watermark_oldest(const struct watermark *w, int64_t *offset, mono_us *added);
/* The message is dealt with; again is harmless. */
void watermark_done(struct watermark *w, uint64_t seq);

#endif
