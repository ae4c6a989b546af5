/*
 * Pages over a real Postgres: what is read, shown, looked ahead for, and how a page ends. Who may see what is played
 * here: object "thing:<n>" by the test's rule, so that failures come exactly where the test says.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/collections/collection.h"
#include "inventory-lister/pages/page.h"
#include "tests/harness/harness.h"

/* ---- the decider, played ---- */

static struct {
    int every;        /* things whose number is a multiple of it are visible */
    int fail_from;    /* from this number on there are no answers; 0 = never */
    int fail_flag;    /* the flag of this thing has no answer; 0 = never */
    int refuse_after; /* decide_start() fails after so many calls; -1 = never */
    bool slow;        /* never done before it is waited for */
    int calls, items;
    void (*on_start)(int call);
} play;

struct decide_group {
    struct decide_item *items;
    size_t n;
};

enum status decide_start(struct decider *d, struct decide_query *q, struct decide_item *items, size_t n,
                         struct decide_group **out, struct err *err)
{
    (void)d, (void)q;
    *out = NULL;
    if (play.refuse_after >= 0 && play.calls >= play.refuse_after)
        return err_set(err, ST_THROTTLED, "too_many_checks", "too many checks");
    play.calls++;
    play.items += (int)n;
    if (play.on_start)
        play.on_start(play.calls);
    *out = malloc(sizeof(**out));
    **out = (struct decide_group){items, n};
    return ST_OK;
}

bool decide_done(const struct decide_group *g)
{
    (void)g;
    return !play.slow;
}

void decide_finish(struct decide_group *g, struct err *why)
{
    if (why)
        *why = (struct err){.status = ST_OK};
    for (size_t i = 0; i < g->n; i++) {
        struct decide_item *it = &g->items[i];
        int n = (int)strtol(strchr(it->object, ':') + 1, NULL, 10);
        bool editor = strcmp(it->relation, "editor") == 0;

        it->by = BY_STORE;
        if (editor)
            it->decision = n == play.fail_flag ? DECISION_FAILED : n % 4 == 0 ? DECISION_ALLOW : DECISION_DENY;
        else if (play.fail_from && n >= play.fail_from)
            it->decision = DECISION_FAILED;
        else
            it->decision = play.every && n % play.every == 0 ? DECISION_ALLOW : DECISION_DENY;
        if (it->decision == DECISION_FAILED)
            err_set(why, ST_UNKNOWN, "x", "no answer");
    }
    free(g);
}

/* ---- one test's world ---- */

struct fixture {
    struct harness *h;
    struct pg *pg;
    struct collections all;
    struct model *model;
    struct order order;
    struct filters filters;
    struct decide_query q;
    struct page_request rq;
    struct page page;
    struct err err;
};

static const char model_json[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"thing\",\"relations\":{"
    "\"viewer\":{\"this\":{}},\"editor\":{\"this\":{}}},\"metadata\":{\"relations\":{\"viewer\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"}]},\"editor\":{\"directly_related_user_types\":[{\"type\":"
    "\"user\"}]}}}}]}";

static struct fixture *open_fixture(void **state, int rows)
{
    static char text[][2][80] = {{"things.table", "public.things"},
                                 {"things.type", "thing"},
                                 {"things.id", "id"},
                                 {"things.columns", "id, name, at, local, price, ratio, ok, doc, bin"},
                                 {"things.sort", "name"},
                                 {"things.relation", "viewer"}};
    static char origin[] = "test";
    struct cfg_map_item items[6];
    for (int i = 0; i < 6; i++)
        items[i] = (struct cfg_map_item){text[i][0], text[i][1], origin};
    struct cfg_map map = {.items = items, .len = 6};
    struct fixture *f = calloc(1, sizeof(*f));
    struct model_err why;

