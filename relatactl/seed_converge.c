/* seed_converge.c - one batch: intent and state, Write, look again. */
#include <stdlib.h>

#include "relatactl/seed.h"

#define ARRAY_MAX (4u << 20)
#define BACKOFF_BASE_MS 50
#define BACKOFF_CAP_MS 5000

/* As the writer's: index look-ups at every size of the tables; an intent is durable before anything is sent. */
static const char session_sql[] =
    "SET synchronous_commit TO on; SET enable_seqscan TO off; SET enable_hashjoin TO off; SET "
    "enable_mergejoin TO off; SET jit TO off";

static const char begin_sql[] =
    "WITH former AS (DELETE FROM relata.inflight WHERE id = $5), put AS (INSERT INTO relata.inflight (writer, store, "
    "objects, relations, subjects) VALUES ($6, $1, $2, $3, $4) RETURNING id) "
    "SELECT (SELECT id FROM put), t.version, t.present, t.condition_name, t.condition_context, (SELECT s.store_id FROM "
    "relata.store s WHERE s.name = $1) FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k (o, r, s, "
    "n) "
    "LEFT JOIN relata.tuple t ON t.store = $1 AND t.object = k.o AND t.relation = k.r AND t.subject = k.s ORDER BY k.n";

/* $6: whether the intent may go. Dead letters of what was applied are closed, as an acknowledgement closes them. */
static const char end_sql[] =
    "WITH k AS MATERIALIZED (SELECT o, r, s, v, n FROM unnest($2::text[], $3::text[], $4::text[], $7::bigint[]) WITH "
    "ORDINALITY AS u (o, r, s, v, n)), moved AS MATERIALIZED (SELECT k.n FROM k LEFT JOIN relata.tuple t ON t.store = "
    "$1 "
    "AND t.object = k.o AND t.relation = k.r AND t.subject = k.s WHERE coalesce(t.version, 0) <> abs(k.v)), "
    "letters AS (UPDATE relata.dead_letter d SET closed_at = clock_timestamp(), closed_how = 'applied' FROM k WHERE "
    "k.v > 0 "
    "AND EXISTS (SELECT FROM relata.dead_letter WHERE store = $1 AND closed_at IS NULL) AND d.store = $1 AND d.object "
    "= "
    "k.o AND d.relation = k.r AND d.subject = k.s AND d.closed_at IS NULL AND (d.outbox_id IS NULL OR d.outbox_id <= "
    "k.v)), "
    "intent AS (DELETE FROM relata.inflight WHERE id = $5 AND $6::boolean AND NOT EXISTS (SELECT FROM moved)) "
    "SELECT n FROM moved ORDER BY n";

static const char park_sql[] =
    "INSERT INTO relata.dead_letter AS d (outbox_id, store, op, object, relation, subject, condition_name, "
    "condition_context, actor, code, reason, model_id) VALUES ($5, $1, $6, $2, $3, $4, $7, $8::jsonb, 'relatactl "
    "seed', "
    "$9, $10, $11) ON CONFLICT (store, object, relation, subject) WHERE closed_at IS NULL DO UPDATE SET "
    "outbox_id = excluded.outbox_id, code = excluded.code, reason = excluded.reason, model_id = excluded.model_id, "
    "attempts = d.attempts + 1";

/* What the ledger says about the batch's keys. */
struct states {
    struct pg_result *rows;
    bool refused[STORE_WRITE_MAX];
};

static bool is_present(const struct states *s, size_t i)
{
    return pg_bool(s->rows, (int)i, 2);
}

static const char *column(const struct states *s, size_t i, int col)
{
    return pg_is_null(s->rows, (int)i, col) ? NULL : pg_text(s->rows, (int)i, col);
}

enum status seed_worker_init(struct seed_worker *w, struct seed *seed, struct err *err)
{
    *w = (struct seed_worker){.seed = seed};
    struct buf *bufs[] = {&w->objects, &w->relations, &w->subjects, &w->versions};
    for (size_t i = 0; i < 4; i++)
        buf_init(bufs[i], ARRAY_MAX);
    enum status st = ctl_pg_new(seed->ctl, &w->pg, err);
    if (st == ST_OK)
        st = store_conn_new(&w->store, seed->ctl->store, seed->pin.store_id, err);
    return st;
}

