#include "demo/compare/set.h"

#include <stdint.h>

#define BLOCK_SIZE (1u << 20)

struct set_block {
    struct set_block *next;
    size_t used;
    char data[BLOCK_SIZE];
};

void set_release(struct set *s)
{
    while (s->blocks) {
        struct set_block *b = s->blocks;
        s->blocks = b->next;
        free(b);
    }
    free(s->lines);
    *s = (struct set){0};
}

static char *room(struct set *s, size_t len)
{
    if (len > BLOCK_SIZE)
        return NULL;
    if (!s->blocks || s->blocks->used + len > BLOCK_SIZE) {
        struct set_block *b = malloc(sizeof *b);
        if (!b)
            return NULL;
        b->next = s->blocks;
        b->used = 0;
        s->blocks = b;
    }
    char *p = s->blocks->data + s->blocks->used;
    s->blocks->used += len;
    return p;
}

enum status set_add(struct set *s, const char *line, size_t len, struct err *err)
{
    if (s->len == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 1024;
        const char **grown = realloc(s->lines, cap * sizeof *grown);
        if (!grown)
            return err_set(err, ST_NOMEM, "", "no memory for %zu tuples", cap);
        s->lines = grown;
        s->cap = cap;
    }
    char *copy = room(s, len + 1);
    if (!copy)
        return err_set(err, ST_NOMEM, "", "no memory for %zu tuples", s->len + 1);
    memcpy(copy, line, len);
    copy[len] = '\0';
    s->lines[s->len++] = copy;
    return ST_OK;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void set_sort(struct set *s)
{
    size_t kept = 0;
    if (s->len > 0)
        qsort(s->lines, s->len, sizeof *s->lines, by_bytes);
    for (size_t i = 0; i < s->len; i++)
        if (kept == 0 || strcmp(s->lines[kept - 1], s->lines[i]) != 0)
            s->lines[kept++] = s->lines[i];
    s->len = kept;
}

size_t sets_compare(const struct set *sets, size_t n, void (*differs)(void *arg, const char *line, unsigned has),
                    void *arg)
{
    size_t at[8] = {0}, count = 0;
    for (;;) {
        const char *least = NULL;
        for (size_t i = 0; i < n; i++)
            if (at[i] < sets[i].len && (!least || strcmp(sets[i].lines[at[i]], least) < 0))
                least = sets[i].lines[at[i]];
        if (!least)
            return count;
        unsigned has = 0;
        for (size_t i = 0; i < n; i++) {
            if (at[i] < sets[i].len && strcmp(sets[i].lines[at[i]], least) == 0) {
                has |= 1u << i;
                at[i]++;
            }
        }
        if (has != (1u << n) - 1) {
            count++;
            differs(arg, least, has);
        }
    }
}
