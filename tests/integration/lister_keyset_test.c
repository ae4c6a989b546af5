/* lister_keyset_test.c - pages by position: the cases that others got wrong. */
#include "tests/integration/lister_helpers.h"

#define DECLARE "t.table = public.t\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n"

/* All pages of the order must be the ids that are wanted. */
static void assert_walk(struct harness *h, const struct collection *c, const char *order, int64_t limit,
                        const char *want)
{
    struct walk w;

    walk_init(&w, h->pg, c, order, limit);
    assert_string_equal(walk_all(&w), want);
    walk_release(&w);
}

static void test_L07_nulls(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, "CREATE TABLE public.t (id int PRIMARY KEY, v int);"
                   "INSERT INTO public.t VALUES (1, 1), (2, NULL), (3, NULL), (4, 2), (5, NULL)");
    c = lister_collection(h, DECLARE "t.sort = v\n");
    for (int64_t limit = 1; limit <= 6; limit++) {
        assert_walk(h, c, "v", limit, "1,4,2,3,5");
        assert_walk(h, c, "-v", limit, "5,3,2,4,1");
        assert_walk(h, c, "v,-id", limit, "1,4,5,3,2");
        assert_walk(h, c, "-v,id", limit, "2,3,5,4,1");
    }
    lister_collection_free(c);
}

static void test_L08_microseconds(void **state)
{
    static const char *const orders[] = {"at", "-at", "local", "-local"};
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h,
                "CREATE TABLE public.t (id int PRIMARY KEY, at timestamptz NOT NULL, local timestamp NOT NULL);"
                "INSERT INTO public.t SELECT i, t::timestamptz, t::timestamp FROM (VALUES (1, '2026-01-01 "
                "00:00:00.123456Z'), (2, '2026-01-01 00:00:00.123789Z'), (3, '2026-01-01 00:00:00.123999Z')) v(i, t)");
    c = lister_collection(h, DECLARE "t.sort = at, local\n");
    for (size_t i = 0; i < 4; i++) {
        struct walk w;
        char last[64] = "";

        walk_init(&w, h->pg, c, orders[i], 1);
        while (walk_page(&w) == 1) {
            assert_string_not_equal(w.at.values[0], last);
            snprintf(last, sizeof last, "%s", w.at.values[0]);
        }
        assert_string_equal(buf_str(&w.ids), i % 2 ? "3,2,1" : "1,2,3");
        walk_release(&w);
    }
    lister_collection_free(c);
}

static void test_L10_time_zones_of_sessions(void **state)
{
    static const char *const zones[] = {"Australia/Sydney", "America/Anchorage", "UTC"};
    struct harness *h = *state;
    const struct collection *c;
    struct walk w, plain;

    harness_sql(h, "CREATE TABLE public.t (id int PRIMARY KEY, at timestamptz, local timestamp);"
                   "INSERT INTO public.t SELECT i, timestamptz '2026-03-28 12:00Z' + i * interval '1 hour', "
                   "timestamp '2026-03-28 12:00' + i * interval '1 hour' FROM generate_series(1, 40) i;"
                   "INSERT INTO public.t VALUES (41, 'infinity', 'infinity'), (42, '-infinity', '-infinity'), "
                   "(43, '0044-03-15 12:00Z BC', '0044-03-15 12:00 BC')");
    c = lister_collection(h, DECLARE "t.sort = at, local\n");
    for (int way = 0; way < 4; way++) {
        const char *order = (const char *const[]){"at", "-at", "local", "-local,at"}[way];

        walk_init(&w, h->pg, c, order, 2);
        walk_init(&plain, h->pg, c, order, 2);
        do {
            harness_sqlf(h, "SET TimeZone TO '%s'", zones[w.pages % 3]);
            walk_page(&w);
            harness_sql(h, "SET TimeZone TO 'UTC'");
            walk_page(&plain);
            for (size_t i = 0; i < w.at.n; i++)
                assert_string_equal(w.at.values[i], plain.at.values[i]);
        } while (w.rows % 2 == 0);
        assert_int_equal(w.rows, 43);
        assert_string_equal(buf_str(&w.ids), buf_str(&plain.ids));
        walk_release(&w);
        walk_release(&plain);
    }
    lister_collection_free(c);
}

