-- The rows of a bulk load: psql -v rows=200000.
CREATE TABLE bench.source AS
SELECT 'resource_instance:' || i AS object, 'editor' AS relation, 'team:org-' || i % 20 || '-platform#member' AS subject
FROM generate_series(1, :rows) i;
VACUUM ANALYZE bench.source;
