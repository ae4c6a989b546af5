-- Who may do what. Roles here are created in a transaction that is rolled back: they belong to the whole server.
\ir inc/assert.psql
GRANT USAGE ON SCHEMA t TO PUBLIC;
GRANT CREATE ON SCHEMA public TO PUBLIC;
BEGIN;
CREATE ROLE t_service IN ROLE relata_service;
CREATE ROLE t_other IN ROLE relata_service;
CREATE ROLE t_writer IN ROLE relata_writer;
CREATE ROLE t_relay IN ROLE relata_relay;
CREATE ROLE t_lister IN ROLE relata_lister;
CREATE ROLE t_auditor IN ROLE relata_auditor;
CREATE ROLE t_repair IN ROLE relata_repair;
CREATE ROLE t_nobody;
CREATE TABLE t.bare ();
ALTER TABLE t.bare OWNER TO t_service;

-- ---- a service writes the outbox, by INSERT and by functions, and nothing else ----
SET LOCAL ROLE t_service;
INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1');
SELECT t.ok(relata.write_tuple('doc:2', 'viewer', 'user:1') LIKE 'r1.%' AND relata.token() LIKE 'r1.%' AND relata.delete_object('doc:2') = 1 AND relata.erase_subject('user:9') = 0
            AND relata.touch_tuple('doc:1', 'viewer', 'user:1') LIKE 'r1.%', 'a service calls the functions');
WITH x AS (INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1') RETURNING id) SELECT t.ok(id > 0, 'RETURNING id') FROM x;
SELECT t.raises(q, '42501', NULL, 'not a service''s: ' || q) FROM unnest(ARRAY[
    'INSERT INTO relata.outbox (id, xid, op, object, relation, subject, created_at) VALUES (1, pg_current_xact_id(), ''write'', ''doc:1'', ''v'', ''user:1'', now())',
    'INSERT INTO relata.outbox (xid, op, object, relation, subject) VALUES (pg_current_xact_id(), ''write'', ''doc:1'', ''v'', ''user:1'')',
    'SELECT object FROM relata.outbox', 'DELETE FROM relata.outbox', 'UPDATE relata.outbox SET op = ''delete''', 'TRUNCATE relata.outbox',
    'SELECT * FROM relata.tuple', 'INSERT INTO relata.tuple (store, object, relation, subject, present, version) VALUES (''default'', ''doc:1'', ''v'', ''user:1'', true, 1)',
    'DELETE FROM relata.tuple', 'SELECT nextval(''relata.outbox_id'')', 'SELECT setval(''relata.outbox_id'', 1)', 'SELECT * FROM relata.dead_letter', 'SELECT * FROM relata.store',
    'SELECT relata.maintain()', 'SELECT relata.enqueue_writes(''{}'', ''{}'', ''{}'', NULL, NULL, ''default'', NULL, NULL)', 'SELECT relata.purge(''doc:1'', ''default'', NULL, 1)',
    'SELECT relata.request_purge(''delete_object'', ''doc:1'', ''default'', NULL)', 'SELECT relata.wake(''default'')', 'SELECT relata.lock_keys(''default'', ''{}'', ''{}'', ''{}'')',
    'SELECT relata.reconcile(''default'', ''{}'', ''{}'', ''{}'', NULL, NULL)', 'SELECT * FROM relata.yielded(''default'', ''{}'', ''{}'', ''{}'')', 'SELECT * FROM relata.expected(''relata.outbox'')',
    'CREATE TRIGGER zzz BEFORE INSERT ON relata.outbox FOR EACH ROW EXECUTE FUNCTION relata.outbox_row()', 'CREATE TABLE relata.x ()', 'DROP TABLE relata.truncating', 'SELECT * FROM relata.setting',
    'SELECT * FROM relata.history', 'UPDATE relata.history SET actor = ''x''', 'INSERT INTO relata.history_period DEFAULT VALUES', 'CALL relata.history_on()', 'CALL relata.history_off()',
    'SELECT relata.sweep_history(1)', 'SELECT relata.history_try(''DROP TABLE relata.tuple'')',
    'ALTER TABLE relata.outbox DISABLE TRIGGER USER', 'SET session_replication_role = replica']) q;
SELECT t.raises('INSERT INTO relata.outbox (id, op, object, relation, subject) VALUES (1, ''write'', ''doc:1'', ''v'', ''user:1'')', 'RL002', 'id', 'an id gets its own error');
RESET ROLE;

-- ---- the caller's search_path chooses nothing that the owner executes ----
CREATE SCHEMA evil AUTHORIZATION t_other;
SET LOCAL ROLE t_other;
CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN IF current_user <> 't_other' THEN CREATE TABLE IF NOT EXISTS evil.got_in (); END IF; RETURN $1 OPERATOR(pg_catalog.=) $2; END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
CREATE FUNCTION evil.cat(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF current_user <> 't_other' THEN CREATE TABLE IF NOT EXISTS evil.got_in (); END IF; RETURN pg_catalog.concat($1, $2); END $$;
CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.cat);
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
SET LOCAL search_path = evil, pg_catalog;
INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1'), ('touch', 'doc:1', 'viewer', 'user:1');
INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context) VALUES ('write', 'doc:1', 'viewer', 'user:1', 'cond', '{"a": 1}');
SELECT relata.write_tuple('doc:5', 'viewer', 'user:1', 'cond', '{"x": [1, "a"]}'), relata.write_tuples('{doc:6}', '{viewer}', '{user:1}'), relata.delete_tuple('doc:5', 'viewer', 'user:1'),
       relata.delete_object('doc:6'), relata.erase_subject('user:1'), relata.touch_tuple('doc:5', 'viewer', 'user:1'), relata.token(), relata.encode_id('a:b'), relata.encode_id('a/b', '/') \g /dev/null
