/* The lister's API as a client sees it: what is answered to whom, what is refused and how, AuthZEN, explain. */
#include "tests/integration/lister_api_helpers.h"

#include "common/base/clock.h"

static struct lister l;

static int open_lister(void **state)
{
    if (harness_setup(state) != 0)
        return -1;
    struct harness *h = *state;
    things_table(h);
    harness_sql(
        h, "INSERT INTO public.things SELECT 'i' || i, 'n' || lpad(i::text, 4, '0'), i FROM generate_series(1, 120) i; "
           "INSERT INTO public.things(id, name, tenant) VALUES ('odd/id #1', 'odd', 't2')");
    for (int i = 1; i <= 120; i += 3)
        store_put(h, true, harness_strf(h, "doc:i%d", i), i % 2 ? "editor" : "viewer", "user:anne");
    store_put(h, true, harness_strf(h, "doc:%s", harness_sql_text(h, "SELECT relata.encode_id('odd/id #1')")), "viewer",
              "user:anne");
    lister_open(&l, h);
    return 0;
}

static int close_lister(void **state)
{
    lister_close(&l);
    return harness_teardown(state);
}

static void run(void)
{
    lister_run(&l, NULL);
}

/* Number of items of a page; *token gets the next token (malloc'd, "" at the end). */
static size_t page(const char *token, const char *path, char **next)
{
    json_t *json;
    size_t n;

    lister_get(&l, token, path);
    assert_status(&l, 200);
    json = lister_json(&l);
    n = json_array_size(json_object_get(json, "items"));
    if (next)
        *next = strdup(json_string_value(json_object_get(json, "next_page_token")));
    json_decref(json);
    return n;
}

static void test_L05_pages_to_the_end(void **state)
{
    char *next, path[16384];
    (void)state;

    run();
    assert_int_equal(page("t-anne", "/v1/inventory/things?page_size=15", &next), 15);
    assert_non_null(strstr(buf_str(&l.head), "rel=\"next\""));
    snprintf(path, sizeof(path), "/v1/inventory/things?page_size=20&page_token=%s", next);
    free(next);
    assert_int_equal(page("t-anne", path, &next), 20);
    snprintf(path, sizeof(path), "/v1/inventory/things?page_token=%s", next);
    free(next);
    assert_int_equal(page("t-anne", path, &next), 6);
    assert_string_equal(next, "");
    assert_null(strstr(buf_str(&l.head), "Link"));
    free(next);
    /* No access, no rows, on any page. */
    assert_int_equal(page("t-bob", "/v1/inventory/things", &next), 0);
    assert_string_equal(next, "");
    free(next);
    assert_string_equal(buf_str(&l.body), "{\"items\":[],\"next_page_token\":\"\",\"complete\":true}");
    assert_int_equal(page("t-admin", "/v1/inventory/things?subject=user:anne&relation=editor&filter.size.lt=20", NULL),
                     4);
    assert_int_equal(
        page("t-anne", "/v1/inventory/things?order_by=-size,name&filter.name.prefix=n001&with_relations=editor", NULL),
        4);
    assert_string_equal(buf_str(&l.body), "{\"items\":[{\"id\":\"i19\",\"name\":\"n0019\",\"size\":19,\"at\":\"2026-01-"
                                          "02T03:04:05Z\",\"relations\":{\"editor\":true}},"
                                          "{\"id\":\"i16\",\"name\":\"n0016\",\"size\":16,\"at\":\"2026-01-02T03:04:"
                                          "05Z\",\"relations\":{\"editor\":false}},"
                                          "{\"id\":\"i13\",\"name\":\"n0013\",\"size\":13,\"at\":\"2026-01-02T03:04:"
                                          "05Z\",\"relations\":{\"editor\":true}},"
                                          "{\"id\":\"i10\",\"name\":\"n0010\",\"size\":10,\"at\":\"2026-01-02T03:04:"
                                          "05Z\",\"relations\":{\"editor\":false}}],"
                                          "\"next_page_token\":\"\",\"complete\":true}");
}

