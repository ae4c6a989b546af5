#include "demo/life/ops.h"

/* A row chosen by a random number: by position where the table is small, else by key. */
#define SMALL(table, columns, n)                                                                                       \
    "(SELECT " columns " FROM inventory." table " ORDER BY " columns " OFFSET floor($" n                               \
    "::float8 * (SELECT count(*) FROM inventory." table ")) LIMIT 1)"
#define BY_ID(table, n, condition)                                                                                     \
    "(SELECT id FROM inventory." table " WHERE id >= floor($" n "::float8 * (SELECT max(id) FROM inventory." table     \
    "))::bigint" condition " ORDER BY id LIMIT 1)"
#define TEAM(n) SMALL("teams", "id", n)
#define USER(n) SMALL("users", "id", n)
#define TENANT(n) SMALL("tenants", "id", n)
#define ITEM(n) BY_ID("catalog_items", n, "")
#define CLUSTER(n) BY_ID("clusters", n, "")
#define LIVE(n) BY_ID("resource_instances", n, " AND deleted_at IS NULL")
#define BINNED(n) BY_ID("resource_instances", n, " AND deleted_at IS NOT NULL")

/* Weights in thousandths. */
const struct op ops[] = {
    {"joins a team",
     130,
     {{"join",
       "INSERT INTO inventory.memberships (team_id, user_id) SELECT " TEAM("1") ", " USER(
           "2") " ON CONFLICT DO NOTHING",
       "ab"}}},
    {"is found in the directory",
     50,
     {{"directory",
       "INSERT INTO inventory.memberships (team_id, user_id, source) SELECT team_id, user_id, 'directory'"
       " FROM inventory.memberships WHERE (team_id, user_id, source) = " SMALL(
           "memberships", "team_id, user_id, source", "1") " ON CONFLICT DO NOTHING",
       "a"}}},
    {"leaves a team",
     130,
     {{"leave",
       "DELETE FROM inventory.memberships WHERE (team_id, user_id, source) = " SMALL("memberships",
                                                                                     "team_id, user_id, source", "1"),
       "a"}}},
    {"creates an instance",
     150,
     {{"create",
       "INSERT INTO inventory.resource_instances (catalog_item_id, owner_team_id, name) VALUES (" ITEM("1") ", " TEAM(
           "2") ", $3)",
       "abn"}}},
    {"moves an instance",
     100,
     {{"move", "UPDATE inventory.resource_instances SET catalog_item_id = " ITEM("1") " WHERE id = " LIVE("2"), "ab"}}},
    {"hands an instance over",
     80,
     {{"hand", "UPDATE inventory.resource_instances SET owner_team_id = " TEAM("1") " WHERE id = " LIVE("2"), "ab"}}},
    {"puts an instance in the bin",
     80,
     {{"bin", "UPDATE inventory.resource_instances SET deleted_at = now() WHERE id = " LIVE("1"), "a"}}},
    {"restores an instance",
     50,
     {{"restore", "UPDATE inventory.resource_instances SET deleted_at = NULL WHERE id = " BINNED("1"), "a"}}},
    {"deletes an instance for good",
     50,
     {{"purge", "DELETE FROM inventory.resource_instances WHERE id = coalesce(" BINNED("1") ", " LIVE("1") ")", "a"}}},
    {"shares an instance",
     60,
     {{"share",
       "INSERT INTO inventory.instance_shares (resource_instance_id, user_id, relation) SELECT " LIVE("1") ", " USER(
           "2") ", CASE WHEN $1::float8 < 0.5 THEN 'viewer' ELSE 'operator' END ON CONFLICT DO NOTHING",
       "ab"}}},
    {"ends a share",
     40,
     {{"unshare",
       "DELETE FROM inventory.instance_shares WHERE (resource_instance_id, user_id, relation) = " SMALL(
           "instance_shares", "resource_instance_id, user_id, relation", "1"),
       "a"}}},
    {"grants a team a cluster",
     20,
     {{"grant",
       "INSERT INTO inventory.team_grants (team_id, relation, cluster_id)"
       " SELECT " TEAM("1") ", CASE WHEN $1::float8 < 0.5 THEN 'viewer' ELSE 'editor' END, " CLUSTER("2"),
       "ab"}}},
    {"revokes a team's grant",
     20,
     {{"revoke", "DELETE FROM inventory.team_grants WHERE id = " SMALL("team_grants", "id", "1"), "a"}}},
    {"starts work",
     14,
     {{"hire", "INSERT INTO inventory.users (id, email) VALUES ($1, $1 || '@org.example') RETURNING id", "n"},
      {"hire_team", "INSERT INTO inventory.memberships (team_id, user_id) SELECT " TEAM("1") ", $2", "ar"}}},
    /* The row's lock keeps others from giving this user anything until the transaction ends. */
    {"is erased",
     10,
     {{"erase_lock", "SELECT id FROM inventory.users WHERE id = " USER("1") " FOR UPDATE", "a"},
      {"erase_call", "SELECT $1 FROM relata.erase_subject('user:' || $1)", "r"},
      {"erase_row", "DELETE FROM inventory.users WHERE id = $1", "r"}}},
    {"moves a cluster",
     6,
     {{"cluster_move", "UPDATE inventory.clusters SET tenant_id = " TENANT("1") " WHERE id = " CLUSTER("2"), "ab"}}},
    {"builds a cluster",
     6,
     {{"cluster", "INSERT INTO inventory.clusters (tenant_id, name) SELECT " TENANT("1") ", $2 RETURNING id", "an"},
      {"account", "INSERT INTO inventory.cloud_accounts (cluster_id, provider) VALUES ($1, 'aws') RETURNING id", "r"},
      {"items",
       "INSERT INTO inventory.catalog_items (cloud_account_id, name) SELECT $1, 'item ' || i FROM generate_series(1, "
       "10) i"
       " RETURNING cloud_account_id",
       "r"},
      {"instances",
       "INSERT INTO inventory.resource_instances (catalog_item_id, owner_team_id, name)"
       " SELECT id, " TEAM("2") ", 'instance' FROM inventory.catalog_items WHERE cloud_account_id = $1",
       "ra"}}},
    /* Accounts, items, instances, grants and shares go with it by cascade. */
    {"closes a cluster", 4, {{"close", "DELETE FROM inventory.clusters WHERE id = " CLUSTER("1"), "a"}}},
};
const size_t ops_len = sizeof ops / sizeof ops[0];

const struct op *op_pick(double r)
{
    unsigned total = 0;
    for (size_t i = 0; i < ops_len; i++)
        total += ops[i].weight;
    double at = r * total;
    for (size_t i = 0; i < ops_len; i++) {
        if (at < ops[i].weight)
            return &ops[i];
        at -= ops[i].weight;
    }
    return &ops[ops_len - 1];
}
