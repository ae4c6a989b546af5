-- relata.track: what rows stand for, through every way a row can change.
\ir inc/assert.psql

-- ---- ids ----
SELECT t.eq(relata.encode_id(v), e, 'encode ' || quote_literal(v))
FROM (VALUES ('a:b', 'a%3Ab'), ('a#b', 'a%23b'), ('a b', 'a%20b'), ('a%3Ab', 'a%253Ab'), ('*', '%2A'), ('a*', 'a%2A'), ('a@b.c', 'a@b.c'),
             ('auth0|5f', 'auth0|5f'), ('é€😀', 'é€😀'), (E'a\tb\x0b', 'a%09b%0B'), (U&'\0085', '%C2%85'), (E'\x7f', '%7F'), ('', ''), (U&'\00A0', U&'\00A0'), ('a\b', 'a\b')) x(v, e);
SELECT t.ok(bool_and(relata.decode_id(relata.encode_id(v)) = v AND relata.object_ok('doc:' || relata.encode_id(v)) AND relata.subject_ok('team:' || relata.encode_id(v) || '#m')),
            'W32: every character comes back, and is taken as an id')
FROM (SELECT chr(i) AS v FROM generate_series(1, 70000) i WHERE i NOT BETWEEN 55296 AND 57343) x;
SELECT t.eq(count(DISTINCT relata.encode_id(v))::text, count(DISTINCT v)::text, 'W32: different ids stay different')
FROM (SELECT a || b || c AS v FROM unnest(ARRAY['', 'a', ':', '%', '#', ' ', '%3', '%3A', '*', '2', '25', 'A']) a, unnest(ARRAY['', ':', '%', '3A', '#', '5']) b,
             unnest(ARRAY['', '3', 'A', '%25', ':', '3A']) c) x;
SELECT t.ok(relata.decode_id(v) IS NULL, 'no encoding: ' || v) FROM unnest(ARRAY['%', 'a%', '%4', '%zz', '%3a', '%ff%', '%FF']) v;
SELECT t.eq(relata.encode_id('a/b:c', '/'), 'a%2Fb%3Ac', 'further characters on demand');

-- ---- insert, update, key change, soft delete, restore, delete ----
CREATE TABLE public.doc (id bigint PRIMARY KEY, owner text, reader text, deleted_at timestamptz);
SELECT relata.track('public.doc', '[{"object": "doc:{id}", "relation": "owner", "subject": "user:{owner}", "when": "deleted_at is null"},
                                    {"object": "doc:{id}", "relation": "reader", "subject": "team:{reader}#member", "when": "deleted_at is null"}]') \g /dev/null
