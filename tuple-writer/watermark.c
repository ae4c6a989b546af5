#include "tuple-writer/watermark.h"

#include <stdlib.h>
#include <string.h>

struct watermark_slot {
    int64_t offset;
    uint32_t added_s;
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

bool watermark_add(struct watermark *w, int64_t offset, mono_us now, uint64_t *seq)
{
    if (w->len == w->cap && !grow(w))
        return false;
    w->slots[(w->head + w->len) % w->cap] =
        (struct watermark_slot){.offset = offset, .added_s = (uint32_t)(now / 1000000)};
    *seq = w->base + w->len++;
    return true;
}

size_t watermark_kept(const struct watermark *w)
{
    return w->len;
}

bool watermark_oldest(const struct watermark *w, int64_t *offset, mono_us *added)
{
    if (w->len == 0)
        return false;
    *offset = w->slots[w->head].offset;
    *added = (mono_us)w->slots[w->head].added_s * 1000000;
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
