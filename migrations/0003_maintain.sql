-- Upkeep, called every few seconds by whoever reads the outbox: repeats deletions for late grants, finishes erasures,
-- drops tombstones, old dead letters and old history. Bounded by max_rows for each kind of work; it waits for nobody's row locks
-- except in a repetition, which ends the call when it found something.

-- At most `cap` pending rows are counted: cheap for a metric.
CREATE FUNCTION relata.pending(store text, cap int DEFAULT 100000) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) FROM (SELECT FROM relata.outbox o WHERE o.store = pending.store LIMIT pending.cap) x;
END;

-- True if nothing of the key is pending, parked or in flight.
CREATE FUNCTION relata.at_rest(store text, object text, relation text, subject text) RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM relata.outbox o WHERE o.key = relata.key_hash(at_rest.object, at_rest.relation, at_rest.subject)
                       AND o.store = at_rest.store)
       AND NOT EXISTS (SELECT FROM relata.dead_letter d WHERE d.store = at_rest.store AND d.object = at_rest.object
                       AND d.relation = at_rest.relation AND d.subject = at_rest.subject AND d.closed_at IS NULL)
       AND NOT EXISTS (SELECT FROM relata.inflight i, unnest(i.objects, i.relations, i.subjects) AS k(o, r, s)
                       WHERE i.store = at_rest.store AND k.o = at_rest.object AND k.r = at_rest.relation
                         AND k.s = at_rest.subject);
END $$;

