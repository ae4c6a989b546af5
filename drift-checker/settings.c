#include "drift-checker/settings.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/pg/pg.h"
#include "common/tuple/tuple.h"

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }

static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, pg_dsn, "", 0, 0,
        "the database with inventory and schema relata: a libpq connection string or URI; PG* environment variables "
        "and "
        ".pgpass apply"),
    KEY("pg", "read_dsn", CFG_SECRET, pg_read_dsn, "", 0, 0,
        "a standby of it, which inventory and ledger are read from; empty = pg.dsn. What is found is confirmed at "
        "pg.dsn"),
    KEY("pg", "statement_timeout", CFG_DURATION, statement_timeout_ms, "10min", 100, 86400000,
        "longest wait for one statement"),
    CFG_STORE_KEYS(struct settings, store),
    KEY("openfga", "dsn", CFG_SECRET, openfga_dsn, "", 0, 0,
        "OpenFGA's own Postgres database, for a login that may SELECT from its table tuple: much faster than its API. "
        "Empty = the API is read, page by page"),
    KEY("authz-store", "dsn", CFG_SECRET, authz_dsn, "", 0, 0,
        "the same if the store is authz-store: its database, for a member of relata_store_reader"),
    {"expected", "*", CFG_MAP, offsetof(struct settings, expected), "", 0, 0, NULL, NULL,
     "TYPE = SCHEMA.VIEW, SCHEMA.VIEW: all sources of that type's tuples besides tracked tables; columns object, "
     "relation, "
     "subject, and condition_name, condition_context if there are conditions"},
    KEY("audit", "type", CFG_STRING, type, "", 0, 0, "audit objects of this type alone"),
    KEY("audit", "object", CFG_STRING, object, "", 0, 0, "audit this object alone, such as cluster:7"),
    KEY("audit", "subject", CFG_STRING, subject, "", 0, 0, "audit all that this subject holds, such as user:anne"),
    KEY("audit", "full", CFG_BOOL, full, "false", 0, 0, "compare tuple by tuple instead of digests first"),
    KEY("audit", "tracked", CFG_BOOL, tracked, "true", 0, 0, "tables of relata.track say what is expected"),
    KEY("audit", "skip", CFG_STRING, skip, "", 0, 0,
        "type#relation, ..: pairs that are not judged; each report says how many tuples they have"),
    KEY("audit", "max_shrink", CFG_INT, max_shrink, "20", 0, 100,
        "percent by which a source of expected tuples may have shrunk since the last audit; beyond it nothing is "
        "judged"),
    KEY("audit", "accept_shrink", CFG_BOOL, accept_shrink, "false", 0, 0,
        "a source that is empty or shrank is what it should be"),
    KEY("audit", "max_findings", CFG_INT, max_findings, "50000", 1, 10000000,
        "most differences that are followed up; with more nothing is repaired"),
    KEY("audit", "concurrency", CFG_INT, concurrency, "4", 1, 64, "reads of single tuples at once"),
    KEY("audit", "settle", CFG_DURATION, settle_ms, "30s", 0, 3600000,
        "how long a difference whose change is pending is asked about again, before it is counted as in flight"),
    KEY("audit", "snapshot_max", CFG_DURATION, snapshot_max_ms, "15min", 1000, 86400000,
        "longest that the snapshots of an audit are held; then it ends incomplete"),
    KEY("audit", "repair", CFG_BOOL, repair, "false", 0, 0, "repair what was found, within the two bounds that follow"),
    KEY("audit", "max_repairs", CFG_STRING, max_repairs, "1000,1%", 0, 0,
        "most repairs of one run, absolute, as a share of the ledger, or both; with more nothing is repaired"),
    KEY("audit", "max_deletions", CFG_STRING, max_deletions, "100,0.1%", 0, 0,
        "most of them that take something from somebody"),
    KEY("audit", "plan", CFG_STRING, plan, "", 0, 0, "file into which what a repair would do is written"),
    KEY("audit", "apply", CFG_STRING, apply, "", 0, 0,
        "such a file: exactly that is done, if nothing of it has changed since"),
    KEY("audit", "json", CFG_BOOL, json, "false", 0, 0, "report in JSON lines"),
    KEY("audit", "progress", CFG_BOOL, progress, "true", 0, 0, "show on standard error how far it is"),
    KEY("audit", "textfile", CFG_STRING, textfile, "", 0, 0,
        "file for Prometheus' node exporter, replaced at the end of each run"),
    CFG_LOG_KEYS(struct settings, log),
    {0},
};

