-- Change capture: buffers, the triggers that fill them, and what cleans them.
--
-- For every captured table there is one buffer, pgtrickle_changes.changes_<oid>, one trigger function,
-- capture_<oid>, and a set of statement triggers on the table and on everything below it. Which rows are new
-- is decided by readers from pgt_xid; a buffer is only ever appended to and pruned.
-- A row with pgt_w = 0 is a marker: the table changed in a way that rows cannot say (TRUNCATE, a partition
-- attached or detached, a rewrite), and whoever reads it must recompute.

-- ------------------------------------------------------------------ shapes of tables

CREATE FUNCTION pgtrickle._descendants(source oid) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE below (oid) AS (
        SELECT source
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.oid WHERE NOT i.inhdetachpending
    )
    SELECT array_agg(oid ORDER BY oid) FROM below
$$;
COMMENT ON FUNCTION pgtrickle._descendants(oid) IS 'The table and all its partitions or inheritance children, sorted.';

CREATE FUNCTION pgtrickle._ancestors(source oid) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE above (oid) AS (
        SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = source AND NOT i.inhdetachpending
        UNION
        SELECT i.inhparent FROM pg_inherits i JOIN above a ON i.inhrelid = a.oid WHERE NOT i.inhdetachpending
    )
    SELECT coalesce(array_agg(oid ORDER BY oid), '{}') FROM above
$$;

