/*
 * model_test.c - parsing of authorization models, and the effect of tuple changes on models written by hand.
 */
#include <errno.h>

#include "engine/model.h"
#include "tests/harness/harness.h"

#define USER "{\"type\":\"user\"}"

static struct model *parse(const char *json)
{
    struct model *m;
    struct model_err err;
    if (!model_parse(&m, json, strlen(json), &err))
        fail_msg("%s", err.text);
    return m;
}

/* `types` behind the header of a model. */
static struct model *parse_types(const char *types)
{
    char json[8192];
    snprintf(json, sizeof json, "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER ",%s]}", types);
    return parse(json);
}

static int pair(const struct model *m, const char *name)
{
    const char *hash = strchr(name, '#');
    return model_pair(m, name, (size_t)(hash - name), hash + 1);
}

static bool affects(const struct model *m, struct model_effect e, const char *name)
{
    int p = pair(m, name);
    if (p < 0)
        fail_msg("%s is no pair", name);
    for (size_t i = 0; i < e.n; i++)
        if (e.pairs[i] == p)
            return true;
    return false;
}

static struct model *parse_file(const char *path)
{
    char *json = calloc(1, 1 << 20);
    FILE *f = fopen(path, "r");
    if (!f || !json)
        fail_msg("%s: %s", path, strerror(errno));
    size_t n = fread(json, 1, (1 << 20) - 1, f);
    fclose(f);
    struct model *m;
    struct model_err err;
    if (!model_parse(&m, json, n, &err))
        fail_msg("%s: %s", path, err.text);
    free(json);
    return m;
}

static void test_pairs_are_found_by_name(void **state)
{
    (void)state;
    struct model *m = parse_file("demo/model-deep.json");
    assert_true(model_has_type(m, "user"));
    assert_true(model_has_type(m, "team"));
    assert_false(model_has_type(m, "tea"));
    assert_false(model_has_type(m, "teams"));
    assert_false(model_has_type(m, ""));
    assert_int_equal(model_pair(m, "user", 4, "member"), -1);
    assert_int_equal(model_pair(m, "team", 4, "membe"), -1);
    assert_int_equal(model_pair(m, "team:1", 4, "member"), pair(m, "team#member"));
    assert_true(model_pairs(m) > 10);
    for (int i = 0; i < model_pairs(m); i++) {
        const char *type = model_pair_type(m, i);
        assert_int_equal(model_pair(m, type, strlen(type), model_pair_relation(m, i)), i);
    }
    model_free(m);
    model_free(NULL);
}

static void test_P02_a_team_member_reaches_down_the_tree(void **state)
{
    (void)state;
    struct model *m = parse_file("demo/model-deep.json");
    struct model_effect e = model_effect(m, "team:1", "member", "user:anne");
    assert_true(affects(m, e, "team#member"));
    assert_true(affects(m, e, "tenant#viewer"));
    assert_true(affects(m, e, "cluster#can_edit"));
    assert_false(affects(m, e, "tenant#parent"));
    assert_true(e.by_subject);
    assert_false(e.by_object);
    e = model_effect(m, "tenant:1", "parent", "organization:1");
    assert_false(e.by_subject); /* about whoever has rights at the organization */
    assert_false(e.by_object);
    assert_false(affects(m, e, "organization#viewer"));
    assert_true(affects(m, e, "cluster#viewer"));
    e = model_effect(m, "tenant:1", "viewer", "team:1#member");
    assert_false(e.by_subject);
    assert_false(affects(m, e, "tenant#editor"));
    assert_false(affects(m, e, "team#member"));
    model_free(m);
}

static void test_approver_is_the_manager_of_the_submitter(void **state)
{
    (void)state;
    struct model *m = parse("{\"schema_version\":\"1.1\",\"type_definitions\":["
                            "{\"type\":\"user\",\"relations\":{\"manager\":{\"this\":{}}},\"metadata\":{\"relations\":"
                            "{\"manager\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}},"
                            "{\"type\":\"doc\",\"relations\":{\"submitter\":{\"this\":{}},\"approver\":"
                            "{\"tupleToUserset\":{\"tupleset\":{\"object\":\"\",\"relation\":\"submitter\"},"
                            "\"computedUserset\":{\"object\":\"\",\"relation\":\"manager\"}}}},"
                            "\"metadata\":{\"relations\":{\"submitter\":{\"directly_related_user_types\":"
                            "[{\"type\":\"user\",\"condition\":\"\"}]},\"approver\":"
                            "{\"directly_related_user_types\":[]}}}}]}");
    struct model_effect e = model_effect(m, "doc:1", "submitter", "user:anne");
    assert_int_equal(e.n, 2);
    assert_false(e.by_subject); /* it flips her manager */
    assert_true(e.by_object);
    e = model_effect(m, "user:anne", "manager", "user:boss");
    assert_int_equal(e.n, 2);
    assert_true(affects(m, e, "doc#approver"));
    assert_true(e.by_subject);
    assert_false(e.by_object);
    model_free(m);
}

