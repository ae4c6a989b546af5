/*
 * Lists against the truth: full walks equal brute force (one Check a row), while rows and permissions change; what is
 * hidden leaves no trace; faults make errors or incomplete pages, never short ones called complete.
 */
#include "tests/integration/lister_api_helpers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/harness/fake_store.h"
#include "tests/harness/proxy.h"

#define USERS 4
#define ROWS 110
#define IDS 400

static struct lister l;

/* ---- a small Inari ---- */

static uint64_t rng;

static int pick(int n)
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (int)((rng * 2685821657736338717u >> 33) % (uint64_t)n);
}

static const char *read_model(struct harness *h, const char *name)
{
    static char text[1 << 18];
    FILE *f = fopen(harness_strf(h, "demo/%s", name), "re");

    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    return text;
}

/* The store with this model becomes the test's. */
static void use_model(struct harness *h, const char *name)
{
    struct err err;
    const char *store_id, *model_id;

    harness_store_new(h, read_model(h, name), &store_id, &model_id);
    harness_pin(h, store_id, model_id);
    h->store_id = store_id;
    h->model_id = model_id;
    assert_int_equal(store_conn_use(h->store_conn, store_id, &err), ST_OK);
}

static void grant(struct harness *h, const char *object)
{
    static const char *const relations[] = {"editor", "operator", "viewer"};
    store_put(h, true, object, relations[pick(3)], harness_strf(h, "team:%d#member", pick(6)));
}

/* One instance: a parent among 8 catalog items, and for every third one a grant of its own. */
static void put_instance(struct harness *h, int id)
{
    store_put(h, true, harness_strf(h, "resource_instance:%d", id), "parent",
              harness_strf(h, "catalog_item:%d", pick(8)));
    if (pick(3) == 0)
        grant(h, harness_strf(h, "resource_instance:%d", id));
}

static void insert_row(struct harness *h, int id)
{
    harness_sqlf(h,
                 "INSERT INTO public.inst VALUES (%d, 'n%d', '2026-01-01 00:00:00+00'::timestamptz + %d * interval '1 "
                 "hour', %s)",
                 id, pick(20), pick(30), pick(4) ? "1" : "NULL");
}

static void make_inari(struct harness *h)
{
    things_table(h);
    harness_sql(
        h, "CREATE TABLE public.inst(id int PRIMARY KEY, name text NOT NULL, created timestamptz NOT NULL, size int);"
           "CREATE INDEX ON public.inst(created, id); CREATE INDEX ON public.inst(name, id)");
    for (int t = 0; t < 6; t++)
        for (int u = 0; u < 2; u++)
            store_put(h, true, harness_strf(h, "team:%d", t), "member",
                      harness_strf(h, "user:%d", 1 + pick(USERS - 1)));
    for (int i = 0; i < 8; i++) {
        store_put(h, true, harness_strf(h, "catalog_item:%d", i), "parent", harness_strf(h, "cloud_account:%d", i / 2));
        if (i % 2 == 0)
            store_put(h, true, harness_strf(h, "cloud_account:%d", i / 2), "parent",
                      harness_strf(h, "cluster:%d", i / 2));
        if (i % 4 == 0) {
            store_put(h, true, harness_strf(h, "cluster:%d", i / 2), "parent", harness_strf(h, "tenant:%d", i / 4));
            store_put(h, true, harness_strf(h, "tenant:%d", i / 4), "parent", "organization:0");
        }
    }
    grant(h, "catalog_item:1");
    grant(h, "cloud_account:1");
    grant(h, "cluster:2");
    grant(h, "tenant:1");
    for (int i = 1; i <= ROWS; i++) {
        put_instance(h, i);
        insert_row(h, i);
    }
}