CREATE FUNCTION pgtrickle._columns(source oid)
RETURNS TABLE (attnum smallint, name text, type text, gen text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.attnum, a.attname::text, format_type(a.atttypid, a.atttypmod),
           CASE WHEN a.attgenerated <> '' THEN a.attgenerated::text || pg_get_expr(d.adbin, d.adrelid) END
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
$$;
COMMENT ON FUNCTION pgtrickle._columns(oid) IS
    'Columns with their types printed under a fixed search_path, so that two readings can be compared as text; '
    'gen is the kind (s or v) and the expression of a generated column.';

-- A buffer column has the base type of a domain: a marker row, or a column added to a buffer that holds rows,
-- must be able to be NULL whatever the domain says.
CREATE FUNCTION pgtrickle._buffer_type(source oid, attnum smallint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE base (typ, typmod, depth) AS (
        SELECT a.atttypid, a.atttypmod, 0 FROM pg_attribute a
        WHERE a.attrelid = source AND a.attnum = _buffer_type.attnum
        UNION ALL
        SELECT t.typbasetype, t.typtypmod, b.depth + 1
        FROM base b JOIN pg_type t ON t.oid = b.typ WHERE t.typtype = 'd'
    )
    SELECT format_type(b.typ, b.typmod)
           || CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                   THEN format(' COLLATE %I.%I', n.nspname, c.collname) ELSE '' END
    FROM (SELECT typ, typmod FROM base ORDER BY depth DESC LIMIT 1) b
    JOIN pg_type t ON t.oid = b.typ
    JOIN pg_attribute a ON a.attrelid = source AND a.attnum = _buffer_type.attnum
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
$$;

CREATE FUNCTION pgtrickle._relation_name(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', n.nspname, c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation
$$;

-- With event triggers in place capture follows DDL in the transaction that does it; without them (no right to
-- create one) the trigger functions guard themselves.
CREATE FUNCTION pgtrickle._ddl_is_followed() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) = 3 FROM pg_event_trigger
    WHERE evtname IN ('pgtrickle_ddl', 'pgtrickle_drop', 'pgtrickle_rewrite') AND evtenabled IN ('A', 'O')
$$;

-- ------------------------------------------------------------------ trigger functions

-- The select list of a trigger function. Transition tables do not carry values of virtual generated columns,
-- so their expression is spelled out; PostgreSQL evaluates it from the same row. Always the expression of the
-- captured table itself: that is the one a query on it sees, also for rows in a partition that has another.
CREATE FUNCTION pgtrickle._capture_select(columns jsonb, weight integer, transition text, filter text)
RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('SELECT %s::smallint', weight)
        || coalesce(string_agg(', ' || CASE WHEN c ->> 'gen' LIKE 'v%' THEN substr(c ->> 'gen', 2)
                                            ELSE quote_ident(c ->> 'name') END,
                               '' ORDER BY (c ->> 'attnum')::int), '')
        || ' FROM ' || transition || coalesce(' WHERE ' || filter, '')
    FROM jsonb_array_elements(columns) c
$$;

CREATE FUNCTION pgtrickle._capture_insert(source oid, columns jsonb, body text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('INSERT INTO pgtrickle_changes.changes_%s (pgt_w', source)
        || coalesce(string_agg(', c' || (c ->> 'attnum'), '' ORDER BY (c ->> 'attnum')::int), '')
        || ') ' || body
    FROM jsonb_array_elements(columns) c
$$;

-- One insert per statement, and a wake-up only if it wrote something: that is all the write path does.
-- A table may have columns called tg_op, found or ignored: in queries, columns win.
-- pg_notify stands in an expression because plpgsql evaluates those without starting a query.
CREATE FUNCTION pgtrickle._capture_body(source oid, ins text, upd text, del text, guarded boolean)
RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($body$
#variable_conflict use_column
DECLARE
    ignored boolean;
BEGIN
    %1$sIF TG_OP = 'INSERT' THEN
        %2$s;
    ELSIF TG_OP = 'UPDATE' THEN
        %3$s;
    ELSIF TG_OP = 'DELETE' THEN
        %4$s;
    ELSE
        INSERT INTO pgtrickle_changes.changes_%6$s (pgt_w) VALUES (0);
    END IF;%5$s
    IF FOUND AND pg_sequence_last_value('pgtrickle.pgt_wake_gate') IS DISTINCT FROM 2 THEN
        ignored := pg_notify('pgtrickle_wake', '%6$s') IS NULL;
    END IF;
    RETURN NULL;
END
$body$,
        CASE WHEN guarded THEN E'BEGIN\n    ' ELSE '' END, ins, upd, del,
        CASE WHEN guarded THEN format($guard$
    EXCEPTION WHEN OTHERS THEN
        -- The table no longer has the columns this function knows: say so to the reader, not to the writer.
        INSERT INTO pgtrickle_changes.changes_%s (pgt_w) VALUES (0);
    END;$guard$, source) ELSE '' END,
        source)
$$;

CREATE FUNCTION pgtrickle._capture_function(source oid, suffix text, body text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := 'capture_' || source || suffix;
BEGIN
    -- Replacing a function that has not changed would only make two concurrent callers collide.
    IF EXISTS (SELECT FROM pg_proc WHERE proname = name AND pronamespace = 'pgtrickle_changes'::regnamespace
               AND prosrc = body) THEN
        RETURN;
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION pgtrickle_changes.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
        'SET search_path = pg_catalog, pg_temp AS %L', name, body);
    EXECUTE format('REVOKE ALL ON FUNCTION pgtrickle_changes.%I() FROM PUBLIC', name);
END
$$;

-- The condition under which a row written through an ancestor lands in this partition, or NULL when that
-- cannot be told from the row: plain inheritance, a DEFAULT partition (its bounds change with its siblings),
-- or a key with expressions or foreign operators (which would run with the rights of the trigger's owner).
CREATE FUNCTION pgtrickle._partition_filter(source oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN (SELECT relispartition FROM pg_class WHERE oid = source)
        AND NOT EXISTS (
            SELECT FROM pg_partitioned_table p
            WHERE p.partrelid = ANY (pgtrickle._ancestors(source))
              AND (p.partexprs IS NOT NULL
                   OR p.partdefid = source OR p.partdefid = ANY (pgtrickle._ancestors(source))
                   OR EXISTS (SELECT FROM unnest(p.partclass) o WHERE o >= 16384)))
        THEN pg_get_partition_constraintdef(source) END
$$;

CREATE FUNCTION pgtrickle._capture_functions(source oid, columns jsonb, above boolean, guarded boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    filter text := pgtrickle._partition_filter(source);
    marker text := format('INSERT INTO pgtrickle_changes.changes_%s (pgt_w) SELECT 0 WHERE EXISTS (SELECT FROM %%s)',
                          source);
BEGIN
    PERFORM pgtrickle._capture_function(source, '', pgtrickle._capture_body(source,
        pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, 1, 'pgt_new', NULL)),
        pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, -1, 'pgt_old', NULL)
            || ' UNION ALL ' || pgtrickle._capture_select(columns, 1, 'pgt_new', NULL)),
        pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, -1, 'pgt_old', NULL)),
        guarded));
    IF NOT above THEN
        RETURN;
    END IF;
    IF filter IS NULL THEN
        -- An insert into a plain inheritance parent stays there; through a partitioned one it may come here.
        PERFORM pgtrickle._capture_function(source, '_above', pgtrickle._capture_body(source,
            CASE WHEN (SELECT relispartition FROM pg_class WHERE oid = source)
                 THEN format(marker, 'pgt_new') ELSE 'RETURN NULL' END,
            format(marker, 'pgt_old'), format(marker, 'pgt_old'), guarded));
    ELSE
        PERFORM pgtrickle._capture_function(source, '_above', pgtrickle._capture_body(source,
            pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, 1, 'pgt_new', filter)),
            pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, -1, 'pgt_old', filter)
                || ' UNION ALL ' || pgtrickle._capture_select(columns, 1, 'pgt_new', filter)),
            pgtrickle._capture_insert(source, columns, pgtrickle._capture_select(columns, -1, 'pgt_old', filter)),
            guarded));
    END IF;
