-- One transaction with one row, by the function.
\set n random(1, 1000000000000)
SELECT relata.write_tuple('resource_instance:' || (:n)::text || '-0', 'editor', 'team:' || 'org-0-platform#member');
