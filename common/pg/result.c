/* result.c - reading results. `struct pg_result` is libpq's own. */
#include <stdlib.h>

#include "common/pg/internal.h"

void pg_result_free(struct pg_result *r)
{
    PQclear(r);
}

int pg_rows(const struct pg_result *r)
{
    return PQntuples(r);
}

int64_t pg_affected(const struct pg_result *r)
{
    /* PQcmdTuples() takes a mutable result but changes nothing in it. */
    union {
        const struct pg_result *in;
        struct pg_result *out;
    } u = {.in = r};
    return strtoll(PQcmdTuples(u.out), NULL, 10);
}

bool pg_is_null(const struct pg_result *r, int row, int col)
{
    return PQgetisnull(r, row, col) != 0;
}

const char *pg_text(const struct pg_result *r, int row, int col)
{
    const char *s = PQgetvalue(r, row, col);
    return s ? s : "";
}

size_t pg_len(const struct pg_result *r, int row, int col)
{
    return (size_t)PQgetlength(r, row, col);
}

int64_t pg_int(const struct pg_result *r, int row, int col)
{
    return strtoll(pg_text(r, row, col), NULL, 10);
}

double pg_double(const struct pg_result *r, int row, int col)
{
    return strtod(pg_text(r, row, col), NULL);
}

bool pg_bool(const struct pg_result *r, int row, int col)
{
    return pg_text(r, row, col)[0] == 't';
}
