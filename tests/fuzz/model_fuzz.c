/* Authorization models: any bytes. What is taken answers every question about itself consistently. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

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

static struct engine_text text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

/* The model becomes rules, and a decision ends. */
static void check_rules(const struct model *m)
{
    struct engine *e = engine_new();
    struct rules *rules = rules_new(e, m);
    struct engine_reader *r = engine_reader_new(e);
    if (!rules || !r)
        abort();
    engine_begin(r);
    for (int i = 0; i < model_pairs(m); i++) {
        const char *type = model_pair_type(m, i);
        char object[600];
        if (strchr(type, ':') || strlen(type) > 500)
            continue;
        snprintf(object, sizeof object, "%s:1", type);
        struct engine_check q = {
            .subject = text(object), .relation = text(model_pair_relation(m, i)), .object = text(object)};
        if (engine_checks(r, rules, NULL, &q, 1) != ENGINE_OK || q.allowed)
            abort();
    }
    engine_end(r);
    engine_reader_free(r);
    rules_free(rules);
    engine_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *m;
    struct model_err err;

    err.text[0] = err.code[0] = '\0';
    bool valid = model_valid((const char *)data, size, &err);
    if (!valid && (!err.text[0] || !err.code[0]))
        abort();

    if (model_parse(&m, (const char *)data, size, &err)) {
        for (int i = 0; i < model_pairs(m); i++)
            check_pair(m, i);
        if (valid)
            check_rules(m);
    } else if (m || !err.text[0]) {
        abort();
    }
    model_free(m);
    return 0;
}
