-- The plain table: the columns and the primary key of relata.outbox, and nothing else.
CREATE SCHEMA bench;
CREATE SEQUENCE bench.plain_id;
CREATE TABLE bench.plain (
    id                bigint NOT NULL DEFAULT nextval('bench.plain_id'),
    store             text COLLATE "C" NOT NULL DEFAULT 'default',
    op                text COLLATE "C" NOT NULL,
    object            text COLLATE "C" NOT NULL,
    relation          text COLLATE "C" NOT NULL,
    subject           text COLLATE "C" NOT NULL,
    condition_name    text COLLATE "C",
    condition_context jsonb,
    actor             text COLLATE "C",
    headers           jsonb,
    xid               xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store, id)
);
