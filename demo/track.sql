-- What the rows of the inventory stand for. From here on every insert, update and delete, cascades included, writes the
-- outbox in its own transaction, and no service has to think of it.

SELECT relata.track('inventory.tenants', '[
    {"object": "tenant:{id}", "relation": "parent", "subject": "organization:{organization_id}"}]');

SELECT relata.track('inventory.tenant_zones', '[
    {"object": "tenant_zone:{id}", "relation": "parent", "subject": "tenant:{tenant_id}"}]');

SELECT relata.track('inventory.clusters', '[
    {"object": "cluster:{id}", "relation": "parent", "subject": "tenant:{tenant_id}"}]');

SELECT relata.track('inventory.cloud_accounts', '[
    {"object": "cloud_account:{id}", "relation": "parent", "subject": "cluster:{cluster_id}"}]');

SELECT relata.track('inventory.catalog_items', '[
    {"object": "catalog_item:{id}", "relation": "parent", "subject": "cloud_account:{cloud_account_id}"}]');

-- A row in the bin stands for nothing.
SELECT relata.track('inventory.resource_instances', '[
    {"object": "resource_instance:{id}", "relation": "parent", "subject": "catalog_item:{catalog_item_id}",
     "when": "deleted_at is null"},
    {"object": "resource_instance:{id}", "relation": "editor", "subject": "team:{owner_team_id}#member",
     "when": "deleted_at is null"}]');

-- Two rows, by hand and by directory, can stand for one tuple: it goes with the last of them.
SELECT relata.track('inventory.memberships', '[
    {"object": "team:{team_id}", "relation": "member", "subject": "user:{user_id}"}]');

-- The relation, too, comes from a column.
SELECT relata.track('inventory.team_grants', '[
    {"object": "organization:{organization_id}", "relation": "{relation}", "subject": "team:{team_id}#member",
     "when": "organization_id is not null"},
    {"object": "tenant:{tenant_id}", "relation": "{relation}", "subject": "team:{team_id}#member",
     "when": "tenant_id is not null"},
    {"object": "cluster:{cluster_id}", "relation": "{relation}", "subject": "team:{team_id}#member",
     "when": "cluster_id is not null"}]');

SELECT relata.track('inventory.instance_shares', '[
    {"object": "resource_instance:{resource_instance_id}", "relation": "{relation}", "subject": "user:{user_id}",
     "when": "live"}]');
