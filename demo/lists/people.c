#include "demo/lists/people.h"

#include <string.h>

#include "common/base/stop.h"

#define LOOK_US 50000

static const char add_sql[] =
    "BEGIN;"
    "INSERT INTO inventory.users (id, email) VALUES ('" FEW_USER "', '" FEW_USER "@guest.example'),"
    " ('" ALL_USER "', '" ALL_USER "@support.example') ON CONFLICT DO NOTHING;"
    "INSERT INTO inventory.teams (id, organization_id, name)"
    " SELECT '" ALL_TEAM "', min(id), 'support' FROM inventory.organizations ON CONFLICT DO NOTHING;"
    "INSERT INTO inventory.memberships (team_id, user_id) VALUES ('" ALL_TEAM "', '" ALL_USER "')"
    " ON CONFLICT DO NOTHING;"
    "INSERT INTO inventory.team_grants (team_id, relation, organization_id)"
    " SELECT '" ALL_TEAM "', 'editor', id FROM inventory.organizations"
    "  WHERE id NOT IN (SELECT organization_id FROM inventory.team_grants"
    "                    WHERE team_id = '" ALL_TEAM "' AND organization_id IS NOT NULL);"
    "INSERT INTO inventory.instance_shares (resource_instance_id, user_id, relation)"
    " SELECT id, '" FEW_USER "', 'editor'"
    "   FROM (SELECT id, row_number() OVER (ORDER BY created_at DESC, id DESC) AS nth"
    "           FROM inventory.resource_instances WHERE deleted_at IS NULL) newest"
    "  WHERE nth IN (10, 80, 150)"
    "    AND NOT EXISTS (SELECT FROM inventory.instance_shares WHERE user_id = '" FEW_USER "');"
    "COMMIT";

/* $1: how many of the newest instances the walks are about. */
static const char find_sql[] =
    "WITH live AS (SELECT i.*, row_number() OVER (ORDER BY created_at DESC, id DESC) AS nth"
    "                FROM inventory.resource_instances i WHERE deleted_at IS NULL),"
    " shared AS (SELECT l.* FROM live l JOIN inventory.instance_shares s ON s.resource_instance_id = l.id"
    "             WHERE s.user_id = '" FEW_USER "' ORDER BY nth LIMIT 1),"
    /* In reach of the grant on its organization. */
    " granted AS (SELECT l.*, t.organization_id FROM live l JOIN inventory.catalog_items ci ON ci.id = "
    "l.catalog_item_id"
    "               JOIN inventory.cloud_accounts a ON a.id = ci.cloud_account_id"
    "               JOIN inventory.clusters c ON c.id = a.cluster_id JOIN inventory.tenants t ON t.id = c.tenant_id"
    "              WHERE l.owner_team_id <> '" ALL_TEAM "' ORDER BY nth OFFSET 20 LIMIT 1)"
    "SELECT (SELECT min(m.user_id) FROM inventory.memberships m JOIN inventory.teams t ON t.id = m.team_id"
    "         WHERE t.name = 'admins' AND m.user_id <> '" ALL_USER "'),"
    " shared.id, shared.owner_team_id, granted.id, granted.owner_team_id, granted.organization_id,"
    " coalesce((SELECT replace(to_json(created_at) #>> '{}', '+00:00', 'Z') FROM live WHERE nth = $1), ''),"
    " (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY name) FROM live WHERE nth <= $1),"
    " (SELECT to_char(count(*), 'FM999,999,999') FROM live),"
    /* Those that came at the same moment as the last of them are walked too. */
    " (SELECT to_char(count(*), 'FM999,999,999') FROM live"
    "   WHERE created_at >= (SELECT created_at FROM live WHERE nth = $1))"
    " FROM shared, granted";

enum status people_settle(struct pg *truth, mono_us deadline, struct err *err)
{
    for (;;) {
        struct pg_result *r = NULL;
        enum status st =
            pg_query(truth, NULL, "SELECT coalesce(sum(pending), 0) FROM relata.lag", NULL, 0, deadline, &r, err);
        int64_t pending = st == ST_OK ? pg_int(r, 0, 0) : 0;
        pg_result_free(r);
        if (st != ST_OK || pending == 0)
            return st;
        if (clock_mono_us() >= deadline)
            return err_set(err, ST_DEADLINE, "", "%lld changes stay pending", (long long)pending);
        if (stop_sleep_until(clock_mono_us() + LOOK_US) != ST_OK)
            return err_set(err, ST_STOPPED, "", "stopped by a signal");
    }
}

static void copy(char *out, size_t size, const struct pg_result *r, int column)
{
    snprintf(out, size, "%s", pg_text(r, 0, column));
}

enum status people_find(struct people *out, struct pg *service, struct pg *truth, int64_t rows, mono_us deadline,
                        struct err *err)
{
    struct pg_result *r = NULL;
    char scratch[24];
    struct pg_param p = pg_p_int(rows, scratch);
    enum status st = pg_exec(service, add_sql, deadline, err);

    if (st == ST_OK)
        st = pg_query(truth, NULL, find_sql, &p, 1, deadline, &r, err);
    if (st == ST_OK && (pg_rows(r) != 1 || pg_is_null(r, 0, 0)))
        st = err_set(err, ST_FATAL, "", "the inventory has no administrators or no instances: fill it first");
    if (st == ST_OK) {
        copy(out->some, sizeof out->some, r, 0);
        out->shared = pg_int(r, 0, 1);
        copy(out->shared_team, sizeof out->shared_team, r, 2);
        out->granted = pg_int(r, 0, 3);
        copy(out->granted_team, sizeof out->granted_team, r, 4);
        copy(out->granted_organization, sizeof out->granted_organization, r, 5);
        copy(out->since, sizeof out->since, r, 6);
        copy(out->name, sizeof out->name, r, 7);
        copy(out->live, sizeof out->live, r, 8);
        copy(out->walked, sizeof out->walked, r, 9);
        st = people_settle(truth, deadline, err);
    }
    pg_result_free(r);
    return st;
}