static void test_L11_the_hour_that_comes_twice(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h,
                "SET TimeZone TO 'Europe/Berlin'; CREATE TABLE public.t (id int PRIMARY KEY, at timestamptz NOT NULL);"
                "INSERT INTO public.t SELECT i, timestamptz '2026-10-24 23:30Z' + i * interval '30 min' "
                "FROM generate_series(1, 6) i");
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(to_char(at, 'HH24:MI'), ' ' ORDER BY at) FROM public.t"),
                        "02:00 02:30 02:00 02:30 03:00 03:30");
    c = lister_collection(h, DECLARE "t.sort = at\n");
    for (int64_t limit = 1; limit <= 3; limit++) {
        assert_walk(h, c, "at", limit, "1,2,3,4,5,6");
        assert_walk(h, c, "-at", limit, "6,5,4,3,2,1");
    }
    lister_collection_free(c);
}

/* Collations under which byte order is wrong; in the last one different texts are equal. */
static void each_collation(struct harness *h, void (*check)(struct harness *h, const char *collation))
{
    static const char *const names[] = {"en", "punct", "nocase", "\"en-US-x-icu\"", "\"C\""};

    harness_sql(h,
                "CREATE COLLATION public.punct (provider = icu, locale = 'und-u-ka-shifted');"
                "CREATE COLLATION public.nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    /* Where the machine has it: scripts/services makes it. */
    harness_sql(h, "DO $$ BEGIN CREATE COLLATION public.en (provider = libc, locale = 'en_US.UTF-8'); EXCEPTION WHEN "
                   "undefined_object THEN CREATE COLLATION public.en FROM \"en-US-x-icu\"; END $$");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check(h, harness_strf(h, "%s%s", *names[i] == '"' ? "" : "public.", names[i]));
        harness_sql(h, "DROP TABLE public.t");
    }
}

static void walk_names(struct harness *h, const char *collation)
{
    const struct collection *c;
    const char *up, *down;

    harness_sqlf(
        h,
        "CREATE TABLE public.t (id int PRIMARY KEY, name text COLLATE %s, other text COLLATE %s NOT NULL);"
        "INSERT INTO public.t SELECT i, n, n FROM unnest(ARRAY['a_z', 'ab', 'a-c', 'AB', 'a b', 'XeLu1', 'XGeU2', "
        "'XeLu', 'xgeu', 'Zoë', 'zoe', 'é', '', ' ', '_', '~', 'ß', 'ss', 'I', 'ı']) WITH ORDINALITY u(n, i)",
        collation, collation);
    c = lister_collection(h, DECLARE "t.sort = name, other\n");
    up = harness_sql_text(h, "SELECT string_agg(id::text, ',' ORDER BY name, id) FROM public.t");
    down = harness_sql_text(h, "SELECT string_agg(id::text, ',' ORDER BY name DESC, id DESC) FROM public.t");
    for (int64_t limit = 1; limit <= 7; limit += 3) {
        assert_walk(h, c, "name", limit, up);
        assert_walk(h, c, "other", limit, up);
        assert_walk(h, c, "-name", limit, down);
        assert_walk(h, c, "-other", limit, down);
    }
    lister_collection_free(c);
}

static void test_L13_L14_collations(void **state)
{
    each_collation(*state, walk_names);
}