END
$$;

-- How the engine goes to sleep without missing anything: it calls _doze(), in a later transaction takes a new xid,
-- looks for changes once more, and keeps looking now and then until _settled(xid). A writer that was told not to
-- notify had its own xid before the gate closed, hence a smaller one.
CREATE FUNCTION pgtrickle._stay_awake() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT setval('pgtrickle.pgt_wake_gate', 2) $$;

CREATE FUNCTION pgtrickle._doze() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT setval('pgtrickle.pgt_wake_gate', 1) $$;

CREATE FUNCTION pgtrickle._settled(since xid8) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_snapshot_xmin(pg_current_snapshot()) > since $$;

-- ------------------------------------------------------------------ triggers

-- A relation may lie in the trees of several captured tables: every trigger name carries its source.
-- ENABLE ALWAYS: a session with session_replication_role = replica changes rows like any other.
CREATE FUNCTION pgtrickle._capture_attach(source oid, relation oid, suffix text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kind record;
    enabled "char";
BEGIN
    FOR kind IN
        SELECT * FROM (VALUES
            ('ins', 'INSERT', 'REFERENCING NEW TABLE AS pgt_new'),
            ('upd', 'UPDATE', 'REFERENCING OLD TABLE AS pgt_old NEW TABLE AS pgt_new'),
            ('del', 'DELETE', 'REFERENCING OLD TABLE AS pgt_old'),
            ('trunc', 'TRUNCATE', '')) v (tag, event, transition)
        -- TRUNCATE fires on every table it reaches, so ancestors need no trigger for it.
        WHERE suffix = '' OR event <> 'TRUNCATE'
    LOOP
        SELECT t.tgenabled INTO enabled FROM pg_trigger t
        WHERE t.tgrelid = relation AND t.tgname = format('pgtrickle_%s%s_%s', source, suffix, kind.tag);
        IF enabled IS NULL THEN
            EXECUTE format(
                'CREATE TRIGGER pgtrickle_%1$s%2$s_%3$s AFTER %4$s ON %5$s %6$s FOR EACH STATEMENT '
                'EXECUTE FUNCTION pgtrickle_changes.capture_%1$s%2$s()',
                source, suffix, kind.tag, kind.event, pgtrickle._relation_name(relation), kind.transition);
        END IF;
        IF enabled IS DISTINCT FROM 'A' THEN
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER pgtrickle_%s%s_%s',
                           pgtrickle._relation_name(relation), source, suffix, kind.tag);
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION pgtrickle._capture_detach(source oid, relation oid, suffixes text[] DEFAULT '{"",_above}')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT t.tgname FROM pg_trigger t, unnest(suffixes) s, unnest('{ins,upd,del,trunc}'::text[]) k
        WHERE t.tgrelid = relation AND t.tgname = format('pgtrickle_%s%s_%s', source, s, k)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', name, pgtrickle._relation_name(relation));
    END LOOP;
