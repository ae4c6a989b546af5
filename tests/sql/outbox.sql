-- The outbox as services meet it: what is refused and how, what is kept, what a row records.
\ir inc/assert.psql

CREATE FUNCTION t.put(object text, relation text, subject text) RETURNS text LANGUAGE sql AS $$
    SELECT format('INSERT INTO relata.outbox (op, object, relation, subject) VALUES (''write'', %L, %L, %L)', object, relation, subject)
$$;

-- ---- malformed tuples: SQLSTATE RL001, the column, its value, a hint ----
SELECT t.raises(t.put(o, 'viewer', 'user:1'), 'RL001', 'object', 'object ' || quote_literal(left(o, 20)))
FROM unnest(ARRAY['doc', 'doc:', ':1', '', 'doc:a b', E'doc:a\tb', E'doc:a\x01b', E'doc:a\x7fb', E'doc:a\u0085b', 'doc:a:b',
                  'doc:a#b', 'doc:1#viewer', 'do@c:1', 'doc:' || repeat('a', 253), 'doc:' || repeat('€', 253)]) o;
SELECT t.raises(t.put('doc:*', 'viewer', 'user:1'), 'RL001', 'object', 'W37: a wildcard as object');
SELECT t.raises(t.put('doc:1', 'viewer', 'team:*#member'), 'RL001', 'subject', 'W37: a wildcard in a userset');
SELECT t.raises(t.put('doc:1', 'viewer', s), 'RL001', 'subject', 'subject ' || quote_literal(left(s, 20)))
FROM unnest(ARRAY['user', 'user:', ':1', '*', 'user:a b', 'user:a:b', 'user:1#', 'user:#m', 'user:1#a#b', 'team:a*#m', 'team:a#m*',
                  'team:1#a@b', 'us@er:1', 'user:' || repeat('a', 508), repeat('t', 255) || ':1',
                  'team:1#' || repeat('r', 51), 'doc:1#viewer']) s;
SELECT t.raises(t.put('doc:1', r, 'user:1'), 'RL001', 'relation', 'relation ' || quote_literal(left(r, 20)))
FROM unnest(ARRAY['', 'a b', 'a:b', 'a#b', 'a@b', repeat('r', 51), E'a\x01']) r;
SELECT t.raises(t.put('doc:1', 'viewer', 'u1#member'), 'RL001', 'subject', 'W34: a subject joined from a hostile id');
SELECT t.raises(t.put('doc:7#viewer@user:u9', 'viewer', 'user:1'), 'RL001', 'object', 'W34: an object joined from a hostile id');
SELECT t.raises(t.put(E'doc:abc\x01def', 'viewer', 'user:1'), 'RL001', 'object', 'W35: control characters');
SELECT t.raises(format('INSERT INTO relata.outbox (op, relation, subject) VALUES (''write'', ''r'', ''user:1'')'), 'RL001', 'object', 'R10: no object');
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation) VALUES (''write'', ''doc:1'', ''r'')', 'RL001', 'subject', 'R10: no subject');
SELECT t.raises('INSERT INTO relata.outbox (object, relation, subject) VALUES (''doc:1'', ''r'', ''user:1'')', 'RL001', 'op', 'no op');
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation, subject) VALUES (''upsert'', ''doc:1'', ''r'', ''user:1'')', 'RL001', 'op', 'unknown op');
SELECT t.raises(format('INSERT INTO relata.outbox (store, op, object, relation, subject) VALUES (%L, ''write'', ''doc:1'', ''r'', ''user:1'')', s),
                'RL001', 'store', 'store ' || coalesce(s, 'NULL')) FROM unnest(ARRAY[NULL, '', 'a b', 'a.b', 'a|b', repeat('s', 65)]) s;
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation, subject, headers) VALUES (''write'', ''doc:1'', ''r'', ''user:1'', ''[1]'')',
                'RL001', 'headers', 'headers that are no object');
