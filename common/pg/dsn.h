/* dsn.h - checking a DSN. For common/pg and its tests; pg_dsn_redact() is in pg.h. */
#ifndef RELATA_PG_DSN_H
#define RELATA_PG_DSN_H

#include "common/base/status.h"

/* False for a bare word, which libpq takes for a database name. */
bool pg_dsn_is_conninfo(const char *dsn);
/* ST_OK, or ST_CONFIG with libpq's reason, out of which anything that may be a secret is taken. */
enum status pg_dsn_check(const char *dsn, struct err *err) MUST_CHECK;

#endif