void seed_worker_release(struct seed_worker *w)
{
    struct buf *bufs[] = {&w->objects, &w->relations, &w->subjects, &w->versions};
    for (size_t i = 0; i < 4; i++)
        buf_release(bufs[i]);
    store_conn_free(w->store);
    pg_close(w->pg);
}

static void count(struct seed_worker *w, int64_t *counter, int64_t n)
{
    (void)pthread_mutex_lock(&w->seed->lock);
    *counter += n;
    (void)pthread_mutex_unlock(&w->seed->lock);
}

/* Wait before another try; gives up when the batch has failed for the whole patience. */
static enum status pause_or_give_up(struct seed_worker *w, enum status st, unsigned attempt, mono_us give_up,
                                    struct err *err)
{
    int64_t ms = backoff_ms(attempt, BACKOFF_BASE_MS, BACKOFF_CAP_MS);
    count(w, &w->seed->counts.retries, 1);
    if (st == ST_THROTTLED) {
        count(w, &w->seed->counts.throttled, 1);
        if (err->retry_after_ms > ms)
            ms = err->retry_after_ms;
    }
    if (clock_mono_us() >= give_up)
        return err_prefix(err, "no success within %lld s", (long long)w->seed->options->patience_s);
    if (stop_sleep_until(deadline_in_ms(ms)) == ST_STOPPED)
        return err_set(err, ST_STOPPED, "", "interrupted");
    return ST_OK;
}

/* ---- Postgres ---- */

static enum status session(struct seed_worker *w, struct err *err)
{
    enum status st = ST_OK;
    if (!pg_alive(w->pg))
        st = pg_reopen(w->pg, ctl_deadline(w->seed->ctl), err);
    if (st == ST_OK && w->generation != pg_generation(w->pg)) {
        st = pg_exec(w->pg, session_sql, ctl_deadline(w->seed->ctl), err);
        if (st == ST_OK)
            w->generation = pg_generation(w->pg);
    }
    return st;
}

static void fill_keys(struct seed_worker *w, const struct seed_batch *b)
{
    pg_array_begin(&w->objects);
    pg_array_begin(&w->relations);
    pg_array_begin(&w->subjects);
    for (size_t i = 0; i < b->n; i++) {
        pg_array_add(&w->objects, b->keys[i]->object);
        pg_array_add(&w->relations, b->keys[i]->relation);
        pg_array_add(&w->subjects, b->keys[i]->subject);
    }
    pg_array_end(&w->objects);
    pg_array_end(&w->relations);
    pg_array_end(&w->subjects);
}

/* The intent, and what to write. A lost answer leaves an intent behind, which the end of the run removes. */
static enum status begin(struct seed_worker *w, struct seed_batch *b, struct states *s, struct err *err)
{
    struct seed *seed = w->seed;
    char former[24], writer[24];
    *s = (struct states){0};
    enum status st = session(w, err);
    if (st != ST_OK)
        return st;
    fill_keys(w, b);
    const struct pg_param params[] = {pg_p_text(seed->ctl->settings.store.name),
                                      pg_p_buf(&w->objects),
                                      pg_p_buf(&w->relations),
                                      pg_p_buf(&w->subjects),
                                      pg_p_int(b->intent, former),
                                      pg_p_int(seed->writer_id, writer)};
    st = pg_query(w->pg, "seed_begin", begin_sql, params, 6, ctl_deadline(seed->ctl), &s->rows, err);
    if (st != ST_OK)
        return st;
    if (pg_rows(s->rows) != (int)b->n)
        return err_set(err, ST_FATAL, "", "%d states for %zu keys", pg_rows(s->rows), b->n);
    b->intent = pg_int(s->rows, 0, 0);
    if (strcmp(pg_text(s->rows, 0, 5), seed->pin.store_id) != 0)
        return err_set(err, ST_MISSING, "", "store \"%s\" was pinned to another store meanwhile: %s",
                       seed->ctl->settings.store.name, pg_text(s->rows, 0, 5));
    return ST_OK;
}

