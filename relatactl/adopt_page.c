/* adopt_page.c - insert, read again, confirm. */
#include <stdlib.h>

#include "relatactl/adopt.h"

#define CONFIRM_TRIES 5

/* A tuple that is being changed by a service is waited for only briefly: our own rows of the page are locked by then.
 */
static const char begin_sql[] = "BEGIN; SET LOCAL lock_timeout TO '250ms'; SET LOCAL synchronous_commit TO on";

static const char insert_sql[] =
    "WITH k AS MATERIALIZED (SELECT u.*, relata.tuple_ok(o, r, s) AS fit FROM unnest($2::text[], $3::text[], "
    "$4::text[], "
    "$5::text[], $6::text[]) WITH ORDINALITY AS u (o, r, s, c, x, n)), "
    "put AS (INSERT INTO relata.tuple (store, object, relation, subject, condition_name, condition_context, present, "
    "version) SELECT $1, o, r, s, c, nullif(x::jsonb, '{}'), true, nextval('relata.outbox_id') FROM (SELECT * FROM k "
    "WHERE "
    "fit ORDER BY o COLLATE \"C\", r COLLATE \"C\", s COLLATE \"C\") AS sorted ON CONFLICT (store, object, relation, "
    "subject) DO NOTHING RETURNING object, relation, subject, version) "
    "SELECT k.fit, put.version, t.present FROM k LEFT JOIN put ON put.object = k.o AND put.relation = k.r AND "
    "put.subject = "
    "k.s LEFT JOIN relata.tuple t ON t.store = $1 AND t.object = k.o AND t.relation = k.r AND t.subject = k.s ORDER BY "
    "k.n";

/* The same answer without inserting: what is not in the ledger gets the version 0. */
static const char lookup_sql[] =
    "SELECT relata.tuple_ok(k.o, k.r, k.s), CASE WHEN t.present IS NULL THEN 0 END, t.present FROM unnest($2::text[], "
    "$3::text[], $4::text[], $5::text[], $6::text[]) WITH ORDINALITY AS k (o, r, s, c, x, n) LEFT JOIN relata.tuple t "
    "ON "
    "t.store = $1 AND t.object = k.o AND t.relation = k.r AND t.subject = k.s ORDER BY k.n";

/* Both only if the row is still the one that was inserted. Deleted, not marked absent: the tuple may come again on a
 * later page, and the ledger never promised anything about it. */
static const char withdraw_sql[] =
    "DELETE FROM relata.tuple WHERE store = $1 AND object = $2 AND relation = $3 AND subject = "
    "$4 AND version = $5 RETURNING 0";
static const char correct_sql[] =
    "UPDATE relata.tuple SET condition_name = $6, condition_context = nullif($7::jsonb, '{}'), version = "
    "nextval('relata.outbox_id'), changed_at = clock_timestamp() WHERE store = $1 AND object = $2 AND relation = $3 "
    "AND "
    "subject = $4 AND version = $5 RETURNING version";

