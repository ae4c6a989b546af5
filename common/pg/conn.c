/* conn.c - making, losing and making again a connection. */
#include <poll.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/pg/internal.h"

#define REOPEN_BASE_MS 100
#define REOPEN_CAP_MS 5000

/*
 * Defaults that the DSN may override. A peer that vanished without a word (power, a firewall that forgot) is found
 * out within about half a minute, instead of two hours.
 */
static const char *const preset_keys[] = {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
                                          "tcp_user_timeout"};
static const char *const preset_values[] = {"1", "15", "5", "3", "30000"};
#define NPRESETS (sizeof preset_keys / sizeof *preset_keys)

/* No JIT: our statements are short, and compiling one costs more than running it, for each new session again. */
static const char session_sql[] =
    "SET jit TO off; SET standard_conforming_strings TO on; SET TimeZone TO 'UTC'; SET DateStyle TO "
    "'ISO, MDY'; SET search_path TO pg_catalog";

static void on_notice(void *arg, const PGresult *res)
{
    struct pg *pg = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *code = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    if (severity && strcmp(severity, "WARNING") == 0)
        pg->warned = true;
    log_debug("postgres notice", "severity", severity ? severity : "", "code", code ? code : "", "text",
              text ? text : "", NULL);
}

/* PQconnectStart, for which name resolution is the one thing that libpq does without a bound. */
static PGconn *connect_start(const struct pg *pg, const struct pg_host *host)
{
    const char *keys[NPRESETS + 10];
    const char *values[NPRESETS + 10];
    size_t n = 0;
    for (; n < NPRESETS; n++) {
        keys[n] = preset_keys[n];
        values[n] = preset_values[n];
    }
    keys[n] = "fallback_application_name";
    values[n++] = pg->application_name;
    keys[n] = "dbname"; /* expanded; what comes after it wins over it */
    values[n++] = pg->dsn;
    keys[n] = "client_encoding";
    values[n++] = "UTF8";
    const char *const own[][2] = {{"host", host->host},
                                  {"hostaddr", host->hostaddr},
                                  {"port", host->port},
                                  {"target_session_attrs", host->session_attrs},
                                  {"replication", pg->replication ? "database" : NULL}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (!own[i][1])
            continue;
        keys[n] = own[i][0];
        values[n++] = own[i][1];
    }
    keys[n] = values[n] = NULL;
    return PQconnectStartParams(keys, values, 1);
}

static enum status connect_poll(const struct pg *pg, PGconn *conn, mono_us deadline, struct err *err)
{
    /* Verbose, because a refused connection tells its SQLSTATE in no other way. */
    PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;
    while (PQstatus(conn) != CONNECTION_BAD) {
        enum status st =
            pg_wait_socket(PQsocket(conn), state == PGRES_POLLING_READING ? POLLIN : POLLOUT, pg->watch_stop, deadline);
        if (st == ST_STOPPED)
            return err_set(err, st, "", "stopped while connecting to Postgres");
        if (st != ST_OK)
            return err_set(err, ST_RETRY, "", "cannot connect to Postgres at %s port %s: no answer in time",
                           PQhost(conn), PQport(conn));
        state = PQconnectPoll(conn);
        if (state == PGRES_POLLING_OK)
            return ST_OK;
        if (state == PGRES_POLLING_FAILED)
            break;
    }
    return pg_error_connect(conn, err);
}

static enum status connect_host(const struct pg *pg, const struct pg_host *host, mono_us deadline, PGconn **out,
                                struct err *err)
{
    PGconn *conn = connect_start(pg, host);
    enum status st =
        conn && PQstatus(conn) != CONNECTION_BAD ? connect_poll(pg, conn, deadline, err) : pg_error_connect(conn, err);
    if (st == ST_OK && PQsetnonblocking(conn, 1) != 0)
        st = err_set(err, ST_RETRY, "", "cannot make the connection non-blocking: %s", PQerrorMessage(conn));
    if (st != ST_OK) {
        PQfinish(conn);
        conn = NULL;
    }
    *out = conn;
    return st;
}

