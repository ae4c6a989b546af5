#include "tuple-writer/intents.h"

#include "common/base/log.h"
#include "tuple-writer/batch.h"
#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"

#define ADOPT_MAX 64
/* Beyond the statement's own timeout: by then a lane knows its intent, or never will. */
#define ORPHAN_SLACK_MS 5000

static const char find_sql[] =
    "WITH f AS (SELECT i.id, i.objects, i.relations, i.subjects FROM relata.inflight i\n"
    "    WHERE i.store = $1 AND i.id <> ALL ($2::bigint[])\n"
    "      AND CASE WHEN i.writer = $3 THEN i.sent_at < clock_timestamp() - $5 * interval '1 ms'\n"
    "          ELSE NOT EXISTS (SELECT FROM relata.session_lock l WHERE l.kind = 1380270081 AND l.id = i.writer) END\n"
    "    ORDER BY i.id LIMIT $4 FOR UPDATE SKIP LOCKED)\n"
    "SELECT f.id, u.o, u.r, u.s FROM f, unnest(f.objects, f.relations, f.subjects) AS u (o, r, s) ORDER BY f.id";

static const char insert_sql[] = "INSERT INTO relata.inflight (writer, store, objects, relations, subjects) "
                                 "VALUES ($1, $2, $3, $4, $5) RETURNING id";

/* Keys on their way into one intent of ours. */
struct share {
    int64_t intent;
    struct tuple_key keys[STORE_WRITE_MAX];
    size_t n;
};

struct shares {
    struct share *items;
    size_t n, cap;
};

static struct share *share_with_room(struct shares *s)
{
    if (s->n > 0 && s->items[s->n - 1].n < STORE_WRITE_MAX)
        return &s->items[s->n - 1];
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        struct share *grown = realloc(s->items, cap * sizeof *grown);
        if (!grown)
            return NULL;
        s->items = grown;
        s->cap = cap;
    }
    struct share *fresh = &s->items[s->n++];
    memset(fresh, 0, sizeof *fresh);
    return fresh;
}

static enum status record(struct writer *w, struct pg *pg, struct share *share, mono_us deadline, struct err *err)
{
    struct buf parts[3];
    char id[24];
    for (int p = 0; p < 3; p++) {
        buf_init(&parts[p], 4u << 20);
        pg_array_begin(&parts[p]);
    }
    for (size_t i = 0; i < share->n; i++) {
        pg_array_add(&parts[0], share->keys[i].object);
        pg_array_add(&parts[1], share->keys[i].relation);
        pg_array_add(&parts[2], share->keys[i].subject);
    }
    for (int p = 0; p < 3; p++)
        pg_array_end(&parts[p]);
    const struct pg_param params[] = {pg_p_int(atomic_load(&w->id), id), pg_p_text(w->cfg->store.name),
                                      pg_p_buf(&parts[0]), pg_p_buf(&parts[1]), pg_p_buf(&parts[2])};
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, "intent_record", insert_sql, params, 5, deadline, &r, err);
    if (st == ST_OK)
        share->intent = pg_int(r, 0, 0);
    pg_result_free(r);
    for (int p = 0; p < 3; p++)
        buf_release(&parts[p]);
    return st;
}

/* Inside a transaction: the found intents become ours. */
static enum status take_over(struct writer *w, struct pg *pg, const struct pg_result *found, struct shares *shares,
                             size_t *intents, mono_us deadline, struct err *err)
{
    struct buf ids;
    buf_init(&ids, 1u << 16);
    pg_array_begin(&ids);
    int64_t last = 0;
    enum status st = ST_OK;
    for (int row = 0; row < pg_rows(found) && st == ST_OK; row++) {
        struct tuple_key key = {pg_text(found, row, 1), pg_text(found, row, 2), pg_text(found, row, 3)};
        if (pg_int(found, row, 0) != last) {
            last = pg_int(found, row, 0);
            pg_array_add_int(&ids, last);
            ++*intents;
        }
        struct share *share = share_with_room(shares);
        if (!share)
            st = err_set(err, ST_NOMEM, NULL, "no memory");
        else
            share->keys[share->n++] = key;
    }
    pg_array_end(&ids);
    for (size_t i = 0; i < shares->n && st == ST_OK; i++)
        st = record(w, pg, &shares->items[i], deadline, err);
    const struct pg_param params[] = {pg_p_buf(&ids)};
    if (st == ST_OK)
        st = pg_query(pg, "intent_delete", "DELETE FROM relata.inflight WHERE id = ANY ($1::bigint[])", params, 1,
                      deadline, NULL, err);
    buf_release(&ids);
    return st;
}

static enum status find(struct writer *w, struct pg *pg, struct pg_result **found, mono_us deadline, struct err *err)
{
    int64_t owned[4096];
    size_t n = lanes_intents(w->lanes, owned, sizeof owned / sizeof *owned);
    if (n > sizeof owned / sizeof *owned)
        n = sizeof owned / sizeof *owned; /* those left out would be converged once more: harmless */
    struct buf ids;
    char writer[24], max[24], age[24];
    buf_init(&ids, 1u << 20);
    pg_array_begin(&ids);
    for (size_t i = 0; i < n; i++)
        pg_array_add_int(&ids, owned[i]);
    pg_array_end(&ids);
    const struct pg_param params[] = {pg_p_text(w->cfg->store.name), pg_p_buf(&ids),
                                      pg_p_int(atomic_load(&w->id), writer), pg_p_int(ADOPT_MAX, max),
                                      pg_p_int(w->cfg->statement_timeout_ms + ORPHAN_SLACK_MS, age)};
    enum status st = pg_query(pg, "intent_find", find_sql, params, 5, deadline, found, err);
    buf_release(&ids);
    return st;
}

enum status intents_adopt(struct writer *w, struct pg *pg, bool *more, struct err *err)
{
    mono_us deadline = deadline_in_ms(w->cfg->statement_timeout_ms);
    struct shares shares = {0};
    struct pg_result *found = NULL;
    size_t intents = 0;
    *more = false;
    enum status st = pg_exec(pg, "BEGIN", deadline, err);
    if (st != ST_OK)
        return st;
    st = find(w, pg, &found, deadline, err);
    if (st == ST_OK && pg_rows(found) > 0)
        st = take_over(w, pg, found, &shares, &intents, deadline, err);
    if (st == ST_OK)
        st = pg_exec(pg, "COMMIT", deadline, err);
    else if (pg_alive(pg) && pg_exec(pg, "ROLLBACK", deadline_in_ms(1000), NULL) != ST_OK)
        log_warn("a transaction could not be rolled back; its connection is given up", NULL);
    if (st == ST_OK && intents > 0) {
        mono_us due = deadline_in_ms(w->cfg->store.late_window_ms);
        for (size_t i = 0; i < shares.n; i++)
            lanes_adopt(w->lanes, shares.items[i].intent, shares.items[i].keys, shares.items[i].n, due);
        char text[24];
        snprintf(text, sizeof text, "%zu", intents);
        log_info("took over intents of a writer that ended", "intents", text, NULL);
        metric_add(&m_adopted, (int64_t)intents);
        *more = intents == ADOPT_MAX;
    }
    pg_result_free(found);
    free(shares.items);
    return st;
}
