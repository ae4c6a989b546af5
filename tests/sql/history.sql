-- History: what is a change, when and by whom; effect, refusal, retention, erasure.
\ir inc/assert.psql

CREATE FUNCTION t.triggers() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(tgrelid::regclass::text, ' ' ORDER BY tgrelid::regclass::text), '') FROM pg_trigger WHERE tgname = 'zz_history'
$$;
-- The states of a tuple: + or -, condition, actor, and A in effect, P parked.
CREATE FUNCTION t.states(o text, s text DEFAULT 'user:1') RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(CASE WHEN present THEN '+' ELSE '-' END || CASE WHEN baseline THEN 'b' ELSE '' END || coalesce(condition_name, '')
                    || coalesce('/' || actor, '') || CASE WHEN applied_at IS NOT NULL THEN 'A' ELSE '' END
                    || CASE WHEN parked_at IS NOT NULL THEN 'P' ELSE '' END, ' ' ORDER BY period, version), '')
    FROM relata.history WHERE object = o AND subject = s
$$;
CREATE FUNCTION t.ack(o text) RETURNS void LANGUAGE sql AS $$ DELETE FROM relata.outbox WHERE object = o $$;

SELECT t.eq(t.triggers(), '', 'off by default: no trigger');
SELECT relata.write_tuple('doc:rest', 'v', 'user:1'), relata.write_tuple('doc:pending', 'v', 'user:1', actor => 'x'),
       relata.write_tuple('doc:gone', 'v', 'user:1') \g /dev/null
SELECT t.ack('doc:rest'), t.ack('doc:gone') \g /dev/null
SELECT relata.delete_tuple('doc:gone', 'v', 'user:1') \g /dev/null
SELECT t.eq(count(*)::text, '0', 'nothing is recorded while it is off') FROM relata.history;

CALL relata.history_on();
SELECT t.eq(t.triggers(), 'relata.dead_letter relata.outbox relata.tuple', 'on: three triggers');
SELECT t.eq(t.states('doc:rest') || ', ' || t.states('doc:pending') || ', ' || t.states('doc:gone'), '+bA, +b, -b',
            'the baseline: present, and absent but not yet in the store');
CALL relata.history_on();
SELECT t.ok(count(*) = 1 AND bool_and(since > started_at AND ended_at IS NULL), 'on again does nothing') FROM relata.history_period;
SELECT t.raises('CALL relata.history_on()', '2D000', NULL, 'not inside of a transaction block');

-- ---- what is a change ----
SELECT relata.write_tuple('doc:1', 'v', 'user:1', actor => 'a') \g /dev/null
INSERT INTO relata.outbox (op, object, relation, subject, actor) VALUES ('write', 'doc:1', 'v', 'user:1', 'b');
SELECT relata.touch_tuple('doc:1', 'v', 'user:1'), relata.delete_tuple('doc:never', 'v', 'user:1') \g /dev/null
INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete', 'doc:never', 'v', 'user:1'), ('touch', 'doc:never', 'v', 'user:1');
SELECT t.eq(t.states('doc:1') || '|' || t.states('doc:never'), '+/a|', 'a repeated grant, a touch, an absence that stays are none');
SELECT relata.write_tuple('doc:1', 'v', 'user:1', 'cond', '{"x": 1}', actor => 'c') \g /dev/null
SELECT relata.write_tuple('doc:1', 'v', 'user:1', 'cond', '{"x": 1}', actor => 'd') \g /dev/null
SELECT relata.write_tuple('doc:1', 'v', 'user:1', 'cond', '{"x": 2}', actor => 'e') \g /dev/null
INSERT INTO relata.outbox (op, object, relation, subject, actor) VALUES ('delete', 'doc:1', 'v', 'user:1', 'f');
SELECT t.eq(t.states('doc:1'), '+/a +cond/c +cond/e -/f', 'a condition, its context, the end are');
BEGIN;
SELECT relata.delete_tuple('doc:rest', 'v', 'user:1'), relata.write_tuple('doc:rest', 'v', 'user:1'),
       relata.write_tuple('doc:brief', 'v', 'user:1'), relata.delete_tuple('doc:brief', 'v', 'user:1') \g /dev/null
