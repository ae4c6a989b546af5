/* stream.c - a walsender's CopyBoth stream. */
#include "common/pg/internal.h"

enum status pg_stream_start(struct pg *pg, const char *command, mono_us deadline, struct err *err)
{
    enum status st = pg_run_ready(pg, deadline, err);
    if (st != ST_OK)
        return st;
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_COPY_BOTH};
    PGresult *res = NULL;
    if (!PQsendQuery(pg->conn, command))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    st = pg_run_finish(pg, &run, deadline, &res, err);
    if (st == ST_OK && (!res || PQresultStatus(res) != PGRES_COPY_BOTH))
        st = err_set(err, ST_FATAL, "", "command starts no replication stream");
    PQclear(res);
    return st;
}

/* The server ended the stream: its reason is in the results. */
static enum status stream_ended(struct pg *pg, struct err *err)
{
    enum status st = ST_OK;
    PGresult *res;
    mono_us deadline = deadline_in_ms(1000);
    while (pg_wait_result(pg, deadline) == ST_OK && (res = PQgetResult(pg->conn))) {
        ExecStatusType kind = PQresultStatus(res);
        if (kind == PGRES_FATAL_ERROR && st == ST_OK)
            st = pg_error_result(res, PG_STAKE_NONE, false, false, err);
        PQclear(res);
        if (kind == PGRES_COPY_IN || kind == PGRES_COPY_BOTH) { /* our half of the stream is still open */
            if (PQputCopyEnd(pg->conn, NULL) < 0)
                break;
        }
    }
    if (st == ST_OK)
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    pg_drop(pg);
    return st;
}

enum status pg_stream_get(struct pg *pg, char **data, size_t *len, struct err *err)
{
    *data = NULL;
    *len = 0;
    if (!pg->conn)
        return err_set(err, ST_RETRY, "", "connection to Postgres is closed");
    for (int pass = 0; pass < 2; pass++) {
        int n = PQgetCopyData(pg->conn, data, 1);
        if (n > 0) {
            *len = (size_t)n;
            return ST_OK;
        }
        if (n < 0)
            return stream_ended(pg, err);
        if (pass == 0 && !PQconsumeInput(pg->conn))
            return stream_ended(pg, err);
    }
    return ST_NOT_FOUND;
}

enum status pg_stream_put(struct pg *pg, const char *data, size_t len, mono_us deadline, struct err *err)
{
    enum status st = pg_copy_in_put(pg, data, len, deadline, err);
    if (st == ST_DEADLINE)
        return err_set(err, st, "", "Postgres did not take a replication message by the deadline; connection closed");
    return st;
}

void pg_stream_free(char *data)
{
    PQfreemem(data);
}