static void test_L16_equal_keys_whatever_the_plan(void **state)
{
    static const char *const settings[] = {"enable_indexscan", "enable_sort", "enable_seqscan", "enable_bitmapscan"};
    struct harness *h = *state;
    const struct collection *c;
    struct walk w;

    harness_sql(h, "CREATE TABLE public.t (id int PRIMARY KEY, status text NOT NULL);"
                   "INSERT INTO public.t SELECT i, 'new' FROM generate_series(1, 1500) i ORDER BY hashint4(i);"
                   "CREATE INDEX ON public.t (status); ANALYZE public.t");
    c = lister_collection(h, DECLARE "t.sort = status\n");
    walk_init(&w, h->pg, c, "status", 50);
    do {
        harness_sqlf(h, "SET %s TO %s; SET max_parallel_workers_per_gather TO %d; SET parallel_setup_cost TO 0",
                     settings[w.pages % 4], w.pages % 8 < 4 ? "off" : "on", w.pages % 3);
    } while (walk_page(&w) == 50);
    assert_string_equal(buf_str(&w.ids),
                        harness_sql_text(h, "SELECT string_agg(id::text, ',' ORDER BY id) FROM public.t"));
    walk_release(&w);
    lister_collection_free(c);
}

static void test_L17_ties_are_broken_by_the_id(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h,
                "CREATE TABLE public.t (id text PRIMARY KEY, name text);"
                "INSERT INTO public.t VALUES ('/a', 'dup'), ('/b', 'dup'), ('c:1', NULL), ('d#2', NULL), ('e%3', '')");
    c = lister_collection(h, DECLARE "t.sort = name\n");
    for (int64_t limit = 1; limit <= 3; limit++) {
        /* The object's id is encoded; the position is not. */
        assert_walk(h, c, "name", limit, "e%253,/a,/b,c%3A1,d%232");
        assert_walk(h, c, "-name", limit, "d%232,c%3A1,/b,/a,e%253");
    }
    lister_collection_free(c);
}

static void test_L19_no_order_given(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, "CREATE TABLE public.t (id int PRIMARY KEY, n int);"
                   "INSERT INTO public.t SELECT i, 10 - i FROM generate_series(1, 10) i ORDER BY hashint4(i)");
    c = lister_collection(h, DECLARE);
    assert_walk(h, c, "", 3, "1,2,3,4,5,6,7,8,9,10");
    lister_collection_free(c);
    c = lister_collection(h, DECLARE "t.sort = n\nt.order = n\n");
    assert_walk(h, c, "", 3, "10,9,8,7,6,5,4,3,2,1");
    lister_collection_free(c);
}

static void test_L20_the_boundary_row_goes(void **state)
{
    static const char *const orders[] = {"n", "-n", "m", "-m,id"};
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, "CREATE TABLE public.t (id int PRIMARY KEY, n int NOT NULL, m int)");
    c = lister_collection(h, DECLARE "t.sort = n, m\n");
    for (size_t i = 0; i < 4; i++) {
        struct walk w;
        const char *order_by = (const char *const[]){"n, id", "n DESC, id DESC", "m, id", "m DESC, id"}[i];
        const char *all;

        harness_sql(h, "TRUNCATE public.t; INSERT INTO public.t SELECT i, i / 2, nullif(i % 4, 0) FROM "
                       "generate_series(1, 12) i");
        all = harness_sql_text(h,
                               harness_strf(h, "SELECT string_agg(id::text, ',' ORDER BY %s) FROM public.t", order_by));
        walk_init(&w, h->pg, c, orders[i], 5);
        assert_int_equal(walk_page(&w), 5);
        harness_sqlf(h, "DELETE FROM public.t WHERE id = %s", w.at.values[w.at.n - 1]);
        assert_string_equal(walk_all(&w), all);
        walk_release(&w);
    }
    lister_collection_free(c);
}

static enum status build(struct pg *pg, const struct collection *c, const char *order, struct position *at, int *rows,
                         struct err *err)
{
    struct filters none = {0};
    struct statement s;
    struct pg_result *r = NULL;
    struct order o;
    enum status st;

