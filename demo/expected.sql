-- The tuples that the inventory stands for, said a second time: by plain SQL over its tables, with nothing of Relata's. The
-- demo compares this view with the ledger and with the store.

CREATE VIEW inventory.expected_tuples (object, relation, subject) AS
          SELECT 'tenant:' || id, 'parent', 'organization:' || organization_id FROM inventory.tenants
UNION ALL SELECT 'tenant_zone:' || id, 'parent', 'tenant:' || tenant_id FROM inventory.tenant_zones
UNION ALL SELECT 'cluster:' || id, 'parent', 'tenant:' || tenant_id FROM inventory.clusters
UNION ALL SELECT 'cloud_account:' || id, 'parent', 'cluster:' || cluster_id FROM inventory.cloud_accounts
UNION ALL SELECT 'catalog_item:' || id, 'parent', 'cloud_account:' || cloud_account_id FROM inventory.catalog_items
UNION ALL SELECT 'resource_instance:' || id, 'parent', 'catalog_item:' || catalog_item_id
            FROM inventory.resource_instances WHERE deleted_at IS NULL
UNION ALL SELECT 'resource_instance:' || id, 'editor', 'team:' || owner_team_id || '#member'
            FROM inventory.resource_instances WHERE deleted_at IS NULL
UNION ALL SELECT DISTINCT 'team:' || team_id, 'member', 'user:' || user_id FROM inventory.memberships
UNION ALL SELECT DISTINCT coalesce('organization:' || organization_id, 'tenant:' || tenant_id, 'cluster:' || cluster_id),
                          relation, 'team:' || team_id || '#member'
            FROM inventory.team_grants
UNION ALL SELECT 'resource_instance:' || s.resource_instance_id, s.relation, 'user:' || s.user_id
            FROM inventory.instance_shares s JOIN inventory.resource_instances i ON i.id = s.resource_instance_id
           WHERE i.deleted_at IS NULL;