-- W20: a malformed delete is refused, not taken for "not there".
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation, subject) VALUES (''delete'', ''doc:1'', ''viewer'', '''')', 'RL001', 'subject', 'W20: delete without subject');
SELECT t.raises('SELECT relata.delete_tuple(''doc:1'', ''viewer'', '''')', 'RL001', 'subject', 'W20: delete_tuple without subject');
SELECT t.eq(count(*)::text, '0', 'nothing of all that was recorded') FROM relata.tuple;

-- ---- both ends of each limit (W31: code points for object and relation, bytes for subject) ----
SELECT t.ok(relata.object_ok('d:1') AND relata.object_ok('doc:' || repeat('€', 252)) AND NOT relata.object_ok('doc:' || repeat('€', 253)), 'W31: object counts code points');
SELECT t.ok(relata.subject_ok('user:' || repeat('€', 169)) AND NOT relata.subject_ok('user:' || repeat('€', 170)), 'W31: subject counts bytes');
SELECT t.ok(relata.relation_ok(repeat('é', 50)) AND NOT relata.relation_ok(repeat('é', 51)), 'relation counts code points');
SELECT t.ok(relata.tuple_ok(o, r, s), format('taken: %s#%s@%s', o, r, s))
FROM (VALUES ('doc:a@b', 'viewer', 'user:a@b.c'), ('doc:**', '*', 'user:*'), ('doc:' || U&'\00A0\2003', 'v', 'team:' || U&'\200B' || '#m'),
             ('*:1', 'v', '*:1'), ('doc:a*', 'v', 'user:a*'), ('doc:%3A', 'v', 'doc:1')) x(o, r, s);

-- ---- id and xid are the database's ----
SELECT t.raises('INSERT INTO relata.outbox (id, op, object, relation, subject) VALUES (1, ''write'', ''doc:1'', ''r'', ''user:1'')', 'RL002', 'id', 'an id is refused');
SELECT t.raises('INSERT INTO relata.outbox (xid, op, object, relation, subject) VALUES (''1'', ''write'', ''doc:1'', ''r'', ''user:1'')', 'RL002', 'xid', 'an xid is refused');

-- ---- what a row records ----
BEGIN;
INSERT INTO relata.outbox (op, object, relation, subject, actor, headers, created_at)
VALUES ('write', 'doc:1', 'viewer', 'user:1', 'user:admin', '{"traceparent": "00-1-2-01"}', '2001-01-01');
SELECT t.ok(xid = pg_current_xact_id(), 'xid is the transaction''s'),
       t.ok(created_at > now() AND created_at <= clock_timestamp(), 'R17: created_at is the clock, not now() and not what was given'),
       t.ok(key = relata.key_hash('doc:1', 'viewer', 'user:1'), 'key is the hash of the tuple') FROM relata.outbox;
SELECT t.ok(version = (SELECT id FROM relata.outbox), 'the ledger has the row''s id as version') FROM relata.tuple;
COMMIT;
BEGIN;
INSERT INTO relata.outbox (op, object, relation, subject) SELECT 'write', 'doc:' || i, 'v', 'user:1' FROM generate_series(100, 109) i;
SELECT t.ok(count(DISTINCT id) = 10 AND array_agg(id ORDER BY id) = array_agg(id ORDER BY object), 'R17: rows of one moment are ordered by id')
FROM relata.outbox WHERE relation = 'v';
ROLLBACK;
SELECT t.eq(count(*)::text, '1', 'R19: a transaction rolled back leaves no row') FROM relata.outbox;
SELECT t.eq(count(*)::text, '1', 'R19: and no tuple') FROM relata.tuple;

