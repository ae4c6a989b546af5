/*
 * authz_api_test.c - OpenFGA's API as authz-store speaks it: the same request to both, the answers compared field by
 * field: chosen ones over every endpoint, then thousands that are broken in some way.
 *
 * Deliberate differences, each with its reason in docs/authz-store.md, are named in deliberate().
 */
#include "tests/harness/twin.h"

#include "tests/model/rebac.h"

static const char model[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},"
    "{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":{\"relations\":{\"member\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}},{\"type\":\"team\","
    "\"relation\":\"member\"}]}}}},"
    "{\"type\":\"doc\",\"relations\":{\"parent\":{\"this\":{}},\"editor\":{\"this\":{}},\"viewer\":{\"union\":{"
    "\"child\":["
    "{\"this\":{}},{\"computedUserset\":{\"relation\":\"editor\"}},{\"tupleToUserset\":{\"tupleset\":{\"relation\":"
    "\"parent\"},\"computedUserset\":{\"relation\":\"viewer\"}}}]}},\"ok\":{\"difference\":{\"base\":{"
    "\"computedUserset\":{"
    "\"relation\":\"viewer\"}},\"subtract\":{\"computedUserset\":{\"relation\":\"editor\"}}}}},\"metadata\":{"
    "\"relations\":{"
    "\"parent\":{\"directly_related_user_types\":[{\"type\":\"doc\"}]},\"editor\":{\"directly_related_user_types\":[{"
    "\"type\":\"user\"}]},\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\","
    "\"relation\":"
    "\"member\"},{\"type\":\"user\",\"condition\":\"c1\"}]}}}}],\"conditions\":{\"c1\":{\"name\":\"c1\",\"expression\":"
    "\"x "
    "== 1\",\"parameters\":{\"x\":{\"type_name\":\"TYPE_NAME_INT\"},\"s\":{\"type_name\":\"TYPE_NAME_STRING\"},\"l\":{"
    "\"type_name\":\"TYPE_NAME_LIST\",\"generic_types\":[{\"type_name\":\"TYPE_NAME_BOOL\"}]}}}}}";

static const char tuples[] =
    "{\"writes\":{\"tuple_keys\":[{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:1\"},"
    "{\"user\":\"doc:2\",\"relation\":\"parent\",\"object\":\"doc:1\"},{\"user\":\"team:a#member\",\"relation\":"
    "\"viewer\","
    "\"object\":\"doc:2\"},{\"user\":\"user:bob\",\"relation\":\"member\",\"object\":\"team:a\"},"
    "{\"user\":\"user:bob\",\"relation\":\"editor\",\"object\":\"doc:1\"}]}}";

struct request {
    const char *method, *path, *body;
};

/* Requests that both answer well; what is broken is made of these. Those that change something come in pairs. */
static const struct request good[] = {
    {"POST", "/stores/{store}/check",
     "{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:1\"}}"},
    {"POST", "/stores/{store}/check",
     "{\"tuple_key\":{\"user\":\"user:z\",\"relation\":\"ok\",\"object\":\"doc:1\"},\"contextual_tuples\":{\"tuple_"
     "keys\":[{"
     "\"user\":\"user:z\",\"relation\":\"viewer\",\"object\":\"doc:1\"}]},\"authorization_model_id\":\"{model}\","
     "\"consistency\":\"HIGHER_CONSISTENCY\",\"context\":{\"x\":1},\"trace\":false}"},
    {"POST", "/stores/{store}/batch-check",
     "{\"checks\":[{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:1\"},\"correlation_"
     "id\":"
     "\"a-1\"},{\"tuple_key\":{\"user\":\"team:a#member\",\"relation\":\"viewer\",\"object\":\"doc:1\"},\"correlation_"
     "id\":"
     "\"b\",\"contextual_tuples\":{\"tuple_keys\":[{\"user\":\"user:q\",\"relation\":\"editor\",\"object\":\"doc:1\"}]}"
     "}],"
     "\"consistency\":\"MINIMIZE_LATENCY\"}"},
    {"POST", "/stores/{store}/list-objects", "{\"type\":\"doc\",\"relation\":\"viewer\",\"user\":\"user:bob\"}"},
    {"POST", "/stores/{store}/streamed-list-objects",
     "{\"type\":\"doc\",\"relation\":\"viewer\",\"user\":\"team:a#member\"}"},
    {"POST", "/stores/{store}/list-users",
     "{\"object\":{\"type\":\"doc\",\"id\":\"1\"},\"relation\":\"viewer\",\"user_filters\":[{\"type\":\"user\"}],"
     "\"contextual_tuples\":[{\"user\":\"user:c\",\"relation\":\"editor\",\"object\":\"doc:2\"}]}"},
    {"POST", "/stores/{store}/expand", "{\"tuple_key\":{\"relation\":\"viewer\",\"object\":\"doc:1\"}}"},
    {"POST", "/stores/{store}/read", "{\"tuple_key\":{\"object\":\"doc:1\",\"relation\":\"viewer\"},\"page_size\":50}"},
    {"POST", "/stores/{store}/read", "{}"},
    {"POST", "/stores/{store}/write",
     "{\"writes\":{\"tuple_keys\":[{\"user\":\"user:w\",\"relation\":\"viewer\",\"object\":\"doc:9\"},{\"user\":\"user:"
     "v\","
     "\"relation\":\"viewer\",\"object\":\"doc:9\",\"condition\":{\"name\":\"c1\",\"context\":{\"x\":5,\"s\":\"t\","
     "\"l\":["
     "true]}}}],\"on_duplicate\":\"ignore\"},\"deletes\":{\"tuple_keys\":[{\"user\":\"user:gone\",\"relation\":"
     "\"viewer\","
     "\"object\":\"doc:9\"}],\"on_missing\":\"ignore\"},\"authorization_model_id\":\"{model}\"}"},
    {"POST", "/stores", "{\"name\":\"another\"}"},
    {"PUT", "/stores/{store}/assertions/{model}",
     "{\"assertions\":[{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:1\"},"
     "\"expectation\":"
     "true}]}"},
    {"POST", "/stores/{store}/authorization-models", model},
};
#define NGOOD (sizeof good / sizeof *good)

/* Answers that differ on purpose: docs/authz-store.md, "What is different". */
static const char *text_of(const struct twin *t, enum twin_side side, const char *name)
{
    const json_t *of = t->answer[side].json;
    const json_t *error = json_object_get(of, "error");
    const char *s = json_string_value(json_object_get(error ? error : of, name));
    return s ? s : "";
}

static bool deliberate(const struct twin *t)
{
    const char *theirs = text_of(t, TWIN_OPENFGA, "message"), *ours = text_of(t, TWIN_RELATA, "message");
    bool same_status = t->answer[0].status == t->answer[1].status;
    /* How JSON is broken is told in our own words. */
    if (same_status && strstr(ours, "malformed JSON at"))
        return true;
    /* OpenFGA shows a Go pointer where the tuple should be. */
    if (same_status && strstr(theirs, "%!s(<nil>)"))
        return true;
    /* A tuple as protobuf prints it, with spaces that change; the reason is the same. */
    const char *why = strstr(theirs, "Reason: "), *our_why = strstr(ours, "Reason: ");
    if (same_status && why && our_why && strcmp(why, our_why) == 0 &&
        strcmp(text_of(t, TWIN_OPENFGA, "code"), text_of(t, TWIN_RELATA, "code")) == 0)
        return true;
    /* A list of protobuf messages, printed as protobuf likes it, with spaces that change. */
    if (same_status && strstr(theirs, "does not appear as a relation in any of the directly related user types"))
        return true;
    /* Conditions are not evaluated here. */
    if (strstr(ours, "conditions cannot be evaluated here") ||
        strstr(theirs, "failed to evaluate relationship condition"))
        return true;
    /* CEL is not compiled here. */
    if (strstr(theirs, "failed to compile expression"))
        return true;
    return false;
}

static void same(struct twin *t, const char *method, const char *path, const char *body)
{
    if (!twin_ask(t, method, path, body) && !deliberate(t))
        fail_msg("%s %s\n%s\n%s", method, path, body ? body : "", twin_show(t));
}

static void begin(struct twin *t, struct harness *h)
{
    twin_open(t, h, NULL);
    assert_true(twin_model(t, model));
    same(t, "POST", "/stores/{store}/write", tuples);
    assert_int_equal(t->answer[TWIN_RELATA].status, 200);
}

static void test_every_endpoint(void **state)
{
    static const struct request others[] = {
        {"GET", "/stores/{store}", NULL},
        {"GET", "/stores/01ARZ3NDEKTSV4RRFFQ69G5FAV", NULL},
        {"GET", "/stores/abc", NULL},
        {"GET", "/stores/{store}/authorization-models", NULL},
        {"GET", "/stores/{store}/authorization-models?page_size=1", NULL},
        {"GET", "/stores/{store}/authorization-models?page_size=0", NULL},
        {"GET", "/stores/{store}/authorization-models/{model}", NULL},
        {"GET", "/stores/{store}/authorization-models/01ARZ3NDEKTSV4RRFFQ69G5FAV", NULL},
        {"GET", "/stores/{store}/authorization-models/x", NULL},
        {"GET", "/stores/{store}/changes", NULL},
        {"GET", "/stores/{store}/changes?type=team", NULL},
        {"GET", "/stores/{store}/changes?type=a:b", NULL},
        {"GET", "/stores/{store}/changes?page_size=1000", NULL},
        {"GET", "/stores/{store}/changes?page_size=x", NULL},
        {"GET", "/stores/{store}/changes?continuation_token=abc", NULL},
        {"GET", "/stores/{store}/changes?start_time=2030-01-01T00:00:00Z", NULL},
        {"GET", "/stores/{store}/assertions/{model}", NULL},
        {"GET", "/stores/{store}/assertions/01ARZ3NDEKTSV4RRFFQ69G5FAV", NULL},
        {"GET", "/stores?page_size=101", NULL},
        {"GET", "/stores?continuation_token=%21", NULL},
        {"GET", "/healthz", NULL},
        {"GET", "/nothing", NULL},
        {"GET", "/stores/{store}/check", NULL},
        {"PUT", "/stores", "{}"},
        {"POST", "/stores", ""},
        {"POST", "/stores", "{\"name\":\"ab\"}"},
        {"POST", "/stores/{store}/check", "{\"tuple_key\":null}"},
        {"POST", "/stores/{store}/check", "[1]"},
        {"POST", "/stores/{store}/write", "{}"},
        {"POST", "/stores/{store}/read", "{\"tuple_key\":{\"object\":\"doc:\"}}"},
        {"POST", "/stores/{store}/read", "{\"tuple_key\":{\"object\":\"doc:\",\"user\":\"user:anne\"}}"},
        {"POST", "/stores/{store}/read", "{\"continuation_token\":\"abc\"}"},
        {"POST", "/stores/01ARZ3NDEKTSV4RRFFQ69G5FAV/read", "{}"},
        {"GET", "/stores/01ARZ3NDEKTSV4RRFFQ69G5FAV/changes", NULL},
        {"POST", "/stores/01ARZ3NDEKTSV4RRFFQ69G5FAV/check",
         "{\"tuple_key\":{\"user\":\"user:anne\",\"relation\":\"viewer\",\"object\":\"doc:1\"}}"},
        {"DELETE", "/stores/01ARZ3NDEKTSV4RRFFQ69G5FAV", NULL},
    };
    struct twin t;
    begin(&t, *state);
    for (size_t i = 0; i < NGOOD; i++) {
        same(&t, good[i].method, good[i].path, good[i].body);
        assert_true(t.answer[TWIN_RELATA].status < 300);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        same(&t, others[i].method, others[i].path, others[i].body);
    assert_true(twin_model(&t, model));
    twin_close(&t);
}

/* Pages end where they should, whatever their order: all tuples, each once, and the token of the end. */
static void test_pages(void **state)
{
    struct twin t;
    size_t seen[2] = {0};
    begin(&t, *state);
    for (int side = 0; side < 2; side++) {
        const char *token = "";
        for (int page = 0; page < 9; page++) {
            twin_ask_one(&t, (enum twin_side)side, "POST", "/stores/{store}/read",
                         harness_strf(t.h, "{\"page_size\":2,\"continuation_token\":\"%s\"}", token));
            assert_int_equal(t.answer[side].status, 200);
            seen[side] += json_array_size(json_object_get(t.answer[side].json, "tuples"));
            token = harness_strf(t.h, "%s", text_of(&t, (enum twin_side)side, "continuation_token"));
            if (!*token)
                break;
        }
        assert_string_equal(token, "");
        assert_int_equal(seen[side], 5);
    }
    twin_close(&t);
}

/* ---- broken requests ---- */

static uint64_t rng;

/* Some value in the place of another. */
static json_t *nonsense(const json_t *was)
{
    char filler[700];
    switch (rebac_random(&rng, 16)) {
    case 0:
        return json_null();
    case 1:
        return json_integer(-5);
    case 2:
        return json_real(1.5);
    case 3:
        return json_true();
    case 4:
        return json_string("");
    case 5:
        return json_array();
    case 6:
        return json_object();
    case 7:
    case 8:
        memset(filler, 'x', sizeof filler);
        filler[rebac_random(&rng, 2) ? 300 : 600] = '\0';
        return json_string(filler);
    case 9:
        return json_string("a b");
    case 10:
        return json_string("nope:1");
    case 11:
        return json_string("doc:1#viewer");
    case 12:
        return json_string("user:*");
    case 13:
        return json_string("a:b:c");
    case 14:
        return json_integer(1000);
    default:
        return json_is_string(was) ? json_pack("s+", json_string_value(was), "#") : json_string("doc");
    }
}

/* Breaks one place somewhere below. */
static void break_somewhere(json_t *v)
{
    while (json_object_size(v) || json_array_size(v)) {
        size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v), at = rebac_random(&rng, n);
        const char *name = NULL;
        void *it = json_object_iter(v);
        for (size_t i = 0; it && i < at; i++)
            it = json_object_iter_next(v, it);
        if (it)
            name = json_object_iter_key(it);
        json_t *child = name ? json_object_get(v, name) : json_array_get(v, at);
        bool deeper = (json_object_size(child) || json_array_size(child)) && rebac_random(&rng, 5) > 0;
        if (deeper) {
            v = child;
            continue;
        }
        uint64_t how = rebac_random(&rng, 8);
        if (how == 0 && name)
            json_object_del(v, name);
        else if (how == 0)
            json_array_remove(v, at);
        else if (how == 1 && name)
            json_object_set_new(v, "not_there", json_integer(1));
        else if (how == 1)
            json_array_append(v, child);
        else if (name)
            json_object_set_new(v, name, nonsense(child));
        else
            json_array_set_new(v, at, nonsense(child));
        return;
    }
}

static void test_broken_requests(void **state)
{
    struct twin t;
    long refused = 0, on_purpose = 0, n = harness_soak(6000);
    rng = harness_seed() | 1;
    begin(&t, *state);
    for (long i = 0; i < n; i++) {
        const struct request *r = &good[rebac_random(&rng, NGOOD)];
        json_t *body = json_loads(r->body, 0, NULL);
        for (uint64_t times = 1 + rebac_random(&rng, 2); times > 0; times--)
            break_somewhere(body);
        char *text = json_dumps(body, JSON_COMPACT);
        assert_non_null(text);
        if (!twin_ask(&t, r->method, r->path, text)) {
            if (!deliberate(&t))
                fail_msg("%s %s\n%s\n%s", r->method, r->path, text, twin_show(&t));
            on_purpose++;
        }
        refused += t.answer[TWIN_RELATA].status >= 400;
        free(text);
        json_decref(body);
    }
    print_message("%ld requests, %ld refused, %ld told otherwise on purpose\n", n, refused, on_purpose);
    assert_true(refused > n / 4);
    assert_true(on_purpose < n / 8);
    twin_close(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_every_endpoint, HARNESS_EMPTY_DB | HARNESS_STORE),
        HARNESS_TEST(test_pages, HARNESS_EMPTY_DB | HARNESS_STORE),
        HARNESS_TEST(test_broken_requests, HARNESS_EMPTY_DB | HARNESS_STORE),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
