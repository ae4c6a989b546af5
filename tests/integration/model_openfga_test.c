/*
 * model_openfga_test.c - the same as unit/model_effect_test.c with a real OpenFGA deciding: what a tuple change flips
 * there lies within model_effect(), and the naive evaluator that other tests trust says the same as OpenFGA.
 */
#include "engine/model.h"
#include "tests/integration/writer_helpers.h"
#include "tests/model/rebac.h"

#define CHANGES 4

/* What the store says of a universe; `unknown`: it gave no answer (too deep, a cycle). */
struct answers {
    struct rebac_truth yes, unknown;
};

struct run {
    struct harness *h;
    struct rebac *r;
    struct model *m;
    const char *model_id;
    struct store_conn *conn;
    uint64_t *rng, asked; /* bits: the subjects that are asked about */
    long decisions, flips, skipped;
};

/* Users, and a few of the objects, wildcards and usersets. */
static void choose_subjects(struct run *run)
{
    run->asked = 0;
    for (int s = 0; s < rebac_subjects(run->r); s++) {
        const char *name = rebac_subject(run->r, s);
        bool user = strncmp(name, "user:", 5) == 0;
        if (user || rebac_random(run->rng, 10) == 0)
            run->asked |= (uint64_t)1 << s;
    }
}

static void ask(struct run *run, int type, int relation, int object, struct answers *out)
{
    for (int s = 0; s < rebac_subjects(run->r); s++) {
        const struct tuple_key key = {rebac_object(type, object), rebac_relation(relation), rebac_subject(run->r, s)};
        uint64_t bit = (uint64_t)1 << s;
        bool allowed = false;
        struct err err;
        if (!(run->asked & bit))
            continue;
        enum status st = store_check(run->conn, run->model_id, &key, true, &allowed, deadline_in_ms(WAIT_MS), &err);
        if (st != ST_OK && st != ST_INVALID)
            fail_msg("%s#%s@%s: %s", key.object, key.relation, key.subject, err.text);
        uint64_t *set =
            st != ST_OK ? &out->unknown.allowed[type][relation][object] : &out->yes.allowed[type][relation][object];
        *set |= allowed || st != ST_OK ? bit : 0;
        run->decisions++;
        run->skipped += st != ST_OK;
    }
}

static void ask_all(struct run *run, struct answers *out)
{
    memset(out, 0, sizeof *out);
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; rebac_has(run->r, t, k) && o < rebac_objects(t); o++)
                ask(run, t, k, o, out);
}

static void show(struct run *run)
{
    print_error("%s\n", rebac_json(run->r));
    for (int i = 0; i < rebac_tuples(run->r); i++) {
        struct rebac_tuple t = rebac_tuple(run->r, i);
        if (t.present)
            print_error("%s#%s@%s\n", t.object, t.relation, t.subject);
    }
}

/* The naive evaluator agrees. */
static void compare_truth(struct run *run, const struct answers *a)
{
    struct rebac_truth truth;
    rebac_evaluate(run->r, &truth);
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; o < rebac_objects(t); o++) {
                uint64_t differ =
                    (truth.allowed[t][k][o] ^ a->yes.allowed[t][k][o]) & run->asked & ~a->unknown.allowed[t][k][o];
                for (int s = 0; differ && s < rebac_subjects(run->r); s++)
                    if (differ >> s & 1) {
                        show(run);
                        fail_msg("%s#%s@%s: the store says %s", rebac_object(t, o), rebac_relation(k),
                                 rebac_subject(run->r, s), a->yes.allowed[t][k][o] >> s & 1 ? "yes" : "no");
                    }
            }
}

static bool within(struct run *run, struct rebac_tuple t, int type, int relation, int object, int subject)
{
    struct model_effect e = model_effect(run->m, t.object, t.relation, t.subject);
    int pair = model_pair(run->m, rebac_type(type), strlen(rebac_type(type)), rebac_relation(relation));
    bool holds = false;
    for (size_t i = 0; i < e.n; i++)
        holds |= e.pairs[i] == pair;
    return holds && (!e.by_subject || strcmp(t.subject, rebac_subject(run->r, subject)) == 0) &&
           (!e.by_object || strcmp(t.object, rebac_object(type, object)) == 0);
}

