/* param.c - statements with parameters, prepared or not. */
#include <stdlib.h>
#include <xxhash.h>

#include "common/pg/internal.h"

#define PARAMS_MAX 65535

/* Marks a parameter made of a failed buffer, so that it can never be taken for NULL or a cut value. */
static const char failed_buffer[] = "";

struct pg_param pg_p_text(const char *s)
{
    return (struct pg_param){.data = s};
}

struct pg_param pg_p_buf(const struct buf *b)
{
    if (!buf_ok(b))
        return (struct pg_param){.data = failed_buffer};
    return (struct pg_param){.data = buf_str(b), .len = b->len};
}

struct pg_param pg_p_bin(const struct buf *b)
{
    struct pg_param p = pg_p_buf(b);
    p.binary = true;
    return p;
}

struct pg_param pg_p_int(int64_t v, char *scratch)
{
    int n = snprintf(scratch, 24, "%lld", (long long)v);
    return (struct pg_param){.data = scratch, .len = (size_t)n};
}

void pg_values_release(struct pg_values *v)
{
    if (v->list != v->inline_values) {
        free(v->list);
        free(v->lengths);
    }
    free(v->block);
}

static bool is_copied(const struct pg_param *p)
{
    return p->data && p->len && !p->binary;
}

static enum status values_check(const struct pg_param *params, int n, size_t *total, struct err *err)
{
    *total = 0;
    if (n < 0 || n > PARAMS_MAX)
        return err_set(err, ST_FATAL, "", "%d parameters, at most %d are possible", n, PARAMS_MAX);
    for (int i = 0; i < n; i++) {
        if (params[i].data == failed_buffer || params[i].len > INT32_MAX)
            return err_set(err, ST_TOO_BIG, "", "parameter $%d does not fit its buffer", i + 1);
        if (!is_copied(&params[i]))
            continue;
        if (memchr(params[i].data, '\0', params[i].len))
            return err_set(err, ST_INVALID, "", "parameter $%d holds a NUL byte", i + 1);
        *total += params[i].len + 1;
    }
    return ST_OK;
}

enum status pg_values_init(struct pg_values *v, const struct pg_param *params, int n, struct err *err)
{
    size_t total;
    *v = (struct pg_values){.list = v->inline_values, .lengths = v->inline_numbers};
    enum status st = values_check(params, n, &total, err);
    if (st != ST_OK)
        return st;
    if (n > PG_PARAMS_INLINE) {
        v->list = calloc((size_t)n, sizeof *v->list);
        v->lengths = calloc((size_t)n, 2 * sizeof *v->lengths);
    }
    v->block = malloc(total + 1);
    if (!v->list || !v->lengths || !v->block)
        return err_set(err, ST_NOMEM, "", "no memory for %d parameters", n);
    int *formats = v->lengths + n;
    char *to = v->block;
    for (int i = 0; i < n; i++) {
        v->list[i] = params[i].data;
        formats[i] = params[i].binary;
        if (params[i].binary) {
            v->formats = formats;
            v->lengths[i] = (int)params[i].len;
        }
        if (!is_copied(&params[i]))
            continue;
        memcpy(to, params[i].data, params[i].len);
        to[params[i].len] = '\0';
        v->list[i] = to;
        to += params[i].len + 1;
    }
    return ST_OK;
}

/* ---- prepared statements ---- */

void pg_prepared_forget(struct pg *pg)
{
    for (size_t i = 0; i < pg->nprepared; i++)
        free(pg->prepared[i].server_name);
    pg->nprepared = 0;
}

static struct pg_prepared *prepared_find(struct pg *pg, const char *name)
{
    for (size_t i = 0; i < pg->nprepared; i++) {
        if (strcmp(pg->prepared[i].name, name) == 0)
            return &pg->prepared[i];
    }
    return NULL;
}

/* The server's name holds a hash of the text: behind a pooler, sessions of several programs share one server. */
static enum status prepared_name(struct pg_prepared *p, const char *sql, struct err *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%.32s_%016llx_%u", p->name, (unsigned long long)XXH3_64bits(sql, strlen(sql)),
                   p->salt);
    free(p->server_name);
    p->server_name = strdup(name);
    return p->server_name ? ST_OK : err_set(err, ST_NOMEM, "", "no memory for a prepared statement");
}

static struct pg_prepared *prepared_add(struct pg *pg, const char *name)
{
    struct pg_prepared *list = realloc(pg->prepared, (pg->nprepared + 1) * sizeof *list);
    if (!list)
        return NULL;
    pg->prepared = list;
    list[pg->nprepared] = (struct pg_prepared){.name = name};
    return &list[pg->nprepared++];
}