static bool check(struct harness *h, int user, const char *relation, int id)
{
    struct tuple_key k = {harness_strf(h, "resource_instance:%d", id), relation, harness_strf(h, "user:%d", user)};
    bool allowed = false;
    struct err err;

    if (store_check(h->store_conn, h->model_id, &k, true, &allowed, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("%s", err.text);
    return allowed;
}

#define run_inari(...)                                                                                                 \
    lister_run(&l, "--set", "collection.inst.table=public.inst", "--set", "collection.inst.type=resource_instance",    \
               "--set", "collection.inst.id=id", "--set", "collection.inst.columns=id, name", "--set",                 \
               "collection.inst.sort=created, name, size", "--set", "collection.inst.filter=name, size", "--set",      \
               "collection.inst.relation=editor", "--set", "collection.things.relation=can_edit", "--set",             \
               "collection.things.type=tenant", __VA_ARGS__)

/* ---- walks ---- */

struct walk {
    int ids[4 * IDS];
    size_t n;
    int pages;
    void (*between)(struct harness *h, int page);
};

/* Take the page that was answered; *token gets the next token. */
static void take_page(struct walk *w, size_t size, char **token)
{
    json_t *json = lister_json(&l), *items = json_object_get(json, "items"), *row;
    size_t i;

    assert_true(json_array_size(items) <= size);
    json_array_foreach(items, i, row)
    {
        assert_true(w->n < sizeof(w->ids) / sizeof(w->ids[0]));
        w->ids[w->n++] = (int)json_integer_value(json_object_get(row, "id"));
    }
    free(*token);
    *token = strdup(json_string_value(json_object_get(json, "next_page_token")));
    w->pages++;
    json_decref(json);
}

/* A store that is short of time may give no answer (503) or too few (complete = false): then the walk goes on from
 * where it is. What is judged here is that it comes to the right end. */
static void ask_page(const char *path)
{
    for (int tries = 0; lister_get(&l, "t-admin", path) != 200; tries++)
        if (l.status != 503 || tries == 50)
            fail_msg("%ld: %s", l.status, buf_str(&l.body));
}

static void walk(struct walk *w, int user, const char *query, int size)
{
    char path[16384], *token = strdup("");

    w->n = 0;
    w->pages = 0;
    do {
        snprintf(path, sizeof(path), "/v1/inventory/inst?subject=user:%d&page_size=%d&%s&page_token=%s", user, size,
                 query, token);
        ask_page(path);
        take_page(w, (size_t)size, &token);
        if (w->between && *token)
            w->between(l.h, w->pages);
    } while (*token);
    free(token);
}

/* ---- oracle ---- */

static void assert_walk(struct harness *h, const struct walk *w, const bool *visible, const char *order, int size,
                        int user)
{
    struct pg_result *r = NULL;
    struct err err;
    size_t at = 0;

    assert_int_equal(pg_query(h->pg, NULL, harness_strf(h, "SELECT id FROM public.inst ORDER BY %s", order), NULL, 0,
                              deadline_in_ms(harness_ms(20000)), &r, &err),
                     ST_OK);
    for (int i = 0; i < pg_rows(r); i++) {
        int id = (int)pg_int(r, i, 0);
        if (!visible[id])
            continue;
        if (at >= w->n || w->ids[at] != id)
            fail_msg("user %d, page size %d, %s: row %zu is %d, not %d", user, size, order, at,
                     at < w->n ? w->ids[at] : -1, id);
        at++;
    }
    assert_int_equal(w->n, at);
    pg_result_free(r);
}

static void oracle(struct harness *h, const char *model, const char *relation)
{
    static const int sizes[] = {1, 2, 7, 50, 1000};
    static const char *const orders[][2] = {
        {"-created", "created DESC, id DESC"}, {"name,-size", "name, size DESC, id DESC"}, {"size", "size, id"}};
    struct walk *w = calloc(1, sizeof(*w));
    int total = 0;

    rng = harness_seed();
    use_model(h, model);
    make_inari(h);
    /* The store may take long for its 110 checks: what is judged here is what they say. */
    run_inari("--set", "http.request_timeout=60s", "--set", "store.request_timeout=30s", NULL);
    for (int user = 0; user < USERS; user++) {
        bool visible[IDS] = {false};
        for (int id = 1; id <= ROWS; id++)
            total += visible[id] = check(h, user, relation, id);
        for (size_t o = 0; o < 3; o++)
            for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                walk(w, user, harness_strf(h, "relation=%s&order_by=%s", relation, orders[o][0]), sizes[s]);
                assert_walk(h, w, visible, orders[o][1], sizes[s], user);
            }
    }
    assert_true(total > 0 && total < USERS * ROWS);
    free(w);
}

static void test_walks_equal_brute_force_deep(void **state)
{
    oracle(*state, "model-deep.json", "editor");
}

static void test_walks_equal_brute_force_flat(void **state)
{
    oracle(*state, "model-flat.json", "can_view");
}

/* ---- while all changes ---- */

static bool ever[IDS], always[IDS], moved[IDS];
static int next_id;

static void look_again(struct harness *h, int id)
{
    bool visible = check(h, 1, "editor", id);
    ever[id] |= visible;
    always[id] &= visible;
}

static void change_something(struct harness *h, int page)
{
    (void)page;
    for (int i = 0; i < 4; i++) {
        int id = 1 + pick(ROWS);
        const char *object = harness_strf(h, "resource_instance:%d", id);
        switch (pick(5)) {
        case 0: /* a new row */
            id = next_id++;
            put_instance(h, id);
            look_again(h, id);
            insert_row(h, id);
            moved[id] = true; /* it was not there all along */
            break;
        case 1:
            harness_sqlf(h, "DELETE FROM public.inst WHERE id = %d", id);
            moved[id] = true;
            break;
        case 2:
            harness_sqlf(h, "UPDATE public.inst SET created = created + %d * interval '1 hour' WHERE id = %d",
                         pick(40) - 20, id);
            moved[id] = true;
            break;
        case 3:
            store_put(h, true, object, "editor", "user:1");
            ever[id] = true;
            break;
        default:
            store_put(h, true, object, "editor", "user:1"); /* so that there is something to take */
            ever[id] = true;
            store_put(h, false, object, "editor", "user:1");
            look_again(h, id);
        }
    }
}

static void test_L20_rows_and_permissions_change_between_pages(void **state)
{
    struct harness *h = *state;
    struct walk *w = calloc(1, sizeof(*w));

    rng = harness_seed();
    use_model(h, "model-deep.json");
    make_inari(h);
    run_inari("--set", "cache.size=0", NULL);
    next_id = ROWS + 1;
    w->between = change_something;
    for (int round = 0; round < 3; round++) {
        int times[IDS] = {0};
        memset(moved, 0, sizeof(moved));
        for (int id = 1; id < next_id; id++) {
            ever[id] = always[id] = check(h, 1, "editor", id);
            moved[id] = harness_sql_int(h, harness_strf(h, "SELECT count(*) FROM public.inst WHERE id = %d", id)) == 0;
        }
        for (int id = next_id; id < IDS; id++)
            ever[id] = false, always[id] = true;
        walk(w, 1, "order_by=-created", 1 + pick(6));
        assert_true(next_id < IDS);
        for (size_t i = 0; i < w->n; i++) {
            int id = w->ids[i];
            if (!ever[id])
                fail_msg("%d was shown and never visible", id);
            if (++times[id] > 1 && !moved[id])
                fail_msg("%d was shown twice", id);
        }
        for (int id = 1; id < next_id; id++)
            if (always[id] && !moved[id] && times[id] != 1)
                fail_msg("%d was there and visible all along, and shown %d times", id, times[id]);
    }
    free(w);
}

/* ---- nothing leaks ---- */

/* All that a walk without diagnose lets be seen; tokens as their length. */
static char *all_answers(const char *query)
{
    struct buf out;
    char path[16384], *token = strdup("");

    buf_init(&out, 16 << 20);
    do {
        char *line, *save = NULL;
        json_t *json;
        snprintf(path, sizeof(path), "/v1/inventory/things?%s&page_token=%s", query, token);
        lister_get(&l, "t-anne", path);
        assert_status(&l, 200);
        json = lister_json(&l);
        free(token);
        token = strdup(json_string_value(json_object_get(json, "next_page_token")));
        json_object_set_new(json, "next_page_token", json_integer((json_int_t)strlen(token)));
        char *text = json_dumps(json, JSON_COMPACT);
        buf_addf(&out, "%s\n", text);
        free(text);
        json_decref(json);
        for (line = strtok_r(l.head.data, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save))
            if (strncasecmp(line, "date:", 5) != 0)
                buf_addf(&out, "%.*s %zu\n", (int)strcspn(line, ":"), line, strlen(line));
    } while (*token);
    free(token);
    return out.data;
}

static void test_hidden_rows_leave_no_trace(void **state)
{
    static const char *const queries[] = {"page_size=3",
                                          "page_size=4&order_by=-size",
                                          "page_size=7&order_by=name",
                                          "page_size=1&filter.size.gt=3",
                                          "page_size=1000",
                                          "page_size=2&with_relations=editor"};
    struct harness *h = *state;
    char *before[6];

    things_table(h);
    harness_sql(h, "INSERT INTO public.things SELECT 'v' || i, 'name ' || i % 5, i FROM generate_series(1, 12) i");
    for (int i = 1; i <= 12; i++)
        store_put(h, true, harness_strf(h, "doc:v%d", i), "viewer", "user:anne");
    lister_run(&l, NULL);
    for (size_t i = 0; i < 6; i++)
        before[i] = all_answers(queries[i]);
    harness_sql(h, "INSERT INTO public.things SELECT 'h' || i, 'name ' || i % 7 || repeat('x', i % 90), i % 15 "
                   "FROM generate_series(1, 300) i");
    store_put(h, true, "doc:h7", "viewer", "user:bob");
    for (size_t i = 0; i < 6; i++) {
        char *after = all_answers(queries[i]);
        assert_string_equal(before[i], after);
        free(before[i]);
        free(after);
    }
}

/* ---- faults ---- */

static size_t listed(bool *complete, char **token)
{
    json_t *json = lister_json(&l);
    size_t n = json_array_size(json_object_get(json, "items"));

    *complete = json_is_true(json_object_get(json, "complete"));
    if (token)
        *token = strdup(json_string_value(json_object_get(json, "next_page_token")));
    json_decref(json);
    return n;
}

/* All of it, as soon as there is all of it: after a fault it may take a while until the store is asked as before. */
static bool is_answered(void *arg)
{
    (void)arg;
    return lister_get(&l, "t-anne", "/v1/inventory/things?page_size=1000") == 200 &&
           strstr(buf_str(&l.body), "\"complete\":true");
}

static void assert_all_listed(void)
{
    bool complete;

    assert_eventually(is_answered, NULL, WAIT_MS);
    assert_int_equal(listed(&complete, NULL), 60);
    assert_true(complete);
}

static void things_for_faults(struct harness *h)
{
    things_table(h);
    harness_sql(
        h, "INSERT INTO public.things SELECT 'i' || i, 'n' || lpad(i::text, 4, '0'), i FROM generate_series(0, 119) i");
    for (int i = 1; i < 120; i += 2)
        store_put(h, true, harness_strf(h, "doc:i%d", i), "viewer", "user:anne");
}

static void test_L31_L32_store_faults(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    const struct fake_rule faults[] = {
        {.action = FAKE_REPLY, .status = 500, .reply = "{\"code\":\"internal_error\",\"message\":\"x\"}"},
        {.action = FAKE_REPLY, .status = 503, .reply = "no"},
        {.action = FAKE_REPLY, .status = 401, .reply = "{\"code\":\"unauthenticated\",\"message\":\"x\"}"},
        {.action = FAKE_REPLY,
         .status = 429,
         .headers = "Retry-After: 1",
         .reply = "{\"code\":\"x\",\"message\":\"x\"}"},
        {.action = FAKE_REPLY, .status = 200, .reply = "{\"result\":{\"0\":{\"allowed\":tr"},
        {.action = FAKE_REPLY, .status = 200, .reply = "{\"result\":{}}"},
        {.action = FAKE_REPLY,
         .status = 200,
         .reply = "{\"result\":{\"0\":{\"allowed\":false},\"0\":{\"allowed\":true}}}"},
        {.action = FAKE_REPLY, .status = 200, .reply = "{\"result\":{\"100\":{\"allowed\":true}}}"},
        {.action = FAKE_CUT},
        {.action = FAKE_HANG},
    };

    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "cache.size=0", "--set",
               "http.request_timeout=2s", "--set", "lister.min_token_wait=1s", NULL);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct fake_rule rule = faults[i];
        rule.path = "/batch-check";
        assert_all_listed();
        fake_store_rule(f, &rule);
        lister_get(&l, "t-anne", "/v1/inventory/things?page_size=1000");
        if (l.status != 503 && l.status != 504)
            fail_msg("fault %zu: %ld %s", i, l.status, buf_str(&l.body));
        assert_null(strstr(buf_str(&l.body), "items"));
        lister_get(&l, "t-anne", "/v1/inventory/things/i1");
        assert_true(l.status == 503 || l.status == 504);
        lister_request(
            &l, "/access/v1/evaluation", "t-anne",
            "{\"subject\":{\"type\":\"user\",\"id\":\"anne\"},\"action\":{\"name\":\"viewer\"},\"resource\":{"
            "\"type\":\"doc\",\"id\":\"i1\"}}");
        assert_true(l.status == 503 || l.status == 504);
        fake_store_clear(f);
    }
    assert_all_listed();
    proc_stop(l.p);
    l.p = NULL;
    fake_store_stop(f);
}

