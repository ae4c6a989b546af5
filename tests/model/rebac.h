/*
 * rebac.h - random authorization models over a small universe, and a naive evaluator: what is true, by sets.
 *
 * For tests that need a truth written independently of the store and of engine/. Every decision of a universe is
 * computed at once, as the least fixed point over sets of subjects, stratum by stratum (relations that are subtracted
 * belong to an earlier stratum, so that the result does not depend on the order of evaluation).
 *
 * Types: user (3 objects, no relations), group, folder, doc (2 objects each). Relations: p0, p1 (plain tuplesets) and
 * r0 .. r4 of strata 0, 0, 1, 1, 2. Subjects: every object, every type's wildcard, every userset.
 */
#ifndef RELATA_TESTS_REBAC_H
#define RELATA_TESTS_REBAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REBAC_TYPES 4
#define REBAC_OBJECTS 3 /* of one type, at most */
#define REBAC_RELATIONS 7
#define REBAC_SUBJECTS 64
#define REBAC_TUPLES 1024

struct rebac;

/* A random model without tuples; *rng is the state of the generator (not 0). Aborts without memory. */
struct rebac *rebac_new(uint64_t *rng);
void rebac_free(struct rebac *r); /* accepts NULL */
/* As an AuthorizationModel in JSON. Valid until rebac_free. */
const char *rebac_json(struct rebac *r);

/* Every tuple that the model allows: number, text, presence. */
int rebac_tuples(const struct rebac *r);
struct rebac_tuple {
    const char *object, *relation, *subject;
    bool present;
};
struct rebac_tuple rebac_tuple(const struct rebac *r, int tuple);
void rebac_set(struct rebac *r, int tuple, bool present);

/* Every decision. */
struct rebac_truth {
    uint64_t allowed[REBAC_TYPES][REBAC_RELATIONS][REBAC_OBJECTS]; /* bit = subject */
};
void rebac_evaluate(const struct rebac *r, struct rebac_truth *out);
bool rebac_has(const struct rebac *r, int type, int relation);
const char *rebac_type(int type);
const char *rebac_relation(int relation);
int rebac_objects(int type);
const char *rebac_object(int type, int object); /* "folder:1" */
int rebac_subjects(const struct rebac *r);
const char *rebac_subject(const struct rebac *r, int subject);

/* xorshift64*: uniform enough in [0, n). */
uint64_t rebac_random(uint64_t *rng, uint64_t n);

#endif