static const struct cfg_option options[] = {
    {"--type", "audit", "type", NULL, "TYPE"},
    {"--object", "audit", "object", NULL, "OBJECT"},
    {"--subject", "audit", "subject", NULL, "SUBJECT"},
    {"--full", "audit", "full", "true", NULL},
    {"--accept-shrink", "audit", "accept_shrink", "true", NULL},
    {"--repair", "audit", "repair", "true", NULL},
    {"--max-repairs", "audit", "max_repairs", NULL, "CAP"},
    {"--max-deletions", "audit", "max_deletions", NULL, "CAP"},
    {"--plan", "audit", "plan", NULL, "FILE"},
    {"--apply", "audit", "apply", NULL, "FILE"},
    {"--json", "audit", "json", "true", NULL},
    {"--no-progress", "audit", "progress", "false", NULL},
    {"--textfile", "audit", "textfile", NULL, "FILE"},
    {0},
};

/* One part of a cap. */
static bool take_part(const char *text, size_t len, struct cap *out)
{
    char copy[32], *end;
    double v;

    if (!len || len >= sizeof copy || strspn(text, "0123456789.%") < len)
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    v = strtod(copy, &end);
    if (end == copy)
        return false;
    if (strcmp(end, "%") == 0 && v <= 100 && out->share < 0) {
        out->share = v / 100;
        return true;
    }
    if (*end || strchr(copy, '.') || v > 1e15 || out->most >= 0)
        return false;
    out->most = (int64_t)v;
    return true;
}

enum status cap_parse(const char *text, struct cap *out, struct err *err)
{
    const char *at = text;

    *out = (struct cap){-1, -1};
    for (;;) {
        size_t space = strspn(at, " "), len = strcspn(at + space, ", ");

        if (!take_part(at + space, len, out))
            return err_set(err, ST_CONFIG, NULL, "\"%s\" is not a number, a share such as 0.1%%, or both, as 100,0.1%%",
                           text);
        at += space + len;
        at += strspn(at, " ");
        if (!*at)
            return ST_OK;
        at++;
    }
}

int64_t cap_of(const struct cap *c, int64_t tuples)
{
    int64_t share = c->share < 0 ? INT64_MAX : (int64_t)floor(c->share * (double)tuples);

    if (c->share > 0 && share < 1)
        share = 1;
    return c->most >= 0 && c->most < share ? c->most : share;
}

static enum status check_cap(const char *key, const char *text, struct err *err)
{
    struct cap cap;
    struct err why = {0};

    if (cap_parse(text, &cap, &why) == ST_OK)
        return ST_OK;
    return err_set(err, ST_CONFIG, NULL, "audit.%s: %s", key, why.text);
}

static enum status check_scope(const struct settings *s, struct err *err)
{
    struct err why = {0};
    size_t len = strlen(s->type);

    if (!!*s->type + !!*s->object + !!*s->subject > 1)
        return err_set(err, ST_CONFIG, NULL, "audit.type, audit.object and audit.subject exclude each other");
    if (*s->object && tuple_check_object((struct bytes){s->object, strlen(s->object)}, &why) != ST_OK)
        return err_set(err, ST_CONFIG, NULL, "audit.object = %s: %s", s->object, why.text);
    if (*s->subject && tuple_check_subject((struct bytes){s->subject, strlen(s->subject)}, &why) != ST_OK)
        return err_set(err, ST_CONFIG, NULL, "audit.subject = %s: %s", s->subject, why.text);
    if (len && (strpbrk(s->type, ":#@ ") || len > 254))
        return err_set(err, ST_CONFIG, NULL, "audit.type = %s: a type holds none of ':', '#', '@' and spaces", s->type);
    return ST_OK;
}

/* "type#relation, .." */
static enum status check_skip(const char *text, struct err *err)
{
    for (const char *at = text + strspn(text, ", "); *at; at += strspn(at, ", ")) {
        size_t len = strcspn(at, ", "), type = strcspn(at, "#");

        if (type == 0 || type + 1 >= len || memchr(at, ':', len) || memchr(at, '@', len) ||
            memchr(at + type + 1, '#', len - type - 1))
            return err_set(err, ST_CONFIG, NULL, "audit.skip = \"%s\": \"%.*s\" is no TYPE#RELATION", text, (int)len,
                           at);
        at += len;
    }
    return ST_OK;
}

