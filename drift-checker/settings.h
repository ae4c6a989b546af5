/*
 * settings.h - drift-checker's configuration: one table, docs/reference is made from it. What changes from run to run
 * has an option of its own besides (--full, --repair, --type ..).
 */
#ifndef RELATA_DRIFT_SETTINGS_H
#define RELATA_DRIFT_SETTINGS_H

#include "common/config/config.h"
#include "common/store/store.h"

/* "1000", "1%" or "1000,1%": both hold. A share is of the tuples in the ledger that are judged, and at least 1. */
struct cap {
    int64_t most; /* -1 = no such bound */
    double share; /* of 1; -1 = no such bound */
};
/* ST_CONFIG with what is wrong. */
enum status cap_parse(const char *text, struct cap *out, struct err *err) MUST_CHECK;
int64_t cap_of(const struct cap *c, int64_t tuples);

struct settings {
    struct cfg_log log;
    struct cfg_store store;
    struct cfg_map expected; /* type = schema.view, schema.view */

    char *pg_dsn, *pg_read_dsn;
    int64_t statement_timeout_ms;
    char *openfga_dsn, *authz_dsn; /* not both */

    /* what is audited */
    char *type, *object, *subject;
    bool full, tracked, accept_shrink;
    char *skip; /* type#relation, type#relation */
    int64_t max_shrink;
    int64_t max_findings, concurrency;
    int64_t settle_ms, snapshot_max_ms;

    /* what is done about it */
    bool repair;
    char *plan, *apply;
    char *max_repairs, *max_deletions;

    /* what is told */
    bool json, progress;
    char *textfile;
};

extern const struct cfg_program settings_program;

#endif
