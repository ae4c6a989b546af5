/* leader.c - the row that says who writes. */
#include "authz-store/durable/leader.h"

#include <stdio.h>

#define COLUMNS "epoch, beat, lease_ms, " LEADER_LAST_ID ", released, holder, token_key"

static void read_row(const struct pg_result *r, struct leader_row *out)
{
    *out = (struct leader_row){.epoch = pg_int(r, 0, 0),
                               .beat = pg_int(r, 0, 1),
                               .lease_ms = pg_int(r, 0, 2),
                               .last_id = pg_int(r, 0, 3),
                               .released = pg_bool(r, 0, 4)};
    (void)snprintf(out->holder, sizeof out->holder, "%s", pg_text(r, 0, 5));
    (void)snprintf(out->token_key, sizeof out->token_key, "%s", pg_text(r, 0, 6));
}

enum status leader_look(struct pg *pg, struct leader_row *out, mono_us deadline, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st =
        pg_query(pg, "leader_look", "SELECT " COLUMNS " FROM relata_store.leader", NULL, 0, deadline, &r, err);

    if (st == ST_OK && pg_rows(r) != 1)
        st = err_set(err, ST_MISSING, NULL, "relata_store.leader is empty: it must hold one row");
    if (st == ST_OK)
        read_row(r, out);
    pg_result_free(r);
    return st;
}

/* In a snapshot of its own, after the epoch has begun: whoever held the row's lock before has committed or not by now.
 */
static enum status note_end(struct pg *pg, struct leader_row *row, mono_us deadline, struct err *err)
{
    char epoch[24];
    struct pg_result *r = NULL;
    const struct pg_param param = pg_p_int(row->epoch, epoch);
    enum status st = pg_query(pg, "leader_note",
                              "UPDATE relata_store.takeover SET last_id = " LEADER_LAST_ID
                              " WHERE epoch = $1::bigint RETURNING last_id",
                              &param, 1, deadline, &r, err);

    if (st == ST_OK && pg_rows(r) != 1)
        st = err_set(err, ST_FATAL, NULL, "relata_store.takeover lacks epoch %lld", (long long)row->epoch);
    if (st == ST_OK)
        row->last_id = pg_int(r, 0, 0);
    pg_result_free(r);
    return st;
}

enum status leader_take(struct pg *pg, struct leader_row *seen, const char *holder, int64_t lease_ms, mono_us deadline,
                        struct err *err)
{
    char epoch[24], beat[24], lease[24];
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_int(seen->epoch, epoch), pg_p_int(seen->beat, beat), pg_p_text(holder),
                                      pg_p_int(lease_ms, lease)};
    enum status st = pg_query(pg, "leader_take",
                              "WITH taken AS (UPDATE relata_store.leader SET epoch = epoch + 1, beat = beat + 1, "
                              "holder = $3, lease_ms = $4::bigint, released = false WHERE epoch = $1::bigint AND "
                              "beat = $2::bigint RETURNING " COLUMNS "), noted AS (INSERT INTO relata_store.takeover "
                              "(epoch, holder) SELECT epoch, holder FROM taken) SELECT * FROM taken",
                              params, 4, deadline, &r, err);

    if (st == ST_OK && pg_rows(r) != 1)
        st = err_set(err, ST_CONFLICT, NULL, "another process was faster");
    if (st == ST_OK)
        read_row(r, seen);
    pg_result_free(r);
    return st == ST_OK ? note_end(pg, seen, deadline, err) : st;
}

static enum status change_own(struct pg *pg, const char *name, const char *sql, int64_t epoch, mono_us deadline,
                              struct err *err)
{
    char text[24];
    struct pg_result *r = NULL;
    const struct pg_param param = pg_p_int(epoch, text);
    enum status st = pg_query(pg, name, sql, &param, 1, deadline, &r, err);

    if (st == ST_OK && pg_affected(r) != 1)
        st = err_set(err, ST_CONFLICT, NULL, "epoch %lld has ended: another process writes", (long long)epoch);
    pg_result_free(r);
    return st;
}

enum status leader_renew(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err)
{
    return change_own(pg, "leader_renew",
                      "UPDATE relata_store.leader SET beat = beat + 1, last_id = " LEADER_LAST_ID
                      " WHERE epoch = $1::bigint",
                      epoch, deadline, err);
}

enum status leader_release(struct pg *pg, int64_t epoch, mono_us deadline, struct err *err)
{
    return change_own(pg, "leader_release",
                      "UPDATE relata_store.leader SET beat = beat + 1, released = true WHERE epoch = $1::bigint", epoch,
                      deadline, err);
}

/* Who took over and did not come to note the end wrote nothing: the next one that did tells the same. */
enum status leader_ended_at(struct pg *pg, int64_t epoch, int64_t *last_id, mono_us deadline, struct err *err)
{
    char text[24];
    struct pg_result *r = NULL;
    const struct pg_param param = pg_p_int(epoch, text);
    enum status st =
        pg_query(pg, "leader_ended_at",
                 "SELECT last_id FROM relata_store.takeover WHERE epoch > $1::bigint AND last_id IS NOT NULL "
                 "ORDER BY epoch LIMIT 1",
                 &param, 1, deadline, &r, err);

    if (st == ST_OK && pg_rows(r) != 1)
        st = err_set(err, ST_NOT_FOUND, NULL, "epoch %lld has not ended", (long long)epoch);
    if (st == ST_OK)
        *last_id = pg_int(r, 0, 0);
    pg_result_free(r);
    return st;
}
