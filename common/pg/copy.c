/* copy.c - COPY in both directions, with flat memory. */
#include <poll.h>

#include "common/pg/internal.h"

static enum status copy_begin(struct pg *pg, const char *sql, ExecStatusType kind, mono_us deadline, struct err *err)
{
    enum status st = pg_run_ready(pg, deadline, err);
    if (st != ST_OK)
        return st;
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = kind};
    pg->copy_stake = pg_run_of(pg, sql, kind).stake;
    PGresult *res = NULL;
    if (!PQsendQuery(pg->conn, sql))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    st = pg_run_finish(pg, &run, deadline, &res, err);
    if (st == ST_OK && (!res || PQresultStatus(res) != kind))
        st = err_set(err, ST_FATAL, "", "statement is no COPY in the direction that its caller expects");
    PQclear(res);
    return st;
}

/* One line into the caller's hands; its newline taken off. */
static enum status give_row(char *data, int n, enum status (*row)(void *, char *, size_t, struct err *), void *arg,
                            struct err *err)
{
    size_t len = (size_t)n;
    if (len && data[len - 1] == '\n')
        data[--len] = '\0';
    return row(arg, data, len, err);
}

enum status pg_copy_out(struct pg *pg, const char *sql, int64_t idle_ms,
                        enum status (*row)(void *arg, char *line, size_t len, struct err *err), void *arg,
                        struct err *err)
{
    enum status st = copy_begin(pg, sql, PGRES_COPY_OUT, deadline_in_ms(idle_ms), err);
    while (st == ST_OK) {
        char *data = NULL;
        int n = PQgetCopyData(pg->conn, &data, 1);
        if (n > 0) {
            st = give_row(data, n, row, arg, err);
            PQfreemem(data);
            if (st != ST_OK)
                pg_run_abandon(pg);
        } else if (n < 0) { /* the end, or an error: the results tell */
            struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_EMPTY_QUERY};
            return pg_run_finish(pg, &run, deadline_in_ms(idle_ms), NULL, err);
        } else {
            st = pg_wait_readable(pg, deadline_in_ms(idle_ms));
            if (st == ST_DEADLINE) {
                bool unwanted = pg_unwanted(pg);

                pg_run_abandon(pg);
                if (unwanted)
                    return err_set(err, st, "", "copy from Postgres was interrupted");
                return err_set(err, st, "", "copy from Postgres stood still for %lld ms", (long long)idle_ms);
            }
            if (st != ST_OK || !PQconsumeInput(pg->conn))
                return pg_error_lost(pg, PG_STAKE_NONE, err);
        }
    }
    return st;
}

enum status pg_copy_in_begin(struct pg *pg, const char *sql, mono_us deadline, struct err *err)
{
    return copy_begin(pg, sql, PGRES_COPY_IN, deadline, err);
}

/* The stream was never ended, so that the server keeps none of it: the connection can go at once. */
static enum status copy_in_late(struct pg *pg, struct err *err)
{
    pg_cancel_async(pg);
    pg_drop(pg);
    return err_set(err, ST_DEADLINE, "", "Postgres did not take the copy's data by the deadline; connection closed");
}

enum status pg_copy_in_put(struct pg *pg, const char *data, size_t len, mono_us deadline, struct err *err)
{
    if (!pg->conn)
        return err_set(err, ST_RETRY, "", "connection to Postgres is closed");
    while (len) {
        int part = len > 65536 ? 65536 : (int)len;
        enum status st = ST_OK;
        int sent = PQputCopyData(pg->conn, data, part);
        if (sent < 0 && PQstatus(pg->conn) == CONNECTION_OK)
            return err_set(err, ST_FATAL, "", "copy data put while no copy is running");
        if (sent > 0) {
            data += part;
            len -= (size_t)part;
        }
        if (sent >= 0)
            st = pg_flush(pg, deadline);
        if (st == ST_DEADLINE)
            return copy_in_late(pg, err);
        if (sent < 0 || st != ST_OK)
            return pg_error_lost(pg, PG_STAKE_NONE, err);
    }
    return ST_OK;
}

enum status pg_copy_in_end(struct pg *pg, mono_us deadline, struct err *err)
{
    if (!pg->conn)
        return err_set(err, ST_RETRY, "", "connection to Postgres is closed");
    struct pg_run run = {.stake = pg->copy_stake, .until = PGRES_EMPTY_QUERY};
    enum status st = pg_flush(pg, deadline);
    if (st == ST_DEADLINE)
        return copy_in_late(pg, err);
    if (st != ST_OK || PQputCopyEnd(pg->conn, NULL) < 0)
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    return pg_run_finish(pg, &run, deadline, NULL, err);
}

void pg_copy_in_abort(struct pg *pg, const char *reason)
{
    if (!pg->conn)
        return;
    mono_us deadline = deadline_in_ms(1000);
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_EMPTY_QUERY};
    struct err ignored; /* the server answers with our own reason */
    if (pg_flush(pg, deadline) != ST_OK || PQputCopyEnd(pg->conn, reason ? reason : "aborted") < 0 ||
        pg_run_finish(pg, &run, deadline, NULL, &ignored) == ST_OK)
        pg_drop(pg);
}
