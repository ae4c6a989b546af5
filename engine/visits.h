/* visits.h - private to engine/: nodes (an object and a pair) to be visited, each once, or once more when it becomes
 * sure. */
#ifndef RELATA_ENGINE_VISITS_H
#define RELATA_ENGINE_VISITS_H

#include "engine/graph.h"

struct visit {
    object_id object;
    int pair;
    uint32_t depth; /* the fewest steps there */
    bool sure;
};

struct visits {
    struct visit *items; /* in order; an item that became sure stands there twice, of which the last counts */
    size_t n, cap, at;
    uint32_t *slots; /* place in items + 1 */
    size_t mask;
    bool failed; /* no memory */
};

void visits_free(struct visits *v);
/* Unless it was known, and was sure or is not now. */
void visits_add(struct visits *v, object_id object, int pair, uint32_t depth, bool sure);
bool visits_next(struct visits *v, struct visit *out);
/* Whether item i is what is known last of its node. */
bool visits_last(const struct visits *v, size_t i);

#endif
