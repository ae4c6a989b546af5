/* names.c - names become numbers: types and relations for ever, objects for as long as a tuple names them. */
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/graph_internal.h"

#define OBJECTS_MAX 0xF0000000u /* above: ids of calls with contextual tuples */
#define FIRST_SLOTS 64
#define WORDS_MAX 65535

static struct name grave; /* marks a slot whose name was dropped */

struct name *names_at(const struct table *t, size_t slot)
{
    struct name *n = atomic_load_explicit(&t->slot[slot], memory_order_relaxed);
    return n == &grave ? NULL : n;
}

static uint64_t hash_of(const struct engine *e, name_id type, const char *s, size_t len)
{
    return XXH3_64bits_withSeed(s, len, (uintptr_t)e ^ ((uint64_t)type << 48));
}

static struct table *table_new(struct engine *e, size_t slots)
{
    size_t size = sizeof(struct table) + slots * sizeof(struct name *);
    struct table *t = graph_alloc(e, size);
    if (t) {
        memset(t, 0, size);
        t->mask = slots - 1;
    }
    return t;
}

static struct words *words_new(struct engine *e, size_t slots)
{
    size_t size = sizeof(struct words) + slots * sizeof(struct word *);
    struct words *w = graph_alloc(e, size);
    if (w) {
        memset(w, 0, size);
        w->mask = slots - 1;
    }
    return w;
}

bool names_new(struct engine *e)
{
    atomic_store(&e->objects, table_new(e, FIRST_SLOTS));
    atomic_store(&e->words, words_new(e, FIRST_SLOTS));
    e->next_id = 1;
    return atomic_load(&e->objects) && atomic_load(&e->words);
}

void names_free(struct engine *e)
{
    struct table *t = atomic_load(&e->objects);
    for (size_t i = 0; t && i <= t->mask; i++) {
        graph_release(e, names_at(t, i));
    }
    graph_release(e, t);
    struct words *w = atomic_load(&e->words);
    for (size_t i = 0; w && i <= w->mask; i++)
        graph_release(e, atomic_load(&w->slot[i]));
    graph_release(e, w);
    for (size_t i = 0; i < sizeof e->pages / sizeof e->pages[0]; i++)
        graph_release(e, atomic_load(&e->pages[i]));
    graph_release(e, e->free_ids);
}

struct name *names_find(const struct engine *e, name_id type, const char *s, size_t len)
{
    struct table *t = atomic_load_explicit(&e->objects, memory_order_acquire);
    for (size_t i = hash_of(e, type, s, len);; i++) {
        struct name *n = atomic_load_explicit(&t->slot[i & t->mask], memory_order_acquire);
        if (!n)
            return NULL;
        if (n != &grave && n->type == type && n->len == len && memcmp(n->s, s, len) == 0)
            return n;
    }
}

static void put(const struct engine *e, struct table *t, struct name *n)
{
    size_t i = hash_of(e, n->type, n->s, n->len);
    while (atomic_load_explicit(&t->slot[i & t->mask], memory_order_relaxed))
        i++;
    atomic_store_explicit(&t->slot[i & t->mask], n, memory_order_release);
    t->used++;
}

/* Room for one more at no more than two thirds. */
static bool table_room(struct engine *e)
{
    struct table *t = atomic_load(&e->objects);
    size_t live = 0;
    if ((t->used + 1) * 3 <= (t->mask + 1) * 2)
        return true;
    for (size_t i = 0; i <= t->mask; i++) {
        live += names_at(t, i) != NULL;
    }
    struct table *next = table_new(e, (live + 1) * 3 > t->mask + 1 ? (t->mask + 1) * 2 : t->mask + 1);
    if (!next || !graves_reserve(e, &e->garbage, 1)) {
        graph_release(e, next);
        return false;
    }
    for (size_t i = 0; i <= t->mask; i++) {
        struct name *n = names_at(t, i);
        if (n)
            put(e, next, n);
    }
    atomic_store(&e->objects, next);
    garbage_push(e, t);
    return true;
}

struct name *names_intern(struct engine *e, name_id type, const char *s, size_t len)
{
    struct name *n = names_find(e, type, s, len);
    if (n)
        return n;
    if (len > UINT16_MAX || (!e->nfree && e->next_id >= OBJECTS_MAX) || !table_room(e))
        return NULL;
    n = graph_alloc(e, sizeof *n + len);
    if (!n)
        return NULL;
    *n = (struct name){.id = e->nfree ? e->free_ids[--e->nfree] : e->next_id++, .type = type, .len = (uint16_t)len};
    memcpy(n->s, s, len);
    put(e, atomic_load(&e->objects), n);
    return n;
}

