/* snapshot.c - BEGIN and a statement in one libpq pipeline; COMMIT sent and read later. */
#include "common/pg/snapshot.h"

#include <string.h>

#include "common/pg/internal.h"

#define BEGIN_SQL "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#define DRAIN_MS 1000

/* ---- the first statement ---- */

/* What the results of a pipeline say so far. */
struct replies {
    PGresult *last; /* the statement's own */
    enum status status;
    bool done;
};

static enum status read_replies(struct pg *pg, mono_us deadline, struct replies *r, struct err *err)
{
    while (!r->done) {
        PGresult *res;
        enum status st = pg_wait_result(pg, deadline);

        if (st != ST_OK)
            return st;
        res = PQgetResult(pg->conn);
        if (!res) {
            /* Between the answers of two statements, or the end of a lost connection. */
            if (PQstatus(pg->conn) == CONNECTION_BAD)
                return ST_RETRY;
            continue;
        }
        if (PQresultStatus(res) == PGRES_PIPELINE_SYNC) {
            r->done = true;
        } else if (PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK) {
            PQclear(r->last);
            r->last = res;
            continue;
        } else if (PQresultStatus(res) != PGRES_PIPELINE_ABORTED && r->status == ST_OK) {
            r->status = pg_error_result(res, PG_STAKE_NONE, false, pg->cancelled, err);
        }
        PQclear(res);
    }
    return ST_OK;
}

static enum status finish(struct pg *pg, mono_us deadline, PGresult **out, struct err *err)
{
    struct replies r = {.status = ST_OK};
    enum status st = read_replies(pg, deadline, &r, err);

    if (st == ST_DEADLINE) {
        pg_cancel_async(pg);
        st = read_replies(pg, deadline_in_ms(DRAIN_MS), &r, err);
        if (st == ST_DEADLINE) {
            PQclear(r.last);
            pg_drop(pg);
            return err_set(err, ST_DEADLINE, "",
                           "no answer from Postgres by the deadline, nor to a cancel; connection closed");
        }
    }
    if (st != ST_OK || PQexitPipelineMode(pg->conn) != 1) {
        PQclear(r.last);
        if (r.status != ST_OK) { /* the server said farewell */
            pg_drop(pg);
            return r.status;
        }
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    }
    if (r.status == ST_OK && out) {
        *out = r.last;
        return ST_OK;
    }
    PQclear(r.last);
    return r.status;
}

static enum status begin_with(struct pg *pg, const char *server_name, const char *sql, const struct pg_values *v,
                              int nparams, mono_us deadline, PGresult **out, struct err *err)
{
    int sent = PQenterPipelineMode(pg->conn);

    pg->warned = pg->cancelled = false;
    if (sent)
        sent = PQsendQueryParams(pg->conn, BEGIN_SQL, 0, NULL, NULL, NULL, NULL, 0);
    if (sent && server_name)
        sent = PQsendQueryPrepared(pg->conn, server_name, nparams, v->list, v->lengths, v->formats, 0);
    else if (sent)
        sent = PQsendQueryParams(pg->conn, sql, nparams, NULL, v->list, v->lengths, v->formats, 0);
    if (!sent || !PQpipelineSync(pg->conn))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    return finish(pg, deadline, out, err);
}

enum status pg_snapshot_query(struct pg *pg, const char *name, const char *sql, const struct pg_param *params,
                              int nparams, mono_us deadline, struct pg_result **out, struct err *err)
{
    struct pg_values v;
    enum status st;

    if (out)
        *out = NULL;
    st = pg_run_ready(pg, deadline, err);
    if (st != ST_OK)
        return st;
    if (PQtransactionStatus(pg->conn) != PQTRANS_IDLE)
        return pg_query(pg, name, sql, params, nparams, deadline, out, err);
    st = pg_values_init(&v, params, nparams, err);
    for (int tries = 0; st == ST_OK; tries++) {
        const char *server_name = NULL;
        struct err own = {.status = ST_OK};

        if (name)
            st = pg_prepared_get(pg, name, sql, deadline, &server_name, err);
        if (st != ST_OK)
            break;
        st = begin_with(pg, server_name, sql, &v, nparams, deadline, out, &own);
        if (st == ST_OK)
            break;
        if (name && pg->conn && tries < 2 && pg_prepared_is_stale(pg, name, own.code)) {
            pg_snapshot_end(pg);
            st = pg_run_ready(pg, deadline, err);
            continue;
        }
        if (err)
            *err = own;
    }
    pg_values_release(&v);
    return st;
}

/* ---- the end ---- */

void pg_snapshot_end(struct pg *pg)
{
    if (!pg->conn || pg->ending || PQtransactionStatus(pg->conn) == PQTRANS_IDLE)
        return;
    /* In a failed transaction it is a ROLLBACK. A failure shows when the outcome is read. */
    if (PQsendQuery(pg->conn, "COMMIT"))
        (void)PQflush(pg->conn);
    pg->ending = true;
}

enum status pg_snapshot_ended(struct pg *pg, mono_us deadline, struct err *err)
{
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_EMPTY_QUERY};

    const atomic_bool *flag = pg->flag;
    enum status st;

    pg->ending = false;
    pg->warned = pg->cancelled = false;
    pg->flag = NULL; /* of nothing but a COMMIT there is nothing to cancel */
    st = pg_run_finish(pg, &run, deadline, NULL, err);
    pg->flag = flag;
    return st;
}