/* Look again. *moved gets the numbers (from 1) of the keys that the ledger has newer states of. */
static enum status end(struct seed_worker *w, struct seed_batch *b, const struct states *s, bool keep_intent,
                       struct pg_result **moved, struct err *err)
{
    char intent[24];
    enum status st = session(w, err);
    if (st != ST_OK)
        return st;
    pg_array_begin(&w->versions);
    for (size_t i = 0; i < b->n; i++) /* refused ones with a minus: their dead letters stay open */
        pg_array_add_int(&w->versions, s->refused[i] ? -pg_int(s->rows, (int)i, 1) : pg_int(s->rows, (int)i, 1));
    pg_array_end(&w->versions);
    const struct pg_param params[] = {pg_p_text(w->seed->ctl->settings.store.name),
                                      pg_p_buf(&w->objects),
                                      pg_p_buf(&w->relations),
                                      pg_p_buf(&w->subjects),
                                      pg_p_int(b->intent, intent),
                                      pg_p_text(keep_intent ? "f" : "t"),
                                      pg_p_buf(&w->versions)};
    st = pg_query(w->pg, "seed_end", end_sql, params, 7, ctl_deadline(w->seed->ctl), moved, err);
    if (st == ST_OK && pg_rows(*moved) == 0 && !keep_intent)
        b->intent = 0;
    return st;
}

/* Refused for good: what the store said is kept, and the key is tried again when the model changes. */
static enum status park(struct seed_worker *w, struct seed_batch *b, struct states *s, size_t i, const struct err *why,
                        struct err *err)
{
    char version[24];
    const struct tuple_key *k = b->keys[i];
    enum status st = session(w, err);
    const struct pg_param params[] = {pg_p_text(w->seed->ctl->settings.store.name),
                                      pg_p_text(k->object),
                                      pg_p_text(k->relation),
                                      pg_p_text(k->subject),
                                      pg_p_int(pg_int(s->rows, (int)i, 1), version),
                                      pg_p_text(is_present(s, i) ? "write" : "delete"),
                                      pg_p_text(column(s, i, 3)),
                                      pg_p_text(column(s, i, 4)),
                                      pg_p_text(*why->code ? why->code : status_name(why->status)),
                                      pg_p_text(why->text),
                                      pg_p_text(w->seed->pin.model_id)};
    if (st == ST_OK)
        st = pg_query(w->pg, "seed_park", park_sql, params, 11, ctl_deadline(w->seed->ctl), NULL, err);
    if (st == ST_OK) {
        s->refused[i] = true;
        count(w, &w->seed->counts.refused, 1);
    }
    return st;
}

/* ---- the store ---- */

static struct store_tuple tuple_of(const struct seed_batch *b, const struct states *s, size_t i)
{
    return (struct store_tuple){
        .key = *b->keys[i], .condition_name = column(s, i, 3), .condition_context = column(s, i, 4)};
}

/* One Write of the keys [from, to). */
static enum status write_range(struct seed_worker *w, struct seed_batch *b, const struct states *s, size_t from,
                               size_t to, struct err *err)
{
    struct store_tuple writes[STORE_WRITE_MAX];
    struct tuple_key deletes[STORE_WRITE_MAX];
    size_t nwrites = 0, ndeletes = 0;
    for (size_t i = from; i < to; i++) {
        if (is_present(s, i))
            writes[nwrites++] = tuple_of(b, s, i);
        else
            deletes[ndeletes++] = *b->keys[i];
    }
    enum status st = store_write(w->store, w->seed->pin.model_id, writes, nwrites, deletes, ndeletes,
                                 ctl_store_deadline(w->seed->ctl), err);
    if (st == ST_UNKNOWN) {
        b->unknown = true;
        count(w, &w->seed->counts.unknown, 1);
    } else if (st == ST_OK) {
        count(w, &w->seed->counts.writes, (int64_t)nwrites);
        count(w, &w->seed->counts.deletes, (int64_t)ndeletes);
    }
    return st;
}