RESET search_path;
RESET ROLE;
SELECT t.ok(to_regclass('evil.got_in') IS NULL, 'operators and functions of the caller are not used');

-- ---- tracked tables: an owner's code runs with the owner's rights, whoever changes the row ----
CREATE FUNCTION t.made(kind text, tab text DEFAULT 'public.mine') RETURNS text LANGUAGE sql AS $$ SELECT format('relata_track_%s.t%s_%s', relowner, oid, kind) FROM pg_class WHERE oid = tab::regclass $$;
SET LOCAL ROLE t_service;
CREATE TABLE public.mine (id int PRIMARY KEY, who text);
SELECT relata.track('public.mine', '[{"object": "doc:{id}", "relation": "r", "subject": "user:{who}"}]') \g /dev/null
GRANT SELECT, INSERT, DELETE, UPDATE ON public.mine TO t_nobody;
SET LOCAL ROLE t_nobody;
INSERT INTO public.mine VALUES (1, 'a'), (2, 'b');
DELETE FROM public.mine WHERE id = 1;
SELECT t.raises('SELECT relata.write_tuple(''doc:1'', ''r'', ''user:1'')', '42501', NULL, 'who may change the row need not be able to write tuples');
SELECT t.raises('SELECT ' || t.made('expected') || '()', '42501', NULL, 'nor call what was generated');
RESET ROLE;
SELECT t.ok(t.ledger() LIKE '%doc:2#r@user:b%' AND t.ledger() NOT LIKE '%doc:1#r@user:a%', 'a row changed by somebody else');
SELECT t.ok(bool_and(pg_get_userbyid(proowner) = 't_service' AND proacl IS NOT NULL AND NOT has_function_privilege('t_nobody', oid, 'EXECUTE')), 'generated functions are the owner''s, and nobody''s to call')
FROM pg_proc WHERE pronamespace = (SELECT place FROM relata.tracked)::regnamespace;
-- Another service: it can neither break it, nor take its place, nor get its own SQL run with more rights than its own.
SET LOCAL ROLE t_other;
CREATE TABLE public.theirs (id int PRIMARY KEY, who text);
SELECT relata.track('public.theirs', '[{"object": "theirs:{id}", "relation": "r", "subject": "user:{who}"}]') \g /dev/null
SELECT t.raises(q, '42501', NULL, 'not another owner''s: ' || q) FROM unnest(ARRAY[
    'SELECT relata.track(''public.mine'', ''[]'')', 'SELECT relata.untrack(''public.mine'')', 'SELECT relata.untrack(''public.mine'', true)',
    'SELECT relata.track_unregister(''public.mine'', false)', 'SELECT relata.track_unregister(''public.mine'', true)',
    'SELECT relata.track_register(''t.bare'', ''default'', ''[]'', ''[]'')',
    'DROP FUNCTION ' || t.made('change') || '() CASCADE', 'DROP FUNCTION ' || t.made('yields') || '(text[], text[], text[])', 'DROP VIEW ' || t.made('r1'),
    'ALTER FUNCTION ' || t.made('change') || '() SECURITY INVOKER', 'CREATE OR REPLACE VIEW ' || t.made('r1') || ' AS SELECT 1',
    'CREATE OR REPLACE FUNCTION ' || t.made('expected') || '() RETURNS int LANGUAGE sql AS ''SELECT 1''', 'CREATE FUNCTION ' || t.made('more') || '() RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE TABLE ' || t.made('more') || ' ()', 'SELECT ' || t.made('expected') || '()', 'SELECT ' || t.made('rows') || '(''public.mine'', 0, 1)', 'TABLE ' || t.made('r1'),
    'SELECT relata.rows_of(''public.mine'', ''public.mine'', 0, 1)', 'SELECT relata.expected(''public.mine'')',
    'ALTER TABLE public.mine DISABLE TRIGGER relata_insert', 'DROP TRIGGER relata_insert ON public.mine', 'DROP SCHEMA ' || split_part(t.made('x'), '.', 1) || ' CASCADE',
    'INSERT INTO relata.tracked (tab, store, mapping, place) VALUES (''t.bare''::regclass, ''default'', ''[]'', ''evil'')', 'UPDATE relata.tracked SET place = ''evil''', 'DELETE FROM relata.tracked',
    'INSERT INTO relata.tracked_rule VALUES (1, 9, NULL, NULL, NULL)', 'DELETE FROM relata.tracked_rule', 'UPDATE relata.tracked_rule SET relation = NULL', 'DELETE FROM relata.truncating', 'UPDATE relata.backfill SET next_block = 9']) q;
