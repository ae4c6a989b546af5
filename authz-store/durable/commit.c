/* commit.c - the writer's statements. */
#include "authz-store/durable/commit.h"

#define BATCH_MAX (256U << 20)
#define SWEEP_ROWS "20000"

#define COLUMNS(X) X(id) X(store) X(object) X(relation) X(subject) X(condition) X(context) X(kind)

/* First in each statement: what follows asks whether it has a row. */
#define FENCE "WITH fence AS (SELECT epoch FROM relata_store.leader WHERE epoch = $1::bigint FOR UPDATE)"
#define FENCED " (SELECT epoch FROM fence) IS NOT NULL"
#define AT(id) "'epoch'::timestamptz + " id " * '1 us'::interval"

static const char batch_sql[] =
    FENCE ", c AS MATERIALIZED (SELECT * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], "
          "$7::text[], $8::text[], $9::bigint[]) AS u(id, store, object, relation, subject, condition, context, kind) "
          "WHERE" FENCED "), "
          "gone AS (DELETE FROM relata_store.tuple t USING c WHERE c.kind = 3 AND t.store = c.store AND "
          "t.object = c.object AND t.relation = c.relation AND t.subject = c.subject), "
          "put AS (INSERT INTO relata_store.tuple (store, object, relation, subject, condition, context, inserted_at) "
          "SELECT store, object, relation, subject, condition, context, " AT(
              "id") " FROM c WHERE kind = 1 "
                    "ON CONFLICT (store, object, relation, subject) DO UPDATE SET condition = EXCLUDED.condition, "
                    "context = EXCLUDED.context, inserted_at = EXCLUDED.inserted_at), "
                    "noted AS (INSERT INTO relata_store.change (id, store, object, relation, subject, removed, "
                    "condition, context) "
                    "SELECT id, store, object, relation, subject, kind >= 2, condition, context FROM c) "
                    "SELECT epoch FROM fence";

void commit_batch_init(struct commit_batch *b)
{
    *b = (struct commit_batch){0};
#define X(column) buf_init(&b->column, BATCH_MAX);
    COLUMNS(X)
#undef X
}

void commit_batch_release(struct commit_batch *b)
{
#define X(column) buf_release(&b->column);
    COLUMNS(X)
#undef X
}

void commit_batch_begin(struct commit_batch *b)
{
    pg_bin_begin(&b->id, PG_ELEM_INT8);
    pg_bin_begin(&b->kind, PG_ELEM_INT8);
    pg_bin_begin(&b->store, PG_ELEM_TEXT);
    pg_bin_begin(&b->object, PG_ELEM_TEXT);
    pg_bin_begin(&b->relation, PG_ELEM_TEXT);
    pg_bin_begin(&b->subject, PG_ELEM_TEXT);
    pg_bin_begin(&b->condition, PG_ELEM_TEXT);
    pg_bin_begin(&b->context, PG_ELEM_TEXT);
    b->n = 0;
    b->last_id = 0;
}

static void add_text(struct buf *b, struct engine_text text)
{
    pg_bin_add_bytes(b, text.s, text.len);
}

static void add_optional(struct buf *b, struct engine_text text)
{
    pg_bin_add_bytes(b, text.len ? text.s : NULL, text.len);
}

void commit_batch_add(struct commit_batch *b, int64_t id, const char *store, const struct engine_tuple *tuple,
                      enum commit_kind kind)
{
    pg_bin_add_int(&b->id, id);
    pg_bin_add_int(&b->kind, (int64_t)kind);
    pg_bin_add(&b->store, store);
    add_text(&b->object, tuple->object);
    add_text(&b->relation, tuple->relation);
    add_text(&b->subject, tuple->subject);
    add_optional(&b->condition, tuple->condition);
    add_optional(&b->context, tuple->context);
    b->n++;
    b->last_id = id;
}

/* A statement that answers with the epoch, or with nothing if that has ended. */
static enum status fenced(struct pg *pg, const char *name, const char *sql, const struct pg_param *params, int n,
                          mono_us deadline, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, name, sql, params, n, deadline, &r, err);

    if (st == ST_OK && pg_rows(r) != 1)
        st = err_set(err, ST_CONFLICT, NULL, "this process's epoch has ended: another one writes");
    pg_result_free(r);
    return st;
}

enum status commit_batch_send(struct pg *pg, int64_t epoch, struct commit_batch *b, mono_us deadline, struct err *err)
{
    char e[24];

#define X(column) pg_bin_end(&b->column);
    COLUMNS(X)
#undef X
    const struct pg_param params[] = {pg_p_int(epoch, e),      pg_p_bin(&b->id),       pg_p_bin(&b->store),
                                      pg_p_bin(&b->object),    pg_p_bin(&b->relation), pg_p_bin(&b->subject),
                                      pg_p_bin(&b->condition), pg_p_bin(&b->context),  pg_p_bin(&b->kind)};
    return fenced(pg, "commit_batch", batch_sql, params, 9, deadline, err);
}

