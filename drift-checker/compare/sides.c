/* sides.c - each side as SQL, and the connections with their snapshots. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/stop.h"
#include "drift-checker/compare/internal.h"

#define CONNECT_MS 10000
/* Each part is the next one's seed: no parts run together, and none is copied. The salt belongs in between. */
#define HASH                                                                                                           \
    "hashtextextended(subject COLLATE \"C\", hashtextextended(relation COLLATE \"C\", hashtextextended(object "        \
    "COLLATE \"C\", "
#define HASH_END ")))"

void add_literal(struct buf *out, const char *text)
{
    buf_addc(out, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            buf_addc(out, '\'');
        buf_addc(out, *text);
    }
    buf_addc(out, '\'');
}

int64_t sides_ms(const struct sides *s)
{
    mono_us now = clock_mono_us();
    int64_t left = s->until > now ? (s->until - now) / 1000 : 0;

    return left < s->job->cfg->statement_timeout_ms ? left : s->job->cfg->statement_timeout_ms;
}

enum status side_ask(const struct sides *s, struct pg *pg, const char *sql, struct pg_result **r, struct err *err)
{
    return pg_query(pg, NULL, sql, NULL, 0, deadline_in_ms(sides_ms(s)), r, err);
}

/* ---- what a side's rows are: a FROM item with object, relation, subject, condition_name, condition_context ---- */

/* The condition of a scope on a side whose columns are in text. */
static void add_scope(const struct sides *s, struct buf *out)
{
    const struct settings *cfg = s->job->cfg;

    if (*cfg->object) {
        buf_adds(out, " AND object = ");
        add_literal(out, cfg->object);
    } else if (*cfg->subject) {
        buf_adds(out, " AND subject = ");
        add_literal(out, cfg->subject);
    } else if (*cfg->type) { /* ':' is followed by ';' */
        buf_adds(out, " AND object COLLATE \"C\" >= ");
        add_literal(out, cfg->type);
        buf_adds(out, " || ':' AND object COLLATE \"C\" < ");
        add_literal(out, cfg->type);
        buf_adds(out, " || ';'");
    }
}

static void add_ledger(const struct sides *s, struct buf *out)
{
    buf_adds(out, "(SELECT object, relation, subject, condition_name, condition_context::text FROM relata.tuple WHERE "
                  "present AND store = ");
    add_literal(out, s->job->cfg->store.name);
    add_scope(s, out);
    buf_adds(out, ") t");
}

static void add_authz(const struct sides *s, struct buf *out)
{
    buf_adds(out, "(SELECT object, relation, subject, condition AS condition_name, context AS condition_context FROM "
                  "relata_store.tuple WHERE store = ");
    add_literal(out, s->job->store_id);
    add_scope(s, out);
    buf_adds(out, ") t");
}

static void add_observed(const struct sides *s, struct buf *out)
{
    const struct settings *cfg = s->job->cfg;
    const char *colon = strchr(cfg->object, ':');

    if (s->pages) {
        buf_adds(out,
                 "(SELECT object, relation, subject, condition_name, condition_context FROM pg_temp.observed WHERE "
                 "true");
        add_scope(s, out);
        buf_adds(out, ") t");
        return;
    }
    if (s->authz) {
        add_authz(s, out);
        return;
    }
    buf_adds(out, "(SELECT object_type, (object_type || ':' || object_id) COLLATE \"C\" AS object, relation COLLATE "
                  "\"C\" AS relation, "
                  "_user COLLATE \"C\" AS subject, nullif(condition_name, '') AS condition_name, "
                  "encode(condition_context, 'hex') AS condition_context FROM public.tuple WHERE store = ");
    add_literal(out, s->job->store_id);
    if (*cfg->object) {
        buf_addf(out, " AND object_type = left(");
        add_literal(out, cfg->object);
        buf_addf(out, ", %d) AND object_id = substr(", (int)(colon - cfg->object));
        add_literal(out, cfg->object);
        buf_addf(out, ", %d)", (int)(colon - cfg->object) + 2);
    } else if (*cfg->subject) {
        buf_adds(out, " AND _user = ");
        add_literal(out, cfg->subject);
    } else if (*cfg->type) {
        buf_adds(out, " AND object_type = ");
        add_literal(out, cfg->type);
    }
    buf_adds(out, ") t");
}

static void add_tracked(const struct sides *s, const struct source *source, const char *buckets, struct buf *out)
{
    const struct settings *cfg = s->job->cfg;

    if (*cfg->object || *cfg->subject) {
        buf_addf(out, "relata.expected_about(%u::oid, ", source->table);
        if (*cfg->object)
            add_literal(out, cfg->object);
        else
            buf_adds(out, "NULL");
        buf_adds(out, ", ");
        if (*cfg->subject)
            add_literal(out, cfg->subject);
        else
            buf_adds(out, "NULL");
        buf_adds(out, ") e");
        return;
    }
    buf_addf(out, "relata.expected_part(%u::oid, %lld, %d, ", source->table, (long long)s->salt, COMPARE_BUCKETS - 1);
    if (buckets)
        add_literal(out, buckets);
    else
        buf_adds(out, "NULL");
    buf_adds(out, ") e");
}

