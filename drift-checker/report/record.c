#include "drift-checker/report/record.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"

#define LOCK_CLASS "1380270088"
#define ENDING_MS 1000 /* how long the server may take to notice that an audit has ended */
#define RETRY_MS 50
#define BATCH 500

static mono_us soon(const struct settings *cfg)
{
    return deadline_in_ms(cfg->statement_timeout_ms);
}

/* Who has the lock; `err` gets ST_CONFLICT. */
static enum status held_by(struct pg *pg, const struct settings *cfg, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(cfg->store.name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(
        pg, NULL,
        "SELECT l.pid, coalesce(a.usename, '?'), coalesce(host(a.client_addr), 'a local socket'), coalesce((SELECT "
        "'run ' || id || ', begun ' || to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM "
        "relata.audit_run WHERE store = $1 AND state = 'running' ORDER BY id DESC LIMIT 1), 'a run that just begins') "
        "FROM relata.session_lock l LEFT JOIN pg_stat_activity a USING (pid) WHERE l.kind = " LOCK_CLASS
        " AND l.id = hashtext($1)::bigint & 4294967295",
        params, 1, soon(cfg), &r, err);

    if (st == ST_OK && pg_rows(r) > 0)
        st = err_set(err, ST_CONFLICT, NULL, "another audit of store \"%s\" is running: %s, by %s from %s (backend %s)",
                     cfg->store.name, pg_text(r, 0, 3), pg_text(r, 0, 1), pg_text(r, 0, 2), pg_text(r, 0, 0));
    else if (st == ST_OK)
        st = err_set(err, ST_CONFLICT, NULL, "another audit of store \"%s\" was running until now", cfg->store.name);
    pg_result_free(r);
    return st;
}

static enum status take_lock(struct pg *pg, const struct settings *cfg, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(cfg->store.name)};
    mono_us until = deadline_in_ms(ENDING_MS);

    for (;;) {
        struct pg_result *r = NULL;
        enum status st = pg_query(pg, NULL, "SELECT pg_try_advisory_lock(" LOCK_CLASS ", hashtext($1))", params, 1,
                                  soon(cfg), &r, err);
        bool had = st == ST_OK && pg_bool(r, 0, 0);

        pg_result_free(r);
        if (st != ST_OK || had)
            return st;
        if (clock_mono_us() >= until)
            return held_by(pg, cfg, err);
        if (stop_sleep_until(deadline_in_ms(RETRY_MS)) != ST_OK)
            return err_set(err, ST_STOPPED, NULL, "interrupted");
    }
}

static enum status take_known(struct run *run, const char *json, struct err *err)
{
    json_t *list = json_loads(json, 0, NULL);
    size_t n = json_array_size(list);

    run->known_pairs = calloc(n + 1, sizeof *run->known_pairs);
    for (size_t i = 0; run->known_pairs && i < n; i++) {
        const char *pair = json_string_value(json_array_get(list, i));

        run->known_pairs[i] = strdup(pair ? pair : "");
        if (!run->known_pairs[i])
            break;
    }
    json_decref(list);
    return run->known_pairs ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");
}

/* What the last complete audit of everything left. */
static enum status read_last(struct pg *pg, const struct settings *cfg, struct run *run, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(cfg->store.name), pg_p_text(run->store_id), pg_p_text(run->model_id)};
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, NULL,
                              "SELECT sources, coalesce(counts -> 'expected_pairs', '[]'), models_seen AND store_id = "
                              "$2 AND model_id = $3 AND NOT "
                              "EXISTS (SELECT FROM relata.audit_finding f WHERE f.store = $1 AND f.cause = "
                              "'invalid_in_model' AND f.closed_at IS "
                              "NULL) FROM relata.audit_run WHERE store = $1 AND scope = '' AND state IN ('clean', "
                              "'drift', 'refused') ORDER BY id "
                              "DESC LIMIT 1",
                              params, 3, soon(cfg), &r, err);

    run->check_model = true;
    if (st == ST_OK && pg_rows(r) == 1) {
        run->sources = json_loads(pg_text(r, 0, 0), 0, NULL);
        st = take_known(run, pg_text(r, 0, 1), err);
        run->check_model = !pg_bool(r, 0, 2);
    }
    pg_result_free(r);
    return st;
}

static void scope_of(const struct settings *cfg, struct run *run)
{
    if (*cfg->apply) {
        (void)snprintf(run->scope, sizeof run->scope, "plan");
        return;
    }
    const char *kind = *cfg->type ? "type " : *cfg->object ? "object " : *cfg->subject ? "subject " : "";

    (void)snprintf(run->scope, sizeof run->scope, "%s%s%s%s", kind, cfg->type, cfg->object, cfg->subject);
}

