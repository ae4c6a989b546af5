/* db.c - see db.h. */
#include "outbox-relay/db.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 10000

static mono_us deadline_of(const struct db *db)
{
    return deadline_in_ms(db->timeout_ms);
}

enum status db_connect(struct db *db, const char *dsn, const char *application_name, struct err *err)
{
    enum status st = ST_OK;
    if (db->pg && pg_alive(db->pg))
        return ST_OK;
    if (db->pg) {
        st = pg_reopen(db->pg, deadline_in_ms(CONNECT_MS), err);
    } else {
        struct pg_config cfg = {.dsn = dsn, .application_name = application_name, .watch_stop = true};
        st = pg_open(&db->pg, &cfg, deadline_in_ms(CONNECT_MS), err);
    }
    if (st != ST_OK)
        return st;
    /* The outbox's statistics are those of a queue: wrong most of the time. Its readers want the index order, always.
     * What the relay records must survive a crash of this server, which holds the slot too; a standby has no slot and
     * begins anew, so nothing waits for it. */
    return pg_exec(db->pg,
                   "SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan; "
                   "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = "
                   "0; SET synchronous_commit = local",
                   deadline_of(db), err);
}

void db_close(struct db *db)
{
    pg_close(db->pg);
    db->pg = NULL;
}

enum status db_lock(struct db *db, const char *name, bool *got, struct err *err)
{
    struct pg_param p = pg_p_text(name);
    struct pg_result *r = NULL;
    *got = false;
    enum status st = pg_query(db->pg, NULL, "SELECT pg_try_advisory_lock(" LOCK_RELAY ", hashtext($1))", &p, 1,
                              deadline_of(db), &r, err);
    if (st == ST_OK)
        *got = pg_bool(r, 0, 0);
    pg_result_free(r);
    return st;
}

/* ---- relata.relay ---- */

enum status db_state_load(struct db *db, const char *name, struct relay_state *out, struct err *err)
{
    struct pg_param p = pg_p_text(name);
    struct pg_result *r = NULL;
    *out = (struct relay_state){0};
    enum status st = pg_query(db->pg, NULL,
                              "SELECT coalesce(handover = 'complete', false), slot, poll_snapshot::text "
                              "FROM relata.relay WHERE name = $1",
                              &p, 1, deadline_of(db), &r, err);
    if (st == ST_MISSING)
        return err_prefix(err, "schema relata is missing or too old: run relatactl migrate");
    if (st != ST_OK)
        return st;
    if (pg_rows(r) > 0) {
        out->handover_complete = pg_bool(r, 0, 0);
        (void)snprintf(out->slot, sizeof out->slot, "%s", pg_text(r, 0, 1));
        if (!pg_is_null(r, 0, 2) && !(out->poll_snapshot = strdup(pg_text(r, 0, 2))))
            st = err_set(err, ST_NOMEM, "", "out of memory");
    }
    pg_result_free(r);
    return st;
}

void relay_state_release(struct relay_state *s)
{
    free(s->poll_snapshot);
    *s = (struct relay_state){0};
}

enum status db_state_handover(struct db *db, const char *name, const char *slot, const char *handover, const char *lsn,
                              struct err *err)
{
    struct pg_param p[4] = {pg_p_text(name), pg_p_text(slot), pg_p_text(handover), pg_p_text(lsn)};
    enum status st = pg_query(db->pg, NULL,
                              "INSERT INTO relata.relay (name, slot, handover, consistent_lsn, updated_at) "
                              "VALUES ($1, $2, $3, $4::pg_lsn, clock_timestamp()) ON CONFLICT (name) DO UPDATE SET "
                              "slot = excluded.slot, handover = excluded.handover, "
                              "consistent_lsn = excluded.consistent_lsn, updated_at = excluded.updated_at",
                              p, 4, deadline_of(db), NULL, err);
    return st;
}

enum status db_state_snapshot(struct db *db, const char *name, const char *snapshot, struct err *err)
{
    struct pg_param p[2] = {pg_p_text(name), pg_p_text(snapshot)};
    return pg_query(db->pg, "relay_snapshot",
                    "INSERT INTO relata.relay (name, poll_snapshot, updated_at) "
                    "VALUES ($1, $2::pg_snapshot, clock_timestamp()) ON CONFLICT (name) DO UPDATE SET "
                    "poll_snapshot = excluded.poll_snapshot, updated_at = excluded.updated_at",
                    p, 2, deadline_of(db), NULL, err);
}

/* ---- the slot ---- */

static void copy_text(char *out, size_t size, const struct pg_result *r, int col)
{
    (void)snprintf(out, size, "%s", pg_text(r, 0, col));
}