static void test_exclusion_intersection_and_wildcards(void **state)
{
    (void)state;
    struct model *m = parse_types(
        "{\"type\":\"doc\",\"relations\":{\"blocked\":{\"this\":{}},\"paid\":{\"this\":{}},\"editor\":{\"this\":{}},"
        "\"viewer\":{\"difference\":{\"base\":{\"intersection\":{\"child\":[{\"computedUserset\":{\"relation\":"
        "\"editor\"}},{\"computedUserset\":{\"relation\":\"paid\"}}]}},\"subtract\":{\"computedUserset\":"
        "{\"relation\":\"blocked\"}}}}},\"metadata\":{\"relations\":{\"blocked\":{\"directly_related_user_types\":"
        "[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}}]},\"paid\":{\"directly_related_user_types\":"
        "[{\"type\":\"user\"}]},\"editor\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}}");
    const char *const relations[] = {"blocked", "paid", "editor"};
    for (size_t i = 0; i < 3; i++) {
        struct model_effect e = model_effect(m, "doc:1", relations[i], "user:anne");
        assert_int_equal(e.n, 2);
        assert_true(affects(m, e, "doc#viewer"));
        assert_true(e.by_subject);
        assert_true(e.by_object);
    }
    assert_false(model_effect(m, "doc:1", "blocked", "user:*").by_subject);
    assert_false(model_effect(m, "doc:1", "blocked", "user:a#b").by_subject);
    assert_int_equal(model_effect(m, "doc:1", "viewer", "user:anne").n, 1);
    assert_int_equal(model_effect(m, "doc:1", "nothing", "user:anne").n, 0);
    assert_int_equal(model_effect(m, "folder:1", "viewer", "user:anne").n, 0);
    assert_int_equal(model_effect(m, "doc", "viewer", "user:anne").n, 0);
    model_free(m);
}

static void test_usersets_of_usersets_are_not_narrowed_by_object(void **state)
{
    (void)state;
    struct model *m = parse_types("{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":"
                                  "{\"relations\":{\"member\":{\"directly_related_user_types\":[{\"type\":\"user\"},"
                                  "{\"type\":\"team\",\"relation\":\"member\"}]}}}}");
    struct model_effect e = model_effect(m, "team:1", "member", "user:anne");
    assert_int_equal(e.n, 1);
    assert_true(e.by_subject);
    assert_false(e.by_object);
    model_free(m);
}

static void test_P07_conditions_reach_what_rests_on_them(void **state)
{
    (void)state;
    struct model *m = parse_types(
        "{\"type\":\"doc\",\"relations\":{\"timed\":{\"this\":{}},\"plain\":{\"this\":{}},\"viewer\":{\"union\":"
        "{\"child\":[{\"computedUserset\":{\"relation\":\"plain\"}},{\"computedUserset\":{\"relation\":\"timed\"}}]}}},"
        "\"metadata\":{\"relations\":{\"timed\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":"
        "\"user\",\"condition\":\"in_hours\"}]},\"plain\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}},"
        "{\"type\":\"page\",\"relations\":{\"doc\":{\"this\":{}},\"viewer\":{\"tupleToUserset\":{\"tupleset\":"
        "{\"relation\":\"doc\"},\"computedUserset\":{\"relation\":\"viewer\"}}}},\"metadata\":{\"relations\":"
        "{\"doc\":{\"directly_related_user_types\":[{\"type\":\"doc\"}]}}}}");
    assert_true(model_conditional(m, pair(m, "doc#timed")));
    assert_true(model_conditional(m, pair(m, "doc#viewer")));
    assert_true(model_conditional(m, pair(m, "page#viewer")));
    assert_false(model_conditional(m, pair(m, "doc#plain")));
    assert_false(model_conditional(m, pair(m, "page#doc")));
    model_free(m);
}

/* A relation as the store prints it, with every field that protobuf has. */
static void test_the_stores_own_form_is_taken(void **state)
{
    (void)state;
    struct model *m =
        parse("{\"id\":\"01JD\",\"schema_version\":\"1.2\",\"type_definitions\":[{\"type\":\"user\",\"relations\":{},"
              "\"metadata\":null},{\"type\":\"doc\",\"relations\":{\"viewer\":{\"this\":{}}},\"metadata\":"
              "{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\",\"wildcard\":{},"
              "\"condition\":\"\"},{\"type\":\"user\",\"condition\":\"\"}],\"module\":\"m\",\"source_info\":null}},"
              "\"module\":\"m\",\"source_info\":{\"file\":\"m.fga\"}}}],\"conditions\":{}}");
    assert_int_equal(model_pairs(m), 1);
    model_free(m);
}