-- Repeats delete_object and erase_subject for grants that were not committed when they ran. The first look notes which
-- transactions run; when all of those have ended, every grant that is older than the request can be seen.
CREATE FUNCTION relata.repeat_requests(store text, OUT repeated bigint, OUT more boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    q relata.request;
    n bigint;
BEGIN
    repeated := 0;
    more := false;
    FOR q IN SELECT * FROM relata.request r WHERE r.store = repeat_requests.store AND r.repeated_at IS NULL
                 AND r.done_at IS NULL AND (r.horizon IS NULL OR r.horizon <= pg_snapshot_xmin(pg_current_snapshot()))
             ORDER BY r.id LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        IF q.horizon IS NULL THEN
            -- Not the snapshot's xmax, which is only one more than the last xid that has ended.
            UPDATE relata.request r SET horizon = pg_current_xact_id() WHERE r.id = q.id;
        ELSE
            n := relata.purge(q.target, q.store, q.actor, q.before);
            UPDATE relata.request r
            SET repeated_at = clock_timestamp(), tuples = tuples + n,
                done_at = CASE WHEN q.kind = 'delete_object' THEN clock_timestamp() END
            WHERE r.id = q.id;
            repeated := repeated + 1;
            IF n > 0 THEN
                more := true; -- it holds ledger rows now: commit before taking others
                RETURN;
            END IF;
        END IF;
    END LOOP;
END $$;

-- What an erasure leaves behind goes when the store has it: tombstones, closed dead letters, probes, actor names. A
-- tombstone that another version has taken the place of when it is locked stays: what pends on that is not visible here.
CREATE FUNCTION relata.finish_erasures(store text, max_rows int) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    q relata.request;
    names text[];
    left_over boolean;
    finished bigint := 0;
BEGIN
    FOR q IN SELECT * FROM relata.request r WHERE r.store = finish_erasures.store AND r.kind = 'erase_subject'
                 AND r.repeated_at IS NOT NULL AND r.done_at IS NULL
             ORDER BY r.id LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM relata.tuple t
        USING (SELECT t.object, t.relation, t.subject FROM relata.tuple t
               JOIN relata.tuples_about(q.store, q.target) k ON k.object = t.object AND k.relation = t.relation AND k.subject = t.subject
               WHERE t.store = q.store AND NOT t.present AND relata.at_rest(t.store, t.object, t.relation, t.subject)
                 AND t.version = (SELECT s.version FROM relata.tuple s WHERE s.object = t.object AND s.relation = t.relation
                                  AND s.subject = t.subject AND s.store = t.store)
               LIMIT max_rows FOR UPDATE OF t SKIP LOCKED) k
        WHERE t.store = q.store AND t.object = k.object AND t.relation = k.relation AND t.subject = k.subject
          AND relata.at_rest(t.store, t.object, t.relation, t.subject);
        DELETE FROM relata.dead_letter d
        WHERE d.store = q.store AND d.closed_at IS NOT NULL
          AND (d.object = q.target OR d.subject = q.target OR (d.subject >= q.target || '#' AND d.subject < q.target || '$'));
        DELETE FROM relata.probe p
        WHERE p.store = q.store
          AND (p.object = q.target OR p.subject = q.target OR (p.subject >= q.target || '#' AND p.subject < q.target || '$'));
        -- An actor may be written as the subject or as its bare id.
        names := ARRAY[q.target, substr(q.target, strpos(q.target, ':') + 1)];
        UPDATE relata.dead_letter d SET actor = 'erased:' || q.id WHERE d.actor = ANY (names);
        UPDATE relata.request r SET actor = 'erased:' || q.id WHERE r.actor = ANY (names);
        PERFORM relata.erase_history(q.store, q.target, names, q.id, q.before);
        left_over := EXISTS (SELECT FROM relata.tuples_about(q.store, q.target) a WHERE NOT a.present)
            OR EXISTS (SELECT FROM relata.dead_letter d
                       WHERE d.store = q.store AND d.closed_at IS NULL
                         AND (d.object = q.target OR d.subject = q.target
                              OR (d.subject >= q.target || '#' AND d.subject < q.target || '$')));
        IF NOT left_over THEN
            -- Rows that wait for other reasons: the name goes now. One pass over the outbox, hence the last step.
            UPDATE relata.outbox o SET actor = 'erased:' || q.id
            WHERE o.ctid = ANY (ARRAY(SELECT ctid FROM relata.outbox WHERE actor = ANY (names)
                                      LIMIT max_rows FOR UPDATE SKIP LOCKED));
            IF NOT EXISTS (SELECT FROM relata.outbox WHERE actor = ANY (names)) THEN
                UPDATE relata.request r SET done_at = clock_timestamp() WHERE r.id = q.id;
                finished := finished + 1;
            END IF;
        END IF;
    END LOOP;
    RETURN finished;
END $$;

-- Walks the ledger's heap, some blocks a call. A tombstone that changed after this statement's snapshot is checked again
-- under its lock: what pends on its new version is not visible here, so it stays.
CREATE FUNCTION relata.sweep_tombstones(max_rows int, OUT swept bigint, OUT more boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    p relata.sweep;
    keep constant interval := (SELECT value FROM relata.setting WHERE name = 'tombstone_retention');
    ids constant bigint := (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM relata.outbox_id);
    per_call constant bigint := greatest(max_rows / 25, 1); -- blocks: rarely more than max_rows tombstones
    blocks bigint;
    left_behind bigint;
BEGIN
    swept := 0;
    more := false;
    SELECT * INTO p FROM relata.sweep WHERE not_before <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR p.block = 0 AND p.left_behind = 0 AND p.ids = ids THEN
        RETURN;
    END IF;
    IF p.block = 0 THEN
        p.ids := ids;
        p.left_behind := 0;
    END IF;
    blocks := pg_relation_size('relata.tuple') / current_setting('block_size')::int;
    WITH tombstone AS MATERIALIZED (
        SELECT t.ctid AS at, t.store, t.object, t.relation, t.subject, t.changed_at FROM relata.tuple t
        WHERE t.ctid >= format('(%s,0)', p.block)::tid AND t.ctid < format('(%s,0)', p.block + per_call)::tid AND NOT t.present
    ), busy AS MATERIALIZED (
        SELECT i.store, k.o, k.r, k.s FROM relata.inflight i, unnest(i.objects, i.relations, i.subjects) AS k(o, r, s)
        WHERE EXISTS (SELECT FROM tombstone)
    ), old AS MATERIALIZED (
        SELECT t.ctid AS at FROM relata.tuple t
        WHERE t.ctid = ANY (ARRAY(SELECT at FROM tombstone WHERE changed_at < clock_timestamp() - keep LIMIT max_rows))
          AND NOT t.present AND t.changed_at < clock_timestamp() - keep
          AND t.version = (SELECT s.version FROM relata.tuple s WHERE s.object = t.object AND s.relation = t.relation
                           AND s.subject = t.subject AND s.store = t.store)
          AND NOT EXISTS (SELECT FROM busy b WHERE b.store = t.store AND b.o = t.object AND b.r = t.relation AND b.s = t.subject)
          AND (SELECT true FROM relata.outbox o WHERE o.key = relata.key_hash(t.object, t.relation, t.subject)
               AND o.store = t.store LIMIT 1) IS NULL
          AND NOT relata.is_parked(t.store, t.object, t.relation, t.subject)
        FOR UPDATE OF t SKIP LOCKED
    ), gone AS (
        DELETE FROM relata.tuple WHERE ctid = ANY (ARRAY(SELECT at FROM old)) RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM tombstone) INTO swept, left_behind;
    p.left_behind := p.left_behind + left_behind - swept;
    p.block := p.block + per_call;
    more := p.block < blocks;
    IF NOT more THEN -- the end of a round
        p.block := 0;
        p.not_before := clock_timestamp() + least(greatest(keep / 10, interval '1 second'), interval '10 minutes');
    END IF;
    UPDATE relata.sweep w SET block = p.block, ids = p.ids, left_behind = p.left_behind, not_before = p.not_before;
END $$;

CREATE FUNCTION relata.maintain(store text DEFAULT 'default', max_rows int DEFAULT 1000, OUT repeated bigint,
                                OUT erased bigint, OUT tombstones bigint, OUT dead_letters bigint, OUT writers bigint,
                                OUT history bigint, OUT more boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n constant int := least(greatest(coalesce(max_rows, 1000), 1), 10000);
    more_history boolean;
BEGIN
    erased := 0;
    history := 0;
    tombstones := 0;
    dead_letters := 0;
    writers := 0;
    SELECT r.repeated, r.more INTO repeated, more FROM relata.repeat_requests(maintain.store) r;
    IF more THEN
        RETURN;
    END IF;
    erased := relata.finish_erasures(maintain.store, n);
    SELECT s.swept, s.more INTO tombstones, more FROM relata.sweep_tombstones(n) s;
    SELECT s.swept, s.more INTO history, more_history FROM relata.sweep_history(n) s;
    more := more OR more_history;
    DELETE FROM relata.dead_letter d
    WHERE d.id = ANY (ARRAY(
        SELECT x.id FROM relata.dead_letter x
        WHERE x.closed_at < clock_timestamp() - (SELECT value FROM relata.setting WHERE name = 'dead_letter_retention')
        ORDER BY x.closed_at LIMIT n FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dead_letters = ROW_COUNT;
    DELETE FROM relata.writer w
    WHERE w.id = ANY (ARRAY(
        SELECT x.id FROM relata.writer x
        WHERE x.ended_at < clock_timestamp() - (SELECT value FROM relata.setting WHERE name = 'writer_retention')
          AND NOT EXISTS (SELECT FROM relata.inflight i WHERE i.writer = x.id)
        LIMIT n FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS writers = ROW_COUNT;
END $$;

REVOKE EXECUTE ON FUNCTION relata.pending, relata.at_rest, relata.repeat_requests, relata.finish_erasures,
    relata.sweep_tombstones, relata.maintain FROM PUBLIC;
GRANT EXECUTE ON FUNCTION relata.maintain TO relata_relay, relata_writer;
GRANT EXECUTE ON FUNCTION relata.pending, relata.at_rest TO relata_relay, relata_writer, relata_lister, relata_auditor, relata_repair;