enum status record_begin(struct pg *pg, const struct settings *cfg, struct run *run, struct err *err)
{
    const struct pg_param store[] = {pg_p_text(cfg->store.name)};
    struct pg_result *r = NULL;
    enum status st = take_lock(pg, cfg, err);

    run->store = cfg->store.name;
    scope_of(cfg, run);
    if (st == ST_OK)
        st = pg_query(
            pg, NULL,
            "UPDATE relata.audit_run SET state = 'incomplete', why = 'it ended without a word: killed, or cut off "
            "from Postgres', finished_at = clock_timestamp() WHERE store = $1 AND state = 'running'",
            store, 1, soon(cfg), NULL, err);
    if (st == ST_OK)
        st = read_last(pg, cfg, run, err);
    if (st == ST_OK) {
        const struct pg_param params[] = {pg_p_text(cfg->store.name), pg_p_text(run->store_id),
                                          pg_p_text(run->model_id), pg_p_text(run->scope),
                                          pg_p_text(cfg->full || *cfg->object || *cfg->subject ? "t" : "f")};

        st = pg_query(
            pg, NULL,
            "INSERT INTO relata.audit_run (store, store_id, model_id, scope, by_tuple) VALUES ($1, $2, $3, $4, $5) "
            "RETURNING id, to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
            params, 5, soon(cfg), &r, err);
    }
    if (st == ST_OK) {
        run->id = pg_int(r, 0, 0);
        (void)snprintf(run->started_at, sizeof run->started_at, "%s", pg_text(r, 0, 1));
    }
    pg_result_free(r);
    return st;
}

/* ---- findings ---- */

static json_t *holding_json(const struct holding *h)
{
    json_t *v = json_object();

    (void)json_object_set_new(v, "present", json_boolean(h->present));
    if (h->condition) {
        (void)json_object_set_new(v, "condition", json_string(h->condition));
        (void)json_object_set_new(v, "context", h->context ? json_loads(h->context, 0, NULL) : json_object());
    }
    return v;
}

static char *detail_of(const struct finding *f)
{
    json_t *v = json_object();
    char *text;

    if (f->judged_expected)
        (void)json_object_set_new(v, "expected", holding_json(&f->expected));
    (void)json_object_set_new(v, "ledger", holding_json(&f->ledger));
    (void)json_object_set_new(v, "observed", holding_json(&f->observed));
    if (f->reason)
        (void)json_object_set_new(v, "reason", json_string(f->reason));
    text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    return text;
}

enum { OBJECTS, RELATIONS, SUBJECTS, CAUSE, EXCESS, DETAIL, COLUMNS };

static bool fill(struct buf *columns, const struct finding *f, size_t n)
{
    bool fine = true;

    for (int i = 0; i < COLUMNS; i++)
        pg_array_begin(&columns[i]);
    for (size_t i = 0; i < n; i++) {
        char *detail = detail_of(&f[i]);

        pg_array_add(&columns[OBJECTS], f[i].key->object);
        pg_array_add(&columns[RELATIONS], f[i].key->relation);
        pg_array_add(&columns[SUBJECTS], f[i].key->subject);
        pg_array_add(&columns[CAUSE], cause_name(f[i].cause));
        pg_array_add(&columns[EXCESS], f[i].excess ? "t" : "f");
        pg_array_add(&columns[DETAIL], detail);
        fine = fine && detail;
        free(detail);
    }
    for (int i = 0; i < COLUMNS; i++)
        pg_array_end(&columns[i]);
    return fine;
}

static const char findings_sql[] =
    "WITH given AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], "
    "$6::jsonb[]) WITH ORDINALITY AS g(object, relation, subject, cause, excess, detail, n)), put AS ("
    "INSERT INTO relata.audit_finding AS f (store, object, relation, subject, cause, excess, detail, first_run, "
    "last_run) "
    "SELECT $7, object, relation, subject, cause, excess, detail, $8, $8 FROM given "
    "ON CONFLICT (store, object, relation, subject, cause) WHERE closed_at IS NULL DO UPDATE SET excess = "
    "excluded.excess, "
    "detail = excluded.detail, last_seen = clock_timestamp(), last_run = excluded.last_run, repaired_at = NULL, token "
    "= NULL "
    "RETURNING f.id, f.object, f.relation, f.subject, f.cause, f.first_seen) "
    "SELECT p.id, to_char(p.first_seen AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM given g JOIN put p "
    "ON "
    "p.object = g.object AND p.relation = g.relation AND p.subject = g.subject AND p.cause = g.cause ORDER BY g.n";

