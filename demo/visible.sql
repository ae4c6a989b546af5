-- Who may see which instance, said a second time: by plain SQL over the inventory's tables, with nothing of Relata's and no
-- authorization model. The demo compares the lists with it. Higher relations hold the lower ones.

CREATE FUNCTION inventory.visible(wanted_user text, wanted_relation text) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH rank (relation, height) AS (VALUES ('viewer', 1), ('operator', 2), ('editor', 3)),
    wanted AS (SELECT relation FROM rank WHERE height >= (SELECT height FROM rank WHERE relation = wanted_relation)),
    teams AS (SELECT DISTINCT team_id FROM inventory.memberships WHERE user_id = wanted_user),
    grants AS (SELECT g.organization_id, g.tenant_id, g.cluster_id
                 FROM inventory.team_grants g JOIN teams USING (team_id) JOIN wanted USING (relation))
    SELECT i.id
      FROM inventory.resource_instances i
      JOIN inventory.catalog_items ci ON ci.id = i.catalog_item_id
      JOIN inventory.cloud_accounts a ON a.id = ci.cloud_account_id
      JOIN inventory.clusters c ON c.id = a.cluster_id
      JOIN inventory.tenants t ON t.id = c.tenant_id
     WHERE i.deleted_at IS NULL
       AND (i.owner_team_id IN (SELECT team_id FROM teams)
            OR c.id IN (SELECT cluster_id FROM grants WHERE cluster_id IS NOT NULL)
            OR t.id IN (SELECT tenant_id FROM grants WHERE tenant_id IS NOT NULL)
            OR t.organization_id IN (SELECT organization_id FROM grants WHERE organization_id IS NOT NULL)
            OR EXISTS (SELECT FROM inventory.instance_shares s JOIN wanted USING (relation)
                        WHERE s.resource_instance_id = i.id AND s.user_id = wanted_user))
$$;
