/* window.c - see window.h. Two rings. */
#include "outbox-relay/window.h"

#include <stdlib.h>

enum status window_init(struct window *w, size_t limit, struct err *err)
{
    size_t capacity = 16;
    while (capacity < limit)
        capacity *= 2;
    *w = (struct window){.capacity = capacity, .limit = limit, .low = 1, .next = 1};
    w->items = calloc(capacity, sizeof *w->items);
    /* Two marks with the same `after` are one, so there is at most one a message, and one before the first. */
    w->marks = calloc(2 * capacity, sizeof *w->marks);
    if (!w->items || !w->marks) {
        window_release(w);
        return err_set(err, ST_NOMEM, "", "out of memory for %zu messages in flight", limit);
    }
    return ST_OK;
}

void window_release(struct window *w)
{
    free(w->items);
    free(w->marks);
    *w = (struct window){0};
}

void window_clear(struct window *w)
{
    w->low = w->next;
    w->open = 0;
    w->marks_low = w->marks_next;
}

void window_restart(struct window *w, uint64_t value)
{
    window_clear(w);
    w->confirmed = value;
}

bool window_full(const struct window *w)
{
    return w->next - w->low >= w->limit;
}

bool window_empty(const struct window *w)
{
    return w->next == w->low;
}

size_t window_len(const struct window *w)
{
    return (size_t)(w->next - w->low);
}

static struct window_item *item_at(const struct window *w, uint64_t number)
{
    return &w->items[number & (w->capacity - 1)];
}

static struct window_mark *mark_at(const struct window *w, uint64_t i)
{
    return &w->marks[i & (2 * w->capacity - 1)];
}

uint64_t window_add(struct window *w, int64_t outbox_id, struct position from, uint32_t size)
{
    *item_at(w, w->next) =
        (struct window_item){.outbox_id = outbox_id, .from = from, .sent_at = clock_mono_us(), .size = size};
    w->open++;
    return w->next++;
}

struct window_item *window_item(struct window *w, uint64_t number)
{
    return number >= w->low && number < w->next ? item_at(w, number) : NULL;
}

/* Move on over what is done, and take the marks that are covered then. */
static void advance(struct window *w)
{
    while (w->low < w->next && item_at(w, w->low)->done)
        w->low++;
    while (w->marks_low < w->marks_next && mark_at(w, w->marks_low)->after <= w->low)
        w->confirmed = mark_at(w, w->marks_low++)->value;
}

void window_undo(struct window *w, uint64_t number)
{
    if (number + 1 != w->next)
        return;
    w->next = number;
    w->open--;
}

void window_done(struct window *w, uint64_t number)
{
    struct window_item *item = window_item(w, number);
    if (!item || item->done)
        return;
    item->done = true;
    w->open--;
    if (number == w->low)
        advance(w);
}

void window_mark(struct window *w, uint64_t value)
{
    if (w->marks_low < w->marks_next && mark_at(w, w->marks_next - 1)->after == w->next)
        mark_at(w, w->marks_next - 1)->value = value;
    else
        *mark_at(w, w->marks_next++) = (struct window_mark){.after = w->next, .value = value};
    advance(w);
}

struct position window_first_open(const struct window *w)
{
    for (uint64_t n = w->low; n < w->next; n++)
        if (!item_at(w, n)->done && item_at(w, n)->from.lsn != 0)
            return item_at(w, n)->from;
    return (struct position){0, 0};
}
