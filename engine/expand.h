/*
 * expand.h - who has a relation on an object, by tuples that the caller gives: all subjects at once, not one Check
 * each.
 *
 * No I/O: the expansion says which tuples it wants next (all direct tuples of some objects' relations), the caller
 * fetches and gives them, level by level, until nothing is wanted; then it is solved. Time and memory are proportional
 * to what is given; to bound that is the caller's business. One thread at a time.
 *
 *   while ((n = expand_wants(e, &asks)) > 0) { for each tuple of the asks: expand_give(...); expand_level(e); }
 *   if (expand_solve(e, &err)) for (i < expand_subjects(e)) ...
 *
 * Semantics are the store's Check, for each subject without a userset: direct tuples, usersets, wildcards, computed
 * relations, tuple-to-userset, union, intersection, exclusion; cycles add nothing. Tuples that the model does not allow
 * count for nothing. A condition makes a tuple neither certain nor impossible: what rests on one is EXPAND_CONDITIONAL.
 */
#ifndef RELATA_ENGINE_EXPAND_H
#define RELATA_ENGINE_EXPAND_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/model.h"

struct expand;

enum expand_value { EXPAND_NO, EXPAND_CONDITIONAL, EXPAND_YES };

struct expand_ask {
    const char *object, *relation; /* belong to the expansion */
};

/* `m` is the model parsed from this very `json` and must outlive the expansion. False, with the reason: no such type or
 * relation, no memory. *out is freed by expand_free. */
bool expand_new(struct expand **out, const struct model *m, const char *json, size_t len, const char *object,
                const char *relation, struct model_err *err);
void expand_free(struct expand *e); /* accepts NULL */

/* What is wanted now; the array is valid until expand_level(). 0: everything is there. */
size_t expand_wants(struct expand *e, const struct expand_ask **asks);
/* One tuple of the ask with this index. `condition` NULL or "" = none. `ref` comes back from expand_why(). False: no
 * memory. */
bool expand_give(struct expand *e, size_t ask, const char *subject, const char *condition, long ref);
/* All tuples of what was wanted are given. False: no memory. */
bool expand_level(struct expand *e);
size_t expand_ignored(const struct expand *e); /* tuples that the model does not allow */

/* False, with the reason: a relation excludes itself by way of its own tuples, so that no answer is right; or no
 * memory. */
bool expand_solve(struct expand *e, struct model_err *err);

/* The answer, sorted by name. A name is a subject, or "type:*": every subject of that type that is not named. A named
 * one with EXPAND_NO is an exception to such a wildcard. */
size_t expand_subjects(const struct expand *e);
const char *expand_subject(const struct expand *e, size_t i, enum expand_value *value);
/* Of a subject with EXPAND_YES: the tuples by which it has the relation, nearest to the object first. Valid until the
 * next call. 0: none were found (no memory). */
size_t expand_why(struct expand *e, size_t i, const long **refs);
/* Of a subject with EXPAND_CONDITIONAL: the names of the conditions that it may depend on, each once. */
size_t expand_conditions(struct expand *e, size_t i, const char *const **names);

#endif