/* Half of a batch fails: what is certain is shown, the page says that it ended early, and its token goes on. */
static void test_L31_incomplete_page_goes_on(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    char path[16384], *token;
    bool complete;

    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "cache.size=0", NULL);
    fake_store_rule(f, &(struct fake_rule){.path = "/batch-check",
                                           .body = "doc:i100",
                                           .action = FAKE_REPLY,
                                           .status = 500,
                                           .reply = "{\"code\":\"internal_error\",\"message\":\"x\"}"});
    lister_get(&l, "t-anne", "/v1/inventory/things?page_size=1000");
    assert_status(&l, 200);
    size_t first = listed(&complete, &token);
    assert_false(complete);
    assert_true(first > 0 && first < 60 && *token);
    fake_store_clear(f);
    snprintf(path, sizeof(path), "/v1/inventory/things?page_size=1000&page_token=%s", token);
    free(token);
    lister_get(&l, "t-anne", path);
    assert_status(&l, 200);
    assert_int_equal(first + listed(&complete, &token), 60);
    assert_true(complete && !*token);
    free(token);
    proc_stop(l.p);
    l.p = NULL;
    fake_store_stop(f);
}

static void test_postgres_faults(void **state)
{
    struct harness *h = *state;
    char target[128];
    struct proxy *proxy;

    snprintf(target, sizeof(target), "%s", harness_sql_text(h, "SELECT '127.0.0.1:' || current_setting('port')"));
    proxy = proxy_start(target);
    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "pg.dsn=%s", harness_dsn(h, NULL, proxy_address(proxy), NULL)), "--set",
               "http.request_timeout=2s", "--set", "lister.min_token_wait=1s", NULL);
    assert_all_listed();
    proxy_refuse(proxy, true);
    proxy_cut(proxy);
    lister_get(&l, "t-anne", "/v1/inventory/things");
    assert_true(l.status == 503 || l.status == 504);
    proxy_refuse(proxy, false);
    assert_all_listed();
    proxy_freeze(proxy, PROXY_BOTH);
    lister_get(&l, "t-anne", "/v1/inventory/things");
    assert_true(l.status == 503 || l.status == 504);
    lister_get(&l, "t-anne", "/v1/inventory/things/i1");
    assert_true(l.status == 503 || l.status == 504);
    proxy_pass(proxy);
    assert_all_listed();
    proc_stop(l.p);
    l.p = NULL;
    proxy_stop(proxy);
}