    memset(&play, 0, sizeof(play));
    play.every = 1;
    play.refuse_after = -1;
    f->h = *state;
    harness_sqlf(
        f->h,
        "CREATE TABLE public.things(id int PRIMARY KEY, name text, at timestamptz, local timestamp, price "
        "numeric, ratio float8, ok bool, doc jsonb, bin bytea);"
        "INSERT INTO public.things SELECT i, 'n' || i, '2026-01-02 03:04:05.678901+00', '2026-01-02 03:04:05', "
        "12345678901234567890.10, 0.1, i %% 2 = 0, '{\"a\": [1, \"x\"]}', '\\x0aff' FROM generate_series(1, %d) i",
        rows);
    f->pg = harness_connect(f->h, NULL);
    assert_true(model_parse(&f->model, model_json, strlen(model_json), &why));
    if (collections_parse(&f->all, &map, &f->err) != ST_OK ||
        collections_check(&f->all, f->pg, f->model, deadline_in_ms(harness_ms(30000)), &f->err) != ST_OK)
        fail_msg("%s", f->err.text);
    f->q = (struct decide_query){.subject = "user:anne", .deadline = deadline_in_ms(harness_ms(60000))};
    f->order = *f->all.items[0].order;
    f->rq = (struct page_request){.collection = &f->all.items[0],
                                  .relation = "viewer",
                                  .order = &f->order,
                                  .filters = &f->filters,
                                  .size = 50,
                                  .scan_budget = 100000,
                                  .query = &f->q};
    return f;
}

static void close_fixture(struct fixture *f)
{
    page_free(&f->page);
    pg_close(f->pg);
    collections_free(&f->all);
    model_free(f->model);
    free(f);
}

static void read_page(struct fixture *f)
{
    page_free(&f->page);
    if (page_read(f->pg, NULL, &f->rq, &f->page, &f->err) != ST_OK)
        fail_msg("%s", f->err.text);
}

/* The ids on the page, which must be multiples of play.every from `first` on. Returns the last. */
static int check_ids(const struct fixture *f, int first)
{
    json_error_t why;
    json_t *list = json_loadb(f->page.items.data, f->page.items.len, JSON_REJECT_DUPLICATES, &why), *row;
    size_t i;
    int id = first - play.every;

    if (!list)
        fail_msg("%s: %s", why.text, f->page.items.data);
    assert_int_equal(json_array_size(list), f->page.shown);
    json_array_foreach(list, i, row)
    {
        id += play.every;
        assert_int_equal(json_integer_value(json_object_get(row, "id")), id);
    }
    json_decref(list);
    return id;
}

/* All pages. Returns how many there were. */
static int walk(struct fixture *f, int last_id)
{
    struct position at = {0};
    int pages = 0, id = 0;

    do {
        f->rq.after = pages ? &at : NULL;
        read_page(f);
        id = check_ids(f, id + play.every);
        pages++;
        position_free(&at);
        at = f->page.at;
        f->page.at = (struct position){0};
    } while (f->page.more);
    position_free(&at);
    f->rq.after = NULL;
    assert_int_equal(id, last_id);
    return pages;
}

/* ---- tests ---- */

static void test_values_as_json(void **state)
{
    struct fixture *f = open_fixture(state, 2);

    harness_sql(
        f->h,
        "UPDATE public.things SET name = E'q\"\\\\\\n\\u0001\\u00e9', at = 'infinity', local = NULL, price = 'NaN', "
        "ratio = '-Infinity', ok = NULL, doc = NULL WHERE id = 2");
    read_page(f);
    assert_string_equal(
        buf_str(&f->page.items),
        "[{\"id\":1,\"name\":\"n1\",\"at\":\"2026-01-02T03:04:05.678901Z\",\"local\":\"2026-01-02T03:04:05\","
        "\"price\":\"12345678901234567890.10\",\"ratio\":0.1,\"ok\":false,\"doc\":{\"a\": [1, "
        "\"x\"]},\"bin\":\"\\\\x0aff\"},"
        "{\"id\":2,\"name\":\"q\\\"\\\\\\n\\u0001\xc3\xa9\",\"at\":\"infinity\",\"local\":null,\"price\":\"NaN\","
        "\"ratio\":\"-Infinity\",\"ok\":null,\"doc\":null,\"bin\":\"\\\\x0aff\"}]");
    assert_true(f->page.complete);
    assert_false(f->page.more);
    close_fixture(f);
}