/* The hosts in turn, each with its share of the time, so that a dead one leaves some for the others. */
static enum status connect_hosts(const struct pg *pg, mono_us deadline, PGconn **out, struct err *err)
{
    struct err failed[2];
    enum status st = ST_RETRY;
    for (int i = 0; i < pg->hosts.n; i++) {
        int left = deadline_poll_ms(deadline);
        mono_us until = left < 0 ? DEADLINE_NONE : deadline_in_ms(left / (pg->hosts.n - i));
        if (pg->hosts.connect_ms > 0)
            until = deadline_min(until, deadline_in_ms(pg->hosts.connect_ms));
        st = connect_host(pg, &pg->hosts.items[i], until, out, &failed[i > 0]);
        if (st == ST_OK || st == ST_STOPPED)
            return st;
        if (i > 0) { /* all reasons in one line; a host that may come back makes it worth trying again */
            char text[512];
            (void)snprintf(text, sizeof text, "%.500s", failed[0].text);
            st = failed[0].status == ST_RETRY ? ST_RETRY : failed[1].status;
            err_set(&failed[0], st, failed[1].code, "%s; %s", text, failed[1].text);
        }
    }
    if (err)
        *err = failed[0];
    return st;
}

/* One round of attempts. On failure pg->conn is NULL. */
static enum status connect_once(struct pg *pg, mono_us deadline, struct err *err)
{
    PGconn *conn = NULL;
    pg_drop(pg);
    if (pg->watch_stop && stop_requested())
        return err_set(err, ST_STOPPED, "", "stopped before connecting to Postgres");
    enum status st = connect_hosts(pg, deadline, &conn, err);
    if (st != ST_OK)
        return st;
    PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    PQsetNoticeReceiver(conn, on_notice, pg);
    pg->conn = conn;
    pg->generation++;
    st = pg_exec(pg, session_sql, deadline, err);
    if (st != ST_OK) {
        pg_drop(pg);
        if (st == ST_UNKNOWN || st == ST_DEADLINE) /* nothing was at stake */
            st = ST_RETRY;
        if (err)
            err->status = st;
    }
    return st;
}

enum status pg_open(struct pg **out, const struct pg_config *cfg, mono_us deadline, struct err *err)
{
    *out = NULL;
    struct pg *pg = calloc(1, sizeof *pg);
    if (!pg)
        return err_set(err, ST_NOMEM, "", "no memory for a Postgres connection");
    pg->dsn = strdup(cfg->dsn ? cfg->dsn : "");
    pg->application_name = strdup(cfg->application_name ? cfg->application_name : "relata");
    pg->replication = cfg->replication;
    pg->watch_stop = cfg->watch_stop;
    enum status st = ST_OK;
    if (!pg->dsn || !pg->application_name)
        st = err_set(err, ST_NOMEM, "", "no memory for a Postgres connection");
    if (st == ST_OK)
        st = pg_hosts_parse(pg->dsn, &pg->hosts, err);
    if (st == ST_OK)
        st = connect_once(pg, deadline, err);
    if (st != ST_OK) {
        pg_close(pg);
        return st;
    }
    *out = pg;
    return ST_OK;
}

enum status pg_reopen(struct pg *pg, mono_us deadline, struct err *err)
{
    for (unsigned attempt = 0;; attempt++) {
        enum status st = connect_once(pg, deadline, err);
        if (st != ST_RETRY || clock_mono_us() >= deadline)
            return st;
        mono_us until = deadline_min(deadline_in_ms(backoff_ms(attempt, REOPEN_BASE_MS, REOPEN_CAP_MS)), deadline);
        if (pg->watch_stop && stop_sleep_until(until) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "stopped while connecting to Postgres");
        while (!pg->watch_stop && clock_mono_us() < until)
            (void)poll(NULL, 0, deadline_poll_ms(until));
    }
}

void pg_close(struct pg *pg)
{
    if (!pg)
        return;
    pg_drop(pg);
    pg_hosts_release(&pg->hosts);
    free(pg->prepared);
    free(pg->dsn);
    free(pg->application_name);
    free(pg);
}

bool pg_alive(const struct pg *pg)
{
    return pg->conn && PQstatus(pg->conn) == CONNECTION_OK;
}

int pg_socket(const struct pg *pg)
{
    return pg->conn ? PQsocket(pg->conn) : -1;
}

int pg_backend_pid(const struct pg *pg)
{
    return pg->conn ? PQbackendPID(pg->conn) : 0;
}

int pg_server_version(const struct pg *pg)
{
    return pg->conn ? PQserverVersion(pg->conn) : 0;
}

unsigned pg_generation(const struct pg *pg)
{
    return pg->generation;
}