/* ---- read your writes, events ---- */

static bool row_is_gone(void *arg)
{
    (void)arg;
    lister_get(&l, "t-anne", "/v1/inventory/things");
    return l.status == 200 && !strstr(buf_str(&l.body), "\"i1\"");
}

static void test_P04_min_token_and_events(void **state)
{
    struct harness *h = *state;
    struct proc *writer = writer_start(h, NULL);
    const char *token;

    things_table(h);
    harness_sql(h, "INSERT INTO public.things SELECT 'i' || i, 'n' || i, i FROM generate_series(1, 9) i");
    proc_ready_wait(writer, WAIT_MS);
    lister_run(&l, "--set", "cache.allow_ttl=60s", "--set", "cache.deny_ttl=60s", "--set",
               harness_strf(h, "lister.min_token_wait=%dms", harness_ms(5000)), NULL);
    for (int round = 0; round < 5; round++) {
        lister_get(&l, "t-anne", "/v1/inventory/things");
        assert_string_equal(buf_str(&l.body), "{\"items\":[],\"next_page_token\":\"\",\"complete\":true}");
        token = harness_sql_text(h, "SELECT relata.write_tuple('doc:i1', 'viewer', 'user:anne')");
        lister_get(&l, "t-anne", harness_strf(h, "/v1/inventory/things?min_token=%s", token));
        assert_status(&l, 200);
        assert_non_null(strstr(buf_str(&l.body), "\"i1\""));
        lister_get(&l, "t-anne", "/v1/inventory/things/i1");
        assert_status(&l, 200);
        token = harness_sql_text(h, "SELECT relata.delete_tuple('doc:i1', 'viewer', 'user:anne')");
        if (round % 2) {
            l.headers = curl_slist_append(NULL, harness_strf(h, "Relata-Min-Token: %s", token));
            lister_get(&l, "t-anne", "/v1/inventory/things/i1");
            assert_problem(&l, 404, "not_found");
            curl_slist_free_all(l.headers);
            l.headers = NULL;
        }
        /* The decisions would be good for a minute: it is the event that ends them. */
        assert_eventually(row_is_gone, NULL, WAIT_MS);
    }
    proc_stop(writer);
    token = harness_sql_text(h, "SELECT relata.write_tuple('doc:i1', 'viewer', 'user:anne')");
    lister_get(&l, "t-anne", harness_strf(h, "/v1/inventory/things?min_token=%s", token));
    assert_problem(&l, 409, "not_applied");
}

