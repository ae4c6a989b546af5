/* collections_test.c - declarations of collections, orders, filters and their values, which index serves an order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inventory-lister/collections/internal.h"

static struct collections got;
static struct err err;

/* Lines "key = value" of section [collection], as from relata.conf from line 1 on. */
static enum status parse(const char *text)
{
    static char copy[8192], origins[64][32];
    static struct cfg_map_item items[64];
    struct cfg_map map = {.items = items};
    char *save = NULL;

    collections_free(&got);
    err = (struct err){0};
    snprintf(copy, sizeof copy, "%s", text);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *value = strstr(line, " = ");

        assert_non_null(value);
        *value = '\0';
        snprintf(origins[map.len], sizeof origins[0], "relata.conf:%zu", map.len + 1);
        items[map.len] = (struct cfg_map_item){line, value + 3, origins[map.len]};
        map.len++;
    }
    return collections_parse(&got, &map, &err);
}

#define MINIMAL                                                                                                        \
    "a.table = app.things\n"                                                                                           \
    "a.type = thing\n"                                                                                                 \
    "a.id = id\n"                                                                                                      \
    "a.columns = id, name\n"                                                                                           \
    "a.relation = viewer\n"

#define FULL                                                                                                           \
    MINIMAL "a.sort = created_at, name, size, ratio, price, day, key, live\n"                                          \
            "a.order = -created_at\n"                                                                                  \
            "a.filter = created_at, local, name, size, wide, tiny, ratio, single, price, day, key, live, state, a.b\n" \
            "a.where = deleted_at, hidden_at\n"                                                                        \
            "a.bound = tenant\n"                                                                                       \
            "a.claim = tenant\n"

static int teardown(void **state)
{
    (void)state;
    collections_free(&got);
    return 0;
}

/* What check.c would have found. */
static struct collection *full(void)
{
    static const struct {
        const char *name, *type;
        enum column_kind kind;
        bool nullable;
    } types[] = {{"id", "bigint", COL_INT, false},
                 {"name", "text", COL_TEXT, true},
                 {"created_at", "timestamp with time zone", COL_TIME, false},
                 {"local", "timestamp without time zone", COL_TIME, false},
                 {"size", "integer", COL_INT, true},
                 {"wide", "bigint", COL_INT, true},
                 {"tiny", "smallint", COL_INT, true},
                 {"ratio", "double precision", COL_FLOAT, false},
                 {"single", "real", COL_FLOAT, false},
                 {"price", "numeric", COL_NUMERIC, false},
                 {"day", "date", COL_DATE, false},
                 {"key", "uuid", COL_UUID, false},
                 {"live", "boolean", COL_BOOL, false},
                 {"state", "app.state", COL_TEXT, false},
                 {"a.b", "text", COL_TEXT, false},
                 {"tenant", "text", COL_TEXT, false}};

    assert_int_equal(parse(FULL), ST_OK);
    for (size_t i = 0; i < got.items[0].ncolumns; i++) {
        struct column *col = &got.items[0].columns[i];

        col->quoted = strdup(col->name);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            if (strcmp(types[t].name, col->name) != 0)
                continue;
            col->kind = types[t].kind;
            col->nullable = types[t].nullable;
            col->type = strdup(types[t].type);
        }
        if (strcmp(col->name, "state") == 0) {
            col->labels = calloc(2, sizeof *col->labels);
            col->labels[0] = strdup("new");
            col->labels[1] = strdup("old, gone");
            col->nlabels = 2;
        }
    }
    return &got.items[0];
}

static int column(const char *name)
{
    int i = column_find(&got.items[0], (struct bytes){name, strlen(name)});

    assert_true(i >= 0);
    return i;
}

/* ---- declarations ---- */