static void test_L29_page_sizes(void **state)
{
    static const struct {
        const char *text;
        long status;
        size_t n;
    } cases[] = {{"", 200, 41},
                 {"0", 200, 41},
                 {"000", 200, 41},
                 {"-0", 200, 41},
                 {"1", 200, 1},
                 {"1000", 200, 41},
                 {"1001", 200, 41},
                 {"2147483647", 200, 41},
                 {"9999999999999", 200, 41},
                 {"99999999999999999999999999", 200, 41},
                 {"-1", 400, 0},
                 {"-9999999999999", 400, 0},
                 {"1e3", 400, 0},
                 {"%2B1", 400, 0},
                 {"1.0", 400, 0},
                 {"0x10", 400, 0},
                 {"%201", 400, 0},
                 {"-", 400, 0}};
    (void)state;

    run();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[128];
        snprintf(path, sizeof(path), "/v1/inventory/things?page_size=%s", cases[i].text);
        if (cases[i].status == 200) {
            assert_int_equal(page("t-anne", path, NULL), cases[i].n);
        } else {
            lister_get(&l, "t-anne", path);
            assert_problem(&l, 400, "invalid_page_size");
        }
    }
}

static void test_L28_no_totals_and_no_unknown_parameters(void **state)
{
    static const struct {
        const char *query, *code;
    } cases[] = {{"total=true", "unknown_parameter"},
                 {"count=1", "unknown_parameter"},
                 {"offset=10", "unknown_parameter"},
                 {"page_size=1&page_size=2", "repeated_parameter"},
                 {"relation=nobody", "unknown_relation"},
                 {"with_relations=editor,nobody", "unknown_relation"},
                 {"with_relations=editor,editor", "invalid_argument"},
                 {"order_by=tenant", "invalid_order_by"},
                 {"order_by=name;drop", "invalid_order_by"},
                 {"filter.at=2026-01-01T00:00:00Z", "invalid_filter"},
                 {"filter.size=1%27%20OR%201=1", "invalid_filter"},
                 {"filter.nothing=1", "invalid_filter"},
                 {"page_token=abc", "invalid_page_token"},
                 {"min_token=abc", "invalid_min_token"},
                 {"min_token=r1.1.1.1", "invalid_min_token"}};
    char path[256];
    (void)state;

    run();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(path, sizeof(path), "/v1/inventory/things?%s", cases[i].query);
        lister_get(&l, "t-anne", path);
        assert_problem(&l, 400, cases[i].code);
    }
    /* Values are values, whatever they hold. */
    assert_int_equal(
        page("t-anne", "/v1/inventory/things?filter.name=x%27%3B%20DROP%20TABLE%20public.things%3B--", NULL), 0);
    lister_get(&l, "t-anne", "/v1/inventory/nothing");
    assert_problem(&l, 404, "unknown_collection");
    lister_get(&l, "t-anne", "/v1/inventory/");
    assert_problem(&l, 404, "not_found");
    lister_get(&l, "t-anne", "/v2");
    assert_problem(&l, 404, "not_found");
}

static void test_L25_L26_tokens_of_other_questions(void **state)
{
    static const char *const others[] = {
        "order_by=-name&", "order_by=size&", "filter.size.gt=0&", "relation=editor&", "min_token=x&",
    };
    char *next, path[16384];
    (void)state;

    run();
    page("t-anne", "/v1/inventory/things?page_size=3", &next);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        snprintf(path, sizeof(path), "/v1/inventory/things?%spage_token=%s", others[i], next);
        lister_get(&l, "t-anne", path);
        assert_problem(&l, 400, "invalid_page_token");
    }
    snprintf(path, sizeof(path), "/v1/inventory/things?page_token=%s", next);
    lister_get(&l, "t-bob", path);
    assert_problem(&l, 400, "invalid_page_token");
    path[strlen(path) - 5] = path[strlen(path) - 5] == 'A' ? 'B' : 'A';
    lister_get(&l, "t-anne", path);
    assert_problem(&l, 400, "invalid_page_token");
    free(next);
}