/* Another model comes into force: decisions follow it, tokens stay good. */
static bool anne_sees_nothing(void *arg)
{
    (void)arg;
    lister_get(&l, "t-anne", "/v1/inventory/things?page_size=1000");
    return l.status == 200 && strstr(buf_str(&l.body), "{\"items\":[],") != NULL;
}

static const char no_direct_model[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":{"
    "\"owner\":{\"this\":{}},\"viewer\":{\"computedUserset\":{\"relation\":\"owner\"}},\"editor\":{"
    "\"computedUserset\":{\"relation\":\"owner\"}}},\"metadata\":{\"relations\":{\"owner\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"}]}}}}]}";
static void test_model_changes(void **state)
{
    struct harness *h = *state;

    things_for_faults(h);
    lister_run(&l, "--set", "cache.allow_ttl=60s", NULL);
    assert_all_listed();
    harness_pin(h, h->store_id, harness_model_write(h, no_direct_model));
    assert_eventually(anne_sees_nothing, NULL, WAIT_MS);
    harness_pin(h, h->store_id, h->model_id);
}

static bool things_are_unavailable(void *arg)
{
    (void)arg;
    return lister_get(&l, "t-anne", "/v1/inventory/things") == 503 &&
           strstr(buf_str(&l.body), "\"collection_unavailable\"");
}

