#include "tuple-writer/ledger.h"

#include <stdlib.h>
#include <string.h>

/* Four keys' worth of arrays stay below this by far: 100 keys of at most 2 KiB, doubled by escapes. */
#define ARRAY_MAX (4u << 20)

/* Plans are made for small tables and used on large ones, before any statistics exist: only index look-ups are right
 * for a batch at every size. */
static const char session_sql[] = "SET synchronous_commit = on; SET enable_seqscan = off; SET enable_hashjoin = off; "
                                  "SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off";

/* The outbox rows of a key: by the hash index alone. The rest must not look like an index condition to the planner,
 * which would otherwise walk the whole store's rows while there are no statistics. */
#define OUTBOX_OF(o, r, s)                                                                                             \
    "b.key = relata.key_hash(" o ", " r ", " s ") AND (b.store, b.object, b.relation, b.subject) "                     \
    "IS NOT DISTINCT FROM ($1, " o ", " r ", " s ")"

void ledger_init(struct ledger *l, const struct settings *cfg)
{
    memset(l, 0, sizeof *l);
    l->cfg = cfg;
    struct buf *bufs[] = {&l->objects, &l->relations, &l->subjects, &l->numbers};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_init(bufs[i], ARRAY_MAX);
}

void ledger_release(struct ledger *l)
{
    pg_result_free(l->rows);
    l->rows = NULL;
    pg_close(l->pg);
    l->pg = NULL;
    struct buf *bufs[] = {&l->objects, &l->relations, &l->subjects, &l->numbers};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_release(bufs[i]);
}

static mono_us statement_deadline(const struct ledger *l)
{
    return deadline_in_ms(l->cfg->statement_timeout_ms);
}

static enum status ledger_connect(struct ledger *l, struct err *err)
{
    enum status st = ST_OK;
    if (!l->pg) {
        const struct pg_config pc = {.dsn = l->cfg->pg_dsn, .application_name = "relata tuple-writer lane"};
        st = pg_open(&l->pg, &pc, statement_deadline(l), err);
    } else if (!pg_alive(l->pg)) {
        st = pg_reopen(l->pg, statement_deadline(l), err);
    } else if (l->generation == pg_generation(l->pg)) {
        return ST_OK;
    }
    if (st == ST_OK)
        st = pg_exec(l->pg, session_sql, statement_deadline(l), err);
    if (st == ST_OK)
        l->generation = pg_generation(l->pg);
    return st;
}

static void keys_begin(struct ledger *l, enum pg_elem numbers)
{
    pg_bin_begin(&l->objects, PG_ELEM_TEXT);
    pg_bin_begin(&l->relations, PG_ELEM_TEXT);
    pg_bin_begin(&l->subjects, PG_ELEM_TEXT);
    pg_bin_begin(&l->numbers, numbers);
}

static void keys_add(struct ledger *l, const struct tuple_key *k)
{
    pg_bin_add(&l->objects, k->object);
    pg_bin_add(&l->relations, k->relation);
    pg_bin_add(&l->subjects, k->subject);
}

static enum status keys_end(struct ledger *l, struct err *err)
{
    struct buf *bufs[] = {&l->objects, &l->relations, &l->subjects, &l->numbers};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        pg_bin_end(bufs[i]);
        if (!buf_ok(bufs[i]))
            return err_set(err, ST_TOO_BIG, NULL, "the batch's keys do not fit into a statement");
    }
    return ST_OK;
}

static const char begin_sql[] =
    "WITH former AS (DELETE FROM relata.inflight WHERE id = $6),\n"
    "     put AS (INSERT INTO relata.inflight (writer, store, objects, relations, subjects)\n"
    "             VALUES ($7, $1, $2, $3, $4) RETURNING id)\n"
    "SELECT (SELECT id FROM put), t.version, t.present, t.condition_name, t.condition_context,\n"
    "       k.xid IS NULL OR pg_visible_in_snapshot(k.xid, pg_current_snapshot()),\n"
    "       EXISTS (SELECT FROM relata.outbox b WHERE " OUTBOX_OF(
        "k.o", "k.r",
        "k.s") "),\n"
               "       (SELECT s.store_id FROM relata.store s WHERE s.name = $1) IS NOT DISTINCT FROM $8\n"
               "FROM unnest($2::text[], $3::text[], $4::text[], $5::xid8[]) WITH ORDINALITY AS k (o, r, s, xid, n)\n"
               "LEFT JOIN relata.tuple t ON t.store = $1 AND t.object = k.o AND t.relation = k.r AND t.subject = k.s\n"
               "ORDER BY k.n";

