/* lister_collections_test.c - declarations against a real database: what is refused, with which line, and what is
 * advised. */
#include <fcntl.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/integration/lister_helpers.h"

static const char schema[] =
    "CREATE SCHEMA app;"
    "CREATE TYPE app.state AS ENUM ('new', 'old');"
    "CREATE DOMAIN app.label AS text CHECK (length(value) < 100);"
    "CREATE TABLE app.things (id bigint PRIMARY KEY, name text NOT NULL, state app.state, label app.label, code "
    "char(4),"
    "  note varchar(20), created_at timestamptz NOT NULL, local timestamp, day date, n int, s smallint, f real, d "
    "float8,"
    "  price numeric(10,2), live boolean, key uuid, doc jsonb, span interval, tags text[], deleted_at timestamptz,"
    "  tenant text, \"Odd \"\"name\" int);"
    "CREATE TABLE app.nokey (id bigint NOT NULL, maybe bigint UNIQUE, a int, b int, UNIQUE (id, a));"
    "CREATE UNIQUE INDEX nokey_part ON app.nokey (id) WHERE a IS NOT NULL;"
    "CREATE UNIQUE INDEX nokey_expr ON app.nokey (abs(id));"
    "CREATE TABLE app.bytes (id text NOT NULL);"
    "CREATE UNIQUE INDEX bytes_id ON app.bytes (id COLLATE \"C\");"
    "CREATE VIEW app.seen AS SELECT * FROM app.things;"
    "CREATE MATERIALIZED VIEW app.kept AS SELECT * FROM app.things;"
    "CREATE TABLE app.parts (id bigint NOT NULL, region int NOT NULL, PRIMARY KEY (id, region)) PARTITION BY LIST "
    "(region);"
    "CREATE TABLE app.whole (id bigint PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE app.parent (id bigint PRIMARY KEY);"
    "CREATE TABLE app.child () INHERITS (app.parent);"
    "CREATE SEQUENCE app.counter;"
    "CREATE SCHEMA secret; CREATE TABLE secret.t (id bigint PRIMARY KEY);";

static struct err err;

static enum status declare(struct pg *pg, const char *text)
{
    struct collections cs = {0};
    enum status st = lister_declare(&cs, pg, text, &err);

    collections_free(&cs);
    return st;
}

#define THINGS "t.table = app.things\nt.type = thing\nt.id = id\nt.columns = id, name\nt.relation = viewer\n"

static void assert_refused(struct pg *pg, const char *text, const char *want)
{
    enum status st = declare(pg, text);

    if (st != ST_CONFIG || strncmp(err.text, want, strlen(want)) != 0)
        fail_msg("%s: \"%s\", not \"%s\"", status_name(st), err.text, want);
}

static void test_what_a_collection_learns(void **state)
{
    struct harness *h = *state;
    struct collections cs = {0};
    const struct collection *c;

    harness_sql(h, schema);
    assert_int_equal(
        lister_declare(&cs, h->pg,
                       "t.table = app.things\nt.type = thing\nt.id = id\n"
                       "t.columns = id, name, doc, span, tags, Odd \"name\n"
                       "t.sort = name, state, label, code, note, created_at, local, day, n, s, f, d, price, live, key\n"
                       "t.relation = viewer\n",
                       &err),
        ST_OK);
    c = collection_find(&cs, "t");
    assert_string_equal(c->table, "app.things");
    assert_int_equal(c->nrelations, 2);
    for (size_t i = 0; i < c->ncolumns; i++) {
        static const struct {
            const char *name, *quoted, *type;
            enum column_kind kind;
            bool nullable;
        } want[] = {{"id", "id", "bigint", COL_INT, false},
                    {"name", "name", "text", COL_TEXT, false},
                    {"doc", "doc", "jsonb", COL_JSON, true},
                    {"span", "span", "interval", COL_OTHER, true},
                    {"tags", "tags", "text[]", COL_OTHER, true},
                    {"Odd \"name", "\"Odd \"\"name\"", "integer", COL_INT, true},
                    {"state", "state", "app.state", COL_TEXT, true},
                    {"label", "label", "text", COL_TEXT, true},
                    {"code", "code", "bpchar", COL_TEXT, true},
                    {"note", "note", "character varying", COL_TEXT, true},
                    {"created_at", "created_at", "timestamp with time zone", COL_TIME, false},
                    {"local", "local", "timestamp without time zone", COL_TIME, true},
                    {"day", "day", "date", COL_DATE, true},
                    {"n", "n", "integer", COL_INT, true},
                    {"s", "s", "smallint", COL_INT, true},
                    {"f", "f", "real", COL_FLOAT, true},
                    {"d", "d", "double precision", COL_FLOAT, true},
                    {"price", "price", "numeric", COL_NUMERIC, true},
                    {"live", "live", "boolean", COL_BOOL, true},
                    {"key", "key", "uuid", COL_UUID, true}};

        assert_string_equal(c->columns[i].name, want[i].name);
        assert_string_equal(c->columns[i].quoted, want[i].quoted);
        assert_string_equal(c->columns[i].type, want[i].type);
        assert_int_equal(c->columns[i].kind, want[i].kind);
        assert_int_equal(c->columns[i].nullable, want[i].nullable);
        assert_int_equal(c->columns[i].nlabels, strcmp(want[i].name, "state") == 0 ? 2 : 0);
    }
    collections_free(&cs);
}