static void compare_flips(struct run *run, struct rebac_tuple tuple, const struct answers *a, const struct answers *b)
{
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; o < rebac_objects(t); o++) {
                uint64_t flipped = (a->yes.allowed[t][k][o] ^ b->yes.allowed[t][k][o]) &
                                   ~(a->unknown.allowed[t][k][o] | b->unknown.allowed[t][k][o]);
                for (int s = 0; flipped && s < rebac_subjects(run->r); s++) {
                    if (!(flipped >> s & 1))
                        continue;
                    run->flips++;
                    if (!within(run, tuple, t, k, o, s)) {
                        show(run);
                        fail_msg("%s#%s@%s flips %s#%s@%s", tuple.object, tuple.relation, tuple.subject,
                                 rebac_object(t, o), rebac_relation(k), rebac_subject(run->r, s));
                    }
                }
            }
}

static void toggle(struct run *run, int i, bool present)
{
    struct rebac_tuple t = rebac_tuple(run->r, i);
    const struct tuple_key key = {t.object, t.relation, t.subject};
    const struct store_tuple write = {.key = key};
    struct err err;
    if (store_write(run->conn, run->model_id, &write, present, &key, !present, deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s#%s@%s: %s", t.object, t.relation, t.subject, err.text);
    rebac_set(run->r, i, present);
}

/* False: the store refuses such a model (a cycle of computed relations, a relation that nothing can reach). */
static bool model_is_taken(struct run *run)
{
    char *id = NULL;
    struct err err;
    enum status st = store_write_model(run->conn, rebac_json(run->r), &id, deadline_in_ms(WAIT_MS), &err);
    if (st != ST_OK && st != ST_INVALID)
        fail_msg("writing a model: %s", err.text);
    run->model_id = st == ST_OK ? harness_strf(run->h, "%s", id) : NULL;
    free(id);
    return st == ST_OK;
}

/* The text of the model as the store gives it back. */
static void parse_model(struct run *run)
{
    char *json = NULL;
    struct err err;
    struct model_err why;
    if (store_model(run->conn, run->model_id, &json, deadline_in_ms(WAIT_MS), &err) != ST_OK)
        fail_msg("%s", err.text);
    if (!model_parse(&run->m, json, strlen(json), &why))
        fail_msg("%s\n%s", why.text, json);
    free(json);
}

static bool differs(const struct run *run, const struct rebac_truth *a, const struct rebac_truth *b)
{
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; o < rebac_objects(t); o++)
                if ((a->allowed[t][k][o] ^ b->allowed[t][k][o]) & run->asked)
                    return true;
    return false;
}

/* A random tuple, rather one that flips something. */
static int some_change(struct run *run)
{
    struct rebac_truth before, after;
    int tuple = 0;
    rebac_evaluate(run->r, &before);
    for (int tries = 0; tries < 30; tries++) {
        tuple = (int)rebac_random(run->rng, (uint64_t)rebac_tuples(run->r));
        bool present = rebac_tuple(run->r, tuple).present;
        rebac_set(run->r, tuple, !present);
        rebac_evaluate(run->r, &after);
        rebac_set(run->r, tuple, present);
        if (differs(run, &before, &after))
            break;
    }
    return tuple;
}

static void one_model(struct run *run)
{
    struct answers before, after;
    const char *store_id;
    do {
        rebac_free(run->r);
        run->r = rebac_new(run->rng);
    } while (rebac_tuples(run->r) == 0 || !model_is_taken(run));
    harness_store_new(run->h, rebac_json(run->r), &store_id, &run->model_id);
    struct store_conn *first = run->conn;
    if (store_conn_new(&run->conn, run->h->store, store_id, NULL) != ST_OK)
        fail_msg("no connection");
    parse_model(run);
    choose_subjects(run);
    for (int i = 0; i < rebac_tuples(run->r); i++)
        if (rebac_random(run->rng, 100) < 15)
            toggle(run, i, true);
    ask_all(run, &before);
    for (int i = 0; i < CHANGES; i++) {
        int tuple = some_change(run);
        toggle(run, tuple, !rebac_tuple(run->r, tuple).present);
        ask_all(run, &after);
        compare_truth(run, &after);
        compare_flips(run, rebac_tuple(run->r, tuple), &before, &after);
        before = after;
    }
    store_conn_free(run->conn);
    run->conn = first;
    model_free(run->m);
}

static void test_P02_what_flips_in_openfga_is_within_the_effect(void **state)
{
    struct harness *h = *state;
    uint64_t rng = harness_seed() | 1;
    struct run run = {.h = h, .rng = &rng, .conn = h->store_conn};
    for (int i = harness_soak(30); i > 0; i--)
        one_model(&run);
    rebac_free(run.r);
    print_message("%ld decisions, %ld flips, %ld without an answer\n", run.decisions, run.flips, run.skipped);
    assert_true(run.decisions > 500);
    assert_true(run.flips > 5);
    assert_true(run.skipped < run.decisions / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_P02_what_flips_in_openfga_is_within_the_effect, HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