static void test_rights_and_subjects(void **state)
{
    json_t *json;
    (void)state;

    run();
    lister_get(&l, NULL, "/v1/inventory/things");
    assert_status(&l, 401);
    lister_get(&l, "nonsense", "/v1/inventory/things");
    assert_status(&l, 401);
    lister_get(&l, "t-bob", "/v1/inventory/things?subject=user:anne");
    assert_problem(&l, 403, "missing_right");
    assert_int_equal(page("t-anne", "/v1/inventory/things?subject=user:anne", NULL), 41); /* the own one is no other */
    lister_get(&l, "t-admin", "/v1/inventory/things");
    assert_problem(&l, 400, "subject_required");
    lister_get(&l, "t-admin", "/v1/inventory/things?subject=anne");
    assert_problem(&l, 400, "invalid_subject");
    lister_request(&l, "/v1/explain", "t-anne", "{\"object\":\"doc:i1\",\"relation\":\"viewer\"}");
    assert_problem(&l, 403, "missing_right");
    lister_request(&l, "/v1/inventory", "t-anne", "{}");
    assert_problem(&l, 405, "method_not_allowed");
    lister_get(&l, "t-anne", "/v1/explain");
    assert_problem(&l, 405, "method_not_allowed");
    /* Diagnostics are for those who may. */
    page("t-anne", "/v1/inventory/things", NULL);
    assert_null(strstr(buf_str(&l.body), "diagnostics"));
    assert_null(strcasestr(buf_str(&l.head), "server-timing"));
    page("t-admin", "/v1/inventory/things?subject=user:anne", NULL);
    assert_non_null(strcasestr(buf_str(&l.head), "server-timing: sql;dur="));
    json = lister_json(&l);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "diagnostics"), "scanned")), 121);
    json_decref(json);
}

static void test_one_row(void **state)
{
    struct buf hidden;
    (void)state;

    run();
    lister_get(&l, "t-anne", "/v1/inventory/things/i1?with_relations=viewer,editor,owner");
    assert_status(&l, 200);
    assert_string_equal(buf_str(&l.body),
                        "{\"id\":\"i1\",\"name\":\"n0001\",\"size\":1,\"at\":\"2026-01-02T03:04:05Z\","
                        "\"relations\":{\"viewer\":true,\"editor\":true,\"owner\":false}}");
    lister_get(&l, "t-anne", "/v1/inventory/things/odd%2Fid%20%231");
    assert_status(&l, 200);
    /* Hidden and absent: the same bytes, the same checks. */
    lister_get(&l, "t-anne", "/v1/inventory/things/i2");
    assert_problem(&l, 404, "not_found");
    buf_init(&hidden, 1 << 20);
    buf_add(&hidden, l.body.data, l.body.len);
    double before = proc_metric(l.p, "relata_lister_checks_total");
    lister_get(&l, "t-anne", "/v1/inventory/things/absent");
    assert_problem(&l, 404, "not_found");
    assert_string_equal(buf_str(&l.body), buf_str(&hidden));
    assert_true(proc_metric(l.p, "relata_lister_checks_total") == before + 1);
    lister_get(&l, "t-anne", "/v1/inventory/things/%2A"); /* no object can be called that */
    assert_problem(&l, 404, "not_found");
    lister_get(&l, "t-anne", "/v1/inventory/things/i1?page_size=3");
    assert_problem(&l, 400, "unknown_parameter");
    buf_release(&hidden);
}

static void test_bound_to_a_claim(void **state)
{
    (void)state;

    lister_run(&l, "--set", "collection.things.bound=tenant", "--set", "collection.things.claim=tenant", NULL);
    assert_int_equal(page("t-t1", "/v1/inventory/things?page_size=100", NULL), 40);
    lister_get(&l, "t-t1", "/v1/inventory/things/odd%2Fid%20%231"); /* of another tenant, though anne may view it */
    assert_problem(&l, 404, "not_found");
    lister_get(&l, "t-anne", "/v1/inventory/things");
    assert_problem(&l, 403, "missing_claim");
    lister_get(&l, "t-anne", "/v1/inventory/things/i1");
    assert_problem(&l, 403, "missing_claim");
}