static void add_source_rows(const struct sides *s, const struct source *source, const char *buckets, struct buf *out)
{
    buf_addf(out, "SELECT object::text, relation::text, subject::text, %s FROM ",
             source->tracked || source->condition ? "condition_name::text, condition_context::text"
                                                  : "NULL::text AS condition_name, NULL::text AS condition_context");
    if (source->tracked)
        add_tracked(s, source, buckets, out);
    else
        buf_addf(out, "%s e", source->name);
    buf_adds(out, " WHERE object IS NOT NULL AND relation IS NOT NULL AND subject IS NOT NULL");
    add_scope(s, out);
}

static void add_expected(const struct sides *s, const char *buckets, struct buf *out)
{
    buf_addc(out, '(');
    for (size_t i = 0; i < s->sources->len; i++) {
        if (i)
            buf_adds(out, " UNION ALL ");
        add_source_rows(s, &s->sources->items[i], buckets, out);
    }
    if (!s->sources->len)
        buf_adds(out, "SELECT NULL::text AS object, NULL::text AS relation, NULL::text AS subject, NULL::text AS "
                      "condition_name, NULL::text AS condition_context WHERE false");
    buf_adds(out, ") t");
}

void side_rows_sql(const struct sides *s, enum side side, const char *buckets, struct buf *out)
{
    buf_adds(out, "SELECT object, relation, subject, condition_name, condition_context FROM ");
    if (side == SIDE_EXPECTED)
        add_expected(s, buckets, out);
    else if (side == SIDE_LEDGER)
        add_ledger(s, out);
    else
        add_observed(s, out);
    if (buckets)
        buf_addf(out, " WHERE (condition_name IS NOT NULL OR " HASH "%lld" HASH_END " & %d = ANY ('%s'::bigint[]))",
                 (long long)s->salt, COMPARE_BUCKETS - 1, buckets);
}

void side_stream_sql(const struct sides *s, enum side side, const char *buckets, struct buf *out)
{
    side_rows_sql(s, side, buckets, out);
    buf_adds(out,
             " ORDER BY object COLLATE \"C\", relation COLLATE \"C\", subject COLLATE \"C\", condition_name COLLATE "
             "\"C\" NULLS FIRST, condition_context COLLATE \"C\" NULLS FIRST");
}

/* "(.. OR ..)": the pair is one that differs, and of which no source speaks, if that is asked. False: there is none. */
static bool add_pairs(struct pairs *pairs, bool native, bool unexpected, struct buf *out)
{
    const char *between = "(";
    size_t at;

    for (struct pair *p = pairs_first(pairs, &at); p; p = pairs_next(pairs, &at, p)) {
        if (!p->differs || (unexpected && p->expected))
            continue;
        buf_addf(out, "%srelation = ", between);
        add_literal(out, p->relation);
        buf_adds(out, native ? " AND object_type = " : " AND starts_with(object, ");
        add_literal(out, p->type);
        buf_adds(out, native ? "" : " || ':')");
        between = " OR ";
    }
    if (*between == '(')
        return false;
    buf_addc(out, ')');
    return true;
}

/* The rows of one side, or of one source. */
static void add_side(const struct sides *s, enum side side, const struct source *source, struct buf *out)
{
    if (source) {
        buf_addc(out, '(');
        add_source_rows(s, source, NULL, out);
        buf_adds(out, ") t");
    } else if (side == SIDE_LEDGER) {
        add_ledger(s, out);
    } else {
        add_observed(s, out);
    }
}

static void digest_tracked(const struct sides *s, const struct source *source, int mask, struct buf *out)
{
    buf_addf(out,
             "COPY (SELECT object_type, relation, bucket, n, total FROM relata.expected_digest(%u::oid, %lld, %d)) TO "
             "STDOUT",
             source->table, (long long)s->salt, mask);
}

/* What is the same for all rows is not grouped by, which costs as much as the hash. */
void side_digest_sql(const struct sides *s, enum side side, const struct source *source, enum digest_by by,
                     struct pairs *only, struct buf *out)
{
    bool native = side == SIDE_OBSERVED && !s->pages && !s->authz;
    int mask = by == BY_BUCKET ? COMPARE_BUCKETS - 1 : 0;
    struct buf wanted, unexpected;

