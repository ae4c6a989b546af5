/*
 * graph.h - private to engine/: tuples as numbers, and who may see which version of them.
 *
 * Names become ids: types and relations 16 bits, objects 32 bits ("user:*" is an object too); 0 is no name. A subject
 * is an object and a relation (0 = none). A tuple stands in two sorted sets of 64-bit keys:
 *   forward, of its object:          relation << 48 | subject's relation << 32 | subject's object
 *   backward, of its subject's object: subject's relation << 48 | relation << 32 | object
 * Conditional tuples stand in a third set of the object, keyed like forward, with condition and context, and not in
 * `forward`; `backward` holds both kinds.
 *
 * A set is a B+ tree of exactly sized leaves that is never changed once published; objects are found by id in a radix
 * tree of such nodes. A change copies the path to what it touches, once in a change set.
 */
#ifndef RELATA_ENGINE_GRAPH_H
#define RELATA_ENGINE_GRAPH_H

#include "engine/engine.h"

typedef uint32_t object_id;
typedef uint16_t name_id; /* type or relation */

static inline uint64_t graph_key(name_id first, name_id second, object_id object)
{
    return (uint64_t)first << 48 | (uint64_t)second << 32 | object;
}
static inline name_id key_first(uint64_t key)
{
    return (name_id)(key >> 48);
}
static inline name_id key_second(uint64_t key)
{
    return (name_id)(key >> 32);
}
static inline object_id key_object(uint64_t key)
{
    return (object_id)key;
}

/* What a reader sees between begin and end. */
struct view;
/* The view of a reader that has begun. */
const struct view *reader_view(const struct engine_reader *r);

/* Names. 0 = unknown. Types and relations live as long as the engine; interning is the writer's. */
name_id graph_name_find(const struct engine *e, const char *s, size_t len);
name_id graph_name_intern(struct engine *e, const char *s, size_t len); /* 0: no memory, or 65535 names */
struct engine_text graph_name(const struct engine *e, name_id id);
struct object; /* of one view; what has no tuple is none: NULL */
const struct object *graph_object(const struct view *v, object_id id);
object_id graph_object_find(const struct view *v, name_id type, const char *id, size_t len);
name_id graph_type(const struct object *o); /* 0: NULL */
bool graph_is_wildcard(const struct object *o);
struct engine_text graph_object_name(const struct view *v, object_id object); /* without the type; valid until end */
/* "type:*" of this type; 0 = no tuple ever named it. */
object_id graph_wildcard(const struct view *v, name_id type);

enum direction { FORWARD, BACKWARD };

bool graph_has(const struct object *o, enum direction dir, uint64_t key);
/* Keys from `low` to `high`, both included, in ascending runs that lie in one piece of memory each. */
struct graph_walk {
    uint64_t low, high;
    const uint64_t *keys; /* what comes next */
    size_t n;
    const void *at[8]; /* the way down to it */
    unsigned depth, index[8];
};
void graph_walk(struct graph_walk *w, const struct object *o, enum direction dir, uint64_t low, uint64_t high);
size_t graph_run(struct graph_walk *w, const uint64_t **keys); /* 0 = end */

/* Conditional tuples of an object; false at the end. */
bool graph_has_conditions(const struct object *o); /* any at all */
struct graph_condition {
    uint64_t key;
    struct engine_text condition, context; /* valid until end */
};
size_t graph_conditions(const struct object *o, uint64_t low, uint64_t high,
                        const struct graph_condition **first); /* sorted by key */

/* All objects of a type, in no order (list users of wildcards, list objects of contextual tuples): ids from `after`
 * upwards; 0 = end. */
object_id graph_next_object(const struct view *v, name_id type, object_id after);

#endif