/* `lost`: not NULL if it is to name the collection. */
static bool readiness_says(void *lost)
{
    const char *body;

    return proc_get(l.p, "/readyz", &body) == 200 && (strstr(body, "collection \"things\"") != NULL) == (lost != NULL);
}

/* A model without what a collection rests on takes that collection away, and nothing else; it comes back by itself. */
static void test_model_loses_a_relation(void **state)
{
    static const char poorer[] =
        "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":{"
        "\"editor\":{\"this\":{}}},\"metadata\":{\"relations\":{\"editor\":{"
        "\"directly_related_user_types\":[{\"type\":\"user\"}]}}}}]}";
    struct harness *h = *state;

    things_for_faults(h);
    store_put(h, true, "doc:i1", "editor", "user:anne");
    lister_run(&l, "--set", "collection.others.table=public.things", "--set", "collection.others.type=doc", "--set",
               "collection.others.id=id", "--set", "collection.others.columns=id", "--set",
               "collection.others.relation=editor", NULL);
    assert_all_listed();
    harness_pin(h, h->store_id, harness_model_write(h, poorer));
    assert_eventually(things_are_unavailable, NULL, WAIT_MS);
    lister_get(&l, "t-anne", "/v1/inventory/things/i1");
    assert_problem(&l, 503, "collection_unavailable");
    assert_eventually(readiness_says, h, WAIT_MS);
    assert_true(proc_logged(l.p, "has no relation \\\"viewer\\\""));
    lister_get(&l, "t-anne", "/v1/inventory/others");
    assert_status(&l, 200);
    assert_non_null(strstr(buf_str(&l.body), "[{\"id\":\"i1\"}]"));
    lister_get(&l, "t-anne", "/v1/inventory/others?with_relations=viewer");
    assert_problem(&l, 503, "collection_unavailable");
    harness_pin(h, h->store_id, h->model_id);
    assert_all_listed();
    assert_eventually(readiness_says, NULL, WAIT_MS);
}

/* The request alone; its answer is read, or not, by whoever asked. */
static int ask_by_hand(const char *path)
{
    char text[512];
    const char *port = strrchr(l.url, ':');
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)strtol(port + 1, NULL, 10));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    snprintf(text, sizeof(text),
             "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t-anne\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

static bool batch_came(void *fake)
{
    return fake_store_count(fake, "/batch-check") > 0;
}

/* The model changes while a page's checks are under way: no row of the page is decided by one model and the next by the
 * other, and none by the old one after the new one's flush. */
static void test_model_changes_in_the_middle_of_a_request(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    char answer[65536];
    size_t len = 0;
    ssize_t n;
    int fd;

    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "cache.size=0", "--set",
               "lister.batches=1", "--set", "http.request_timeout=300s", "--set", "store.request_timeout=300s", NULL);
    double reads = proc_metric(l.p, "relata_lister_model_reads_total");
    fake_store_rule(
        f, &(struct fake_rule){.path = "/batch-check", .times = 1, .action = FAKE_PASS, .delay_ms = harness_ms(15000)});
    fd = ask_by_hand("/v1/inventory/things?page_size=1000");
    assert_eventually(batch_came, f, WAIT_MS);
    harness_pin(h, h->store_id, harness_model_write(h, no_direct_model));
    assert_metric_eventually(l.p, "relata_lister_model_reads_total", reads + 1, WAIT_MS);
    while (len < sizeof(answer) - 1 && (n = recv(fd, answer + len, sizeof(answer) - 1 - len, 0)) > 0)
        len += (size_t)n;
    answer[len] = '\0';
    close(fd);
    if (!strstr(answer, "HTTP/1.1 503 ") && !strstr(answer, "\"complete\":false"))
        fail_msg("%s", answer);
    assert_null(strstr(answer, "\"id\":\"i")); /* what the old model allowed came after its end */
    assert_eventually(anne_sees_nothing, NULL, WAIT_MS);
    harness_pin(h, h->store_id, h->model_id);
    proc_stop(l.p);
    l.p = NULL;
    fake_store_stop(f);
}