static enum status prepare_at_server(struct pg *pg, const struct pg_prepared *p, const char *sql, mono_us deadline,
                                     struct err *err)
{
    /* Preparing has no effect, so nothing is at stake in a transaction or out of it. */
    struct pg_run run = {.stake = PG_STAKE_NONE, .until = PGRES_EMPTY_QUERY};
    struct err own;
    if (!PQsendPrepare(pg->conn, p->server_name, sql, 0, NULL))
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    enum status st = pg_run_finish(pg, &run, deadline, NULL, &own);
    if (st == ST_OK)
        return ST_OK;
    if (strcmp(own.code, "42P05") == 0) { /* behind a pooler another session made it already: the same text */
        if (PQtransactionStatus(pg->conn) == PQTRANS_IDLE)
            return ST_OK;
        return err_set(err, ST_RETRY, own.code, "statement was prepared by another session: repeat the transaction");
    }
    if (err)
        *err = own;
    return st;
}

enum status pg_prepared_get(struct pg *pg, const char *name, const char *sql, mono_us deadline, const char **out,
                            struct err *err)
{
    struct pg_prepared *p = prepared_find(pg, name);
    if (p && p->server_name) {
        *out = p->server_name;
        return ST_OK;
    }
    if (!p)
        p = prepared_add(pg, name);
    if (!p)
        return err_set(err, ST_NOMEM, "", "no memory for a prepared statement");
    enum status st = prepared_name(p, sql, err);
    if (st != ST_OK)
        return st;
    struct err own;
    st = prepare_at_server(pg, p, sql, deadline, &own);
    if (st != ST_OK && err)
        *err = own;
    p = prepared_find(pg, name); /* a lost connection forgets all */
    /* 42P05 leaves the name known: the repeated transaction goes straight on. */
    if (st != ST_OK && p && strcmp(own.code, "42P05") != 0) {
        free(p->server_name);
        p->server_name = NULL;
    }
    if (st == ST_OK)
        *out = p->server_name;
    return st;
}

/* 26000: gone (a pooler, DISCARD ALL); 0A000: the result's type changed. */
bool pg_prepared_is_stale(struct pg *pg, const char *name, const char *code)
{
    struct pg_prepared *p = prepared_find(pg, name);
    if (!p || (strcmp(code, "26000") != 0 && strcmp(code, "0A000") != 0))
        return false;
    if (strcmp(code, "0A000") == 0)
        p->salt++;
    free(p->server_name);
    p->server_name = NULL;
    return true;
}

static enum status send_and_finish(struct pg *pg, const char *server_name, const char *sql, const struct pg_values *v,
                                   int nparams, mono_us deadline, struct pg_result **out, struct err *err)
{
    struct pg_run run = pg_run_of(pg, sql, PGRES_EMPTY_QUERY);
    int sent;
    pg->warned = pg->cancelled = false;
    if (server_name)
        sent = PQsendQueryPrepared(pg->conn, server_name, nparams, v->list, v->lengths, v->formats, 0);
    else if (pg->replication && nparams == 0) /* a walsender knows the simple protocol only */
        sent = PQsendQuery(pg->conn, sql);
    else
        sent = PQsendQueryParams(pg->conn, sql, nparams, NULL, v->list, v->lengths, v->formats, 0);
    if (!sent)
        return pg_error_lost(pg, PG_STAKE_NONE, err);
    return pg_run_finish(pg, &run, deadline, out, err);
}

static enum status query_prepared(struct pg *pg, const char *name, const char *sql, const struct pg_values *v,
                                  int nparams, mono_us deadline, struct pg_result **out, struct err *err)
{
    for (int tries = 0;; tries++) {
        const char *server_name = NULL;
        struct err own = {.status = ST_OK};
        enum status st = pg_prepared_get(pg, name, sql, deadline, &server_name, err);
        if (st != ST_OK)
            return st;
        bool in_transaction = PQtransactionStatus(pg->conn) == PQTRANS_INTRANS;
        st = send_and_finish(pg, server_name, sql, v, nparams, deadline, out, &own);
        if (st == ST_OK)
            return st;
        bool stale = pg->conn && pg_prepared_is_stale(pg, name, own.code);
        if (stale && !in_transaction && tries < 2)
            continue;
        if (err)
            *err = own;
        if (stale)
            return err_set(err, ST_RETRY, own.code, "prepared statement %s is gone: repeat the transaction", name);
        return st;
    }
}

enum status pg_query(struct pg *pg, const char *name, const char *sql, const struct pg_param *params, int nparams,
                     mono_us deadline, struct pg_result **out, struct err *err)
{
    struct pg_values v;
    if (out)
        *out = NULL;
    enum status st = pg_run_ready(pg, deadline, err);
    if (st != ST_OK)
        return st;
    st = pg_values_init(&v, params, nparams, err);
    if (st == ST_OK && name)
        st = query_prepared(pg, name, sql, &v, nparams, deadline, out, err);
    else if (st == ST_OK)
        st = send_and_finish(pg, NULL, sql, &v, nparams, deadline, out, err);
    pg_values_release(&v);
    return st;
}