static void test_explain(void **state)
{
    json_t *json, *reason;
    size_t i, allowed = 0;
    (void)state;

    run();
    lister_request(&l, "/v1/explain", "t-admin", "{\"collection\":\"things\",\"id\":\"i4\",\"subject\":\"user:anne\"}");
    assert_status(&l, 200);
    json = lister_json(&l);
    assert_string_equal(json_string_value(json_object_get(json, "object")), "doc:i4");
    assert_string_equal(json_string_value(json_object_get(json, "row")), "exists");
    assert_string_equal(json_string_value(json_object_get(json, "by")), "store");
    assert_true(json_is_true(json_object_get(json, "allowed")));
    json_array_foreach(json_object_get(json, "reasons"), i, reason) allowed +=
        json_is_true(json_object_get(reason, "allowed"));
    assert_true(i >= 4 && allowed >= 1);
    json_decref(json);
    lister_request(&l, "/v1/explain", "t-admin", "{\"collection\":\"things\",\"id\":\"x\",\"subject\":\"user:anne\"}");
    assert_status(&l, 200);
    assert_non_null(strstr(buf_str(&l.body), "\"row\":\"absent\""));
    lister_request(&l, "/v1/explain", "t-admin",
                   "{\"object\":\"doc:i4\",\"relation\":\"nobody\",\"subject\":\"user:anne\"}");
    assert_problem(&l, 400, "unknown_relation");
    lister_request(&l, "/v1/explain", "t-admin",
                   "{\"object\":\"doc\",\"relation\":\"viewer\",\"subject\":\"user:anne\"}");
    assert_problem(&l, 400, "invalid_argument");
    lister_request(&l, "/v1/explain", "t-admin", "{\"object\":\"doc:i4\",\"object\":\"doc:i5\"}");
    assert_problem(&l, 400, "invalid_json");
    lister_request(&l, "/v1/explain", "t-admin", "[]");
    assert_problem(&l, 400, "invalid_json");
    lister_request(&l, "/v1/explain", "t-admin", "{\"object\":\"doc:i4\",\"relation\":\"viewer\",\"subject\":5}");
    assert_problem(&l, 400, "invalid_argument");
}

static void explains_row(const char *token, const char *id, const char *want)
{
    json_t *json;
    char body[256];

    snprintf(body, sizeof(body), "{\"collection\":\"things\",\"id\":\"%s\",\"subject\":\"user:anne\"}", id);
    lister_request(&l, "/v1/explain", token, body);
    assert_status(&l, 200);
    json = lister_json(&l);
    assert_string_equal(json_string_value(json_object_get(json, "row")), want);
    json_decref(json);
}

/* Who diagnoses is told of rows that lists leave out, but stays bound to the own claim. */
static void test_explain_rows(void **state)
{
    struct harness *h = *state;
    struct buf other, absent;

    harness_sql(h, "ALTER TABLE public.things ADD deleted_at timestamptz; UPDATE public.things SET deleted_at = now() "
                   "WHERE id = 'i4'; INSERT INTO public.things(id, name, tenant) VALUES ('theirs', 'x', 't2')");
    lister_run(&l, "--set", "collection.things.bound=tenant", "--set", "collection.things.claim=tenant", "--set",
               "collection.things.where=deleted_at", NULL);
    explains_row("t-t1d", "i1", "exists");
    explains_row("t-t1d", "i4", "left_out");
    explains_row("t-t1d", "theirs", "absent");
    buf_init(&other, 1 << 16);
    buf_init(&absent, 1 << 16);
    buf_add(&other, l.body.data, l.body.len);
    explains_row("t-t1d", "nobody", "absent");
    buf_add(&absent, l.body.data, l.body.len);
    /* Not a byte differs but the id itself. */
    assert_int_equal(absent.len, other.len);
    memcpy(strstr(absent.data, "doc:nobody"), "doc:theirs", 10);
    assert_string_equal(buf_str(&absent), buf_str(&other));
    buf_release(&other);
    buf_release(&absent);
    lister_get(&l, "t-t1d", "/v1/inventory/things/i4?subject=user:anne");
    assert_problem(&l, 404, "not_found");
    lister_request(&l, "/v1/explain", "t-admin", "{\"collection\":\"things\",\"id\":\"i1\",\"subject\":\"user:anne\"}");
    assert_problem(&l, 403, "missing_claim");
}

