/* expand_internal.h - private to engine/: the graph behind `struct expand`. */
#ifndef RELATA_ENGINE_EXPAND_INTERNAL_H
#define RELATA_ENGINE_EXPAND_INTERNAL_H

#include <jansson.h>

#include "engine/expand.h"

/* A value, and in which round it was found: what it rests on was found in earlier ones. */
struct entry {
    int id; /* of a name; in `rest` of a type's name */
    int rank;
    enum expand_value value;
};

/* What holds for whom: named subjects, and `rest`, all others of a type. Both sorted by id. */
struct set {
    struct entry *named, *rest;
    size_t n, nrest;
};

struct give {
    int subject;   /* name: type:id, type:* or type:id#relation */
    int type;      /* wildcard: the type's name; else -1 */
    int target;    /* userset: its node; else -1 */
    int condition; /* name; -1 = none */
    long ref;
};

/* One relation of one object. */
struct node {
    int object; /* name */
    int pair;
    bool asked, loaded; /* its direct tuples */
    bool needed;        /* part of the answer, not just a tupleset */
    struct give *gives;
    size_t n, cap;
    struct set set;
    int low, index, scc; /* Tarjan */
    size_t edge, edges;  /* its run of expand.edges */
    size_t walked;       /* how many of them */
};

struct edge {
    int to;
    bool negative;
};

struct table { /* open addressing: slots hold index + 1 */
    int *slots;
    size_t nslots;
};

struct expand {
    const struct model *m;
    json_t *json;
    json_t **rewrites; /* of each pair */
    char **names;
    int *types; /* of each name: the name of its type */
    size_t nnames, cap_names;
    struct node *nodes;
    size_t nnodes, cap_nodes;
    struct table name_table, node_table;
    int *waiting; /* nodes whose rewrite wants tuples that are not there yet */
    size_t nwaiting, cap_waiting;
    int *wanted;
    struct expand_ask *asks;
    size_t nwanted, cap_wanted, nasks;
    struct edge *edges;
    size_t nedges, cap_edges;
    size_t ignored;
    int round;
    bool failed; /* no memory */
    struct entry *answer;
    bool *is_rest; /* of answer: all others of the type */
    size_t nanswer;
    char **shown; /* of answer: the name */
    long *refs;
    size_t nrefs, cap_refs;
    const char **conditions;
    size_t nconditions, cap_conditions;
    bool *seen; /* nodes, while conditions are gathered */
};

/* Room for one more; false and e->failed without memory. */
bool expand_grow(struct expand *e, void **items, size_t n, size_t *cap, size_t size);
int expand_name(struct expand *e, const char *s, size_t len);                 /* -1: no memory */
int expand_node(struct expand *e, int object, int pair);                      /* -1: no memory */
int expand_node_find(const struct expand *e, int object, int pair);           /* -1: none */
int expand_pair_of(const struct expand *e, int object, const char *relation); /* -1: its type has no such relation */
/* The relation that a computedUserset or tupleset names. */
const char *expand_relation_in(const json_t *of, const char *part);

void set_free(struct set *s);
/* What holds for a subject: `id` its name, or -1 for all others of `type`. */
struct entry set_lookup(const struct expand *e, const struct set *s, int id, int type);

#endif
