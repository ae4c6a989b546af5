/*
 * tuples.h - private to engine/: what a decision sees: the tuples of a reader's view and the call's own (contextual)
 * ones.
 *
 * A contextual tuple hides a stored one of the same key. Objects that only contextual tuples name have ids of their
 * own, from CONTEXT_FIRST, for the call.
 */
#ifndef RELATA_ENGINE_TUPLES_H
#define RELATA_ENGINE_TUPLES_H

#include "engine/graph.h"

#define CONTEXT_FIRST 0xF0000000u
#define NEAR 16

struct context_tuple {
    object_id object; /* whose set it is in, by direction */
    uint64_t key;
    struct engine_text condition; /* len 0 = none */
};
struct context_name {
    name_id type;
    struct engine_text id;
};

struct tuples {
    const struct view *view;
    const struct engine *engine;
    struct context_tuple *context[2]; /* by direction: ascending object and key, each once */
    size_t ncontext;
    struct context_name *names; /* of ids from CONTEXT_FIRST */
    size_t nnames;
    struct near { /* objects looked up last, by id */
        object_id id;
        const struct object *object;
    } near[NEAR];
};

/* False: no memory. Tuples with a type or relation that the engine has no name for are left out: no rule can speak of
 * them. The texts must live as long. */
bool tuples_open(struct tuples *t, const struct engine *e, const struct view *v, const struct engine_tuple *contextual,
                 size_t n);
void tuples_close(struct tuples *t);

object_id tuples_object(struct tuples *t, name_id type, const char *id, size_t len); /* 0: no tuple names it */
name_id tuples_type(struct tuples *t, object_id object);
struct engine_text tuples_name(struct tuples *t, object_id object); /* without the type */
bool tuples_is_wildcard(struct tuples *t, object_id object);

enum tuple_is { TUPLE_ABSENT, TUPLE_PLAIN, TUPLE_CONDITIONAL };
/* condition: of a conditional one. */
enum tuple_is tuples_find(struct tuples *t, object_id object, uint64_t key, struct engine_text *condition);

/* Keys from low to high, both included, each once, in no order. */
struct tuple_walk {
    struct tuples *tuples;
    enum direction dir;
    object_id object;
    struct graph_walk graph;
    const uint64_t *run;
    size_t nrun;
    const struct graph_condition *conditions; /* FORWARD only: BACKWARD holds their keys among the others */
    size_t nconditions;
    size_t at, end; /* contextual ones */
    uint64_t key;   /* what was found */
    struct engine_text condition;
};
void tuples_walk(struct tuple_walk *w, struct tuples *t, enum direction dir, object_id object, uint64_t low,
                 uint64_t high);
bool tuples_next(struct tuple_walk *w);
/* How many are at hand before the first is taken: all of few, some of many. */
size_t tuples_peek(struct tuple_walk *w);
/* How many keys a walk would give, counted up to max. */
size_t tuples_count(struct tuples *t, enum direction dir, object_id object, uint64_t low, uint64_t high, size_t max);

#endif