-- ---- a plain INSERT always keeps its row: ORMs raise when no row comes back ----
CREATE TABLE t.kept (n bigint);
WITH x AS (INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1') RETURNING id) INSERT INTO t.kept SELECT id FROM x;
WITH x AS (INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:none', 'viewer', 'user:1') RETURNING id) INSERT INTO t.kept SELECT id FROM x;
DELETE FROM relata.outbox;
WITH x AS (INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('write', 'doc:1', 'viewer', 'user:1') RETURNING id) INSERT INTO t.kept SELECT id FROM x;
SELECT t.ok(count(*) = 3 AND bool_and(n IS NOT NULL), 'an INSERT that changes nothing keeps its row and returns its id') FROM t.kept;

-- ---- functions drop what changes nothing, once nothing of it is pending ----
TRUNCATE relata.outbox, relata.tuple;
SELECT t.eq(relata.write_tuples('{doc:2,doc:1,doc:2}', '{viewer,viewer,viewer}', '{user:1,user:1,user:1}')::text, '2', 'a set writes each tuple once');
SELECT t.eq(t.outbox(), 'write doc:1#viewer@user:1, write doc:2#viewer@user:1', 'in key order');
SELECT t.eq(relata.write_tuples('{doc:1}', '{viewer}', '{user:1}')::text, '1', 'a no-op behind a pending row is kept');
DELETE FROM relata.outbox;
SELECT t.eq(relata.write_tuples('{doc:1,doc:3}', '{viewer,viewer}', '{user:1,user:1}')::text, '1', 'a no-op at rest is dropped');
DELETE FROM relata.outbox;
SELECT t.eq(relata.write_tuples('{doc:1}', '{viewer}', '{user:1}', '{cond}', ARRAY['{"a": 1}'::jsonb])::text, '1', 'another condition is a change');
DELETE FROM relata.outbox;
SELECT t.eq(relata.write_tuples('{doc:1}', '{viewer}', '{user:1}', '{cond}', ARRAY['{"a": 1.0}'::jsonb])::text, '0', 'the same condition, spelt otherwise, is none');
SELECT t.eq(relata.delete_tuples('{doc:1}', '{viewer}', '{user:1}')::text, '1', 'a delete');
SELECT t.eq(condition_name, NULL, 'takes the condition along') FROM relata.tuple WHERE object = 'doc:1';

-- ---- episodes (R13, W04) ----
TRUNCATE relata.outbox, relata.tuple;
SELECT relata.write_tuple('doc:1', 'viewer', 'user:1') IS NULL, relata.delete_tuple('doc:1', 'viewer', 'user:1') IS NULL,
       relata.write_tuple('doc:1', 'viewer', 'user:1') IS NULL, relata.delete_tuple('doc:1', 'viewer', 'user:1') IS NULL \g /dev/null
SELECT t.eq(string_agg(op, ' ' ORDER BY id), 'write delete write delete', 'R13: every episode has its row') FROM relata.outbox;
BEGIN;
SELECT relata.delete_tuple('doc:1', 'viewer', 'user:1') \g /dev/null
SELECT relata.write_tuple('doc:1', 'viewer', 'user:1') \g /dev/null
COMMIT;
SELECT t.eq(t.ledger(), 'doc:1#viewer@user:1', 'W04: delete and write in one transaction leave the tuple');
-- W40, W38: keys are whole and byte for byte.
SELECT relata.write_tuple('host:h1', 'read', 'user:u1') \g /dev/null
SELECT relata.delete_tuple('host:h2', 'read', 'user:u1') \g /dev/null
SELECT t.ok(t.ledger() LIKE '%host:h1#read@user:u1%', 'W40: another object''s tuple stays');
SELECT relata.write_tuple('doc:n', 'viewer', U&'user:jos\00e9') \g /dev/null
SELECT relata.delete_tuple('doc:n', 'viewer', U&'user:jose\0301') \g /dev/null
SELECT t.ok(t.ledger() LIKE U&'%user:jos\00e9%', 'W38: composed and decomposed names are two');
SELECT t.ok(relata.key_hash('a:1', 'b', 'c:1') <> relata.key_hash('a:1', 'bc', ':1'), 'W40: the parts of a key do not run together');

-- ---- touch ----
TRUNCATE relata.outbox, relata.tuple;
SELECT relata.write_tuple('doc:1', 'viewer', 'user:1', 'cond', '{"a": 1}') \g /dev/null
SELECT version AS v FROM relata.tuple \gset
SELECT relata.touch_tuple('doc:1', 'viewer', 'user:1') \g /dev/null
SELECT t.ok(present AND condition_name = 'cond' AND version > :v, 'touch keeps the state and takes a new version') FROM relata.tuple;
SELECT relata.touch_tuple('doc:2', 'viewer', 'user:1') \g /dev/null
SELECT t.ok(NOT present, 'touch of an unknown tuple records that it is absent') FROM relata.tuple WHERE object = 'doc:2';
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation, subject, condition_name) VALUES (''delete'', ''doc:1'', ''viewer'', ''user:1'', ''cond'')', 'RL001', 'condition_name', 'only a write has a condition');

-- ---- what an older store took can still be deleted (W35), but not written ----
INSERT INTO relata.tuple (store, object, relation, subject, present, version) VALUES ('default', E'doc:a\x01', 'viewer', 'user:1', true, 0),
    ('default', 'doc:a:b', 'viewer', 'user:1', true, 0), ('default', 'doc:x y', 'viewer', 'user:1', true, 0);
SELECT t.eq(relata.delete_tuples(ARRAY[E'doc:a\x01'], '{viewer}', '{user:1}')::text, '1', 'W35: a malformed tuple of the ledger can be deleted');
INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:a:b', 'viewer', 'user:1'), ('touch', 'doc:x y', 'viewer', 'user:1');
SELECT t.eq(string_agg(object, ' ' ORDER BY id), E'doc:a\x01 doc:a:b doc:x y', 'W35: by INSERT too') FROM relata.outbox WHERE relata.object_ok(object) IS NOT TRUE;
SELECT t.raises(t.put('doc:a:b', 'viewer', 'user:1'), 'RL001', 'object', 'W35: not written again');
SELECT t.raises('SELECT relata.delete_tuple(''doc:b:b'', ''viewer'', ''user:1'')', 'RL001', 'object', 'W35: a malformed one that nobody knows is refused');

-- ---- conditions ----
CREATE FUNCTION t.cond(name text, context text) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT relata.write_tuple(''doc:1'', ''viewer'', ''user:1'', %L, %L)', name, context)
$$;
SELECT t.raises(t.cond(n, NULL), 'RL001', 'condition_name', 'condition name ' || quote_literal(left(n, 10)))
FROM unnest(ARRAY['c', 'a b', E'a\x01', repeat('c', 257)]) n;
SELECT t.raises(t.cond('cond', c), 'RL001', 'condition_context', 'context ' || left(c, 40))
FROM unnest(ARRAY['[1]', '"x"', '1', '{"x": 9007199254740993}', '{"x": {"y": [1, 1e400]}}', '{"x": 0.12345678901234567890}',
                  '{"x": -9007199254740993}', '{"x": 1e-400}', E'{"x": "a\\u0001b"}', '{"a\u0085": 1}', E'{"x": "a\\nb"}',
                  '{"x": "' || repeat('a', 32768) || '"}']) c;
SELECT t.raises(t.cond(NULL, '{"a": 1}'), 'RL001', 'condition_context', 'a context without a condition');
SELECT t.eq(left(relata.write_tuple('doc:1', 'viewer', 'user:1', 'cond', c::jsonb), 3), 'r1.', 'D29: context ' || left(c, 40))
FROM unnest(ARRAY['{}', '{"x": 9007199254740992}', '{"x": 9007199254740994}', '{"x": 0.1}', '{"x": 1e308}', '{"x": 1.5e-300}',
                  '{"x": 1180591620717411303424}', '{"x": null, "y": [true, {"z": "é"}]}', '{"x": -0.25}', '{"x": 12345678901234567168}',
                  '{"x": "' || repeat('a', 32740) || '"}']) c;
-- 33015 is what the server says of this context; the Value around it takes four bytes more.
SELECT t.eq(relata.value_size(jsonb_build_object('s', repeat('a', 33000)))::text, '33019', 'a context is as long as the store says');
SELECT relata.write_tuple('doc:7', 'viewer', 'user:1', '', '{}') \g /dev/null
SELECT t.ok(condition_name IS NULL AND condition_context IS NULL, 'an empty condition is none') FROM relata.tuple WHERE object = 'doc:7';

-- ---- set forms: the arrays, and many rows ----
SELECT t.raises(q, 'RL001', NULL, 'arrays that differ in length: ' || q)
FROM unnest(ARRAY['SELECT relata.write_tuples(''{doc:1}'', ''{viewer,viewer}'', ''{user:1}'')', 'SELECT relata.write_tuples(NULL, ''{viewer}'', ''{user:1}'')',
                  'SELECT relata.delete_tuples(''{doc:1}'', ''{viewer}'', ''{}'')',
                  'SELECT relata.write_tuples(''{doc:1}'', ''{viewer}'', ''{user:1}'', ''{}'')']) q;
SELECT t.raises('SELECT relata.write_tuples(''{doc:1,NULL}'', ''{viewer,viewer}'', ''{user:1,user:1}'')', 'RL001', 'object', 'a NULL among them');
SELECT t.raises('SELECT relata.write_tuples(array_agg(''doc:'' || i), array_agg(''viewer''::text), array_agg(CASE i WHEN 1500 THEN ''user'' ELSE ''user:1'' END)) FROM generate_series(1, 2000) i',
                'RL001', 'subject', 'one bad one among two thousand');
SELECT t.eq(relata.write_tuples('{}', '{}', '{}')::text, '0', 'none at all');
TRUNCATE relata.outbox, relata.tuple;
SELECT relata.write_tuple('doc:1777', 'viewer', 'user:1', 'cond') \g /dev/null
SELECT t.eq(relata.write_tuples(array_agg('doc:' || i ORDER BY i), array_agg('viewer'::text), array_agg('user:1'::text))::text, '5000', 'five thousand, one of them there already')
FROM generate_series(1, 5000) i;
SELECT t.ok(count(*) = 5000 AND bool_and(present AND condition_name IS NULL), 'are all as written') FROM relata.tuple;
SELECT t.ok(count(*) = 5000, 'each row has the version of its tuple') FROM relata.outbox o JOIN relata.tuple t ON t.object = o.object AND t.version = o.id;
SELECT t.ok(bool_and(id > (SELECT min(id) FROM relata.outbox)), 'the later row of the one is the later id') FROM relata.outbox WHERE object = 'doc:1777' AND condition_name IS NULL;
SELECT t.ok(array_agg(object ORDER BY id) = array_agg(object ORDER BY object), 'ids follow the keys') FROM relata.outbox WHERE condition_name IS NULL AND object <> 'doc:1777';

-- ---- tokens ----
SELECT t.ok(relata.token() ~ '^r1\.[0-9]+\.[0-9]+\.[0-9]+$', 'a token names system, timeline and transaction');
SELECT t.eq(split_part(relata.token(), '.', 2), (SELECT system_identifier::text FROM pg_control_system()), 'the system identifier');
BEGIN;
SELECT t.ok(relata.write_tuple('doc:1', 'viewer', 'user:1') = relata.token() AND split_part(relata.token(), '.', 4) = pg_current_xact_id()::text, 'functions return it');
ROLLBACK;

-- ---- the view ----
TRUNCATE relata.outbox, relata.tuple;
SELECT t.eq(store || ' ' || pending || ' ' || oldest_age_seconds || ' ' || parked, 'default 0 0 0', 'idle: lag 0') FROM relata.lag;
INSERT INTO relata.outbox (store, op, object, relation, subject) VALUES ('default', 'write', 'doc:1', 'v', 'user:1'), ('other', 'write', 'doc:1', 'v', 'user:1'), ('other', 'write', 'doc:2', 'v', 'user:1');
UPDATE relata.outbox SET created_at = clock_timestamp() - interval '5 minutes' WHERE object = 'doc:1' AND store = 'other';
INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) VALUES ('parked', 'write', 'doc:1', 'v', 'user:1', 'x', 'x');
SELECT t.eq(string_agg(store || ' ' || pending || ' ' || (oldest_age_seconds >= 300) || ' ' || parked, ', ' ORDER BY store), 'default 1 false 0, other 2 true 0, parked 0 false 1', 'O01: lag by store, from the table') FROM relata.lag;
SELECT t.eq(relata.pending('other', 1)::text, '1', 'pending is counted up to a cap');
SELECT t.ok(NOT EXISTS (SELECT FROM relata.lag WHERE oldest_age_seconds < 0), 'no negative age');
SELECT t.eq(string_agg(store || ' ' || pinned, ', ' ORDER BY store), 'default false, other false, parked false', 'a store that nobody pinned is shown so') FROM relata.lag;
INSERT INTO relata.store (name, store_id) VALUES ('other', '01ABC');
SELECT t.ok(pinned, 'a pinned one too') FROM relata.lag WHERE store = 'other';

