/* errors.c - what a Postgres failure means for the caller. By SQLSTATE, never by text. */
#include <ctype.h>

#include "common/pg/internal.h"

struct rule {
    const char *prefix; /* of the SQLSTATE; the longest match wins */
    enum status status;
};

static const struct rule rules[] = {
    {"08", ST_RETRY},      {"25006", ST_RETRY},   {"28", ST_DENIED},     {"3D000", ST_MISSING}, {"3F000", ST_MISSING},
    {"40", ST_RETRY},      {"40003", ST_UNKNOWN}, {"42501", ST_DENIED},  {"42703", ST_MISSING}, {"42704", ST_MISSING},
    {"42883", ST_MISSING}, {"42P01", ST_MISSING}, {"53", ST_RETRY},      {"55006", ST_RETRY},   {"55P03", ST_RETRY},
    {"57014", ST_RETRY},   {"57P", ST_RETRY},     {"57P04", ST_MISSING}, {"58000", ST_RETRY},   {"58030", ST_RETRY},
    {"58P01", ST_MISSING}, {"XX", ST_FATAL},
};

enum status pg_sqlstate_status(const char *sqlstate)
{
    enum status st = ST_INVALID;
    size_t best = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        size_t n = strlen(rules[i].prefix);
        if (n > best && strncmp(sqlstate, rules[i].prefix, n) == 0) {
            best = n;
            st = rules[i].status;
        }
    }
    return st;
}

static void add_field(struct buf *b, const PGresult *res, int field, const char *label)
{
    const char *s = PQresultErrorField(res, field);
    if (s && *s)
        buf_addf(b, "%s%s", label, s);
}

/* Ended by an administrator or a crash: the session is over, whatever it was doing. */
static bool is_farewell(const char *code)
{
    return strcmp(code, "57P01") == 0 || strcmp(code, "57P02") == 0 || strcmp(code, "57P05") == 0 ||
           strcmp(code, "25P03") == 0;
}

enum status pg_error_result(const PGresult *res, enum pg_stake stake, bool is_commit, bool cancelled, struct err *err)
{
    const char *code = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    if (!code) /* libpq's own: a lost connection or a protocol violation */
        return err_set(err, stake == PG_STAKE_COMMIT ? ST_UNKNOWN : ST_RETRY, "", "%s",
                       PQresultErrorMessage(res) ? PQresultErrorMessage(res) : "no answer");
    enum status st = pg_sqlstate_status(code);
    if (is_farewell(code) && stake == PG_STAKE_COMMIT)
        st = ST_UNKNOWN;
    else if (cancelled && strcmp(code, "57014") == 0)
        st = is_commit ? ST_UNKNOWN : ST_DEADLINE;

    struct buf text;
    buf_init(&text, 4096);
    add_field(&text, res, PG_DIAG_MESSAGE_PRIMARY, "");
    add_field(&text, res, PG_DIAG_MESSAGE_DETAIL, "; ");
    add_field(&text, res, PG_DIAG_MESSAGE_HINT, "; hint: ");
    err_set(err, st, code, "%s", buf_str(&text));
    buf_release(&text);
    return st;
}

enum status pg_error_lost(struct pg *pg, enum pg_stake stake, struct err *err)
{
    const char *why = pg->conn ? PQerrorMessage(pg->conn) : "";
    enum status st = err_set(err, stake == PG_STAKE_COMMIT ? ST_UNKNOWN : ST_RETRY, "",
                             "connection to Postgres lost: %s", *why ? why : "closed");
    pg_drop(pg);
    return st;
}

/* The SQLSTATE of a verbose error text: "FATAL:  28P01: password ..."; the last one, as several hosts may be tried. */
static bool find_sqlstate(const char *text, char code[6], const char **message)
{
    bool found = false;
    for (const char *p = strstr(text, ":  "); p; p = strstr(p + 1, ":  ")) {
        const char *c = p + 3;
        size_t n = 0;
        while (n < 5 && (isdigit((unsigned char)c[n]) || isupper((unsigned char)c[n])))
            n++;
        if (n == 5 && c[5] == ':' && c[6] == ' ') {
            memcpy(code, c, 5);
            code[5] = '\0';
            *message = c + 7;
            found = true;
        }
    }
    return found;
}

enum status pg_error_connect(PGconn *conn, struct err *err)
{
    if (!conn)
        return err_set(err, ST_NOMEM, "", "no memory for a Postgres connection");
    const char *text = PQerrorMessage(conn);
    const char *message = text;
    const char *host = PQhost(conn);
    const char *port = PQport(conn);
    char code[6] = "";
    enum status st = ST_RETRY;
    if (find_sqlstate(text, code, &message))
        st = pg_sqlstate_status(code);
    else if (PQconnectionNeedsPassword(conn))
        st = ST_DENIED;
    /* Connecting has no effect, so any class that speaks of a statement means: refused, try again. */
    if (st == ST_INVALID || st == ST_UNKNOWN || st == ST_FATAL)
        st = ST_RETRY;
    size_t len = *code ? strcspn(message, "\n") : strlen(message); /* what follows is LOCATION */
    while (len && (message[len - 1] == '\n' || message[len - 1] == ' '))
        len--;
    if (*code)
        return err_set(err, st, code, "cannot connect to Postgres at %s port %s: %.*s", host ? host : "?",
                       port ? port : "?", (int)len, message);
    return err_set(err, st, "", "cannot connect to Postgres: %.*s", (int)len, message);
}