static void test_L01_walks_of_every_size(void **state)
{
    struct fixture *f = open_fixture(state, 700);
    static const int sizes[] = {1, 2, 3, 7, 50, 51, 99, 100, 350, 699, 700, 1000};
    static const int every[] = {1, 2, 7, 69, 700};

    for (size_t e = 0; e < 5; e++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            play.every = every[e];
            play.slow = s % 2;
            f->rq.size = sizes[s];
            int visible = 700 / play.every;
            int pages = walk(f, visible * play.every);
            /* The last page says that it is the last: full ones are never followed by an empty one. */
            assert_int_equal(pages, (visible + sizes[s] - 1) / sizes[s]);
        }
    close_fixture(f);
}

static void test_L34_nothing_visible_or_nothing_at_all(void **state)
{
    struct fixture *f = open_fixture(state, 300);

    play.every = 0;
    read_page(f);
    assert_int_equal(f->page.shown, 0);
    assert_string_equal(buf_str(&f->page.items), "[]");
    assert_true(f->page.complete && !f->page.more);
    assert_int_equal(f->page.scanned, 300);
    harness_sql(f->h, "DELETE FROM public.things");
    play.calls = 0;
    read_page(f);
    assert_string_equal(buf_str(&f->page.items), "[]");
    assert_true(f->page.complete && !f->page.more);
    assert_int_equal(play.calls, 0);
    close_fixture(f);
}

static void test_L04_scan_budget(void **state)
{
    struct fixture *f = open_fixture(state, 1000);
    int pages = 0;
    struct position at = {0};

    play.every = 0;
    f->rq.scan_budget = 120;
    do {
        f->rq.after = pages++ ? &at : NULL;
        play.items = 0;
        read_page(f);
        assert_true(play.items <= 120 && f->page.scanned <= 120);
        assert_int_equal(f->page.complete, !f->page.more);
        position_free(&at);
        at = f->page.at;
        f->page.at = (struct position){0};
    } while (f->page.more);
    assert_int_equal(pages, 9);
    position_free(&at);
    close_fixture(f);
}

static void test_one_fetch_is_enough_when_all_is_visible(void **state)
{
    struct fixture *f = open_fixture(state, 500);

    read_page(f);
    assert_int_equal(play.calls, 1);
    assert_int_equal(play.items, 51);
    assert_int_equal(f->page.shown, 50);
    assert_int_equal(f->page.scanned, 50);
    assert_string_equal(f->page.at.values[0], "50");
    close_fixture(f);
}

static void test_L31_a_failed_check_ends_the_page_before_it(void **state)
{
    struct fixture *f = open_fixture(state, 500);

    play.every = 3;
    play.fail_from = 100;
    f->rq.size = 200;
    read_page(f);
    assert_int_equal(check_ids(f, 3), 99);
    assert_false(f->page.complete);
    assert_true(f->page.more);
    assert_string_equal(f->page.at.values[0], "99");
    /* From there on, nothing can be said: an error, no empty page. */
    struct position at = f->page.at;
    f->page.at = (struct position){0};
    page_free(&f->page);
    f->rq.after = &at;
    assert_int_equal(page_read(f->pg, NULL, &f->rq, &f->page, &f->err), ST_UNKNOWN);
    assert_string_equal(f->err.code, "x");
    play.fail_from = 0;
    read_page(f);
    assert_int_equal(check_ids(f, 102), 498);
    assert_true(f->page.complete && !f->page.more);
    position_free(&at);
    close_fixture(f);
}

