#include "tuple-writer/scanner.h"

/* Of a transaction that revokes, this many other rows are looked at for changes to the same objects. */
#define SIBLINGS_MAX "1000"

#define ROW_COLUMNS                                                                                                    \
    "o.id, o.xid, o.object, o.relation, o.subject, (extract(epoch FROM o.created_at) * 1000000)::bigint, "             \
    "o.headers ->> 'traceparent'"
enum { COL_WHICH, COL_ID, COL_XID, COL_OBJECT, COL_RELATION, COL_SUBJECT, COL_CREATED, COL_TRACE };

/* $1 store; keyset, snapshot of the round before or NULL, rows at most. */
#define PAGE_SQL(which, condition, xid, id, last, max)                                                                 \
    "(SELECT " which ", " ROW_COLUMNS " FROM relata.outbox o "                                                         \
    "WHERE store = $1 AND " condition " AND (xid, id) > (" xid "::xid8, " id "::bigint) "                              \
    "AND (" last "::pg_snapshot IS NULL OR NOT pg_visible_in_snapshot(xid, " last "::pg_snapshot)) "                   \
    "ORDER BY store, xid, id LIMIT " max "::bigint)"

/* Both scanners in one statement: mostly there is nothing, and it is asked often. The first row has the snapshot of
 * all, in the place of an object. The snapshot of a round is the one of its first page, or an earlier one: what a page
 * sees beyond it is read again in the next round, at worst. */
static const char page_sql[] =
    "SELECT -1, NULL, NULL, pg_current_snapshot()::text, NULL, NULL, NULL, NULL UNION ALL " PAGE_SQL(
        "0", "op = 'delete'", "$2", "$3", "$4", "$5") " UNION ALL " PAGE_SQL("1", "op <> 'delete'", "$6", "$7", "$8",
                                                                             "$9");

/* Changes of the same transactions to the same objects as a page of revocations: they belong into the same Write. Two
 * bounds on xid instead of an equality, so that only the index on (store, xid, id) gives the order. */
static const char siblings_sql[] =
    "SELECT NULL, " ROW_COLUMNS " FROM unnest($2::xid8[]) AS x (xid), LATERAL (SELECT * FROM relata.outbox r "
    "WHERE r.store = $1 AND r.xid >= x.xid AND r.xid <= x.xid AND r.op <> 'delete' "
    "ORDER BY r.store, r.xid, r.id LIMIT " SIBLINGS_MAX ") o WHERE o.object = ANY ($3::text[])";

void scanner_init(struct scanner *s, bool revokes)
{
    memset(s, 0, sizeof *s);
    s->revokes = revokes;
}

void scanner_release(struct scanner *s)
{
    free(s->last);
    free(s->round);
    s->last = s->round = NULL;
}

void scanner_reset(struct scanner *s)
{
    scanner_release(s);
    s->running = false;
}

static void round_begin(struct scanner *s)
{
    size_t xmin = s->last ? strcspn(s->last, ":") : 0; /* "xmin:xmax:list" */
    free(s->round);
    s->round = NULL;
    s->running = true;
    s->id = -1;
    if (xmin == 0 || xmin >= sizeof s->xid)
        snprintf(s->xid, sizeof s->xid, "0");
    else
        snprintf(s->xid, sizeof s->xid, "%.*s", (int)xmin, s->last);
}

static void round_end(struct scanner *s)
{
    free(s->last);
    s->last = s->round;
    s->round = NULL;
    s->running = false;
}

static void row_hint(const struct pg_result *r, int row, bool revoke, struct hint *h)
{
    *h =
        (struct hint){.key = {pg_text(r, row, COL_OBJECT), pg_text(r, row, COL_RELATION), pg_text(r, row, COL_SUBJECT)},
                      .id = pg_int(r, row, COL_ID),
                      .xid = (uint64_t)pg_int(r, row, COL_XID),
                      .created_us = pg_int(r, row, COL_CREATED),
                      .revoke = revoke};
    if (pg_len(r, row, COL_TRACE) == sizeof h->traceparent - 1)
        memcpy(h->traceparent, pg_text(r, row, COL_TRACE), sizeof h->traceparent - 1);
}

/* Rows to be offered of a full page: all but those of its last transaction, unless it is the only one. */
static int page_cut(const struct pg_result *r, int first, int rows)
{
    const char *last = pg_text(r, first + rows - 1, COL_XID);
    int cut = rows;
    while (cut > 0 && strcmp(pg_text(r, first + cut - 1, COL_XID), last) == 0)
        cut--;
    return cut > 0 ? cut : rows;
}

