/* query.c - running statements: send, wait, cancel at the deadline, read to the end, judge the outcome. */
#include <poll.h>
#include <stdlib.h>
#include <strings.h>

#include "common/pg/internal.h"

#define DRAIN_MS 1000

static bool starts_with_word(const char *sql, const char *word)
{
    sql += strspn(sql, " \t\r\n");
    return strncasecmp(sql, word, strlen(word)) == 0;
}

struct pg_run pg_run_of(const struct pg *pg, const char *sql, ExecStatusType until)
{
    struct pg_run run = {.stake = PG_STAKE_COMMIT, .until = until};
    run.is_commit = starts_with_word(sql, "commit") || starts_with_word(sql, "end");
    /* Inside a transaction only a commit, alone or among several statements, can make anything last. */
    if (PQtransactionStatus(pg->conn) == PQTRANS_INTRANS && !run.is_commit && !strcasestr(sql, "commit"))
        run.stake = PG_STAKE_NONE;
    return run;
}

static enum status too_late(struct err *err)
{
    return err_set(err, ST_DEADLINE, "", "deadline passed before the statement was sent");
}

enum status pg_run_ready(struct pg *pg, mono_us deadline, struct err *err)
{
    if (!pg->conn)
        return err_set(err, ST_RETRY, "", "connection to Postgres is closed");
    if (clock_mono_us() >= deadline)
        return too_late(err);
    if (pg->ending) {
        enum status st = pg_snapshot_ended(pg, deadline, err);
        if (st != ST_OK)
            return st;
    }
    if (!pg_cancel_settled(pg, deadline)) {
        if (clock_mono_us() >= deadline)
            return too_late(err);
        pg_drop(pg);
        return err_set(err, ST_RETRY, "", "a cancel that was sent to Postgres may still come: connection closed");
    }
    if (PQtransactionStatus(pg->conn) == PQTRANS_ACTIVE && PQstatus(pg->conn) == CONNECTION_OK)
        return err_set(err, ST_FATAL, "", "statement sent while another one, or a copy, is running");
    if (!pg_idle_check(pg))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    if (clock_mono_us() >= deadline)
        return too_late(err);
    pg->warned = pg->cancelled = false;
    if (pg_unwanted(pg))
        return err_set(err, ST_DEADLINE, "", "nobody wants the statement's result any more");
    return ST_OK;
}

/* What the results read so far say. */
struct outcome {
    PGresult *last; /* the last good one */
    enum status status;
    bool done; /* read to the end, or to `until` */
    bool lost;
};

static bool is_error(const PGresult *res)
{
    ExecStatusType kind = PQresultStatus(res);
    return kind == PGRES_FATAL_ERROR || kind == PGRES_BAD_RESPONSE || kind == PGRES_NONFATAL_ERROR;
}

/* A copy that nobody asked for, or that is to be thrown away. ST_OK when it is over. */
static enum status skip_copy(struct pg *pg, ExecStatusType kind, mono_us deadline)
{
    if (kind == PGRES_COPY_IN || kind == PGRES_COPY_BOTH)
        (void)PQputCopyEnd(pg->conn, kind == PGRES_COPY_IN ? "copy not expected" : NULL);
    for (;;) {
        char *data = NULL;
        int n = kind == PGRES_COPY_IN ? -1 : PQgetCopyData(pg->conn, &data, 1);
        PQfreemem(data);
        if (n < 0)
            return ST_OK;
        if (n > 0)
            continue;
        enum status st = pg_flush(pg, deadline);
        if (st == ST_OK)
            st = pg_wait_socket(PQsocket(pg->conn), POLLIN, false, deadline);
        if (st != ST_OK)
            return st;
        if (!PQconsumeInput(pg->conn))
            return ST_RETRY;
    }
}

/* Read results until the end, `until`, or the deadline (ST_DEADLINE, to be called again). */
static enum status read_results(struct pg *pg, const struct pg_run *run, mono_us deadline, struct outcome *o,
                                struct err *err)
{
    for (;;) {
        enum status st = pg_wait_result(pg, deadline);
        if (st == ST_DEADLINE)
            return st;
        PGresult *res = PQgetResult(pg->conn);
        if (!res) {
            o->done = true;
            o->lost = PQstatus(pg->conn) == CONNECTION_BAD;
            return ST_OK;
        }
        ExecStatusType kind = PQresultStatus(res);
        bool copy = kind == PGRES_COPY_IN || kind == PGRES_COPY_OUT || kind == PGRES_COPY_BOTH;
        if (is_error(res)) {
            if (o->status == ST_OK)
                o->status = pg_error_result(res, run->stake, run->is_commit, pg->cancelled, err);
            PQclear(res);
            continue;
        }
        PQclear(o->last);
        o->last = res;
        if (copy && kind == run->until) {
            o->done = true;
            return ST_OK;
        }
        if (copy && o->status == ST_OK)
            o->status = err_set(err, ST_FATAL, "", "statement started a copy that its caller does not expect");
        if (copy) {
            st = skip_copy(pg, kind, deadline);
            if (st == ST_DEADLINE)
                return st;
        }
    }
}

/* The deadline has passed and not even a cancel brought an answer. */
static enum status give_up(struct pg *pg, const struct pg_run *run, struct err *err)
{
    pg_drop(pg);
    if (run->stake == PG_STAKE_COMMIT)
        return err_set(err, ST_UNKNOWN, "",
                       "no answer from Postgres by the deadline, nor to a cancel; connection closed");
    return err_set(err, ST_DEADLINE, "", "no answer from Postgres by the deadline, nor to a cancel; connection closed");
}

enum status pg_run_finish(struct pg *pg, const struct pg_run *run, mono_us deadline, PGresult **out, struct err *err)
{
    struct outcome o = {.status = ST_OK};
    enum status st = read_results(pg, run, deadline, &o, err);
    if (st == ST_DEADLINE) {
        pg_cancel_async(pg);
        (void)read_results(pg, run, deadline_in_ms(DRAIN_MS), &o, err);
    }
    if (!o.done) {
        PQclear(o.last);
        return give_up(pg, run, err);
    }
    st = o.status;
    if (o.lost) {
        if (st == ST_OK)
            st = pg_error_lost(pg, run->stake, err);
        else
            pg_drop(pg);
    } else if (st == ST_OK && pg->cancelled && pg->warned && run->stake == PG_STAKE_COMMIT) {
        /* A cancelled wait for a standby ends in success with a warning. */
        st = err_set(err, ST_UNKNOWN, "", "commit not confirmed by a standby before the deadline");
    }
    if (st == ST_OK && out) {
        *out = o.last;
        return ST_OK;
    }
    PQclear(o.last);
    return st;
}

void pg_run_abandon(struct pg *pg)
{
    if (!pg->conn)
        return;
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_EMPTY_QUERY};
    struct outcome o = {.status = ST_OK};
    mono_us deadline = deadline_in_ms(DRAIN_MS);
    pg_cancel_async(pg);
    enum status st = skip_copy(pg, PGRES_COPY_OUT, deadline);
    if (st == ST_OK)
        st = read_results(pg, &run, deadline, &o, NULL);
    PQclear(o.last);
    if (st != ST_OK || o.lost)
        pg_drop(pg);
}

enum status pg_exec(struct pg *pg, const char *sql, mono_us deadline, struct err *err)
{
    enum status st = pg_run_ready(pg, deadline, err);
    if (st != ST_OK)
        return st;
    struct pg_run run = pg_run_of(pg, sql, PGRES_EMPTY_QUERY);
    if (!PQsendQuery(pg->conn, sql))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    return pg_run_finish(pg, &run, deadline, NULL, err);
}