static void test_overload_in_the_middle(void **state)
{
    struct fixture *f = open_fixture(state, 500);

    play.every = 10;
    play.refuse_after = 1;
    read_page(f);
    assert_false(f->page.complete);
    assert_true(f->page.more && f->page.shown == 5);
    play.refuse_after = 0;
    page_free(&f->page);
    assert_int_equal(page_read(f->pg, NULL, &f->rq, &f->page, &f->err), ST_THROTTLED);
    close_fixture(f);
}

static void test_flags(void **state)
{
    struct fixture *f = open_fixture(state, 200);
    const char *with[] = {"editor", "viewer"};

    play.every = 2;
    f->rq.with_relations = with;
    f->rq.nwith = 2;
    f->rq.size = 60;
    read_page(f);
    assert_int_equal(check_ids(f, 2), 120);
    assert_non_null(strstr(buf_str(&f->page.items), "{\"id\":2,"));
    json_t *list = json_loadb(f->page.items.data, f->page.items.len, 0, NULL);
    for (size_t i = 0; i < 60; i++) {
        json_t *flags = json_object_get(json_array_get(list, i), "relations");
        assert_int_equal(json_object_size(flags), 2);
        assert_true(json_is_true(json_object_get(flags, "viewer")));
        assert_int_equal(json_is_true(json_object_get(flags, "editor")), (2 * (i + 1)) % 4 == 0);
    }
    json_decref(list);
    /* A flag that nobody knows is not taken for "no". */
    play.fail_flag = 84;
    read_page(f);
    assert_int_equal(check_ids(f, 2), 82);
    assert_true(!f->page.complete && f->page.more);
    assert_string_equal(f->page.at.values[0], "82");
    play.fail_flag = 2;
    page_free(&f->page);
    assert_int_equal(page_read(f->pg, NULL, &f->rq, &f->page, &f->err), ST_UNKNOWN);
    close_fixture(f);
}

/* A row that moves while the page is read is neither there twice nor missing. */
static struct harness *mover;
static void move_rows(int call)
{
    harness_sqlf(mover,
                 "UPDATE public.things SET id = id + 10000 WHERE id = %d; INSERT INTO public.things VALUES (%d, 'x')",
                 call * 10, 20000 + call);
}

static void test_one_snapshot(void **state)
{
    struct fixture *f = open_fixture(state, 900);

    mover = f->h;
    play.on_start = move_rows;
    play.every = 5;
    f->rq.size = 170;
    read_page(f);
    assert_true(play.calls > 1);
    assert_int_equal(check_ids(f, 5), 850);
    play.on_start = NULL;
    assert_sql_eventually(
        f->h, harness_strf(f->h, "SELECT state FROM pg_stat_activity WHERE pid = %d", pg_backend_pid(f->pg)), "idle",
        10000);
    close_fixture(f);
}

static void test_session_that_died(void **state)
{
    struct fixture *f = open_fixture(state, 100);

    harness_sqlf(f->h, "SELECT pg_terminate_backend(%d, 10000)", pg_backend_pid(f->pg));
    read_page(f);
    assert_int_equal(f->page.shown, 50);
    f->q.deadline = clock_mono_us() - 1;
    page_free(&f->page);
    assert_int_equal(page_read(f->pg, NULL, &f->rq, &f->page, &f->err), ST_DEADLINE);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_values_as_json, HARNESS_DB),
        HARNESS_TEST(test_L01_walks_of_every_size, HARNESS_DB),
        HARNESS_TEST(test_L34_nothing_visible_or_nothing_at_all, HARNESS_DB),
        HARNESS_TEST(test_L04_scan_budget, HARNESS_DB),
        HARNESS_TEST(test_one_fetch_is_enough_when_all_is_visible, HARNESS_DB),
        HARNESS_TEST(test_L31_a_failed_check_ends_the_page_before_it, HARNESS_DB),
        HARNESS_TEST(test_overload_in_the_middle, HARNESS_DB),
        HARNESS_TEST(test_flags, HARNESS_DB),
        HARNESS_TEST(test_one_snapshot, HARNESS_DB),
        HARNESS_TEST(test_session_that_died, HARNESS_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
