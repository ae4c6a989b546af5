/*
 * model_valid.h - private to engine/: one look at a model's JSON, shared by the parts that judge it (model_valid.c,
 * model_entry.c).
 *
 * A type is its place in `types`, a relation its place among its type's; -1 is one that is not defined.
 */
#ifndef RELATA_ENGINE_MODEL_VALID_H
#define RELATA_ENGINE_MODEL_VALID_H

#include <jansson.h>

#include "engine/model.h"

struct valid_relation {
    const char *name;
    const json_t *rewrite;
    bool tupleset; /* of some tuple-to-userset */
    char mark;     /* see valid_acyclic() */
};

struct valid_type {
    const char *name;
    const json_t *definition;
    struct valid_relation *relations; /* sorted by name */
    size_t n;
};

struct valid {
    struct model_err *err;
    const json_t *root;
    struct valid_type *types; /* sorted by name */
    size_t ntypes, steps;
    const char *type, *relation; /* that is being judged */
};

enum kind { NOTHING, THIS, COMPUTED, TTU, UNION, INTERSECTION, DIFFERENCE };

/* Both say why, and return false. */
bool valid_refuse(struct valid *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool valid_bad_relation(struct valid *v, const char *cause);

/* A string member; "" if it is none. */
const char *valid_text(const json_t *object, const char *key);
bool valid_has(const json_t *object, const char *key); /* the member is there, and not null */
int valid_type_find(const struct valid *v, const char *name);
int valid_relation_find(const struct valid *v, int type, const char *name);
/* The directly related types of a relation of a defined type; NULL or empty: none. */
const json_t *valid_related(const struct valid *v, int type, const char *relation);

enum kind valid_kind(const json_t *rewrite, const json_t **of);
/* The operands of union, intersection, difference. */
size_t valid_operands(enum kind kind, const json_t *of);
const json_t *valid_operand(enum kind kind, const json_t *of, size_t i);

/* Whether anybody can ever have the relation that is being judged; whether no computed relation rests on itself. */
bool valid_entry(struct valid *v, int type, int relation);
bool valid_acyclic(struct valid *v, int type, int relation);

#endif