static void test_declaration(void **state)
{
    const struct collection *c;

    (void)state;
    assert_int_equal(parse(FULL
                           "b.table = app.others\nb.type = other\nb.id = key\nb.columns = name\nb.relation = owner\n"
                           "b.relations = editor, owner\nb.unique_id = yes\n"),
                     ST_OK);
    assert_int_equal(got.len, 2);
    assert_null(collection_find(&got, "c"));
    c = collection_find(&got, "a");
    assert_string_equal(c->columns[0].name, "id");
    assert_string_equal(c->columns[1].name, "name");
    assert_int_equal(c->id, 0);
    assert_true(c->columns[0].shown && c->columns[0].sortable && !c->columns[0].filterable);
    assert_true(c->columns[1].shown && c->columns[1].sortable && c->columns[1].filterable);
    assert_false(c->columns[column("size")].shown);
    assert_int_equal(c->nbound_null, 2);
    assert_string_equal(c->columns[c->bound_null[1]].name, "hidden_at");
    assert_string_equal(c->columns[c->bound].name, "tenant");
    assert_string_equal(c->claim, "tenant");
    assert_int_equal(c->order->len, 2);
    assert_int_equal(c->order->keys[0].column, column("created_at"));
    assert_true(c->order->keys[0].descending && c->order->keys[1].descending);
    assert_int_equal(c->order->keys[1].column, 0);

    c = collection_find(&got, "b");
    assert_string_equal(c->columns[c->id].name, "key");
    assert_false(c->columns[c->id].shown);
    assert_int_equal(c->bound, -1);
    assert_int_equal(c->nrelations, 2);
    assert_string_equal(c->relations[1], "owner");
    assert_int_equal(c->order->len, 1); /* L19: the default order is the id */
    assert_true(c->declared->unique_id);
}