#define ANNE "\"subject\":{\"type\":\"user\",\"id\":\"anne\"}"
#define BOB "\"subject\":{\"type\":\"user\",\"id\":\"bob\"}"
#define VIEW "\"action\":{\"name\":\"viewer\"}"
#define DOC(id) "\"resource\":{\"type\":\"doc\",\"id\":\"" id "\"}"

static void evaluates(const char *token, const char *path, const char *request, const char *want)
{
    lister_request(&l, path, token, request);
    assert_status(&l, 200);
    assert_string_equal(buf_str(&l.body), want);
}

static void test_authzen(void **state)
{
    static const char one[] = "/access/v1/evaluation", many[] = "/access/v1/evaluations";
    json_t *json;
    (void)state;

    run();
    evaluates("t-anne", one, "{" ANNE "," VIEW "," DOC("i1") ",\"context\":{\"time\":-132075405515065049088}}",
              "{\"decision\":true}");
    evaluates("t-anne", one, "{" ANNE "," VIEW "," DOC("i2") "}", "{\"decision\":false}");
    evaluates("t-anne", one, "{" ANNE "," VIEW "," DOC("odd/id #1") "}", "{\"decision\":true}");
    lister_request(&l, one, "t-anne", "{" ANNE ",\"action\":{\"name\":\"fly\"}," DOC("i1") "}");
    assert_status(&l, 200);
    assert_non_null(strstr(buf_str(&l.body), "{\"decision\":false,\"context\":{\"error\":{\"status\":400"));
    lister_request(&l, one, "t-anne", "{" BOB "," VIEW "," DOC("i1") "}");
    assert_problem(&l, 403, "missing_right");
    lister_request(&l, one, "t-anne", "{" ANNE "," VIEW "}");
    assert_problem(&l, 400, "invalid_argument");
    lister_request(&l, one, "t-anne", "{" VIEW "," DOC("i1") "}");
    assert_problem(&l, 400, "invalid_argument");

    evaluates("t-admin", many,
              "{" ANNE "," VIEW ",\"evaluations\":[{" DOC("i1") "},{" DOC("i2") "},{" BOB
                                                                                "," DOC("i1") "},{" DOC("i4") "}]}",
              "{\"evaluations\":[{\"decision\":true},{\"decision\":false},{\"decision\":false},{\"decision\":true}]}");
    evaluates("t-admin", many,
              "{" ANNE "," VIEW ",\"options\":{\"evaluations_semantic\":\"deny_on_first_deny\"},\"evaluations\":[{" DOC(
                  "i1") "},{" DOC("i2") "},{" DOC("i4") "}]}",
              "{\"evaluations\":[{\"decision\":true},{\"decision\":false}]}");
    evaluates("t-admin", many,
              "{" ANNE "," VIEW
              ",\"options\":{\"evaluations_semantic\":\"permit_on_first_permit\"},\"evaluations\":[{" DOC(
                  "i2") "},{" DOC("i1") "},{" DOC("i4") "}]}",
              "{\"evaluations\":[{\"decision\":false},{\"decision\":true}]}");
    evaluates("t-admin", many, "{" ANNE "," VIEW "," DOC("i1") "}", "{\"decision\":true}");
    evaluates("t-admin", many, "{" ANNE "," VIEW "," DOC("i1") ",\"evaluations\":[]}", "{\"decision\":true}");
    lister_request(&l, many, "t-anne",
                   "{" ANNE "," VIEW ",\"evaluations\":[{" BOB "," DOC("i1") "},{" DOC("i1") "},{},{" DOC("") "}]}");
    assert_status(&l, 200);
    json = lister_json(&l);
    json_t *list = json_object_get(json, "evaluations");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_is_true(json_object_get(json_array_get(list, i), "decision")), i == 1);
    json_decref(json);
    static const char *const wrong[] = {
        "{\"options\":{\"evaluations_semantic\":\"x\"},\"evaluations\":[{}]}",
        "{" ANNE "," VIEW ",\"evaluations\":[{" DOC("i1") "}, 7]}",
        "{" ANNE "," VIEW ",\"evaluations\":{" DOC("i1") "}}",
        "{" ANNE "," VIEW ",\"evaluations\":[{\"resource\":{\"type\":\"doc\",\"id\":1}}]}",
        "{" ANNE "," VIEW ",\"context\":[],\"evaluations\":[{" DOC("i1") "}]}",
        "{" ANNE "," VIEW ",\"options\":7,\"evaluations\":[{" DOC("i1") "}]}",
        "{" ANNE ",\"action\":\"viewer\",\"evaluations\":[{" DOC("i1") "}]}",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        lister_request(&l, many, "t-anne", wrong[i]);
        assert_problem(&l, 400, "invalid_argument");
    }
    lister_request(&l, one, "t-anne", "{" ANNE "," VIEW "," DOC("i1") ",\"context\":7}");
    assert_problem(&l, 400, "invalid_argument");
    /* An error among those after the first denial is as a denial; before the first permit it is no permit. */
    evaluates("t-anne", many,
              "{" ANNE "," VIEW ",\"options\":{\"evaluations_semantic\":\"permit_on_first_permit\"},"
              "\"evaluations\":[{" DOC("i1") "},{}]}",
              "{\"evaluations\":[{\"decision\":true}]}");
    lister_request(&l, many, "t-anne",
                   "{" ANNE "," VIEW ",\"options\":{\"evaluations_semantic\":\"deny_on_first_deny\"},"
                   "\"evaluations\":[{" DOC("i1") "},{},{" DOC("i4") "}]}");
    assert_status(&l, 200);
    json = lister_json(&l);
    assert_int_equal(json_array_size(json_object_get(json, "evaluations")), 2);
    json_decref(json);
    /* The client's own name for its request comes back; what is no name does not. */
    l.headers = curl_slist_append(NULL, "X-Request-ID: bfe9eb29-ab87-4ca3-be83-a1d5d8305716");
    evaluates("t-anne", one, "{" ANNE "," VIEW "," DOC("i1") "}", "{\"decision\":true}");
    assert_non_null(strcasestr(buf_str(&l.head), "\r\nX-Request-ID: bfe9eb29-ab87-4ca3-be83-a1d5d8305716\r\n"));
    lister_request(&l, one, "t-anne", "{");
    assert_status(&l, 400);
    assert_non_null(strcasestr(buf_str(&l.head), "\r\nX-Request-ID: "));
    curl_slist_free_all(l.headers);
    l.headers = curl_slist_append(NULL, "X-Request-ID: two words");
    evaluates("t-anne", one, "{" ANNE "," VIEW "," DOC("i1") "}", "{\"decision\":true}");
    assert_null(strcasestr(buf_str(&l.head), "X-Request-ID"));
    curl_slist_free_all(l.headers);
    l.headers = NULL;

    lister_get(&l, NULL, "/.well-known/authzen-configuration");
    assert_status(&l, 200);
    json = lister_json(&l);
    assert_string_equal(json_string_value(json_object_get(json, "policy_decision_point")), l.url);
    json_decref(json);
}