enum status db_slot(struct db *db, const char *slot, struct slot_info *out, struct err *err)
{
    struct pg_param p = pg_p_text(slot);
    struct pg_result *r = NULL;
    *out = (struct slot_info){0};
    enum status st =
        pg_query(db->pg, NULL,
                 "SELECT coalesce(s.plugin, 'physical'), coalesce(s.database, ''), "
                 "coalesce(s.plugin = 'pgoutput' AND s.database = current_database(), false), "
                 "coalesce(s.wal_status = 'lost', false), s.confirmed_flush_lsn IS NOT NULL, s.active_pid, "
                 "(SELECT a.application_name FROM pg_stat_activity a WHERE a.pid = s.active_pid), "
                 "s.confirmed_flush_lsn - '0/0' "
                 "FROM pg_replication_slots s WHERE s.slot_name = $1",
                 &p, 1, deadline_of(db), &r, err);
    if (st != ST_OK)
        return st;
    if (pg_rows(r) > 0) {
        out->exists = true;
        copy_text(out->plugin, sizeof out->plugin, r, 0);
        copy_text(out->database, sizeof out->database, r, 1);
        out->ours = pg_bool(r, 0, 2);
        out->lost = pg_bool(r, 0, 3);
        out->usable = pg_bool(r, 0, 4);
        out->active_pid = (int)pg_int(r, 0, 5);
        copy_text(out->active_name, sizeof out->active_name, r, 6);
        out->confirmed_lsn = strtoull(pg_text(r, 0, 7), NULL, 10);
    }
    pg_result_free(r);
    return st;
}

enum status db_slot_drop(struct db *db, const char *slot, struct err *err)
{
    struct pg_param p = pg_p_text(slot);
    return pg_query(db->pg, NULL, "SELECT pg_drop_replication_slot($1)", &p, 1, deadline_of(db), NULL, err);
}

static enum status signal_backend(struct db *db, const char *sql, int pid, struct err *err)
{
    char text[24];
    struct pg_param p = pg_p_int(pid, text);
    return pg_query(db->pg, NULL, sql, &p, 1, deadline_of(db), NULL, err);
}

enum status db_terminate(struct db *db, int pid, struct err *err)
{
    return signal_backend(db, "SELECT pg_terminate_backend($1::int)", pid, err);
}

enum status db_cancel(struct db *db, int pid, struct err *err)
{
    return signal_backend(db, "SELECT pg_cancel_backend($1::int)", pid, err);
}

enum status db_publication(struct db *db, const char *publication, struct err *err)
{
    struct pg_param p = pg_p_text(publication);
    struct pg_result *r = NULL;
    enum status st = pg_query(db->pg, NULL,
                              "SELECT 1 FROM pg_publication_tables t JOIN pg_publication p USING (pubname) "
                              "WHERE t.pubname = $1 AND t.schemaname = 'relata' AND t.tablename = 'outbox' "
                              "AND p.pubinsert",
                              &p, 1, deadline_of(db), &r, err);
    if (st == ST_OK && pg_rows(r) == 0)
        st = err_set(err, ST_MISSING, "",
                     "publication \"%s\" does not publish inserts into relata.outbox: "
                     "CREATE PUBLICATION %s FOR TABLE relata.outbox WITH (publish = 'insert')",
                     publication, publication);
    pg_result_free(r);
    return st;
}

/* ---- pending rows ---- */

bool snapshot_parse(const char *text, struct snapshot *out)
{
    int n = 0;
    if (sscanf(text, "%" SCNu64 ":%" SCNu64 ":%n", &out->xmin, &out->xmax, &n) != 2 || n == 0)
        return false;
    out->open = text + n;
    return out->open[strspn(out->open, "0123456789,")] == '\0';
}

static enum status one_xid(struct db *db, const char *sql, uint64_t *xid, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(db->pg, NULL, sql, NULL, 0, deadline_of(db), &r, err);
    *xid = st == ST_OK ? strtoull(pg_text(r, 0, 0), NULL, 10) : 0;
    pg_result_free(r);
    return st;
}

enum status db_take_xid(struct db *db, uint64_t *xid, struct err *err)
{
    return one_xid(db, "SELECT pg_current_xact_id()", xid, err);
}

enum status db_oldest_open(struct db *db, uint64_t *xid, struct err *err)
{
    return one_xid(db, "SELECT pg_snapshot_xmin(pg_current_snapshot())", xid, err);
}

