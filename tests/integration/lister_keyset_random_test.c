/*
 * lister_keyset_random_test.c - pages against plain SQL: random orders over columns of every kind, filters, rows that
 * come and go meanwhile, and how much of the table a page touches.
 */
#include "tests/integration/lister_helpers.h"

/* Few different values, many of them equal, and those that order oddly. */
static const char table_sql[] =
    "CREATE COLLATION public.nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    "CREATE COLLATION public.punct (provider = icu, locale = 'und-u-ka-shifted');"
    "DO $$ BEGIN CREATE COLLATION public.en (provider = libc, locale = 'en_US.UTF-8'); EXCEPTION WHEN undefined_object "
    "THEN "
    "CREATE COLLATION public.en FROM \"en-US-x-icu\"; END $$;"
    "CREATE TYPE public.state AS ENUM ('new', 'busy', 'old');"
    "CREATE DOMAIN public.label AS text COLLATE public.en CHECK (value <> 'never');"
    "CREATE FUNCTION public.pick(i int, salt int, v anyarray) RETURNS anyelement LANGUAGE sql AS "
    "'SELECT v[1 + abs(hashint4(i * 31 + salt) % array_length(v, 1))]';"
    "CREATE TABLE public.t (id bigint PRIMARY KEY, n int, s smallint, big bigint NOT NULL, f real, d double precision "
    "NOT NULL,"
    "  price numeric, live boolean, key uuid, day date, at timestamptz NOT NULL, later timestamptz, local timestamp,"
    "  name text NOT NULL, en text COLLATE public.en, punct text COLLATE public.punct NOT NULL, nocase text COLLATE "
    "  public.nocase, code char(4), note varchar(9) NOT NULL, state public.state, label public.label);"
    "INSERT INTO public.t SELECT i, public.pick(i, 1, ARRAY[1, 2, NULL, -3, 2147483647, -2147483648]),"
    "  public.pick(i, 2, ARRAY[1, NULL, 32767]), public.pick(i, 3, ARRAY[1, 2, 9223372036854775807, "
    "-9223372036854775808]),"
    "  public.pick(i, 4, ARRAY[0.1, -0, 0, 'NaN', 'Infinity', '-Infinity', 3.4e38, 1e-45, NULL]::real[]),"
    "  public.pick(i, 5, ARRAY[0.1, 1e308, 'NaN', -0, 0, 5e-324, 0.30000000000000004, 0.3]::float8[]),"
    "  public.pick(i, 6, ARRAY[1.0, 1.00, 'NaN', 12.345678901234567890123, 'Infinity', NULL, -0.001]::numeric[]),"
    "  public.pick(i, 7, ARRAY[true, false, NULL]),"
    "  public.pick(i, 8, ARRAY[NULL, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', "
    "'ffffffff-ffff-ffff-ffff-ffffffffffff']::uuid[]),"
    "  public.pick(i, 9, ARRAY[NULL, 'infinity', '-infinity', '2026-01-31', '0044-03-15 BC', '5874897-12-31']::date[]),"
    "  timestamptz '2026-10-24 22:00Z' + (i % 90) * interval '15 min' + (i % 3) * interval '1 us',"
    "  public.pick(i, 10, ARRAY[NULL, 'infinity', '-infinity', '2026-10-25 01:30+02', '2026-10-25 01:30+01', "
    "'2026-01-01 "
    "00:00:00.123456Z', '2026-01-01 00:00:00.123457Z', '0044-03-15 12:00Z BC']::timestamptz[]),"
    "  public.pick(i, 11, ARRAY[NULL, 'infinity', '2026-03-29 02:30', '2026-03-29 02:30:00.000001']::timestamp[]),"
    "  w, nullif(w, 'ab'), w, nullif(w, 'ss'), nullif(left(w, 3), '_'), left(w, 9),"
    "  public.pick(i, 12, ARRAY['new', 'busy', 'old', NULL]::public.state[]), nullif(w, '') "
    "FROM generate_series(1, 240) i, LATERAL (SELECT public.pick(i, 13, ARRAY['a_z', 'ab', 'AB', 'a b', 'a-b', 'Zoë', "
    "'zoe', '', ' ', "
    "'_', 'ß', 'ss', 'XeLu', 'XGeU', 'x', '\U0010FFFF', 'a''b\\c', 'q\"uote']) AS w) x;";

