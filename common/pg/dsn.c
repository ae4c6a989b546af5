/* dsn.c - reading a DSN without ever showing its secrets. */
#include "common/pg/dsn.h"
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

enum status pg_dsn_check(const char *dsn, struct err *err)
{
    char *why = NULL;
    PQconninfoOption *options = PQconninfoParse(dsn, &why);
    if (options) {
        PQconninfoFree(options);
        return ST_OK;
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
