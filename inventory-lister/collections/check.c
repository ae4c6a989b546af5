/* check.c - declarations against what the database and the model have. */
#include <stdlib.h>
#include <string.h>

#include "common/pg/pg.h"
#include "inventory-lister/collections/internal.h"

struct checker {
    struct collection *c;
    struct pg *pg;
    const struct model *model;
    mono_us deadline;
    char oid[24];
    char kind; /* relkind */
    struct err *err;
};

static const char *at(const struct checker *k, enum property p)
{
    return k->c->declared->origins[p];
}

static enum status no_memory(struct checker *k)
{
    return err_set(k->err, ST_NOMEM, NULL, "no memory for collection \"%s\"", k->c->name);
}

static enum status ask(struct checker *k, const char *sql, const struct pg_param *params, int n, struct pg_result **out)
{
    enum status st = pg_query(k->pg, NULL, sql, params, n, k->deadline, out, k->err);

    if (st != ST_OK)
        err_prefix(k->err, "checking collection \"%s\"", k->c->name);
    return st;
}

static bool replace(char **slot, const char *text)
{
    free(*slot);
    *slot = strdup(text);
    return *slot != NULL;
}

/* ---- the relation ---- */

static const char relation_sql[] =
    "SELECT c.oid, c.relkind, format('%I.%I', n.nspname, c.relname), has_schema_privilege(n.oid, 'USAGE'), "
    "(SELECT count(*) FROM pg_inherits i WHERE i.inhparent = c.oid AND c.relkind = 'r') "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";

static enum status check_table(struct checker *k)
{
    const char *name = k->c->declared->values[P_TABLE], *dot = strchr(name, '.');
    struct pg_param params[2] = {{.data = name, .len = (size_t)(dot - name)}, {.data = dot + 1}};
    struct pg_result *r = NULL;
    enum status st = ask(k, relation_sql, params, 2, &r);

    if (st != ST_OK)
        return st;
    if (pg_rows(r) == 0) {
        st = err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.table: there is no table or view \"%s\"",
                     at(k, P_TABLE), k->c->name, name);
    } else if (!strchr("rpvmf", pg_text(r, 0, 1)[0])) {
        st = err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.table: \"%s\" is no table or view", at(k, P_TABLE),
                     k->c->name, name);
    } else if (!pg_bool(r, 0, 3)) {
        st = err_set(k->err, ST_CONFIG, NULL,
                     "%s: collection.%s.table: no right to look into the schema of %s: GRANT USAGE ON SCHEMA %.*s",
                     at(k, P_TABLE), k->c->name, name, (int)(dot - name), name);
    } else {
        snprintf(k->oid, sizeof k->oid, "%s", pg_text(r, 0, 0));
        k->kind = pg_int(r, 0, 4) > 0 ? 'i' : pg_text(r, 0, 1)[0]; /* i: others inherit from it */
        if (!replace(&k->c->table, pg_text(r, 0, 2)))
            st = no_memory(k);
    }
    pg_result_free(r);
    return st;
}

/* ---- columns ---- */

/* Domains are taken for what they are made of: their checks hold by themselves. */
static const char column_sql[] =
    "SELECT quote_ident(a.attname), a.attnotnull, has_column_privilege(a.attrelid, a.attnum, 'SELECT'), "
    "format_type(t.oid, -1), t.oid, CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname ELSE '' END, "
    "t.typtype = 'e' AND has_schema_privilege(t.typnamespace, 'USAGE') "
    "FROM pg_attribute a CROSS JOIN LATERAL (WITH RECURSIVE b AS (SELECT x.oid, x.typtype, x.typbasetype FROM pg_type "
    "x "
    "WHERE x.oid = a.atttypid UNION ALL SELECT x.oid, x.typtype, x.typbasetype FROM b JOIN pg_type x ON x.oid = "
    "b.typbasetype WHERE b.typtype = 'd') SELECT b.oid FROM b WHERE b.typtype <> 'd') base "
    "JOIN pg_type t ON t.oid = base.oid "
    "WHERE a.attrelid = $1::oid AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped";

static enum column_kind kind_of(const char *type)
{
    static const struct {
        const char *name;
        enum column_kind kind;
    } kinds[] = {{"text", COL_TEXT},       {"varchar", COL_TEXT}, {"bpchar", COL_TEXT},      {"int2", COL_INT},
                 {"int4", COL_INT},        {"int8", COL_INT},     {"float4", COL_FLOAT},     {"float8", COL_FLOAT},
                 {"numeric", COL_NUMERIC}, {"bool", COL_BOOL},    {"timestamptz", COL_TIME}, {"timestamp", COL_TIME},
                 {"date", COL_DATE},       {"uuid", COL_UUID},    {"json", COL_JSON},        {"jsonb", COL_JSON}};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, type) == 0)
            return kinds[i].kind;
    }
    return COL_OTHER; /* extensions' types too: their operators are not in the search path */
}

