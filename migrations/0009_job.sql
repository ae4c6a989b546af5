-- Long commands of relatactl that go on where they stopped: one row a kind and store.
CREATE TABLE relata.job (
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('seed', 'adopt')),
    store       text COLLATE "C" NOT NULL,
    store_id    text NOT NULL,             -- a position means nothing in another store
    position    jsonb,                     -- seed: the last key done; adopt: the token of the page being taken in
    pending     jsonb,                     -- adopt: rows of that page which are not confirmed yet
    since       bigint NOT NULL DEFAULT 0, -- seed: versions above this changed after it began
    counts      jsonb NOT NULL DEFAULT '{}',
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    PRIMARY KEY (kind, store)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON relata.job TO relata_writer, relata_repair;
GRANT SELECT ON relata.job TO relata_auditor;
-- seed remembers from which version on changes are its own to follow; adopt takes back what it could not confirm.
GRANT SELECT ON SEQUENCE relata.outbox_id TO relata_writer, relata_repair;
GRANT DELETE ON relata.tuple TO relata_repair;