void names_drop(struct engine *e, struct name *name)
{
    struct table *t = atomic_load(&e->objects);
    size_t i = hash_of(e, name->type, name->s, name->len);
    while (atomic_load_explicit(&t->slot[i & t->mask], memory_order_relaxed) != name)
        i++;
    atomic_store_explicit(&t->slot[i & t->mask], &grave, memory_order_release);
}

void names_unused(struct engine *e, struct name *name)
{
    if (name->pending == UINT16_MAX) /* it stays for ever */
        return;
    name->pending++;
    graves_push(&e->unused, name, atomic_load(&e->epoch));
}

/* ---- types and relations ---- */

static size_t word_slot(const struct engine *e, const struct words *w, const char *s, size_t len)
{
    for (size_t i = hash_of(e, 0, s, len);; i++) {
        const struct word *word = atomic_load_explicit(&w->slot[i & w->mask], memory_order_acquire);
        if (!word || (word->len == len && memcmp(word->s, s, len) == 0))
            return i & w->mask;
    }
}

name_id graph_name_find(const struct engine *e, const char *s, size_t len)
{
    const struct words *w = atomic_load_explicit(&e->words, memory_order_acquire);
    const struct word *word = atomic_load_explicit(&w->slot[word_slot(e, w, s, len)], memory_order_acquire);
    return word ? word->id : 0;
}

static bool words_room(struct engine *e)
{
    struct words *w = atomic_load(&e->words);
    if ((size_t)(e->nwords + 1) * 2 <= w->mask + 1)
        return true;
    struct words *next = words_new(e, 2 * (w->mask + 1));
    if (!next || !graves_reserve(e, &e->garbage, 1)) {
        graph_release(e, next);
        return false;
    }
    for (size_t i = 0; i <= w->mask; i++) {
        struct word *word = atomic_load(&w->slot[i]);
        if (word)
            atomic_store(&next->slot[word_slot(e, next, word->s, word->len)], word);
    }
    atomic_store(&e->words, next);
    garbage_push(e, w);
    return true;
}

name_id graph_name_intern(struct engine *e, const char *s, size_t len)
{
    name_id id = graph_name_find(e, s, len);
    if (id)
        return id;
    if (len > UINT16_MAX || e->nwords == WORDS_MAX || !words_room(e))
        return 0;
    id = (name_id)(e->nwords + 1);
    struct word_page *page = atomic_load(&e->pages[id / PAGE_WORDS]);
    if (!page) {
        page = graph_alloc(e, sizeof *page);
        if (!page)
            return 0;
        memset(page, 0, sizeof *page);
        atomic_store(&e->pages[id / PAGE_WORDS], page);
    }
    struct word *word = graph_alloc(e, sizeof *word + len);
    if (!word)
        return 0;
    *word = (struct word){.id = id, .len = (uint16_t)len};
    memcpy(word->s, s, len);
    atomic_store_explicit(&page->of[id % PAGE_WORDS], word, memory_order_release);
    struct words *w = atomic_load(&e->words);
    atomic_store_explicit(&w->slot[word_slot(e, w, s, len)], word, memory_order_release);
    e->nwords++;
    return id;
}

struct engine_text graph_name(const struct engine *e, name_id id)
{
    const struct word_page *page = atomic_load_explicit(&e->pages[id / PAGE_WORDS], memory_order_acquire);
    const struct word *w = page ? atomic_load_explicit(&page->of[id % PAGE_WORDS], memory_order_acquire) : NULL;
    return w ? (struct engine_text){w->s, w->len} : (struct engine_text){"", 0};
}

struct parts parts_of(struct engine_text s)
{
    struct parts p = {0};
    const char *colon = memchr(s.s, ':', s.len), *id = colon ? colon + 1 : s.s;
    size_t len = s.len - (size_t)(id - s.s);
    const char *mark = memrchr(id, '#', len);
    p.type = (struct engine_text){s.s, colon ? (size_t)(colon - s.s) : 0};
    p.id = (struct engine_text){id, mark ? (size_t)(mark - id) : len};
    if (mark)
        p.relation = (struct engine_text){mark + 1, len - p.id.len - 1};
    return p;
}