/* ---- clients that go away ---- */

static void test_hanging_up_ends_the_checks(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    int fd;

    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), "--set", "lister.batches=1", "--set",
               "http.request_timeout=300s", "--set", "store.request_timeout=300s", NULL);
    fake_store_rule(f, &(struct fake_rule){.path = "/batch-check", .times = 1, .action = FAKE_HANG});
    fd = ask_by_hand("/v1/inventory/things?page_size=1000");
    assert_eventually(batch_came, f, WAIT_MS);
    close(fd);
    assert_metric_eventually(l.p, "relata_lister_batches_given_up_total", 1, WAIT_MS);
    /* The only connection to the store is free again; what waited behind was not sent. */
    assert_int_equal(fake_store_count(f, "/batch-check"), 1);
    assert_all_listed();
    proc_stop(l.p);
    l.p = NULL;
    fake_store_stop(f);
}

static void test_hanging_up_ends_the_statement(void **state)
{
    static const char waiting[] =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.things'::regclass AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())";
    static const char sessions_sql[] = "SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
                                       "application_name = 'inventory-lister'";
    struct harness *h = *state;
    int fd;

    things_for_faults(h);
    lister_run(&l, "--set", "http.request_timeout=300s", "--set", "pg.statement_timeout=300s", "--set",
               "http.workers=1", NULL);
    assert_all_listed();
    int64_t sessions = harness_sql_int(h, sessions_sql);
    harness_sql(h, "BEGIN; LOCK TABLE public.things IN ACCESS EXCLUSIVE MODE");
    fd = ask_by_hand("/v1/inventory/things?page_size=1000");
    assert_sql_eventually(h, waiting, "1", WAIT_MS);
    close(fd);
    assert_sql_eventually(h, waiting, "0", WAIT_MS);
    fd = ask_by_hand("/v1/inventory/things/i1");
    assert_sql_eventually(h, waiting, "1", WAIT_MS);
    close(fd);
    assert_sql_eventually(h, waiting, "0", WAIT_MS);
    harness_sql(h, "ROLLBACK");
    /* By the same session, which is as good as before. */
    assert_all_listed();
    assert_int_equal(harness_sql_int(h, sessions_sql), sessions);
}

static bool none_waits(void *arg)
{
    (void)arg;
    return proc_metric(l.p, "relata_lister_min_token_waiting") == 0;
}

