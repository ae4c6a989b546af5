/* internal.h - what the files of inventory-lister/collections share; nobody else includes it. */
#ifndef RELATA_LISTER_COLLECTIONS_INTERNAL_H
#define RELATA_LISTER_COLLECTIONS_INTERNAL_H

#include "inventory-lister/collections/collection.h"

enum property {
    P_TABLE,
    P_TYPE,
    P_ID,
    P_COLUMNS,
    P_SORT,
    P_ORDER,
    P_FILTER,
    P_RELATION,
    P_RELATIONS,
    P_WHERE,
    P_BOUND,
    P_CLAIM,
    P_UNIQUE_ID,
    P_COUNT
};

struct declaration {
    char *values[P_COUNT];  /* NULL = not given */
    char *origins[P_COUNT]; /* "relata.conf:12" */
    bool unique_id;
};

/* The next item of a comma-separated list, without blanks around it: false at the end. An empty item has length 0. */
bool list_next(const char **at, struct bytes *item);
/* Index of a column by name, -1 if there is none. */
int column_find(const struct collection *c, struct bytes name);
/* Where the column was named first. */
const char *column_origin(const struct collection *c, const char *name);
/* "a, b, c": the columns that have the flag at `offset` of struct column. */
void columns_join(const struct collection *c, size_t flag_offset, struct buf *out);

/* value.c */
bool kind_is_ordered(enum column_kind k); /* can be sorted and filtered */
const char *kind_name(const struct column *col);

/* advise.c: an index as the catalogue has it. */
struct index_column {
    char *name; /* "" = an expression */
    bool descending, nulls_first;
    bool own; /* default operators and the column's own collation */
};
struct index_shape {
    char *predicate; /* "" = none */
    struct index_column columns[32];
    size_t ncolumns;
};
struct index_list {
    struct index_shape *items;
    size_t len;
};
void index_list_free(struct index_list *l);
bool index_serves(const struct collection *c, const struct order *o, const struct index_shape *ix);
/* CREATE INDEX for the order. */
void index_statement(const struct collection *c, const struct order *o, bool partitioned, struct buf *out);
/* The indexes of the table with this oid (as text). */
enum status indexes_read(struct pg *pg, const char *oid, mono_us deadline, struct index_list *out, struct err *err);
/* Logs a warning for each order that no index serves. ST_NOMEM, or ST_OK. */
enum status indexes_advise(const struct collection *c, const struct index_list *indexes, bool partitioned,
                           struct err *err);

#endif
