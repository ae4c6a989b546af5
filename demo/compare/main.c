/*
 * demo-compare - the tuples that the inventory stands for, those in the ledger, and those in the store: as sets, tuple
 * by tuple. The store is read back through its own Read, page by page.
 *
 * Meant for a database at rest: what is still pending shows as a difference.
 */
#include <inttypes.h>
#include <jansson.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/pg/pg.h"
#include "common/store/store.h"
#include "common/tuple/tuple.h"
#include "demo/compare/set.h"

#define CONNECT_MS 30000
#define QUERY_MS 60000
#define SHOWN_MAX 10

enum side { EXPECTED, LEDGER, STORE, SIDES };

struct settings {
    char *dsn, *store_id, *expected, *json;
    struct cfg_store store;
};

#define KEY(section, key, type, member, preset, help)                                                                  \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, 0, 0, NULL, NULL, help                          \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, "a login that may read the expected tuples and relata.tuple"),
    CFG_STORE_KEYS(struct settings, store),
    KEY("compare", "store_id", CFG_STRING, store_id, NULL, "the store's id"),
    KEY("compare", "expected", CFG_STRING, expected, "inventory.expected_tuples",
        "view of the expected (object, relation, subject)"),
    KEY("compare", "json", CFG_STRING, json, "", "file for the results"),
    {0},
};
static const struct cfg_program program = {
    .name = "demo-compare",
    .summary = "compares the expected tuples, the ledger and the store, tuple by tuple",
    .keys = keys,
    .details = "Exit: 0 all equal, 1 a difference or a failure, 2 bad usage.",
};

/* ---- reading ---- */

/* A COPY line (object, relation, subject, condition) as "object#relation@subject[ with condition]". */
static enum status add_line(void *arg, char *line, size_t len, struct err *err)
{
    char text[2048], *fields[4];
    if (pg_copy_split(line, len, fields, 4) != 4)
        return err_set(err, ST_FATAL, "", "a row without four columns");
    int n = snprintf(text, sizeof text, "%s#%s@%s%s%s", fields[0], fields[1], fields[2], fields[3] ? " with " : "",
                     fields[3] ? fields[3] : "");
    if (n < 0 || (size_t)n >= sizeof text)
        return err_set(err, ST_TOO_BIG, "", "a tuple of %d bytes", n);
    return set_add(arg, text, (size_t)n, err);
}

