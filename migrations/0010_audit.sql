-- Audits: each run of drift-checker, and what it found.

CREATE TABLE relata.audit_run (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store       text COLLATE "C" NOT NULL,
    store_id    text NOT NULL,
    model_id    text NOT NULL,
    scope       text NOT NULL DEFAULT '', -- '' = everything; else "type doc", "object doc:1", "subject user:anne", "plan"
    by_tuple    boolean NOT NULL,         -- every tuple was compared, digests were not relied upon
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'clean', 'drift', 'incomplete', 'refused')),
    why         text NOT NULL DEFAULT '', -- incomplete, refused
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    counts      jsonb NOT NULL DEFAULT '{}',
    sources     jsonb NOT NULL DEFAULT '{}', -- expected tuples by source, for the next run to see whether one shrank
    models_seen boolean NOT NULL DEFAULT false, -- every tuple was held against the model
    CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE INDEX audit_run_store ON relata.audit_run (store, id);

-- One open row a tuple and cause, from the first audit that found it to the first that did not.
CREATE TABLE relata.audit_finding (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store       text COLLATE "C" NOT NULL,
    object      text COLLATE "C" NOT NULL,
    relation    text COLLATE "C" NOT NULL,
    subject     text COLLATE "C" NOT NULL,
    cause       text NOT NULL CHECK (cause IN ('never_emitted', 'lost', 'parked', 'out_of_band', 'orphan', 'condition_mismatch',
                                               'invalid_in_model')),
    excess      boolean NOT NULL, -- somebody may do what nobody granted
    detail      jsonb NOT NULL,   -- what each side holds
    first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen   timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_run   bigint NOT NULL,
    last_run    bigint NOT NULL,
    repaired_at timestamptz, -- the change that repairs it was enqueued, in that transaction
    token       text,        -- wait for it with relata.token's
    closed_at   timestamptz
);
CREATE UNIQUE INDEX audit_finding_open ON relata.audit_finding (store, object, relation, subject, cause) WHERE closed_at IS NULL;
CREATE INDEX audit_finding_run ON relata.audit_finding (last_run);

GRANT SELECT, INSERT, UPDATE ON relata.audit_run, relata.audit_finding TO relata_auditor, relata_repair;
-- Read pages of a store are compared in a temporary table.
DO $$
BEGIN
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO relata_auditor, relata_repair', current_database());
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Repairs. Each is told a tuple at a time whether it was settled: false, if it was left alone because it is not what the
-- audit found any more.

-- Locks keys for the caller's transaction; see relata.lock_keys.
CREATE FUNCTION relata.audit_lock(store text, objects text[], relations text[], subjects text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'SELECT relata.lock_keys(store, objects, relations, subjects)';

-- Enqueues what the inventory says of these keys: `present` (NULL: it cannot tell) and the conditions are parallel to the keys,
-- as asked by the caller after relata.audit_lock, in the same transaction. A deletion only where `deletes` says that it was
-- counted as one.
CREATE FUNCTION relata.audit_emit(store text, objects text[], relations text[], subjects text[], present boolean[],
                                  condition_names text[], condition_contexts jsonb[], deletes boolean[], actor text)
    RETURNS boolean[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i int;
    settled boolean[];
    t relata.tuple;
BEGIN
    FOR i IN 1 .. cardinality(objects) LOOP
        SELECT * INTO t FROM relata.tuple k WHERE k.object = objects[i] AND k.relation = relations[i] AND k.subject = subjects[i]
            AND k.store = audit_emit.store;
        settled[i] := present[i] IS NOT NULL AND (present[i] OR deletes[i] OR t.present IS NOT TRUE);
        CONTINUE WHEN NOT settled[i] OR t.present IS NOT DISTINCT FROM present[i] AND (NOT present[i] OR
            t.condition_name IS NOT DISTINCT FROM condition_names[i] AND
            coalesce(t.condition_context, '{}') = coalesce(condition_contexts[i], '{}'));
        IF present[i] THEN
            PERFORM relata.write_tuple(objects[i], relations[i], subjects[i], condition_names[i], condition_contexts[i], store, actor);
        ELSE
            PERFORM relata.delete_tuple(objects[i], relations[i], subjects[i], store, actor);
        END IF;
    END LOOP;
    RETURN settled;
END $$;

-- Deletes what model `model_id` of store `store_id` forbids, if these are still in force and the ledger's versions are these.
CREATE FUNCTION relata.audit_delete(store text, objects text[], relations text[], subjects text[], versions bigint[],
                                    store_id text, model_id text, actor text)
    RETURNS boolean[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i int;
    settled boolean[];
BEGIN
    PERFORM relata.lock_keys(store, objects, relations, subjects);
    PERFORM FROM relata.store p WHERE p.name = audit_delete.store AND p.store_id = audit_delete.store_id
        AND p.model_id = audit_delete.model_id FOR SHARE;
    IF NOT FOUND THEN
        RETURN array_fill(false, ARRAY[cardinality(objects)]);
    END IF;
    FOR i IN 1 .. cardinality(objects) LOOP
        PERFORM FROM relata.tuple k WHERE k.object = objects[i] AND k.relation = relations[i] AND k.subject = subjects[i]
            AND k.store = audit_delete.store AND k.version = versions[i];
        settled[i] := FOUND;
        IF FOUND THEN
            PERFORM relata.delete_tuple(objects[i], relations[i], subjects[i], store, actor);
        END IF;
    END LOOP;
    RETURN settled;
END $$;

REVOKE EXECUTE ON FUNCTION relata.audit_lock, relata.audit_emit, relata.audit_delete FROM PUBLIC;
GRANT EXECUTE ON FUNCTION relata.audit_lock, relata.audit_emit, relata.audit_delete TO relata_repair;