END
$$;

CREATE FUNCTION pgtrickle._capture_marker(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('INSERT INTO pgtrickle_changes.changes_%s (pgt_w) VALUES (0)', source);
    PERFORM pg_notify('pgtrickle_wake', source::text);
END
$$;
COMMENT ON FUNCTION pgtrickle._capture_marker(oid) IS 'Tell every consumer of the table to recompute.';

-- ------------------------------------------------------------------ buffers

CREATE FUNCTION pgtrickle._buffer_create(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A queue: rows live for seconds and leave in bulk, so dead rows must go soon whatever the table's size,
    -- and vacuuming for inserts alone has nothing to gain.
    EXECUTE format(
        'CREATE TABLE pgtrickle_changes.changes_%s ('
        'pgt_xid xid8 NOT NULL DEFAULT pg_current_xact_id(), pgt_w smallint NOT NULL) WITH ('
        'autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, '
        'autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, '
        'autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000)', source);
    EXECUTE format('REVOKE ALL ON pgtrickle_changes.changes_%s FROM PUBLIC', source);
END
$$;

-- Bring the buffer's columns in line with the captured ones. Dropping needs an exclusive lock on the buffer;
-- inside a user's DDL we must not wait for one (a reader of the buffer may be waiting for that user), so there
-- a column that cannot be dropped at once stays behind, unused, until the engine's next install.
CREATE FUNCTION pgtrickle._buffer_columns(source oid, columns jsonb, may_wait boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    buffer oid := format('pgtrickle_changes.changes_%s', source)::regclass;
    col record;
BEGIN
    FOR col IN
        SELECT coalesce(have.name, want.name) AS name, have.type AS old_type, want.type AS new_type
        FROM (SELECT a.attname::text AS name, pgtrickle._buffer_type(buffer, a.attnum) AS type FROM pg_attribute a
              WHERE a.attrelid = buffer AND a.attnum > 0 AND NOT a.attisdropped AND a.attname LIKE 'c%') have
        FULL JOIN (SELECT 'c' || (c ->> 'attnum') AS name,
                          pgtrickle._buffer_type(source, (c ->> 'attnum')::smallint) AS type
                   FROM jsonb_array_elements(columns) c) want USING (name)
        WHERE have.type IS DISTINCT FROM want.type
        ORDER BY have.type IS NULL, name
    LOOP
        IF col.old_type IS NOT NULL THEN
            IF NOT may_wait THEN
                BEGIN
                    EXECUTE format('LOCK TABLE pgtrickle_changes.changes_%s IN ACCESS EXCLUSIVE MODE NOWAIT', source);
                EXCEPTION WHEN lock_not_available THEN
                    RETURN;
                END;
            END IF;
            EXECUTE format('ALTER TABLE pgtrickle_changes.changes_%s DROP COLUMN %I', source, col.name);
        END IF;
        IF col.new_type IS NOT NULL THEN
            EXECUTE format('ALTER TABLE pgtrickle_changes.changes_%s ADD COLUMN %I %s', source, col.name, col.new_type);
        END IF;
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ install, repair, remove

-- Captured tables whose capture does not match the table: the set of relations changed, a captured column was
-- dropped, renamed, retyped or generated differently, or a trigger is missing or disabled.
CREATE FUNCTION pgtrickle._capture_drift() RETURNS TABLE (source_relid oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.source_relid
    FROM pgtrickle.pgt_change_tracking t
    LEFT JOIN pg_class r ON r.oid = t.source_relid
    WHERE r.oid IS NULL
       OR t.relations <> pgtrickle._descendants(t.source_relid)
       OR t.ancestors <> pgtrickle._ancestors(t.source_relid)
       OR EXISTS (
            SELECT FROM jsonb_to_recordset(t.columns) AS c (attnum smallint, name text, type text, gen text)
            LEFT JOIN pgtrickle._columns(t.source_relid) n ON n.attnum = c.attnum
            WHERE (n.name, n.type, n.gen) IS DISTINCT FROM (c.name, c.type, c.gen))
       OR 4 * cardinality(t.relations) + 3 * cardinality(t.ancestors) <> (
            SELECT count(*) FROM pg_trigger g
            WHERE g.tgrelid = ANY (t.relations || t.ancestors) AND g.tgenabled = 'A'
              AND starts_with(g.tgname::text, format('pgtrickle_%s_', t.source_relid)))
$$;
COMMENT ON FUNCTION pgtrickle._capture_drift() IS
    'Captured tables that need pgtrickle._capture_install again; a server with event triggers repairs them itself.';

-- Make functions, triggers, buffer columns and the tracking row agree with the table as it is now.
-- pgtrickle.internal tells our own event triggers to look away from the DDL done here. It is set and put back by
-- hand because only a superuser may attach a setting of this kind to a function.
-- Columns that are gone or have another type leave the capture; renamed ones stay, by attnum.
CREATE FUNCTION pgtrickle._capture_build(source oid, extra text[], may_wait boolean, mark boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old pgtrickle.pgt_change_tracking;
    below oid[] := pgtrickle._descendants(source);
    above oid[] := pgtrickle._ancestors(source);
    wanted jsonb;
    is_guarded boolean := NOT pgtrickle._ddl_is_followed();
    relation oid;
    known boolean;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    SELECT * INTO old FROM pgtrickle.pgt_change_tracking WHERE source_relid = source;
    known := FOUND;
    SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'name', n.name, 'attnum', n.attnum, 'type', n.type, 'gen', n.gen)) ORDER BY n.attnum), '[]')
      INTO wanted
    FROM pgtrickle._columns(source) n
    WHERE n.name = ANY (extra)
       OR EXISTS (SELECT FROM jsonb_to_recordset(old.columns) AS c (attnum smallint, type text)
                  WHERE c.attnum = n.attnum AND c.type = n.type);

    IF NOT known THEN
        PERFORM pgtrickle._buffer_create(source);
    END IF;
    PERFORM pgtrickle._buffer_columns(source, wanted, may_wait);
    PERFORM pgtrickle._capture_functions(source, wanted, above <> '{}', is_guarded);
    FOREACH relation IN ARRAY below LOOP
        PERFORM pgtrickle._capture_attach(source, relation, '');
    END LOOP;
    FOREACH relation IN ARRAY above LOOP
        PERFORM pgtrickle._capture_attach(source, relation, '_above');
    END LOOP;
    IF known THEN
        -- Relations that left the tree must stop writing into its buffer.
        FOREACH relation IN ARRAY old.relations || old.ancestors LOOP
            IF relation <> ALL (below) THEN
                PERFORM pgtrickle._capture_detach(source, relation, ARRAY['']);
            END IF;
            IF relation <> ALL (above) THEN
                PERFORM pgtrickle._capture_detach(source, relation, ARRAY['_above']);
            END IF;
        END LOOP;
        UPDATE pgtrickle.pgt_change_tracking
           SET columns = wanted, relations = below, ancestors = above, guarded = is_guarded
         WHERE source_relid = source;
        IF mark THEN
            PERFORM pgtrickle._capture_marker(source);
        END IF;
    ELSE
        INSERT INTO pgtrickle.pgt_change_tracking (source_relid, buffer, columns, relations, ancestors, guarded)
        VALUES (source, 'changes_' || source, wanted, below, above, is_guarded);
    END IF;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

CREATE FUNCTION pgtrickle._capture_refuse(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rel record;
    missing text;
BEGIN
    FOR rel IN
        SELECT c.oid, c.relkind, c.relpersistence, pgtrickle._relation_name(c.oid) AS name
        FROM pg_class c WHERE c.oid = ANY (pgtrickle._descendants(source))
    LOOP
        IF rel.relkind NOT IN ('r', 'p') THEN
            RAISE EXCEPTION 'changes of % cannot be captured', rel.name
                USING ERRCODE = 'wrong_object_type',
                      DETAIL = 'Only ordinary and partitioned tables whose partitions are local can carry the triggers.';
        ELSIF rel.relpersistence <> 'p' THEN
            RAISE EXCEPTION 'changes of % cannot be captured', rel.name
                USING ERRCODE = 'wrong_object_type',
                      DETAIL = 'Temporary tables belong to one session, and unlogged tables lose rows in a crash '
                               'without any trigger being told.';
        END IF;
    END LOOP;
    IF rel IS NULL THEN
        RAISE EXCEPTION 'relation with OID % does not exist', source USING ERRCODE = 'undefined_table';
    END IF;
    SELECT string_agg(quote_ident(w), ', ') INTO missing FROM unnest(columns) w
    WHERE NOT EXISTS (SELECT FROM pgtrickle._columns(source) n WHERE n.name = w);
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'column % of % does not exist', missing, pgtrickle._relation_name(source)
            USING ERRCODE = 'undefined_column';
    END IF;
END
$$;

CREATE FUNCTION pgtrickle._capture_complete(source oid, columns text[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pgtrickle.pgt_change_tracking t
        WHERE t.source_relid = source AND t.guarded = NOT pgtrickle._ddl_is_followed()
          AND _capture_complete.columns <@ ARRAY(SELECT c ->> 'name' FROM jsonb_array_elements(t.columns) c)
    ) AND NOT EXISTS (SELECT FROM pgtrickle._capture_drift() d WHERE d.source_relid = source)
$$;

CREATE FUNCTION pgtrickle._capture_install(source oid, columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid;
    drifted boolean;
BEGIN
    PERFORM pgtrickle._capture_refuse(source, columns);
    IF pgtrickle._capture_complete(source, columns) THEN
        RETURN;
    END IF;
    -- Writers in flight finish first and later ones meet the new triggers: no statement falls between.
    FOREACH relation IN ARRAY pgtrickle._ancestors(source) LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', pgtrickle._relation_name(relation));
    END LOOP;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', pgtrickle._relation_name(source));
    PERFORM pgtrickle._capture_refuse(source, columns);
    -- If capture was out of step, changes may have been missed.
    drifted := EXISTS (SELECT FROM pgtrickle._capture_drift() d WHERE d.source_relid = source);
    PERFORM pgtrickle._capture_build(source, columns, true, drifted);
END
$$;
COMMENT ON FUNCTION pgtrickle._capture_install(oid, text[]) IS
    'Capture these columns of the table too; cheap and lock-free when nothing is missing. '
    'Call it in the transaction that records the dependency, commit, and only then take a snapshot.';

CREATE FUNCTION pgtrickle._capture_remove(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = 'warning'
AS $$
DECLARE
    relation oid;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    FOR relation IN
        SELECT r FROM pgtrickle.pgt_change_tracking t, unnest(t.ancestors || t.relations) r
        WHERE t.source_relid = source AND EXISTS (SELECT FROM pg_class WHERE oid = r)
    LOOP
        PERFORM pgtrickle._capture_detach(source, relation);
    END LOOP;
    EXECUTE format('DROP FUNCTION IF EXISTS pgtrickle_changes.capture_%s()', source);
    EXECUTE format('DROP FUNCTION IF EXISTS pgtrickle_changes.capture_%s_above()', source);
    EXECUTE format('DROP TABLE IF EXISTS pgtrickle_changes.changes_%s', source);
    DELETE FROM pgtrickle.pgt_change_tracking WHERE source_relid = source;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

-- Remove the captures (of all tables, or of these) that no stream table needs. Inside a user's DDL
-- (may_wait = false) a table that is in use is left for the engine.
CREATE FUNCTION pgtrickle._capture_collect(candidates oid[] DEFAULT NULL, may_wait boolean DEFAULT true)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    unused record;
    relation oid;
    removed integer := 0;
BEGIN
    FOR unused IN
        SELECT t.* FROM pgtrickle.pgt_change_tracking t
        WHERE (candidates IS NULL OR t.source_relid = ANY (candidates))
          AND (NOT EXISTS (SELECT FROM pg_class WHERE oid = t.source_relid)
               OR NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = t.source_relid))
    LOOP
        BEGIN
            IF NOT may_wait THEN
                FOR relation IN
                    SELECT r FROM unnest(unused.ancestors || unused.relations) r
                    WHERE EXISTS (SELECT FROM pg_class WHERE oid = r)
                LOOP
                    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT',
                                   pgtrickle._relation_name(relation));
                END LOOP;
                EXECUTE format('LOCK TABLE pgtrickle_changes.%I IN ACCESS EXCLUSIVE MODE NOWAIT', unused.buffer);
            END IF;
            PERFORM pgtrickle._capture_remove(unused.source_relid);
            removed := removed + 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN removed;
END
$$;

-- ------------------------------------------------------------------ cleaning

-- Snapshots of running transactions: one of them may be the snapshot of a first build or of a refresh whose
-- frontier is not committed yet, and that frontier will still want rows from xmin on.
CREATE FUNCTION pgtrickle._oldest_running() RETURNS xid8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH now AS (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax)
    -- backend_xmin has 32 bits; anything that seems to lie in the future started after this snapshot.
    SELECT coalesce(min(CASE WHEN behind < 2147483648 THEN xmax - behind ELSE xmax END), max(xmax))::text::xid8
    FROM (SELECT now.xmax, (now.xmax - a.backend_xmin::text::bigint) & 4294967295 AS behind
          FROM now LEFT JOIN pg_stat_activity a
            ON a.datname = current_database() AND a.backend_xmin IS NOT NULL) x
$$;

CREATE FUNCTION pgtrickle._capture_cleanup() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source record;
    running xid8 := pgtrickle._oldest_running();
    deleted bigint;
    total bigint := 0;
BEGIN
    FOR source IN
        SELECT t.buffer,
               min(pg_snapshot_xmin((s.frontier ->> 'postgres')::pg_snapshot))
                   FILTER (WHERE s.is_populated AND NOT s.needs_reinit) AS passed
        FROM pgtrickle.pgt_change_tracking t
        LEFT JOIN pgtrickle.pgt_dependencies d ON d.source_relid = t.source_relid
        LEFT JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
        GROUP BY t.source_relid, t.buffer
        -- While one of its consumers is being built the buffer is left alone: its snapshot is not known here.
        HAVING NOT coalesce(bool_or(s.status = 'INITIALIZING'), false)
    LOOP
        EXECUTE format('DELETE FROM pgtrickle_changes.%I WHERE pgt_xid < $1', source.buffer)
            USING least(source.passed, running);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        total := total + deleted;
    END LOOP;
    RETURN total;
END
$$;
COMMENT ON FUNCTION pgtrickle._capture_cleanup() IS 'Delete change rows that every consumer has passed.';