/* Expected and ledger in one snapshot. */
static enum status read_database(const struct settings *cfg, struct set *sets, struct err *err)
{
    struct pg *pg = NULL;
    struct buf sql;
    struct pg_config conf = {.dsn = cfg->dsn, .application_name = "demo-compare"};
    buf_init(&sql, 4096);
    enum status st = pg_open(&pg, &conf, deadline_in_ms(CONNECT_MS), err);
    if (st == ST_OK)
        st = pg_exec(pg, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", deadline_in_ms(QUERY_MS), err);
    buf_addf(&sql, "COPY (SELECT object, relation, subject, NULL FROM %s) TO STDOUT", cfg->expected);
    if (st == ST_OK)
        st = pg_copy_out(pg, buf_str(&sql), QUERY_MS, add_line, &sets[EXPECTED], err);
    buf_clear(&sql);
    buf_adds(&sql,
             "COPY (SELECT object, relation, subject, condition_name FROM relata.tuple WHERE present AND store = '");
    for (const char *p = cfg->store.name; *p; p++) {
        buf_addc(&sql, *p);
        if (*p == '\'')
            buf_addc(&sql, '\'');
    }
    buf_adds(&sql, "') TO STDOUT");
    if (st == ST_OK)
        st = pg_copy_out(pg, buf_str(&sql), QUERY_MS, add_line, &sets[LEDGER], err);
    pg_close(pg);
    buf_release(&sql);
    return st;
}

static enum status add_page(struct set *set, const struct store_tuples *page, struct err *err)
{
    struct buf line;
    enum status st = ST_OK;
    buf_init(&line, 4096);
    for (size_t i = 0; st == ST_OK && i < page->len; i++) {
        const char *condition = page->items[i].condition_name;
        buf_clear(&line);
        tuple_key_format(&page->items[i].key, &line);
        if (condition && condition[0])
            buf_addf(&line, " with %s", condition);
        st = buf_ok(&line) ? set_add(set, buf_str(&line), line.len, err) : err_set(err, ST_NOMEM, "", "no memory");
    }
    buf_release(&line);
    return st;
}

static enum status read_store(const struct settings *cfg, struct set *set, struct err *err)
{
    struct store *store = NULL;
    struct store_conn *conn = NULL;
    char *token = strdup("");
    enum status st = store_new(&store, &cfg->store, err);
    if (st == ST_OK)
        st = store_conn_new(&conn, store, cfg->store_id, err);
    while (st == ST_OK && token) {
        struct store_tuples page = {0};
        char *next = NULL;
        st = store_read_page(conn, token, &page, &next, deadline_in_ms(cfg->store.request_timeout_ms), err);
        if (st == ST_OK)
            st = add_page(set, &page, err);
        store_tuples_free(&page);
        free(token);
        token = next;
        if (token && !token[0])
            break;
    }
    free(token);
    store_conn_free(conn);
    store_free(store);
    return st;
}

/* ---- comparing ---- */

static void show_difference(void *arg, const char *line, unsigned has)
{
    static const char *const names[SIDES] = {"inventory", "ledger", "store"};
    size_t *shown = arg;
    if ((*shown)++ >= SHOWN_MAX)
        return;
    printf("  differs: %s:", line);
    for (unsigned i = 0; i < SIDES; i++)
        printf(" %s %s%s", names[i], has & 1u << i ? "yes" : "NO", i + 1 < SIDES ? "," : "\n");
}

static enum status write_results(const struct settings *cfg, const struct set *sets, size_t differences,
                                 struct err *err)
{
    json_t *json = json_pack("{s:I, s:I, s:I, s:I}", "expected", (json_int_t)sets[EXPECTED].len, "ledger",
                             (json_int_t)sets[LEDGER].len, "store", (json_int_t)sets[STORE].len, "differences",
                             (json_int_t)differences);
    enum status st = ST_OK;
    if (!json || json_dump_file(json, cfg->json, JSON_INDENT(2)) != 0)
        st = err_set(err, ST_CONFIG, "", "cannot write %s: does its folder exist?", cfg->json);
    json_decref(json);
    return st;
}

static enum status compare(const struct settings *cfg, struct err *err)
{
    struct set sets[SIDES] = {0};
    size_t shown = 0, differences = 0;
    enum status st = read_database(cfg, sets, err);
    if (st == ST_OK)
        st = read_store(cfg, &sets[STORE], err);
    if (st == ST_OK) {
        for (int i = 0; i < SIDES; i++)
            set_sort(&sets[i]);
        differences = sets_compare(sets, SIDES, show_difference, &shown);
        if (cfg->json[0])
            st = write_results(cfg, sets, differences, err);
        else
            printf("  inventory %zu, ledger %zu, store %zu, differences %zu\n", sets[EXPECTED].len, sets[LEDGER].len,
                   sets[STORE].len, differences);
    }
    if (st == ST_OK && differences > 0)
        st = err_set(err, ST_FATAL, "", "%zu tuples differ", differences);
    for (int i = 0; i < SIDES; i++)
        set_release(&sets[i]);
    return st;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &settings, &action, &err) != ST_OK) {
        fprintf(stderr, "demo-compare: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    if (action == CFG_RUN) {
        log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
        if (compare(&settings, &err) != ST_OK) {
            fprintf(stderr, "demo-compare: %s\n", err.text);
            code = EXIT_FAILED;
        }
    }
    config_release(&program, &settings);
    return code;
}
