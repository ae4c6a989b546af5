-- Schema relata: tables, roles, privileges. Needs CREATE on the database and CREATEROLE, no superuser, no extension.
--
-- Every text column that names part of a tuple is COLLATE "C": keys are bytes, they sort as the store's batches do, and
-- range scans on them do not depend on the database's locale.

DO $$
DECLARE
    r text;
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'database encoding is %, relata needs UTF8', current_setting('server_encoding')
            USING ERRCODE = '0A000', HINT = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
    FOREACH r IN ARRAY ARRAY['relata_service', 'relata_relay', 'relata_writer', 'relata_lister', 'relata_auditor',
                             'relata_repair', 'relata_lookup'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- another database of this cluster was migrated at the same time
            END;
        END IF;
    END LOOP;
END $$;

CREATE SCHEMA IF NOT EXISTS relata;

CREATE TABLE IF NOT EXISTS relata.migration (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Retentions that relata.maintain() obeys.
CREATE TABLE relata.setting (
    name  text COLLATE "C" PRIMARY KEY,
    value interval NOT NULL CHECK (value >= interval '0'),
    note  text NOT NULL
);
INSERT INTO relata.setting VALUES
    ('tombstone_retention', '1 hour', 'how long the ledger remembers an absent tuple that nothing pends on'),
    ('dead_letter_retention', '30 days', 'how long a closed dead letter is kept'),
    ('writer_retention', '7 days', 'how long the registration of an ended writer is kept');

-- ---------------------------------------------------------------------------------------------------------------------
-- Pending changes. A row stays until the state of its tuple has been applied to the store, or is a dead letter.

-- The same 64 bits for the same key; an object holds no '#' and a relation no '@', so the parts cannot run together.
CREATE FUNCTION relata.key_hash(object text, relation text, subject text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN pg_catalog.hashtextextended(((object OPERATOR(pg_catalog.||) '#' OPERATOR(pg_catalog.||) relation
                                         OPERATOR(pg_catalog.||) '@' OPERATOR(pg_catalog.||) subject) COLLATE "C"), 0);

-- CACHE 1: ids of one tuple must rise in the order in which its ledger row was locked, whichever session takes them.
CREATE SEQUENCE relata.outbox_id AS bigint CACHE 1;

CREATE TABLE relata.outbox (
    id                bigint NOT NULL,
    store             text COLLATE "C" NOT NULL DEFAULT 'default',
    op                text COLLATE "C" NOT NULL, -- write, delete, touch: the row trigger sees to that
    object            text COLLATE "C" NOT NULL,
    relation          text COLLATE "C" NOT NULL,
    subject           text COLLATE "C" NOT NULL,
    condition_name    text COLLATE "C",
    condition_context jsonb,
    actor             text COLLATE "C",
    headers           jsonb,
    xid               xid8 NOT NULL,
    created_at        timestamptz NOT NULL,
    key               bigint NOT NULL, -- relata.key_hash of the tuple; a generated column costs each statement 20 us
    PRIMARY KEY (store, id)
);
ALTER SEQUENCE relata.outbox_id OWNED BY relata.outbox.id;
-- Readers page by (xid, id) within a store; revocations have their own reader.
CREATE INDEX outbox_scan ON relata.outbox (store, xid, id);
CREATE INDEX outbox_deletes ON relata.outbox (store, xid, id) WHERE op = 'delete';
-- Acknowledgement deletes by key; "is anything of this key pending?" asks by it.
CREATE INDEX outbox_key ON relata.outbox (key);

-- ---------------------------------------------------------------------------------------------------------------------
-- The ledger: the state each tuple shall have. `version` is the outbox id that set it, compared for equality only.
CREATE TABLE relata.tuple (
    store             text COLLATE "C" NOT NULL,
    object            text COLLATE "C" NOT NULL,
    relation          text COLLATE "C" NOT NULL,
    subject           text COLLATE "C" NOT NULL,
    condition_name    text COLLATE "C",
    condition_context jsonb, -- NULL means {}
    present           boolean NOT NULL,
    version           bigint NOT NULL,
    changed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The store comes last: it is nearly always the same, so it would only be compared in vain. A store's rows in key order
    -- still come straight from this index.
    PRIMARY KEY (object, relation, subject, store)
);
-- For deleting all that an object holds: subject = 'team:7' or subject between 'team:7#' and 'team:7$'.
CREATE INDEX tuple_subject ON relata.tuple (subject);
-- No index holds `present`, `version` or a condition: changes of a row stay HOT. The sweeper walks the heap instead.

-- ---------------------------------------------------------------------------------------------------------------------
-- The writer's own tables.

-- One row a registration of a tuple-writer; it lives while a session holds advisory lock (1380270081, id).
CREATE TABLE relata.writer (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store      text COLLATE "C" NOT NULL,
    name       text NOT NULL,
    epoch      bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);

-- Intents: keys of a Write that may be under way, one row a batch; the arrays are parallel.
CREATE TABLE relata.inflight (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer    bigint NOT NULL,
    store     text COLLATE "C" NOT NULL,
    sent_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    objects   text[] COLLATE "C" NOT NULL,
    relations text[] COLLATE "C" NOT NULL,
    subjects  text[] COLLATE "C" NOT NULL,
    CHECK (cardinality(objects) = cardinality(relations) AND cardinality(objects) = cardinality(subjects))
);
CREATE INDEX inflight_store ON relata.inflight (store, writer);

-- Parked changes, and what became of them.
CREATE TABLE relata.dead_letter (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_id         bigint,
    store             text COLLATE "C" NOT NULL,
    op                text COLLATE "C" NOT NULL,
    object            text COLLATE "C" NOT NULL,
    relation          text COLLATE "C" NOT NULL,
    subject           text COLLATE "C" NOT NULL,
    condition_name    text COLLATE "C",
    condition_context jsonb,
    actor             text COLLATE "C",
    headers           jsonb,
    xid               xid8,
    created_at        timestamptz,
    code              text NOT NULL,
    reason            text NOT NULL,
    attempts          int NOT NULL DEFAULT 1,
    model_id          text,
    parked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at         timestamptz,
    closed_how        text CHECK (closed_how IN ('applied', 'superseded', 'replayed', 'dropped')),
    CHECK ((closed_at IS NULL) = (closed_how IS NULL))
);
CREATE UNIQUE INDEX dead_letter_open ON relata.dead_letter (store, object, relation, subject) WHERE closed_at IS NULL;
CREATE INDEX dead_letter_closed ON relata.dead_letter (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX dead_letter_xid ON relata.dead_letter (xid) WHERE closed_at IS NULL;

-- Which authorization store a name means. `generation` rises with every change of the pin or the model.
CREATE TABLE relata.store (
    name       text COLLATE "C" PRIMARY KEY,
    store_id   text,
    model_id   text,
    generation bigint NOT NULL DEFAULT 1,
    pinned_at  timestamptz
);
CREATE FUNCTION relata.store_changed() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.store_id, NEW.model_id) IS DISTINCT FROM (OLD.store_id, OLD.model_id) THEN
        NEW.generation := OLD.generation + 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER store_changed BEFORE UPDATE ON relata.store FOR EACH ROW EXECUTE FUNCTION relata.store_changed();

-- (type, relation) pairs that this database owns in a store; no row for a store: all of them.
CREATE TABLE relata.owned (
    store       text COLLATE "C" NOT NULL,
    object_type text COLLATE "C" NOT NULL,
    relation    text COLLATE "C" NOT NULL,
    PRIMARY KEY (store, object_type, relation)
);

-- The last applied keys of a store, to be read back when the store looks wiped or swapped.
CREATE TABLE relata.probe (
    store      text COLLATE "C" NOT NULL,
    slot       int NOT NULL CHECK (slot BETWEEN 0 AND 15),
    object     text COLLATE "C" NOT NULL,
    relation   text COLLATE "C" NOT NULL,
    subject    text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store, slot)
);

-- The relay's position and the state of a slot's handover.
CREATE TABLE relata.relay (
    name           text COLLATE "C" PRIMARY KEY,
    slot           text,
    handover       text CHECK (handover IN ('started', 'complete')),
    consistent_lsn pg_lsn,
    poll_snapshot  pg_snapshot,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Deletions of everything about an object. They cannot see grants that are not committed yet, so maintain() repeats
-- each, for grants with an outbox id below `before`, when every transaction that ran at its commit has ended.
CREATE TABLE relata.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('erase_subject', 'delete_object')),
    store        text COLLATE "C" NOT NULL,
    target       text COLLATE "C" NOT NULL,
    actor        text COLLATE "C",
    xid          xid8 NOT NULL,
    before       bigint NOT NULL,
    horizon      xid8,        -- taken when maintain() first sees it; repeated when no older transaction runs
    tuples       bigint NOT NULL DEFAULT 0,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    repeated_at  timestamptz,
    done_at      timestamptz  -- erase_subject: nothing about the target is left but this row
);
CREATE INDEX request_open ON relata.request (store, id) WHERE done_at IS NULL;

-- Where the sweep of tombstones stands: the next block of the ledger's heap. A new round is needed only if the last one
-- left tombstones behind, or ids were taken since it began.
CREATE TABLE relata.sweep (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    block       bigint NOT NULL DEFAULT 0,
    ids         bigint NOT NULL DEFAULT -1,
    left_behind bigint NOT NULL DEFAULT 0,
    not_before  timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO relata.sweep DEFAULT VALUES;

-- ---------------------------------------------------------------------------------------------------------------------
-- Vacuum. The outbox is a queue: rows live for milliseconds, so it is vacuumed by count, never by share of its size, and
-- without pauses; otherwise readers walk over dead index entries at its head. A backlog of millions is inserted only
-- once, so inserts alone start no vacuum. The ledger grows large and changes slowly: a share of 2%; free space of 10% in
-- each page keeps the usual change (version, condition) on its page, without touching an index.
ALTER TABLE relata.outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE relata.tuple SET (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE relata.inflight SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE relata.probe SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE relata.relay SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE relata.sweep SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- ---------------------------------------------------------------------------------------------------------------------
-- Who holds which of Relata's advisory locks in this database, now; `kind` is the first of the lock's two numbers (1380270081
-- and up), `id` the second, of 32 bits without a sign. A living writer is one whose registration's id is locked.
CREATE VIEW relata.session_lock AS
SELECT l.classid::bigint AS kind, l.objid::bigint AS id, l.pid
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database());

-- ---------------------------------------------------------------------------------------------------------------------
-- Lag, from the table itself. `pending` counts (0.1 s a million rows) only if it is selected; the rest is two index
-- look-ups a store. Ids are taken in the order of created_at, to within the scheduling of two sessions. Not `pinned`: no
-- tuple-writer has ever served a store of this name, which may be misspelt.
CREATE VIEW relata.lag AS
WITH RECURSIVE stores(name) AS (
    (SELECT store FROM relata.outbox ORDER BY store LIMIT 1)
    UNION ALL
    SELECT (SELECT o.store FROM relata.outbox o WHERE o.store > s.name ORDER BY o.store LIMIT 1)
    FROM stores s WHERE s.name IS NOT NULL
), named(name) AS (
    SELECT name FROM stores WHERE name IS NOT NULL
    UNION SELECT name FROM relata.store
    UNION SELECT store FROM relata.dead_letter WHERE closed_at IS NULL
    UNION SELECT 'default' COLLATE "C"
)
SELECT n.name AS store,
       (SELECT count(*) FROM relata.outbox o WHERE o.store = n.name) AS pending,
       coalesce((SELECT greatest(extract(epoch FROM clock_timestamp() - o.created_at), 0)::double precision
                 FROM relata.outbox o WHERE o.store = n.name ORDER BY o.id LIMIT 1), 0) AS oldest_age_seconds,
       (SELECT count(*) FROM relata.dead_letter d WHERE d.store = n.name AND d.closed_at IS NULL) AS parked,
       EXISTS (SELECT FROM relata.store s WHERE s.name = n.name AND s.store_id IS NOT NULL) AS pinned
FROM named n;

-- All columns but key, which readers have no use for.
CREATE PUBLICATION relata_outbox FOR TABLE relata.outbox (id, store, op, object, relation, subject, condition_name,
    condition_context, actor, headers, xid, created_at) WITH (publish = 'insert');

-- ---------------------------------------------------------------------------------------------------------------------
-- Privileges: each role the least it needs. The columns xid and key are nobody's to insert (see 0002).
GRANT USAGE ON SCHEMA relata TO relata_service, relata_relay, relata_writer, relata_lister, relata_auditor, relata_repair;

GRANT INSERT (id, store, op, object, relation, subject, condition_name, condition_context, actor, headers, created_at),
      SELECT (id) ON relata.outbox TO relata_service;

GRANT SELECT, DELETE ON relata.outbox TO relata_relay;
GRANT SELECT, INSERT, UPDATE ON relata.relay TO relata_relay;
GRANT SELECT, INSERT, UPDATE ON relata.dead_letter TO relata_relay;
GRANT SELECT ON relata.tuple, relata.store, relata.owned, relata.lag, relata.setting TO relata_relay;

GRANT SELECT, DELETE ON relata.outbox TO relata_writer;
GRANT SELECT ON relata.tuple, relata.owned, relata.request, relata.lag, relata.relay, relata.setting, relata.session_lock
    TO relata_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON relata.inflight, relata.probe TO relata_writer;
GRANT SELECT, INSERT, UPDATE ON relata.writer, relata.dead_letter, relata.store TO relata_writer;

GRANT SELECT ON relata.outbox, relata.tuple, relata.dead_letter, relata.store, relata.owned, relata.lag, relata.writer,
    relata.session_lock TO relata_lister;

GRANT SELECT ON ALL TABLES IN SCHEMA relata TO relata_auditor, relata_repair;
-- relatactl: pin and owned relations, replay and drop of dead letters, adopt (ledger rows without outbox rows), retention.
GRANT INSERT, UPDATE, DELETE ON relata.store, relata.owned TO relata_repair;
GRANT UPDATE ON relata.dead_letter, relata.setting TO relata_repair;
GRANT INSERT, UPDATE ON relata.tuple TO relata_repair;
GRANT USAGE ON SEQUENCE relata.outbox_id TO relata_repair;
DO $$
BEGIN
    IF NOT pg_has_role('relata_repair', 'relata_service', 'MEMBER') THEN
        GRANT relata_service TO relata_repair;
    END IF;
EXCEPTION WHEN unique_violation THEN
    NULL; -- roles are the cluster's: another database was migrated at the same time
END $$;