    assert_int_equal(order_parse(c, order, &o, err), ST_OK);
    st = keyset_build(&s, c, &o, &none, NULL, at, 10, err);
    if (st == ST_OK) {
        assert_int_equal(
            pg_query(pg, NULL, buf_str(&s.sql), s.params, s.nparams, deadline_in_ms(harness_ms(20000)), &r, err),
            ST_OK);
        *rows = pg_rows(r);
    }
    pg_result_free(r);
    statement_free(&s);
    return st;
}

static void test_L22_L23_positions_that_were_not_given_out(void **state)
{
    static char evil[] = "x'::uuid OR true--", fine[] = "6ba7b810-9dad-11d1-80b4-00c04fd430c8", number[] = "7";
    struct harness *h = *state;
    const struct collection *c;
    struct err err;
    int rows = -1;

    harness_sql(h, "CREATE TABLE public.t (id uuid PRIMARY KEY, name text, n int NOT NULL);"
                   "INSERT INTO public.t SELECT gen_random_uuid(), 'a' || i, i FROM generate_series(1, 5) i");
    c = lister_collection(h, DECLARE "t.sort = name, n\n");
    assert_int_equal(build(h->pg, c, "name", &(struct position){2, {number, evil}}, &rows, &err), ST_INVALID);
    assert_int_equal(build(h->pg, c, "n", &(struct position){2, {evil, fine}}, &rows, &err), ST_INVALID);
    assert_int_equal(build(h->pg, c, "n", &(struct position){2, {NULL, fine}}, &rows, &err), ST_INVALID);
    assert_int_equal(build(h->pg, c, "n", &(struct position){2, {number, NULL}}, &rows, &err), ST_INVALID);
    assert_int_equal(build(h->pg, c, "n", &(struct position){1, {number}}, &rows, &err), ST_INVALID);
    assert_int_equal(build(h->pg, c, "n", &(struct position){3, {number, fine, fine}}, &rows, &err), ST_INVALID);
    /* As a text it is just one: a value, never SQL. */
    assert_int_equal(build(h->pg, c, "name", &(struct position){2, {evil, fine}}, &rows, &err), ST_OK);
    assert_int_equal(rows, 0);
    assert_int_equal(build(h->pg, c, "-name", &(struct position){2, {evil, fine}}, &rows, &err), ST_OK);
    assert_int_equal(rows, 5);
    lister_collection_free(c);
}

static void test_bound_and_where(void **state)
{
    struct harness *h = *state;
    const struct collection *c;
    struct filters none = {0};
    struct statement s;
    struct walk w;
    struct err err;

    harness_sql(
        h, "CREATE TABLE public.t (id int PRIMARY KEY, org int, gone timestamptz, hidden timestamptz, n int);"
           "INSERT INTO public.t SELECT i, i % 3, CASE WHEN i % 5 = 0 THEN now() END, CASE WHEN i % 7 = 0 THEN now() "
           "END, i % 4 FROM generate_series(1, 60) i");
    c = lister_collection(h, DECLARE "t.sort = n\nt.where = gone, hidden\nt.bound = org\nt.claim = org\n");
    for (int64_t limit = 1; limit < 20; limit += 3) {
        walk_init(&w, h->pg, c, "-n", limit);
        w.bound = "2";
        assert_string_equal(walk_all(&w),
                            harness_sql_text(h, "SELECT string_agg(id::text, ',' ORDER BY n DESC, id DESC) FROM "
                                                "public.t WHERE org = 2 AND gone IS NULL AND hidden IS NULL"));
        walk_release(&w);
    }
    /* Never a list that is bound to nothing. */
    assert_int_equal(keyset_build(&s, c, c->order, &none, NULL, NULL, 10, &err), ST_DENIED);
    statement_free(&s);
    assert_int_equal(keyset_build(&s, c, c->order, &none, "2 OR true", NULL, 10, &err), ST_INVALID);
    assert_string_equal(err.text, "claim \"org\": \"org\" takes an integer in the range of its type");
    statement_free(&s);
    assert_int_equal(keyset_build_one(&s, c, NULL, "1", &err), ST_DENIED);
    statement_free(&s);
    lister_collection_free(c);
}

