-- Schema relata_store: what authz-store keeps. Needs CREATE on the database and CREATEROLE, no superuser, no extension.
--
-- One process writes (leader), one transaction at a time, so `id` and `change` rise in the order of commits: who has read
-- up to an id has missed nothing below it. Ids are microseconds since 1970, made to rise strictly; the time of a change is
-- its id. Text is COLLATE "C": keys are bytes, in the order in which pages walk them.

DO $$
DECLARE
    r text;
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'database encoding is %, relata_store needs UTF8', current_setting('server_encoding')
            USING ERRCODE = '0A000', HINT = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
    FOREACH r IN ARRAY ARRAY['relata_store', 'relata_store_reader'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- another database of this cluster was migrated at the same time
            END;
        END IF;
    END LOOP;
END $$;

CREATE SCHEMA IF NOT EXISTS relata_store;

CREATE TABLE IF NOT EXISTS relata_store.migration (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The row of a deleted store stays; the rest of it is taken away little by little, until it is swept.
CREATE TABLE relata_store.store (
    id         text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    deleted_at timestamptz,
    swept      boolean NOT NULL DEFAULT false,
    change     bigint NOT NULL
);
CREATE INDEX store_change ON relata_store.store (change);

CREATE TABLE relata_store.model (
    store  text COLLATE "C" NOT NULL,
    id     text COLLATE "C" NOT NULL,
    json   text NOT NULL,
    change bigint NOT NULL,
    PRIMARY KEY (store, id)
);
CREATE INDEX model_change ON relata_store.model (change);

CREATE TABLE relata_store.assertion (
    store  text COLLATE "C" NOT NULL,
    model  text COLLATE "C" NOT NULL,
    json   text NOT NULL,
    change bigint NOT NULL,
    PRIMARY KEY (store, model)
);
CREATE INDEX assertion_change ON relata_store.assertion (change);

-- The context of a condition is JSON, as it was written.
CREATE TABLE relata_store.tuple (
    store       text COLLATE "C" NOT NULL,
    object      text COLLATE "C" NOT NULL,
    relation    text COLLATE "C" NOT NULL,
    subject     text COLLATE "C" NOT NULL,
    condition   text COLLATE "C",
    context     text COLLATE "C",
    inserted_at timestamptz NOT NULL,
    PRIMARY KEY (store, object, relation, subject)
);
-- "Everything of this type that this subject has": Read with a subject and without an object.
CREATE INDEX tuple_subject ON relata_store.tuple (store, subject, object, relation);

CREATE TABLE relata_store.change (
    id        bigint NOT NULL,
    store     text COLLATE "C" NOT NULL,
    object    text COLLATE "C" NOT NULL,
    relation  text COLLATE "C" NOT NULL,
    subject   text COLLATE "C" NOT NULL,
    removed   boolean NOT NULL,
    condition text COLLATE "C",
    context   text COLLATE "C",
    PRIMARY KEY (store, id)
);
-- What a process that stands by reads: all stores, from an id upwards.
CREATE UNIQUE INDEX change_id ON relata_store.change (id);

-- Who writes. Each transaction that changes anything locks this row where `epoch` is its own: one that was overtaken changes
-- nothing. (It does not write to it: while a snapshot is held for long, a row that is written often is slow to find.)
-- `beat` rises with every sign of life; whoever sees it stand still for `lease_ms` may take over.
CREATE TABLE relata_store.leader (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch     bigint NOT NULL DEFAULT 0,
    beat      bigint NOT NULL DEFAULT 0,
    holder    text NOT NULL DEFAULT '',
    lease_ms  bigint NOT NULL DEFAULT 0,
    released  boolean NOT NULL DEFAULT true, -- the holder has ended and said so
    last_id   bigint NOT NULL DEFAULT 0,     -- of the last change before the last sign of life
    token_key text NOT NULL DEFAULT gen_random_uuid()::text || gen_random_uuid()::text -- seals page tokens
);
INSERT INTO relata_store.leader DEFAULT VALUES;

-- One row an epoch. `last_id` tells which transactions of the epochs before were committed: all up to it. It is set before
-- the new holder writes.
CREATE TABLE relata_store.takeover (
    epoch   bigint PRIMARY KEY,
    holder  text NOT NULL,
    last_id bigint,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

ALTER TABLE relata_store.tuple SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE relata_store.leader SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- authz-store's own login is a member of relata_store; auditors of its tuples of relata_store_reader.
GRANT USAGE ON SCHEMA relata_store TO relata_store, relata_store_reader;
GRANT SELECT, INSERT, UPDATE ON relata_store.store, relata_store.assertion, relata_store.takeover TO relata_store;
GRANT SELECT, INSERT ON relata_store.model, relata_store.change TO relata_store;
GRANT SELECT, INSERT, UPDATE, DELETE ON relata_store.tuple TO relata_store;
GRANT DELETE ON relata_store.model, relata_store.assertion, relata_store.change TO relata_store;
GRANT SELECT, UPDATE ON relata_store.leader TO relata_store;
GRANT SELECT ON relata_store.migration TO relata_store, relata_store_reader;
GRANT SELECT ON relata_store.store, relata_store.model, relata_store.tuple TO relata_store_reader;
