-- relata.track: a table declares once which tuples its rows stand for; generated triggers write the outbox.
--
-- Three kinds of code work together, each with its own rights:
--   * generated functions and views, owned by the table's owner, in a schema of that owner's own, relata_track_<oid of the
--     owner>: they run the owner's `when` expressions and read the owner's table with the owner's rights, whoever changes a row,
--     tracks, untracks or backfills. Nobody else can create anything there;
--   * what is called by them and writes ledger, outbox and registrations, owned by the schema's owner;
--   * relata.yielded, relata.expected.. and relata.rows_of, owned by relata_lookup, a role that may nothing else: only through it
--     are functions of table owners called on behalf of others, so that an owner who changes one gains nothing.
-- Registration trusts what it finds, not who asks: functions that only the table's owner can have made.
--
-- SQLSTATE RL003: the mapping or the table cannot be tracked. RL004: not in this isolation level.

CREATE TABLE relata.tracked (
    id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tab        regclass NOT NULL UNIQUE,
    store      text COLLATE "C" NOT NULL,
    mapping    jsonb NOT NULL,
    place      text NOT NULL, -- schema of what was generated; names there begin with t<oid of the table>
    tracked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What the tuples of a rule look like; NULL: it depends on the row. Says whose rows may yield a given tuple.
CREATE TABLE relata.tracked_rule (
    track            int NOT NULL REFERENCES relata.tracked ON DELETE CASCADE,
    n                int NOT NULL,
    object_type      text COLLATE "C",
    relation         text COLLATE "C",
    subject_type     text COLLATE "C",
    PRIMARY KEY (track, n)
);
-- Keys of rows that a TRUNCATE is about to remove; empty outside of such a transaction.
CREATE TABLE relata.truncating (
    track     int NOT NULL,
    xid       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    objects   text[] COLLATE "C" NOT NULL,
    relations text[] COLLATE "C" NOT NULL,
    subjects  text[] COLLATE "C" NOT NULL
);
CREATE TABLE relata.backfill (
    track       int NOT NULL REFERENCES relata.tracked ON DELETE CASCADE,
    part        oid NOT NULL, -- the table, or one partition of it
    filenode    oid NOT NULL, -- changes when the table is rewritten: begin again
    next_block  bigint NOT NULL,
    blocks      bigint NOT NULL,
    emitted     bigint NOT NULL DEFAULT 0,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    PRIMARY KEY (track, part)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Ids. One rule: '%', ':', '#', '*', white space and control characters (U+0001-20, U+007F-9F) become %XX of their UTF-8
-- bytes; everything else stays. Different values stay different, decode_id gives them back.
CREATE FUNCTION relata.encode_bytes(value text, also text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    RETURN (SELECT string_agg(CASE WHEN c ~ E'[%:#*\\x01-\\x20\\x7f-\\x9f]' COLLATE "C" OR strpos(also, c) > 0
                                   THEN upper(regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g'))
                                   ELSE c END, '' ORDER BY i)
            FROM regexp_split_to_table(value, '') WITH ORDINALITY AS s(c, i));

CREATE FUNCTION relata.encode_id(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN value COLLATE "C" OPERATOR(pg_catalog.~) E'[%:#*\\x01-\\x20\\x7f-\\x9f]'
                THEN relata.encode_bytes(value, '') ELSE value END;

-- `also`: further characters to encode (relata.track uses it to keep two columns of one id apart).
CREATE FUNCTION relata.encode_id(value text, also text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN value COLLATE "C" OPERATOR(pg_catalog.~) E'[%:#*\\x01-\\x20\\x7f-\\x9f]'
                     OR pg_catalog.translate(value, also, '') OPERATOR(pg_catalog.<>) value
                THEN relata.encode_bytes(value, also) ELSE value END;

-- NULL if it is not the encoding of anything.
CREATE FUNCTION relata.decode_id(value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bytes bytea;
    part text;
BEGIN
    IF strpos(value, '%') = 0 OR value IS NULL THEN
        RETURN value;
    END IF;
    bytes := convert_to(split_part(value, '%', 1), 'UTF8');
    FOREACH part IN ARRAY (string_to_array(value, '%'))[2:] LOOP
        IF part !~ '^[0-9A-F][0-9A-F]' COLLATE "C" THEN
            RETURN NULL;
        END IF;
        bytes := bytes || decode(left(part, 2), 'hex') || convert_to(substr(part, 3), 'UTF8');
    END LOOP;
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END $$;

-- Values that may be of another type, without an error if they are not.
CREATE FUNCTION relata.as_bigint(value text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value OPERATOR(pg_catalog.~) '^-?[0-9]+$' AND pg_catalog.length(value) OPERATOR(pg_catalog.<=) 20
       AND value::pg_catalog.numeric OPERATOR(pg_catalog.>=) -9223372036854775808
       AND value::pg_catalog.numeric OPERATOR(pg_catalog.<=) 9223372036854775807 THEN
        RETURN value::pg_catalog.int8;
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION relata.as_uuid(value text) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value OPERATOR(pg_catalog.~) '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$' AND pg_catalog.length(value) OPERATOR(pg_catalog.=) 36
       AND pg_catalog.translate(value, '0123456789abcdef', '') OPERATOR(pg_catalog.=) '----'
       AND pg_catalog.substr(value, 9, 1) OPERATOR(pg_catalog.=) '-' AND pg_catalog.substr(value, 14, 1) OPERATOR(pg_catalog.=) '-'
       AND pg_catalog.substr(value, 19, 1) OPERATOR(pg_catalog.=) '-' AND pg_catalog.substr(value, 24, 1) OPERATOR(pg_catalog.=) '-' THEN
        RETURN value::pg_catalog.uuid;
    END IF;
    RETURN NULL;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Templates: text with {column} in it. Split, they are literal, column, literal, column, ..., literal.
CREATE FUNCTION relata.refuse_mapping(what text, detail text, hint text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RAISE EXCEPTION '%', what USING ERRCODE = 'RL003', DETAIL = detail, HINT = hint;
END $$;

CREATE FUNCTION relata.template_parts(template text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rest text := template;
    parts text[] := '{}';
    p int;
BEGIN
    LOOP
        p := strpos(rest, '{');
        IF strpos(CASE WHEN p = 0 THEN rest ELSE left(rest, p - 1) END, '}') > 0
           OR p > 0 AND strpos(substr(rest, p), '}') < 3 THEN
            PERFORM relata.refuse_mapping('a template has an unpaired or empty brace', format('template %L.', template),
                                          'Write {column}; ids cannot hold braces of their own here.');
        END IF;
        IF p = 0 THEN
            RETURN parts || rest;
        END IF;
        parts := parts || left(rest, p - 1) || split_part(substr(rest, p + 1), '}', 1);
        rest := substr(rest, p + strpos(substr(rest, p), '}'));
    END LOOP;
END $$;

-- The characters that have to be encoded in the values besides the usual ones, so that what stands between two of them
-- cannot come from a value.
CREATE FUNCTION relata.template_also(parts text[]) RETURNS text
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    also text := '';
    own text;
BEGIN
    FOR i IN 3 .. cardinality(parts) - 2 BY 2 LOOP
        CONTINUE WHEN parts[i] ~ '[:#*]';
        own := regexp_replace(parts[i], '[0-9A-Fa-f%]', '', 'g');
        IF own = '' THEN
            PERFORM relata.refuse_mapping(format('nothing keeps {%s} and {%s} apart', parts[i - 1], parts[i + 1]),
                format('between them stands %L.', parts[i]), 'Put a separator between them, for example "/" or "|".');
        END IF;
        also := also || own;
    END LOOP;
    RETURN (SELECT coalesce(string_agg(DISTINCT c, '' ORDER BY c), '') FROM regexp_split_to_table(also, '') c WHERE c <> '');
END $$;

-- The values that make the template this text, or NULL.
CREATE FUNCTION relata.template_match(value text, parts text[]) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n constant int := cardinality(parts);
    rest text := value;
    got text[] := '{}';
    p int;
BEGIN
    IF NOT starts_with(rest, parts[1]) THEN
        RETURN NULL;
    END IF;
    rest := substr(rest, length(parts[1]) + 1);
    FOR i IN 3 .. n BY 2 LOOP
        IF i = n THEN
            p := length(rest) - length(parts[n]) + 1;
            IF p < 1 OR substr(rest, p) <> parts[n] THEN
                RETURN NULL;
            END IF;
        ELSE
            p := strpos(rest, parts[i]);
            IF p = 0 THEN
                RETURN NULL;
            END IF;
        END IF;
        got := got || relata.decode_id(left(rest, p - 1));
        rest := substr(rest, p + length(parts[i]));
    END LOOP;
    RETURN got;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Lookups, as relata_lookup: which of these tuples do rows of tracked tables stand for, with which condition? `n` counts from
-- 1. Where rows disagree, no condition wins, then the first by name and context.
CREATE FUNCTION relata.yielded(store text, objects text[], relations text[], subjects text[])
    RETURNS TABLE (n bigint, condition_name text, condition_context jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fn text;
BEGIN
    FOR fn IN SELECT format('%I.%I', t.place, 't' || t.tab::oid || '_yields') FROM relata.tracked t
              WHERE t.store = yielded.store
                AND EXISTS (SELECT FROM relata.tracked_rule r, unnest(objects, relations, subjects) AS k(o, r, s)
                            WHERE r.track = t.id AND (r.object_type = split_part(k.o, ':', 1) OR r.object_type IS NULL)
                              AND (r.relation = k.r OR r.relation IS NULL)
                              AND (r.subject_type = split_part(k.s, ':', 1) OR r.subject_type IS NULL)) LOOP
        IF to_regprocedure(fn || '(text[], text[], text[])') IS NOT NULL THEN
            RETURN QUERY EXECUTE format('SELECT * FROM %s($1, $2, $3)', fn) USING objects, relations, subjects;
        END IF;
    END LOOP;
END $$;

-- Every tuple that the rows of a tracked table stand for.
CREATE FUNCTION relata.expected(tab regclass)
    RETURNS TABLE (object text, relation text, subject text, condition_name text, condition_context jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place constant text := (SELECT t.place FROM relata.tracked t WHERE t.tab = expected.tab);
BEGIN
    IF place IS NULL THEN
        RAISE EXCEPTION '% is not tracked', tab USING ERRCODE = 'RL003', HINT = 'relata.tracked lists the tables that are.';
    END IF;
    RETURN QUERY EXECUTE format('SELECT * FROM %I.%I()', place, 't' || tab::oid || '_expected');
END $$;

-- For audits: the same by sums of hashes, in parts, and about one object or subject; see relata.track_generate.
CREATE FUNCTION relata.expected_digest(tab regclass, salt bigint, mask bigint)
    RETURNS TABLE (object_type text, relation text, bucket bigint, n bigint, total numeric)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT * FROM %I.%I($1, $2)', (SELECT t.place FROM relata.tracked t WHERE t.tab = expected_digest.tab),
                                't' || tab::oid || '_digest') USING salt, mask;
END $$;
CREATE FUNCTION relata.expected_part(tab regclass, salt bigint, mask bigint, buckets bigint[])
    RETURNS TABLE (object text, relation text, subject text, condition_name text, condition_context jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT * FROM %I.%I($1, $2, $3)', (SELECT t.place FROM relata.tracked t WHERE t.tab = expected_part.tab),
                                't' || tab::oid || '_part') USING salt, mask, buckets;
END $$;
CREATE FUNCTION relata.expected_about(tab regclass, of_object text, of_subject text)
    RETURNS TABLE (object text, relation text, subject text, condition_name text, condition_context jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT * FROM %I.%I($1, $2)', (SELECT t.place FROM relata.tracked t WHERE t.tab = expected_about.tab),
                                't' || tab::oid || '_about') USING of_object, of_subject;
END $$;

-- The tuples that rows in some blocks of a tracked table, or of a partition of it, stand for.
CREATE FUNCTION relata.rows_of(tab regclass, part regclass, low bigint, high bigint)
    RETURNS TABLE (object text, relation text, subject text, condition_name text, condition_context jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT * FROM %I.%I($1, $2, $3)', (SELECT t.place FROM relata.tracked t WHERE t.tab = rows_of.tab),
                                't' || tab::oid || '_rows') USING part, low, high;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Ledger and outbox.

-- Locks the keys in key order, those too that the ledger does not know yet, by an update that changes nothing: a
-- transaction in repeatable read whose snapshot is older gets 40001 instead of deciding on what it cannot see.
CREATE FUNCTION relata.lock_keys(store text, objects text[], relations text[], subjects text[]) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO relata.tuple AS t (store, object, relation, subject, present, version)
    SELECT lock_keys.store, k.o, k.r, k.s, false, nextval('relata.outbox_id')
    FROM (SELECT DISTINCT u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s
          FROM unnest(objects, relations, subjects) AS u(o, r, s)) k
    ORDER BY k.o, k.r, k.s
    ON CONFLICT (object, relation, subject, store) DO UPDATE SET version = t.version;
END $$;

-- Makes locked keys what the rows of tracked tables say now: this is a statement of its own, so that in read committed it
-- sees whatever was committed before the locks were had.
CREATE FUNCTION relata.reconcile(store text, objects text[], relations text[], subjects text[], actor text, headers jsonb)
    RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    n bigint;
BEGIN
    PERFORM relata.wake(reconcile.store);
    WITH want AS (
        SELECT k.o, k.r, k.s, y.n IS NOT NULL AS present, y.condition_name, nullif(y.condition_context, '{}') AS condition_context
        FROM unnest(objects, relations, subjects) WITH ORDINALITY AS k(o, r, s, n)
        LEFT JOIN (SELECT DISTINCT ON (y.n) y.* FROM relata.yielded(reconcile.store, objects, relations, subjects) y
                   ORDER BY y.n, y.condition_name COLLATE "C" NULLS FIRST, y.condition_context::text COLLATE "C" NULLS FIRST) y
               ON y.n = k.n
    ), checked AS MATERIALIZED (
        SELECT w.*, CASE WHEN w.condition_name IS NOT NULL
                         THEN relata.check_condition(w.condition_name, w.condition_context)::text END
        FROM want w
    ), up AS (
        -- An upsert, though all rows are there: it finds each by the index, whatever the planner believes about the ledger.
        INSERT INTO relata.tuple AS t (store, object, relation, subject, present, condition_name, condition_context, version)
        SELECT reconcile.store, w.o, w.r, w.s, w.present, w.condition_name, w.condition_context, nextval('relata.outbox_id')
        FROM checked w
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET present = excluded.present, condition_name = excluded.condition_name,
                condition_context = excluded.condition_context, version = nextval('relata.outbox_id'),
                changed_at = clock_timestamp()
            WHERE t.present <> excluded.present OR excluded.present AND (t.condition_name IS DISTINCT FROM excluded.condition_name
                  OR t.condition_context IS DISTINCT FROM excluded.condition_context
                  -- A deletion that waits for its repetition takes grants of an older version.
                  OR relata.doomed(t.store, t.object, t.subject, t.version))
        RETURNING t.object, t.relation, t.subject, t.present, t.condition_name, t.condition_context, t.version, t.changed_at)
    INSERT INTO relata.outbox (id, store, op, object, relation, subject, condition_name, condition_context, actor, headers,
                               xid, created_at, key)
    SELECT up.version, reconcile.store, CASE WHEN up.present THEN 'write' ELSE 'delete' END, up.object, up.relation,
           up.subject, up.condition_name, up.condition_context, reconcile.actor, reconcile.headers, pg_current_xact_id(),
           up.changed_at, relata.key_hash(up.object, up.relation, up.subject)
    FROM up;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- The same for one tuple, locks it too: the usual statement changes one row.
CREATE FUNCTION relata.reconcile_one(store text, object text, relation text, subject text, actor text, headers jsonb) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    y record;
BEGIN
    INSERT INTO relata.tuple AS t (store, object, relation, subject, present, version)
    VALUES (reconcile_one.store, reconcile_one.object, reconcile_one.relation, reconcile_one.subject, false, nextval('relata.outbox_id'))
    ON CONFLICT (object, relation, subject, store) DO UPDATE SET version = t.version;
    SELECT * INTO y FROM relata.yielded(store, ARRAY[object], ARRAY[relation], ARRAY[subject]) k
    ORDER BY k.condition_name COLLATE "C" NULLS FIRST, k.condition_context::text COLLATE "C" NULLS FIRST LIMIT 1;
    PERFORM relata.enqueue_one(CASE WHEN y.n IS NULL THEN 'delete' ELSE 'write' END, object, relation, subject,
                               y.condition_name, y.condition_context, store, actor, headers, true);
END $$;

-- What a statement on a tracked table changed. `added` is written as it is, `doubtful` is asked again under its lock.
-- A session may say on whose behalf: SET LOCAL relata.actor, relata.headers (a JSON object). The planner would judge each
-- statement's plan for arrays of this length and so plan all of them anew, milliseconds for one row; hence the mode.
CREATE FUNCTION relata.track_apply(store text, added_objects text[], added_relations text[], added_subjects text[],
                                   doubtful_objects text[], doubtful_relations text[], doubtful_subjects text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    actor constant text := nullif(current_setting('relata.actor', true), '');
    headers constant jsonb := nullif(current_setting('relata.headers', true), '');
    o text[];
    r text[];
    s text[];
    n bigint;
BEGIN
    -- A row whose tuple would be malformed has none, so there is none to remove.
    SELECT array_agg(k.o), array_agg(k.r), array_agg(k.s) INTO o, r, s
    FROM (SELECT DISTINCT u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s
          FROM unnest(doubtful_objects, doubtful_relations, doubtful_subjects) AS u(o, r, s)
          WHERE relata.tuple_ok(u.o, u.r, u.s)) k;
    IF cardinality(o) = 1 AND added_objects IS NULL THEN
        PERFORM relata.reconcile_one(store, o[1], r[1], s[1], actor, headers);
        RETURN;
    END IF;
    IF o IS NOT NULL THEN
        PERFORM relata.lock_keys(store, o || added_objects, r || added_relations, s || added_subjects);
    END IF;
    IF added_objects IS NOT NULL THEN
        IF cardinality(added_objects) = 1 THEN
            n := relata.enqueue_one('write', added_objects[1], added_relations[1], added_subjects[1], NULL, NULL, store, actor,
                                    headers, false)::int;
        ELSE
            PERFORM relata.check_set(added_objects, added_relations, added_subjects, NULL, NULL, store, headers);
            n := relata.enqueue_writes(added_objects, added_relations, added_subjects, NULL, NULL, store, actor, headers);
        END IF;
        IF n < cardinality(added_objects) AND o IS NULL THEN
            -- Dropped ones are locked, not changed: mark them for older snapshots. What was written has its row.
            INSERT INTO relata.tuple AS t (store, object, relation, subject, present, version)
            SELECT DISTINCT track_apply.store, u.o COLLATE "C", u.r COLLATE "C", u.s COLLATE "C", false, 0
            FROM unnest(added_objects, added_relations, added_subjects) AS u(o, r, s)
            ON CONFLICT (object, relation, subject, store) DO UPDATE SET version = t.version
                WHERE (SELECT true FROM relata.outbox b WHERE b.store = t.store AND b.id = t.version) IS NULL;
        END IF;
    END IF;
    IF cardinality(o) = 1 THEN
        PERFORM relata.reconcile_one(store, o[1], r[1], s[1], actor, headers);
    ELSIF o IS NOT NULL THEN
        PERFORM relata.reconcile(store, o, r, s, actor, headers);
    END IF;
END $$;

CREATE FUNCTION relata.track_stash(tab regclass, objects text[], relations text[], subjects text[]) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO relata.truncating (track, objects, relations, subjects)
    SELECT t.id, track_stash.objects, track_stash.relations, track_stash.subjects FROM relata.tracked t
    WHERE t.tab = track_stash.tab AND track_stash.objects IS NOT NULL;
END;

-- All that the rows stand for, as untrack(.., true) is about to take away.
CREATE FUNCTION relata.track_stash_all(tab regclass) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT relata.track_stash(tab, array_agg(d.object), array_agg(d.relation), array_agg(d.subject))
    FROM (SELECT e.*, row_number() OVER () / 100000 AS chunk FROM relata.expected(tab) e) d GROUP BY d.chunk;
END;

CREATE FUNCTION relata.track_unstash(tab regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of constant relata.tracked := (SELECT t FROM relata.tracked t WHERE t.tab = track_unstash.tab);
    q relata.truncating;
BEGIN
    FOR q IN DELETE FROM relata.truncating t WHERE t.track = of.id AND t.xid = pg_current_xact_id() RETURNING * LOOP
        PERFORM relata.track_apply(of.store, NULL, NULL, NULL, q.objects, q.relations, q.subjects);
    END LOOP;
END $$;

-- Rows that were committed after the transaction's snapshot cannot be seen, so their tuples would stay.
CREATE FUNCTION relata.check_isolation(what text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION '% needs isolation level READ COMMITTED', what USING ERRCODE = 'RL004',
            DETAIL = format('In %s its tuples cannot all be seen, and would be left behind.', current_setting('transaction_isolation')),
            HINT = 'Run it in a transaction of READ COMMITTED.';
    END IF;
END $$;

-- One batch of backfill: tuples of rows that the ledger lacks are locked, asked for again, and written; then the position
-- is recorded. It begins anew when the last backfill was finished, or the table rewritten.
CREATE FUNCTION relata.backfill_batch(tab regclass, part regclass, batch int, OUT next_block bigint, OUT blocks bigint,
                                      OUT emitted bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    t constant relata.tracked := (SELECT k FROM relata.tracked k WHERE k.tab = backfill_batch.tab);
    node constant oid := pg_relation_filenode(part);
    density constant float8 := (SELECT c.reltuples / nullif(c.relpages, 0) FROM pg_class c WHERE c.oid = part AND c.reltuples > 0);
    b relata.backfill;
    o text[];
    r text[];
    s text[];
    bad record;
    n bigint := 0;
BEGIN
    IF t.id IS NULL OR part <> tab AND part NOT IN (SELECT p.relid FROM pg_partition_tree(tab) p WHERE p.isleaf) THEN
        RAISE EXCEPTION '% is not tracked', part USING ERRCODE = 'RL003', HINT = 'Call relata.track first.';
    END IF;
    INSERT INTO relata.backfill AS b (track, part, filenode, next_block, blocks) VALUES (t.id, backfill_batch.part, 0, 0, 0)
    ON CONFLICT (track, part) DO NOTHING;
    SELECT * INTO b FROM relata.backfill b WHERE b.track = t.id AND b.part = backfill_batch.part FOR UPDATE;
    IF b.finished_at IS NOT NULL OR b.filenode <> node THEN
        b.filenode := node;
        b.next_block := 0;
        b.emitted := 0;
        b.finished_at := NULL;
        b.started_at := clock_timestamp();
        b.blocks := pg_relation_size(part) / current_setting('block_size')::int;
    END IF;
    next_block := b.next_block + greatest((batch / coalesce(greatest(density, 1), 50))::bigint, 1);
    blocks := b.blocks;
    FOR bad IN SELECT k.object, k.relation, k.subject FROM relata.rows_of(tab, part, b.next_block, backfill_batch.next_block) k
               WHERE relata.tuple_ok(k.object, k.relation, k.subject) IS NOT TRUE LOOP
        PERFORM relata.check_tuple(bad.object, bad.relation, bad.subject);
    END LOOP;
    SELECT array_agg(k.o), array_agg(k.r), array_agg(k.s) INTO o, r, s
    FROM (SELECT DISTINCT k.object COLLATE "C" AS o, k.relation COLLATE "C" AS r, k.subject COLLATE "C" AS s
          FROM relata.rows_of(tab, part, b.next_block, backfill_batch.next_block) AS k
          WHERE (SELECT true FROM relata.tuple u
                 WHERE u.object = k.object AND u.relation = k.relation AND u.subject = k.subject AND u.store = t.store
                   AND u.present AND u.condition_name IS NOT DISTINCT FROM k.condition_name
                   AND u.condition_context IS NOT DISTINCT FROM nullif(k.condition_context, '{}')
                   AND NOT relata.doomed(u.store, u.object, u.subject, u.version)) IS NULL) k;
    IF o IS NOT NULL THEN
        PERFORM relata.lock_keys(t.store, o, r, s);
        n := relata.reconcile(t.store, o, r, s, 'relata.backfill', NULL);
    END IF;
    emitted := b.emitted + n;
    UPDATE relata.backfill u
    SET filenode = b.filenode, next_block = backfill_batch.next_block, blocks = backfill_batch.blocks,
        emitted = backfill_batch.emitted, started_at = b.started_at, updated_at = clock_timestamp(),
        finished_at = CASE WHEN backfill_batch.next_block >= backfill_batch.blocks THEN clock_timestamp() END
    WHERE u.track = t.id AND u.part = backfill_batch.part;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Declaring.

-- How a column goes into an id and back: int, uuid, text, bpchar have an index that can be asked, other has not.
CREATE FUNCTION relata.track_column(tab regclass, col text, OUT kind text, OUT type regtype)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t pg_type;
BEGIN
    SELECT ty.* INTO t FROM pg_attribute a JOIN pg_type ty ON ty.oid = a.atttypid
    WHERE a.attrelid = tab AND a.attname = col AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        PERFORM relata.refuse_mapping(format('table %s has no column %I', tab, col), format('template {%s}.', col),
                                      'Names in braces are columns, spelt as in the catalog.');
    END IF;
    WHILE t.typtype = 'd' LOOP
        SELECT * INTO t FROM pg_type WHERE oid = t.typbasetype;
    END LOOP;
    type := t.oid;
    kind := CASE WHEN t.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN 'int'
                 WHEN t.oid = 'uuid'::regtype THEN 'uuid'
                 WHEN t.oid IN ('text'::regtype, 'varchar'::regtype) THEN 'text'
                 WHEN t.oid = 'bpchar'::regtype THEN 'bpchar'
                 WHEN t.typtype = 'e' OR t.typcategory = 'S' OR t.oid IN ('bool'::regtype, 'numeric'::regtype, 'oid'::regtype,
                      'inet'::regtype, 'cidr'::regtype, 'macaddr'::regtype, 'macaddr8'::regtype) THEN 'other' END;
END $$;

-- SQL for a template, its columns taken from `alias`.
CREATE FUNCTION relata.template_sql(tab regclass, parts text[], alias text) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    also constant text := relata.template_also(parts);
    terms text[] := '{}';
    c record;
BEGIN
    FOR i IN 1 .. cardinality(parts) LOOP
        IF i % 2 = 1 THEN
            IF parts[i] <> '' OR cardinality(parts) = 1 THEN
                terms := terms || quote_literal(parts[i]);
            END IF;
        ELSE
            c := relata.track_column(tab, parts[i]);
            IF c.kind IS NULL THEN
                PERFORM relata.refuse_mapping(format('column %I of type %s cannot be part of an id', parts[i], c.type),
                    'its text depends on settings, or is not unique.', 'Add a generated text column, and name that.');
            END IF;
            IF c.kind IN ('int', 'uuid') AND translate(also, '-0123456789abcdef', '') = also THEN
                terms := terms || format('%I.%I::text', alias, parts[i]); -- holds nothing to encode
            ELSE
                terms := terms || format('relata.encode_id(%I.%I::text%s)', alias, parts[i],
                                         CASE WHEN also <> '' THEN ', ' || quote_literal(also) ELSE '' END);
            END IF;
        END IF;
    END LOOP;
    RETURN '(' || array_to_string(terms, ' || ') || ')::text COLLATE "C"';
END $$;

-- SQL for a value of a condition's context, and the columns it takes.
CREATE FUNCTION relata.context_sql(tab regclass, v jsonb, alias text, INOUT columns text[], OUT expr text)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
    terms text[] := '{}';
    c record;
    k text;
    e jsonb;
    x record;
BEGIN
    CASE jsonb_typeof(v)
        WHEN 'object' THEN
            FOR k, e IN SELECT key, value FROM jsonb_each(v) LOOP
                x := relata.context_sql(tab, e, alias, columns);
                columns := x.columns;
                terms := terms || (quote_literal(k) || ', ' || x.expr);
            END LOOP;
            expr := format('jsonb_build_object(%s)', array_to_string(terms, ', '));
        WHEN 'array' THEN
            FOR e IN SELECT jsonb_array_elements(v) LOOP
                x := relata.context_sql(tab, e, alias, columns);
                columns := x.columns;
                terms := terms || x.expr;
            END LOOP;
            expr := format('jsonb_build_array(%s)', array_to_string(terms, ', '));
        WHEN 'string' THEN
            parts := relata.template_parts(v #>> '{}');
            FOR i IN 2 .. cardinality(parts) - 1 BY 2 LOOP
                columns := columns || parts[i];
            END LOOP;
            IF cardinality(parts) = 3 AND parts[1] = '' AND parts[3] = '' THEN
                -- The column alone keeps its type; times are RFC 3339 in UTC, as the store's timestamps.
                c := relata.track_column(tab, parts[2]);
                expr := CASE c.type
                    WHEN 'timestamptz'::regtype THEN format('to_jsonb(to_char(%I.%I AT TIME ZONE ''UTC'', ''YYYY-MM-DD"T"HH24:MI:SS.US"Z"''))', alias, parts[2])
                    WHEN 'timestamp'::regtype THEN format('to_jsonb(to_char(%I.%I, ''YYYY-MM-DD"T"HH24:MI:SS.US"Z"''))', alias, parts[2])
                    WHEN 'date'::regtype THEN format('to_jsonb(to_char(%I.%I, ''YYYY-MM-DD''))', alias, parts[2])
                    ELSE format('to_jsonb(%I.%I)', alias, parts[2]) END;
            ELSIF cardinality(parts) > 1 THEN
                FOR i IN 1 .. cardinality(parts) LOOP
                    IF i % 2 = 0 AND (relata.track_column(tab, parts[i])).kind IS NULL THEN
                        PERFORM relata.refuse_mapping(format('column %I cannot be part of a text', parts[i]),
                            'its text depends on settings.', 'Use it alone, as "{column}", or add a generated text column.');
                    END IF;
                    terms := terms || CASE WHEN i % 2 = 1 THEN quote_literal(parts[i]) ELSE format('%I.%I::text', alias, parts[i]) END;
                END LOOP;
                expr := format('to_jsonb(%s)', array_to_string(terms, ' || '));
            ELSE
                expr := format('%L::jsonb', v);
            END IF;
        ELSE
            expr := format('%L::jsonb', v);
    END CASE;
END $$;

-- Refuses a `when` that is no boolean expression over the row alone: subqueries, and functions whose answer can change
-- while the row does not (now(), for example), would change tuples without any trigger. An index predicate has the same
-- rules, so the server judges, on an empty copy of the table.
CREATE FUNCTION relata.check_when(tab regclass, expr text, alias text, place text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    probe constant text := format('%I.%I', place, alias);
    c refcursor;
    detail text;
BEGIN
    EXECUTE format('CREATE TABLE %s (LIKE %s)', probe, tab);
    OPEN c FOR EXECUTE format(E'SELECT FROM %s WHERE (%s\n)', probe, expr); -- a cursor takes one statement only
    CLOSE c;
    EXECUTE format(E'CREATE INDEX ON %s ((1)) WHERE (%s\n)', probe, expr);
    EXECUTE format('DROP TABLE %s', probe);
EXCEPTION WHEN syntax_error_or_access_rule_violation OR feature_not_supported OR data_exception THEN
    GET STACKED DIAGNOSTICS detail = MESSAGE_TEXT;
    PERFORM relata.refuse_mapping(format('"when" cannot be used: %s', expr), detail || '.',
        'It must be a boolean expression over columns of the row, without subqueries and without functions that depend on '
        'time, settings or other tables; names of your own need their schema.');
END $$;

-- One entry of a mapping.
CREATE FUNCTION relata.track_rule(tab regclass, alias text, place text, entry jsonb, OUT object text[], OUT relation text[],
                                  OUT subject text[], OUT columns text[], OUT query text, OUT conditional boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key text;
    sample text[] := '{}';
    cond constant jsonb := nullif(entry -> 'condition', 'null');
    context record;
    context_expr text := 'NULL::jsonb';
    p text[];
BEGIN
    FOR key IN SELECT k FROM jsonb_object_keys(entry) k WHERE k NOT IN ('object', 'relation', 'subject', 'when', 'condition') LOOP
        PERFORM relata.refuse_mapping(format('a mapping has no key "%s"', key), format('entry %s.', entry),
                                      'Keys are object, relation, subject, when, condition.');
    END LOOP;
    FOREACH key IN ARRAY ARRAY['object', 'relation', 'subject'] LOOP
        IF jsonb_typeof(entry -> key) IS DISTINCT FROM 'string' THEN
            PERFORM relata.refuse_mapping(format('"%s" is missing', key), format('entry %s.', entry),
                'Each entry needs object, relation and subject, for example "document:{id}", "owner", "user:{owner}".');
        END IF;
        p := relata.template_parts(entry ->> key);
        IF key = 'object' THEN object := p; ELSIF key = 'relation' THEN relation := p; ELSE subject := p; END IF;
        FOR i IN 2 .. cardinality(p) - 1 BY 2 LOOP
            columns := columns || p[i];
            p[i] := 'x';
        END LOOP;
        sample := sample || array_to_string(p, '');
    END LOOP;
    BEGIN
        PERFORM relata.check_tuple(sample[1], sample[2], sample[3]);
    EXCEPTION WHEN SQLSTATE 'RL001' THEN
        PERFORM relata.refuse_mapping('a template can never make a tuple: ' || SQLERRM, format('entry %s.', entry),
                                      'object is type:id, subject is type:id, type:id#relation or type:*.');
    END;
    IF jsonb_typeof(entry -> 'when') NOT IN ('string', 'null') THEN
        PERFORM relata.refuse_mapping('"when" must be a string', format('entry %s.', entry), 'Write an SQL expression.');
    END IF;
    IF entry ->> 'when' IS NOT NULL THEN
        PERFORM relata.check_when(tab, entry ->> 'when', alias, place);
    END IF;
    conditional := cond IS NOT NULL;
    IF conditional THEN
        IF jsonb_typeof(cond -> 'name') IS DISTINCT FROM 'string' OR jsonb_typeof(coalesce(cond -> 'context', '{}')) <> 'object'
           OR cond - 'name' - 'context' <> '{}' THEN
            PERFORM relata.refuse_mapping('"condition" must be {"name": .., "context": {..}}', format('entry %s.', entry),
                                          'The context may hold "{column}".');
        END IF;
        PERFORM relata.check_condition(cond ->> 'name', NULL);
        context := relata.context_sql(tab, coalesce(cond -> 'context', '{}'), alias, columns);
        columns := context.columns;
        context_expr := context.expr;
    END IF;
    columns := ARRAY(SELECT DISTINCT c FROM unnest(columns) c ORDER BY c);
    -- %1$s is where the rows come from, %2$s further columns; everything else is quoted against format().
    query := format('SELECT %s AS object, %s AS relation, %s AS subject, %s AS condition_name, %s AS condition_context',
                    relata.template_sql(tab, object, alias), relata.template_sql(tab, relation, alias),
                    relata.template_sql(tab, subject, alias),
                    CASE WHEN conditional THEN quote_literal(cond ->> 'name') ELSE 'NULL' END || '::text COLLATE "C"',
                    context_expr);
    query := replace(query, '%', '%%') || '%2$s FROM %1$s AS ' || replace(quote_ident(alias), '%', '%%') || ' WHERE '
        || replace(coalesce((SELECT string_agg(format('%I.%I IS NOT NULL AND ', alias, c), '') FROM unnest(columns) c), '')
                   || '(' || coalesce(entry ->> 'when', 'true') || E'\n)', '%', '%%');
END $$;

-- SQL that finds a rule's rows by equality on the columns that templates name: `matches` joins what they give, `joins`
-- compares. parts: 1 object, 2 relation, 3 subject.
CREATE FUNCTION relata.track_match(tab regclass, object text[], relation text[], subject text[], parts int[], OUT matches text,
                                   OUT joins text)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p text[];
    kind text;
    part int;
BEGIN
    matches := '';
    joins := '';
    FOREACH part IN ARRAY parts LOOP
        p := CASE part WHEN 1 THEN object WHEN 2 THEN relation ELSE subject END;
        IF cardinality(p) = 1 THEN
            joins := joins || format(' AND k.%s = %L', substr('ors', part, 1), p[1]);
            CONTINUE;
        END IF;
        matches := matches || format(', LATERAL (SELECT relata.template_match(k.%1$s, %2$L) AS v OFFSET 0) AS m%1$s',
                                     substr('ors', part, 1), p);
        FOR i IN 2 .. cardinality(p) - 1 BY 2 LOOP
            kind := (relata.track_column(tab, p[i])).kind;
            joins := joins || format(CASE kind WHEN 'int' THEN ' AND v.%1$I = relata.as_bigint(m%2$s.v[%3$s])'
                                               WHEN 'uuid' THEN ' AND v.%1$I = relata.as_uuid(m%2$s.v[%3$s])'
                                               WHEN 'text' THEN ' AND v.%1$I = m%2$s.v[%3$s]'
                                               WHEN 'bpchar' THEN ' AND v.%1$I = m%2$s.v[%3$s]::bpchar'
                                               ELSE ' AND v.%1$I::text = m%2$s.v[%3$s]' END,
                                     'key_' || p[i], substr('ors', part, 1), i / 2);
        END LOOP;
    END LOOP;
END $$;

-- SQL that finds which of given keys a rule's rows stand for.
CREATE FUNCTION relata.track_lookup(tab regclass, place text, view_name text, object text[], relation text[], subject text[],
                                    conditional boolean) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    m constant record := relata.track_match(tab, object, relation, subject, '{1,2,3}');
BEGIN
    -- Without a condition one row is enough, though thousands may stand for the same tuple.
    RETURN format(CASE WHEN conditional
                       THEN 'SELECT k.n, v.condition_name, v.condition_context FROM unnest($1, $2, $3) WITH ORDINALITY AS '
                            'k(o, r, s, n)%1$s, %4$I.%2$I AS v WHERE v.object = k.o AND v.relation = k.r AND v.subject = k.s%3$s'
                       ELSE 'SELECT k.n, NULL::text, NULL::jsonb FROM unnest($1, $2, $3) WITH ORDINALITY AS k(o, r, s, n)%1$s '
                            'WHERE EXISTS (SELECT FROM %4$I.%2$I AS v WHERE v.object = k.o AND v.relation = k.r '
                            'AND v.subject = k.s%3$s)' END,
                  m.matches, view_name, m.joins, place);
END $$;

-- SQL that finds a rule's rows whose object (part 1) or subject (part 3) is the given one.
CREATE FUNCTION relata.track_about(tab regclass, place text, view_name text, object text[], relation text[], subject text[],
                                   part int) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    m constant record := relata.track_match(tab, object, relation, subject, ARRAY[part]);
BEGIN
    RETURN format('SELECT v.object, v.relation, v.subject, v.condition_name, v.condition_context FROM (SELECT $%5$s AS %6$s) AS '
                  'k%1$s, %4$I.%2$I AS v WHERE v.%7$s = k.%6$s%3$s', m.matches, view_name, m.joins, place,
                  CASE part WHEN 1 THEN 1 ELSE 2 END, CASE part WHEN 1 THEN 'o' ELSE 's' END,
                  CASE part WHEN 1 THEN 'object' ELSE 'subject' END);
END $$;

-- For audits: sums of hashes of what a rule's rows stand for, by type, relation and bucket (-1: conditional, whose sum means
-- nothing); first by a mask of 0, then by another. What is the same for all rows is not grouped by, which costs as much as the hash.
CREATE FUNCTION relata.track_digest(place text, view_name text, object_type text, relation text, conditional boolean) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    type_sql constant text := coalesce(quote_literal(object_type) || '::text', 'split_part(h.object, '':'', 1)');
    relation_sql constant text := coalesce(quote_literal(relation) || '::text', 'h.relation');
    hashed constant text := format('(SELECT v.object, v.relation, v.condition_name IS NULL AS plain, hashtextextended(v.subject COLLATE "C", '
        'hashtextextended(v.relation COLLATE "C", hashtextextended(v.object COLLATE "C", salt))) AS hash FROM %I.%I v) h', place, view_name);
    groups constant text[] := array_remove(ARRAY[CASE WHEN object_type IS NULL THEN '1' END, CASE WHEN relation IS NULL THEN '2' END], NULL);
    by_pair constant text[] := groups || CASE WHEN conditional THEN ARRAY['h.plain'] ELSE '{}' END;
BEGIN
    RETURN ARRAY[
        format('SELECT %s, %s, %s::bigint, count(*), coalesce(sum(h.hash), 0) FROM %s%s HAVING count(*) > 0', type_sql, relation_sql,
               CASE WHEN conditional THEN 'CASE WHEN h.plain THEN 0 ELSE -1 END' ELSE '0' END, hashed,
               CASE WHEN cardinality(by_pair) > 0 THEN ' GROUP BY ' || array_to_string(by_pair, ', ') ELSE '' END),
        format('SELECT %s, %s, %s, count(*), coalesce(sum(h.hash), 0) FROM %s GROUP BY %s', type_sql, relation_sql,
               CASE WHEN conditional THEN 'CASE WHEN h.plain THEN h.hash & mask ELSE -1 END' ELSE 'h.hash & mask' END, hashed,
               array_to_string(groups || ARRAY['3'], ', '))];
END $$;

-- NULL, or the index that a rule's lookups lack: one that begins with any column of its object or subject will do.
CREATE FUNCTION relata.track_advice(tab regclass, object text[], subject text[]) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_object text[];
    of_subject text[];
BEGIN
    SELECT array_agg(object[i] ORDER BY i) INTO of_object FROM generate_series(2, cardinality(object) - 1, 2) i
    WHERE (relata.track_column(tab, object[i])).kind <> 'other';
    SELECT array_agg(subject[i] ORDER BY i) INTO of_subject FROM generate_series(2, cardinality(subject) - 1, 2) i
    WHERE (relata.track_column(tab, subject[i])).kind <> 'other';
    IF EXISTS (SELECT FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
               WHERE x.indrelid = tab AND x.indisvalid AND x.indpred IS NULL
                 AND a.attname = ANY (of_object || of_subject)) THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(format('CREATE INDEX ON %s (%s);', tab,
        (SELECT string_agg(quote_ident(col), ', ') FROM unnest(coalesce(of_object, of_subject)) col)),
        'No column of the mapping can be looked up by an index; add a generated text column, or accept the scan.');
END $$;

-- The functions and triggers of a table.
CREATE FUNCTION relata.track_generate(place text, f text, tab regclass, store text, source text, conditional boolean,
                                      statement_level boolean, lookups text[], abouts text[], expected text[], digests text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Without conditions a tuple is its key, and what appears can be written as it is.
    cols constant text := 'object, relation, subject' || CASE WHEN conditional THEN ', condition_name, condition_context' ELSE '' END;
    new_rows constant text := format(source, CASE WHEN statement_level THEN 'relata_new' ELSE '(SELECT NEW.*)' END, '');
    old_rows constant text := format(source, CASE WHEN statement_level THEN 'relata_old' ELSE '(SELECT OLD.*)' END, '');
    added constant text := CASE WHEN conditional THEN 'false' ELSE 'true' END;
    chunked constant text := format(
        'SELECT array_agg(d.object) FILTER (WHERE d.added) AS ao, array_agg(d.relation) FILTER (WHERE d.added) AS ar, '
        'array_agg(d.subject) FILTER (WHERE d.added) AS asub, array_agg(d.object) FILTER (WHERE NOT d.added) AS ro, '
        'array_agg(d.relation) FILTER (WHERE NOT d.added) AS rr, array_agg(d.subject) FILTER (WHERE NOT d.added) AS rs '
        'FROM (SELECT d.*, (row_number() OVER (ORDER BY d.object, d.relation, d.subject) - 1) / 100000 AS chunk FROM (%%s) d) d '
        'WHERE d.object IS NOT NULL GROUP BY d.chunk ORDER BY d.chunk');
    apply constant text := format(E'LOOP\n            PERFORM relata.track_apply(%L, x.ao, x.ar, x.asub, x.ro, x.rr, x.rs);\n        END LOOP;', store);
    body text;
    part regclass;
    fn text;
BEGIN
    body := format($f$
-- Generated by relata.track for table %1$s.
DECLARE
    x record;
BEGIN
    IF TG_OP = 'INSERT' THEN
        FOR x IN %3$s %6$s
    ELSIF TG_OP = 'DELETE' THEN
        FOR x IN %4$s %6$s
    ELSE
        FOR x IN WITH o AS MATERIALIZED (SELECT %7$s FROM (%9$s) q), n AS MATERIALIZED (SELECT %7$s FROM (%8$s) q)
            %5$s %6$s
    END IF;
    RETURN NULL;
END $f$, tab, NULL,
        format(chunked, format('SELECT q.object, q.relation, q.subject, %s AS added FROM (%s) q', added, new_rows)),
        format(chunked, format('SELECT q.object, q.relation, q.subject, false AS added FROM (%s) q', old_rows)),
        format(chunked, format('SELECT q.object, q.relation, q.subject, %s AS added FROM (TABLE n EXCEPT TABLE o) q UNION ALL '
                               'SELECT q.object, q.relation, q.subject, false AS added FROM (TABLE o EXCEPT TABLE n) q', added)),
        apply, cols, new_rows, old_rows);
    EXECUTE format('CREATE FUNCTION %I.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', place, f || '_change', body);
    body := format($f$
DECLARE
    x record;
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        PERFORM relata.check_isolation('TRUNCATE of tracked table ' || TG_RELID::regclass);
        FOR x IN EXECUTE 'SELECT array_agg(d.object) AS o, array_agg(d.relation) AS r, array_agg(d.subject) AS s FROM '
            '(SELECT q.*, row_number() OVER () / 100000 AS chunk FROM (' || format(%2$L, 'ONLY ' || TG_RELID::regclass, '')
            || ') q) d WHERE d.object IS NOT NULL GROUP BY d.chunk' LOOP
            PERFORM relata.track_stash('%1$s', x.o, x.r, x.s);
        END LOOP;
    ELSE
        PERFORM relata.track_unstash('%1$s');
    END IF;
    RETURN NULL;
END $f$, tab::oid, source);
    EXECUTE format('CREATE FUNCTION %I.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', place, f || '_truncate', body);
    EXECUTE format('CREATE FUNCTION %I.%I(text[], text[], text[]) RETURNS TABLE (n bigint, condition_name text, '
                   'condition_context jsonb) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
                   'SET row_security = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS %L', place, f || '_yields',
                   E'#variable_conflict use_column\nBEGIN\n    RETURN QUERY ' || array_to_string(lookups, E'\n        UNION ALL ') || E';\nEND');
    EXECUTE format('CREATE FUNCTION %I.%I() RETURNS TABLE (object text, relation text, subject text, '
                   'condition_name text, condition_context jsonb) LANGUAGE plpgsql STABLE SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET row_security = off AS %L', place, f || '_expected',
                   E'#variable_conflict use_column\nBEGIN\n    RETURN QUERY SELECT DISTINCT ON (1, 2, 3) * FROM ('
                   || array_to_string(expected, E'\n        UNION ALL ')
                   || E') e ORDER BY 1, 2, 3, e.condition_name NULLS FIRST, e.condition_context::text COLLATE "C" NULLS FIRST;\nEND');
    -- For audits: sums of hashes (relata.track_digest); the tuples of some buckets (NULL: all), a row each time that a row stands for
    -- one; and those of one object or one subject.
    EXECUTE format('CREATE FUNCTION %I.%I(salt bigint, mask bigint) RETURNS TABLE (object_type text, relation text, bucket bigint, '
                   'n bigint, total numeric) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
                   'SET row_security = off SET enable_sort = off SET work_mem = ''64MB'' AS %L', place, f || '_digest',
                   E'#variable_conflict use_column\nBEGIN\n    IF mask = 0 THEN'
                   || (SELECT string_agg(E'\n        RETURN QUERY ' || digests[i] || ';', '' ORDER BY i) FROM generate_series(1, cardinality(digests), 2) i)
                   || E'\n    ELSE'
                   || (SELECT string_agg(E'\n        RETURN QUERY ' || digests[i] || ';', '' ORDER BY i) FROM generate_series(2, cardinality(digests), 2) i)
                   || E'\n    END IF;\nEND');
    EXECUTE format('CREATE FUNCTION %I.%I(salt bigint, mask bigint, buckets bigint[]) RETURNS TABLE (object text, relation text, subject text, '
                   'condition_name text, condition_context jsonb) LANGUAGE plpgsql STABLE SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET row_security = off SET plan_cache_mode = force_custom_plan AS %L', place, f || '_part',
                   E'#variable_conflict use_column\nBEGIN\n    RETURN QUERY SELECT e.* FROM ('
                   || array_to_string(expected, E'\n        UNION ALL ')
                   || E') e WHERE buckets IS NULL OR e.condition_name IS NOT NULL OR hashtextextended(e.subject COLLATE "C", '
                      'hashtextextended(e.relation COLLATE "C", hashtextextended(e.object COLLATE "C", salt))) & mask = ANY (buckets);\nEND');
    EXECUTE format('CREATE FUNCTION %I.%I(text, text) RETURNS TABLE (object text, relation text, subject text, '
                   'condition_name text, condition_context jsonb) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, '
                   'pg_temp SET row_security = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS %L', place, f || '_about',
                   E'#variable_conflict use_column\nBEGIN\n    IF $1 IS NOT NULL THEN\n        RETURN QUERY '
                   || array_to_string(abouts[:cardinality(lookups)], E'\n        UNION ALL ')
                   || E';\n    ELSE\n        RETURN QUERY ' || array_to_string(abouts[cardinality(lookups) + 1:], E'\n        UNION ALL ')
                   || E';\n    END IF;\nEND');
    body := format($f$#variable_conflict use_column
BEGIN
    RETURN QUERY EXECUTE format(%L, format('(SELECT * FROM ONLY %%s WHERE ctid >= ''(%%s,0)'' AND ctid < ''(%%s,0)'')', part, low, high), '');
END $f$, source);
    EXECUTE format('CREATE FUNCTION %I.%I(part regclass, low bigint, high bigint) RETURNS TABLE (object text, relation text, '
                   'subject text, condition_name text, condition_context jsonb) LANGUAGE plpgsql STABLE SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET row_security = off AS %L', place, f || '_rows', body);
    FOREACH fn IN ARRAY ARRAY['_change()', '_truncate()', '_yields(text[], text[], text[])', '_expected()', '_rows(regclass, bigint, bigint)',
                              '_digest(bigint, bigint)', '_part(bigint, bigint, bigint[])', '_about(text, text)'] LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %I.%s FROM PUBLIC', place, f || fn);
        IF fn !~ 'change|truncate' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %I.%s TO relata_lookup', place, f || fn);
        END IF;
    END LOOP;
    IF statement_level THEN
        EXECUTE format('CREATE TRIGGER relata_insert AFTER INSERT ON %s REFERENCING NEW TABLE AS relata_new '
                       'FOR EACH STATEMENT EXECUTE FUNCTION %I.%I()', tab, place, f || '_change');
        EXECUTE format('CREATE TRIGGER relata_update AFTER UPDATE ON %s REFERENCING OLD TABLE AS relata_old NEW TABLE AS '
                       'relata_new FOR EACH STATEMENT EXECUTE FUNCTION %I.%I()', tab, place, f || '_change');
        EXECUTE format('CREATE TRIGGER relata_delete AFTER DELETE ON %s REFERENCING OLD TABLE AS relata_old '
                       'FOR EACH STATEMENT EXECUTE FUNCTION %I.%I()', tab, place, f || '_change');
    ELSE
        EXECUTE format('CREATE TRIGGER relata_change AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
                       'EXECUTE FUNCTION %I.%I()', tab, place, f || '_change');
    END IF;
    FOR part IN SELECT p.relid FROM pg_partition_tree(tab) p WHERE p.isleaf UNION SELECT tab WHERE statement_level
                    OR NOT EXISTS (SELECT FROM pg_partition_tree(tab)) LOOP
        EXECUTE format('CREATE TRIGGER relata_truncate_1 BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION '
                       '%I.%I()', part, place, f || '_truncate');
        EXECUTE format('CREATE TRIGGER relata_truncate_2 AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION '
                       '%I.%I()', part, place, f || '_truncate');
    END LOOP;
END $$;

-- The schema of what is generated for an owner's tables; only that owner can create anything there.
CREATE FUNCTION relata.track_place(tab regclass) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner constant oid := (SELECT relowner FROM pg_class WHERE oid = tab);
    place constant text := 'relata_track_' || owner;
BEGIN
    IF NOT pg_has_role(owner, 'relata_service', 'USAGE') THEN
        RAISE EXCEPTION 'the owner of table % may not write tuples', tab USING ERRCODE = '42501',
            HINT = format('GRANT relata_service TO %s;', owner::regrole);
    END IF;
    IF to_regnamespace(place) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', place);
    END IF;
    IF (SELECT n.nspowner <> current_user::regrole FROM pg_namespace n WHERE n.nspname = place) THEN
        RAISE EXCEPTION 'schema % belongs to somebody else', place USING ERRCODE = '42501', HINT = 'Find out who made it, and drop it.';
    END IF;
    IF NOT has_schema_privilege(owner, place, 'USAGE, CREATE') OR NOT has_schema_privilege('relata_lookup', place, 'USAGE') THEN
        EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO %s', place, owner::regrole);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO relata_lookup', place);
    END IF;
    RETURN place;
END $$;

-- Registers a table whose functions are there: its owner made them, for nobody else could.
CREATE FUNCTION relata.track_register(tab regclass, store text, mapping jsonb, rules jsonb) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner constant oid := (SELECT relowner FROM pg_class WHERE oid = tab);
    place constant text := relata.track_place(tab);
    this int;
BEGIN
    IF (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = place::regnamespace AND p.proowner = owner AND p.prosecdef
        AND p.proname IN (SELECT format('t%s_%s', tab::oid, k) FROM unnest(ARRAY['change', 'truncate', 'yields', 'expected', 'rows',
            'digest', 'part', 'about']) k)) <> 8
       OR relata.store_ok(store) IS NOT TRUE THEN
        RAISE EXCEPTION 'table % was not prepared by its owner', tab USING ERRCODE = '42501', HINT = 'Call relata.track.';
    END IF;
    INSERT INTO relata.tracked (tab, store, mapping, place) VALUES (tab, store, mapping, place) RETURNING id INTO this;
    INSERT INTO relata.tracked_rule (track, n, object_type, relation, subject_type)
    SELECT this, r.i, r.v ->> 0, r.v ->> 1, r.v ->> 2 FROM jsonb_array_elements(rules) WITH ORDINALITY r(v, i);
    RETURN this;
END $$;

-- Forgets a table whose functions its owner has dropped.
CREATE FUNCTION relata.track_unregister(tab regclass, remove boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t constant relata.tracked := (SELECT k FROM relata.tracked k WHERE k.tab = track_unregister.tab);
BEGIN
    IF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace(t.place) AND p.proname = format('t%s_change', tab::oid)) THEN
        RAISE EXCEPTION 'table % is tracked', tab USING ERRCODE = '42501', HINT = 'Call relata.untrack as its owner.';
    END IF;
    DELETE FROM relata.tracked_rule r WHERE r.track = t.id;
    IF remove THEN -- the rules are gone already, so the table's rows do not count
        PERFORM relata.track_unstash(tab);
    END IF;
    DELETE FROM relata.tracked k WHERE k.id = t.id;
END $$;

-- What has to be done as the table's owner; returns the rules.
CREATE FUNCTION relata.track_install(tab regclass, store text, mapping jsonb, place text) RETURNS jsonb
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c constant pg_class := (SELECT k FROM pg_class k WHERE k.oid = tab);
    f constant text := 't' || tab::oid; -- prefix of generated names
    rule record;
    entry jsonb;
    src text := '';
    lookups text[] := '{}';
    by_object text[] := '{}';
    by_subject text[] := '{}';
    expected text[] := '{}';
    digests text[] := '{}';
    object_type text;
    relation text;
    rules jsonb := '[]';
    conditional boolean := false;
    n int := 0;
    advice text;
BEGIN
    FOR entry IN SELECT jsonb_array_elements(mapping) LOOP
        n := n + 1;
        IF jsonb_typeof(entry) <> 'object' THEN
            PERFORM relata.refuse_mapping('an entry of the mapping must be an object', format('entry %s.', entry), 'Use {"object": ..}.');
        END IF;
        rule := relata.track_rule(tab, c.relname, place, entry);
        conditional := conditional OR rule.conditional;
        src := src || CASE WHEN n > 1 THEN ' UNION ALL ' ELSE '' END || rule.query;
        EXECUTE format('CREATE VIEW %I.%I AS ', place, f || '_r' || n)
            || format(rule.query, CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || tab,
                      (SELECT string_agg(format(', %I.%I AS %I', c.relname, col, 'key_' || col), '') FROM unnest(rule.columns) col));
        lookups := lookups || relata.track_lookup(tab, place, f || '_r' || n, rule.object, rule.relation, rule.subject, rule.conditional);
        by_object := by_object || relata.track_about(tab, place, f || '_r' || n, rule.object, rule.relation, rule.subject, 1);
        by_subject := by_subject || relata.track_about(tab, place, f || '_r' || n, rule.object, rule.relation, rule.subject, 3);
        expected := expected || format('SELECT v.object, v.relation, v.subject, v.condition_name, v.condition_context FROM %I.%I v', place, f || '_r' || n);
        object_type := CASE WHEN strpos(rule.object[1], ':') > 0 THEN split_part(rule.object[1], ':', 1) END;
        relation := CASE WHEN cardinality(rule.relation) = 1 THEN rule.relation[1] END;
        digests := digests || relata.track_digest(place, f || '_r' || n, object_type, relation, rule.conditional);
        rules := rules || jsonb_build_array(jsonb_build_array(object_type, relation,
            CASE WHEN strpos(rule.subject[1], ':') > 0 THEN split_part(rule.subject[1], ':', 1) END));
        advice := relata.track_advice(tab, rule.object, rule.subject);
        IF advice IS NOT NULL THEN
            RAISE NOTICE 'deleting rows of % will scan it for others with the same tuple', tab USING HINT = advice;
        END IF;
    END LOOP;
    PERFORM relata.track_generate(place, f, tab, store, src, conditional,
                                  c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = tab), lookups,
                                  by_object || by_subject, expected, digests);
    RETURN rules;
END $$;

CREATE FUNCTION relata.track(tab regclass, mapping jsonb, store text DEFAULT 'default') RETURNS int
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c pg_class;
    old relata.tracked;
    place text;
    install text;
    rules jsonb;
    this int;
BEGIN
    SELECT * INTO c FROM pg_class WHERE oid = tab;
    IF c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p' THEN
        PERFORM relata.refuse_mapping(format('%s cannot be tracked', tab),
            'only ordinary and partitioned tables can; an unlogged table is emptied by a crash without any trigger.',
            'Track the tables below a view, or use a logged table.');
    END IF;
    IF NOT pg_has_role(c.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', tab USING ERRCODE = '42501';
    END IF;
    IF c.relforcerowsecurity THEN
        PERFORM relata.refuse_mapping(format('%s forces row security on its owner', tab),
            'rows that its owner cannot see would lose their tuples.', 'ALTER TABLE .. NO FORCE ROW LEVEL SECURITY.');
    END IF;
    IF relata.store_ok(store) IS NOT TRUE THEN
        PERFORM relata.refuse('store', store, 'must be 1 to 64 of A-Z a-z 0-9 _ -', 'Use the name of a row of relata.store.');
    END IF;
    IF jsonb_typeof(mapping) IS DISTINCT FROM 'array' OR jsonb_array_length(mapping) = 0 THEN
        PERFORM relata.refuse_mapping('the mapping must be a non-empty list', format('mapping %s.', mapping),
            'For example [{"object": "document:{id}", "relation": "owner", "subject": "user:{owner}"}].');
    END IF;
    SELECT * INTO old FROM relata.tracked t WHERE t.tab = track.tab;
    IF FOUND THEN
        IF old.mapping = mapping AND old.store = store THEN
            RETURN old.id;
        END IF;
        PERFORM relata.refuse_mapping(format('%s is tracked with another mapping', tab), format('mapping %s.', old.mapping),
            'SELECT relata.untrack(table, true) first: it removes the tuples of the old mapping in the same transaction.');
    END IF;
    -- No row may change between here and the triggers.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    place := relata.track_place(tab);
    -- By a function of the owner: the caller may be more than that, and must not run the owner's expressions.
    install := format('%I.%I', place, 't' || tab::oid || '_install');
    EXECUTE format('CREATE FUNCTION %s() RETURNS jsonb LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
                   install, format('SELECT relata.track_install(%L, %L, %L, %L)', tab::oid, store, mapping, place));
    EXECUTE format('ALTER FUNCTION %s() OWNER TO %s', install, c.relowner::regrole);
    EXECUTE format('SELECT %s()', install) INTO rules;
    EXECUTE format('DROP FUNCTION %s()', install);
    this := relata.track_register(tab, store, mapping, rules);
    IF EXISTS (SELECT FROM pg_class WHERE oid = tab AND reltuples > 0) THEN
        RAISE NOTICE 'rows that % holds already have no tuples yet', tab
            USING HINT = format('CALL relata.backfill(%L);', tab::text);
    END IF;
    RETURN this;
END $$;

-- Drops the triggers. The tuples stay, unless `remove` is true: then those that no row of another tracked table stands for go,
-- in this transaction.
CREATE FUNCTION relata.untrack(tab regclass, remove boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c constant pg_class := (SELECT k FROM pg_class k WHERE k.oid = tab);
    t relata.tracked;
    name text;
BEGIN
    IF NOT pg_has_role(c.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', tab USING ERRCODE = '42501';
    END IF;
    SELECT * INTO t FROM relata.tracked k WHERE k.tab = untrack.tab;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    IF remove THEN
        PERFORM relata.check_isolation(format('relata.untrack(%L, true)', tab::text));
        PERFORM relata.track_stash_all(tab);
    END IF;
    FOREACH name IN ARRAY ARRAY['change()', 'truncate()', 'yields(text[], text[], text[])', 'expected()', 'rows(regclass, bigint, bigint)',
                                'digest(bigint, bigint)', 'part(bigint, bigint, bigint[])', 'about(text, text)'] LOOP
        EXECUTE format('DROP FUNCTION %I.t%s_%s CASCADE', t.place, tab::oid, name);
    END LOOP;
    FOR name IN SELECT format('%I.t%s_r%s', t.place, tab::oid, r.n) FROM relata.tracked_rule r WHERE r.track = t.id LOOP
        EXECUTE 'DROP VIEW ' || name;
    END LOOP;
    PERFORM relata.track_unregister(tab, remove);
END $$;

-- Writes the tuples of rows that were there before relata.track, some blocks a transaction. Interrupted, it goes on where it
-- stopped; finished, it begins again. Rows that change meanwhile are the triggers' business, which is why the order of
-- the heap may be followed: a row that moves has been written.
CREATE PROCEDURE relata.backfill(tab regclass, batch int DEFAULT 10000)
    LANGUAGE plpgsql AS $$
DECLARE
    part regclass;
    x record;
    tries int;
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT EXISTS (SELECT FROM relata.tracked k WHERE k.tab = backfill.tab) THEN
        RAISE EXCEPTION '% is not tracked', tab USING ERRCODE = 'RL003', HINT = 'Call relata.track first.';
    END IF;
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = tab), 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', tab USING ERRCODE = '42501';
    END IF;
    IF batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION 'batch must be at least 1 row' USING ERRCODE = 'RL003', DETAIL = format('batch is %s.', batch);
    END IF;
    FOR part IN SELECT c.oid FROM pg_class c
                WHERE c.relkind = 'r' AND (c.oid = tab OR c.oid IN (SELECT p.relid FROM pg_partition_tree(tab) p WHERE p.isleaf))
                ORDER BY c.oid LOOP
        LOOP
            tries := 0;
            LOOP
                BEGIN
                    x := relata.backfill_batch(tab, part, batch);
                    EXIT;
                EXCEPTION WHEN deadlock_detected OR serialization_failure THEN
                    tries := tries + 1;
                    IF tries >= 10 THEN
                        RAISE;
                    END IF;
                END;
            END LOOP;
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            RAISE NOTICE '%: block % of %, % tuples written', part, least(x.next_block, x.blocks), x.blocks, x.emitted;
            EXIT WHEN x.next_block >= x.blocks;
        END LOOP;
    END LOOP;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Rights. The functions that call table owners' code belong to a role that may only that.
GRANT USAGE ON SCHEMA relata TO relata_lookup;
GRANT SELECT ON relata.tracked, relata.tracked_rule TO relata_lookup;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA relata FROM PUBLIC;
REVOKE EXECUTE ON ALL PROCEDURES IN SCHEMA relata FROM PUBLIC;
DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'relata_lookup', 'MEMBER') THEN -- always held by a superuser
        BEGIN
            EXECUTE format('GRANT relata_lookup TO %I', current_user);
        EXCEPTION WHEN unique_violation THEN
            NULL; -- roles are the cluster's: another database was migrated at the same time
        END;
    END IF;
    EXECUTE 'GRANT CREATE ON SCHEMA relata TO relata_lookup';
    EXECUTE format('GRANT EXECUTE ON FUNCTION relata.yielded, relata.expected, relata.rows_of TO %I', current_user);
    GRANT EXECUTE ON FUNCTION relata.yielded, relata.expected, relata.expected_digest, relata.expected_part, relata.expected_about
        TO relata_auditor, relata_repair;
    ALTER FUNCTION relata.yielded OWNER TO relata_lookup;
    ALTER FUNCTION relata.expected OWNER TO relata_lookup;
    ALTER FUNCTION relata.rows_of OWNER TO relata_lookup;
    ALTER FUNCTION relata.expected_digest OWNER TO relata_lookup;
    ALTER FUNCTION relata.expected_part OWNER TO relata_lookup;
    ALTER FUNCTION relata.expected_about OWNER TO relata_lookup;
    EXECUTE 'REVOKE CREATE ON SCHEMA relata FROM relata_lookup';
END $$;

GRANT SELECT ON relata.tracked, relata.tracked_rule TO relata_service;
GRANT SELECT ON relata.backfill TO relata_service;
GRANT SELECT ON relata.tracked, relata.tracked_rule, relata.backfill TO relata_auditor, relata_repair;
GRANT EXECUTE ON FUNCTION relata.encode_bytes(text, text), relata.encode_id(text), relata.encode_id(text, text),
    relata.decode_id(text) TO relata_service, relata_relay, relata_writer, relata_lister, relata_auditor, relata_repair;
GRANT EXECUTE ON FUNCTION relata.as_bigint, relata.as_uuid, relata.refuse_mapping, relata.template_parts, relata.template_also,
    relata.template_match, relata.template_sql, relata.context_sql, relata.check_when, relata.track_column, relata.track_rule,
    relata.track_match, relata.track_lookup, relata.track_about, relata.track_digest, relata.track_advice, relata.track_generate, relata.track_place, relata.track_install,
    relata.track_register, relata.track_unregister, relata.track_apply, relata.track_stash, relata.track_stash_all,
    relata.track_unstash, relata.check_isolation, relata.backfill_batch, relata.track, relata.untrack TO relata_service;
GRANT EXECUTE ON PROCEDURE relata.backfill TO relata_service;
