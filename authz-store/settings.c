#include "authz-store/settings.h"

#include "common/admin/metrics.h"
#include "common/pg/settings.h"

#define AT(m) offsetof(struct settings, m)

static const struct cfg_key keys[] = {
    CFG_HTTP_KEYS(struct settings, http),
    CFG_API_KEYS(struct settings, api),
    CFG_STORES_KEYS(struct settings, stores),
    {"stores", "drain_timeout", CFG_DURATION, AT(drain_timeout_ms), "15s", 0, 600000, NULL, NULL,
     "after SIGTERM, longest wait for requests that are begun"},
    CFG_PG_KEYS(struct settings, stores.pg_dsn, stores.statement_timeout_ms),
    CFG_ADMIN_KEYS(struct settings, admin),
    CFG_LOG_KEYS(struct settings, log),
    {NULL, NULL, CFG_STRING, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    enum status st = pg_dsn_check(s->stores.pg_dsn, err);

    if (st == ST_OK)
        st = http_check(&s->http, err);
    return st == ST_OK ? admin_check(&s->admin, err) : st;
}

const struct cfg_program settings_program = {
    .name = "authz-store",
    .summary = "an authorization store with OpenFGA's API, in memory, durable in Postgres",
    .keys = keys,
    .details = "Exit codes: 0 drained after SIGTERM, 1 failed, 2 bad settings, 137 ended by a second signal.\n",
    .validate = validate,
    .metrics = metrics_reference,
};
