/*
 * engine_openfga_test.c - OpenFGA's own cases: check, list objects and list users give what its tests expect.
 *
 * openfga_cases.json: assets/tests/ of openfga/openfga v1.22.1 (Apache License 2.0), models as JSON. A case has
 * `model`, `tuples` [object, relation, user, condition], and what is asked with the answer or OpenFGA's error number,
 * and contextual tuples: `checks` [object, relation, user, answer, contextual], `objects` [user, relation, type, ...],
 * `users` [object, relation, filter, ...]. Contexts of conditions are not in it: where a decision needs one, the engine
 * says so.
 */
#include <jansson.h>

#include "engine/engine.h"
#include "tests/harness/harness.h"

#define TUPLES_MAX 512

struct run {
    const char *name;
    bool conditions; /* the model has some */
    struct model *m;
    struct engine *e;
    struct rules *rules;
    struct engine_reader *r;
    struct engine_tuple contextual[TUPLES_MAX];
    struct engine_limits limits;
    int decided, conditional;
};

static struct engine_text text(const json_t *list, size_t i)
{
    const char *s = json_string_value(json_array_get(list, i));
    return (struct engine_text){s ? s : "", s ? strlen(s) : 0};
}

static struct engine_tuple tuple(const json_t *t)
{
    return (struct engine_tuple){
        .object = text(t, 0), .relation = text(t, 1), .subject = text(t, 2), .condition = text(t, 3)};
}

static void open_case(struct run *run, const json_t *c)
{
    char *json = json_dumps(json_object_get(c, "model"), 0);
    const json_t *t;
    struct model_err err;
    size_t i;
    run->name = json_string_value(json_object_get(c, "name"));
    run->conditions = json_object_get(json_object_get(c, "model"), "conditions") != NULL;
    assert_non_null(json);
    if (!model_valid(json, strlen(json), &err) || !model_parse(&run->m, json, strlen(json), &err))
        fail_msg("%s: %s", run->name, err.text);
    free(json);
    run->e = engine_new();
    run->rules = rules_new(run->e, run->m);
    run->r = engine_reader_new(run->e);
    assert_true(run->e && run->rules && run->r);
    json_array_foreach(json_object_get(c, "tuples"), i, t)
    {
        struct engine_change change = {.tuple = tuple(t)};
        assert_int_equal(engine_apply(run->e, &change, 1, i + 1), ENGINE_OK);
    }
    engine_begin(run->r);
}

static void close_case(struct run *run)
{
    engine_end(run->r);
    engine_reader_free(run->r);
    rules_free(run->rules);
    engine_free(run->e);
    model_free(run->m);
}

static void set_contextual(struct run *run, const json_t *question)
{
    const json_t *t, *list = json_array_get(question, 4);
    size_t i;
    assert_true(json_array_size(list) <= TUPLES_MAX);
    json_array_foreach(list, i, t) run->contextual[i] = tuple(t);
    run->limits = (struct engine_limits){.contextual = run->contextual, .ncontextual = json_array_size(list)};
}

static void wrong(const struct run *run, const json_t *question, int status)
{
    char *json = json_dumps(question, 0);
    print_error("%s: %s: status %d (%s)\n", run->name, json, status, engine_reason(run->r));
    free(json);
    fail();
}

/* Whether there is an answer to compare. */
static bool answered(struct run *run, const json_t *question, enum engine_status st)
{
    json_int_t error = json_integer_value(json_array_get(question, 3));
    bool refused = st == ENGINE_NO_TYPE || st == ENGINE_NO_RELATION || st == ENGINE_BAD_TUPLE;
    if (st == ENGINE_CONDITIONAL && run->conditions) {
        run->conditional++;
        return false;
    }
    if (error == 0 ? st != ENGINE_OK : error == 2002 ? st != ENGINE_TOO_DEEP : !refused)
        wrong(run, question, (int)st);
    run->decided++;
    return error == 0;
}

static void check(struct run *run, const json_t *question)
{
    struct engine_check q = {.object = text(question, 0), .relation = text(question, 1), .subject = text(question, 2)};
    engine_checks(run->r, run->rules, &run->limits, &q, 1);
    if (answered(run, question, q.status) && q.allowed != json_is_true(json_array_get(question, 3)))
        wrong(run, question, (int)q.status);
}

static bool take(void *arg, struct engine_text name)
{
    char key[600];
    snprintf(key, sizeof key, "%.*s", (int)name.len, name.s);
    return json_object_set_new(arg, key, json_true()) == 0;
}

static void compare(struct run *run, const json_t *question, enum engine_status st, json_t *found)
{
    const json_t *want = json_array_get(question, 3), *name;
    size_t i;
    if (answered(run, question, st)) {
        bool same = json_array_size(want) == json_object_size(found);
        json_array_foreach(want, i, name) same &= json_object_get(found, json_string_value(name)) != NULL;
        if (!same)
            wrong(run, question, (int)st);
    }
    json_decref(found);
}

static void objects(struct run *run, const json_t *question)
{
    json_t *found = json_object();
    enum engine_status st = engine_list_objects(run->r, run->rules, &run->limits, text(question, 0), text(question, 1),
                                                text(question, 2), take, found);
    compare(run, question, st, found);
}

static void users(struct run *run, const json_t *question)
{
    json_t *found = json_object();
    struct engine_text filter = text(question, 2), type = {filter.s, strcspn(filter.s, "#")},
                       relation = {filter.s + type.len, 0};
    if (type.len < filter.len)
        relation = (struct engine_text){filter.s + type.len + 1, filter.len - type.len - 1};
    enum engine_status st = engine_list_users(run->r, run->rules, &run->limits, text(question, 0), text(question, 1),
                                              type, relation, take, found);
    compare(run, question, st, found);
}

static void test_the_cases_of_openfga(void **state)
{
    static const struct {
        const char *key;
        void (*ask)(struct run *run, const json_t *question);
    } kinds[] = {{"checks", check}, {"objects", objects}, {"users", users}};
    json_error_t why;
    json_t *cases = json_load_file("tests/unit/openfga_cases.json", 0, &why);
    const json_t *c, *question;
    size_t i, k;
    struct run run = {0};
    (void)state;
    if (!cases)
        fail_msg("%s (line %d)", why.text, why.line);
    json_array_foreach(cases, i, c)
    {
        open_case(&run, c);
        for (int kind = 0; kind < 3; kind++)
            json_array_foreach(json_object_get(c, kinds[kind].key), k, question)
            {
                set_contextual(&run, question);
                kinds[kind].ask(&run, question);
            }
        close_case(&run);
    }
    print_message("%zu cases, %d answers, %d need a condition\n", i, run.decided, run.conditional);
    assert_true(run.decided > 800);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_cases_of_openfga)};
    return cmocka_run_group_tests_name("engine_openfga", tests, NULL, NULL);
}