static int rows_of_one(struct harness *h, const struct collection *c, const char *bound, const char *id)
{
    struct statement s;
    struct pg_result *r = NULL;
    struct err err;
    enum status st = keyset_build_one(&s, c, bound, id, &err);
    int n = -1;

    if (st == ST_OK) {
        assert_int_equal(
            pg_query(h->pg, s.name, buf_str(&s.sql), s.params, s.nparams, deadline_in_ms(harness_ms(20000)), &r, &err),
            ST_OK);
        n = pg_rows(r);
        if (n == 1)
            assert_string_equal(pg_text(r, 0, 0), pg_text(r, 0, 1));
    } else {
        assert_int_equal(st, ST_NOT_FOUND);
    }
    pg_result_free(r);
    statement_free(&s);
    return n;
}

static void test_one_row(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, "CREATE TABLE public.t (id bigint PRIMARY KEY, org text, gone timestamptz);"
                   "INSERT INTO public.t VALUES (1, 'acme', NULL), (2, 'evil', NULL), (3, 'acme', now())");
    c = lister_collection(h, DECLARE "t.where = gone\nt.bound = org\nt.claim = org\n");
    assert_int_equal(rows_of_one(h, c, "acme", "1"), 1);
    assert_int_equal(rows_of_one(h, c, "acme", "2"), 0);
    assert_int_equal(rows_of_one(h, c, "acme", "3"), 0);
    assert_int_equal(rows_of_one(h, c, "acme", "4"), 0);
    assert_int_equal(rows_of_one(h, c, "acme", "1 OR true"), -1);
    assert_int_equal(rows_of_one(h, c, "acme", "99999999999999999999"), -1);
    assert_int_equal(rows_of_one(h, c, "acme", ""), -1);
    lister_collection_free(c);
}

/* A view has no NOT NULL: its rows without an id are nobody's. */
static void test_a_view(void **state)
{
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, "CREATE TABLE public.b (id int, n int);"
                   "INSERT INTO public.b SELECT nullif(i, 4), nullif(i % 3, 0) FROM generate_series(1, 9) i;"
                   "CREATE VIEW public.t AS SELECT * FROM public.b");
    c = lister_collection(h, DECLARE "t.sort = n\nt.unique_id = yes\n");
    for (int64_t limit = 1; limit <= 4; limit++) {
        assert_walk(h, c, "n", limit, "1,7,2,5,8,3,6,9");
        assert_walk(h, c, "", limit, "1,2,3,5,6,7,8,9");
        assert_walk(h, c, "-id", limit, "9,8,7,6,5,3,2,1");
    }
    lister_collection_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_L07_nulls, HARNESS_DB),
        HARNESS_TEST(test_L08_microseconds, HARNESS_DB),
        HARNESS_TEST(test_L10_time_zones_of_sessions, HARNESS_DB),
        HARNESS_TEST(test_L11_the_hour_that_comes_twice, HARNESS_DB),
        HARNESS_TEST(test_L13_L14_collations, HARNESS_DB),
        HARNESS_TEST(test_L16_equal_keys_whatever_the_plan, HARNESS_DB),
        HARNESS_TEST(test_L17_ties_are_broken_by_the_id, HARNESS_DB),
        HARNESS_TEST(test_L19_no_order_given, HARNESS_DB),
        HARNESS_TEST(test_L20_the_boundary_row_goes, HARNESS_DB),
        HARNESS_TEST(test_L22_L23_positions_that_were_not_given_out, HARNESS_DB),
        HARNESS_TEST(test_bound_and_where, HARNESS_DB),
        HARNESS_TEST(test_one_row, HARNESS_DB),
        HARNESS_TEST(test_a_view, HARNESS_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
