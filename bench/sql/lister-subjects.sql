-- Those whose lists are measured: many who may see all, and one who may edit the newest hundred instances.
BEGIN;
INSERT INTO inventory.users (id, email)
SELECT name, name || '@bench.example' FROM (SELECT 'all-' || n FROM generate_series(1, :subjects) n UNION ALL SELECT 'some') u (name);
INSERT INTO inventory.teams (id, organization_id, name) SELECT 'all', min(id), 'all' FROM inventory.organizations;
INSERT INTO inventory.memberships (team_id, user_id) SELECT 'all', 'all-' || n FROM generate_series(1, :subjects) n;
INSERT INTO inventory.team_grants (team_id, relation, organization_id) SELECT 'all', 'editor', id FROM inventory.organizations;
INSERT INTO inventory.instance_shares (resource_instance_id, user_id, relation)
SELECT id, 'some', 'editor' FROM inventory.resource_instances ORDER BY created_at DESC, id DESC LIMIT 100;
COMMIT;
