/* identity.c - pins and probes. */
#include <stdlib.h>

#include "relatactl/identity.h"

#define READ_RETRIES 3
#define STATE_MS 2000

static void copy_id(char to[static ID_MAX], const char *from)
{
    (void)snprintf(to, ID_MAX, "%s", from);
}

static void pin_of_row(const struct pg_result *r, struct pin *out)
{
    copy_id(out->store_id, pg_text(r, 0, 0));
    copy_id(out->model_id, pg_text(r, 0, 1));
    out->generation = pg_int(r, 0, 2);
}

enum status pin_find(struct ctl *ctl, struct pin *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    *out = (struct pin){.generation = 0};
    enum status st = ctl_pg(ctl, err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, "SELECT store_id, model_id, generation FROM relata.store WHERE name = $1", params,
                      1, ctl_deadline(ctl), &r, err);
    if (st != ST_OK)
        return st;
    if (pg_rows(r) == 1)
        pin_of_row(r, out);
    pg_result_free(r);
    return ST_OK;
}

enum status pin_read(struct ctl *ctl, struct pin *out, struct err *err)
{
    enum status st = pin_find(ctl, out, err);
    if (st == ST_OK && !*out->store_id)
        st = err_set(err, ST_MISSING, "",
                     "store \"%s\" is not pinned: relatactl store pin STORE_ID (or relatactl seed --create)",
                     ctl->settings.store.name);
    return st;
}

enum status pin_write(struct ctl *ctl, const char *store_id, const char *model_id, struct pin *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_text(store_id), pg_p_text(model_id)};
    struct pg_result *r = NULL;
    enum status st =
        pg_query(ctl->pg, NULL,
                 "INSERT INTO relata.store AS s (name, store_id, model_id, pinned_at) "
                 "VALUES ($1, $2, $3, clock_timestamp()) ON CONFLICT (name) DO UPDATE SET "
                 "store_id = excluded.store_id, model_id = excluded.model_id, pinned_at = CASE WHEN s.store_id "
                 "IS DISTINCT FROM excluded.store_id THEN excluded.pinned_at ELSE s.pinned_at END "
                 "RETURNING store_id, model_id, generation",
                 params, 3, ctl_deadline(ctl), &r, err);
    if (st == ST_OK)
        pin_of_row(r, out);
    pg_result_free(r);
    return st;
}

enum status pin_connect(struct ctl *ctl, struct pin *out, struct err *err)
{
    char *text = NULL;
    enum status st = pin_read(ctl, out, err);
    if (st == ST_OK)
        st = ctl_store(ctl, out->store_id, err);
    if (st == ST_OK) {
        st = store_get(ctl->store_conn, &text, ctl_store_deadline(ctl), err);
        if (st == ST_MISSING)
            err_set(
                err, st, err->code,
                "store \"%s\" is pinned to %s, which is not at %s: relatactl seed --create --model FILE makes a new "
                "one, relatactl store pin STORE_ID names another",
                ctl->settings.store.name, out->store_id, ctl->settings.store.url);
    }
    free(text);
    text = NULL;
    if (st == ST_OK && !*out->model_id)
        st = err_set(err, ST_MISSING, "", "store \"%s\" has no model in force: relatactl model use MODEL_ID",
                     ctl->settings.store.name);
    if (st == ST_OK) {
        st = store_model(ctl->store_conn, out->model_id, &text, ctl_store_deadline(ctl), err);
        if (st == ST_MISSING)
            err_set(err, st, err->code,
                    "the model in force, %s, is not in store %s: relatactl model use MODEL_ID puts another in force",
                    out->model_id, out->store_id);
    }
    free(text);
    return st;
}

/* Does the store hold what the ledger says about a key? `condition` parts are NULL for none. */
static enum status key_agrees(struct ctl *ctl, const struct tuple_key *key, bool present, const char *condition_name,
                              const char *condition_context, bool *agrees, struct err *err)
{
    struct store_tuples held = {0};
    bool found = false;
    enum status st = ST_RETRY;
    for (int i = 0; i < READ_RETRIES && status_is_retryable(st); i++)
        st = store_read_tuple(ctl->store_conn, key, &found, &held, ctl_store_deadline(ctl), err);
    if (st != ST_OK)
        return st;
    *agrees = found == present;
    if (found && present) {
        const char *name = held.items[0].condition_name;
        *agrees = strcmp(name ? name : "", condition_name ? condition_name : "") == 0 &&
                  store_context_equal(held.items[0].condition_context, condition_context);
    }
    store_tuples_free(&held);
    return ST_OK;
}

static const char *value_or_null(const struct pg_result *r, int row, int col)
{
    return pg_is_null(r, row, col) ? NULL : pg_text(r, row, col);
}