/* Requests that wait for their min_token leave workers for the others; one whose client goes away waits no longer. */
static void test_min_token_waits_are_few(void **state)
{
    struct harness *h = *state;
    const char *token, *path;
    char first[13] = "";
    int fd;

    things_for_faults(h);
    lister_run(&l, "--set", "http.workers=2", "--set", "lister.min_token_wait=60s", "--set",
               "http.request_timeout=300s", NULL);
    token = harness_sql_text(h, "SELECT relata.write_tuple('doc:i0', 'viewer', 'user:anne')"); /* no writer runs */
    path = harness_strf(h, "/v1/inventory/things?min_token=%s", token);
    fd = ask_by_hand(path);
    assert_metric_eventually(l.p, "relata_lister_min_token_waiting", 1, WAIT_MS);
    lister_get(&l, "t-anne", path);
    assert_problem(&l, 503, "unavailable");
    assert_all_listed();
    close(fd);
    assert_eventually(none_waits, NULL, WAIT_MS);
    /* There is room again, for one who waits until it is applied. */
    fd = ask_by_hand(path);
    assert_metric_eventually(l.p, "relata_lister_min_token_waiting", 1, WAIT_MS);
    harness_sql(h, "DELETE FROM relata.outbox");
    assert_int_equal(recv(fd, first, 12, MSG_WAITALL), 12);
    assert_string_equal(first, "HTTP/1.1 200");
    close(fd);
}

/* A token can be counted up from another: the parked change that it stands for is named to nobody but who diagnoses. */
static void test_parked_change_is_not_named(void **state)
{
    struct harness *h = *state;
    const char *token, *path;

    things_for_faults(h);
    lister_run(&l, NULL);
    token = harness_sql_text(h, "SELECT relata.write_tuple('doc:i0', 'viewer', 'user:bob')");
    path = harness_strf(h, "/v1/inventory/things?subject=user:anne&min_token=%s", token);
    harness_sql(
        h, "WITH gone AS (DELETE FROM relata.outbox RETURNING *) INSERT INTO relata.dead_letter (outbox_id, store, op, "
           "object, relation, subject, xid, created_at, code, reason) SELECT id, store, op, object, relation, subject, "
           "xid, created_at, 'validation_error', 'no such relation' FROM gone");
    lister_get(&l, "t-anne", path);
    assert_problem(&l, 409, "not_applied");
    assert_non_null(strstr(buf_str(&l.body), "is parked"));
    assert_null(strstr(buf_str(&l.body), "doc:i0"));
    lister_get(&l, "t-admin", path);
    assert_problem(&l, 409, "not_applied");
    assert_non_null(strstr(buf_str(&l.body), "doc:i0#viewer@user:bob"));
}

/* ---- ending ---- */

static void test_drains(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);

    things_for_faults(h);
    lister_run(&l, "--set", harness_strf(h, "store.url=%s", fake_store_url(f)), NULL);
    assert_all_listed();
    proc_stop(l.p); /* exit code 0 */
    l.p = NULL;
    fake_store_stop(f);
}

static int open_list(void **state)
{
    if (harness_setup(state) != 0)
        return -1;
    lister_open(&l, *state);
    return 0;
}

static int close_list(void **state)
{
    lister_close(&l);
    return harness_teardown(state);
}

#define T(f, parts)                                                                                                    \
    cmocka_unit_test_prestate_setup_teardown(f, open_list, close_list, &((struct harness_spec){#f, parts, NULL}))

int main(void)
{
    const unsigned both = HARNESS_DB | HARNESS_STORE;
    const struct CMUnitTest tests[] = {
        T(test_walks_equal_brute_force_deep, both),
        T(test_walks_equal_brute_force_flat, both),
        T(test_L20_rows_and_permissions_change_between_pages, both),
        T(test_hidden_rows_leave_no_trace, both),
        T(test_L31_L32_store_faults, both),
        T(test_L31_incomplete_page_goes_on, both),
        T(test_postgres_faults, both),
        T(test_P04_min_token_and_events, both | HARNESS_NATS),
        T(test_model_changes, both),
        T(test_model_loses_a_relation, both),
        T(test_model_changes_in_the_middle_of_a_request, both),
        T(test_hanging_up_ends_the_checks, both),
        T(test_hanging_up_ends_the_statement, both),
        T(test_min_token_waits_are_few, both),
        T(test_parked_change_is_not_named, both),
        T(test_drains, both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