static void test_what_there_is(void **state)
{
    json_t *json, *c;
    (void)state;

    run();
    lister_get(&l, "t-anne", "/v1/inventory");
    assert_status(&l, 200);
    json = lister_json(&l);
    c = json_array_get(json_object_get(json, "collections"), 0);
    assert_string_equal(json_string_value(json_object_get(c, "name")), "things");
    assert_string_equal(json_string_value(json_object_get(c, "order")), "name");
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "caller"), "subject")), "user:anne");
    json_decref(json);
    lister_get(&l, NULL, "/openapi.json");
    assert_status(&l, 200);
    json = lister_json(&l);
    assert_string_equal(json_string_value(json_object_get(json, "openapi")), "3.1.0");
    json_decref(json);
}

/* A row whose sort values fit no token cannot end a page. Hidden, it does not show by that; seen, it is 503 and the log
 * says why. */
static void test_sort_values_too_long_for_a_token(void **state)
{
    static const char list[] = "/v1/inventory/things?order_by=name&page_size=";
    struct harness *h = *state;
    char path[16384], *next;

    harness_sql(h, "INSERT INTO public.things(id, name) VALUES ('a', 'a' || repeat('x', 7998)), "
                   "('b', 'b' || repeat('x', 7999)), ('c', 'c' || repeat('x', 20000))");
    store_put(h, true, "doc:a", "viewer", "user:anne");
    run();
    /* a has 8,000 bytes with its id; b and c are hidden, and the next one that she sees is n0001. */
    snprintf(path, sizeof(path), "%s1", list);
    assert_int_equal(page("t-anne", path, &next), 1);
    snprintf(path, sizeof(path), "%s1&page_token=%s", list, next);
    free(next);
    assert_int_equal(page("t-anne", path, &next), 1);
    assert_non_null(strstr(buf_str(&l.body), "\"n0001\""));
    free(next);

    store_put(h, true, "doc:b", "viewer", "user:bob");
    store_put(h, true, "doc:c", "viewer", "user:bob");
    snprintf(path, sizeof(path), "%s1", list);
    lister_get(&l, "t-bob", path);
    assert_problem(&l, 503, "unavailable");
    assert_null(strstr(buf_str(&l.body), "8000"));
    assert_true(proc_logged(l.p, "the sort values of a row have more than 8000 bytes"));
    snprintf(path, sizeof(path), "%s2", list);
    assert_int_equal(page("t-bob", path, NULL), 2);
}

