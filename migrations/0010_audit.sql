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

-- Enqueues what the rows that are expected say of these keys: `present` and the conditions are parallel to the keys, as
-- asked by the caller after relata.lock_keys, in the same transaction. Returns how many differed.
CREATE FUNCTION relata.audit_emit(store text, objects text[], relations text[], subjects text[], present boolean[],
                                  condition_names text[], condition_contexts jsonb[], actor text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i int;
    n bigint := 0;
    t relata.tuple;
BEGIN
    FOR i IN 1 .. cardinality(objects) LOOP
        SELECT * INTO t FROM relata.tuple k WHERE k.object = objects[i] AND k.relation = relations[i] AND k.subject = subjects[i]
            AND k.store = audit_emit.store;
        CONTINUE WHEN t.present IS NOT DISTINCT FROM present[i] AND (NOT present[i] OR
            t.condition_name IS NOT DISTINCT FROM condition_names[i] AND
            coalesce(t.condition_context, '{}') = coalesce(condition_contexts[i], '{}'));
        IF present[i] THEN
            PERFORM relata.write_tuple(objects[i], relations[i], subjects[i], condition_names[i], condition_contexts[i], store, actor);
        ELSE
            PERFORM relata.delete_tuple(objects[i], relations[i], subjects[i], store, actor);
        END IF;
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

-- Locks keys for the caller's transaction; see relata.lock_keys.
CREATE FUNCTION relata.audit_lock(store text, objects text[], relations text[], subjects text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'SELECT relata.lock_keys(store, objects, relations, subjects)';

REVOKE EXECUTE ON FUNCTION relata.audit_emit, relata.audit_lock FROM PUBLIC;
GRANT EXECUTE ON FUNCTION relata.audit_emit, relata.audit_lock TO relata_repair;
