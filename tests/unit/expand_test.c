/*
 * expand_test.c - who has a relation: random models and tuples against brute force; chains, conditions, cycles by hand.
 */
#include "engine/expand.h"
#include "tests/harness/harness.h"
#include "tests/model/rebac.h"

/* ---- random ---- */

/* Gives all present tuples that are asked for, until nothing is. */
static void load(struct expand *e, const struct rebac *r)
{
    const struct expand_ask *asks;
    for (size_t n; (n = expand_wants(e, &asks)) > 0;) {
        for (size_t a = 0; a < n; a++)
            for (int i = 0; i < rebac_tuples(r); i++) {
                struct rebac_tuple t = rebac_tuple(r, i);
                if (t.present && strcmp(t.object, asks[a].object) == 0 && strcmp(t.relation, asks[a].relation) == 0)
                    assert_true(expand_give(e, a, t.subject, NULL, i));
            }
        assert_true(expand_level(e));
    }
}

static bool is_userset(const char *subject)
{
    return strchr(subject, '#') != NULL;
}

/* What the expansion says of a subject, named or not. */
static enum expand_value value_of(const struct expand *e, const char *subject)
{
    enum expand_value v, rest = EXPAND_NO;
    size_t type = strcspn(subject, ":");
    for (size_t i = 0; i < expand_subjects(e); i++) {
        const char *name = expand_subject(e, i, &v);
        if (strcmp(name, subject) == 0)
            return v;
        if (strncmp(name, subject, type) == 0 && strcmp(name + type, ":*") == 0)
            rest = v;
    }
    return rest;
}

static void show(struct rebac *r)
{
    print_error("%s\n", rebac_json(r));
    for (int i = 0; i < rebac_tuples(r); i++)
        if (rebac_tuple(r, i).present)
            print_error("%s#%s@%s\n", rebac_tuple(r, i).object, rebac_tuple(r, i).relation, rebac_tuple(r, i).subject);
}

/* The chain begins at the object, and each of its tuples is present. */
static void check_chains(struct expand *e, struct rebac *r, const char *object, long *chains)
{
    enum expand_value v;
    const long *refs;
    for (size_t i = 0; i < expand_subjects(e); i++) {
        const char *name = expand_subject(e, i, &v);
        if (v != EXPAND_YES)
            continue;
        size_t n = expand_why(e, i, &refs);
        if (n == 0) {
            show(r);
            fail_msg("no reason why %s has it on %s", name, object);
        }
        assert_string_equal(rebac_tuple(r, (int)refs[0]).object, object);
        for (size_t k = 0; k < n; k++)
            assert_true(rebac_tuple(r, (int)refs[k]).present);
        ++*chains;
    }
}

static void compare(struct rebac *r, const struct model *m, const struct rebac_truth *truth, long *decisions,
                    long *chains)
{
    struct model_err err;
    struct expand *e;
    for (int type = 1; type < REBAC_TYPES; type++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; rebac_has(r, type, k) && o < rebac_objects(type); o++) {
                const char *object = rebac_object(type, o);
                if (!expand_new(&e, m, rebac_json(r), strlen(rebac_json(r)), object, rebac_relation(k), &err))
                    fail_msg("%s", err.text);
                load(e, r);
                if (!expand_solve(e, &err))
                    fail_msg("%s", err.text);
                for (int s = 0; s < rebac_subjects(r); s++) {
                    const char *subject = rebac_subject(r, s);
                    bool want = truth->allowed[type][k][o] >> s & 1;
                    if (is_userset(subject))
                        continue;
                    if ((value_of(e, subject) == EXPAND_YES) != want) {
                        show(r);
                        fail_msg("%s#%s@%s is %s", object, rebac_relation(k), subject, want ? "true" : "false");
                    }
                    ++*decisions;
                }
                check_chains(e, r, object, chains);
                expand_free(e);
            }
}