/* All of it works with the role that is meant for it, and the right to read the table. */
static void test_least_privileges(void **state)
{
    struct harness *h = *state;
    const char *role = harness_strf(h, "%s_lister", h->id), *token;

    harness_sqlf(h,
                 "CREATE ROLE %s LOGIN PASSWORD 'x' IN ROLE relata_lister; GRANT USAGE ON SCHEMA public TO %s;"
                 "GRANT SELECT (id, name, size, at, tenant) ON public.things TO %s",
                 role, role, role);
    token = harness_sql_text(h, "SELECT relata.write_tuple('doc:x', 'viewer', 'user:anne')");
    lister_run(&l, "--set", harness_strf(h, "pg.dsn=%s", harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL)),
               "--set", "lister.min_token_wait=1s", NULL);
    assert_int_equal(page("t-anne", "/v1/inventory/things", NULL), 41);
    lister_get(&l, "t-anne", "/v1/inventory/things/i1");
    assert_status(&l, 200);
    lister_get(&l, "t-anne", harness_strf(h, "/v1/inventory/things?min_token=%s", token));
    assert_problem(&l, 409, "not_applied"); /* no writer runs */
    proc_stop(l.p);
    l.p = NULL;
    harness_sqlf(h, "DROP OWNED BY %s; DROP ROLE %s", role, role);
}

#define ALL (HARNESS_DB | HARNESS_STORE)
#define T(f)                                                                                                           \
    cmocka_unit_test_prestate_setup_teardown(f, open_lister, close_lister, &((struct harness_spec){#f, ALL, NULL}))

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_L05_pages_to_the_end),
        T(test_L29_page_sizes),
        T(test_L28_no_totals_and_no_unknown_parameters),
        T(test_L25_L26_tokens_of_other_questions),
        T(test_rights_and_subjects),
        T(test_one_row),
        T(test_bound_to_a_claim),
        T(test_explain),
        T(test_explain_rows),
        T(test_authzen),
        T(test_sort_values_too_long_for_a_token),
        T(test_least_privileges),
        T(test_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