enum status db_stores(struct db *db, struct pg_result **out, struct err *err)
{
    return pg_query(db->pg, "relay_stores",
                    "WITH RECURSIVE s(name) AS ((SELECT store FROM relata.outbox ORDER BY store LIMIT 1) UNION ALL "
                    "SELECT (SELECT o.store FROM relata.outbox o WHERE o.store > s.name ORDER BY o.store LIMIT 1) "
                    "FROM s WHERE s.name IS NOT NULL) SELECT name FROM s WHERE name IS NOT NULL "
                    "UNION SELECT name FROM relata.store UNION SELECT 'default' COLLATE \"C\"",
                    NULL, 0, deadline_of(db), out, err);
}

#define COLUMNS                                                                                                        \
    "o.id, o.xid, o.op, o.object, o.relation, o.subject, o.condition_name, o.condition_context, o.actor, o.headers, "  \
    "o.created_at"
#define SHOWN                                                                                                          \
    "o.id, o.xid, o.op, o.object, o.relation, o.subject, o.condition_name, o.condition_context::text, o.actor, "       \
    "o.headers::text, (extract(epoch FROM o.created_at) * 1000000)::bigint"

/*
 * "Not visible in $2" is: one of the transactions that were open then ($2), or one that began later ($3: the first such
 * xid). Asking for exactly these, instead of filtering from the oldest open one on, keeps a look cheap however many
 * rows are pending and however long a transaction stays open.
 */
static const char page_sql[] =
    "SELECT s.now, " SHOWN " FROM (SELECT pg_current_snapshot()::text AS now) s LEFT JOIN LATERAL ("
    "SELECT * FROM ("
    "(SELECT p.* FROM unnest($2::xid8[]) AS x(xid) CROSS JOIN LATERAL (SELECT " COLUMNS " FROM relata.outbox o "
    "WHERE o.store = $1 AND o.xid = x.xid AND (o.xid, o.id) > ($4::xid8, $5::bigint) "
    "ORDER BY o.xid, o.id LIMIT $6) p ORDER BY p.xid, p.id LIMIT $6) "
    "UNION ALL "
    "(SELECT " COLUMNS " FROM relata.outbox o WHERE o.store = $1 AND (o.xid, o.id) > ($3::xid8, $7::bigint) "
    "ORDER BY o.xid, o.id LIMIT $6)) u ORDER BY u.xid, u.id LIMIT $6) o ON true ORDER BY o.xid, o.id";

enum status db_page(struct db *db, const char *store, const char *since, uint64_t after_xid, int64_t after_id,
                    int limit, struct pg_result **out, struct err *err)
{
    struct snapshot s;
    *out = NULL;
    if (!snapshot_parse(since, &s))
        return err_set(err, ST_FATAL, "", "not a snapshot: %.80s", since);
    struct buf open;
    buf_init(&open, 1 << 20);
    buf_addf(&open, "{%s}", s.open);
    /* The later part starts at xmax, or after the last row that was read. */
    bool past = after_xid >= s.xmax;
    char xid[24], later[24], id[24], later_id[24], n[24];
    (void)snprintf(xid, sizeof xid, "%" PRIu64, after_xid);
    (void)snprintf(later, sizeof later, "%" PRIu64, past ? after_xid : s.xmax);
    struct pg_param p[7] = {pg_p_text(store),
                            pg_p_buf(&open),
                            pg_p_text(later),
                            pg_p_text(xid),
                            pg_p_int(after_id, id),
                            pg_p_int(limit, n),
                            pg_p_int(past ? after_id : 0, later_id)};
    enum status st = pg_query(db->pg, "relay_page", page_sql, p, 7, deadline_of(db), out, err);
    buf_release(&open);
    return st;
}

enum status db_old_page(struct db *db, const char *store, const char *seen, int64_t age_ms, int64_t after_id, int limit,
                        struct pg_result **out, struct err *err)
{
    char age[24], id[24], n[24];
    struct pg_param p[5] = {pg_p_text(store), pg_p_text(seen), pg_p_int(age_ms, age), pg_p_int(after_id, id),
                            pg_p_int(limit, n)};
    return pg_query(
        db->pg, "relay_old_page",
        "SELECT s.now, " SHOWN " FROM (SELECT $2 AS now) s LEFT JOIN LATERAL ("
        "SELECT " COLUMNS " FROM relata.outbox o WHERE o.store = $1 AND o.id > $4::bigint "
        "AND o.created_at < clock_timestamp() - $3::bigint * interval '1 millisecond' "
        "AND pg_visible_in_snapshot(o.xid, $2::pg_snapshot) ORDER BY o.id LIMIT $5) o ON true ORDER BY o.id",
        p, 5, deadline_of(db), out, err);
}

int db_page_len(const struct pg_result *page)
{
    return pg_is_null(page, 0, 1) ? 0 : pg_rows(page);
}

const char *db_page_snapshot(const struct pg_result *page)
{
    return pg_text(page, 0, 0);
}

