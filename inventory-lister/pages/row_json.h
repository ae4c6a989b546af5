/*
 * row_json.h - a row of a collection as a JSON object.
 *
 * Integers are JSON numbers; numeric is a string, so that no digit is lost; floats are numbers, NaN and infinities
 * strings; booleans true and false; json and jsonb are embedded as they are; times are RFC 3339, in UTC with "Z" if the
 * column has a zone, else without an offset; everything else is its Postgres text as a string. NULL is null.
 */
#ifndef RELATA_LISTER_PAGES_ROW_JSON_H
#define RELATA_LISTER_PAGES_ROW_JSON_H

#include "common/base/buf.h"
#include "inventory-lister/collections/collection.h"

struct pg_result;

/* Appends `{"column":value,..` without the closing brace. The result's first columns are the collection's shown ones.
 */
void row_json(struct buf *out, const struct collection *c, const struct pg_result *r, int row);
/* How many columns of a result row_json() reads. */
int row_json_columns(const struct collection *c);
/* Appends a quoted string. `s` is valid UTF-8. */
void json_quote(struct buf *out, const char *s, size_t len);

#endif
