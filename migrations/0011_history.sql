-- History: who could do what, when. Off by default, and then without any trigger.
--
-- CALL relata.history_on() installs three triggers and records what is present by then (the baseline); from `since` on
-- every change of the ledger is a row. CALL relata.history_off() drops the triggers; the rows stay for their retention.
-- Both are the ledger's owner's to call, outside of a transaction block, and take one lock at a time, briefly.

INSERT INTO relata.setting VALUES
    ('history_retention', '400 days', 'how long a state of a tuple is remembered after another has taken its place');

-- Times at which history was on. What happened between two periods is not known.
CREATE TABLE relata.history_period (
    id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    since       timestamptz, -- the baseline is complete: any time from here on can be asked about
    ended_at    timestamptz,
    swept_until timestamptz  -- states that were replaced before may be gone
);
CREATE UNIQUE INDEX history_period_open ON relata.history_period ((true)) WHERE ended_at IS NULL;

-- One row a state of a tuple. The state at a time is the row with the greatest version of that period by then.
CREATE TABLE relata.history (
    store             text COLLATE "C" NOT NULL,
    object            text COLLATE "C" NOT NULL,
    relation          text COLLATE "C" NOT NULL,
    subject           text COLLATE "C" NOT NULL,
    period            int NOT NULL,
    version           bigint NOT NULL, -- of the ledger's row; rises with each change of a tuple
    present           boolean NOT NULL,
    condition_name    text COLLATE "C",
    condition_context jsonb,
    baseline          boolean NOT NULL DEFAULT false, -- found when history was switched on
    actor             text COLLATE "C",
    headers           jsonb,
    xid               xid8,
    changed_at        timestamptz NOT NULL, -- just before the commit, one for all of a transaction; baseline: the ledger's
    applied_at        timestamptz,          -- acknowledged by the writer: in effect in the store
    parked_at         timestamptz,          -- refused by the store: a dead letter
    PRIMARY KEY (object, relation, subject, store, period, version)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- For erasures, and for asking what a person ever held, or granted. None holds applied_at: acknowledging stays HOT.
CREATE INDEX history_subject ON relata.history (subject);
CREATE INDEX history_actor ON relata.history (actor) WHERE actor IS NOT NULL;

-- Where the sweep of the heap stands.
CREATE TABLE relata.history_sweep (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    block      bigint NOT NULL DEFAULT 0,
    horizon    timestamptz,
    not_before timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO relata.history_sweep DEFAULT VALUES;

-- ---------------------------------------------------------------------------------------------------------------------
-- Recording.

-- Runs when the transaction commits (a deferred trigger): the outbox row with actor and headers is there by then, and only
-- the transaction's last state of a tuple is its state. No outbox row: the ledger was corrected to what the store holds
-- (adopt). Plans must be look-ups by index, whatever the tables' sizes were when they were made.
--
-- One time for all rows of a transaction, so that no moment shows half of it: the first leaves it in a setting. Who forges
-- that is not believed beyond the statement that commits.
CREATE FUNCTION relata.history_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    this_period constant int := TG_ARGV[0]; -- a snapshot that is older than the period would not show it
    t relata.tuple;
    was relata.tuple;
    mark text := current_setting('relata.history_at', true);
    at timestamptz;
BEGIN
    IF mark <> '' THEN
        at := to_timestamp(mark::double precision);
    END IF;
    IF (at >= statement_timestamp() AND at <= clock_timestamp()) IS NOT TRUE THEN
        at := clock_timestamp();
        mark := set_config('relata.history_at', extract(epoch FROM at)::text, true);
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF NOT OLD.present THEN
            RETURN NULL; -- a swept tombstone
        END IF;
        t := OLD;
        was := OLD;
        t.present := false;
        t.condition_name := NULL;
        t.condition_context := NULL;
        t.version := nextval('relata.outbox_id');
    ELSE
        t := NEW;
        IF TG_OP = 'UPDATE' THEN
            was := OLD;
        END IF;
    END IF;
    INSERT INTO relata.history (store, object, relation, subject, period, version, present, condition_name, condition_context,
                                actor, headers, xid, changed_at, applied_at)
    SELECT t.store, t.object, t.relation, t.subject, this_period, t.version, t.present, t.condition_name, t.condition_context,
           o.actor, o.headers, pg_current_xact_id(), at, CASE WHEN o.id IS NULL AND pg_trigger_depth() = 1 THEN at END
    FROM (SELECT) AS one
    LEFT JOIN (SELECT true AS found, h.present, h.condition_name, h.condition_context FROM relata.history h
               WHERE h.object = t.object AND h.relation = t.relation AND h.subject = t.subject AND h.store = t.store
                 AND h.period = this_period ORDER BY h.version DESC LIMIT 1) b ON true
    LEFT JOIN relata.outbox o ON o.store = t.store AND o.xid = pg_current_xact_id() AND o.id = t.version -- fits either index
    WHERE CASE WHEN b.found
               THEN b.present <> t.present OR b.condition_name IS DISTINCT FROM t.condition_name
                    OR b.condition_context IS DISTINCT FROM t.condition_context
               WHEN TG_OP = 'UPDATE' AND (SELECT p.since FROM relata.history_period p WHERE p.id = this_period) IS NOT NULL
               THEN t.present -- the baseline would be there: it was absent before this transaction
               ELSE coalesce(was.present, false) <> t.present OR was.condition_name IS DISTINCT FROM t.condition_name
                    OR was.condition_context IS DISTINCT FROM t.condition_context END
      AND (SELECT l.version FROM relata.tuple l WHERE l.object = t.object AND l.relation = t.relation
           AND l.subject = t.subject AND l.store = t.store) IS NOT DISTINCT FROM (CASE WHEN TG_OP <> 'DELETE' THEN t.version END);
    RETURN NULL;
END $$;

-- Rows that leave the outbox: acknowledged, or parked. The state that the writer applied is the newest up to the greatest
-- id that went; older ones that had not been acknowledged were replaced before they took effect.
CREATE FUNCTION relata.history_settled() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at constant timestamptz := clock_timestamp(); -- one for all of a batch
BEGIN
    WITH newest AS MATERIALIZED (
        SELECT DISTINCT ON (g.object, g.relation, g.subject, g.store) g.store, g.object, g.relation, g.subject, g.id, g.actor,
               g.headers FROM gone g ORDER BY g.object, g.relation, g.subject, g.store, g.id DESC
    ), settled AS MATERIALIZED (
        SELECT g.*, n.period, n.version, (SELECT true FROM relata.dead_letter d
                   WHERE d.store = g.store AND d.object = g.object AND d.relation = g.relation AND d.subject = g.subject
                     AND d.closed_at IS NULL AND coalesce(d.outbox_id, g.id) >= g.id) AS parked
        FROM newest g CROSS JOIN LATERAL (
            SELECT h.period, h.version FROM relata.history h
            WHERE h.object = g.object AND h.relation = g.relation AND h.subject = g.subject AND h.store = g.store
              AND h.version <= g.id ORDER BY h.period DESC, h.version DESC LIMIT 1) n
        ORDER BY g.object, g.relation, g.subject, g.store
    )
    UPDATE relata.history h
    SET applied_at = CASE WHEN s.parked IS NULL THEN at END,
        parked_at = coalesce(h.parked_at, CASE WHEN s.parked THEN at END),
        actor = coalesce(h.actor, CASE WHEN s.id = h.version THEN s.actor END), -- recorded before its outbox row was there
        headers = coalesce(h.headers, CASE WHEN s.id = h.version THEN s.headers END)
    FROM settled s
    WHERE h.object = s.object AND h.relation = s.relation AND h.subject = s.subject AND h.store = s.store
      AND h.period = s.period AND h.version = s.version AND h.applied_at IS NULL;
    RETURN NULL;
END $$;

-- A dead letter that was applied without an outbox row: by relatactl seed.
CREATE FUNCTION relata.history_revived() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE relata.history h SET applied_at = clock_timestamp()
    FROM (SELECT n.period, n.version FROM relata.history n
          WHERE n.object = NEW.object AND n.relation = NEW.relation AND n.subject = NEW.subject AND n.store = NEW.store
            AND n.version <= NEW.outbox_id ORDER BY n.period DESC, n.version DESC LIMIT 1) n
    WHERE h.object = NEW.object AND h.relation = NEW.relation AND h.subject = NEW.subject AND h.store = NEW.store
      AND h.period = n.period AND h.version = n.version AND h.applied_at IS NULL;
    RETURN NULL;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- On and off. Each trigger is installed in a transaction that holds no other lock, so none can deadlock with a service; a
-- lock is waited for 250 ms at a time, so that services do not queue behind it.

-- Runs one DDL statement; false if its lock could not be had.
CREATE FUNCTION relata.history_try(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    EXECUTE statement;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

CREATE FUNCTION relata.history_has(tab regclass, name text) RETURNS boolean LANGUAGE sql STABLE
    RETURN EXISTS (SELECT FROM pg_catalog.pg_trigger g WHERE g.tgrelid = history_has.tab AND g.tgname = history_has.name);

-- Who keeps the lock away, for the error.
CREATE FUNCTION relata.history_refuse(tab regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % is in use: its lock could not be had', tab USING ERRCODE = '55P03',
        DETAIL = coalesce((SELECT format('Oldest transaction that uses it: process %s (%s), open since %s.', a.pid, a.usename, a.xact_start)
                           FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                           WHERE l.relation = tab AND l.granted AND a.pid <> pg_backend_pid()
                             AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                           ORDER BY a.xact_start LIMIT 1), 'It has just been released.'),
        HINT = 'End that transaction, or call again: what was done is kept.';
END $$;

-- The baseline: what is present, and what is absent but not yet in the store. One statement with one snapshot, taken when
-- the triggers were there: a tuple that has changed since has rows, and every later change gets one. Hash joins, by the
-- whole key: the planner believes that there is nothing yet to be joined.
CREATE FUNCTION relata.history_baseline(period int) RETURNS bigint
    LANGUAGE plpgsql SET enable_mergejoin = off SET enable_nestloop = off AS $$
DECLARE
    n bigint;
BEGIN
    WITH pending AS MATERIALIZED (SELECT DISTINCT o.store, o.key FROM relata.outbox o),
         parked AS MATERIALIZED (SELECT d.store, d.object, d.relation, d.subject, d.parked_at FROM relata.dead_letter d
                                 WHERE d.closed_at IS NULL)
    INSERT INTO relata.history (store, object, relation, subject, period, version, present, condition_name, condition_context,
                                baseline, changed_at, applied_at, parked_at)
    SELECT t.store, t.object, t.relation, t.subject, history_baseline.period, t.version, t.present, t.condition_name,
           t.condition_context, true, t.changed_at,
           CASE WHEN p.key IS NULL AND d.parked_at IS NULL THEN clock_timestamp() END, d.parked_at
    FROM relata.tuple t
    LEFT JOIN pending p ON p.store = t.store AND p.key = relata.key_hash(t.object, t.relation, t.subject)
    LEFT JOIN parked d ON d.object = t.object AND d.relation = t.relation AND d.subject = t.subject AND d.store = t.store
    WHERE (t.present OR p.key IS NOT NULL OR d.parked_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM relata.history h WHERE h.object = t.object AND h.relation = t.relation
                      AND h.subject = t.subject AND h.store = t.store AND h.period = history_baseline.period)
    ORDER BY t.object, t.relation, t.subject; -- so that the index is filled in its order
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- What was acknowledged while the baseline was being written: its trigger saw no row yet.
CREATE FUNCTION relata.history_settle(period int) RETURNS void LANGUAGE sql
BEGIN ATOMIC
    UPDATE relata.history h SET applied_at = clock_timestamp()
    WHERE h.period = history_settle.period AND h.baseline AND h.applied_at IS NULL
      AND NOT EXISTS (SELECT FROM relata.outbox o WHERE o.key = relata.key_hash(h.object, h.relation, h.subject)
                      AND o.store = h.store AND o.id <= h.version)
      AND NOT EXISTS (SELECT FROM relata.dead_letter d WHERE d.store = h.store AND d.object = h.object
                      AND d.relation = h.relation AND d.subject = h.subject AND d.closed_at IS NULL);
END;

-- Interrupted, it goes on where it stopped; on already, it does nothing.
CREATE PROCEDURE relata.history_on(patience interval DEFAULT '60 seconds')
    LANGUAGE plpgsql AS $$
DECLARE
    give_up timestamptz := clock_timestamp() + patience;
    period int;
    step record;
    n bigint;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = 'relata.tuple'::regclass), 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table relata.tuple' USING ERRCODE = '42501';
    END IF;
    IF NOT pg_try_advisory_lock(1380270087, 0) THEN
        RAISE EXCEPTION 'history is being switched on or off by another session' USING ERRCODE = '55P03';
    END IF;
    INSERT INTO relata.history_period DEFAULT VALUES ON CONFLICT DO NOTHING;
    SELECT p.id INTO period FROM relata.history_period p WHERE p.ended_at IS NULL;
    COMMIT;
    FOR step IN SELECT * FROM (VALUES
            ('relata.tuple'::regclass, 'zz_history', 'CREATE CONSTRAINT TRIGGER zz_history AFTER INSERT OR UPDATE OR DELETE ON '
             'relata.tuple DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION relata.history_change(' || period || ')'),
            ('relata.outbox', 'zz_history', 'CREATE TRIGGER zz_history AFTER DELETE ON relata.outbox REFERENCING OLD TABLE AS gone '
             'FOR EACH STATEMENT EXECUTE FUNCTION relata.history_settled()'),
            ('relata.dead_letter', 'zz_history', 'CREATE TRIGGER zz_history AFTER UPDATE ON relata.dead_letter FOR EACH ROW WHEN '
             '(OLD.closed_at IS NULL AND NEW.closed_how = ''applied'') EXECUTE FUNCTION relata.history_revived()')
            ) AS s(tab, name, ddl) LOOP
        WHILE NOT relata.history_has(step.tab, step.name) LOOP
            PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            IF relata.history_try(step.ddl) THEN
                COMMIT;
            ELSIF clock_timestamp() > give_up THEN
                PERFORM pg_advisory_unlock(1380270087, 0);
                PERFORM relata.history_refuse(step.tab);
            ELSE
                COMMIT;
                PERFORM pg_sleep(0.25);
            END IF;
        END LOOP;
    END LOOP;
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF EXISTS (SELECT FROM relata.history_period p WHERE p.id = period AND p.since IS NULL) THEN
        n := relata.history_baseline(period);
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        PERFORM relata.history_settle(period);
        UPDATE relata.history_period p SET since = clock_timestamp() WHERE p.id = period;
        RAISE NOTICE 'history is on; % tuples were there before', n;
    END IF;
    COMMIT;
    PERFORM pg_advisory_unlock(1380270087, 0);
END $$;

CREATE PROCEDURE relata.history_off(patience interval DEFAULT '60 seconds')
    LANGUAGE plpgsql AS $$
DECLARE
    give_up timestamptz := clock_timestamp() + patience;
    tab regclass;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = 'relata.tuple'::regclass), 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table relata.tuple' USING ERRCODE = '42501';
    END IF;
    IF NOT pg_try_advisory_lock(1380270087, 0) THEN
        RAISE EXCEPTION 'history is being switched on or off by another session' USING ERRCODE = '55P03';
    END IF;
    COMMIT;
    FOREACH tab IN ARRAY ARRAY['relata.tuple', 'relata.outbox', 'relata.dead_letter']::regclass[] LOOP
        WHILE relata.history_has(tab, 'zz_history') LOOP
            PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            IF relata.history_try(format('DROP TRIGGER zz_history ON %s', tab)) THEN
                IF tab = 'relata.tuple'::regclass THEN -- under its lock: nobody changes a tuple now
                    UPDATE relata.history_period p SET ended_at = clock_timestamp() WHERE p.ended_at IS NULL;
                END IF;
                COMMIT;
            ELSIF clock_timestamp() > give_up THEN
                PERFORM pg_advisory_unlock(1380270087, 0);
                PERFORM relata.history_refuse(tab);
            ELSE
                COMMIT;
                PERFORM pg_sleep(0.25);
            END IF;
        END LOOP;
    END LOOP;
    COMMIT;
    UPDATE relata.history_period p SET ended_at = clock_timestamp() WHERE p.ended_at IS NULL; -- it never began
    COMMIT;
    PERFORM pg_advisory_unlock(1380270087, 0);
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Retention and erasure, called by relata.maintain().

-- Walks the heap, some blocks a call. A state goes when another took its place in the store before the horizon; an absence,
-- when it took effect before it; all of a period that ended before it.
CREATE FUNCTION relata.sweep_history(max_rows int, OUT swept bigint, OUT more boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    w relata.history_sweep;
    keep constant interval := (SELECT value FROM relata.setting WHERE name = 'history_retention');
    blocks constant bigint := pg_relation_size('relata.history') / current_setting('block_size')::int;
    per_call constant bigint := greatest(max_rows / 25, 1);
BEGIN
    swept := 0;
    more := false;
    IF blocks = 0 THEN
        RETURN;
    END IF;
    SELECT * INTO w FROM relata.history_sweep WHERE not_before <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF w.block = 0 THEN
        w.horizon := clock_timestamp() - keep;
        UPDATE relata.history_period p SET swept_until = w.horizon
        WHERE p.started_at < w.horizon AND coalesce(p.swept_until, '-infinity') < w.horizon;
    END IF;
    WITH old AS MATERIALIZED (
        SELECT h.ctid AS at FROM relata.history h JOIN relata.history_period p ON p.id = h.period
        WHERE h.ctid >= format('(%s,0)', w.block)::tid AND h.ctid < format('(%s,0)', w.block + per_call)::tid
          AND (p.ended_at < w.horizon OR NOT h.present AND h.applied_at < w.horizon OR EXISTS (
               SELECT FROM relata.history n
               WHERE n.object = h.object AND n.relation = h.relation AND n.subject = h.subject AND n.store = h.store
                 AND n.period = h.period AND n.version > h.version AND n.applied_at < w.horizon))
        FOR UPDATE OF h SKIP LOCKED
    ), gone AS (
        DELETE FROM relata.history WHERE ctid = ANY (ARRAY(SELECT at FROM old)) RETURNING 1
    )
    SELECT count(*) INTO swept FROM gone;
    w.block := w.block + per_call;
    more := w.block < blocks;
    IF NOT more THEN
        w.block := 0;
        w.not_before := clock_timestamp() + least(greatest(keep / 100, interval '1 second'), interval '1 hour');
    END IF;
    UPDATE relata.history_sweep s SET block = w.block, horizon = w.horizon, not_before = w.not_before;
END $$;

-- Puts type:erased-<request> in the place of an erased person: states before the request, and the end of them. What was
-- granted afterwards is a new life.
CREATE FUNCTION relata.erase_history(store text, target text, names text[], request bigint, before bigint) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    pseudonym constant text := split_part(target, ':', 1) || ':erased-' || request;
BEGIN
    UPDATE relata.history h
    SET object = CASE WHEN h.object = target THEN pseudonym ELSE h.object END,
        subject = CASE WHEN h.subject = target THEN pseudonym
                       WHEN starts_with(h.subject, target || '#') THEN pseudonym || substr(h.subject, length(target) + 1)
                       ELSE h.subject END
    WHERE h.store = erase_history.store
      AND (h.object = target OR h.subject = target
           OR h.subject >= (target || '#') COLLATE "C" AND h.subject < (target || '$') COLLATE "C")
      AND (h.version < before OR NOT h.present AND NOT EXISTS (
           SELECT FROM relata.history n
           WHERE n.object = h.object AND n.relation = h.relation AND n.subject = h.subject AND n.store = h.store
             AND n.present AND n.version >= before AND n.version < h.version));
    UPDATE relata.history h SET actor = 'erased:' || request WHERE h.actor = ANY (names);
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
REVOKE EXECUTE ON FUNCTION relata.history_change, relata.history_settled, relata.history_revived,
    relata.history_try, relata.history_has, relata.history_refuse, relata.history_baseline, relata.history_settle,
    relata.sweep_history, relata.erase_history FROM PUBLIC;
REVOKE EXECUTE ON PROCEDURE relata.history_on, relata.history_off FROM PUBLIC;
GRANT SELECT ON relata.history, relata.history_period TO relata_auditor, relata_repair;