static void test_random_models_say_what_brute_force_says(void **state)
{
    (void)state;
    uint64_t rng = harness_seed() | 1;
    long decisions = 0, chains = 0;
    for (int i = harness_soak(2000); i > 0; i--) {
        struct rebac *r = rebac_new(&rng);
        struct rebac_truth truth;
        struct model_err err;
        struct model *m;
        if (!model_parse(&m, rebac_json(r), strlen(rebac_json(r)), &err))
            fail_msg("%s", err.text);
        uint64_t share = 1 + rebac_random(&rng, 40);
        for (int t = 0; t < rebac_tuples(r); t++)
            rebac_set(r, t, rebac_random(&rng, 100) < share);
        rebac_evaluate(r, &truth);
        compare(r, m, &truth, &decisions, &chains);
        model_free(m);
        rebac_free(r);
    }
    print_message("%ld decisions, %ld chains\n", decisions, chains);
    assert_true(decisions > 10000);
    assert_true(chains > 1000);
}

/* ---- by hand ---- */

static const char model[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},"
    "{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":{\"relations\":{\"member\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"}]}}}},"
    "{\"type\":\"odd\",\"relations\":{\"a\":{\"difference\":{\"base\":{\"this\":{}},\"subtract\":{\"computedUserset\":{"
    "\"relation\":\"b\"}}}},\"b\":{\"this\":{}}},\"metadata\":{\"relations\":{\"a\":{\"directly_related_user_types\":[{"
    "\"type\":\"user\"}]},\"b\":{\"directly_related_user_types\":[{\"type\":\"odd\",\"relation\":\"a\"}]}}}},"
    "{\"type\":\"doc\",\"relations\":{\"viewer\":{\"difference\":{\"base\":{\"this\":{}},\"subtract\":{"
    "\"computedUserset\":{\"relation\":\"blocked\"}}}},\"blocked\":{\"this\":{}}},\"metadata\":{\"relations\":{"
    "\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}},"
    "{\"type\":\"user\",\"condition\":\"in_hours\"},{\"type\":\"team\",\"relation\":\"member\"},"
    "{\"type\":\"team\",\"relation\":\"member\",\"condition\":\"in_hours\"}]},"
    "\"blocked\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"condition\":\"banned\"}]}}}"
    "}],"
    "\"conditions\":{\"in_hours\":{\"name\":\"in_hours\",\"expression\":\"x\",\"parameters\":{\"x\":{\"type_name\":"
    "\"TYPE_NAME_BOOL\"}}},\"banned\":{\"name\":\"banned\",\"expression\":\"x\",\"parameters\":{\"x\":{\"type_name\":"
    "\"TYPE_NAME_BOOL\"}}}}}";

struct line {
    const char *object, *relation, *subject, *condition;
};

/* "name=value" of every subject, and for those that are certain the chain, for others the conditions. */
static const char *expand_text(const char *object, const char *relation, const struct line *lines, char *out,
                               size_t size)
{
    struct model_err err;
    struct model *m;
    struct expand *e;
    const struct expand_ask *asks;
    size_t len = 0;
    if (!model_parse(&m, model, strlen(model), &err) ||
        !expand_new(&e, m, model, strlen(model), object, relation, &err))
        fail_msg("%s", err.text);
    for (size_t n; (n = expand_wants(e, &asks)) > 0; assert_true(expand_level(e)))
        for (size_t a = 0; a < n; a++)
            for (long i = 0; lines[i].object; i++)
                if (strcmp(lines[i].object, asks[a].object) == 0 && strcmp(lines[i].relation, asks[a].relation) == 0)
                    assert_true(expand_give(e, a, lines[i].subject, lines[i].condition, i));
    out[0] = '\0';
    if (!expand_solve(e, &err))
        (void)snprintf(out, size, "%s", err.text);
    for (size_t i = 0; i < expand_subjects(e); i++) {
        static const char *const words[] = {"no", "if", "yes"};
        enum expand_value v;
        const char *name = expand_subject(e, i, &v), *const * conditions;
        const long *refs;
        len += (size_t)snprintf(out + len, size - len, "%s%s=%s", len ? " " : "", name, words[v]);
        for (size_t k = 0, n = v == EXPAND_YES ? expand_why(e, i, &refs) : 0; k < n; k++)
            len += (size_t)snprintf(out + len, size - len, "%s%ld", k ? "," : ":", refs[k]);
        for (size_t k = 0, n = v == EXPAND_CONDITIONAL ? expand_conditions(e, i, &conditions) : 0; k < n; k++)
            len += (size_t)snprintf(out + len, size - len, "%s%s", k ? "," : ":", conditions[k]);
    }
    expand_free(e);
    model_free(m);
    return out;
}
#define EXPAND(object, relation, ...)                                                                                  \
    expand_text(object, relation, (const struct line[]){__VA_ARGS__, {0}}, (char[1024]){0}, 1024)