static const char *const sortable[] = {"id",   "n",     "s",      "big",  "f",     "d",     "price",
                                       "live", "key",   "day",    "at",   "later", "local", "name",
                                       "en",   "punct", "nocase", "code", "note",  "state", "label"};
#define NSORTABLE (sizeof sortable / sizeof *sortable)

static const char declaration[] =
    "t.table = public.t\nt.type = thing\nt.id = id\nt.columns = id, name, at\nt.relation = viewer\n"
    "t.sort = n, s, big, f, d, price, live, key, day, at, later, local, name, en, punct, nocase, code, note, state, "
    "label\n"
    "t.filter = id, n, s, big, f, d, price, live, key, day, at, later, local, name, en, punct, nocase, code, note, "
    "state, label\n";

static uint64_t seed;

static unsigned rnd(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed % n);
}

/* A random order as parameter and as SQL. */
static void random_order(struct buf *param, struct buf *sql)
{
    unsigned n = 1 + rnd(SORT_MAX), used[SORT_MAX + 1] = {0};
    bool down = false, has_id = false;

    buf_clear(param);
    buf_clear(sql);
    for (unsigned i = 0; i < n && !has_id; i++) {
        bool twice = false;

        used[i] = rnd(NSORTABLE);
        for (unsigned k = 0; k < i; k++)
            twice = twice || used[k] == used[i];
        if (twice)
            break;
        down = rnd(3) == 0 ? !down : down;
        has_id = used[i] == 0;
        buf_addf(param, "%s%s%s", i ? "," : "", down ? "-" : "", sortable[used[i]]);
        buf_addf(sql, "%s%s%s", i ? ", " : "", sortable[used[i]], down ? " DESC" : "");
    }
    if (!has_id)
        buf_addf(sql, ", id%s", down ? " DESC" : "");
}

static void test_random_orders(void **state)
{
    struct harness *h = *state;
    const struct collection *c;
    struct buf param, sql;

    buf_init(&param, 1000);
    buf_init(&sql, 1000);
    seed = harness_seed();
    harness_sql(h, table_sql);
    c = lister_collection(h, declaration);
    for (int i = harness_soak(1000); i > 0; i--) {
        struct walk w;
        const char *want;

        random_order(&param, &sql);
        walk_init(&w, h->pg, c, buf_str(&param), rnd(4) ? 1 + (int64_t)rnd(60) : 1 + (int64_t)rnd(4));
        want = harness_sql_text(
            h, harness_strf(h, "SELECT string_agg(id::text, ',' ORDER BY %s) FROM public.t", buf_str(&sql)));
        if (strcmp(walk_all(&w), want) != 0)
            fail_msg("order %s, %d at once:\n%s\nnot\n%s", buf_str(&param), (int)w.limit, buf_str(&w.ids), want);
        walk_release(&w);
    }
    lister_collection_free(c);
    buf_release(&param);
    buf_release(&sql);
}

