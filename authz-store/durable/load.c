/* load.c - COPY out of Postgres, split into rows. */
#include "authz-store/durable/load.h"

#include <stdio.h>

#include "authz-store/durable/leader.h"

#define US(column) "(extract(epoch FROM " column ") * 1000000)::bigint"

struct reading {
    const struct load_rows *rows;
    bool changes;
};

static enum status bad_row(const char *table, int fields, struct err *err)
{
    return err_set(err, ST_FATAL, NULL, "relata_store.%s: a row of %d columns", table, fields);
}

static enum status store_row(void *arg, char *line, size_t len, struct err *err)
{
    const struct load_rows *rows = ((struct reading *)arg)->rows;
    char *f[6];
    int n = pg_copy_split(line, len, f, 6);

    if (n != 6)
        return bad_row("store", n, err);
    return rows->store(rows->arg, f[0], f[1], strtoll(f[2], NULL, 10), strtoll(f[3], NULL, 10), *f[4] == 't',
                       *f[5] == 't', err);
}

static enum status model_row(void *arg, char *line, size_t len, struct err *err)
{
    const struct load_rows *rows = ((struct reading *)arg)->rows;
    char *f[3];
    int n = pg_copy_split(line, len, f, 3);

    return n == 3 ? rows->model(rows->arg, f[0], f[1], f[2], err) : bad_row("model", n, err);
}

static enum status assertion_row(void *arg, char *line, size_t len, struct err *err)
{
    const struct load_rows *rows = ((struct reading *)arg)->rows;
    char *f[3];
    int n = pg_copy_split(line, len, f, 3);

    return n == 3 ? rows->assertions(rows->arg, f[0], f[1], f[2], err) : bad_row("assertion", n, err);
}

static enum status tuple_row(void *arg, char *line, size_t len, struct err *err)
{
    const struct reading *reading = arg;
    int want = reading->changes ? 8 : 6;
    char *f[8];
    int n = pg_copy_split(line, len, f, 8);

    if (n != want)
        return bad_row(reading->changes ? "change" : "tuple", n, err);
    struct load_tuple t = {
        .store = f[0], .object = f[1], .relation = f[2], .subject = f[3], .condition = f[4], .context = f[5]};
    if (reading->changes) {
        t.change = strtoll(f[6], NULL, 10);
        t.removed = *f[7] == 't';
    }
    return reading->rows->tuple(reading->rows->arg, &t, err);
}

static enum status ask_last_id(struct pg *pg, int64_t *last_id, int64_t idle_ms, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, "last_id", "SELECT " LEADER_LAST_ID, NULL, 0, deadline_in_ms(idle_ms), &r, err);

    if (st == ST_OK && pg_is_null(r, 0, 0))
        st = err_set(err, ST_MISSING, NULL, "relata_store.leader is empty: it must hold one row");
    if (st == ST_OK)
        *last_id = pg_int(r, 0, 0);
    pg_result_free(r);
    return st;
}

static enum status copy(struct pg *pg, const char *sql, enum status (*row)(void *, char *, size_t, struct err *),
                        struct reading *reading, int64_t idle_ms, struct err *err)
{
    char whole[512];

    (void)snprintf(whole, sizeof whole, "COPY (%s) TO STDOUT", sql);
    return pg_copy_out(pg, whole, idle_ms, row, reading, err);
}

/* Above `since`, up to what the snapshot shows; -1 = all there is. */
static enum status read_tables(struct pg *pg, int64_t since, struct reading *reading, int64_t idle_ms, struct err *err)
{
    char sql[400];
    long long above = (long long)since;

    (void)snprintf(sql, sizeof sql,
                   "SELECT id, name, " US("created_at") ", " US(
                       "updated_at") ", deleted_at IS NOT NULL, swept "
                                     "FROM relata_store.store WHERE change > %lld ORDER BY change",
                   above);
    enum status st = copy(pg, sql, store_row, reading, idle_ms, err);
    (void)snprintf(sql, sizeof sql,
                   "SELECT store, id, json FROM relata_store.model WHERE change > %lld ORDER BY change", above);
    if (st == ST_OK)
        st = copy(pg, sql, model_row, reading, idle_ms, err);
    (void)snprintf(sql, sizeof sql,
                   "SELECT store, model, json FROM relata_store.assertion WHERE change > %lld ORDER BY change", above);
    if (st == ST_OK)
        st = copy(pg, sql, assertion_row, reading, idle_ms, err);
    if (reading->changes)
        (void)snprintf(sql, sizeof sql,
                       "SELECT store, object, relation, subject, condition, context, id, removed "
                       "FROM relata_store.change WHERE id > %lld ORDER BY id",
                       above);
    else
        (void)snprintf(sql, sizeof sql,
                       "SELECT store, object, relation, subject, condition, context FROM relata_store.tuple");
    return st == ST_OK ? copy(pg, sql, tuple_row, reading, idle_ms, err) : st;
}

static enum status read_snapshot(struct pg *pg, int64_t since, struct reading *reading, int64_t *last_id,
                                 int64_t idle_ms, struct err *err)
{
    struct err ignored;
    enum status st = pg_exec(pg,
                             "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout TO 0; SET "
                             "LOCAL enable_seqscan TO on",
                             deadline_in_ms(idle_ms), err);

    if (st == ST_OK)
        st = ask_last_id(pg, last_id, idle_ms, err);
    if (st == ST_OK)
        st = read_tables(pg, since, reading, idle_ms, err);
    if (pg_alive(pg) && pg_exec(pg, "ROLLBACK", deadline_in_ms(idle_ms), &ignored) != ST_OK)
        (void)ignored; /* the connection is gone, and the transaction with it */
    return st;
}

enum status load_all(struct pg *pg, const struct load_rows *rows, int64_t *last_id, int64_t idle_ms, struct err *err)
{
    return read_snapshot(pg, -1, &(struct reading){.rows = rows}, last_id, idle_ms, err);
}

enum status load_since(struct pg *pg, int64_t since, const struct load_rows *rows, int64_t *last_id, int64_t idle_ms,
                       struct err *err)
{
    enum status st = ask_last_id(pg, last_id, idle_ms, err);

    if (st != ST_OK || *last_id == since)
        return st;
    return read_snapshot(pg, since, &(struct reading){.rows = rows, .changes = true}, last_id, idle_ms, err);
}

enum status load_estimate(struct pg *pg, int64_t *tuples, mono_us deadline, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, NULL,
                              "SELECT greatest(reltuples, 0)::bigint FROM pg_class "
                              "WHERE oid = to_regclass('relata_store.tuple')",
                              NULL, 0, deadline, &r, err);

    *tuples = st == ST_OK && pg_rows(r) ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}
