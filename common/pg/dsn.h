/* dsn.h - checking a DSN. For common/pg and its tests; pg_dsn_redact() is in pg.h. */
#ifndef RELATA_PG_DSN_H
#define RELATA_PG_DSN_H

#include "common/base/status.h"

/* ST_OK, or ST_CONFIG with libpq's reason, out of which anything that may be a secret is taken. */
enum status pg_dsn_check(const char *dsn, struct err *err) MUST_CHECK;

#endif