static void item_read(struct item *it, const struct pg_result *r, int row)
{
    it->known = !pg_is_null(r, row, 1);
    it->version = pg_int(r, row, 1);
    it->present = it->known && pg_bool(r, row, 2);
    it->condition_name = it->present && !pg_is_null(r, row, 3) ? pg_text(r, row, 3) : NULL;
    it->condition_context = it->present && !pg_is_null(r, row, 4) ? pg_text(r, row, 4) : NULL;
    it->visible = pg_bool(r, row, 5) || it->hint_id <= it->version;
    it->pending = pg_bool(r, row, 6);
    /* Written in any case: an unknown outcome must be followed by a known one, before which no late batch covers it. */
    if (it->force || (it->late_until && !it->covered))
        return;
    if (!it->visible)
        it->state = ITEM_UNSEEN;
    else if (!it->pending)
        it->state = ITEM_IDLE;
}

enum status ledger_begin(struct ledger *l, struct batch *b, int64_t writer_id, const char *store_id, struct err *err)
{
    pg_result_free(l->rows);
    l->rows = NULL;
    enum status st = ledger_connect(l, err);
    if (st != ST_OK)
        return st;
    keys_begin(l, PG_ELEM_XID8);
    for (size_t i = 0; i < b->n; i++) {
        keys_add(l, b->items[i].key);
        if (b->items[i].unseen)
            pg_bin_add_int(&l->numbers, (int64_t)b->items[i].hint_xid);
        else
            pg_bin_add(&l->numbers, NULL);
    }
    st = keys_end(l, err);
    if (st != ST_OK)
        return st;
    char former[24], writer[24];
    const struct pg_param params[] = {pg_p_text(l->cfg->store.name), pg_p_bin(&l->objects), pg_p_bin(&l->relations),
                                      pg_p_bin(&l->subjects),        pg_p_bin(&l->numbers), pg_p_int(b->intent, former),
                                      pg_p_int(writer_id, writer),   pg_p_text(store_id)};
    st = pg_query(l->pg, "writer_begin", begin_sql, params, 8, statement_deadline(l), &l->rows, err);
    if (st != ST_OK)
        return st;
    if (pg_rows(l->rows) != (int)b->n)
        return err_set(err, ST_FATAL, NULL, "%d rows for %zu keys", pg_rows(l->rows), b->n);
    b->intent = pg_int(l->rows, 0, 0);
    b->pinned = pg_bool(l->rows, 0, 7);
    for (size_t i = 0; i < b->n; i++)
        item_read(&b->items[i], l->rows, (int)i);
    return ST_OK;
}

/* synchronous_commit = off: an acknowledgement that a crash of Postgres forgets is only repeated. */
static const char ack_sql[] =
    "WITH k AS MATERIALIZED (SELECT o, r, s, v, n FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[])\n"
    "                        WITH ORDINALITY AS u (o, r, s, v, n)),\n"
    "     moved AS MATERIALIZED (SELECT k.n FROM k LEFT JOIN relata.tuple t\n"
    "               ON t.store = $1 AND t.object = k.o AND t.relation = k.r AND t.subject = k.s\n"
    "               WHERE coalesce(t.version, 0) <> k.v),\n"
    "     applied AS (DELETE FROM relata.outbox b USING k WHERE " OUTBOX_OF(
        "k.o", "k.r",
        "k.s") "\n"
               "               AND b.id <= k.v),\n"
               "     letters AS (UPDATE relata.dead_letter d SET closed_at = clock_timestamp(),\n"
               "               closed_how = CASE WHEN d.outbox_id < k.v THEN 'superseded' ELSE 'applied' END FROM k\n"
               "               WHERE EXISTS (SELECT FROM relata.dead_letter WHERE store = $1 AND closed_at IS NULL)\n"
               "               AND d.store = $1 AND d.object = k.o AND d.relation = k.r AND d.subject = k.s\n"
               "               AND d.closed_at IS NULL AND (d.outbox_id IS NULL OR d.outbox_id <= k.v)),\n"
               "     intent AS (DELETE FROM relata.inflight WHERE id = $6 AND NOT EXISTS (SELECT FROM moved))\n"
               "SELECT moved.n FROM (SELECT set_config('synchronous_commit', 'off', true)) AS c LEFT JOIN moved ON "
               "true";

static bool item_acks(const struct item *it, mono_us now)
{
    return it->state == ITEM_APPLIED && it->late_until <= now;
}

