/*
 * set.h - a large sorted set of lines, and three of them compared.
 *
 * Lines are copied into blocks that the set owns. Not thread-safe.
 */
#ifndef RELATA_DEMO_COMPARE_SET_H
#define RELATA_DEMO_COMPARE_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct set {
    const char **lines; /* sorted by bytes and without repetitions after set_sort */
    size_t len, cap;
    struct set_block *blocks;
};

void set_release(struct set *s); /* accepts a zeroed set */
enum status set_add(struct set *s, const char *line, size_t len, struct err *err) MUST_CHECK;
void set_sort(struct set *s);

/* Walks the union of `n` (at most 8) sorted sets; calls `differs` for each line that is not in all of them, with a bit
 * for each set that has it. Returns how many such lines there are. */
size_t sets_compare(const struct set *sets, size_t n, void (*differs)(void *arg, const char *line, unsigned has),
                    void *arg);

#endif
