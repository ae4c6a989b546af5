-- One transaction with ten rows, by the set form.
\set n random(1, 1000000000000)
BEGIN;
SELECT relata.write_tuples(
    ARRAY['resource_instance:' || (:n)::text || '-0',
          'resource_instance:' || (:n)::text || '-1',
          'resource_instance:' || (:n)::text || '-2',
          'resource_instance:' || (:n)::text || '-3',
          'resource_instance:' || (:n)::text || '-4',
          'resource_instance:' || (:n)::text || '-5',
          'resource_instance:' || (:n)::text || '-6',
          'resource_instance:' || (:n)::text || '-7',
          'resource_instance:' || (:n)::text || '-8',
          'resource_instance:' || (:n)::text || '-9'],
    ARRAY['editor', 'editor', 'editor', 'editor', 'editor', 'editor', 'editor', 'editor', 'editor', 'editor'],
    ARRAY['team:' || 'org-0-platform#member',
          'team:' || 'org-1-platform#member',
          'team:' || 'org-2-platform#member',
          'team:' || 'org-3-platform#member',
          'team:' || 'org-4-platform#member',
          'team:' || 'org-5-platform#member',
          'team:' || 'org-6-platform#member',
          'team:' || 'org-7-platform#member',
          'team:' || 'org-8-platform#member',
          'team:' || 'org-9-platform#member']);
END;
