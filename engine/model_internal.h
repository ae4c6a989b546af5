/* model_internal.h - private to engine/: the arrays behind `struct model`, shared by parser and graph. */
#ifndef RELATA_ENGINE_MODEL_INTERNAL_H
#define RELATA_ENGINE_MODEL_INTERNAL_H

#include <jansson.h>

#include "engine/model.h"

struct model_type {
    const char *name;
    int first, n; /* its pairs: a run of `pairs` */
};

struct model_pair {
    const char *relation;
    int type;
    bool tupleset;      /* of some tuple-to-userset */
    bool own_condition; /* one of its directly related types names a condition */
    bool conditional;   /* see model_conditional() */
    bool by_object;
    const json_t *direct; /* its directly related types, in `source`; NULL = none */
    const int *affects;   /* closure, itself included */
    int naffects;
};

/* When decisions of pair `from` change, those of `to` may: about the same object, or about others. */
struct model_edge {
    int from, to;
    bool other;
};

struct model {
    struct model_type *types; /* sorted by name (bytes) */
    int ntypes;
    struct model_pair *pairs; /* sorted by type, then relation */
    int npairs;
    struct model_edge *edges; /* only while it is built */
    size_t nedges, cap_edges;
    json_t *source;
    char *names;   /* every name, each ended by NUL */
    int *closures; /* what `affects` points into */
    int *all;      /* 0 .. npairs - 1: the closure of pairs whose own would be too large to keep */
};

/* -1 if there is none. */
int model_type_find(const struct model *m, const char *name, size_t len);
int model_relation_find(const struct model *m, int type, const char *relation);

/* Whether a tuple's context fits the condition's parameters; else OpenFGA's cause. */
bool model_context_fits(const char *name, const json_t *condition, const json_t *context, struct model_err *err);

/* Turns the edges into closures and spreads `conditional`. False: no memory. */
bool model_close(struct model *m);

/* Whether the parameters of a condition have types that there are; else OpenFGA's cause. */
bool model_parameters_valid(const json_t *condition, char *why, size_t size);

#endif