SAVEPOINT s;
SELECT relata.write_tuple('doc:back', 'v', 'user:1') \g /dev/null
ROLLBACK TO s;
COMMIT;
SELECT t.eq(t.states('doc:rest') || '|' || t.states('doc:brief') || '|' || t.states('doc:back'), '+bA||', 'what comes and goes within a transaction is none');

-- ---- when: just before the commit, once for all of a transaction ----
BEGIN;
SELECT relata.write_tuple('doc:t1', 'v', 'user:1') \g /dev/null
SELECT pg_sleep(0.02) \g /dev/null
SELECT relata.write_tuples('{doc:t2, doc:t3}', '{v, v}', '{user:1, user:1}') \g /dev/null
SELECT clock_timestamp() AS late \gset
SET LOCAL relata.history_at = '1000000000';
COMMIT;
SELECT t.ok(count(*) = 3 AND count(DISTINCT changed_at) = 1 AND min(changed_at) >= :'late' AND count(DISTINCT xid) = 1,
            'one time, that of the commit; a forged one is not believed') FROM relata.history WHERE object LIKE 'doc:t_';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT relata.write_tuple('doc:t4', 'v', 'user:1', headers => '{"traceparent": "00-1"}') \g /dev/null
COMMIT;
SELECT t.eq(headers ->> 'traceparent', '00-1', 'headers come along') FROM relata.history WHERE object = 'doc:t4';

-- ---- effect: what was acknowledged; what was replaced before never was; what was parked was not ----
SELECT t.ack('doc:1') \g /dev/null
SELECT t.eq(t.states('doc:1'), '+/a +cond/c +cond/e -/fA', 'the newest state is the one that was applied');
SELECT t.ack('doc:pending') \g /dev/null
SELECT t.eq(t.states('doc:pending'), '+b/xA', 'what pended when it was switched on takes effect later');
SELECT relata.write_tuple('doc:p', 'v', 'user:1') \g /dev/null
WITH gone AS (DELETE FROM relata.outbox WHERE object = 'doc:p' RETURNING *)
INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) SELECT id, store, op, object, relation, subject, 'x', 'y' FROM gone;
SELECT t.eq(t.states('doc:p'), '+P', 'parked is not in effect');
UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'dropped' WHERE object = 'doc:p';
SELECT t.eq(t.states('doc:p'), '+P', 'nor when it is given up');
SELECT relata.touch_tuple('doc:p', 'v', 'user:1') \g /dev/null
SELECT t.ack('doc:p') \g /dev/null
SELECT t.eq(t.states('doc:p'), '+AP', 'replayed and applied it is');
SELECT relata.write_tuple('doc:q', 'v', 'user:1') \g /dev/null
WITH gone AS (DELETE FROM relata.outbox WHERE object = 'doc:q' RETURNING *)
INSERT INTO relata.dead_letter (outbox_id, store, op, object, relation, subject, code, reason) SELECT id, store, op, object, relation, subject, 'x', 'y' FROM gone;
UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'applied' WHERE object = 'doc:q';
SELECT t.eq(t.states('doc:q'), '+AP', 'applied without an outbox row, by seeding a store');

-- ---- changes without outbox rows (adopt), and constraints that are not deferred ----
INSERT INTO relata.tuple (store, object, relation, subject, present, version) VALUES ('default', 'doc:ad', 'v', 'user:1', true, nextval('relata.outbox_id'));
SELECT t.eq(t.states('doc:ad'), '+A', 'adopted: it was in the store');
DELETE FROM relata.tuple WHERE object = 'doc:ad';
SELECT t.eq(t.states('doc:ad'), '+A -A', 'withdrawn');
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
INSERT INTO relata.outbox (op, object, relation, subject, actor) VALUES ('write', 'doc:i', 'v', 'user:1', 'z');
COMMIT;
SELECT t.eq(t.states('doc:i'), '+', 'recorded before its outbox row is there');
SELECT t.ack('doc:i') \g /dev/null
SELECT t.eq(t.states('doc:i'), '+/zA', 'the acknowledgement brings the actor');