static void test_a_chain_through_a_cycle_of_teams(void **state)
{
    (void)state;
    assert_string_equal(EXPAND("doc:1", "viewer", {"doc:1", "viewer", "team:a#member", NULL},
                               {"team:a", "member", "team:b#member", NULL}, {"team:b", "member", "team:a#member", NULL},
                               {"team:b", "member", "user:bob", NULL}, {"team:a", "member", "user:anne", NULL}),
                        "user:anne=yes:0,4 user:bob=yes:0,1,3");
}

static void test_a_wildcard_and_its_exceptions(void **state)
{
    (void)state;
    assert_string_equal(EXPAND("doc:1", "viewer", {"doc:1", "viewer", "user:*", NULL},
                               {"doc:1", "viewer", "user:anne", NULL}, {"doc:1", "blocked", "user:bob", NULL},
                               {"doc:1", "blocked", "user:cy", "banned"}),
                        "user:*=yes:0 user:anne=yes:0 user:bob=no user:cy=if:banned");
}

static void test_what_rests_on_a_condition_is_never_certain(void **state)
{
    (void)state;
    assert_string_equal(EXPAND("doc:1", "viewer", {"doc:1", "viewer", "user:anne", "in_hours"},
                               {"doc:1", "viewer", "team:a#member", "in_hours"}, {"team:a", "member", "user:bob", NULL},
                               {"team:a", "member", "user:cy", NULL}, {"doc:1", "viewer", "team:b#member", NULL},
                               {"team:b", "member", "user:cy", NULL}, {"doc:1", "blocked", "user:bob", "banned"}),
                        "user:anne=if:in_hours user:bob=if:in_hours,banned user:cy=yes:4,5");
}

static void test_tuples_that_the_model_does_not_allow_count_for_nothing(void **state)
{
    (void)state;
    assert_string_equal(EXPAND("doc:1", "viewer", {"doc:1", "viewer", "team:a", NULL},
                               {"doc:1", "viewer", "user:x", "nope"}, {"doc:1", "viewer", "user:anne", NULL}),
                        "user:anne=yes:2");
}

static void test_a_relation_that_excludes_itself_is_refused(void **state)
{
    (void)state;
    assert_non_null(strstr(EXPAND("odd:1", "a", {"odd:1", "a", "user:x", NULL}, {"odd:1", "b", "odd:1#a", NULL}),
                           "#a excludes itself"));
    assert_string_equal(EXPAND("odd:1", "a", {"odd:1", "a", "user:x", NULL}, {"odd:1", "b", "odd:2#a", NULL}),
                        "user:x=yes:0");
}

static void test_no_such_relation(void **state)
{
    (void)state;
    struct model_err err;
    struct model *m;
    struct expand *e;
    assert_true(model_parse(&m, model, strlen(model), &err));
    assert_false(expand_new(&e, m, model, strlen(model), "doc:1", "owner", &err));
    assert_string_equal(err.text, "the model has no relation \"owner\" on type \"doc\"");
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_models_say_what_brute_force_says),
        cmocka_unit_test(test_a_chain_through_a_cycle_of_teams),
        cmocka_unit_test(test_a_wildcard_and_its_exceptions),
        cmocka_unit_test(test_what_rests_on_a_condition_is_never_certain),
        cmocka_unit_test(test_tuples_that_the_model_does_not_allow_count_for_nothing),
        cmocka_unit_test(test_a_relation_that_excludes_itself_is_refused),
        cmocka_unit_test(test_no_such_relation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