static enum status load_siblings(struct writer *w, struct pg *pg, const struct hint *hints, int n, mono_us deadline,
                                 struct pg_result **out, struct err *err)
{
    struct buf xids, objects;
    uint64_t last = 0;
    buf_init(&xids, 1u << 20);
    buf_init(&objects, 4u << 20);
    pg_array_begin(&xids);
    pg_array_begin(&objects);
    for (int i = 0; i < n; i++) {
        if (hints[i].xid != last)
            pg_array_add_int(&xids, (int64_t)hints[i].xid);
        last = hints[i].xid;
        pg_array_add(&objects, hints[i].key.object);
    }
    pg_array_end(&xids);
    pg_array_end(&objects);
    const struct pg_param params[] = {pg_p_text(w->cfg->store.name), pg_p_buf(&xids), pg_p_buf(&objects)};
    enum status st = pg_query(pg, "scan_siblings", siblings_sql, params, 3, deadline, out, err);
    buf_release(&xids);
    buf_release(&objects);
    return st;
}

/* Offer the rows, and with revocations what belongs to them. */
static enum status offer(struct scanner *s, struct writer *w, struct pg *pg, const struct pg_result *r, int first,
                         int n, mono_us deadline, struct err *err)
{
    struct pg_result *siblings = NULL;
    enum status st = ST_OK;
    struct hint *hints = calloc((size_t)n, sizeof *hints);
    if (!hints)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    for (int i = 0; i < n; i++)
        row_hint(r, first + i, s->revokes, &hints[i]);
    if (s->revokes)
        st = load_siblings(w, pg, hints, n, deadline, &siblings, err);
    int more = st == ST_OK && siblings ? pg_rows(siblings) : 0;
    if (more > 0) {
        struct hint *grown = realloc(hints, (size_t)(n + more) * sizeof *hints);
        if (grown) {
            hints = grown;
            for (int i = 0; i < more; i++)
                row_hint(siblings, i, false, &hints[n + i]);
            n += more;
        }
    }
    if (st == ST_OK)
        lanes_offer(w->lanes, hints, (size_t)n);
    free(hints);
    pg_result_free(siblings);
    return st;
}

/* Deal with the scanner's part of the page: `n` rows from `first` on. */
static enum status take_part(struct scanner *s, struct writer *w, struct pg *pg, const struct pg_result *r, int first,
                             int n, struct scanned *out, mono_us deadline, struct err *err)
{
    enum status st = ST_OK;
    if (!s->round && !(s->round = strdup(pg_text(r, 0, COL_OBJECT))))
        return err_set(err, ST_NOMEM, NULL, "no memory");
    bool full = n == SCAN_PAGE;
    if (full)
        n = page_cut(r, first, n);
    if (n > 0)
        st = offer(s, w, pg, r, first, n, deadline, err);
    if (st != ST_OK)
        return st;
    if (n > 0) {
        snprintf(s->xid, sizeof s->xid, "%s", pg_text(r, first + n - 1, COL_XID));
        s->id = pg_int(r, first + n - 1, COL_ID);
    }
    out->rows += (size_t)n;
    out->more |= full;
    if (!full)
        round_end(s);
    return ST_OK;
}

/* How many rows from `first` on are those of scanner `which`. */
static int part_len(const struct pg_result *r, int first, int which)
{
    int n = 0;
    while (first + n < pg_rows(r) && pg_int(r, first + n, COL_WHICH) == which)
        n++;
    return n;
}

enum status scanners_step(struct scanner *const scanners[2], const bool room[2], struct writer *w, struct pg *pg,
                          struct scanned *out, struct err *err)
{
    mono_us deadline = deadline_in_ms(w->cfg->statement_timeout_ms);
    char id[2][24], max[2][24];
    struct pg_param params[9] = {pg_p_text(w->cfg->store.name)};
    struct pg_result *r = NULL;
    *out = (struct scanned){0};
    for (int i = 0; i < 2; i++) {
        struct scanner *s = scanners[i];
        if (!s->running)
            round_begin(s);
        params[4 * i + 1] = pg_p_text(s->xid);
        params[4 * i + 2] = pg_p_int(s->id, id[i]);
        params[4 * i + 3] = pg_p_text(s->last);
        params[4 * i + 4] = pg_p_int(room[i] ? SCAN_PAGE : 0, max[i]);
    }
    enum status st = pg_query(pg, "scan", page_sql, params, 9, deadline, &r, err);
    for (int i = 0, first = 1; i < 2 && st == ST_OK; i++) {
        int n = part_len(r, first, i);
        if (room[i])
            st = take_part(scanners[i], w, pg, r, first, n, out, deadline, err);
        first += n;
        if (i == 1 && st == ST_OK && first != pg_rows(r))
            st = err_set(err, ST_FATAL, NULL, "a page of the outbox came in another order than it was asked for");
    }
    pg_result_free(r);
    return st;
}