-- ---- errors: hints that fit, and a context of a few lines ----
CREATE FUNCTION t.said(stmt text) RETURNS TABLE (what text, hint text, lines int) LANGUAGE plpgsql AS $$
DECLARE context text;
BEGIN
    EXECUTE stmt;
EXCEPTION WHEN SQLSTATE 'RL001' THEN
    GET STACKED DIAGNOSTICS what = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
    lines := cardinality(string_to_array(context, E'\n')) - 2; -- this function's own
    RETURN NEXT;
END $$;
SELECT t.ok(s.what LIKE x.what AND s.hint LIKE x.hint AND s.lines <= 12, format('%s -> %s (%s), %s lines', left(x.q, 60), s.what, s.hint, s.lines))
FROM (VALUES ('NULL', '''viewer''', '''user:1''', 'invalid object: is missing', '%NULL%'), ('''''', '''viewer''', '''user:1''', 'invalid object: is empty', '%type before%'),
             ('''doc:''', '''viewer''', '''user:1''', '%neither of them empty', 'Leave the tuple out%'), ('''doc:'' || repeat(''x'', 300)', '''viewer''', '''user:1''', '%304 characters%', '%shorter%'),
             ('''doc:a b''', '''viewer''', '''user:1''', '%white space%', '%encode_id%'), ('''doc:1''', 'NULL', '''user:1''', 'invalid relation: is missing', '%model%'),
             ('''doc:1''', '''viewer''', 'NULL', 'invalid subject: is missing', '%NULL%'), ('''doc:1''', '''viewer''', '''''', 'invalid subject: is empty', '%type before%'),
             ('''doc:1''', '''viewer''', '''user:'' || repeat(''x'', 600)', '%605 bytes%', '%shorter%'), ('''doc:1''', '''viewer''', '''team:1#''', '%userset%', '%relation of the model%')) v(o, r, s, what, hint),
     LATERAL (SELECT format(f, v.o, v.r, v.s) AS q, v.what, v.hint FROM unnest(ARRAY['SELECT relata.write_tuple(%s, %s, %s)', 'SELECT relata.write_tuples(ARRAY[%s], ARRAY[%s], ARRAY[%s])',
         'INSERT INTO relata.outbox (op, object, relation, subject) VALUES (''write'', %s, %s, %s)', 'SELECT relata.delete_tuple(%s, %s, %s)']) f) x, LATERAL t.said(x.q) s;

-- ---- an op outside the three, on every path ----
SELECT t.raises(format('INSERT INTO relata.outbox (op, object, relation, subject%s) VALUES (%L, ''doc:1'', ''v'', ''user:1''%s)', c, op, v), 'RL001', 'op', format('op %L%s', op, c))
FROM unnest(ARRAY['Write', 'upsert', '', 'write ', ' touch']) op, (VALUES ('', ''), (', condition_name', ', ''cond'''), (', headers', ', ''{}''')) x(c, v);
SELECT t.raises('INSERT INTO relata.outbox (op, object, relation, subject) SELECT ''nope'', ''doc:'' || i, ''v'', ''user:1'' FROM generate_series(1, 3) i', 'RL001', 'op', 'op of a set');
-- ---- a mark that a service forges skips the wake-up, never the row ----
BEGIN;
SELECT set_config('relata.awake', 'default', true) \g /dev/null
SELECT relata.write_tuple('doc:forged', 'v', 'user:1') \g /dev/null
COMMIT;
SELECT t.eq(count(*)::text, '1', 'a forged mark: the row is there') FROM relata.outbox WHERE object = 'doc:forged';
