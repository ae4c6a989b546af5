/* dsn.c - reading a DSN without ever showing its secrets. */
#include "common/pg/dsn.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/pg/internal.h"

static bool is_secret(const PQconninfoOption *o)
{
    return o->dispchar[0] == '*' || strcmp(o->keyword, "password") == 0 || strcmp(o->keyword, "sslpassword") == 0;
}

/* A keyword value as libpq would read it back. */
static void add_value(struct buf *out, const char *v)
{
    if (*v && !strpbrk(v, " '\\\t\r\n")) {
        buf_adds(out, v);
        return;
    }
    buf_addc(out, '\'');
    for (; *v; v++) {
        if (*v == '\'' || *v == '\\')
            buf_addc(out, '\\');
        buf_addc(out, *v);
    }
    buf_addc(out, '\'');
}

bool pg_dsn_is_conninfo(const char *dsn)
{
    return strchr(dsn, '=') || strncmp(dsn, "postgresql://", 13) == 0 || strncmp(dsn, "postgres://", 11) == 0;
}

void pg_dsn_redact(const char *dsn, struct buf *out)
{
    buf_clear(out);
    if (dsn && *dsn && !pg_dsn_is_conninfo(dsn) && !strpbrk(dsn, "@:/")) { /* those: a URI with a slip in it */
        buf_adds(out, "dbname=");
        add_value(out, dsn);
        return;
    }
    PQconninfoOption *options = PQconninfoParse(dsn ? dsn : "", NULL);
    if (!options) {
        buf_adds(out, "(unreadable DSN)");
        return;
    }
    for (PQconninfoOption *o = options; o->keyword; o++) {
        if (!o->val)
            continue;
        if (out->len)
            buf_addc(out, ' ');
        buf_addf(out, "%s=", o->keyword);
        if (is_secret(o))
            buf_adds(out, "***");
        else
            add_value(out, o->val);
    }
    PQconninfoFree(options);
}

/* libpq quotes the piece that it could not read, which may be a part of a password. */
static void add_without_quoted(struct buf *out, const char *text)
{
    for (const char *open; (open = strchr(text, '"')) != NULL;) {
        const char *close = strchr(open + 1, '"');
        buf_add(out, text, (size_t)(open - text));
        if (!close || strncmp(open, "\"=\"", 3) != 0)
            buf_adds(out, "\"***\"");
        else
            buf_adds(out, "\"=\"");
        if (!close)
            return;
        text = close + 1;
    }
    buf_adds(out, text);
}

/* Values that libpq looks at only while connecting, when a wrong one is hard to tell from a server that is down. */
static const struct {
    const char *keyword, *values; /* each value ends with a space */
} words[] = {
    {"sslmode", "disable allow prefer require verify-ca verify-full "},
    {"gssencmode", "disable prefer require "},
    {"channel_binding", "disable prefer require "},
    {"target_session_attrs", "any read-write read-only primary standby prefer-standby "},
};

static bool is_word(const char *value, const char *values)
{
    size_t len = strlen(value);
    for (const char *w = strchr(value, ' ') ? "" : values; *w; w = strchr(w, ' ') + 1) {
        if (strncmp(w, value, len) == 0 && w[len] == ' ')
            return true;
    }
    return false;
}

/* "5432" or "5432,,5433". */
static bool are_ports(const char *value)
{
    while (*value) {
        char *end = NULL;
        long port = *value == ',' ? 1 : strtol(value, &end, 10);
        if (end && (end == value || port < 1 || port > 65535 || (*end && *end != ',')))
            return false;
        value = end ? end : value;
        value += *value == ',';
    }
    return true;
}

static const char *value_of(const PQconninfoOption *options, const char *keyword)
{
    for (const PQconninfoOption *o = options; o->keyword; o++) {
        if (strcmp(o->keyword, keyword) == 0)
            return o->val && *o->val ? o->val : NULL;
    }
    return NULL;
}

static enum status check_values(const PQconninfoOption *options, struct err *err)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *value = value_of(options, words[i].keyword);
        if (value && !is_word(value, words[i].values))
            return err_set(err, ST_CONFIG, "", "bad Postgres DSN: %s = \"%s\": must be one of: %s", words[i].keyword,
                           value, words[i].values);
    }
    const char *port = value_of(options, "port"), *mode = value_of(options, "sslmode");
    const char *root = value_of(options, "sslrootcert");
    if (port && !are_ports(port))
        return err_set(err, ST_CONFIG, "", "bad Postgres DSN: port = \"%s\": must be a number from 1 to 65535", port);
    if (root && mode && strncmp(mode, "verify-", 7) == 0 && strcmp(root, "system") != 0 && access(root, R_OK) != 0)
        return err_set(err, ST_CONFIG, "", "bad Postgres DSN: sslrootcert \"%s\" cannot be read: %m", root);
    return ST_OK;
}

enum status pg_dsn_readable(const char *dsn, struct err *err)
{
    char *why = NULL;
    if (!pg_dsn_is_conninfo(
            dsn)) { /* the name of a database, or empty; libpq would take any other URI for a name too */
        const char *scheme = strstr(dsn, "://");
        return scheme ? err_set(err, ST_CONFIG, "",
                                "bad Postgres DSN: unknown scheme \"%.*s\": give postgresql://user@host/database or "
                                "host=... dbname=...",
                                (int)(scheme - dsn), dsn)
                      : ST_OK;
    }
    PQconninfoOption *options = PQconninfoParse(dsn, &why);
    if (options) {
        enum status st = check_values(options, err);
        PQconninfoFree(options);
        return st;
    }
    struct buf text;
    buf_init(&text, 1024);
    bool secret = strstr(dsn, "pass") || strchr(dsn, '@');
    if (!why)
        buf_adds(&text, "no memory");
    else if (secret)
        add_without_quoted(&text, why);
    else
        buf_adds(&text, why);
    err_set(err, ST_CONFIG, "", "bad Postgres DSN: %s", buf_str(&text));
    buf_release(&text);
    PQfreemem(why);
    return ST_CONFIG;
}