static const char probes_sql[] =
    "SELECT p.object, p.relation, p.subject, t.version, t.present, t.condition_name, t.condition_context, "
    "EXISTS (SELECT FROM relata.outbox o WHERE o.key = relata.key_hash(p.object, p.relation, p.subject) AND o.store = "
    "$1) "
    "OR EXISTS (SELECT FROM relata.dead_letter d WHERE d.closed_at IS NULL AND d.store = $1 AND d.object = p.object "
    "AND "
    "d.relation = p.relation AND d.subject = p.subject) OR EXISTS (SELECT FROM relata.inflight i, "
    "unnest(i.objects, i.relations, i.subjects) AS u (o, r, s) WHERE i.store = $1 AND u.o = p.object AND "
    "u.r = p.relation AND u.s = p.subject) AS busy "
    "FROM relata.probe p LEFT JOIN relata.tuple t ON t.store = p.store AND t.object = p.object AND "
    "t.relation = p.relation AND t.subject = p.subject WHERE p.store = $1 ORDER BY p.slot";

/* The row of the same key in `r`, unchanged since and still at rest. */
static bool still(const struct pg_result *before, int row, const struct pg_result *after)
{
    for (int i = 0; i < pg_rows(after); i++) {
        if (strcmp(pg_text(after, i, 0), pg_text(before, row, 0)) == 0 &&
            strcmp(pg_text(after, i, 1), pg_text(before, row, 1)) == 0 &&
            strcmp(pg_text(after, i, 2), pg_text(before, row, 2)) == 0)
            return pg_int(after, i, 3) == pg_int(before, row, 3) && !pg_bool(after, i, 7);
    }
    return false;
}

static enum status read_back(struct ctl *ctl, const struct pg_result *r, int row, bool *agrees, struct err *err)
{
    const struct tuple_key key = {pg_text(r, row, 0), pg_text(r, row, 1), pg_text(r, row, 2)};
    /* A key that the ledger has forgotten is absent: tombstones are swept. */
    bool present = !pg_is_null(r, row, 3) && pg_bool(r, row, 4);
    return key_agrees(ctl, &key, present, value_or_null(r, row, 5), value_or_null(r, row, 6), agrees, err);
}

enum status probes_check(struct ctl *ctl, struct probes *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *before = NULL, *after = NULL;
    bool differs[16] = {false}, agrees[16] = {false};
    *out = (struct probes){0};
    buf_init(&out->first_difference, 4096);
    enum status st = pg_query(ctl->pg, NULL, probes_sql, params, 1, ctl_deadline(ctl), &before, err);
    int n = st == ST_OK ? pg_rows(before) : 0;
    if (n > 16)
        n = 16;
    for (int i = 0; st == ST_OK && i < n; i++) {
        if (pg_bool(before, i, 7))
            continue;
        st = read_back(ctl, before, i, &agrees[i], err);
        differs[i] = !agrees[i];
    }
    /* A difference counts only if the key was at rest on both sides of the Read. */
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, probes_sql, params, 1, ctl_deadline(ctl), &after, err);
    for (int i = 0; st == ST_OK && i < n; i++) {
        if (agrees[i]) {
            out->agree++;
        } else if (differs[i] && still(before, i, after)) {
            const struct tuple_key key = {pg_text(before, i, 0), pg_text(before, i, 1), pg_text(before, i, 2)};
            if (!out->differ++)
                tuple_key_format(&key, &out->first_difference);
        } else {
            out->unsettled++;
        }
    }
    pg_result_free(before);
    pg_result_free(after);
    return st;
}

enum status probes_refuse(const struct probes *p, const char *store_id, struct err *err)
{
    return err_set(
        err, ST_INVALID, CTL_REFUSED,
        "store %s does not hold what was last applied (%d of %d differ, first %s): was it wiped, restored or "
        "swapped? relatactl seed --merge fills it again",
        store_id, p->differ, p->agree + p->differ, buf_str(&p->first_difference));
}

const char *store_state(struct ctl *ctl, const char *name, const char *store_id)
{
    struct err err;
    char *text = NULL;
    if (!*store_id)
        return "not pinned";
    if (strcmp(name, ctl->settings.store.name) != 0)
        return "pinned";
    enum status st = ctl_store(ctl, store_id, &err);
    if (st == ST_OK)
        st = store_get(ctl->store_conn, &text, deadline_in_ms(STATE_MS), &err);
    free(text);
    return st == ST_OK ? "pinned" : st == ST_MISSING ? "store gone" : "store unreachable";
}

void probes_release(struct probes *p)
{
    buf_release(&p->first_difference);
}

enum status live_writers(struct ctl *ctl, int *n, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    *n = 0;
    enum status st =
        pg_query(ctl->pg, NULL,
                 "SELECT count(*) FROM relata.writer w WHERE w.store = $1 AND w.ended_at IS NULL AND EXISTS "
                 "(SELECT FROM relata.session_lock l WHERE l.kind = 1380270081 AND l.id = w.id)",
                 params, 1, ctl_deadline(ctl), &r, err);
    if (st == ST_OK)
        *n = (int)pg_int(r, 0, 0);
    pg_result_free(r);
    return st;
}
