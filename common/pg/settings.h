/* settings.h - section [pg], the same in every program. */
#ifndef RELATA_PG_SETTINGS_H
#define RELATA_PG_SETTINGS_H

#include "common/config/config.h"
#include "common/pg/pg.h"

/* Rows for a table of settings: `dsn_` a char *, `timeout_` an int64_t in milliseconds. Check the DSN in `validate`
 * with pg_dsn_check(). The timeout is short, because a batch in flight waits for at most two statements before its
 * Kafka partition may be taken away. */
/* clang-format off */
#define CFG_PG_KEYS(T, dsn_, timeout_)                                                                        \
    {"pg", "dsn", CFG_SECRET, offsetof(T, dsn_), "", 0, 0, NULL, NULL,                                        \
     "how to reach Postgres: a libpq connection string or URI; PG* environment variables and .pgpass apply"}, \
    {"pg", "statement_timeout", CFG_DURATION, offsetof(T, timeout_), "10s", 100, 3600000, NULL, NULL,         \
     "longest wait for one statement"}
/* clang-format on */

#endif
