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

void pg_dsn_redact(const char *dsn, struct buf *out)
{
    buf_clear(out);
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
static void add_without_quotes(struct buf *out, const char *text)
{
    bool inside = false;
    for (; *text && *text != '\n'; text++) {
        if (*text == '"') {
            inside = !inside;
            buf_adds(out, inside ? "\"***" : "\"");
        } else if (!inside) {
            buf_addc(out, *text);
        }
    }
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
        add_without_quotes(&text, why);
    else
        buf_adds(&text, why);
    err_set(err, ST_CONFIG, "", "bad Postgres DSN: %s", buf_str(&text));
    buf_release(&text);
    PQfreemem(why);
    return ST_CONFIG;
}