SELECT t.ok(count(*) = 0, 'a service has CREATE in its own schema of generated names alone: ' || coalesce(string_agg(nspname, ' '), 'none else')) FROM pg_namespace
WHERE nspname LIKE 'relata%' AND has_schema_privilege(nspname, 'CREATE') AND nspname <> split_part(t.made('x', 'public.theirs'), '.', 1);
RESET ROLE;
SELECT t.eq(count(*)::text, '2', 'both are still registered') FROM relata.tracked;
-- Somebody with more rights tracks, untracks and backfills a service's table: the service's SQL runs as the service.
CREATE TABLE public.ran (who text);
GRANT ALL ON public.ran TO PUBLIC;
SET LOCAL ROLE t_other;
CREATE FUNCTION evil.when(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    -- A volatile change in an immutable function, as somebody who means harm would write it.
    PERFORM evil.note(); RETURN true; END $$;
CREATE FUNCTION evil.note() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.ran VALUES (current_user);
    BEGIN PERFORM set_config('role', 'none', true); INSERT INTO public.ran VALUES (current_user); EXCEPTION WHEN OTHERS THEN NULL; END; END $$;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE TABLE public.trap (id int PRIMARY KEY, who text);
INSERT INTO public.trap VALUES (1, 'a');
RESET ROLE;
SELECT relata.track('public.trap', '[{"object": "trap:{id}", "relation": "r", "subject": "user:{who}", "when": "evil.when(who) and evil.when(''x'')"}]') \g /dev/null
SELECT relata.backfill_batch('public.trap', 'public.trap', 10) \g /dev/null
INSERT INTO public.trap VALUES (2, 'b');
UPDATE public.trap SET who = 'c' WHERE id = 2;
SELECT t.eq(count(*)::text, '2', 'the trap''s tuples are there') FROM relata.expected('public.trap');
SELECT relata.untrack('public.trap', true) \g /dev/null
SELECT t.eq((SELECT string_agg(DISTINCT who, ',' ORDER BY who) FROM public.ran), 't_other', 'a mapping''s expressions run as the table''s owner alone');
-- The owner turns a generated function against its callers: it runs as a role that may nothing.
SET LOCAL ROLE t_service;
CREATE TABLE public.loot (who text);
GRANT ALL ON public.loot TO PUBLIC;
SELECT format('CREATE OR REPLACE FUNCTION %s(text[], text[], text[])', t.made('yields')) AS yields, format('CREATE OR REPLACE FUNCTION %s()', t.made('expected')) AS expected \gset
:yields RETURNS TABLE (n bigint, condition_name text, condition_context jsonb) LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS $$
BEGIN INSERT INTO public.loot VALUES (current_user); BEGIN DELETE FROM relata.tuple; INSERT INTO public.loot VALUES ('deleted'); EXCEPTION WHEN insufficient_privilege THEN NULL; END; RETURN; END $$;
:expected RETURNS TABLE (object text, relation text, subject text, condition_name text, condition_context jsonb) LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS $$
BEGIN INSERT INTO public.loot VALUES (current_user); RETURN; END $$;
RESET ROLE;
SET LOCAL ROLE t_auditor;
SELECT count(*) FROM relata.expected('public.mine') \g /dev/null
RESET ROLE;
DELETE FROM public.mine;
SELECT t.eq(string_agg(DISTINCT who, ','), 'relata_lookup', 'an owner''s changed function gets no rights of those it is called for') FROM public.loot;
SELECT t.ok(count(*) > 0, 'the ledger is untouched') FROM relata.tuple;
SELECT t.ok(NOT has_table_privilege('relata_lookup', 'relata.tuple', 'SELECT') AND NOT has_table_privilege('relata_lookup', 'relata.outbox', 'INSERT'), 'relata_lookup may nothing');

-- ---- the programs ----
SET LOCAL ROLE t_writer;
SELECT t.ok((SELECT count(*) >= 0 FROM relata.outbox, relata.tuple, relata.lag) AND (SELECT more IS NOT NULL FROM relata.maintain()), 'a writer reads and maintains');
DELETE FROM relata.outbox;
INSERT INTO relata.inflight (writer, store, objects, relations, subjects) VALUES (1, 'default', '{}', '{}', '{}');
DELETE FROM relata.inflight;
INSERT INTO relata.writer (store, name, epoch) VALUES ('default', 'w', 1);
INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) VALUES ('default', 'write', 'doc:1', 'v', 'user:1', 'x', 'x');
SELECT t.raises(q, '42501', NULL, 'not a writer''s: ' || q) FROM unnest(ARRAY['DELETE FROM relata.tuple', 'UPDATE relata.tuple SET present = true', 'INSERT INTO relata.outbox (op, object, relation, subject) VALUES (''write'', ''doc:1'', ''v'', ''user:1'')',
    'DELETE FROM relata.dead_letter', 'UPDATE relata.request SET done_at = now()', 'UPDATE relata.setting SET value = ''0''', 'DELETE FROM relata.writer']) q;