static enum status record_batch(struct pg *pg, const struct settings *cfg, const struct run *run, struct finding *f,
                                size_t n, struct err *err)
{
    struct buf columns[COLUMNS];
    struct pg_param params[COLUMNS + 2];
    struct pg_result *r = NULL;
    char scratch[24];
    enum status st;

    for (int i = 0; i < COLUMNS; i++)
        buf_init(&columns[i], 1 << 25);
    if (fill(columns, f, n)) {
        for (int i = 0; i < COLUMNS; i++)
            params[i] = pg_p_buf(&columns[i]);
        params[COLUMNS] = pg_p_text(run->store);
        params[COLUMNS + 1] = pg_p_int(run->id, scratch);
        st = pg_query(pg, NULL, findings_sql, params, COLUMNS + 2, soon(cfg), &r, err);
    } else {
        st = err_set(err, ST_NOMEM, NULL, "no memory");
    }
    if (st == ST_OK && pg_rows(r) != (int)n)
        st = err_set(err, ST_FATAL, NULL, "%d of %zu findings were recorded", pg_rows(r), n);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        f[i].id = pg_int(r, (int)i, 0);
        (void)snprintf(f[i].first_seen, sizeof f[i].first_seen, "%s", pg_text(r, (int)i, 1));
    }
    pg_result_free(r);
    for (int i = 0; i < COLUMNS; i++)
        buf_release(&columns[i]);
    return st;
}

enum status record_findings(struct pg *pg, const struct settings *cfg, const struct run *run, struct findings *f,
                            struct err *err)
{
    enum status st = ST_OK;

    for (size_t at = 0; at < f->len && st == ST_OK; at += BATCH)
        st = record_batch(pg, cfg, run, f->items + at, f->len - at < BATCH ? f->len - at : BATCH, err);
    return st;
}

/* ---- the end ---- */

enum status record_end(struct pg *pg, const struct settings *cfg, const struct run *run, const struct run_end *end,
                       struct err *err)
{
    char id[24];
    char *counts = json_dumps(end->counts, JSON_COMPACT), *sources = json_dumps(end->sources, JSON_COMPACT);
    bool closes = end->all_seen && strcmp(end->state, "incomplete") != 0;
    const struct pg_param params[] = {pg_p_int(run->id, id),
                                      pg_p_text(end->state),
                                      pg_p_text(end->why),
                                      pg_p_text(counts ? counts : "{}"),
                                      pg_p_text(sources ? sources : "{}"),
                                      pg_p_text(end->models_seen ? "t" : "f"),
                                      pg_p_text(cfg->type),
                                      pg_p_text(cfg->object),
                                      pg_p_text(cfg->subject),
                                      pg_p_text(run->store),
                                      pg_p_text(closes ? "t" : "f")};
    enum status st = pg_query(
        pg, NULL,
        "WITH ended AS (UPDATE relata.audit_run SET state = $2, why = $3, counts = $4::jsonb, sources = $5::jsonb, "
        "models_seen = $6::boolean, finished_at = clock_timestamp() WHERE id = $1 RETURNING id) "
        "UPDATE relata.audit_finding f SET closed_at = clock_timestamp() WHERE $11::boolean AND store = $10 AND "
        "closed_at IS NULL AND last_run < $1 AND ($7 = '' OR split_part(object, ':', 1) = $7) AND "
        "($8 = '' OR object = $8) AND ($9 = '' OR subject = $9) AND NOT EXISTS (SELECT FROM relata.outbox o WHERE "
        "o.key = relata.key_hash(f.object, f.relation, f.subject) AND o.store = f.store AND o.object = f.object AND "
        "o.relation = f.relation AND o.subject = f.subject)",
        params, sizeof params / sizeof *params, soon(cfg), NULL, err);

    free(counts);
    free(sources);
    return st;
}

enum status record_renamed(struct pg *pg, const struct settings *cfg, const struct run *run, struct pg_result **out,
                           struct err *err)
{
    char id[24];
    const struct pg_param params[] = {pg_p_int(run->id, id)};

    return pg_query(
        pg, NULL,
        "WITH f AS (SELECT object, excess, count(*) AS n, array_agg(relation || '@' || subject ORDER BY relation, "
        "subject) "
        "AS held FROM relata.audit_finding WHERE last_run = $1 AND cause IN ('never_emitted', 'lost', 'orphan', "
        "'out_of_band') GROUP BY object, excess) "
        "SELECT old.object, new.object, old.n FROM f old JOIN f new ON old.held = new.held AND old.excess AND NOT "
        "new.excess AND split_part(old.object, ':', 1) = split_part(new.object, ':', 1) ORDER BY old.n DESC, 1, 2 "
        "LIMIT 20",
        params, 1, soon(cfg), out, err);
}

void run_release(struct run *run)
{
    json_decref(run->sources);
    for (char **p = run->known_pairs; p && *p; p++)
        free(*p);
    free(run->known_pairs);
    *run = (struct run){0};
}
