/*
 * rules.h - private to engine/: a model bound to an engine: its names are the engine's numbers, its rewrites small
 * trees.
 */
#ifndef RELATA_ENGINE_RULES_H
#define RELATA_ENGINE_RULES_H

#include "engine/graph.h"
#include "engine/model.h"
#include "engine/tuples.h"

/* One of the directly related types of a relation: type:id, type:* or type:id#relation, with a condition or without. */
struct restriction {
    name_id type, relation;
    bool wildcard;
    int pair; /* of a userset; else -1 */
    struct engine_text condition;
};

enum rule_op { RULE_THIS, RULE_COMPUTED, RULE_TTU, RULE_UNION, RULE_INTERSECTION, RULE_DIFFERENCE };

/* A node of a rewrite. */
struct rule {
    enum rule_op op;
    int pair;     /* RULE_COMPUTED: the pair looked up; RULE_TTU: the tupleset's */
    name_id name; /* RULE_TTU: the relation looked up behind it */
    int first, n; /* children: a run of rules.children */
};

/* Where a pair is looked up by another, unless to be subtracted. */
struct rule_use {
    enum rule_op op;  /* RULE_THIS: as a userset; RULE_COMPUTED; RULE_TTU */
    int pair;         /* the one that looks it up */
    name_id relation; /* of the tuples that lead there: its own, or its tupleset; 0 for RULE_COMPUTED */
    bool sure;        /* through unions alone: who has the one has the other */
};

struct rule_pair {
    name_id type, relation;
    int rule;
    const struct restriction *direct;
    int ndirect;
    int first_use, nuses;
    bool own, own_sure; /* its own tuples count (and not only to be subtracted); through unions alone */
    bool flat;          /* nothing but its own tuples for subjects without relations, unconditional */
    bool positive;      /* neither intersection nor exclusion nor condition, here and in all that it rests on */
};

struct rules {
    struct engine *engine;
    const struct model *model;
    struct rule_pair *pairs; /* as the model numbers them */
    int npairs;
    struct rule *rules;
    int nrules;
    int *children;
    int nchildren;
    struct restriction *restrictions;
    int nrestrictions;
    name_id *types; /* of the model */
    int ntypes;
    struct rule_slot { /* by type and relation */
        uint32_t names;
        int pair; /* -1 = free */
    } * slots;
    size_t slot_mask;
    struct rule_use *uses;
    uint64_t *reach; /* see rules_reaches() */
    size_t reach_words;
};

int rules_pair(const struct rules *r, name_id type, name_id relation); /* -1: none */
int rules_type(const struct rules *r, name_id type);                   /* its place in types; -1: not of the model */
/* Kinds of subjects: the i-th type's objects and its wildcard, i; the usersets of a pair, ntypes + pair. */
static inline int rules_kind(const struct rules *r, int type, int pair)
{
    return pair >= 0 ? r->ntypes + pair : type;
}
/* Whether a subject of that kind can have the relation by any tuples at all. */
bool rules_reaches(const struct rules *r, int pair, int kind);

/* Whether the tuple counts under the model: the subject's type and relation (0 = none), or the type's wildcard, with
 * that condition (len 0: none). OpenFGA ignores those that do not, and refuses to write them. */
bool rules_allow(const struct rules *r, int pair, name_id type, name_id relation, bool wildcard,
                 struct engine_text condition);

#endif