static const char *text_or_null(const struct pg_result *r, int row, int col)
{
    return pg_is_null(r, row, col) ? NULL : pg_text(r, row, col);
}

void db_page_row(const struct pg_result *page, int row, const char *store, struct outbox_row *out)
{
    *out = (struct outbox_row){
        .store = store,
        .id = pg_int(page, row, 1),
        .xid = strtoull(pg_text(page, row, 2), NULL, 10),
        .op = text_or_null(page, row, 3),
        .object = text_or_null(page, row, 4),
        .relation = text_or_null(page, row, 5),
        .subject = text_or_null(page, row, 6),
        .condition_name = text_or_null(page, row, 7),
        .condition_context = text_or_null(page, row, 8),
        .actor = text_or_null(page, row, 9),
        .headers = text_or_null(page, row, 10),
        .created_at_us = pg_int(page, row, 11),
    };
}

enum status db_park(struct db *db, const char *store, int64_t outbox_id, uint64_t xid, const char *code,
                    const char *reason, bool *parked, struct err *err)
{
    char id[24], writer[24];
    (void)snprintf(writer, sizeof writer, "%" PRIu64, xid);
    struct pg_param p[5] = {pg_p_text(store), pg_p_int(outbox_id, id), pg_p_text(code), pg_p_text(reason),
                            pg_p_text(writer)};
    struct pg_result *r = NULL;
    *parked = false;
    enum status st = pg_query(
        db->pg, NULL,
        "WITH bad AS (SELECT * FROM relata.outbox WHERE store = $1 AND id = $2::bigint), parked AS ("
        "INSERT INTO relata.dead_letter AS d (outbox_id, store, op, object, relation, subject, condition_name, "
        "condition_context, actor, headers, xid, created_at, code, reason) "
        "SELECT id, store, op, object, relation, subject, condition_name, condition_context, actor, headers, xid, "
        "created_at, $3, $4 FROM bad "
        "ON CONFLICT (store, object, relation, subject) WHERE closed_at IS NULL DO UPDATE SET "
        "outbox_id = excluded.outbox_id, op = excluded.op, condition_name = excluded.condition_name, "
        "condition_context = excluded.condition_context, actor = excluded.actor, headers = excluded.headers, "
        "xid = excluded.xid, created_at = excluded.created_at, code = excluded.code, reason = excluded.reason, "
        "attempts = d.attempts + 1, parked_at = clock_timestamp()), gone AS ("
        "DELETE FROM relata.outbox o USING bad b WHERE o.store = b.store AND o.key = b.key AND o.object = b.object "
        "AND o.relation = b.relation AND o.subject = b.subject AND o.id <= b.id RETURNING o.id) "
        /* One statement, one snapshot: a row that it did not see although its transaction is visible to it is gone. */
        "SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM bad) OR "
        "pg_visible_in_snapshot($5::xid8, pg_current_snapshot())",
        p, 5, deadline_of(db), &r, err);
    if (st == ST_OK) {
        *parked = pg_bool(r, 0, 0);
        if (!pg_bool(r, 0, 1))
            st = err_set(err, ST_NOT_FOUND, "", "outbox row %s is not visible yet", id);
    }
    pg_result_free(r);
    return st;
}

/* ---- sleeping ---- */

enum status db_sleep(struct db *db, const char *stores, bool *all, struct err *err)
{
    struct pg_param p = pg_p_text(stores);
    struct pg_result *r = NULL;
    *all = false;
    enum status st = pg_query(db->pg, "relay_sleep",
                              "SELECT s, pg_try_advisory_lock(" LOCK_OUTBOX_AWAKE ", hashtext(s)) "
                              "FROM unnest($1::text[]) s",
                              &p, 1, deadline_of(db), &r, err);
    if (st != ST_OK)
        return st;
    struct buf held;
    buf_init(&held, 1 << 20);
    pg_array_begin(&held);
    *all = true;
    for (int i = 0; i < pg_rows(r); i++) {
        if (pg_bool(r, i, 1))
            pg_array_add(&held, pg_text(r, i, 0));
        else
            *all = false;
    }
    pg_array_end(&held);
    if (!*all)
        st = db_wake(db, buf_str(&held), err);
    buf_release(&held);
    pg_result_free(r);
    return st;
}

enum status db_wake(struct db *db, const char *stores, struct err *err)
{
    struct pg_param p = pg_p_text(stores);
    return pg_query(db->pg, "relay_wake",
                    "SELECT pg_advisory_unlock(" LOCK_OUTBOX_AWAKE ", hashtext(s)) FROM unnest($1::text[]) s", &p, 1,
                    deadline_of(db), NULL, err);
}