-- ---- tombstones are swept, history stays ----
UPDATE relata.setting SET value = '0' WHERE name = 'tombstone_retention';
DELETE FROM relata.outbox;
SELECT pg_sleep(0.01), relata.maintain() \g /dev/null
SELECT t.ok(NOT EXISTS (SELECT FROM relata.tuple WHERE object = 'doc:1'), 'the tombstone is gone');
SELECT t.eq(t.states('doc:1'), '+/a +cond/c +cond/e -/fA', 'its history is not');
SELECT relata.write_tuple('doc:1', 'v', 'user:1', actor => 'g') \g /dev/null
SELECT t.eq(t.states('doc:1'), '+/a +cond/c +cond/e -/fA +/g', 'granted again');

-- ---- erasure ----
SELECT relata.write_tuple('doc:e', 'v', 'user:eve'), relata.write_tuple('user:eve', 'boss', 'user:1'), relata.write_tuple('doc:e', 'v', 'user:eve#team'),
       relata.write_tuple('doc:e2', 'v', 'user:1', actor => 'eve') \g /dev/null
SELECT relata.erase_subject('user:eve') \g /dev/null
SELECT relata.write_tuple('doc:new', 'v', 'user:eve') \g /dev/null
DELETE FROM relata.outbox;
SELECT pg_sleep(0.01), relata.maintain() \g /dev/null
SELECT relata.maintain() \g /dev/null
DELETE FROM relata.outbox;
SELECT relata.maintain() \g /dev/null
SELECT t.ok(done_at IS NOT NULL, 'the erasure is done') FROM relata.request;
SELECT t.eq(string_agg(format('%s%s#%s@%s', CASE WHEN present THEN '+' ELSE '-' END, object, relation, subject), ' ' ORDER BY object, subject, version),
            format('+doc:e#v@user:erased-%1$s -doc:e#v@user:erased-%1$s +doc:e#v@user:erased-%1$s#team -doc:e#v@user:erased-%1$s#team +doc:new#v@user:eve '
                   '+user:erased-%1$s#boss@user:1 -user:erased-%1$s#boss@user:1', (SELECT id FROM relata.request)), 'an erased person has a pseudonym; a new life its name')
FROM relata.history WHERE object ~ 'e(ve|rased)' OR subject ~ 'e(ve|rased)';
SELECT t.eq(actor, 'erased:' || (SELECT id FROM relata.request), 'as an actor too') FROM relata.history WHERE object = 'doc:e2';

-- ---- off, and retention ----
CALL relata.history_off();
SELECT t.eq(t.triggers(), '', 'off: no trigger is left');
SELECT relata.write_tuple('doc:off', 'v', 'user:1'), relata.delete_tuple('doc:e2', 'v', 'user:1') \g /dev/null
CALL relata.history_on();
SELECT t.eq(t.states('doc:off') || ', ' || t.states('doc:e2'), '+b, +/erased:' || (SELECT id FROM relata.request) || 'A -b',
            'a new period begins with a baseline of its own');
SELECT relata.write_tuple('doc:k', 'v', 'user:1') \g /dev/null
DELETE FROM relata.outbox;
SELECT relata.write_tuple('doc:k', 'v', 'user:1', 'cond') \g /dev/null
DELETE FROM relata.outbox;
SELECT relata.write_tuple('doc:k', 'v', 'user:1') \g /dev/null
UPDATE relata.setting SET value = '0' WHERE name = 'history_retention';
UPDATE relata.history_sweep SET not_before = '-infinity';
SELECT pg_sleep(0.01), relata.maintain() \g /dev/null
SELECT t.eq(t.states('doc:k'), '+condA +', 'what was replaced in the store is swept; what may still be in effect stays');
SELECT t.eq(count(*)::text, '0', 'and all of a period that ended') FROM relata.history WHERE period = 1;
SELECT t.ok(count(*) = 0, 'absences that took effect too') FROM relata.history WHERE NOT present AND applied_at IS NOT NULL;
SELECT t.ok(count(*) = 2 AND bool_and(swept_until > since), 'it is recorded what cannot be asked about any more') FROM relata.history_period;
