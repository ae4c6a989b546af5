/* Text that comes from Postgres and from settings: COPY lines (first byte even), DSNs (odd). */
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

#include "common/pg/dsn.h"
#include "common/pg/hosts.h"
#include "common/pg/pg.h"

#define FIELDS_MAX 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was split, escaped and split again is the same. */
static void copy_line(const char *text, size_t len)
{
    char *fields[FIELDS_MAX], *again[FIELDS_MAX];
    char *line = malloc(len + 1);
    struct buf b;
    if (!line)
        return;
    memcpy(line, text, len);
    int n = pg_copy_split(line, len, fields, FIELDS_MAX);
    int stored = n < FIELDS_MAX ? n : FIELDS_MAX;
    if (n < 1 || (size_t)n > len + 1)
        abort();
    buf_init(&b, 1 << 20);
    for (int i = 0; i < stored; i++) {
        if (fields[i] && (fields[i] < line || fields[i] > line + len))
            abort();
        if (i)
            buf_addc(&b, '\t');
        pg_copy_escape(&b, fields[i]);
    }
    buf_reserve(&b, 1);
    if (buf_ok(&b) && b.data) {
        if (pg_copy_split(b.data, b.len, again, FIELDS_MAX) != stored)
            abort();
        for (int i = 0; i < stored; i++) {
            if (!fields[i] != !again[i] || (fields[i] && strcmp(fields[i], again[i]) != 0))
                abort();
        }
    }
    buf_release(&b);
    free(line);
}

/* Is the secret a part of something that may be shown? */
static bool elsewhere(const PQconninfoOption *options, const char *secret)
{
    for (const PQconninfoOption *o = options; o->keyword; o++) {
        if (o->dispchar[0] != '*' && ((o->val && strstr(o->val, secret)) || strstr(o->keyword, secret)))
            return true;
    }
    return false;
}

static void dsn(const char *text)
{
    struct buf b;
    struct err err;
    struct pg_hosts hosts;
    buf_init(&b, 1 << 20);
    pg_dsn_redact(text, &b);
    if (!buf_ok(&b))
        abort();
    PQconninfoOption *options = PQconninfoParse(text, NULL);
    for (PQconninfoOption *o = options; o && o->keyword; o++) {
        if (o->dispchar[0] == '*' && o->val && strlen(o->val) >= 4 && !elsewhere(options, o->val) &&
            !strpbrk(o->val, "=*' \\") && strstr(buf_str(&b), o->val))
            abort();
    }
    PQconninfoFree(options);
    if (pg_hosts_parse(text, &hosts, &err) == ST_OK) {
        if (hosts.n < 1 || !hosts.items)
            abort();
        pg_hosts_release(&hosts);
    } else if (err.status != ST_CONFIG) {
        abort();
    }
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 4096)
        return 0;
    char text[4096];
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 2)
        dsn(text);
    else
        copy_line(text, size - 1);
    return 0;
}