static void test_errors_name_the_line(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"t.type = thing\nt.table = app.thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:2: collection.t.table: there is no table or view \"app.thing\""},
        {"t.table = app.counter\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:1: collection.t.table: \"app.counter\" is no table or view"},
        {THINGS "t.sort = name, nam\n", "relata.conf:6: collection.t: app.things has no column \"nam\""},
        {THINGS "t.filter = ctid\n", "relata.conf:6: collection.t: app.things has no column \"ctid\""},
        {THINGS "t.where = gone\n", "relata.conf:6: collection.t: app.things has no column \"gone\""},
        {THINGS "t.bound = org\nt.claim = org\n", "relata.conf:6: collection.t: app.things has no column \"org\""},
        {THINGS "t.sort = name, doc\n",
         "relata.conf:6: collection.t.sort: rows cannot be sorted by \"doc\" of type jsonb"},
        {THINGS "t.sort = span\n",
         "relata.conf:6: collection.t.sort: rows cannot be sorted by \"span\" of type interval"},
        {THINGS "t.filter = tags\n", "relata.conf:6: collection.t.filter: \"tags\" of type text[] cannot be filtered"},
        {THINGS "t.bound = doc\nt.claim = x\n", "relata.conf:6: collection.t.bound: \"doc\" of type jsonb cannot be"},
        {"t.table = app.things\nt.type = thing\nt.id = price\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: \"price\" is of type numeric: an id is text, an integer or a uuid"},
        {"t.table = app.things\nt.type = thing\nt.id = name\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: no unique index on app.things (name) alone"},
        {"t.table = app.nokey\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\nt.unique_id = yes\n",
         "relata.conf:3: collection.t.id: no unique index on app.nokey (id) alone"},
        {"t.table = app.bytes\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: no unique index on app.bytes (id) alone"},
        {"t.table = app.nokey\nt.type = thing\nt.id = maybe\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: \"maybe\" may be null: ALTER TABLE app.nokey ALTER COLUMN maybe SET NOT "
         "NULL"},
        {"t.table = app.seen\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: app.seen is a view: that no two rows have the same id cannot be seen"},
        {"t.table = app.kept\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\nt.unique_id = yes\n",
         "relata.conf:3: collection.t.id: no unique index on app.kept (id) alone"},
        {"t.table = app.parts\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: app.parts is a partitioned table without such an index"},
        {"t.table = app.parent\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:3: collection.t.id: app.parent is a table that others inherit from"},
        {"t.table = app.things\nt.type = thin\nt.id = id\nt.columns = id\nt.relation = viewer\n",
         "relata.conf:2: collection.t.type: the model has no type \"thin\""},
        {"t.table = app.things\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = owner\n",
         "relata.conf:5: collection.t: type \"thing\" of the model has no relation \"owner\""},
        {THINGS "t.relations = viewer, owner\n",
         "relata.conf:6: collection.t: type \"thing\" of the model has no relation \"owner\""},
    };
    struct harness *h = *state;

    harness_sql(h, schema);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(h->pg, cases[i].text, cases[i].want);
}

static void test_what_may_be_stated(void **state)
{
    struct harness *h = *state;
    static const char *const tables[] = {"seen", "parts", "parent"};

    harness_sql(h, schema);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(declare(h->pg, harness_strf(h,
                                                     "t.table = app.%s\nt.type = thing\nt.id = id\nt.columns = id\n"
                                                     "t.relation = viewer\nt.unique_id = yes\n",
                                                     tables[i])),
                         ST_OK);
    assert_int_equal(
        declare(h->pg, "t.table = app.whole\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n"), ST_OK);
    harness_sql(h, "CREATE UNIQUE INDEX ON app.kept (id)");
    assert_int_equal(
        declare(h->pg, "t.table = app.kept\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n"), ST_OK);
}

