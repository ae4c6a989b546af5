/*
 * graph_internal.h - private to names.c, sets.c, graph.c, load.c, readers.c: how tuples lie in memory, and how a change
 * is made whole or not at all.
 */
#ifndef RELATA_ENGINE_GRAPH_INTERNAL_H
#define RELATA_ENGINE_GRAPH_INTERNAL_H

#include <stdatomic.h>

#include "engine/graph.h"

/* ---- names ---- */

/* An object's name; its place in memory never changes. Immutable but for `pending`, which is the writer's. */
struct name {
    object_id id;
    name_id type;
    uint16_t pending; /* entries of engine.unused that name it */
    uint16_t len;
    char s[]; /* without the type */
};

/* Open addressing, linear probing. Readers look names up while the writer adds some. */
struct table {
    size_t mask, used; /* used: names and graves */
    _Atomic(struct name *) slot[];
};

/* Types and relations: append only, never freed before the engine. */
struct word {
    name_id id;
    uint16_t len;
    char s[];
};
struct words { /* as struct table */
    size_t mask;
    _Atomic(struct word *) slot[];
};
#define PAGE_WORDS 256
struct word_page { /* by id */
    _Atomic(struct word *) of[PAGE_WORDS];
};

/* ---- sets ---- */

/* A node of a B+ tree of keys: a leaf (level 0) holds keys, another pairs of (lowest key, child). */
struct node {
    uint16_t level, n;
    uint64_t words[];
};
#define LEAF_MAX 128
#define INNER_MAX 64
#define INLINE_MAX 32 /* more keys than that are a tree */
#define INLINE_AGAIN 16

struct set {
    uint32_t n;
    const uint64_t *keys;    /* NULL: a tree */
    const struct node *tree; /* NULL: keys */
};

struct edit {
    struct name *name; /* whose set it is */
    uint64_t key;
    uint32_t change;  /* index in the change set */
    bool add;         /* else the key goes */
    bool conditional; /* forward only: the tuple goes among the conditional ones */
};

/* Allocates, counting; fails as graph_fail_in() says. */
void *graph_alloc(struct engine *e, size_t size);
void graph_release(struct engine *e, void *p);

/* What one change set has made and made superfluous. */
struct txn {
    struct engine *e;
    void **made, **gone;
    size_t nmade, made_cap, ngone, gone_cap;
};
bool txn_made(struct txn *t, void *p);       /* freed if the change set fails, or at once if this does */
void *txn_alloc(struct txn *t, size_t size); /* made */
bool txn_gone(struct txn *t, const void *p); /* freed if it succeeds, when no reader can see it */
void txn_end(struct txn *t, bool done);

/* The set with the edits (ascending keys, each once). What must be written into the object's words: `keys` points into
 * *scratch, which the caller frees by graph_release. False: no memory. */
bool set_apply(struct txn *t, const struct set *old, const struct edit *edits, size_t n, struct set *out,
               uint64_t **scratch);
/* A tree of ascending keys, for loading. NULL: no memory. */
const struct node *set_build(struct txn *t, const uint64_t *keys, size_t n);
void tree_free(struct engine *e, const struct node *tree);

/* ---- objects ---- */

struct conditions {
    size_t n;
    struct graph_condition items[]; /* one piece of memory each for condition and context, at condition.s */
};

/* What is known of an object; immutable. words: [conditions][forward keys or tree][backward keys or tree] */
struct object {
    uint64_t named; /* its name's address, and above that its type, which is asked most */
    uint32_t n[2];  /* by direction: number of keys, and the flags below */
    uint64_t words[];
};
#define N_TREE 0x80000000u
#define N_CONDITIONS 0x40000000u /* of n[FORWARD] only */
#define N_WILDCARD 0x40000000u   /* of n[BACKWARD] only: it is "type:*" */
#define N_COUNT 0x3fffffffu
#define ADDRESS_BITS 48 /* of programs, on x86-64 and on ARM64 */

static inline name_id object_type(const struct object *o)
{
    return (name_id)(o->named >> ADDRESS_BITS);
}
static inline const struct name *object_name(const struct object *o)
{
    return (const struct name *)(uintptr_t)(o->named & (((uint64_t)1 << ADDRESS_BITS) - 1));
}