/* Reading is harmless to repeat. */
static enum status read_page(struct adopt *a, const char *token, struct store_tuples *page, char **next,
                             struct err *err)
{
    mono_us give_up = deadline_in_ms(a->options->patience_s * 1000);
    for (unsigned tries = 0;; tries++) {
        enum status st = store_read_page(a->ctl->store_conn, token, page, next, ctl_store_deadline(a->ctl), err);
        if (!status_is_retryable(st) || clock_mono_us() >= give_up)
            return st;
        int64_t ms = backoff_ms(tries, 100, 5000);
        if (err->retry_after_ms > ms)
            ms = err->retry_after_ms;
        if (stop_sleep_until(deadline_in_ms(ms)) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
    }
}

static bool is_owned(const struct adopt *a, const struct tuple_key *key)
{
    if (json_object_size(a->owned) == 0)
        return true;
    char pair[1024];
    struct bytes type = tuple_type(key->object);
    (void)snprintf(pair, sizeof pair, "%.*s#%s", (int)type.len, type.data, key->relation);
    return json_object_get(a->owned, pair) != NULL;
}

static void refuse(struct adopt *a, const struct tuple_key *key)
{
    a->counts.refused++;
    if (!*a->first_refused)
        (void)snprintf(a->first_refused, sizeof a->first_refused, "%s#%s@%s", key->object, key->relation, key->subject);
}

/* jsonb cannot hold U+0000. */
static bool context_fits(const char *context)
{
    return !context || !strstr(context, "\\u0000");
}

/* The page's tuples that are ours to take, as parameters. */
static size_t choose(struct adopt *a, const struct store_tuples *page, const struct store_tuple **chosen)
{
    struct buf *bufs[] = {&a->objects, &a->relations, &a->subjects, &a->names, &a->contexts};
    size_t n = 0;
    for (size_t i = 0; i < 5; i++)
        pg_array_begin(bufs[i]);
    for (size_t i = 0; i < page->len; i++) {
        const struct store_tuple *t = &page->items[i];
        a->counts.read++;
        if (!is_owned(a, &t->key)) {
            a->counts.foreign++;
        } else if (!context_fits(t->condition_context)) {
            refuse(a, &t->key);
        } else {
            pg_array_add(&a->objects, t->key.object);
            pg_array_add(&a->relations, t->key.relation);
            pg_array_add(&a->subjects, t->key.subject);
            pg_array_add(&a->names, t->condition_name && *t->condition_name ? t->condition_name : NULL);
            pg_array_add(&a->contexts, t->condition_context && *t->condition_context ? t->condition_context : NULL);
            chosen[n++] = t;
        }
    }
    for (size_t i = 0; i < 5; i++)
        pg_array_end(bufs[i]);
    return n;
}

/* What the insert did with each tuple; the new ones to `rows`. */
static void sort_out(struct adopt *a, const struct pg_result *r, const struct store_tuple **chosen, json_t *rows)
{
    for (int i = 0; i < pg_rows(r); i++) {
        const struct store_tuple *t = chosen[i];
        if (!pg_bool(r, i, 0)) {
            refuse(a, &t->key);
        } else if (!pg_is_null(r, i, 1)) {
            a->counts.adopted++;
            (void)json_array_append_new(rows, json_pack("[s, s, s, s?, s?, I]", t->key.object, t->key.relation,
                                                        t->key.subject, t->condition_name, t->condition_context,
                                                        (json_int_t)pg_int(r, i, 1)));
        } else if (pg_is_null(r, i, 2) || pg_bool(r, i, 2)) { /* NULL: a service inserted it just now */
            a->counts.known++;
        } else {
            a->counts.absent++;
        }
    }
}

/* The rows, and what is to be confirmed, in one transaction. */
static enum status insert_chosen(struct adopt *a, const struct store_tuple **chosen, const char *next, struct err *err)
{
    struct ctl *ctl = a->ctl;
    struct pg_result *r = NULL;
    bool dry = a->options->dry_run;
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name),
                                      pg_p_buf(&a->objects),
                                      pg_p_buf(&a->relations),
                                      pg_p_buf(&a->subjects),
                                      pg_p_buf(&a->names),
                                      pg_p_buf(&a->contexts)};
    json_t *rows = json_array();
    enum status st = dry ? ST_OK : pg_exec(ctl->pg, begin_sql, ctl_deadline(ctl), err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, dry ? "adopt_lookup" : "adopt_insert", dry ? lookup_sql : insert_sql, params, 6,
                      ctl_deadline(ctl), &r, err);
    if (st == ST_OK) {
        sort_out(a, r, chosen, rows);
        json_decref(a->job.pending);
        a->job.pending = json_pack("{s:O, s:s}", "rows", rows, "next", next);
    }
    if (st == ST_OK && !dry)
        st = a->save(a, false, err);
    if (st == ST_OK && !dry)
        st = pg_exec(ctl->pg, "COMMIT", ctl_deadline(ctl), err);
    struct err ignored;
    if (st != ST_OK && !dry && pg_alive(ctl->pg) && pg_exec(ctl->pg, "ROLLBACK", ctl_deadline(ctl), &ignored) != ST_OK)
        (void)ignored; /* the session is gone, and with it the transaction */
    json_decref(rows);
    pg_result_free(r);
    return st;
}

enum status adopt_insert(struct adopt *a, struct err *err)
{
    struct store_tuples page = {0};
    char *next = NULL;
    enum status st = read_page(a, json_string_value(a->job.position), &page, &next, err);
    const struct store_tuple *chosen[STORE_WRITE_MAX];
    if (page.len > STORE_WRITE_MAX)
        st = err_set(err, ST_FATAL, "", "a page of %zu tuples, at most %d were asked for", page.len, STORE_WRITE_MAX);
    if (st == ST_OK) {
        (void)choose(a, &page, chosen);
        st = insert_chosen(a, chosen, next, err);
    }
    store_tuples_free(&page);
    free(next);
    return st;
}