enum status commit_store(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *name,
                         mono_us deadline, struct err *err)
{
    char e[24], i[24];
    const struct pg_param params[] = {pg_p_int(epoch, e), pg_p_int(id, i), pg_p_text(store), pg_p_text(name)};

    return fenced(pg, "commit_store",
                  FENCE ", made AS (INSERT INTO relata_store.store (id, name, created_at, updated_at, change) "
                        "SELECT $3, $4, " AT("$2::bigint") ", " AT("$2::bigint") ", $2::bigint WHERE" FENCED
                                                                                 ") SELECT epoch FROM fence",
                  params, 4, deadline, err);
}

enum status commit_delete(struct pg *pg, int64_t epoch, int64_t id, const char *store, mono_us deadline,
                          struct err *err)
{
    char e[24], i[24];
    const struct pg_param params[] = {pg_p_int(epoch, e), pg_p_int(id, i), pg_p_text(store)};

    return fenced(pg, "commit_delete",
                  FENCE
                  ", gone AS (UPDATE relata_store.store SET deleted_at = " AT("$2::bigint") ", change = $2::bigint "
                                                                                            "WHERE id = $3 AND" FENCED
                                                                                            ") SELECT epoch FROM fence",
                  params, 3, deadline, err);
}

enum status commit_model(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *model,
                         const char *json, mono_us deadline, struct err *err)
{
    char e[24], i[24];
    const struct pg_param params[] = {pg_p_int(epoch, e), pg_p_int(id, i), pg_p_text(store), pg_p_text(model),
                                      pg_p_text(json)};

    return fenced(pg, "commit_model",
                  FENCE ", made AS (INSERT INTO relata_store.model (store, id, json, change) "
                        "SELECT $3, $4, $5, $2::bigint WHERE" FENCED ") SELECT epoch FROM fence",
                  params, 5, deadline, err);
}

enum status commit_assertions(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *model,
                              const char *json, mono_us deadline, struct err *err)
{
    char e[24], i[24];
    const struct pg_param params[] = {pg_p_int(epoch, e), pg_p_int(id, i), pg_p_text(store), pg_p_text(model),
                                      pg_p_text(json)};

    return fenced(pg, "commit_assertions",
                  FENCE ", made AS (INSERT INTO relata_store.assertion (store, model, json, change) "
                        "SELECT $3, $4, $5, $2::bigint WHERE" FENCED
                        " ON CONFLICT (store, model) DO UPDATE SET json = EXCLUDED.json, change = EXCLUDED.change) "
                        "SELECT epoch FROM fence",
                  params, 5, deadline, err);
}

/* Keys are looked up by index, however little the tables' statistics tell; what is acknowledged is on the disk. */
enum status commit_session(struct pg *pg, mono_us deadline, struct err *err)
{
    return pg_exec(pg,
                   "SET plan_cache_mode TO force_generic_plan; SET enable_seqscan TO off; SET enable_hashjoin TO off; "
                   "SET enable_mergejoin TO off; SELECT set_config('synchronous_commit', "
                   "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
                   "ELSE current_setting('synchronous_commit') END, false)",
                   deadline, err);
}

static const char *const sweeps[] = {
    "DELETE FROM relata_store.tuple WHERE ctid = ANY (ARRAY(SELECT ctid FROM relata_store.tuple WHERE store = $1 "
    "LIMIT " SWEEP_ROWS "))",
    "DELETE FROM relata_store.change WHERE ctid = ANY (ARRAY(SELECT ctid FROM relata_store.change WHERE store = $1 "
    "LIMIT " SWEEP_ROWS "))",
    "DELETE FROM relata_store.model WHERE store = $1", "DELETE FROM relata_store.assertion WHERE store = $1"};

enum status commit_sweep(struct pg *pg, const char *store, bool *done, mono_us deadline, struct err *err)
{
    const struct pg_param param = pg_p_text(store);

    *done = false;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) {
        struct pg_result *r = NULL;
        enum status st = pg_query(pg, NULL, sweeps[i], &param, 1, deadline, &r, err);
        bool more = st == ST_OK && pg_affected(r) > 0;

        pg_result_free(r);
        if (st != ST_OK || more)
            return st;
    }
    *done = true;
    return pg_query(pg, NULL, "UPDATE relata_store.store SET swept = true WHERE id = $1 AND deleted_at IS NOT NULL",
                    &param, 1, deadline, NULL, err);
}