static enum status take_labels(struct checker *k, struct column *col, const char *type_oid)
{
    struct pg_param p = pg_p_text(type_oid);
    struct pg_result *r = NULL;
    enum status st =
        ask(k, "SELECT enumlabel FROM pg_enum WHERE enumtypid = $1::oid ORDER BY enumsortorder", &p, 1, &r);
    int n = st == ST_OK ? pg_rows(r) : 0;

    if (st != ST_OK)
        return st;
    col->labels = calloc((size_t)n + 1, sizeof *col->labels);
    for (int i = 0; i < n && col->labels; i++) {
        col->labels[i] = strdup(pg_text(r, i, 0));
        if (!col->labels[i])
            break;
        col->nlabels++;
    }
    if (!col->labels || col->nlabels < (size_t)n)
        st = no_memory(k);
    pg_result_free(r);
    return st;
}

static enum status check_use(struct checker *k, const struct column *col)
{
    const struct declaration *d = k->c->declared;

    if (col->sortable && !kind_is_ordered(col->kind))
        return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.sort: rows cannot be sorted by \"%s\" of type %s",
                       d->origins[P_SORT] ? d->origins[P_SORT] : column_origin(k->c, col->name), k->c->name, col->name,
                       col->type);
    if (col->filterable && !kind_is_ordered(col->kind))
        return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.filter: \"%s\" of type %s cannot be filtered",
                       d->origins[P_FILTER], k->c->name, col->name, col->type);
    if (col == &k->c->columns[k->c->id] &&
        (col->labels || (col->kind != COL_TEXT && col->kind != COL_INT && col->kind != COL_UUID)))
        return err_set(k->err, ST_CONFIG, NULL,
                       "%s: collection.%s.id: \"%s\" is of type %s: an id is text, an integer or "
                       "a uuid",
                       d->origins[P_ID], k->c->name, col->name, col->type);
    if (k->c->bound >= 0 && col == &k->c->columns[k->c->bound] && !kind_is_ordered(col->kind))
        return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.bound: \"%s\" of type %s cannot be compared",
                       d->origins[P_BOUND], k->c->name, col->name, col->type);
    return ST_OK;
}

static enum status take_column(struct checker *k, struct column *col, const struct pg_result *r)
{
    if (pg_rows(r) == 0)
        return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s: %s has no column \"%s\"",
                       column_origin(k->c, col->name), k->c->name, k->c->table, col->name);
    if (!pg_bool(r, 0, 2))
        return err_set(k->err, ST_CONFIG, NULL,
                       "%s: collection.%s: no right to read column \"%s\": GRANT SELECT ON %s to the lister's role",
                       column_origin(k->c, col->name), k->c->name, col->name, k->c->table);
    if (!replace(&col->quoted, pg_text(r, 0, 0)) || !replace(&col->type, pg_text(r, 0, 3)))
        return no_memory(k);
    col->nullable = !pg_bool(r, 0, 1);
    col->kind = pg_bool(r, 0, 6) ? COL_TEXT : kind_of(pg_text(r, 0, 5));
    return pg_bool(r, 0, 6) ? take_labels(k, col, pg_text(r, 0, 4)) : ST_OK;
}

static enum status check_columns(struct checker *k)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < k->c->ncolumns && st == ST_OK; i++) {
        struct column *col = &k->c->columns[i];
        struct pg_param params[2] = {pg_p_text(k->oid), pg_p_text(col->name)};
        struct pg_result *r = NULL;

        st = ask(k, column_sql, params, 2, &r);
        if (st == ST_OK)
            st = take_column(k, col, r);
        if (st == ST_OK)
            st = check_use(k, col);
        pg_result_free(r);
    }
    return st;
}

/* ---- the id ---- */

/* An index in another collation than the column's could hold two ids that the column's order takes for equal. */
static const char unique_sql[] =
    "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
    "WHERE i.indrelid = $1::oid AND a.attname = $2 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL "
    "AND i.indexprs IS NULL AND i.indnkeyatts = 1 AND i.indcollation[0] = a.attcollation)";

static enum status check_id(struct checker *k)
{
    const struct collection *c = k->c;
    const struct column *id = &c->columns[c->id];
    struct pg_param params[2] = {pg_p_text(k->oid), pg_p_text(id->name)};
    struct pg_result *r = NULL;
    bool may_state = strchr("vfpi", k->kind) != NULL, unique;
    enum status st = ask(k, unique_sql, params, 2, &r);

    if (st != ST_OK)
        return st;
    unique = pg_bool(r, 0, 0) && k->kind != 'i';
    pg_result_free(r);
    if (!unique && !may_state)
        return err_set(k->err, ST_CONFIG, NULL,
                       "%s: collection.%s.id: no unique index on %s (%s) alone, without a condition, in the column's "
                       "collation: CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s)",
                       at(k, P_ID), c->name, c->table, id->quoted, c->table, id->quoted);
    if (!unique && !c->declared->unique_id)
        return err_set(k->err, ST_CONFIG, NULL,
                       "%s: collection.%s.id: %s is %s: that no two rows have the same %s cannot be seen. If it is so, "
                       "state it: %s.unique_id = yes",
                       at(k, P_ID), c->name, c->table,
                       k->kind == 'v'   ? "a view"
                       : k->kind == 'f' ? "a foreign table"
                       : k->kind == 'p' ? "a partitioned table without such an index"
                                        : "a table that others inherit from",
                       id->quoted, c->name);
    if (id->nullable && (k->kind == 'r' || k->kind == 'p' || k->kind == 'i'))
        return err_set(k->err, ST_CONFIG, NULL,
                       "%s: collection.%s.id: \"%s\" may be null: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
                       at(k, P_ID), c->name, id->name, c->table, id->quoted);
    return ST_OK;
}