INSERT INTO doc VALUES (1, 'anne', 'x');
SELECT t.eq(t.ledger(), 'doc:1#owner@user:anne doc:1#reader@team:x#member', 'R22: an insert');
UPDATE doc SET owner = 'bob';
SELECT t.eq(t.ledger(), 'doc:1#owner@user:bob doc:1#reader@team:x#member', 'W49: an update replaces the tuple of the old value');
SELECT t.eq(string_agg(op || ' ' || subject, ', ' ORDER BY id), 'write user:anne, write team:x#member, write user:bob, delete user:anne', 'with one row each') FROM relata.outbox;
UPDATE doc SET id = 2;
SELECT t.eq(t.ledger(), 'doc:2#owner@user:bob doc:2#reader@team:x#member', 'a changed key moves the tuples');
UPDATE doc SET reader = NULL;
SELECT t.eq(t.ledger(), 'doc:2#owner@user:bob', 'NULL stands for no tuple');
DELETE FROM relata.outbox;
UPDATE doc SET owner = owner, deleted_at = NULL;
SELECT t.eq(t.outbox(), '', 'an update of nothing writes nothing');
UPDATE doc SET deleted_at = now();
SELECT t.eq(t.ledger(), '', 'R29: a soft delete');
UPDATE doc SET owner = 'late', reader = 'late';
SELECT t.eq(t.ledger(), '', 'R29: a late grant on a deleted row');
UPDATE doc SET deleted_at = NULL;
SELECT t.eq(t.ledger(), 'doc:2#owner@user:late doc:2#reader@team:late#member', 'R29: a restore brings exactly the live ones');
DELETE FROM doc;
SELECT t.eq(t.ledger(), '', 'R22: create, then delete, leaves nothing');
INSERT INTO doc VALUES (3, 'a:b#c', 'u1#member'), (4, '*', 'x y'), (5, 'é', '%');
SELECT t.eq(t.ledger(), 'doc:3#owner@user:a%3Ab%23c doc:3#reader@team:u1%23member#member doc:4#owner@user:%2A doc:4#reader@team:x%20y#member doc:5#owner@user:é doc:5#reader@team:%25#member', 'W32, W34: hostile ids stay ids');
DELETE FROM doc WHERE id = 3;
SELECT t.eq(t.ledger(), 'doc:4#owner@user:%2A doc:4#reader@team:x%20y#member doc:5#owner@user:é doc:5#reader@team:%25#member', 'W32: one goes, the others stay');
SELECT t.raises('INSERT INTO public.doc VALUES (6, '''', NULL)', 'RL001', 'subject', 'an empty id is refused');
SELECT t.raises(format('INSERT INTO public.doc VALUES (6, %L, NULL)', repeat('a', 600)), 'RL001', 'subject', 'an id that is too long is refused');
BEGIN;
INSERT INTO doc VALUES (7, 'x', NULL);
SAVEPOINT a;
UPDATE doc SET owner = 'y' WHERE id = 7;
ROLLBACK TO a;
COMMIT;
SELECT t.ok(t.ledger() LIKE '%doc:7#owner@user:x%' AND t.ledger() NOT LIKE '%user:y%', 'a savepoint rolled back');
INSERT INTO doc VALUES (7, 'z', 'z') ON CONFLICT (id) DO UPDATE SET owner = excluded.owner;
SELECT t.ok(t.ledger() LIKE '%doc:7#owner@user:z%' AND t.ledger() NOT LIKE '%user:x%', 'INSERT ON CONFLICT DO UPDATE');
MERGE INTO doc USING (VALUES (7, 'm'), (8, 'n')) v(id, owner) ON doc.id = v.id WHEN MATCHED THEN UPDATE SET owner = v.owner WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.owner);
SELECT t.ok(t.ledger() LIKE '%doc:7#owner@user:m%doc:8#owner@user:n%', 'MERGE');
COPY doc (id, owner) FROM stdin;
9	copied
\.
SELECT t.ok(t.ledger() LIKE '%doc:9#owner@user:copied%', 'COPY');
WITH gone AS (DELETE FROM doc WHERE id = 9 RETURNING *) INSERT INTO doc SELECT 10, owner FROM gone;
SELECT t.ok(t.ledger() LIKE '%doc:10#owner@user:copied%' AND t.ledger() NOT LIKE '%doc:9#%', 'a statement that deletes and inserts');
BEGIN;
SET LOCAL relata.actor = 'user:admin';
SET LOCAL relata.headers = '{"traceparent": "00-1"}';
INSERT INTO doc VALUES (11, 'k');
COMMIT;
SELECT t.eq(actor || ' ' || headers, 'user:admin {"traceparent": "00-1"}', 'a session says on whose behalf') FROM relata.outbox WHERE object = 'doc:11';
TRUNCATE doc;
SELECT t.eq(t.ledger(), '', 'TRUNCATE');
SELECT t.eq(count(*)::text, '0', 'leaves nothing in the stash') FROM relata.truncating;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT t.raises('TRUNCATE public.doc', 'RL004', NULL, 'TRUNCATE cannot see later rows in repeatable read');
SELECT t.raises('SELECT relata.untrack(''public.doc'', true)', 'RL004', NULL, 'nor can untrack that removes');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT t.raises('TRUNCATE public.doc', 'RL004', NULL, 'nor in serializable');
ROLLBACK;

-- ---- two rows, one tuple (D25) ----
CREATE TABLE public.share (id serial PRIMARY KEY, doc text, who text, role text);
CREATE INDEX ON public.share (doc);
SELECT relata.track('public.share', '[{"object": "doc:{doc}", "relation": "{role}", "subject": "user:{who}"}]') \g /dev/null
CREATE TABLE public.role_grant (doc text PRIMARY KEY, who text);
SELECT relata.track('public.role_grant', '[{"object": "doc:{doc}", "relation": "owner", "subject": "user:{who}"}]') \g /dev/null
INSERT INTO share (doc, who, role) VALUES ('1', 'anne', 'owner'), ('1', 'anne', 'owner');
INSERT INTO role_grant VALUES ('1', 'anne');
DELETE FROM share WHERE id = 1;
SELECT t.eq(t.ledger(), 'doc:1#owner@user:anne', 'D25: one of three reasons goes');
DELETE FROM role_grant;
SELECT t.eq(t.ledger(), 'doc:1#owner@user:anne', 'D25: the second, of another table');
UPDATE share SET role = 'viewer' WHERE id = 2;
SELECT t.eq(t.ledger(), 'doc:1#viewer@user:anne', 'D25: the last one, by an update; R20: the old relation goes');
INSERT INTO share (doc, who, role) SELECT '2', 'bob', 'owner' FROM generate_series(1, 3);
DELETE FROM relata.outbox;
DELETE FROM share WHERE doc = '2';
SELECT t.eq(t.outbox(), 'delete doc:2#owner@user:bob', 'all rows of a tuple in one statement: one deletion');
INSERT INTO role_grant VALUES ('3', 'c');
INSERT INTO share (doc, who, role) VALUES ('3', 'c', 'owner');
TRUNCATE role_grant;
SELECT t.ok(t.ledger() LIKE '%doc:3#owner@user:c%', 'TRUNCATE of one of two reasons');
INSERT INTO role_grant VALUES ('3', 'c');
TRUNCATE role_grant, share;
SELECT t.eq(t.ledger(), '', 'TRUNCATE of both at once');
-- The same id, spelt by columns of different types.
CREATE TABLE public.num (doc int PRIMARY KEY, who varchar(10));
SELECT relata.track('public.num', '[{"object": "doc:{doc}", "relation": "owner", "subject": "user:{who}"}]') \g /dev/null
INSERT INTO role_grant VALUES ('7', 'x'), ('007', 'x'), ('seven', 'x'), ('99999999999999999999', 'x');
INSERT INTO num VALUES (7, 'x');
DELETE FROM role_grant;
SELECT t.eq(t.ledger(), 'doc:7#owner@user:x', 'the same tuple from a number: no other spelling counts');
DELETE FROM num;
SELECT t.eq(t.ledger(), '', 'and goes with it');

-- ---- foreign keys: cascades, set null (R26) ----
CREATE TABLE public.project (id text PRIMARY KEY);
CREATE TABLE public.task (id int PRIMARY KEY, project text REFERENCES public.project ON DELETE CASCADE ON UPDATE CASCADE, owner text);
CREATE TABLE public.note (id int PRIMARY KEY, task int REFERENCES public.task ON DELETE CASCADE, project text REFERENCES public.project ON DELETE SET NULL ON UPDATE CASCADE);
SELECT relata.track('public.task', '[{"object": "task:{id}", "relation": "parent", "subject": "project:{project}"}, {"object": "task:{id}", "relation": "owner", "subject": "user:{owner}"}]') \g /dev/null
SELECT relata.track('public.note', '[{"object": "note:{id}", "relation": "parent", "subject": "task:{task}"}, {"object": "note:{id}", "relation": "project", "subject": "project:{project}"}]') \g /dev/null
INSERT INTO project VALUES ('p'), ('q');
INSERT INTO task SELECT i, 'p', 'u' || i FROM generate_series(1, 3) i;
INSERT INTO note VALUES (1, 1, 'p'), (2, 2, 'q');
UPDATE project SET id = 'r' WHERE id = 'p';
SELECT t.eq(count(*)::text, '4', 'ON UPDATE CASCADE') FROM relata.tuple WHERE present AND subject = 'project:r';
DELETE FROM project WHERE id = 'q';
SELECT t.ok(t.ledger() NOT LIKE '%project:q%', 'ON DELETE SET NULL');
INSERT INTO note VALUES (3, 3, NULL);
UPDATE note SET project = NULL;
DELETE FROM relata.outbox;
DELETE FROM project;
SELECT t.eq(t.ledger(), '', 'R26: ON DELETE CASCADE over two levels');
SELECT t.eq(count(*)::text, '9', 'R26: each in the outbox') FROM relata.outbox WHERE op = 'delete';

-- ---- conditions ----
CREATE TABLE public.lease (id int PRIMARY KEY, who text, until timestamptz, lim int, tag text);
SELECT relata.track('public.lease', '[{"object": "host:{id}", "relation": "user", "subject": "user:{who}", "condition": {"name": "until", "context": {"t": "{until}", "n": ["{lim}", 1, "x-{tag}"], "k": true}}}]') \g /dev/null
SET TimeZone = 'Australia/Sydney';
INSERT INTO lease VALUES (1, 'anne', '2030-01-01 12:00:00.25+00', 5, 'a');
SELECT t.eq(condition_name || condition_context, 'until{"k": true, "n": [5, 1, "x-a"], "t": "2030-01-01T12:00:00.250000Z"}', 'a condition''s context comes from the row, times in UTC') FROM relata.tuple WHERE object = 'host:1';
RESET TimeZone;
UPDATE lease SET until = '2031-01-01Z';
SELECT t.eq(condition_context ->> 't', '2031-01-01T00:00:00.000000Z', 'and follows it') FROM relata.tuple WHERE object = 'host:1';
UPDATE lease SET until = NULL;
SELECT t.ok(NOT present, 'a NULL in it stands for no tuple') FROM relata.tuple WHERE object = 'host:1';

-- ---- names, types, partitions ----
CREATE SCHEMA "Odd ""Schema";
CREATE TYPE public.role AS ENUM ('viewer', 'editor');
CREATE TABLE "Odd ""Schema"."My Table%1$s" ("Id %" uuid PRIMARY KEY, "select" varchar(9), c char(5), r public.role, full_name text GENERATED ALWAYS AS ("select" || '/' || "select") STORED);
SELECT relata.track('"Odd ""Schema"."My Table%1$s"', '[{"object": "x:{Id %}", "relation": "{r}", "subject": "user:{select}|{c}", "when": "\"My Table%1$s\".\"select\" <> ''%s''"}, {"object": "x:{Id %}", "relation": "full", "subject": "user:{full_name}"}]') \g /dev/null
INSERT INTO "Odd ""Schema"."My Table%1$s" VALUES ('00000000-0000-0000-0000-00000000000A', 'a|b', 'c', 'editor'), ('00000000-0000-0000-0000-00000000000B', '%s', 'c', 'editor');
SELECT t.eq(string_agg(relation || '@' || subject, ' ' ORDER BY object, relation), 'editor@user:a%7Cb|c full@user:a|b/a|b full@user:%25s/%25s', 'odd names, enum, char, generated column; two columns of one id are kept apart') FROM relata.tuple WHERE present AND object LIKE 'x:%';
ALTER TABLE "Odd ""Schema"."My Table%1$s" ADD COLUMN more text;
UPDATE "Odd ""Schema"."My Table%1$s" SET more = 'x', "select" = 'z' WHERE c = 'c';
SELECT t.eq(count(*)::text, '4', 'a column added later') FROM relata.tuple WHERE present AND object LIKE 'x:%';
DELETE FROM "Odd ""Schema"."My Table%1$s";
SELECT t.eq(count(*)::text, '0', 'all gone') FROM relata.tuple WHERE present AND object LIKE 'x:%';

CREATE TABLE public.ev (id int, region text, who text) PARTITION BY LIST (region);
CREATE TABLE public.ev_eu PARTITION OF public.ev FOR VALUES IN ('eu');
CREATE TABLE public.ev_us (who text, region text, dropped int, id int);
ALTER TABLE public.ev_us DROP COLUMN dropped;
ALTER TABLE public.ev ATTACH PARTITION public.ev_us FOR VALUES IN ('us');
SELECT relata.track('public.ev', '[{"object": "ev:{id}", "relation": "{region}", "subject": "user:{who}"}]') \g /dev/null
CREATE TABLE public.ev_asia PARTITION OF public.ev FOR VALUES IN ('asia');
INSERT INTO ev VALUES (1, 'eu', 'a'), (2, 'us', 'b'), (3, 'asia', 'c');
INSERT INTO ev_us (id, region, who) VALUES (4, 'us', 'd');
SELECT t.eq(string_agg(object || '#' || relation, ' ' ORDER BY object), 'ev:1#eu ev:2#us ev:3#asia ev:4#us', 'partitions, by the parent and alone, and one that came later') FROM relata.tuple WHERE present AND object LIKE 'ev:%';
UPDATE ev SET region = 'us' WHERE id = 1;
SELECT t.eq(string_agg(object || '#' || relation, ' ' ORDER BY object), 'ev:1#us ev:2#us ev:3#asia ev:4#us', 'a row that moves to another partition') FROM relata.tuple WHERE present AND object LIKE 'ev:%';
INSERT INTO ev VALUES (3, 'asia', 'c');
DELETE FROM ev_asia WHERE ctid = (SELECT min(ctid) FROM ev_asia);
TRUNCATE ev_us;
SELECT t.eq(string_agg(object || '#' || relation, ' ' ORDER BY object), 'ev:3#asia', 'TRUNCATE of one partition') FROM relata.tuple WHERE present AND object LIKE 'ev:%';
INSERT INTO ev VALUES (5, 'us', 'e');
TRUNCATE ev_us, ev_eu;
DELETE FROM ev;
SELECT t.eq(count(*)::text, '0', 'all gone') FROM relata.tuple WHERE present AND object LIKE 'ev:%';
CREATE TABLE public.base (id int, who text);
CREATE TABLE public.sub () INHERITS (public.base);
SELECT relata.track('public.sub', '[{"object": "sub:{id}", "relation": "r", "subject": "user:{who}"}]') \g /dev/null
INSERT INTO sub VALUES (1, 'a');
UPDATE base SET who = 'b';
SELECT t.ok(t.ledger() LIKE '%sub:1#r@user:b%' AND t.ledger() NOT LIKE '%sub:1#r@user:a%', 'a child that is changed through its parent');

-- ---- renames do not break it ----
ALTER TABLE public.share RENAME TO shares;
INSERT INTO shares (doc, who, role) VALUES ('r', 'a', 'owner'), ('r', 'a', 'owner');
DELETE FROM shares WHERE ctid = (SELECT min(ctid) FROM shares);
SELECT t.ok(t.ledger() LIKE '%doc:r#owner@user:a%', 'a table renamed: one of two goes');
DELETE FROM shares;
SELECT t.ok(t.ledger() NOT LIKE '%doc:r#owner@user:a%', 'a table renamed: the last goes');

-- ---- stores ----
CREATE TABLE public.other (id int PRIMARY KEY, who text);
SELECT relata.track('public.other', '[{"object": "doc:{id}", "relation": "owner", "subject": "user:{who}"}]', 'second') \g /dev/null
INSERT INTO other VALUES (7, 'x');
INSERT INTO num VALUES (7, 'x');
DELETE FROM num;
SELECT t.eq(string_agg(store, ','), 'second', 'another store''s row is no reason') FROM relata.tuple WHERE present AND object = 'doc:7';

-- ---- declarations that are refused ----
CREATE TABLE public.m (id int PRIMARY KEY, a text, b text, at timestamptz, j jsonb, f float8, d date);
CREATE FUNCTION t.try(entry text) RETURNS text LANGUAGE sql AS $$ SELECT format('SELECT relata.track(''public.m'', %L)', '[' || entry || ']') $$;
SELECT t.raises(t.try(e), 'RL003', NULL, 'refused: ' || e)
FROM unnest(ARRAY['', '1', '{}', '{"object": "doc:{id}", "relation": "r"}', '{"object": "doc:{nope}", "relation": "r", "subject": "user:{a}"}',
    '{"object": "doc:{id", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:id}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{}", "relation": "r", "subject": "user:{a}"}',
    '{"object": "doc:{at}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{j}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{f}", "relation": "r", "subject": "user:{a}"}',
    '{"object": "doc:{d}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{a}{b}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{a}0{b}", "relation": "r", "subject": "user:{a}"}',
    '{"object": "{a}", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:*", "relation": "r", "subject": "user:{a}"}', '{"object": "doc:{id}", "relation": "a b", "subject": "user:{a}"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "team:{a}*#m"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "nope"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "a"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "at > now()"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "random() > 0.5"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "exists (select 1)"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "count(*) > 1"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "true) or (true"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "true); drop table public.m; --"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": 1}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "if": "true"}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "condition": "c"}',
    '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "condition": {"name": "cc", "ctx": {}}}', '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "condition": {"name": "cc", "context": {"x": "{nope}"}}}']) e
WHERE e <> '{"object": "doc:{id}", "relation": "r", "subject": "user:{a}", "when": "true) or (true"}';
SELECT t.ok(to_regclass('public.m') IS NOT NULL AND NOT EXISTS (SELECT FROM relata.tracked WHERE tab = 'public.m'::regclass) AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'public.m'::regclass), 'refusals leave nothing behind');
CREATE VIEW public.v AS SELECT 1 AS id;
CREATE UNLOGGED TABLE public.u (id int);
CREATE TEMP TABLE tmp (id int);
CREATE TABLE public.forced (id int);
ALTER TABLE public.forced FORCE ROW LEVEL SECURITY;
SELECT t.raises(format('SELECT relata.track(%L, %L)', x, '[{"object": "doc:{id}", "relation": "r", "subject": "user:{id}"}]'), 'RL003', NULL, 'refused: ' || x)
FROM unnest(ARRAY['public.v', 'public.u', 'tmp', 'public.forced']) x;
SELECT t.raises('SELECT relata.track(''public.num'', ''[{"object": "doc:{doc}", "relation": "other", "subject": "user:{who}"}]'')', 'RL003', NULL, 'another mapping needs untrack first');
SELECT t.eq(relata.track('public.num', '[{"object": "doc:{doc}", "relation": "owner", "subject": "user:{who}"}]')::text, (SELECT id::text FROM relata.tracked WHERE tab = 'public.num'::regclass), 'the same mapping again is nothing new');
SELECT t.raises('DROP TABLE public.num', '2BP01', NULL, 'a tracked table is not dropped by accident');

-- ---- untrack ----
INSERT INTO num VALUES (1, 'a'), (2, 'b');
INSERT INTO role_grant VALUES ('2', 'b');
SELECT relata.untrack('public.num') \g /dev/null
INSERT INTO num VALUES (3, 'c');
SELECT t.ok(t.ledger() LIKE '%doc:1#owner@user:a%doc:2#owner@user:b%' AND t.ledger() NOT LIKE '%user:c%', 'untrack leaves tuples and drops triggers');
SELECT relata.track('public.num', '[{"object": "doc:{doc}", "relation": "owner", "subject": "user:{who}"}]') \g /dev/null
SELECT relata.untrack('public.num', true) \g /dev/null
SELECT t.ok(t.ledger() NOT LIKE '%doc:1#owner%' AND t.ledger() LIKE '%doc:2#owner@user:b%', 'untrack with removal keeps what others stand for');
SELECT t.ok(NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'public.num'::regclass) AND NOT EXISTS (SELECT FROM relata.tracked WHERE tab = 'public.num'::regclass), 'nothing is left of it');
DROP TABLE num;

-- ---- what is expected, and backfill ----
CREATE TABLE public.big (id int PRIMARY KEY, who text);
INSERT INTO big SELECT i, 'u' || i % 7 FROM generate_series(1, 5000) i;
SELECT relata.track('public.big', '[{"object": "big:{id}", "relation": "r", "subject": "user:{who}"}, {"object": "big:all", "relation": "r", "subject": "user:{who}"}]') \g /dev/null
SELECT t.eq(count(*)::text, '0', 'rows that were there have no tuples yet') FROM relata.tuple WHERE object LIKE 'big:%';
SELECT t.eq(count(*)::text, '5007', 'what is expected of them') FROM relata.expected('public.big');
SELECT relata.write_tuple('big:17', 'r', 'user:u3') \g /dev/null
DELETE FROM relata.outbox;
CALL relata.backfill('public.big', 700);
SELECT t.eq(count(*)::text, '0', 'backfill: exactly the expected') FROM ((SELECT object, relation, subject FROM relata.expected('public.big') EXCEPT SELECT object, relation, subject FROM relata.tuple WHERE present)
    UNION ALL (SELECT object, relation, subject FROM relata.tuple WHERE present AND object LIKE 'big:%' EXCEPT SELECT object, relation, subject FROM relata.expected('public.big'))) x;
SELECT t.eq(count(*)::text, '5006', 'backfill: only what was missing') FROM relata.outbox;
SELECT t.ok(finished_at IS NOT NULL AND emitted = 5006, 'backfill: its record') FROM relata.backfill WHERE part = 'public.big'::regclass;
CREATE TABLE public.pb (id int, k text) PARTITION BY RANGE (id);
CREATE TABLE public.pb1 PARTITION OF public.pb FOR VALUES FROM (0) TO (100);
CREATE TABLE public.pb2 PARTITION OF public.pb FOR VALUES FROM (100) TO (200);
INSERT INTO pb SELECT i, 'x' FROM generate_series(50, 149) i;
SELECT relata.track('public.pb', '[{"object": "pb:{id}", "relation": "r", "subject": "user:{k}"}]') \g /dev/null
CALL relata.backfill('public.pb');
SELECT t.eq(count(*)::text, '100', 'backfill of partitions') FROM relata.tuple WHERE present AND object LIKE 'pb:%';
SELECT t.raises('CALL relata.backfill(''public.v'')', '2D000', NULL, 'backfill commits, so it is called alone');
SELECT t.raises('SELECT * FROM relata.expected(''public.v'')', 'RL003', NULL, 'expected of a table that is not tracked');