RESET ROLE;
SET LOCAL ROLE t_relay;
SELECT t.ok((SELECT count(*) >= 0 FROM relata.outbox) AND (SELECT more IS NOT NULL FROM relata.maintain()), 'a relay reads and maintains');
INSERT INTO relata.relay (name) VALUES ('r') ON CONFLICT (name) DO UPDATE SET updated_at = now();
SELECT t.raises(q, '42501', NULL, 'not a relay''s: ' || q) FROM unnest(ARRAY['UPDATE relata.tuple SET present = true', 'DELETE FROM relata.inflight', 'UPDATE relata.store SET model_id = ''x''']) q;
RESET ROLE;
SET LOCAL ROLE t_lister;
SELECT t.ok((SELECT count(*) >= 0 FROM relata.outbox, relata.tuple), 'a lister reads');
SELECT t.raises(q, '42501', NULL, 'not a lister''s: ' || q) FROM unnest(ARRAY['DELETE FROM relata.outbox', 'SELECT relata.maintain()', 'SELECT relata.write_tuple(''doc:1'', ''v'', ''user:1'')']) q;
RESET ROLE;
SET LOCAL ROLE t_auditor;
SELECT t.ok((SELECT count(*) >= 0 FROM relata.outbox, relata.tuple, relata.dead_letter, relata.request, relata.history, relata.history_period), 'an auditor reads everything');
INSERT INTO relata.audit_run (store, store_id, model_id, by_tuple) VALUES ('default', 's', 'm', false);
UPDATE relata.audit_run SET state = 'clean', finished_at = now();
INSERT INTO relata.audit_finding (store, object, relation, subject, cause, excess, detail, first_run, last_run) VALUES ('default', 'doc:1', 'v', 'user:1', 'lost', false, '{}', 1, 1);
UPDATE relata.audit_finding SET closed_at = now();
CREATE TEMPORARY TABLE t_observed (object text);
SELECT t.ok((SELECT count(*) = 1 FROM relata.audit_run) AND (SELECT count(*) = 1 FROM relata.audit_finding), 'an auditor keeps the record of audits');
SELECT t.raises(q, '42501', NULL, 'not an auditor''s: ' || q) FROM unnest(ARRAY['DELETE FROM relata.audit_run', 'DELETE FROM relata.audit_finding', 'TRUNCATE relata.audit_finding',
    'SELECT relata.audit_lock(''default'', ''{}'', ''{}'', ''{}'')', 'SELECT relata.touch_tuples(''{}'', ''{}'', ''{}'')', 'SELECT relata.delete_tuples(''{}'', ''{}'', ''{}'')', 'INSERT INTO relata.tuple (store, object, relation, subject, present, version) VALUES (''default'', ''doc:1'', ''v'', ''user:1'', true, 1)']) q;