static void test_filters(void **state)
{
    static const struct {
        const char *name, *value, *sql;
    } cases[] = {
        {"n", "2", "n = 2"},
        {"n.in", "1,2147483647", "n IN (1, 2147483647)"},
        {"n.null", "true", "n IS NULL"},
        {"n.null", "false", "n IS NOT NULL"},
        {"n.gte", "-2147483648", "n IS NOT NULL"},
        {"s.lt", "32767", "s = 1"},
        {"big", "-9223372036854775808", "big < 0"},
        {"f", "0.1", "f = 0.1::real"},
        {"f.lt", "0", "f < 0"},
        {"d", "0.30000000000000004", "d = 0.30000000000000004::float8"},
        {"d.gt", "1e307", "d > 1"},
        {"price", "1", "price = 1.0"},
        {"price.lte", "12.345678901234567890123", "price IN (1, -0.001, 12.345678901234567890123)"},
        {"live", "false", "NOT live"},
        {"live.in", "true,false", "live IS NOT NULL"},
        {"key.gt", "6BA7B810-9DAD-11D1-80B4-00C04FD430C8", "key::text LIKE 'fff%'"},
        {"day.gte", "2026-01-31", "day >= '2026-01-31'"},
        {"at.lt", "2026-10-25T02:30:00+02:00", "at < '2026-10-25 00:30Z'"},
        {"later", "2026-01-01T00:00:00.123457Z", "later = '2026-01-01 00:00:00.123457Z'"},
        {"local.gt", "2026-03-29T02:30:00Z", "local > '2026-03-29 02:30'"},
        {"name", "a'b\\c", "name = 'a''b\\c'"},
        {"name.in", "a'b\\\\c,q\"uote,", "name IN ('a''b\\c', 'q\"uote', '')"},
        {"name.gt", "a", "name > 'a'"},
        {"en.gte", "ab", "en >= 'ab'"},
        {"punct", "ab", "punct = 'ab'"},
        {"nocase", "AB", "lower(nocase COLLATE \"C\") = 'ab'"},
        {"nocase.in", "AB,x", "lower(nocase COLLATE \"C\") IN ('ab', 'x')"},
        {"name.prefix", "a", "name COLLATE \"C\" LIKE 'a%'"},
        {"en.prefix", "a", "en COLLATE \"C\" LIKE 'a%'"},
        {"punct.prefix", "a-", "punct COLLATE \"C\" LIKE 'a-%'"},
        {"nocase.prefix", "A", "nocase COLLATE \"C\" LIKE 'A%'"},
        {"label.prefix", "_", "label COLLATE \"C\" LIKE '\\_%'"},
        {"name.prefix", "\U0010FFFF", "name = '\U0010FFFF'"},
        {"name.prefix", "", "true"},
        {"en.prefix", "", "en IS NOT NULL"},
        {"name.prefix", "\xED\x9F\xBF", "false"}, /* U+D7FF: what follows is no surrogate */
        {"name.prefix", "\x7F", "false"},
        {"name.prefix", "Zo", "name = 'Zoë'"},
        {"code", "a", "code = 'a'"},
        {"code.prefix", "a", "code::text COLLATE \"C\" LIKE 'a%'"},
        {"note", "a much longer note", "false"},
        {"note.prefix", "X", "note COLLATE \"C\" LIKE 'X%'"},
        {"state", "busy", "state = 'busy'"},
        {"state.gt", "new", "state IN ('busy', 'old')"},
        {"state.in", "new,old", "state IN ('new', 'old')"},
        {"label.null", "true", "label IS NULL"},
        {"id.in", "1,5,9", "id IN (1, 5, 9)"},
    };
    static const char *const orders[][2] = {
        {"", "id"}, {"-n,name", "n DESC, name, id"}, {"en,-at", "en, at DESC, id DESC"}};
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(h, table_sql);
    c = lister_collection(h, declaration);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        const char *want;
        struct walk w;

        walk_init(&w, h->pg, c, orders[i % 3][0], 7);
        if (filter_add(c, &w.filters, harness_strf(h, "filter.%s", cases[i].name), cases[i].value, &err) != ST_OK)
            fail_msg("%s", err.text);
        want =
            harness_sql_text(h, harness_strf(h, "SELECT string_agg(id::text, ',' ORDER BY %s) FROM public.t WHERE %s",
                                             orders[i % 3][1], cases[i].sql));
        if (strcmp(walk_all(&w), want) != 0)
            fail_msg("%s = %s: %s, not %s", cases[i].name, cases[i].value, buf_str(&w.ids), want);
        walk_release(&w);
    }
    lister_collection_free(c);
}

/* Whatever a filter takes, Postgres takes too. */
static void test_values_that_postgres_takes(void **state)
{
    static const char *const values[][2] = {{"day", "9999-12-31"},
                                            {"day", "0001-01-01"},
                                            {"at", "9999-12-31T23:59:59.999999-15:59"},
                                            {"at", "0001-01-01T00:00:00+15:59"},
                                            {"local", "0001-01-01T00:00:00Z"},
                                            {"price", "1e1000"},
                                            {"price", "-1e-1000"},
                                            {"d", "1e308"},
                                            {"d", "5e-324"},
                                            {"d", "0e999"},
                                            {"d", "-0.0"},
                                            {"f", "1e-45"},
                                            {"f", "3.4028235e38"},
                                            {"s", "-0"},
                                            {"big", "0000000000000000000000000000000001"},
                                            {"name", "\x01\x7F"},
                                            {"code", "much longer than it can be"}};
    struct harness *h = *state;
    const struct collection *c;
    struct err err;

    harness_sql(h, table_sql);
    c = lister_collection(h, declaration);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int op = 0; op < 3; op++) {
            struct walk w;

            walk_init(&w, h->pg, c, "", 1000);
            err = (struct err){0};
            if (filter_add(c, &w.filters,
                           harness_strf(h, "filter.%s.%s", values[i][0], (const char *const[]){"eq", "in", "lt"}[op]),
                           values[i][1], &err) == ST_OK)
                walk_page(&w); /* fails if Postgres does */
            else
                assert_int_equal(err.status, ST_INVALID);
            walk_release(&w);
        }
    }
    lister_collection_free(c);
}

