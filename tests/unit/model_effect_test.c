/*
 * model_effect_test.c - whatever a tuple change flips lies within model_effect(): random models against brute force.
 */
#include "engine/model.h"
#include "tests/harness/harness.h"
#include "tests/model/rebac.h"

struct tally {
    long changes, flips, by_subject, by_object, narrow;
};

static void fail_flip(struct rebac *r, struct rebac_tuple t, int type, int relation, int object, int subject)
{
    print_error("%s\n", rebac_json(r));
    for (int i = 0; i < rebac_tuples(r); i++)
        if (rebac_tuple(r, i).present)
            print_error("%s#%s@%s\n", rebac_tuple(r, i).object, rebac_tuple(r, i).relation, rebac_tuple(r, i).subject);
    fail_msg("%s#%s@%s flips %s#%s@%s, which its effect does not hold", t.object, t.relation, t.subject,
             rebac_object(type, object), rebac_relation(relation), rebac_subject(r, subject));
}

static bool holds(const struct model_effect *e, int pair)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->pairs[i] == pair)
            return true;
    return false;
}

/* Every decision that differs must be in the effect, narrowed as a cache narrows. */
static void compare(struct rebac *r, const struct model *m, struct rebac_tuple t, const struct rebac_truth *before,
                    const struct rebac_truth *after, struct tally *sum)
{
    struct model_effect e = model_effect(m, t.object, t.relation, t.subject);
    sum->changes++;
    sum->by_subject += e.by_subject;
    sum->by_object += e.by_object;
    sum->narrow += e.n < (size_t)model_pairs(m);
    for (int type = 1; type < REBAC_TYPES; type++)
        for (int k = 0; k < REBAC_RELATIONS; k++) {
            int pair = model_pair(m, rebac_type(type), strlen(rebac_type(type)), rebac_relation(k));
            assert_int_equal(pair >= 0, rebac_has(r, type, k));
            for (int o = 0; o < rebac_objects(type); o++) {
                uint64_t flipped = before->allowed[type][k][o] ^ after->allowed[type][k][o];
                for (int s = 0; flipped >> s && s < rebac_subjects(r); s++) {
                    if (!(flipped >> s & 1))
                        continue;
                    sum->flips++;
                    if (!holds(&e, pair) || (e.by_subject && strcmp(t.subject, rebac_subject(r, s)) != 0) ||
                        (e.by_object && strcmp(t.object, rebac_object(type, o)) != 0))
                        fail_flip(r, t, type, k, o, s);
                }
            }
        }
}

static void one_model(uint64_t *rng, int changes, struct tally *sum)
{
    struct rebac *r = rebac_new(rng);
    struct rebac_truth before, after;
    struct model *m;
    struct model_err err;
    const char *json = rebac_json(r);
    if (!model_parse(&m, json, strlen(json), &err))
        fail_msg("%s\n%s", err.text, json);
    int n = rebac_tuples(r);
    for (int i = 0; i < n; i++)
        rebac_set(r, i, rebac_random(rng, 100) < 15);
    rebac_evaluate(r, &before);
    for (int i = 0; i < changes && n > 0; i++) {
        int tuple = (int)rebac_random(rng, (uint64_t)n);
        struct rebac_tuple t = rebac_tuple(r, tuple);
        rebac_set(r, tuple, !t.present);
        rebac_evaluate(r, &after);
        compare(r, m, t, &before, &after, sum);
        before = after;
    }
    model_free(m);
    rebac_free(r);
}

/* Case P02: a removed group member names no resource, yet every decision that rested on it is found. */
static void test_P02_every_flip_is_within_the_effect(void **state)
{
    uint64_t seed = harness_seed(), rng = seed ? seed : 1;
    struct tally sum = {0};
    (void)state;
    for (int i = harness_soak(5000); i > 0; i--)
        one_model(&rng, 30, &sum);
    print_message("%ld changes, %ld flips; narrowed by subject %ld, by object %ld, by pair %ld\n", sum.changes,
                  sum.flips, sum.by_subject, sum.by_object, sum.narrow);
    assert_true(sum.flips > sum.changes / 4);
    assert_true(sum.by_subject > sum.changes / 10);
    assert_true(sum.by_object > sum.changes / 20);
    assert_true(sum.narrow > sum.changes / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_P02_every_flip_is_within_the_effect)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