static void test_rights(void **state)
{
    struct harness *h = *state;
    const char *role = harness_strf(h, "%s_lister", h->id);
    struct pg *pg;

    harness_sql(h, schema);
    harness_sqlf(h, "CREATE ROLE %s LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA app TO %s", role, role);
    pg = harness_connect(h, harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL));
    assert_refused(pg, THINGS, "no right to call relata.encode_id: run `relatactl migrate`, and GRANT relata_lister");
    harness_sqlf(h, "GRANT relata_lister TO %s", role);
    assert_refused(
        pg, THINGS,
        "relata.conf:3: collection.t: no right to read column \"id\": GRANT SELECT ON app.things to the lister");
    harness_sqlf(h, "GRANT SELECT (id, name) ON app.things TO %s", role);
    assert_int_equal(declare(pg, THINGS), ST_OK);
    assert_refused(pg, THINGS "t.where = deleted_at\n",
                   "relata.conf:6: collection.t: no right to read column \"deleted_at\"");
    assert_refused(pg, "t.table = secret.t\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n",
                   "relata.conf:1: collection.t.table: no right to look into the schema of secret.t: GRANT USAGE");
    harness_sqlf(h, "ALTER ROLE %s SET extra_float_digits = 0", role);
    pg_close(pg);
    pg = harness_connect(h, harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL));
    assert_refused(pg, THINGS, "extra_float_digits is lowered");
    pg_close(pg);
    harness_sqlf(h, "DROP OWNED BY %s; DROP ROLE %s", role, role);
}

/* What is logged while a declaration is checked. */
static const char *warnings(struct harness *h, const char *text)
{
    int keep = dup(STDERR_FILENO), fds[2];
    static char out[8192];
    ssize_t n;

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    fflush(stderr);
    dup2(fds[1], STDERR_FILENO);
    if (declare(h->pg, text) != ST_OK)
        snprintf(out, sizeof out, "%s", err.text);
    dup2(keep, STDERR_FILENO);
    n = read(fds[0], out, sizeof out - 1);
    out[n > 0 ? n : 0] = '\0';
    close(keep);
    close(fds[0]);
    close(fds[1]);
    return out;
}

static void test_indexes_that_would_help(void **state)
{
    static const char declared[] = THINGS "t.sort = created_at, name\nt.order = -created_at\nt.where = deleted_at\n"
                                          "t.bound = tenant\nt.claim = tenant\n";
    static const char *const statements[] = {
        "CREATE INDEX CONCURRENTLY ON app.things (tenant, created_at DESC, id DESC) WHERE deleted_at IS NULL",
        "CREATE INDEX CONCURRENTLY ON app.things (tenant, name, id) WHERE deleted_at IS NULL",
        "CREATE INDEX CONCURRENTLY ON app.things (tenant, id) WHERE deleted_at IS NULL"};
    struct harness *h = *state;
    const char *out;

    log_init("test", LOG_LVL_WARN, LOG_FMT_LOGFMT);
    harness_sql(h, schema);
    out = warnings(h, declared);
    for (size_t i = 0; i < 3; i++) {
        if (!strstr(out, statements[i]))
            fail_msg("no \"%s\" in %s", statements[i], out);
    }
    assert_non_null(strstr(out, "collection=t order=-created_at,-id"));
    /* What was advised is what helps. */
    for (size_t i = 0; i < 3; i++)
        harness_sql(h, statements[i]);
    assert_string_equal(warnings(h, declared), "");
    assert_string_equal(warnings(h, THINGS), "");
    out = warnings(h, THINGS "t.sort = name\n");
    assert_non_null(strstr(out, "CREATE INDEX CONCURRENTLY ON app.things (name, id)"));
    assert_string_equal(warnings(h,
                                 "t.table = app.seen\nt.type = thing\nt.id = id\nt.columns = id\nt.relation = viewer\n"
                                 "t.unique_id = yes\nt.sort = name\n"),
                        "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_what_a_collection_learns, HARNESS_DB), HARNESS_TEST(test_errors_name_the_line, HARNESS_DB),
        HARNESS_TEST(test_what_may_be_stated, HARNESS_DB),       HARNESS_TEST(test_rights, HARNESS_DB),
        HARNESS_TEST(test_indexes_that_would_help, HARNESS_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
