/* Authorization models: any bytes. What is taken answers every question about itself consistently. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_pair(const struct model *m, int pair)
{
    const char *type = model_pair_type(m, pair), *relation = model_pair_relation(m, pair);
    bool found = false;
    char object[600];

    if (!model_has_type(m, type) || model_pair(m, type, strlen(type), relation) != pair)
        abort();
    if (strchr(type, ':') || strlen(type) > 500)
        return;
    snprintf(object, sizeof object, "%s:1", type);
    struct model_effect e = model_effect(m, object, relation, "user:1");
    for (size_t i = 0; i < e.n; i++) {
        if (e.pairs[i] < 0 || e.pairs[i] >= model_pairs(m))
            abort();
        found |= e.pairs[i] == pair;
        if (model_conditional(m, pair) && !model_conditional(m, e.pairs[i]))
            abort();
    }
    if (!found)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *m;
    struct model_err err;

    if (model_parse(&m, (const char *)data, size, &err)) {
        for (int i = 0; i < model_pairs(m); i++)
            check_pair(m, i);
    } else if (m || !err.text[0]) {
        abort();
    }
    model_free(m);
    return 0;
}