SELECT t.raises(q, '42501', NULL, 'not an auditor''s: ' || q) FROM unnest(ARRAY['DELETE FROM relata.outbox', 'DELETE FROM relata.history', 'CALL relata.history_off()', 'UPDATE relata.dead_letter SET closed_at = now()', 'SELECT relata.write_tuple(''doc:1'', ''v'', ''user:1'')']) q;
RESET ROLE;
SET LOCAL ROLE t_repair;
SELECT t.ok(relata.touch_tuple('doc:1', 'v', 'user:1') LIKE 'r1.%', 'repair touches');
SELECT relata.audit_lock('default', '{doc:9}', '{v}', '{user:1}') \g /dev/null
UPDATE relata.audit_finding SET repaired_at = now(), token = relata.token();
INSERT INTO relata.store (name, store_id) VALUES ('x', 'y') ON CONFLICT (name) DO UPDATE SET store_id = 'y';
UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'dropped';
UPDATE relata.setting SET value = '2 hours' WHERE name = 'tombstone_retention';
RESET ROLE;
SELECT t.eq(coalesce(string_agg(role || ' ' || tab, ', '), ''), '', 'audits are written by auditors and repairs alone') FROM unnest(ARRAY['t_service', 't_writer', 't_relay', 't_lister', 't_nobody']) role,
    unnest(ARRAY['relata.audit_run', 'relata.audit_finding']) tab WHERE has_table_privilege(role, tab, 'INSERT, UPDATE, DELETE') OR role IN ('t_service', 't_nobody') AND has_table_privilege(role, tab, 'SELECT');
SELECT t.eq(string_agg(DISTINCT role, ' '), 't_repair', 'what a repair does is nobody else''s to do') FROM unnest(ARRAY['t_service', 't_writer', 't_relay', 't_lister', 't_auditor', 't_repair', 't_nobody']) role, pg_proc
WHERE pronamespace = 'relata'::regnamespace AND proname IN ('audit_lock', 'audit_emit') AND has_function_privilege(role, oid, 'EXECUTE');
SELECT t.eq(count(*)::text, '0', 'no function of the schema is PUBLIC''s') FROM pg_proc p WHERE pronamespace = 'relata'::regnamespace AND has_function_privilege('t_nobody', p.oid, 'EXECUTE');
SELECT t.eq(coalesce(string_agg(proname, ' ' ORDER BY proname), ''), 'outbox_row', 'each SECURITY DEFINER function fixes its search_path, but the one that names everything in full')
FROM pg_proc WHERE pronamespace = 'relata'::regnamespace AND prosecdef AND (proconfig IS NULL OR NOT 'search_path=pg_catalog, pg_temp' = ANY (proconfig));
SELECT t.ok(bool_and(collname = 'C'), 'every text column of keys is COLLATE "C"') FROM pg_attribute a JOIN pg_collation c ON c.oid = attcollation
WHERE attrelid IN ('relata.outbox'::regclass, 'relata.tuple'::regclass, 'relata.inflight'::regclass) AND attnum > 0;
ROLLBACK;
