-- Fills the inventory, always with the same rows: psql -v scale=10 -f demo/generate.sql (scale 1 if not given).
--
-- Scale 1 stands for 13,440 tuples, 10 for 127,740, 100 for 1,270,740: 740 for the organizations, their people and their
-- tenants, which do not grow, and 12,700 x scale for clusters, accounts, catalog items and instances.
-- Every statement is a transaction of its own, as a service would load its rows; the largest inserts 20,000 rows.

\if :{?scale} \else \set scale 1 \endif
SET search_path = inventory;

INSERT INTO organizations (id, name)
SELECT format('org-%s', to_char(o, 'FM00')), format('Organization %s', o) FROM generate_series(1, 20) o;

INSERT INTO tenants (id, organization_id)
SELECT o.id || '-' || t, o.id FROM organizations o, unnest(ARRAY['prod', 'test']) t;

INSERT INTO tenant_zones (id, tenant_id, region)
SELECT t.id || '-' || r, t.id, r FROM tenants t, unnest(ARRAY['eu', 'us']) r;

-- 26 people an organization: 26 first names, and 20 family names dealt out so that no two people share both.
WITH names AS (
    SELECT string_to_array('ada,ben,clara,david,emma,felix,greta,hugo,ida,jonas,karla,leo,mia,nils,olga,paul,quinn,rosa,'
                           'sam,tara,udo,vera,willi,xenia,yann,zoe', ',') AS first,
           string_to_array('adler,bauer,costa,dietz,engel,fuchs,garcia,huber,ivanov,jansen,kaya,lopez,meyer,novak,ortiz,'
                           'peters,quist,rossi,silva,turan', ',') AS family)
INSERT INTO users (id, email)
SELECT n, n || '@' || 'org-' || to_char(o, 'FM00') || '.example'
  FROM names, generate_series(1, 20) o, generate_series(1, 26) p,
       LATERAL (SELECT first[p] || '.' || family[1 + (o + p) % 20] AS n) x;

INSERT INTO teams (id, organization_id, name)
SELECT o.id || '-' || t, o.id, t
  FROM organizations o, unnest(ARRAY['admins', 'platform', 'network', 'storage', 'apps']) t;

-- People 1 and 2 of an organization are its admins; the others are dealt to its four teams, six each.
WITH people AS (
    SELECT id, split_part(split_part(email, '@', 2), '.', 1) AS organization_id,
           row_number() OVER (PARTITION BY split_part(email, '@', 2) ORDER BY id COLLATE "C") AS p
      FROM users)
INSERT INTO memberships (team_id, user_id, source)
SELECT organization_id || '-' || CASE WHEN p <= 2 THEN 'admins'
                                      ELSE (ARRAY['platform', 'network', 'storage', 'apps'])[1 + (p - 3) / 6] END,
       id, CASE WHEN p % 2 = 0 THEN 'manual' ELSE 'directory' END
  FROM people;

INSERT INTO team_grants (team_id, relation, organization_id, tenant_id)
SELECT o.id || '-' || team, relation, CASE WHEN tenant IS NULL THEN o.id END, o.id || '-' || tenant
  FROM organizations o,
       (VALUES ('admins', 'editor', NULL), ('platform', 'operator', NULL), ('apps', 'viewer', NULL),
               ('network', 'operator', 'prod'), ('storage', 'viewer', 'prod')) g (team, relation, tenant);

-- From here on the rows grow with the scale.
INSERT INTO clusters (id, tenant_id, name)
SELECT c, format('org-%s-%s', to_char(1 + (c - 1) / 2 % 20, 'FM00'), (ARRAY['prod', 'test'])[1 + (c - 1) % 2]),
       'cluster-' || c
  FROM generate_series(1, 100 * :scale) c;

INSERT INTO cloud_accounts (id, cluster_id, provider)
SELECT id, id, (ARRAY['aws', 'azure', 'gcp'])[1 + id % 3] FROM clusters;

SELECT format('INSERT INTO inventory.catalog_items (id, cloud_account_id, name)
               SELECT i, 1 + (i - 1) / 25, ''item-'' || i FROM generate_series(%s, least(%s, %s)) i',
              first, first + 19999, 2500 * :scale)
  FROM generate_series(1, 2500 * :scale, 20000) first
\gexec

-- Two instances a catalog item, owned by the teams of the item's organization in turn. Their ages are not in the order of
-- their ids, and some are of the same hour.
SELECT format('INSERT INTO inventory.resource_instances (id, catalog_item_id, owner_team_id, name, created_at)
               SELECT i, item, regexp_replace(c.tenant_id, ''-[a-z]+$'', '''') || ''-'' ||
                               (ARRAY[''platform'', ''network'', ''storage'', ''apps''])[1 + i %% 4],
                      ''instance-'' || i, timestamptz ''2026-01-01 00:00+00'' + i::bigint * 7919 %% 4000 * interval ''1 hour''
                 FROM generate_series(%s, least(%s, %s)) i, LATERAL (SELECT 1 + (i - 1) / 2 AS item) x
                 JOIN inventory.clusters c ON c.id = 1 + (item - 1) / 25',
              first, first + 9999, 5000 * :scale)
  FROM generate_series(1, 5000 * :scale, 10000) first
\gexec

-- The next rows that a service inserts go on from here.
SELECT setval(pg_get_serial_sequence('inventory.' || t, 'id'), n)
  FROM (VALUES ('clusters', 100 * :scale), ('cloud_accounts', 100 * :scale), ('catalog_items', 2500 * :scale),
               ('resource_instances', 5000 * :scale)) s (t, n)
\g /dev/null

RESET search_path;