/* Rows come, go and move between pages: of those that stay, each is seen once. They stop coming at some time: each may
 * go to the end of the order, so a walk of a row a page would never end. */
static void test_rows_that_come_and_go(void **state)
{
    struct harness *h = *state;
    const struct collection *c;
    struct buf param, sql;

    buf_init(&param, 1000);
    buf_init(&sql, 1000);
    seed = harness_seed();
    harness_sql(h, table_sql);
    c = lister_collection(h, declaration);
    for (int i = harness_soak(200); i > 0; i--) {
        struct walk w;

        random_order(&param, &sql);
        walk_init(&w, h->pg, c, buf_str(&param), 1 + (int64_t)rnd(30));
        harness_sql(h, "CREATE TABLE public.before AS SELECT * FROM public.t");
        while (walk_page(&w) == w.limit && w.rows < 5000) {
            int64_t from = rnd(240);

            if (w.pages > 500)
                continue;
            harness_sqlf(h,
                         "DELETE FROM public.t WHERE id BETWEEN %lld AND %lld;"
                         "CREATE TEMP TABLE more AS SELECT * FROM public.before WHERE id = %lld;"
                         "UPDATE more SET id = 1000 + %d; INSERT INTO public.t SELECT * FROM more; DROP TABLE more",
                         (long long)from, (long long)from + (int64_t)rnd(3), (long long)rnd(240), w.pages);
        }
        assert_true(w.rows < 5000);
        assert_int_equal(
            harness_sql_int(
                h, harness_strf(h, "SELECT count(*) - count(DISTINCT x) FROM unnest(ARRAY[%s]) x", buf_str(&w.ids))),
            0);
        assert_int_equal(harness_sql_int(h, harness_strf(h,
                                                         "SELECT count(*) FROM public.t WHERE id <= 240 AND id <> ALL "
                                                         "(ARRAY[%s])",
                                                         buf_str(&w.ids))),
                         0);
        harness_sql(h, "TRUNCATE public.t; INSERT INTO public.t SELECT * FROM public.before; DROP TABLE public.before");
        walk_release(&w);
    }
    lister_collection_free(c);
    buf_release(&param);
    buf_release(&sql);
}

/* ---- how much is touched ---- */