/* ---- the model ---- */

static enum status take_relations(struct checker *k)
{
    struct collection *c = k->c;

    c->relations = calloc((size_t)model_pairs(k->model) + 1, sizeof *c->relations);
    if (!c->relations)
        return no_memory(k);
    for (int i = 0; i < model_pairs(k->model); i++) {
        if (strcmp(model_pair_type(k->model, i), c->type) != 0)
            continue;
        c->relations[c->nrelations] = strdup(model_pair_relation(k->model, i));
        if (!c->relations[c->nrelations])
            return no_memory(k);
        c->nrelations++;
    }
    return ST_OK;
}

static enum status no_relation(struct checker *k, enum property p, const char *relation)
{
    return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s: type \"%s\" of the model has no relation \"%s\"",
                   at(k, p), k->c->name, k->c->type, relation);
}

static enum status check_model(struct checker *k)
{
    struct collection *c = k->c;

    if (!model_has_type(k->model, c->type))
        return err_set(k->err, ST_CONFIG, NULL, "%s: collection.%s.type: the model has no type \"%s\"", at(k, P_TYPE),
                       c->name, c->type);
    if (model_pair(k->model, c->type, strlen(c->type), c->relation) < 0)
        return no_relation(k, P_RELATION, c->relation);
    for (size_t i = 0; i < c->nrelations; i++) {
        if (model_pair(k->model, c->type, strlen(c->type), c->relations[i]) < 0)
            return no_relation(k, P_RELATIONS, c->relations[i]);
    }
    return c->nrelations == 0 ? take_relations(k) : ST_OK;
}

enum status collection_fits(const struct collection *c, const struct model *model, struct err *err)
{
    bool given = c->declared->values[P_RELATIONS] && *c->declared->values[P_RELATIONS];

    if (!model_has_type(model, c->type))
        return err_set(err, ST_MISSING, NULL, "collection \"%s\": the model has no type \"%s\"", c->name, c->type);
    for (size_t i = 0; i < c->nrelations; i++)
        if ((given || strcmp(c->relations[i], c->relation) == 0) &&
            model_pair(model, c->type, strlen(c->type), c->relations[i]) < 0)
            return err_set(err, ST_MISSING, NULL, "collection \"%s\": type \"%s\" of the model has no relation \"%s\"",
                           c->name, c->type, c->relations[i]);
    return ST_OK;
}

/* ---- all of it ---- */

/* Values of floats must come back as they went. */
static enum status check_session(struct checker *k)
{
    struct pg_result *r = NULL;
    enum status st = ask(k,
                         "SELECT coalesce((SELECT bool_or(has_schema_privilege(n.oid, 'USAGE') AND "
                         "has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p JOIN pg_namespace n ON n.oid = "
                         "p.pronamespace WHERE n.nspname = 'relata' AND p.proname = 'encode_id' AND p.pronargs = 1), "
                         "false), current_setting('extra_float_digits')::int > 0",
                         NULL, 0, &r);

    if (st != ST_OK)
        return st;
    if (!pg_bool(r, 0, 0))
        st = err_set(k->err, ST_CONFIG, NULL,
                     "no right to call relata.encode_id: run `relatactl migrate`, and GRANT "
                     "relata_lister to the lister's role");
    else if (!pg_bool(r, 0, 1))
        st = err_set(k->err, ST_CONFIG, NULL,
                     "extra_float_digits is lowered for the lister's role or database, so that numbers lose digits: "
                     "ALTER ROLE .. RESET extra_float_digits");
    pg_result_free(r);
    return st;
}

static enum status check_indexes(struct checker *k)
{
    struct index_list indexes = {0};
    enum status st = ST_OK;

    if (k->kind == 'v' || k->kind == 'f')
        return ST_OK;
    st = indexes_read(k->pg, k->oid, k->deadline, &indexes, k->err);
    if (st == ST_OK)
        st = indexes_advise(k->c, &indexes, k->kind == 'p', k->err);
    index_list_free(&indexes);
    return st;
}

enum status collections_check(struct collections *c, struct pg *pg, const struct model *model, mono_us deadline,
                              struct err *err)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < c->len && st == ST_OK; i++) {
        struct checker k = {.c = &c->items[i], .pg = pg, .model = model, .deadline = deadline, .err = err};

        if (i == 0)
            st = check_session(&k);
        if (st == ST_OK)
            st = check_table(&k);
        if (st == ST_OK)
            st = check_columns(&k);
        if (st == ST_OK)
            st = check_id(&k);
        if (st == ST_OK)
            st = check_model(&k);
        if (st == ST_OK)
            st = check_indexes(&k);
    }
    return st;
}