static void test_declarations_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"table = x.y\n", "relata.conf:1: collection.table: must be NAME.PROPERTY"},
        {"a b.table = x.y\n", "relata.conf:1: collection.a b.table: must be NAME.PROPERTY"},
        {"a.tabel = x.y\n",
         "relata.conf:1: collection.a.tabel: \"tabel\" is no property of a collection: these are table"},
        {"a.type = t\na.table = x.y\n", "relata.conf:2: collection.a.id is required"},
        {"a.table = x.y\na.table = x.z\n", "relata.conf:2: collection.a.table is given twice: also relata.conf:1"},
        {"a.table = things\na.type = t\na.id = id\na.columns = id\na.relation = r\n",
         "relata.conf:1: collection.a.table: must be named with its schema: schema.table, not \"things\""},
        {MINIMAL "a.sort = name, size, name\n", "relata.conf:6: collection.a.sort: named twice: \"name\""},
        {MINIMAL "a.filter = name,,size\n", "relata.conf:6: collection.a.filter: a name is empty"},
        {MINIMAL "a.where = \n", NULL},
        {MINIMAL "a.where = a,\n", "relata.conf:6: collection.a.where: a name is empty"},
        {MINIMAL "a.order = -name\n", "relata.conf:6: collection.a.order: \"name\" cannot be sorted: these can: id"},
        {MINIMAL "a.bound = tenant\n",
         "relata.conf:6: collection.a: bound (a column) and claim (its value) go together"},
        {MINIMAL "a.claim = tenant\n",
         "relata.conf:6: collection.a: bound (a column) and claim (its value) go together"},
        {MINIMAL "a.bound = x, y\na.claim = t\n", "relata.conf:6: collection.a.bound: must be one column"},
        {MINIMAL "a.relations = editor, owner\n",
         "relata.conf:6: collection.a.relations: does not hold the default relation \"viewer\""},
        {MINIMAL "a.relations = viewer, viewer\n", "relata.conf:6: collection.a.relations: named twice: \"viewer\""},
        {MINIMAL "a.unique_id = true\n", "relata.conf:6: collection.a.unique_id: must be yes or no"},
        {"a.table = x.y\na.type = t\na.id = id\na.columns = relations\na.relation = r\n",
         "relata.conf:4: collection.a.columns: rows have a member of their own called \"relations\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status st = parse(cases[i].text);

        if (!cases[i].want) {
            assert_int_equal(st, ST_OK);
            continue;
        }
        assert_int_equal(st, ST_CONFIG);
        if (strncmp(err.text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("\"%s\" is not \"%s\"", err.text, cases[i].want);
    }
}

/* ---- orders ---- */

static void assert_order(const char *text, const char *want)
{
    struct collection *c = &got.items[0];
    char shown[1100] = "";
    struct order o;

    if (order_parse(c, text, &o, &err) != ST_OK) {
        snprintf(shown, sizeof shown, "%s", err.text);
    } else {
        for (size_t i = 0; i < o.len; i++) {
            size_t at = strlen(shown);

            snprintf(shown + at, sizeof shown - at, "%s%s%s", i ? "," : "", o.keys[i].descending ? "-" : "",
                     c->columns[o.keys[i].column].name);
        }
    }
    assert_string_equal(shown, want);
}

static void test_orders(void **state)
{
    (void)state;
    full();
    assert_order("", "-created_at,-id");
    assert_order("  ", "-created_at,-id");
    assert_order("name", "name,id");
    assert_order("-name", "-name,-id");
    assert_order(" name desc , size ASC ", "-name,size,id");
    assert_order("-size,name,-price,key", "-size,name,-price,key,id");
    assert_order("-id", "-id");
    assert_order("name,-id,size", "name,-id");
    assert_order("live,day,key,name,id", "live,day,key,name,id");
    assert_order("live,day,key,name,size", "at most 4 columns can be sorted by");
    assert_order("name,-name", "\"name\" is named twice in the order");
    assert_order("name down", "\"name down\" is no order: write \"-column\", \"column\" or \"column desc\"");
    assert_order("-name desc", "\"-name desc\" is no order: write \"-column\", \"column\" or \"column desc\"");
    assert_order("name,", "\"\" cannot be sorted: these can: id, name, created_at, size, ratio, price, day, key, live");
    assert_order("state",
                 "\"state\" cannot be sorted: these can: id, name, created_at, size, ratio, price, day, key, live");
    assert_order("id,state",
                 "\"state\" cannot be sorted: these can: id, name, created_at, size, ratio, price, day, key, "
                 "live");
    assert_order("name;DROP TABLE x",
                 "\"name;DROP TABLE x\" is no order: write \"-column\", \"column\" or \"column desc\"");
}

/* ---- filters ---- */

static enum status add(struct filters *f, const char *name, const char *value)
{
    err = (struct err){0};
    return filter_add(&got.items[0], f, name, value, &err);
}

static void assert_value(const char *name, const char *value, bool fine)
{
    struct filters f = {0};
    char param[64];
    enum status st;

    snprintf(param, sizeof param, "filter.%s", name);
    st = add(&f, param, value);
    if (st != (fine ? ST_OK : ST_INVALID))
        fail_msg("%s = \"%s\": %s %s", name, value, status_name(st), err.text);
    assert_int_equal(f.len, fine ? 1 : 0);
    filters_free(&f);
}

static void assert_values(const char *name, bool fine, const char *const *values)
{
    for (; *values; values++)
        assert_value(name, *values, fine);
}
#define GOOD(name, ...) assert_values(name, true, (const char *const[]){__VA_ARGS__, NULL})
#define BAD(name, ...) assert_values(name, false, (const char *const[]){__VA_ARGS__, NULL})

static void test_values_of_numbers(void **state)
{
    (void)state;
    full();
    GOOD("size", "0", "-0", "7", "007", "2147483647", "-2147483648");
    BAD("size", "", "-", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "2147483648", "-2147483649", "9999999999999", "1_000",
        "\xD9\xA3", "99999999999999999999999999", "1;DROP", "NaN");
    GOOD("tiny", "32767", "-32768");
    BAD("tiny", "32768", "-32769");
    GOOD("wide", "9223372036854775807", "-9223372036854775808");
    BAD("wide", "9223372036854775808", "-9223372036854775809");
    GOOD("ratio", "0", "1.5", "-1.5e10", "1E-300", "1e308", "0e999", "0.0");
    BAD("ratio", "", ".5", "5.", "1e", "1e309", "-1e309", "1e-400", "NaN", "Infinity", "inf", "0x1p3", "1e99999",
        "1,5");
    GOOD("single", "3.4e38", "1e-37");
    BAD("single", "3.5e38", "1e-60");
    GOOD("price", "12.340", "-0.01", "1e1000", "1e-1000");
    BAD("price", "1e1001", "NaN", "1 000", "--1");
    GOOD("live", "true", "false");
    BAD("live", "t", "yes", "1", "TRUE", "");
    GOOD("key", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6BA7B810-9DAD-11D1-80B4-00C04FD430C8");
    BAD("key", "", "6ba7b8109dad11d180b400c04fd430c8", "{6ba7b810-9dad-11d1-80b4-00c04fd430c8}",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c", "6ba7b810-9dad-11d1-80b4-00c04fd430c8x", "x'::uuid OR true--");
}

static void test_values_of_times(void **state)
{
    (void)state;
    full();
    GOOD("day", "2026-01-31", "2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31");
    BAD("day", "", "2026-02-29", "1900-02-29", "2026-13-01", "2026-00-01", "2026-01-32", "2026-04-31", "0000-01-01",
        "26-01-01", "2026-1-1", "infinity", "today", "2026-01-31T00:00:00Z", "10000-01-01");
    GOOD("created_at", "2026-01-31T23:59:59Z", "2026-01-31t00:00:00.123456z", "2026-01-31T00:00:00.1+02:00",
         "2026-01-31T00:00:00-15:59");
    BAD("created_at", "2026-01-31", "2026-01-31T00:00:00", "2026-01-31 00:00:00Z", "2026-01-31T24:00:00Z",
        "2026-01-31T23:59:60Z", "2026-01-31T00:60:00Z", "2026-01-31T00:00:00.1234567Z", "2026-01-31T00:00:00.Z",
        "2026-01-31T00:00:00+16:00", "2026-01-31T00:00:00+0200", "2026-01-31T00:00:00 02:00", "2026-02-30T00:00:00Z",
        "now", "epoch", "2026-01-31T00:00:00ZZ", "2026-01-31T00:00:00 Europe/Berlin");
    GOOD("local", "2026-01-31T23:59:59", "2026-01-31T23:59:59Z", "2026-01-31T23:59:59.5");
    BAD("local", "2026-01-31T23:59:59+00:00", "2026-01-31T23:59:59+02:00");
}

static void test_values_of_text(void **state)
{
    char longest[FILTER_VALUE_MAX + 2];

    (void)state;
    full();
    memset(longest, 'x', sizeof longest);
    longest[FILTER_VALUE_MAX] = '\0';
    GOOD("name", "", "x", "a_z", "'; DROP TABLE t; --", "\xF4\x8F\xBF\xBF", "\x01", longest);
    longest[FILTER_VALUE_MAX] = 'x';
    longest[FILTER_VALUE_MAX + 1] = '\0';
    BAD("name", longest, "\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82");
    GOOD("state", "new", "old, gone");
    BAD("state", "", "New", "other");
    BAD("state.prefix", "ne");
    BAD("size.prefix", "1");
    BAD("live.lt", "true");
    GOOD("name.prefix", "", "x");
    GOOD("size.null", "true", "false");
    BAD("size.null", "1", "");
    GOOD("name.null", "true");
    GOOD("a.b", "x");
    GOOD("a.b.prefix", "x");
    BAD("name.like", "x");
    BAD("name.", "x");
    BAD("", "x");
    BAD(".eq", "x");
    BAD("tenant", "x");
    BAD("deleted_at.null", "true");
}

static void test_filters_that_need_not_exist(void **state)
{
    struct filters f = {0};

    (void)state;
    full();
    assert_int_equal(add(&f, "filter.tenant", "x"), ST_INVALID);
    /* L28's kin: a column that exists and one that does not look the same. */
    assert_non_null(strstr(err.text, "\"tenant\" cannot be filtered: these can: name, created_at"));
    assert_int_equal(add(&f, "filter.nothing", "x"), ST_INVALID);
    assert_non_null(strstr(err.text, "\"nothing\" cannot be filtered: these can: name, created_at"));
    assert_int_equal(add(&f, "order", "x"), ST_INVALID);
    assert_int_equal(f.len, 0);
}

static void test_in_lists(void **state)
{
    struct filters f = {0};
    char many[8 * (IN_LIST_MAX + 1)];
    size_t at = 0;

    (void)state;
    full();
    assert_int_equal(add(&f, "filter.name.in", "b,a\\,c,\\\\,,b,\\x"), ST_OK);
    assert_int_equal(add(&f, "filter.name.in", "d"), ST_OK);
    assert_int_equal(f.len, 1);
    assert_int_equal(f.items[0].nvalues, 6);
    filters_sort(&f);
    assert_string_equal(f.items[0].values[0], "");
    assert_string_equal(f.items[0].values[1], "\\");
    assert_string_equal(f.items[0].values[2], "\\x");
    assert_string_equal(f.items[0].values[3], "a,c");
    assert_string_equal(f.items[0].values[4], "b");
    assert_string_equal(f.items[0].values[5], "d");
    for (int i = 0; i <= IN_LIST_MAX; i++)
        at += (size_t)snprintf(many + at, sizeof many - at, "%s%d", i ? "," : "", i);
    assert_int_equal(add(&f, "filter.size.in", many), ST_INVALID);
    assert_string_equal(err.text, "size.in takes at most 100 values");
    filters_free(&f);
    assert_int_equal(add(&f, "filter.size.in", ""), ST_INVALID);
    assert_int_equal(add(&f, "filter.size.in", "1,x"), ST_INVALID);
    filters_free(&f);
    assert_int_equal(add(&f, "filter.state.in", "new,old\\, gone"), ST_OK);
    filters_free(&f);
}

static void test_filters_are_few_and_have_one_form(void **state)
{
    static const char *const ops[] = {"eq", "lt", "lte", "gt", "gte", "in", "null"};
    static const char *const columns[] = {"size", "wide", "tiny"};
    struct filters f = {0}, g = {0};
    int n = 0;

    (void)state;
    full();
    assert_int_equal(add(&f, "filter.size.gt", "1"), ST_OK);
    assert_int_equal(add(&f, "filter.size.gt", "1"), ST_INVALID);
    assert_string_equal(err.text, "size.gt is given twice");
    assert_int_equal(add(&f, "filter.name", "x"), ST_OK);
    assert_int_equal(add(&f, "filter.size", "1"), ST_OK);
    assert_int_equal(add(&g, "filter.size.eq", "1"), ST_OK);
    assert_int_equal(add(&g, "filter.name.eq", "x"), ST_OK);
    assert_int_equal(add(&g, "filter.size.gt", "1"), ST_OK);
    filters_sort(&f);
    filters_sort(&g);
    assert_int_equal(f.len, g.len);
    for (size_t i = 0; i < f.len; i++) {
        assert_int_equal(f.items[i].column, g.items[i].column);
        assert_int_equal(f.items[i].op, g.items[i].op);
        assert_string_equal(f.items[i].values[0], g.items[i].values[0]);
    }
    filters_free(&f);
    filters_free(&g);
    for (size_t i = 0; i < 3; i++) {
        for (size_t o = 0; o < 7; o++, n++) {
            char name[64];

            snprintf(name, sizeof name, "filter.%s.%s", columns[i], ops[o]);
            assert_int_equal(add(&f, name, o == 6 ? "true" : "1"), n < FILTER_MAX ? ST_OK : ST_INVALID);
        }
    }
    assert_string_equal(err.text, "at most 16 conditions can be given");
    filters_free(&f);
}

/* ---- indexes ---- */

static struct index_shape shape(const char *columns)
{
    static char copy[200];
    struct index_shape ix = {.predicate = (char *)(uintptr_t) ""};
    char *save = NULL;

    snprintf(copy, sizeof copy, "%s", columns);
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        bool down = *item == '-', odd = item[strlen(item) - 1] == '!';

        if (odd)
            item[strlen(item) - 1] = '\0';
        ix.columns[ix.ncolumns++] = (struct index_column){item + down, down, down != odd, true};
    }
    return ix;
}

static bool serves(const char *columns, const char *order)
{
    struct index_shape ix = shape(columns);
    struct order o;

    assert_int_equal(order_parse(&got.items[0], order, &o, &err), ST_OK);
    return index_serves(&got.items[0], &o, &ix);
}

static void test_which_index_serves(void **state)
{
    struct collection *c = full();
    struct index_shape ix;

    (void)state;
    assert_true(serves("tenant,created_at,id", "created_at"));
    assert_true(serves("tenant,created_at,id", "-created_at"));
    assert_true(serves("-tenant,-created_at,-id,name", "created_at"));
    assert_false(serves("tenant,created_at,-id", "created_at"));
    assert_false(serves("created_at,id", "created_at"));
    assert_false(serves("tenant,created_at", "created_at"));
    assert_false(serves("tenant,id,created_at", "created_at"));
    assert_true(serves("tenant,created_at,-id", "-created_at,id"));
    assert_true(serves("tenant,created_at!,id", "created_at")); /* not null: where NULLs would stand is all the same */
    assert_true(serves("tenant,size,id", "-size"));
    assert_false(serves("tenant,size!,id", "size"));
    c->bound = -1;
    assert_true(serves("created_at,id", "created_at"));
    assert_true(serves("id", "-id"));
    ix = shape("created_at,id");
    ix.columns[0].own = false;
    assert_false(index_serves(c, c->order, &ix));
    ix = shape("created_at,id");
    ix.predicate = (char *)(uintptr_t) "(deleted_at IS NULL)";
    assert_false(index_serves(c, c->order, &ix));
    ix.predicate = (char *)(uintptr_t) "((deleted_at IS NULL) AND (hidden_at IS NULL))";
    assert_true(index_serves(c, c->order, &ix));
}

static void test_the_index_that_would(void **state)
{
    struct collection *c = full();
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    index_statement(c, c->order, false, &b);
    assert_string_equal(buf_str(&b), "CREATE INDEX CONCURRENTLY ON app.things (tenant, created_at DESC, id DESC) "
                                     "WHERE deleted_at IS NULL AND hidden_at IS NULL");
    buf_clear(&b);
    c->bound = -1;
    c->nbound_null = 0;
    index_statement(c, c->order, true, &b);
    assert_string_equal(buf_str(&b), "CREATE INDEX ON app.things (created_at DESC, id DESC)");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declaration),
        cmocka_unit_test(test_declarations_refused),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_values_of_numbers),
        cmocka_unit_test(test_values_of_times),
        cmocka_unit_test(test_values_of_text),
        cmocka_unit_test(test_filters_that_need_not_exist),
        cmocka_unit_test(test_in_lists),
        cmocka_unit_test(test_filters_are_few_and_have_one_form),
        cmocka_unit_test(test_which_index_serves),
        cmocka_unit_test(test_the_index_that_would),
    };

    return cmocka_run_group_tests(tests, NULL, teardown);
}