static inline const struct conditions *object_conditions(const struct object *o)
{
    return o->n[FORWARD] & N_CONDITIONS ? (const struct conditions *)(uintptr_t)o->words[0] : NULL;
}
static inline struct set object_set(const struct object *o, enum direction dir)
{
    const uint64_t *w = o->words + ((o->n[FORWARD] & N_CONDITIONS) != 0);
    if (dir == BACKWARD)
        w += o->n[FORWARD] & N_TREE ? 1 : o->n[FORWARD] & N_COUNT;
    if (o->n[dir] & N_TREE)
        return (struct set){o->n[dir] & N_COUNT, NULL, (const struct node *)(uintptr_t)*w};
    return (struct set){o->n[dir] & N_COUNT, w, NULL};
}
/* One piece of memory for condition and context, at out->condition.s. False: no memory. */
bool condition_make(struct engine *e, const struct engine_tuple *tuple, uint64_t key, struct graph_condition *out);
/* NULL: no memory. */
struct object *object_make(struct txn *t, const struct name *name, const struct conditions *conditions,
                           const struct set *forward, const struct set *backward);

void object_free(struct engine *e, struct object *o); /* with all that is its own */

/* Objects by id. */
#define RADIX_BITS 6
#define RADIX_WIDTH 64
struct radix {
    void *slot[RADIX_WIDTH]; /* radix below, or at the lowest level objects */
};

struct view {
    struct engine *engine;
    uint64_t revision, tuples, objects;
    const struct radix *top; /* NULL: no objects */
    unsigned height;
};

static inline const struct object *view_object(const struct view *v, object_id id)
{
    const void *p = v->top;
    if (v->height < 6 && id >> (RADIX_BITS * v->height))
        return NULL;
    for (unsigned level = v->height; p && level > 0; level--)
        p = ((const struct radix *)p)->slot[id >> (RADIX_BITS * (level - 1)) & (RADIX_WIDTH - 1)];
    return p;
}
/* The view with other objects at some ids (ascending); NULL takes one away. False: no memory. */
struct placed {
    object_id id;
    struct object *object;
};
bool radix_place(struct txn *t, const struct view *old, const struct placed *placed, size_t n, struct view *out);

/* ---- the engine ---- */

struct grave {
    void *p;
    uint64_t epoch;
};
struct graves { /* first in, first out */
    struct grave *items;
    size_t head, n, cap;
};
bool graves_reserve(struct engine *e, struct graves *g, size_t more);
void graves_push(struct graves *g, void *p, uint64_t epoch); /* reserved before */

void garbage_push(struct engine *e, void *p); /* the same, of memory, now */

struct loading;

struct engine {
    _Atomic(const struct view *) view;
    atomic_ullong epoch;                     /* grows with each view */
    _Atomic(struct engine_reader *) readers; /* all there ever were */
    _Atomic(struct table *) objects;
    _Atomic(struct words *) words;
    _Atomic(struct word_page *) pages[65536 / PAGE_WORDS];
    unsigned nwords;
    object_id next_id;
    object_id *free_ids;
    size_t nfree, free_cap;
    struct graves garbage, unused, dead; /* memory; names without tuples; names that none can find any more */
    atomic_size_t bytes, garbage_bytes;
    atomic_ullong revision, tuples, nobjects; /* of the current view, for those that are not readers */
    struct loading *loading;
    long fail_in;
};

struct engine_reader {
    atomic_ullong at; /* epoch of its view; 0 = outside */
    atomic_bool used;
    struct engine *engine;
    struct engine_reader *next;
    const struct view *view;
    void *scratch; /* of decisions; freed by scratch_free */
    void (*scratch_free)(void *scratch);
    char reason[512];
};

struct name *names_find(const struct engine *e, name_id type, const char *s, size_t len);
/* Finds or makes; a new one is of no use to readers before a view has its object. It waits among the unused by
 * names_unused() if no view comes to have it. NULL: no memory. */
struct name *names_intern(struct engine *e, name_id type, const char *s, size_t len);
void names_drop(struct engine *e, struct name *name);   /* none finds it any more */
void names_unused(struct engine *e, struct name *name); /* engine.unused has room */
bool names_new(struct engine *e);
void names_free(struct engine *e);

/* "type:id" or "type:id#relation" in parts; relation.len 0 = none. */
struct parts {
    struct engine_text type, id, relation;
};
struct parts parts_of(struct engine_text s);
/* The names and keys of a tuple, made where they are new and `make` is set. False: there are none (or no memory); a
 * name that was made stands in one of the edits. */
bool ids_of(struct engine *e, const struct engine_tuple *tuple, bool make, struct edit *forward, struct edit *backward);
struct name *names_at(const struct table *t, size_t slot); /* NULL: none */

/* Makes the view the current one, buries what is gone, frees what none can see. Reserved before: nothing fails. */
void readers_publish(struct engine *e, const struct view *next, struct txn *t);
void readers_reclaim(struct engine *e);

void loading_free(struct engine *e);

/* For tests: the allocation after n more fails, and those after it. 0: none. */
void graph_fail_in(struct engine *e, long n);

#endif
