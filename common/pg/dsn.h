/* dsn.h - how a DSN is read. For common/pg and its tests; pg_dsn_check() and pg_dsn_redact() are in pg.h. */
#ifndef RELATA_PG_DSN_H
#define RELATA_PG_DSN_H

#include "common/pg/pg.h"

/* False for a bare word, which libpq takes for a database name. */
bool pg_dsn_is_conninfo(const char *dsn);
/* pg_dsn_check() without the lists of hosts. */
enum status pg_dsn_readable(const char *dsn, struct err *err) MUST_CHECK;

#endif
