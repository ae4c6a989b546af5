-- Writing the outbox: validation, the ledger upsert, and the functions that services call.
--
-- SQLSTATEs: RL001 a part of the tuple is malformed (COLUMN and DETAIL name it), RL002 id or xid given by the caller.
--
-- What others may call is SECURITY DEFINER with a fixed search_path. Functions without either are internals: only their
-- owner may execute them, and they run within those (a SET clause costs 10 us a call, too much for a row).

-- ---------------------------------------------------------------------------------------------------------------------
-- The store's grammar, OpenFGA 1.22.1 as its server enforces it on Write. White space means ASCII's: the server takes
-- U+00A0 and others. No counted repetitions: they cost 27 us where '+' costs 0.7.
CREATE FUNCTION relata.object_ok(object text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN object COLLATE "C" OPERATOR(pg_catalog.~) E'^[^:#@\\x01-\\x20\\x7f-\\x9f]+:[^:#\\x01-\\x20\\x7f-\\x9f]+$'
       AND pg_catalog.right(object, 2) OPERATOR(pg_catalog.<>) ':*'
       AND pg_catalog.length(object) OPERATOR(pg_catalog.<=) 256;

CREATE FUNCTION relata.relation_ok(relation text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN relation COLLATE "C" OPERATOR(pg_catalog.~) E'^[^:#@\\x01-\\x20\\x7f-\\x9f]+$'
       AND pg_catalog.length(relation) OPERATOR(pg_catalog.<=) 50;

-- type:id, type:* or type:id#relation; no '*' in a userset's id and relation.
CREATE FUNCTION relata.subject_ok(subject text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN subject COLLATE "C" OPERATOR(pg_catalog.~) E'^[^:#@\\x01-\\x20\\x7f-\\x9f]+:([^:#\\x01-\\x20\\x7f-\\x9f]+|[^:#*\\x01-\\x20\\x7f-\\x9f]+#[^:#@*\\x01-\\x20\\x7f-\\x9f]+)$'
       AND pg_catalog.octet_length(subject) OPERATOR(pg_catalog.<=) 512
       AND pg_catalog.strpos(subject, ':') OPERATOR(pg_catalog.<=) 255
       AND pg_catalog.length(pg_catalog.split_part(subject, '#', 2)) OPERATOR(pg_catalog.<=) 50;

-- The same for all three at once, and not object#relation@object#relation, which the store refuses: it holds by itself. Each
-- row is tested by this; LIKE costs a third of a regular expression, so only the class of characters is left to one. The
-- operators of a RETURN body are chosen here, when it is created, not by the search_path of whoever calls it.
CREATE FUNCTION relata.tuple_ok(object text, relation text, subject text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (object || relation || subject) COLLATE "C" !~ E'[\\x01-\\x20\\x7f-\\x9f]'
       AND object COLLATE "C" LIKE '_%:_%' AND object COLLATE "C" NOT LIKE '%:%:%' AND object COLLATE "C" NOT LIKE '%#%'
       AND object COLLATE "C" NOT LIKE '%@%:%' AND object COLLATE "C" NOT LIKE '%:*'
       AND (octet_length(object) <= 256 OR length(object) <= 256)
       AND relation COLLATE "C" LIKE '_%' AND relation COLLATE "C" NOT LIKE '%:%' AND relation COLLATE "C" NOT LIKE '%#%'
       AND relation COLLATE "C" NOT LIKE '%@%' AND (octet_length(relation) <= 50 OR length(relation) <= 50)
       AND subject COLLATE "C" LIKE '_%:_%' AND subject COLLATE "C" NOT LIKE '%:%:%' AND subject COLLATE "C" NOT LIKE '%@%:%'
       AND octet_length(subject) <= 512 AND (octet_length(subject) <= 255 OR strpos(subject COLLATE "C", ':') <= 255)
       AND CASE WHEN subject COLLATE "C" LIKE '%#%'
                THEN subject COLLATE "C" LIKE '_%:_%#_%' AND subject COLLATE "C" NOT LIKE '%#%#%'
                     AND subject COLLATE "C" NOT LIKE '%#%@%' AND subject COLLATE "C" NOT LIKE '%:%*%'
                     AND (octet_length(subject) <= 50 OR length(split_part(subject COLLATE "C", '#', 2)) <= 50)
                     AND subject COLLATE "C" <> (object || '#' || relation) COLLATE "C"
                ELSE true END;

CREATE FUNCTION relata.store_ok(store text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN store COLLATE "C" = 'default' OR store COLLATE "C" ~ '^[A-Za-z0-9_-]+$' AND length(store) <= 64;

-- True if a row needs no closer look: no condition, nothing malformed.
CREATE FUNCTION relata.row_ok(store text, op text, object text, relation text, subject text, condition_name text,
                              condition_context jsonb, headers jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN condition_name IS NULL AND condition_context IS NULL
       AND (op COLLATE "C" = 'write' OR op COLLATE "C" = 'delete' OR op COLLATE "C" = 'touch')
       AND relata.store_ok(store) AND (headers IS NULL OR jsonb_typeof(headers) = 'object')
       AND relata.tuple_ok(object, relation, subject);

-- Raises RL001 for one column.
CREATE FUNCTION relata.refuse(column_name text, value text, what text, hint text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'invalid %: %', column_name, what
        USING ERRCODE = 'RL001', SCHEMA = 'relata', TABLE = 'outbox', COLUMN = column_name,
              DETAIL = column_name || ' is ' || coalesce(quote_literal(CASE WHEN length(value) > 100
                       THEN left(value, 100) || '...' ELSE value END), 'NULL') || '.',
              HINT = hint;
END $$;

-- The size of a JSON value as a protobuf Value, as the store counts a condition's context.
CREATE FUNCTION relata.value_size(v jsonb) RETURNS int
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n int := 0;
    m int;
    k text;
    e jsonb;
BEGIN
    CASE jsonb_typeof(v)
        WHEN 'null', 'boolean' THEN RETURN 2;
        WHEN 'number' THEN RETURN 9;
        WHEN 'string' THEN
            n := octet_length(v #>> '{}');
        WHEN 'array' THEN
            FOR e IN SELECT jsonb_array_elements(v) LOOP
                m := relata.value_size(e);
                n := n + 1 + relata.varint_size(m) + m;
            END LOOP;
        ELSE
            FOR k, e IN SELECT key, value FROM jsonb_each(v) LOOP
                m := relata.value_size(e);
                m := 1 + relata.varint_size(octet_length(k)) + octet_length(k) + 1 + relata.varint_size(m) + m;
                n := n + 1 + relata.varint_size(m) + m;
            END LOOP;
    END CASE;
    RETURN 1 + relata.varint_size(n) + n;
END $$;
CREATE FUNCTION relata.varint_size(n int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN n OPERATOR(pg_catalog.<) 128 THEN 1 WHEN n OPERATOR(pg_catalog.<) 16384 THEN 2
                WHEN n OPERATOR(pg_catalog.<) 2097152 THEN 3 ELSE 4 END;

-- True if a double holds the number: its shortest decimal form is the number, or the number is a whole multiple of
-- the double's last place.
CREATE FUNCTION relata.double_holds(n numeric) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    i numeric := abs(n);
BEGIN
    IF i > 1.7976931348623157e308 OR (i <> 0 AND i < 5e-324) THEN
        RETURN false;
    END IF;
    IF n::float8::text::numeric = n THEN
        RETURN true;
    END IF;
    IF i <> trunc(i) OR i < 9007199254740992 THEN
        RETURN false;
    END IF;
    WHILE i >= 9007199254740992 LOOP
        IF mod(i, 2) <> 0 THEN
            RETURN false;
        END IF;
        i := div(i, 2);
    END LOOP;
    RETURN true;
END $$;

-- Raises RL001 unless the store would take the condition.
CREATE FUNCTION relata.check_condition(condition_name text, condition_context jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad text;
    n int;
BEGIN
    IF condition_name IS NULL THEN
        IF condition_context IS NOT NULL THEN
            PERFORM relata.refuse('condition_context', condition_context::text, 'given without condition_name',
                                  'Name the condition, or leave the context out.');
        END IF;
        RETURN;
    END IF;
    IF condition_name !~ E'^[^\\x01-\\x20\\x7f-\\x9f]+$' COLLATE "C" OR length(condition_name) NOT BETWEEN 2 AND 256 THEN
        PERFORM relata.refuse('condition_name', condition_name,
            'must be 2 to 256 characters without white space and control characters',
            'Use the name of a condition of the model, or NULL for none.');
    END IF;
    IF condition_context IS NULL THEN
        RETURN;
    END IF;
    IF jsonb_typeof(condition_context) <> 'object' THEN
        PERFORM relata.refuse('condition_context', condition_context::text, 'must be a JSON object',
                              'Give parameters by name, for example {"expires": "2030-01-01T00:00:00Z"}.');
    END IF;
    SELECT v #>> '{}' INTO bad FROM jsonb_path_query(condition_context, 'strict $.** ? (@.type() == "number")') v
    WHERE NOT relata.double_holds((v #>> '{}')::numeric) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM relata.refuse('condition_context', bad, 'the store keeps numbers as doubles, which cannot hold this one',
                              'Send it as a string and declare the parameter as string (or int, which takes strings).');
    END IF;
    -- Control characters, in keys and values: JSON text shows them as escapes, C1 and DEL as themselves.
    IF condition_context::text ~ E'[\\x7f-\\x9f]|\\\\[bfnrt]|\\\\u00[01]' COLLATE "C" AND relata.context_control(condition_context) THEN
        PERFORM relata.refuse('condition_context', condition_context::text, 'holds control characters',
                              'Remove them, or encode the value (relata.encode_id, base64).');
    END IF;
    IF octet_length(condition_context::text) > 5000 THEN
        n := relata.value_size(condition_context);
        n := n - 1 - relata.varint_size(n); -- the Struct itself, without the Value around it
        IF n > 32768 THEN
            PERFORM relata.refuse('condition_context', condition_context::text,
                                  format('is %s bytes for the store, which takes 32768', n), 'Send a smaller context.');
        END IF;
    END IF;
END $$;

CREATE FUNCTION relata.context_control(v jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE jsonb_typeof(v)
        WHEN 'string' THEN
            RETURN (v #>> '{}') ~ E'[\\x01-\\x1f\\x7f-\\x9f]' COLLATE "C";
        WHEN 'array' THEN
            RETURN EXISTS (SELECT FROM jsonb_array_elements(v) e WHERE relata.context_control(e));
        WHEN 'object' THEN
            RETURN EXISTS (SELECT FROM jsonb_each(v) e
                           WHERE e.key ~ E'[\\x01-\\x1f\\x7f-\\x9f]' COLLATE "C" OR relata.context_control(e.value));
        ELSE
            RETURN false;
    END CASE;
END $$;

-- Raises RL001 with the offending column, unless all is well. Called when the cheap test has failed, and by tools. What is
-- wrong is worked out before refuse() is called: the text of the calling statement becomes part of the error's context.
CREATE FUNCTION relata.check_tuple(object text, relation text, subject text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forbidden constant text := E'[\\x01-\\x20\\x7f-\\x9f]';
    what text;
    hint text := 'Encode ids with relata.encode_id().';
BEGIN
    IF relata.object_ok(object) IS NOT TRUE THEN
        what := CASE
            WHEN object IS NULL THEN 'is missing'
            WHEN object = '' THEN 'is empty'
            WHEN object ~ forbidden COLLATE "C" THEN 'holds white space or a control character'
            WHEN length(object) > 256 THEN format('is %s characters long, the store takes 256', length(object))
            WHEN strpos(object, '#') > 0 THEN 'holds ''#'', which only a userset in subject may'
            WHEN strpos(object, ':') = 0 THEN 'has no type, it must be type:id'
            WHEN object LIKE ':%' OR object LIKE '%:' THEN 'must be type:id, neither of them empty'
            WHEN length(object) - length(replace(object, ':', '')) > 1 THEN 'the id holds '':'''
            WHEN right(object, 2) = ':*' THEN 'a wildcard can only be a subject'
            ELSE 'the type holds ''@''' END;
        hint := CASE
            WHEN object IS NULL THEN 'Give type:id; a NULL in an expression makes the whole of it NULL.'
            WHEN object = '' OR strpos(object, ':') = 0 THEN 'Put the object''s type before its id, for example ''document:'' || id.'
            WHEN object LIKE ':%' OR object LIKE '%:' THEN 'Leave the tuple out while the id or type is empty.'
            WHEN length(object) > 256 THEN 'Use a shorter id, or a hash of it; encoded characters count three and more.'
            WHEN right(object, 2) = ':*' THEN 'Grant on each object, or on their parent in the model.'
            WHEN strpos(split_part(object, ':', 1), '@') > 0 THEN 'Use the name of a type of the model.'
            ELSE hint END;
        PERFORM relata.refuse('object', object, what, hint);
    END IF;
    IF relata.relation_ok(relation) IS NOT TRUE THEN
        what := CASE
            WHEN relation IS NULL THEN 'is missing'
            WHEN relation = '' THEN 'is empty'
            WHEN length(relation) > 50 THEN format('is %s characters long, the store takes 50', length(relation))
            ELSE 'holds '':'', ''#'', ''@'', white space or a control character' END;
        PERFORM relata.refuse('relation', relation, what, 'Use the name of a relation of the model.');
    END IF;
    IF relata.subject_ok(subject) IS NOT TRUE THEN
        what := CASE
            WHEN subject IS NULL THEN 'is missing'
            WHEN subject = '' THEN 'is empty'
            WHEN subject ~ forbidden COLLATE "C" THEN 'holds white space or a control character'
            WHEN octet_length(subject) > 512 THEN format('is %s bytes long, the store takes 512', octet_length(subject))
            WHEN strpos(subject, ':') = 0 THEN 'has no type, it must be type:id, type:id#relation or type:*'
            WHEN strpos(subject, ':') > 255 THEN 'the type is longer than 254 characters'
            WHEN subject LIKE ':%' OR subject LIKE '%:' OR subject LIKE '%:#%' THEN 'must be type:id, neither of them empty'
            WHEN subject LIKE '%#' THEN 'ends with ''#'', without the userset''s relation'
            WHEN strpos(split_part(subject, ':', 1), '@') > 0 THEN 'the type holds ''@'''
            WHEN length(split_part(subject, '#', 2)) > 50 THEN 'the userset''s relation is longer than 50 characters'
            WHEN strpos(subject, '#') > 0 AND strpos(subject, '*') > 0 THEN 'a userset holds no ''*'''
            ELSE 'must be type:id, type:id#relation or type:*, with no other '':'' or ''#''' END;
        hint := CASE
            WHEN subject IS NULL THEN 'Give type:id; a NULL in an expression makes the whole of it NULL.'
            WHEN subject = '' OR strpos(subject, ':') = 0 THEN 'Put the subject''s type before its id, for example ''user:'' || id.'
            WHEN octet_length(subject) > 512 THEN 'Use a shorter id, or a hash of it; encoded characters count three bytes and more.'
            WHEN subject LIKE ':%' OR subject LIKE '%:' OR subject LIKE '%:#%' THEN 'Leave the tuple out while the id or type is empty.'
            WHEN strpos(subject, ':') > 255 OR strpos(split_part(subject, ':', 1), '@') > 0 THEN 'Use the name of a type of the model.'
            WHEN subject LIKE '%#' OR length(split_part(subject, '#', 2)) > 50 THEN 'Use the name of a relation of the model.'
            ELSE hint END;
        PERFORM relata.refuse('subject', subject, what, hint);
    END IF;
    IF subject = object || '#' || relation THEN
        PERFORM relata.refuse('subject', subject, 'is the tuple''s own object and relation, which the store refuses',
                              'It holds without a tuple; leave it out.');
    END IF;
END $$;

-- The slow half of the row check: raises what is wrong. A delete or touch of a tuple that the ledger knows passes, though
-- malformed: an older server took it, and it must be possible to remove it.
CREATE FUNCTION relata.check_row(store text, op text, object text, relation text, subject text, condition_name text,
                                 condition_context jsonb, headers jsonb) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF relata.store_ok(store) IS NOT TRUE THEN
        PERFORM relata.refuse('store', store, 'must be 1 to 64 of A-Z a-z 0-9 _ -',
                              'Use the name of a row of relata.store, or leave it out for ''default''.');
    END IF;
    IF (op IN ('write', 'delete', 'touch')) IS NOT TRUE THEN
        PERFORM relata.refuse('op', op, 'must be write, delete or touch', 'A changed condition is one write.');
    END IF;
    IF op = 'write' OR relata.tuple_ok(object, relation, subject) IS NOT TRUE AND NOT EXISTS (
            SELECT FROM relata.tuple t WHERE (t.store, t.object, t.relation, t.subject)
                                           = (check_row.store, check_row.object, check_row.relation, check_row.subject)) THEN
        PERFORM relata.check_tuple(object, relation, subject);
    END IF;
    IF op = 'write' THEN
        PERFORM relata.check_condition(condition_name, condition_context);
    ELSIF condition_name IS NOT NULL OR condition_context IS NOT NULL THEN
        PERFORM relata.refuse(CASE WHEN condition_name IS NULL THEN 'condition_context' ELSE 'condition_name' END,
                              coalesce(condition_name, condition_context::text), 'only a write has a condition',
                              'Leave it out: a tuple is deleted whatever its condition is.');
    END IF;
    IF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
        PERFORM relata.refuse('headers', headers::text, 'must be a JSON object',
                              'For example {"traceparent": "00-..."}.');
    END IF;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- A sleeping reader holds advisory lock (1380270083, hashtext(store)) exclusively. False here therefore means: wake it.
-- True keeps it from falling asleep until this transaction has ended, so no wake-up is lost and none is sent in vain.
-- Done once a transaction and store; a rollback to a savepoint forgets the lock, the notification and the mark together.
-- Who forges the mark (any session may set it) only waits for the reader's next poll, a second at most. True always: an
-- assignment of it is evaluated in place, where PERFORM would run a statement.
CREATE FUNCTION relata.wake(store text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    done text;
BEGIN
    IF pg_catalog.current_setting('relata.awake', true) OPERATOR(pg_catalog.=) store THEN
        RETURN true;
    END IF;
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(1380270083, pg_catalog.hashtext(store)) THEN
        PERFORM pg_catalog.pg_notify('relata_outbox', store);
    END IF;
    done := pg_catalog.set_config('relata.awake', store, true);
    IF store OPERATOR(pg_catalog.<>) 'default' THEN -- apart, because a subquery makes the whole test a planned statement
        IF (SELECT true FROM relata.store s WHERE s.name OPERATOR(pg_catalog.=) wake.store) IS NULL THEN
            RAISE WARNING 'store "%" is not pinned: nothing will be applied before a tuple-writer serves it', store
                USING HINT = 'If the name is misspelt, the changes stay pending; relata.lag shows them.';
        END IF;
    END IF;
    RETURN true;
END $$;

-- What the fast test of a row did not pass: says what is wrong, or finds that all is well.
CREATE FUNCTION relata.check_new(id bigint, xid xid8, store text, op text, object text, relation text, subject text,
                                 condition_name text, condition_context jsonb, headers jsonb) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF id IS NOT NULL OR xid IS NOT NULL THEN
        RAISE EXCEPTION '% of an outbox row is given by the database', CASE WHEN id IS NULL THEN 'xid' ELSE 'id' END
            USING ERRCODE = 'RL002', SCHEMA = 'relata', TABLE = 'outbox', COLUMN = CASE WHEN id IS NULL THEN 'xid' ELSE 'id' END,
                  DETAIL = format('id is %s, xid is %s.', coalesce(id::text, 'NULL'), coalesce(xid::text, 'NULL')),
                  HINT = 'Leave the column out of the INSERT; read it with RETURNING id.';
    END IF;
    PERFORM relata.check_row(store, op, object, relation, subject, condition_name, condition_context, headers);
END $$;

-- One upsert locks the ledger row, takes the id under that lock and records the state. No SET search_path here (10 us a
-- row), hence every name and operator in full: the caller's search_path must not choose what the owner executes. All tests
-- stand here and none in the trigger's WHEN, which is parsed and planned anew for each statement, 100 us.
CREATE FUNCTION relata.outbox_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    awake boolean;
BEGIN
    IF NEW.id IS NOT NULL OR NEW.xid IS NOT NULL
       OR relata.row_ok(NEW.store, NEW.op, NEW.object, NEW.relation, NEW.subject, NEW.condition_name, NEW.condition_context,
                        NEW.headers) IS NOT TRUE THEN
        IF NEW.condition_name OPERATOR(pg_catalog.=) '' THEN
            NEW.condition_name := NULL;
        END IF;
        IF NEW.condition_context OPERATOR(pg_catalog.=) '{}'::pg_catalog.jsonb THEN
            NEW.condition_context := NULL;
        END IF;
        PERFORM relata.check_new(NEW.id, NEW.xid, NEW.store, NEW.op, NEW.object, NEW.relation, NEW.subject,
                                 NEW.condition_name, NEW.condition_context, NEW.headers);
    END IF;
    IF NEW.op OPERATOR(pg_catalog.=) 'touch' THEN
        INSERT INTO relata.tuple AS t (store, object, relation, subject, present, version, changed_at)
        VALUES (NEW.store, NEW.object, NEW.relation, NEW.subject, false,
                pg_catalog.nextval('relata.outbox_id'), pg_catalog.clock_timestamp())
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET version = pg_catalog.nextval('relata.outbox_id'), changed_at = pg_catalog.clock_timestamp()
        RETURNING t.version, pg_catalog.pg_current_xact_id(), t.changed_at, relata.key_hash(t.object, t.relation, t.subject)
            INTO NEW.id, NEW.xid, NEW.created_at, NEW.key;
    ELSE
        INSERT INTO relata.tuple AS t (store, object, relation, subject, condition_name, condition_context, present,
                                       version, changed_at)
        VALUES (NEW.store, NEW.object, NEW.relation, NEW.subject, NEW.condition_name, NEW.condition_context,
                NEW.op OPERATOR(pg_catalog.=) 'write', pg_catalog.nextval('relata.outbox_id'), pg_catalog.clock_timestamp())
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET condition_name = excluded.condition_name, condition_context = excluded.condition_context,
                present = excluded.present, version = pg_catalog.nextval('relata.outbox_id'),
                changed_at = pg_catalog.clock_timestamp()
        RETURNING t.version, pg_catalog.pg_current_xact_id(), t.changed_at, relata.key_hash(t.object, t.relation, t.subject)
            INTO NEW.id, NEW.xid, NEW.created_at, NEW.key;
    END IF;
    IF (pg_catalog.current_setting('relata.awake', true) OPERATOR(pg_catalog.=) NEW.store) IS NOT TRUE THEN
        awake := relata.wake(NEW.store);
    END IF;
    RETURN NEW;
END $$;

-- Named to run last, so that it sees what other BEFORE triggers made of the row. The set forms below do this work for many
-- rows at once and fill in id, xid and key themselves; nobody else may insert xid (column privileges).
CREATE TRIGGER zz_relata BEFORE INSERT ON relata.outbox FOR EACH ROW
    WHEN (NEW.xid IS NULL OR NEW.xid OPERATOR(pg_catalog.<>) pg_catalog.pg_current_xact_id())
    EXECUTE FUNCTION relata.outbox_row();

-- ---------------------------------------------------------------------------------------------------------------------
-- Token of the current transaction: "r1.<system identifier>.<timeline>.<transaction id>". 0 where the server does
-- not tell (some hosted ones).
CREATE FUNCTION relata.cluster() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- pg_control_checkpoint() knows a new timeline only after the first checkpoint on it; the WAL file's name at once.
    RETURN (SELECT system_identifier FROM pg_control_system()) || '.'
        || CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
                ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN '0.0';
END $$;

-- The first half is asked once a session (100 us): a server that takes writes changes neither identifier nor timeline. Who
-- forges the setting gets a token that nobody knows.
CREATE FUNCTION relata.token() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    known text := pg_catalog.current_setting('relata.cluster', true);
BEGIN
    IF (known OPERATOR(pg_catalog.<>) '') IS NOT TRUE THEN
        known := pg_catalog.set_config('relata.cluster', relata.cluster(), false);
    END IF;
    RETURN pg_catalog.concat_ws('.', 'r1', known, pg_catalog.pg_current_xact_id());
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Set forms. They lock in key order, so two of them cannot deadlock with each other; of one key the last one in the
-- call counts. A change that changes nothing is dropped, but only if nothing of its key is pending or parked: the row is
-- locked either way, and its version is the one that this statement's snapshot shows, so what pends on it is seen too.
-- Nor is a write dropped while a deletion waits for its repetition: that takes grants of a version before it.

-- Raises RL001 unless the parts of a call that all its tuples share are well.
CREATE FUNCTION relata.check_set(objects text[], relations text[], subjects text[], condition_names text[],
                                 condition_contexts jsonb[], store text, headers jsonb) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    n constant int := cardinality(objects);
BEGIN
    IF (n = cardinality(relations) AND n = cardinality(subjects) AND n = coalesce(cardinality(condition_names), n)
        AND n = coalesce(cardinality(condition_contexts), n)) IS NOT TRUE THEN
        RAISE EXCEPTION 'the arrays differ in length' USING ERRCODE = 'RL001', HINT = 'Give one element of each a tuple.',
            DETAIL = format('objects %s, relations %s, subjects %s, condition_names %s, condition_contexts %s.',
                            coalesce(n::text, 'NULL'), coalesce(cardinality(relations)::text, 'NULL'),
                            coalesce(cardinality(subjects)::text, 'NULL'), coalesce(cardinality(condition_names)::text, 'NULL'),
                            coalesce(cardinality(condition_contexts)::text, 'NULL'));
    END IF;
    IF relata.store_ok(store) IS NOT TRUE OR jsonb_typeof(headers) <> 'object' THEN
        PERFORM relata.check_row(store, 'delete', 'a:a', 'a', 'a:a', NULL, NULL, headers);
    END IF;
    IF condition_names IS NOT NULL OR condition_contexts IS NOT NULL THEN
        PERFORM relata.check_condition(nullif(u.n, ''), nullif(u.c, '{}'))
        FROM unnest(condition_names, condition_contexts) AS u(n, c) WHERE u.n IS NOT NULL OR u.c IS NOT NULL;
    END IF;
END $$;

-- Raises RL001 for the first malformed tuple of a set.
CREATE FUNCTION relata.check_tuples(objects text[], relations text[], subjects text[], store text, op text) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    bad record;
BEGIN
    FOR bad IN SELECT u.o, u.r, u.s FROM unnest(objects, relations, subjects) AS u(o, r, s)
               WHERE relata.tuple_ok(u.o, u.r, u.s) IS NOT TRUE LOOP
        PERFORM relata.check_row(store, op, bad.o, bad.r, bad.s, NULL, NULL, NULL);
    END LOOP;
END $$;

-- True while a deletion waits for its repetition that would take this version of the tuple along.
CREATE FUNCTION relata.doomed(store text, object text, subject text, version bigint) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (SELECT true FROM relata.request q
            WHERE q.store = doomed.store AND q.repeated_at IS NULL AND q.done_at IS NULL AND doomed.version < q.before
              AND (q.target = doomed.object OR q.target = split_part(doomed.subject, '#', 1)) LIMIT 1) IS NOT NULL;

-- True if the tuple has a newer version than this statement's snapshot shows, or a change of it is pending or parked.
CREATE FUNCTION relata.unsettled(store text, object text, relation text, subject text, version bigint) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (SELECT true FROM relata.tuple s WHERE s.object = unsettled.object AND s.relation = unsettled.relation
            AND s.subject = unsettled.subject AND s.store = unsettled.store AND s.version = unsettled.version) IS NULL
        OR (SELECT true FROM relata.outbox o WHERE o.key = relata.key_hash(unsettled.object, unsettled.relation, unsettled.subject)
            AND o.store = unsettled.store LIMIT 1) IS NOT NULL
        OR (SELECT true FROM relata.dead_letter d WHERE d.store = unsettled.store AND d.object = unsettled.object
            AND d.relation = unsettled.relation AND d.subject = unsettled.subject AND d.closed_at IS NULL) IS NOT NULL;

CREATE FUNCTION relata.enqueue_writes(objects text[], relations text[], subjects text[], condition_names text[],
                                      condition_contexts jsonb[], store text, actor text, headers jsonb) RETURNS bigint
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    total constant int := cardinality(objects);
    n bigint;
BEGIN
    PERFORM relata.check_tuples(objects, relations, subjects, store, 'write');
    PERFORM relata.wake(enqueue_writes.store);
    IF total >= 1000 AND NOT EXISTS (
            SELECT FROM generate_series(1, total, total / 100) AS i -- look-ups by index, whatever the planner believes
            WHERE (SELECT true FROM relata.tuple t WHERE t.object = objects[i] AND t.relation = relations[i]
                   AND t.subject = subjects[i] AND t.store = enqueue_writes.store) IS NOT NULL) THEN
        -- A first load: a plain insert saves a third. If one of the tuples is there after all, it is undone.
        BEGIN
            WITH up AS (
                INSERT INTO relata.tuple AS t (store, object, relation, subject, condition_name, condition_context, present,
                                               version, changed_at)
                SELECT enqueue_writes.store, w.o, w.r, w.s, w.n, w.c, true, nextval('relata.outbox_id'), clock_timestamp()
                FROM (SELECT DISTINCT ON (1, 2, 3) u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s,
                             nullif(u.n, '') AS n, nullif(u.c, '{}') AS c
                      FROM unnest(objects, relations, subjects, condition_names, condition_contexts)
                           WITH ORDINALITY AS u(o, r, s, n, c, i)
                      ORDER BY 1, 2, 3, u.i DESC) w
                ORDER BY w.o, w.r, w.s
                RETURNING t.object, t.relation, t.subject, t.condition_name, t.condition_context, t.version, t.changed_at)
            INSERT INTO relata.outbox (id, store, op, object, relation, subject, condition_name, condition_context, actor, headers,
                                       xid, created_at, key)
            SELECT up.version, enqueue_writes.store, 'write', up.object, up.relation, up.subject, up.condition_name,
                   up.condition_context, enqueue_writes.actor, enqueue_writes.headers, pg_current_xact_id(), up.changed_at,
                   relata.key_hash(up.object, up.relation, up.subject)
            FROM up;
            GET DIAGNOSTICS n = ROW_COUNT;
            RETURN n;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    WITH up AS (
        INSERT INTO relata.tuple AS t (store, object, relation, subject, condition_name, condition_context, present,
                                       version, changed_at)
        SELECT enqueue_writes.store, w.o, w.r, w.s, w.n, w.c, true, nextval('relata.outbox_id'), clock_timestamp()
        FROM (SELECT DISTINCT ON (1, 2, 3) u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s,
                     nullif(u.n, '') AS n, nullif(u.c, '{}') AS c
              FROM unnest(objects, relations, subjects, condition_names, condition_contexts)
                   WITH ORDINALITY AS u(o, r, s, n, c, i)
              ORDER BY 1, 2, 3, u.i DESC) w
        ORDER BY w.o, w.r, w.s
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET condition_name = excluded.condition_name, condition_context = excluded.condition_context, present = true,
                version = nextval('relata.outbox_id'), changed_at = clock_timestamp()
            WHERE NOT t.present OR t.condition_name IS DISTINCT FROM excluded.condition_name
               OR t.condition_context IS DISTINCT FROM excluded.condition_context
               OR relata.unsettled(t.store, t.object, t.relation, t.subject, t.version)
               OR relata.doomed(t.store, t.object, t.subject, t.version)
        RETURNING t.object, t.relation, t.subject, t.condition_name, t.condition_context, t.version, t.changed_at)
    INSERT INTO relata.outbox (id, store, op, object, relation, subject, condition_name, condition_context, actor, headers,
                               xid, created_at, key)
    SELECT up.version, enqueue_writes.store, 'write', up.object, up.relation, up.subject, up.condition_name,
           up.condition_context, enqueue_writes.actor, enqueue_writes.headers, pg_current_xact_id(), up.changed_at,
           relata.key_hash(up.object, up.relation, up.subject)
    FROM up;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

CREATE FUNCTION relata.enqueue_deletes(objects text[], relations text[], subjects text[], store text, actor text,
                                       headers jsonb) RETURNS bigint
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    n bigint;
BEGIN
    PERFORM relata.check_tuples(objects, relations, subjects, store, 'delete');
    PERFORM relata.wake(enqueue_deletes.store);
    WITH up AS (
        INSERT INTO relata.tuple AS t (store, object, relation, subject, present, version, changed_at)
        SELECT enqueue_deletes.store, w.o, w.r, w.s, false, nextval('relata.outbox_id'), clock_timestamp()
        FROM (SELECT DISTINCT u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s
              FROM unnest(objects, relations, subjects) AS u(o, r, s)) w
        ORDER BY w.o, w.r, w.s
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET condition_name = NULL, condition_context = NULL, present = false,
                version = nextval('relata.outbox_id'), changed_at = clock_timestamp()
            WHERE t.present OR relata.unsettled(t.store, t.object, t.relation, t.subject, t.version)
        RETURNING t.object, t.relation, t.subject, t.version, t.changed_at)
    INSERT INTO relata.outbox (id, store, op, object, relation, subject, actor, headers, xid, created_at, key)
    SELECT up.version, enqueue_deletes.store, 'delete', up.object, up.relation, up.subject, enqueue_deletes.actor,
           enqueue_deletes.headers, pg_current_xact_id(), up.changed_at, relata.key_hash(up.object, up.relation, up.subject)
    FROM up;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- The same for one tuple, without arrays: a fifth of the cost of a set of one. `locked`: the caller has it locked, so that its
-- state is known whatever pends. True if a row was enqueued.
CREATE FUNCTION relata.enqueue_one(op text, object text, relation text, subject text, condition_name text,
                                   condition_context jsonb, store text, actor text, headers jsonb, locked boolean)
    RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF relata.row_ok(store, op, object, relation, subject, condition_name, condition_context, headers) IS NOT TRUE THEN
        condition_name := nullif(condition_name, '');
        condition_context := nullif(condition_context, '{}');
        PERFORM relata.check_row(store, op, object, relation, subject, condition_name, condition_context, headers);
    END IF;
    IF (current_setting('relata.awake', true) = store) IS NOT TRUE THEN
        PERFORM relata.wake(store);
    END IF;
    WITH up AS (
        INSERT INTO relata.tuple AS t (store, object, relation, subject, condition_name, condition_context, present,
                                       version, changed_at)
        VALUES (enqueue_one.store, enqueue_one.object, enqueue_one.relation, enqueue_one.subject, enqueue_one.condition_name,
                enqueue_one.condition_context, enqueue_one.op = 'write', nextval('relata.outbox_id'), clock_timestamp())
        ON CONFLICT (object, relation, subject, store) DO UPDATE
            SET condition_name = excluded.condition_name, condition_context = excluded.condition_context,
                present = excluded.present, version = nextval('relata.outbox_id'), changed_at = clock_timestamp()
            WHERE t.present <> excluded.present OR t.condition_name IS DISTINCT FROM excluded.condition_name
               OR t.condition_context IS DISTINCT FROM excluded.condition_context
               OR NOT enqueue_one.locked AND relata.unsettled(t.store, t.object, t.relation, t.subject, t.version)
               OR t.present AND relata.doomed(t.store, t.object, t.subject, t.version)
        RETURNING t.object, t.relation, t.subject, t.condition_name, t.condition_context, t.version, t.changed_at)
    INSERT INTO relata.outbox (id, store, op, object, relation, subject, condition_name, condition_context, actor, headers,
                               xid, created_at, key)
    SELECT up.version, enqueue_one.store, enqueue_one.op, up.object, up.relation, up.subject, up.condition_name,
           up.condition_context, enqueue_one.actor, enqueue_one.headers, pg_current_xact_id(), up.changed_at,
           relata.key_hash(up.object, up.relation, up.subject)
    FROM up;
    RETURN FOUND;
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- What services call. The set forms return how many rows they enqueued, the single forms a token.
CREATE FUNCTION relata.write_tuples(objects text[], relations text[], subjects text[], condition_names text[] DEFAULT NULL,
                                    condition_contexts jsonb[] DEFAULT NULL, store text DEFAULT 'default',
                                    actor text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM relata.check_set(objects, relations, subjects, condition_names, condition_contexts, store, headers);
    RETURN relata.enqueue_writes(objects, relations, subjects, condition_names, condition_contexts, store, actor, headers);
END $$;

CREATE FUNCTION relata.delete_tuples(objects text[], relations text[], subjects text[], store text DEFAULT 'default',
                                     actor text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM relata.check_set(objects, relations, subjects, NULL, NULL, store, headers);
    RETURN relata.enqueue_deletes(objects, relations, subjects, store, actor, headers);
END $$;

CREATE FUNCTION relata.write_tuple(object text, relation text, subject text, condition_name text DEFAULT NULL,
                                   condition_context jsonb DEFAULT NULL, store text DEFAULT 'default',
                                   actor text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM relata.enqueue_one('write', object, relation, subject, condition_name, condition_context, store, actor, headers,
                               false);
    RETURN relata.token();
END $$;

CREATE FUNCTION relata.delete_tuple(object text, relation text, subject text, store text DEFAULT 'default',
                                    actor text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM relata.enqueue_one('delete', object, relation, subject, NULL, NULL, store, actor, headers, false);
    RETURN relata.token();
END $$;

-- Enqueue the current state, whatever it is: repair and replay.
CREATE FUNCTION relata.touch_tuples(objects text[], relations text[], subjects text[], store text DEFAULT 'default',
                                    actor text DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    n bigint;
BEGIN
    PERFORM relata.check_set(objects, relations, subjects, NULL, NULL, store, NULL);
    INSERT INTO relata.outbox (store, op, object, relation, subject, actor)
    SELECT touch_tuples.store, 'touch', w.o, w.r, w.s, touch_tuples.actor
    FROM (SELECT DISTINCT u.o COLLATE "C" AS o, u.r COLLATE "C" AS r, u.s COLLATE "C" AS s
          FROM unnest(objects, relations, subjects) AS u(o, r, s)) w
    ORDER BY w.o, w.r, w.s;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

CREATE FUNCTION relata.touch_tuple(object text, relation text, subject text, store text DEFAULT 'default',
                                   actor text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM relata.touch_tuples(ARRAY[object], ARRAY[relation], ARRAY[subject], store, actor);
    RETURN relata.token();
END $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Every tuple in which the object stands on either side, usersets of it included.

-- The ledger's rows about an object: its own tuples, and those whose subject is it or a userset of it; each once.
CREATE FUNCTION relata.tuples_about(store text, target text)
    RETURNS TABLE (object text, relation text, subject text, present boolean) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT t.object, t.relation, t.subject, t.present FROM relata.tuple t
    WHERE t.store = tuples_about.store AND t.object = target
    UNION ALL
    SELECT t.object, t.relation, t.subject, t.present FROM relata.tuple t
    WHERE t.store = tuples_about.store AND t.subject = target AND t.object <> target
    UNION ALL
    SELECT t.object, t.relation, t.subject, t.present FROM relata.tuple t
    WHERE t.store = tuples_about.store AND t.subject >= (target || '#') COLLATE "C" AND t.subject < (target || '$') COLLATE "C"
      AND t.object <> target;
END;

-- True if a change of the tuple is parked.
CREATE FUNCTION relata.is_parked(store text, object text, relation text, subject text) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (SELECT true FROM relata.dead_letter d
            WHERE d.store = is_parked.store AND d.object = is_parked.object AND d.relation = is_parked.relation
              AND d.subject = is_parked.subject AND d.closed_at IS NULL) IS NOT NULL;

-- Deletes those whose last change is older than `before`, parked ones too. They are locked first: what a transaction that
-- held one has granted anew meanwhile stays.
CREATE FUNCTION relata.purge(target text, store text, actor text, before bigint) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    o text[];
    r text[];
    s text[];
BEGIN
    SELECT array_agg(k.object), array_agg(k.relation), array_agg(k.subject) INTO o, r, s
    FROM (SELECT t.object, t.relation, t.subject FROM relata.tuples_about(purge.store, target) k
          JOIN relata.tuple t ON t.object = k.object AND t.relation = k.relation AND t.subject = k.subject
               AND t.store = purge.store
          WHERE t.version < before AND (t.present OR relata.is_parked(t.store, t.object, t.relation, t.subject))
          ORDER BY t.object, t.relation, t.subject FOR UPDATE OF t) k;
    IF o IS NULL THEN
        RETURN 0;
    END IF;
    RETURN relata.enqueue_deletes(o, r, s, store, actor, NULL);
END $$;

-- `before` is an id of its own: what was enqueued earlier goes, committed or not; what comes later is a new life.
CREATE FUNCTION relata.request_purge(kind text, target text, store text, actor text) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    n bigint;
BEGIN
    IF relata.store_ok(store) IS NOT TRUE THEN
        PERFORM relata.check_row(store, 'delete', 'a:a', 'a', 'a:a', NULL, NULL, NULL);
    END IF;
    IF target IS NULL OR target LIKE '%:*' OR strpos(target, '#') > 0 OR strpos(target, ':') < 2
       OR NOT relata.object_ok(target) AND NOT EXISTS (SELECT FROM relata.tuples_about(store, target)) THEN
        PERFORM relata.refuse(CASE kind WHEN 'erase_subject' THEN 'subject' ELSE 'object' END, target, 'must be type:id', CASE
            WHEN target LIKE '%:*' THEN 'Delete grants to everybody one by one, with relata.delete_tuples().'
            WHEN strpos(target, '#') > 0 THEN 'Name the object; its usersets go with it.'
            ELSE 'Encode ids with relata.encode_id().' END);
    END IF;
    before := nextval('relata.outbox_id');
    n := relata.purge(target, store, actor, before);
    INSERT INTO relata.request (kind, store, target, actor, xid, before, tuples)
    VALUES (kind, store, target, actor, pg_current_xact_id(), before, n);
    RETURN n;
END $$;

CREATE FUNCTION relata.delete_object(object text, store text DEFAULT 'default', actor text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN relata.request_purge('delete_object', object, store, actor);

CREATE FUNCTION relata.erase_subject(subject text, store text DEFAULT 'default', actor text DEFAULT NULL) RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN relata.request_purge('erase_subject', subject, store, actor);

-- ---------------------------------------------------------------------------------------------------------------------
-- Internals are nobody's; services get what they call.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA relata FROM PUBLIC;
GRANT EXECUTE ON FUNCTION relata.object_ok, relata.relation_ok, relata.subject_ok, relata.tuple_ok, relata.store_ok,
    relata.key_hash, relata.row_ok, relata.check_tuple, relata.check_condition, relata.refuse, relata.double_holds, relata.value_size,
    relata.varint_size, relata.context_control, relata.cluster, relata.token
    TO relata_service, relata_relay, relata_writer, relata_lister, relata_auditor, relata_repair;
GRANT EXECUTE ON FUNCTION relata.write_tuple, relata.delete_tuple, relata.write_tuples, relata.delete_tuples,
    relata.delete_object, relata.erase_subject, relata.touch_tuple, relata.touch_tuples TO relata_service;
