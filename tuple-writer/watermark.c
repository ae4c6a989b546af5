#include "tuple-writer/watermark.h"

#include <stdlib.h>
#include <string.h>

struct watermark_slot {
    int64_t offset;
    bool done;
};

void watermark_init(struct watermark *w, int32_t partition)
{
    memset(w, 0, sizeof *w);
    w->partition = partition;
    w->next = w->committed = -1;
}

void watermark_release(struct watermark *w)
{
    free(w->slots);
    w->slots = NULL;
}

static bool grow(struct watermark *w)
{
    size_t cap = w->cap ? w->cap * 2 : 64;
    struct watermark_slot *slots = calloc(cap, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < w->len; i++)
        slots[i] = w->slots[(w->head + i) % w->cap];
    free(w->slots);
    w->slots = slots;
    w->cap = cap;
    w->head = 0;
    return true;
}

bool watermark_add(struct watermark *w, int64_t offset, uint64_t *seq)
{
    if (w->len == w->cap && !grow(w))
        return false;
    w->slots[(w->head + w->len) % w->cap] = (struct watermark_slot){.offset = offset};
    *seq = w->base + w->len++;
    return true;
}

void watermark_done(struct watermark *w, uint64_t seq)
{
    if (seq < w->base || seq >= w->base + w->len)
        return;
    w->slots[(w->head + (seq - w->base)) % w->cap].done = true;
    while (w->len > 0 && w->slots[w->head].done) {
        w->next = w->slots[w->head].offset + 1;
        w->head = (w->head + 1) % w->cap;
        w->base++;
        w->len--;
    }
}