/* 409 for one key: another condition is stored, which only goes by delete and write, in two calls. */
static enum status replace_condition(struct seed_worker *w, struct seed_batch *b, const struct states *s, size_t i,
                                     struct err *err)
{
    struct store_tuples held = {0};
    bool found = false;
    enum status st = store_read_tuple(w->store, b->keys[i], &found, &held, ctl_store_deadline(w->seed->ctl), err);
    bool other = false;
    if (st == ST_OK && found && is_present(s, i)) {
        const char *name = held.items[0].condition_name, *wanted = column(s, i, 3);
        other = strcmp(name ? name : "", wanted ? wanted : "") != 0 ||
                !store_context_equal(held.items[0].condition_context, column(s, i, 4));
    }
    store_tuples_free(&held);
    if (st != ST_OK)
        return st;
    if (other) {
        st =
            store_write(w->store, w->seed->pin.model_id, NULL, 0, b->keys[i], 1, ctl_store_deadline(w->seed->ctl), err);
        if (st == ST_UNKNOWN)
            b->unknown = true;
        if (st != ST_OK)
            return st;
    }
    return write_range(w, b, s, i, i + 1, err);
}

/* Apply the keys [from, to), halving around a key that is refused until it is alone. Retryable failures come back. */
static enum status apply(struct seed_worker *w, struct seed_batch *b, struct states *s, size_t from, size_t to,
                         struct err *err)
{
    enum status st = write_range(w, b, s, from, to, err);
    if (st == ST_CONFLICT) /* most often a race of first writers */
        st = write_range(w, b, s, from, to, err);
    if (st == ST_CONFLICT && to - from == 1)
        st = replace_condition(w, b, s, from, err);
    bool split = st == ST_INVALID || st == ST_TOO_BIG || st == ST_CONFLICT;
    if (split && to - from > 1) {
        size_t middle = from + (to - from) / 2;
        st = apply(w, b, s, from, middle, err);
        return st == ST_OK ? apply(w, b, s, middle, to, err) : st;
    }
    if (st == ST_INVALID || st == ST_TOO_BIG) {
        struct err why = *err;
        return park(w, b, s, from, &why, err);
    }
    return st;
}

/* ---- the batch ---- */

/* Begin, apply, end: once. */
static enum status converge_once(struct seed_worker *w, struct seed_batch *b, struct pg_result **moved, struct err *err)
{
    struct states s;
    enum status st = begin(w, b, &s, err);
    if (st == ST_OK)
        st = apply(w, b, &s, 0, b->n, err);
    if (st == ST_OK)
        st = end(w, b, &s, b->unknown, moved, err);
    pg_result_free(s.rows);
    return st;
}

/* Only the keys that moved: a batch of a hundred busy ones would never be at rest as a whole. */
static void keep_moved(struct seed_batch *work, const struct pg_result *moved)
{
    for (int i = 0; i < pg_rows(moved); i++)
        work->keys[i] = work->keys[pg_int(moved, i, 0) - 1];
    work->n = (size_t)pg_rows(moved);
}

enum status seed_converge(struct seed_worker *w, struct seed_batch *b, struct err *err)
{
    mono_us give_up = deadline_in_ms(w->seed->options->patience_s * 1000);
    struct seed_batch work = {.n = b->n, .intent = b->intent, .unknown = b->unknown}; /* borrows the keys */
    enum status st = ST_OK;
    memcpy(work.keys, b->keys, b->n * sizeof *b->keys);
    b->late_until = 0;
    for (unsigned attempt = 0; st == ST_OK && work.n;) {
        struct pg_result *moved = NULL;
        st = converge_once(w, &work, &moved, err);
        if (st == ST_OK) {
            count(w, &w->seed->counts.moved, pg_rows(moved));
            attempt = 0;
            if (!work.unknown || pg_rows(moved) == 0) /* the intent must go on covering what is unknown */
                keep_moved(&work, moved);
        } else if (status_is_retryable(st)) {
            st = pause_or_give_up(w, st, attempt++, give_up, err);
        }
        pg_result_free(moved);
    }
    b->intent = work.intent;
    b->unknown = false;
    if (st == ST_OK && work.unknown)
        b->late_until = deadline_in_ms(w->seed->ctl->settings.store.late_window_ms);
    return st;
}