#define DOC(relations, metadata)                                                                                       \
    "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER ",{\"type\":\"doc\",\"relations\":{" relations           \
    "},\"metadata\":{\"relations\":{" metadata "}}}]}"
#define DIRECT "\"directly_related_user_types\":"

static void test_bad_models_are_refused_with_the_place(void **state)
{
    static const struct {
        const char *json, *why;
    } bad[] = {
        {"", "no JSON"},
        {"[]", "no JSON object"},
        {"{\"schema_version\":\"1.1\",\"schema_version\":\"1.1\"}", "no JSON"},
        {"{\"schema_version\":\"1.0\",\"type_definitions\":[" USER "]}", "neither 1.1 nor 1.2"},
        {"{\"schema_version\":\"1.1\"}", "type_definitions"},
        {"{\"schema_version\":\"1.1\",\"type_definitions\":[]}", "type_definitions"},
        {"{\"schema_version\":\"1.1\",\"type_definitions\":[{}]}", "no name"},
        {"{\"schema_version\":\"1.1\",\"type_definitions\":[" USER "," USER "]}", "\"user\" is defined twice"},
        {"{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"a\",\"relations\":[]}]}", "no object"},
        {DOC("\"v\":{\"this\":{}}", ""), "type \"doc\", relation \"v\": relation \"v\" is assigned directly"},
        {DOC("\"v\":{\"this\":{}}", "\"v\":{" DIRECT "[]}"), "no directly related"},
        {DOC("\"v\":{\"this\":{}}", "\"v\":{" DIRECT "[{\"type\":\"usr\"}]}"), "\"usr\" is not defined"},
        {DOC("\"v\":{\"this\":{}}", "\"v\":{" DIRECT "[{\"type\":\"doc\",\"relation\":\"w\"}]}"), "\"doc#w\""},
        {DOC("\"v\":{\"this\":{}}", "\"v\":{" DIRECT "[{\"type\":1}]}"), "wrong form"},
        {DOC("\"v\":{\"this\":{}}", "\"v\":{" DIRECT "[{\"type\":\"doc\",\"relation\":\"v\",\"wildcard\":{}}]}"),
         "wrong form"},
        {DOC("\"v\":{\"this\":{},\"union\":{}}", ""), "exactly one"},
        {DOC("\"v\":{}", ""), "exactly one"},
        {DOC("\"v\":7", ""), "exactly one"},
        {DOC("\"v\":{\"thus\":{}}", ""), "\"thus\" is not known"},
        {DOC("\"v\":{\"this\":1}", ""), "\"this\" is no object"},
        {DOC("\"v\":{\"union\":{}}", ""), "without \"child\""},
        {DOC("\"v\":{\"computedUserset\":{}}", ""), "names no relation"},
        {DOC("\"v\":{\"computedUserset\":{\"relation\":\"w\"}}", ""), "\"w\" of its computedUserset is not defined"},
        {DOC("\"v\":{\"difference\":{\"base\":{\"computedUserset\":{\"relation\":\"v\"}}}}", ""), "exactly one"},
        {DOC("\"p\":{\"this\":{}},\"v\":{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"p\"},\"computedUserset\":"
             "{\"relation\":\"v\"}}}",
             "\"p\":{" DIRECT "[{\"type\":\"user\"}]}"),
         "is defined for none of the types"},
        {DOC("\"p\":{\"computedUserset\":{\"relation\":\"v\"}},\"v\":{\"tupleToUserset\":{\"tupleset\":{\"relation\":"
             "\"p\"},\"computedUserset\":{\"relation\":\"v\"}}}",
             ""),
         "\"p\" is not assigned directly"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model *m;
        struct model_err err;
        if (model_parse(&m, bad[i].json, strlen(bad[i].json), &err))
            fail_msg("taken: %s", bad[i].json);
        assert_null(m);
        if (!strstr(err.text, bad[i].why))
            fail_msg("\"%s\" instead of \"%s\"", err.text, bad[i].why);
    }
}

static void nested(char *out, size_t size, int depth)
{
    size_t n = (size_t)snprintf(out, size,
                                "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER
                                ",{\"type\":\"doc\",\"relations\":{\"v\":");
    for (int i = 1; i < depth; i++)
        n += (size_t)snprintf(out + n, size - n, "{\"union\":{\"child\":[");
    n += (size_t)snprintf(out + n, size - n, "{\"this\":{}}");
    for (int i = 1; i < depth; i++)
        n += (size_t)snprintf(out + n, size - n, "]}}");
    snprintf(out + n, size - n, "},\"metadata\":{\"relations\":{\"v\":{" DIRECT "[{\"type\":\"user\"}]}}}}]}");
}

static void test_depth_and_size_are_bounded(void **state)
{
    static char json[1 << 16];
    struct model *m;
    struct model_err err;
    (void)state;
    nested(json, sizeof json, 64);
    model_free(parse(json));
    nested(json, sizeof json, 65);
    assert_false(model_parse(&m, json, strlen(json), &err));
    assert_non_null(strstr(err.text, "deeper than 64"));
    char *large = malloc((4 << 20) + 1);
    memset(large, ' ', (4 << 20) + 1);
    assert_false(model_parse(&m, large, (4 << 20) + 1, &err));
    assert_non_null(strstr(err.text, "larger"));
    free(large);
}

/* 20,000 relations in a chain: closures would take 800 MB; they may be too large, never too small. */
static void test_a_long_chain_stays_small_and_complete(void **state)
{
    enum { N = 20000 };
    struct buf b;
    (void)state;
    buf_init(&b, 4 << 20);
    buf_adds(&b, "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER ",{\"type\":\"doc\",\"relations\":{");
    for (int i = 1; i < N; i++)
        buf_addf(&b, "\"r%d\":{\"computedUserset\":{\"relation\":\"r%d\"}},", i, i - 1);
    buf_adds(&b, "\"r0\":{\"this\":{}}},\"metadata\":{\"relations\":{\"r0\":{" DIRECT "[{\"type\":\"user\"}]}}}}]}");
    assert_true(buf_ok(&b));
    struct model *m = parse(buf_str(&b));
    buf_release(&b);
    struct model_effect e = model_effect(m, "doc:1", "r0", "user:a");
    assert_int_equal(e.n, N);
    for (int i = 0; i < N; i += 997) {
        char name[16], last[16];
        snprintf(name, sizeof name, "r%d", i);
        snprintf(last, sizeof last, "doc#r%d", N - 1);
        e = model_effect(m, "doc:1", name, "user:a");
        assert_true(affects(m, e, last));
        assert_true(e.n >= (size_t)(N - i));
    }
    model_free(m);
}

/* As OpenFGA 1.22 takes or refuses them on Write. */
static void test_D28_which_tuples_a_model_allows(void **state)
{
    struct model *m = parse_types(
        "{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":{\"relations\":{\"member\":{"
        "\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"}]}}}},"
        "{\"type\":\"doc\",\"relations\":{\"viewer\":{\"this\":{}},\"reader\":{\"computedUserset\":{\"relation\":"
        "\"viewer\"}}},\"metadata\":{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\","
        "\"wildcard\":{}},{\"type\":\"user\",\"condition\":\"hours\"}]}}}}");

    (void)state;
    assert_true(model_allows(m, "team:1", "member", "user:a", ""));
    assert_true(model_allows(m, "team:1", "member", "team:2#member", NULL));
    assert_false(model_allows(m, "team:1", "member", "team:2#owner", NULL));
    assert_false(model_allows(m, "team:1", "member", "team:2", NULL));
    assert_false(model_allows(m, "team:1", "member", "user:*", NULL));
    assert_false(model_allows(m, "team:1", "member", "user:a", "hours"));
    assert_false(model_allows(m, "team:1", "owner", "user:a", NULL));
    assert_false(model_allows(m, "group:1", "member", "user:a", NULL));
    assert_true(model_allows(m, "doc:1", "viewer", "user:*", NULL));
    assert_true(model_allows(m, "doc:1", "viewer", "user:a", "hours"));
    assert_false(model_allows(m, "doc:1", "viewer", "user:a", NULL));
    assert_false(model_allows(m, "doc:1", "viewer", "user:*", "hours"));
    assert_false(model_allows(m, "doc:1", "viewer", "users:a", "hours"));
    assert_false(model_allows(m, "doc:1", "reader", "user:*", NULL)); /* computed: never written */
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_are_found_by_name),
        cmocka_unit_test(test_P02_a_team_member_reaches_down_the_tree),
        cmocka_unit_test(test_approver_is_the_manager_of_the_submitter),
        cmocka_unit_test(test_exclusion_intersection_and_wildcards),
        cmocka_unit_test(test_usersets_of_usersets_are_not_narrowed_by_object),
        cmocka_unit_test(test_P07_conditions_reach_what_rests_on_them),
        cmocka_unit_test(test_the_stores_own_form_is_taken),
        cmocka_unit_test(test_bad_models_are_refused_with_the_place),
        cmocka_unit_test(test_depth_and_size_are_bounded),
        cmocka_unit_test(test_a_long_chain_stays_small_and_complete),
        cmocka_unit_test(test_D28_which_tuples_a_model_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
