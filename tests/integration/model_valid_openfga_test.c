/*
 * model_valid_openfga_test.c - model_valid() takes the models that a real OpenFGA takes, and refuses the others with
 * its message: random models, of which names and rewrites were exchanged at random.
 */
#include <jansson.h>

#include "engine/model.h"
#include "tests/integration/writer_helpers.h"
#include "tests/model/rebac.h"

struct place {
    json_t *object;
    const char *key;
};
struct places {
    struct place at[1024];
    size_t n;
};

static bool is_rewrite(const json_t *v)
{
    static const char *const kinds[] = {"this",  "computedUserset", "tupleToUserset",
                                        "union", "intersection",    "difference"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (json_object_get(v, kinds[i]))
            return true;
    return false;
}

/* Where names and rewrites stand. */
static void collect(json_t *v, struct places *names, struct places *rewrites)
{
    const char *key;
    json_t *item;
    size_t i;
    json_array_foreach(v, i, item) collect(item, names, rewrites);
    json_object_foreach(v, key, item)
    {
        bool name = json_is_string(item) && strcmp(key, "schema_version") != 0;
        bool inner = strcmp(key, "tupleToUserset") == 0; /* has a computedUserset too */
        struct places *to = name ? names : !inner && is_rewrite(item) ? rewrites : NULL;
        if (to && to->n < sizeof to->at / sizeof *to->at)
            to->at[to->n++] = (struct place){v, key};
        collect(item, names, rewrites);
    }
}

static json_t *at(const struct place *p)
{
    return json_object_get(p->object, p->key);
}

static void mutate(json_t *model, uint64_t *rng)
{
    struct places names = {.n = 0}, rewrites = {.n = 0};
    collect(json_object_get(model, "type_definitions"), &names, &rewrites);
    struct places *p = rewrites.n && rebac_random(rng, 2) ? &rewrites : &names;
    if (p->n == 0)
        return;
    struct place *to = &p->at[rebac_random(rng, p->n)], *from = &p->at[rebac_random(rng, p->n)];
    json_t *other = p == &names && rebac_random(rng, 8) == 0 ? json_string("nothing") : json_deep_copy(at(from));
    json_object_set_new(to->object, to->key, other);
}

/* Go prints messages of protobuf with spaces at random. */
static void squeeze(char *s)
{
    char *to = s;
    for (; *s; s++)
        if (*s != ' ' || s[1] != ' ')
            *to++ = *s;
    *to = '\0';
}

static bool same(struct harness *h, const char *json)
{
    struct model_err why = {.text = ""};
    struct err err = {.text = ""};
    char *id = NULL;
    bool valid = model_valid(json, strlen(json), &why);
    enum status st = store_write_model(h->store_conn, json, &id, deadline_in_ms(WAIT_MS), &err);
    free(id);
    squeeze(err.text);
    squeeze(why.text);
    if (st == ST_OK ? !valid : valid || !strstr(err.text, why.text))
        fail_msg("%s\nOpenFGA: %s\nhere: %s", json, st == ST_OK ? "takes it" : err.text, valid ? "takes it" : why.text);
    return valid;
}

static void test_models_are_taken_and_refused_as_by_openfga(void **state)
{
    struct harness *h = *state;
    uint64_t rng = harness_seed() | 1;
    int taken = 0, refused = 0;
    for (int i = harness_soak(2000); i > 0; i--) {
        struct rebac *r = rebac_new(&rng);
        json_t *model = json_loads(rebac_json(r), 0, NULL);
        assert_non_null(model);
        for (int k = 0; k < 4; k++) {
            char *json = json_dumps(model, JSON_COMPACT);
            assert_non_null(json);
            if (same(h, json))
                taken++;
            else
                refused++;
            free(json);
            mutate(model, &rng);
        }
        json_decref(model);
        rebac_free(r);
    }
    print_message("%d models taken, %d refused\n", taken, refused);
    assert_true(taken > refused / 20 && refused > taken / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_models_are_taken_and_refused_as_by_openfga, HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