/* ---- confirming ---- */

static bool same_condition(const struct store_tuple *x, const struct store_tuple *y)
{
    const char *a = x->condition_name ? x->condition_name : "", *b = y->condition_name ? y->condition_name : "";
    return strcmp(a, b) == 0 && store_context_equal(x->condition_context, y->condition_context);
}

static bool on_page(const struct store_tuples *page, const struct store_tuple *t)
{
    for (size_t i = 0; i < page->len; i++) {
        if (tuple_key_cmp(&page->items[i].key, &t->key) == 0)
            return same_condition(&page->items[i], t);
    }
    return false;
}

static const char *text_or_null(const char *s)
{
    return s && *s ? s : NULL;
}

/* Bring the inserted row to what the store holds (NULL = nothing). *version becomes the row's new one, 0 if there is
 * none any more or it is somebody else's. */
static enum status amend(struct adopt *a, const struct tuple_key *key, const struct store_tuple *held, int64_t *version,
                         struct err *err)
{
    char scratch[24];
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(a->ctl->settings.store.name),
                                      pg_p_text(key->object),
                                      pg_p_text(key->relation),
                                      pg_p_text(key->subject),
                                      pg_p_int(*version, scratch),
                                      pg_p_text(held ? text_or_null(held->condition_name) : NULL),
                                      pg_p_text(held ? text_or_null(held->condition_context) : NULL)};
    enum status st = pg_query(a->ctl->pg, held ? "adopt_correct" : "adopt_withdraw", held ? correct_sql : withdraw_sql,
                              params, held ? 7 : 5, ctl_deadline(a->ctl), &r, err);
    if (st == ST_OK && pg_rows(r)) {
        a->counts.corrected += held != NULL;
        a->counts.withdrawn += held == NULL;
    }
    if (st == ST_OK)
        *version = pg_rows(r) ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}

/* Point Reads until store and row agree, or the row is a service's. */
static enum status confirm_alone(struct adopt *a, const struct store_tuple *inserted, int64_t version, struct err *err)
{
    struct store_tuples former = {0}, held = {0};
    struct store_tuple row = *inserted;
    enum status st = ST_OK;
    for (int tries = 0; st == ST_OK && version && tries < CONFIRM_TRIES; tries++) {
        bool found = false;
        st = store_read_tuple(a->ctl->store_conn, &row.key, &found, &held, ctl_store_deadline(a->ctl), err);
        if (st != ST_OK || (found && same_condition(&held.items[0], &row)))
            break;
        st = amend(a, &inserted->key, found ? &held.items[0] : NULL, &version, err);
        if (found) /* read once more: the condition may have changed again before the correction was in */
            row = (struct store_tuple){inserted->key, held.items[0].condition_name, held.items[0].condition_context};
        store_tuples_free(&former);
        former = held;
        held = (struct store_tuples){0};
    }
    store_tuples_free(&former);
    store_tuples_free(&held);
    return st;
}

static enum status confirm_rows(struct adopt *a, json_t *rows, struct err *err)
{
    struct store_tuples page = {0};
    char *next = NULL;
    size_t i;
    json_t *item;
    enum status st = read_page(a, json_string_value(a->job.position), &page, &next, err);
    json_array_foreach(rows, i, item)
    {
        const struct store_tuple t = {.key = {json_string_value(json_array_get(item, 0)),
                                              json_string_value(json_array_get(item, 1)),
                                              json_string_value(json_array_get(item, 2))},
                                      .condition_name = json_string_value(json_array_get(item, 3)),
                                      .condition_context = json_string_value(json_array_get(item, 4))};
        if (st == ST_OK && t.key.object && t.key.relation && t.key.subject && !on_page(&page, &t))
            st = confirm_alone(a, &t, json_integer_value(json_array_get(item, 5)), err);
    }
    store_tuples_free(&page);
    free(next);
    return st;
}

enum status adopt_confirm(struct adopt *a, struct err *err)
{
    json_t *rows = json_object_get(a->job.pending, "rows");
    const char *next = json_string_value(json_object_get(a->job.pending, "next"));
    enum status st = json_array_size(rows) && !a->options->dry_run ? confirm_rows(a, rows, err) : ST_OK;
    if (st != ST_OK)
        return st;
    json_decref(a->job.position);
    a->job.position = json_string(next ? next : "");
    json_decref(a->job.pending);
    a->job.pending = json_null();
    return ST_OK;
}
