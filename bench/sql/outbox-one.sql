-- One transaction with one row.
\set n random(1, 1000000000000)
INSERT INTO relata.outbox (op, object, relation, subject) VALUES
    ('write', 'resource_instance:' || (:n)::text || '-0', 'editor', 'team:' || 'org-0-platform#member');