/* Views by type. Whether they are there is seen in the database. */
static enum status check_expected(const struct cfg_map_item *item, struct err *err)
{
    const char *at = item->value + strspn(item->value, ", ");

    if (!*item->key || strpbrk(item->key, ":#@ "))
        return err_set(err, ST_CONFIG, NULL, "%s: expected.%s: a type holds none of ':', '#', '@' and spaces",
                       item->origin, item->key);
    if (!*at)
        return err_set(err, ST_CONFIG, NULL, "%s: expected.%s names no view", item->origin, item->key);
    for (; *at; at += strspn(at, ", ")) {
        size_t len = strcspn(at, ", ");

        if (!memchr(at, '.', len))
            return err_set(err, ST_CONFIG, NULL, "%s: expected.%s = \"%.*s\": must be named with its schema",
                           item->origin, item->key, (int)len, at);
        at += len;
    }
    return ST_OK;
}

/* A file that is made under another name and renamed: its folder has to be there. */
static enum status check_place(const char *key, const char *path, struct err *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");

    if (!*path || (n < (int)sizeof folder && access(folder, W_OK | X_OK) == 0))
        return ST_OK;
    return err_set(err, ST_CONFIG, NULL, "audit.%s: cannot write %s: %s", key, path, strerror(errno));
}

static enum status check_dsns(const struct settings *s, struct err *err)
{
    const struct {
        const char *key, *dsn;
    } more[] = {{"pg.read_dsn", s->pg_read_dsn}, {"openfga.dsn", s->openfga_dsn}, {"authz-store.dsn", s->authz_dsn}};
    enum status st = pg_dsn_check(s->pg_dsn, err);

    for (size_t i = 0; i < sizeof more / sizeof *more && st == ST_OK; i++) {
        if (*more[i].dsn && (st = pg_dsn_check(more[i].dsn, err)) != ST_OK)
            (void)err_prefix(err, "%s", more[i].key);
    }
    if (st == ST_OK && *s->openfga_dsn && *s->authz_dsn)
        st = err_set(err, ST_CONFIG, NULL, "openfga.dsn and authz-store.dsn are both set: the store is one of them");
    return st;
}

static enum status check_files(const struct settings *s, struct err *err)
{
    enum status st = check_place("textfile", s->textfile, err);

    if (st == ST_OK)
        st = check_place("plan", s->plan, err);
    if (st == ST_OK && *s->apply && access(s->apply, R_OK) != 0)
        st = err_set(err, ST_CONFIG, NULL, "audit.apply: cannot open %s: %s", s->apply, strerror(errno));
    return st;
}

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    enum status st = check_scope(s, err);

    if (st == ST_OK)
        st = check_dsns(s, err);
    if (st == ST_OK)
        st = check_skip(s->skip, err);
    for (size_t i = 0; i < s->expected.len && st == ST_OK; i++)
        st = check_expected(&s->expected.items[i], err);
    if (st == ST_OK)
        st = store_check_settings(&s->store, err);
    if (st == ST_OK)
        st = check_cap("max_repairs", s->max_repairs, err);
    if (st == ST_OK)
        st = check_cap("max_deletions", s->max_deletions, err);
    if (st == ST_OK && *s->apply && (s->repair || *s->plan || s->full || *s->type || *s->object || *s->subject))
        st = err_set(err, ST_CONFIG, NULL,
                     "audit.apply does what its file says: repair, plan, full and scopes do not go with it");
    return st == ST_OK ? check_files(s, err) : st;
}

const struct cfg_program settings_program = {
    .name = "drift-checker",
    .summary = "proves that inventory, ledger and authorization store agree, and repairs",
    .keys = keys,
    .details =
        "A CAP is a number, a share of the ledger such as 0.1%, or both: 100,0.1%. Given on the command line it\n"
        "replaces the configured one whole.\n\n"
        "Exit codes:\n"
        "  0  clean\n"
        "  1  drift was found, repaired or not\n"
        "  2  could not complete: the reason, and what was repaired until then, is told and recorded; or bad usage\n"
        "  3  refused by a cap, or what --apply was to do has changed: nothing is repaired\n",
    .validate = validate,
    .options = options,
};
