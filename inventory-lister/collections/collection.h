/*
 * collection.h - what can be listed: tables or views declared in the configuration, and checked at start against the
 * database and the model.
 *
 *   [collection]
 *   instances.table    = inventory.resource_instances    table or view, schema-qualified
 *   instances.type     = resource_instance               object type in the model
 *   instances.id       = id                              unique, not null; the object is type:<id> (relata.encode_id)
 *   instances.columns  = id, name, status, created_at    what a row shows
 *   instances.sort     = created_at, name                sortable (id always is)
 *   instances.order    = -created_at                     default order; id is added at the end
 *   instances.filter   = status, name, owner_team_id     filterable
 *   instances.relation = viewer                          default relation
 *   instances.relations = viewer, editor, operator       those that may be asked for; default: all of the type
 *   instances.where    = deleted_at                      only rows in which these columns are null
 *   instances.bound    = tenant_id                       mandatory column ..
 *   instances.claim    = tenant                          .. bound to this claim of the caller
 *   instances.unique_id = yes                            for views: see below
 *
 * Required: table, type, id, columns, relation. Names are taken as they are (no folding, no quotes). Of a table or
 * materialized view, a valid unique index on exactly the id, in the column's collation, is asked for. A view, a foreign
 * or a partitioned table, or one that others inherit from, cannot always have one: there `unique_id = yes` states that
 * no two rows have the same id. If it is not true, rows that share an id may be missing or come twice. Rows whose id is
 * null (views) are never listed.
 *
 * Sortable and filterable are text, varchar, char(n), enums, integers, floats, numeric, boolean, timestamps, date and
 * uuid; an id is text, an integer or a uuid. Other types can be shown, as their text.
 *
 * Immutable after collections_check(); any thread may read.
 */
#ifndef RELATA_LISTER_COLLECTIONS_COLLECTION_H
#define RELATA_LISTER_COLLECTIONS_COLLECTION_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "engine/model.h"

struct pg;

#define SORT_MAX 4            /* columns of one order, the id not counted */
#define FILTER_MAX 16         /* conditions of one request */
#define IN_LIST_MAX 100       /* values of one in-list */
#define FILTER_VALUE_MAX 4096 /* bytes of one value */

/* What a column is to filters, order and JSON. */
enum column_kind {
    COL_TEXT,
    COL_INT,
    COL_FLOAT,
    COL_NUMERIC,
    COL_BOOL,
    COL_TIME,
    COL_DATE,
    COL_UUID,
    COL_JSON,
    COL_OTHER
};

struct column {
    char *name;
    char *quoted; /* as SQL: "name" */
    char *type;   /* as SQL, for casts of parameters: timestamp with time zone */
    enum column_kind kind;
    char **labels; /* of an enum, whose kind is COL_TEXT; else NULL */
    size_t nlabels;
    bool nullable, shown, sortable, filterable;
};

struct declaration; /* what the configuration says and where */

struct collection {
    char *name, *table /* quoted, once checked */, *type, *relation;
    char **relations;
    size_t nrelations;
    struct column *columns;
    size_t ncolumns;
    int id;          /* index into columns */
    int *bound_null; /* columns of `where` */
    size_t nbound_null;
    int bound; /* -1 = none */
    char *claim;
    struct order *order; /* the default */
    struct declaration *declared;
};

struct collections {
    struct collection *items;
    size_t len;
};

/* Parse the declarations; ST_CONFIG names the file and line. What *out holds is freed by collections_free in any case.
 */
enum status collections_parse(struct collections *out, const struct cfg_map *map, struct err *err) MUST_CHECK;
/* Against the database: columns, types, uniqueness of the id, privileges; and the model: type, relations. ST_CONFIG
 * names the line; other statuses are the connection's (pg.h). An order without an index that serves it (the default
 * one, each sortable column, the id) is warned about in the log, with the CREATE INDEX that would. Once per parse. */
enum status collections_check(struct collections *c, struct pg *pg, const struct model *model, mono_us deadline,
                              struct err *err) MUST_CHECK;
/* Whether a model that is in force later still has what was declared: the type, the default relation, and `relations`
 * if they were given. ST_MISSING names what it lacks. After collections_check; any thread. */
enum status collection_fits(const struct collection *c, const struct model *model, struct err *err) MUST_CHECK;
void collections_free(struct collections *c);
const struct collection *collection_find(const struct collections *c, const char *name);

/* ---- what one request asks of a collection ---- */

struct sort_key {
    int column;
    bool descending; /* NULLs stand last ascending, first descending, as in SQL */
};
struct order {
    struct sort_key
        keys[SORT_MAX + 1]; /* the last is the id, which makes it total; it goes the way of the one before it */
    size_t len;
};
/* "-created_at,name" or "created_at desc, name" (AIP-132); "" = the default. ST_INVALID names the column and what may
 * be sorted. What follows the id is checked and has no effect. */
enum status order_parse(const struct collection *c, const char *text, struct order *out, struct err *err) MUST_CHECK;

enum filter_op { F_EQ, F_IN, F_PREFIX, F_LT, F_LTE, F_GT, F_GTE, F_NULL /* value "true" or "false" */ };
struct filter {
    int column;
    enum filter_op op;
    char *values[IN_LIST_MAX]; /* owned */
    size_t nvalues;
};
struct filters {
    struct filter items[FILTER_MAX];
    size_t len;
};
/* A query parameter "filter.<column>[.<op>]" (op: eq, in, prefix, lt, lte, gt, gte, null). Values are checked by the
 * column's kind, so that Postgres never sees one that it would refuse. ST_INVALID with the reason: it may quote the
 * request, and names only filterable columns.
 * Times are RFC 3339 with at most six digits of fraction; of a column without time zone they take no offset but Z. "in"
 * takes values between commas ("\\," is a comma in a value, "\\\\" a backslash) and may be repeated; anything else
 * given twice is ST_INVALID. "prefix" compares bytes, whatever the column's collation: an index on (column COLLATE "C")
 * serves it. The other operators compare as the column does. */
enum status filter_add(const struct collection *c, struct filters *f, const char *name, const char *value,
                       struct err *err) MUST_CHECK;
/* By column and operator, so that the same filters in another order are the same (page tokens, statements). */
void filters_sort(struct filters *f);
void filters_free(struct filters *f);
/* Whether the text is a value of the column's kind (a claim, an id, a filter). ST_INVALID says what is wanted. */
enum status column_value_check(const struct column *col, const char *text, struct err *err) MUST_CHECK;

#endif