    if (source && source->tracked) {
        digest_tracked(s, source, mask, out);
        return;
    }
    buf_init(&wanted, 1 << 20);
    buf_init(&unexpected, 1 << 20);
    if (only && !add_pairs(only, native, false, &wanted))
        buf_adds(&wanted, "false");
    if (!only || side != SIDE_LEDGER || !add_pairs(only, native, true, &unexpected))
        buf_clear(&unexpected);
    buf_adds(out, "COPY (SELECT ");
    buf_adds(out, by != BY_PAIR ? "''" : native ? "object_type" : "split_part(object, ':', 1)");
    if (by == BY_PAIR)
        buf_adds(out, ", relation");
    else if (unexpected.len)
        buf_addf(out, ", CASE WHEN %s THEN 'x' ELSE '' END", buf_str(&unexpected));
    else
        buf_adds(out, ", ''");
    if (mask)
        buf_addf(out, ", CASE WHEN condition_name IS NULL THEN " HASH "%lld" HASH_END " & %d ELSE -1 END, count(*), ",
                 (long long)s->salt, mask);
    else
        buf_adds(out, ", CASE WHEN condition_name IS NULL THEN 0 ELSE -1 END, count(*), ");
    buf_addf(out, "coalesce(sum(" HASH "%lld" HASH_END "), 0) FROM ", (long long)s->salt);
    add_side(s, side, source, out);
    if (only)
        buf_addf(out, " WHERE %s", buf_str(&wanted));
    buf_addf(out, " GROUP BY %s3) TO STDOUT", by == BY_PAIR ? "1, 2, " : unexpected.len ? "2, " : "");
    buf_release(&wanted);
    buf_release(&unexpected);
}

/* ---- connections ---- */

static enum status connect_to(struct sides *s, struct pg **pg, const char *dsn, const char *begin, struct err *err)
{
    struct pg_config cfg = {.dsn = dsn, .application_name = "drift-checker", .watch_stop = true};
    enum status st = pg_open(pg, &cfg, deadline_in_ms(CONNECT_MS), err);

    if (st == ST_OK)
        pg_heed(*pg, stop_flag()); /* a sum of millions of rows can be interrupted */
    if (st == ST_OK && begin)
        st = pg_exec(*pg, begin, deadline_in_ms(sides_ms(s)), err);
    return st;
}

#define SNAPSHOT "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL cursor_tuple_fraction = 1"

/* Expected and ledger on two connections in one snapshot. */
static enum status open_inventory(struct sides *s, struct err *err)
{
    const struct settings *cfg = s->job->cfg;
    const char *dsn = *cfg->pg_read_dsn ? cfg->pg_read_dsn : cfg->pg_dsn;
    struct pg_result *r = NULL;
    struct buf set;
    enum status st = connect_to(s, &s->pg[SIDE_EXPECTED], dsn, SNAPSHOT, err);

    buf_init(&set, 4096);
    if (st == ST_OK)
        st = side_ask(s, s->pg[SIDE_EXPECTED], "SELECT pg_export_snapshot()", &r, err);
    if (st == ST_OK)
        st = connect_to(s, &s->pg[SIDE_LEDGER], dsn, SNAPSHOT, err);
    if (st == ST_OK) {
        buf_addf(&set, "SET TRANSACTION SNAPSHOT '%s'", pg_text(r, 0, 0));
        st = pg_exec(s->pg[SIDE_LEDGER], buf_str(&set), deadline_in_ms(sides_ms(s)), err);
    }
    pg_result_free(r);
    buf_release(&set);
    return st;
}

enum status sides_open(struct sides *s, const struct compare_job *job, const struct sources *sources, struct err *err)
{
    const struct settings *cfg = job->cfg;
    enum status st;

    *s = (struct sides){.job = job,
                        .sources = sources,
                        .pages = !*cfg->openfga_dsn && !*cfg->authz_dsn,
                        .authz = *cfg->authz_dsn != '\0'};
    if (getrandom(&s->salt, sizeof s->salt, 0) != (ssize_t)sizeof s->salt)
        return err_set(err, ST_FATAL, NULL, "no random numbers from the system");
    s->salt >>= 1; /* a bigint that is not negative */
    if (s->pages) {
        s->until = clock_mono_us() + (mono_us)86400 * 1000000; /* no snapshot is held yet */
        st = connect_to(s, &s->pg[SIDE_OBSERVED], cfg->pg_dsn, NULL, err);
        if (st == ST_OK)
            st = pages_read(s, err);
        s->until = deadline_in_ms(cfg->snapshot_max_ms);
        if (st == ST_OK)
            st = pg_exec(s->pg[SIDE_OBSERVED], SNAPSHOT, deadline_in_ms(sides_ms(s)), err);
    } else {
        s->until = deadline_in_ms(cfg->snapshot_max_ms);
        st = connect_to(s, &s->pg[SIDE_OBSERVED], s->authz ? cfg->authz_dsn : cfg->openfga_dsn, SNAPSHOT, err);
        if (st != ST_OK)
            (void)err_prefix(err, "%s database", s->authz ? "authz-store's" : "OpenFGA's");
    }
    return st == ST_OK ? open_inventory(s, err) : st;
}

void sides_close(struct sides *s)
{
    for (int i = 0; i < SIDES; i++)
        pg_close(s->pg[i]);
    memset(s->pg, 0, sizeof s->pg);
}