static const char *explain(struct harness *h, struct walk *w, bool generic)
{
    struct statement s;
    struct pg_result *r = NULL;
    struct err err;
    struct buf b;
    const char *plan = "";

    assert_int_equal(keyset_build(&s, w->c, &w->order, &w->filters, w->bound, w->at.n ? &w->at : NULL, w->limit, &err),
                     ST_OK);
    buf_init(&b, 1 << 20);
    buf_addf(&b, "PREPARE g AS %s", buf_str(&s.sql));
    harness_sqlf(h, "SET plan_cache_mode TO %s", generic ? "force_generic_plan" : "force_custom_plan");
    harness_sql(h, buf_str(&b));
    buf_clear(&b);
    buf_adds(&b, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE g");
    for (int i = 0; i < s.nparams; i++)
        buf_addf(&b, "%s'%s'", i ? ", " : "(", s.params[i].data);
    buf_adds(&b, s.nparams ? ")" : "");
    assert_int_equal(pg_query(h->pg, NULL, buf_str(&b), NULL, 0, deadline_in_ms(harness_ms(20000)), &r, &err), ST_OK);
    for (int i = 0; i < pg_rows(r); i++)
        plan = harness_strf(h, "%s%s\n", plan, pg_text(r, i, 0));
    pg_result_free(r);
    harness_sql(h, "DEALLOCATE g");
    buf_release(&b);
    statement_free(&s);
    return plan;
}

/* Index ranges only; no node yields many more rows than are wanted (an incremental sort looks at the next group), and
 * none throws rows away. */
static void assert_cheap(const char *order, const char *plan, int64_t limit, bool generic)
{
    bool fine = strstr(plan, "Index") && !strstr(plan, "Seq Scan") && !strstr(plan, "Removed by Filter");

    for (const char *at = plan; (at = strstr(at, "actual rows=")) != NULL; at++)
        fine = fine && strtoll(at + 12, NULL, 10) <= 2 * limit;
    if (!fine)
        fail_msg("order %s, %s plan:\n%s", order, generic ? "generic" : "custom", plan);
}

static void test_L43_deep_pages_cost_what_the_first_does(void **state)
{
    static const char *const orders[] = {"-at", "at", "n", "-n", "-at,id", "-n,id"};
    struct harness *h = *state;
    const struct collection *c;

    harness_sql(
        h, "CREATE TABLE public.t (id bigint PRIMARY KEY, org int NOT NULL, at timestamptz NOT NULL, n int, gone date);"
           "INSERT INTO public.t SELECT i, 7, now() + hashint4(i) * interval '1 ms', CASE WHEN i % 10 > 0 THEN i % 100 "
           "END "
           "FROM generate_series(1, 60000) i;"
           "CREATE INDEX ON public.t (org, at, id) WHERE gone IS NULL; CREATE INDEX ON public.t (org, n, id);"
           "CREATE INDEX ON public.t (org, at DESC, id); CREATE INDEX ON public.t (org, n DESC, id);"
           "ANALYZE public.t");
    c = lister_collection(h, "t.table = public.t\nt.type = thing\nt.id = id\nt.columns = id, at\nt.relation = viewer\n"
                             "t.sort = at, n\nt.where = gone\nt.bound = org\nt.claim = org\nt.order = -at\n");
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        for (int page = 1; page <= 1000; page += 999) {
            struct walk w;
            const char *skip = harness_strf(h, "%d", (page - 1) * 50 - 1);

            walk_init(&w, h->pg, c, orders[i], 50);
            w.bound = "7";
            if (page > 1) { /* the boundary as the pages before would have left it */
                w.limit = strtoll(skip, NULL, 10) + 1;
                walk_page(&w);
                w.limit = 50;
            }
            assert_cheap(orders[i], explain(h, &w, false), 50, false);
            assert_cheap(orders[i], explain(h, &w, true), 50, true);
            walk_release(&w);
        }
    }
    lister_collection_free(c);
}

static void test_a_name_has_one_text(void **state)
{
    struct harness *h = *state;
    const struct collection *c;
    const char *names[400] = {0};
    int named = 0;
    struct err err;

    harness_sql(h, "CREATE TABLE public.t (id bigint PRIMARY KEY)");
    c = lister_collection(h, "t.table = public.t\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 400; i++) {
            struct filters none = {0};
            struct statement s;

            assert_int_equal(keyset_build(&s, c, c->order, &none, NULL, NULL, i + 1, &err), ST_OK);
            if (round == 0)
                assert_null(s.name); /* what comes only once is not kept */
            if (names[i])
                assert_ptr_equal(names[i], s.name);
            named += !names[i] && s.name;
            names[i] = s.name;
            statement_free(&s);
        }
    }
    assert_true(named > 100 && named <= KEYSET_NAMES);
    for (int i = 0; i < 400; i++) {
        for (int k = 0; k < i; k++)
            assert_true(!names[i] || !names[k] || strcmp(names[i], names[k]) != 0);
    }
    lister_collection_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_a_name_has_one_text, HARNESS_DB), /* first: names are counted for the process */
        HARNESS_TEST(test_random_orders, HARNESS_DB),
        HARNESS_TEST(test_filters, HARNESS_DB),
        HARNESS_TEST(test_values_that_postgres_takes, HARNESS_DB),
        HARNESS_TEST(test_rows_that_come_and_go, HARNESS_DB),
        HARNESS_TEST(test_L43_deep_pages_cost_what_the_first_does, HARNESS_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