enum status ledger_ack(struct ledger *l, struct batch *b, mono_us now, bool keep_intent, struct err *err)
{
    enum status st = ledger_connect(l, err);
    if (st != ST_OK)
        return st;
    struct item *acked[STORE_WRITE_MAX];
    size_t n = 0;
    keys_begin(l, PG_ELEM_INT8);
    for (size_t i = 0; i < b->n; i++) {
        if (!item_acks(&b->items[i], now))
            continue;
        keys_add(l, b->items[i].key);
        pg_bin_add_int(&l->numbers, b->items[i].version);
        acked[n++] = &b->items[i];
    }
    st = keys_end(l, err);
    if (st != ST_OK || n == 0)
        return st;
    char intent[24];
    const struct pg_param params[] = {pg_p_text(l->cfg->store.name), pg_p_bin(&l->objects),
                                      pg_p_bin(&l->relations),       pg_p_bin(&l->subjects),
                                      pg_p_bin(&l->numbers),         pg_p_int(keep_intent ? 0 : b->intent, intent)};
    struct pg_result *r = NULL;
    st = pg_query(l->pg, "writer_ack", ack_sql, params, 6, statement_deadline(l), &r, err);
    if (st != ST_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        acked[i]->state = ITEM_ACKED;
    bool moved = false;
    for (int i = 0; i < pg_rows(r); i++) {
        int64_t at = pg_int(r, i, 0);
        if (at >= 1 && (size_t)at <= n) {
            acked[at - 1]->state = ITEM_MOVED;
            moved = true;
        }
    }
    pg_result_free(r);
    if (!moved && !keep_intent)
        b->intent = 0;
    return ST_OK;
}

static const char park_sql[] = "WITH gone AS (DELETE FROM relata.outbox b WHERE " OUTBOX_OF(
    "$2::text", "$3::text",
    "$4::text") "\n"
                "              AND b.id <= $5 RETURNING b.*),\n"
                "     newest AS (SELECT * FROM gone ORDER BY id DESC LIMIT 1),\n"
                "     intent AS (DELETE FROM relata.inflight WHERE id = $6)\n"
                "INSERT INTO relata.dead_letter AS d (outbox_id, store, op, object, relation, subject, "
                "condition_name,\n"
                "    condition_context, actor, headers, xid, created_at, code, reason, model_id)\n"
                "SELECT coalesce(g.id, $5), $1, coalesce(g.op, $7), $2, $3, $4, coalesce(g.condition_name, $8),\n"
                "    coalesce(g.condition_context, $9::jsonb), g.actor, g.headers, g.xid, g.created_at, $10, $11, $12\n"
                "FROM (SELECT) AS one LEFT JOIN newest g ON true\n"
                "ON CONFLICT (store, object, relation, subject) WHERE closed_at IS NULL DO UPDATE SET\n"
                "    outbox_id = excluded.outbox_id, op = excluded.op, condition_name = excluded.condition_name,\n"
                "    condition_context = excluded.condition_context, actor = coalesce(excluded.actor, d.actor),\n"
                "    headers = coalesce(excluded.headers, d.headers), xid = coalesce(excluded.xid, d.xid),\n"
                "    created_at = coalesce(excluded.created_at, d.created_at), code = excluded.code, reason = "
                "excluded.reason,\n"
                "    model_id = excluded.model_id, attempts = d.attempts + 1";

enum status ledger_park(struct ledger *l, struct batch *b, struct item *it, const char *model_id, const struct err *why,
                        bool keep_intent, struct err *err)
{
    enum status st = ledger_connect(l, err);
    if (st != ST_OK)
        return st;
    char version[24], intent[24];
    const struct pg_param params[] = {pg_p_text(l->cfg->store.name),
                                      pg_p_text(it->key->object),
                                      pg_p_text(it->key->relation),
                                      pg_p_text(it->key->subject),
                                      pg_p_int(it->version, version),
                                      pg_p_int(keep_intent ? 0 : b->intent, intent),
                                      pg_p_text(it->present ? "write" : "delete"),
                                      pg_p_text(it->condition_name),
                                      pg_p_text(it->condition_context),
                                      pg_p_text(*why->code ? why->code : status_name(why->status)),
                                      pg_p_text(why->text),
                                      pg_p_text(model_id)};
    st = pg_query(l->pg, "writer_park", park_sql, params, 12, statement_deadline(l), NULL, err);
    if (st == ST_OK) {
        it->state = ITEM_PARKED;
        if (!keep_intent)
            b->intent = 0;
    }
    return st;
}

enum status ledger_drop_intent(struct ledger *l, int64_t intent, struct err *err)
{
    enum status st = ledger_connect(l, err);
    char id[24];
    const struct pg_param params[] = {pg_p_int(intent, id)};
    if (st == ST_OK)
        st = pg_query(l->pg, "writer_drop", "DELETE FROM relata.inflight WHERE id = $1", params, 1,
                      statement_deadline(l), NULL, err);
    return st;
}
