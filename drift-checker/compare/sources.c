/* sources.c - where expected tuples come from: tables of relata.track, and views that the settings name. */
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

static enum status add(struct sources *s, const char *name, const char *type, bool tracked, struct err *err)
{
    struct source *grown = realloc(s->items, (s->len + 1) * sizeof *grown);
    struct source *item;

    if (!grown)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    s->items = grown;
    item = &s->items[s->len++];
    *item = (struct source){.name = strdup(name), .tracked = tracked, .type = type ? strdup(type) : NULL, .before = -1};
    return item->name && (!type || item->type) ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");
}

/* The view as Postgres names it, and whether it has the columns. */
static enum status look_up(const struct compare_job *job, const struct cfg_map_item *item, const char *name,
                           struct sources *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(
        job->pg, NULL,
        "SELECT to_regclass($1)::oid, format('%I.%I', n.nspname, c.relname), "
        "(SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname IN ('object', 'relation', "
        "'subject') AND NOT a.attisdropped), "
        "(SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname IN ('condition_name', "
        "'condition_context') AND NOT a.attisdropped) FROM (SELECT) x LEFT JOIN pg_class c ON c.oid = to_regclass($1) "
        "LEFT JOIN pg_namespace n ON n.oid = c.relnamespace",
        params, 1, deadline_in_ms(job->cfg->statement_timeout_ms), &r, err);

    if (st != ST_OK)
        (void)err_prefix(err, "%s: expected.%s: %s", item->origin, item->key, name);
    else if (pg_is_null(r, 0, 1))
        st = err_set(err, ST_CONFIG, NULL, "%s: expected.%s: there is no view or table %s; name its schema too",
                     item->origin, item->key, name);
    else if (pg_int(r, 0, 2) != 3)
        st = err_set(err, ST_CONFIG, NULL, "%s: expected.%s: %s lacks one of the columns object, relation, subject",
                     item->origin, item->key, name);
    else if (pg_int(r, 0, 3) == 1)
        st = err_set(err, ST_CONFIG, NULL,
                     "%s: expected.%s: %s has only one of the columns condition_name, condition_context", item->origin,
                     item->key, name);
    else
        st = add(out, pg_text(r, 0, 1), item->key, false, err);
    if (st == ST_OK)
        out->items[out->len - 1].condition = pg_int(r, 0, 3) == 2;
    pg_result_free(r);
    return st;
}

static enum status views(const struct compare_job *job, const struct cfg_map_item *item, struct sources *out,
                         struct err *err)
{
    char *copy = strdup(item->value), *save = NULL;
    enum status st = copy ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    for (char *name = copy ? strtok_r(copy, ", ", &save) : NULL; name && st == ST_OK;
         name = strtok_r(NULL, ", ", &save))
        st = look_up(job, item, name, out, err);
    free(copy);
    return st;
}

static enum status tables(const struct compare_job *job, struct sources *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(job->cfg->store.name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(job->pg, NULL,
                              "SELECT format('%I.%I', n.nspname, c.relname), c.oid::bigint FROM relata.tracked t JOIN "
                              "pg_class c ON c.oid = t.tab "
                              "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.store = $1 ORDER BY 1",
                              params, 1, deadline_in_ms(job->cfg->statement_timeout_ms), &r, err);

    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        st = add(out, pg_text(r, i, 0), NULL, true, err);
        if (st == ST_OK)
            out->items[out->len - 1].table = (uint32_t)pg_int(r, i, 1);
    }
    pg_result_free(r);
    return st;
}

enum status compare_sources(const struct compare_job *job, struct sources *out, struct err *err)
{
    enum status st = ST_OK;

    *out = (struct sources){0};
    if (job->cfg->tracked)
        st = tables(job, out, err);
    for (size_t i = 0; i < job->cfg->expected.len && st == ST_OK; i++)
        st = views(job, &job->cfg->expected.items[i], out, err);
    if (st != ST_OK)
        sources_free(out);
    return st;
}

void sources_free(struct sources *s)
{
    for (size_t i = 0; i < s->len; i++) {
        free(s->items[i].name);
        free(s->items[i].type);
    }
    free(s->items);
    *s = (struct sources){0};
}

void compare_yields_sql(const struct sources *s, const struct settings *cfg, struct buf *out)
{
    buf_clear(out);
    buf_adds(out, "SELECT y.n, y.condition_name, y.condition_context::text, y.unknown FROM (");
    if (cfg->tracked)
        buf_adds(out, "SELECT n, condition_name, condition_context, false AS unknown FROM relata.yielded($4, $1, $2, "
                      "$3)");
    else
        buf_adds(out, "SELECT NULL::bigint AS n, NULL::text AS condition_name, NULL::jsonb AS condition_context, false "
                      "AS unknown WHERE num_nonnulls($1::text[], $2::text[], $3::text[], $4::text) = 0");
    for (size_t i = 0; i < s->len; i++) {
        const struct source *v = &s->items[i];

        if (v->tracked)
            continue;
        buf_addf(
            out,
            " UNION ALL SELECT k.n, %s, %s, false FROM unnest($1, $2, $3) WITH ORDINALITY AS k(o, r, s, n) JOIN %s "
            "v ON v.object = k.o AND v.relation = k.r AND v.subject = k.s",
            v->condition ? "v.condition_name::text" : "NULL", v->condition ? "v.condition_context::jsonb" : "NULL",
            v->name);
        buf_addf(out,
                 " UNION ALL SELECT k.n, NULL, NULL, true FROM unnest($1) WITH ORDINALITY AS k(o, n) WHERE k.o IN "
                 "(SELECT v.object FROM %s v WHERE v.relation IS NULL OR v.subject IS NULL)"
                 " UNION ALL SELECT k.n, NULL, NULL, true FROM unnest($1) WITH ORDINALITY AS k(o, n) WHERE "
                 "split_part(k.o, ':', 1) = ",
                 v->name);
        add_literal(out, v->type);
        buf_addf(out, " AND EXISTS (SELECT FROM %s v WHERE v.object IS NULL)", v->name);
    }
    /* Where rows disagree, no condition wins, then the first by name and context: as relata.reconcile has it. */
    buf_adds(out, ") y WHERE y.n IS NOT NULL ORDER BY y.n, y.unknown, y.condition_name COLLATE \"C\" NULLS FIRST, "
                  "y.condition_context::text COLLATE \"C\" NULLS FIRST");
}
