-- One transaction with ten rows, a statement each, as an ORM sends them.
\set n random(1, 1000000000000)
BEGIN;
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-0', 'editor', 'team:' || 'org-0-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-1', 'editor', 'team:' || 'org-1-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-2', 'editor', 'team:' || 'org-2-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-3', 'editor', 'team:' || 'org-3-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-4', 'editor', 'team:' || 'org-4-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-5', 'editor', 'team:' || 'org-5-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-6', 'editor', 'team:' || 'org-6-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-7', 'editor', 'team:' || 'org-7-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-8', 'editor', 'team:' || 'org-8-platform#member');
INSERT INTO relata.outbox (op, object, relation, subject)
VALUES ('write', 'resource_instance:' || (:n)::text || '-9', 'editor', 'team:' || 'org-9-platform#member');
END;
