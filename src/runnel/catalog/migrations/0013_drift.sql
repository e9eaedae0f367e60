-- Drift: whatever a stream table's query rests on may change without a single row being written. What can be followed
-- (a view, a function, a type, a collation, a column's type, a name) leads to a new compilation and a rebuild; what
-- cannot (a source or a column that is gone, a source that became unlogged) leads to ERROR.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN drift text;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.drift IS
    'What changed under the query: the engine compiles it anew and rebuilds the rows. Null when nothing did.';

CREATE TABLE pgtrickle.pgt_objects (
    pgt_id      bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    classid     oid NOT NULL,
    objid       oid NOT NULL,
    name        text NOT NULL,
    fingerprint text NOT NULL,
    PRIMARY KEY (pgt_id, classid, objid)
);
CREATE INDEX pgt_objects_object ON pgtrickle.pgt_objects (objid);
REVOKE ALL ON pgtrickle.pgt_objects FROM PUBLIC;
COMMENT ON TABLE pgtrickle.pgt_objects IS
    'Functions, operators, types, collations and views that a query''s meaning rests on, as they were when it was compiled.';

-- ------------------------------------------------------------------ fingerprints

-- All of an object that decides what it computes; null when the object is gone, or has nothing of that kind. A library
-- behind a C function cannot be seen, so the version of an object's extension counts too.
CREATE FUNCTION pgtrickle._fingerprint(class oid, object oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found text;
BEGIN
    IF class = 'pg_proc'::regclass THEN
        SELECT jsonb_build_array(
                   n.nspname, to_jsonb(a),
                   to_jsonb(p) - '{proowner,proacl,procost,prorows,proparallel,proleakproof,prosupport}'::text[])::text
          INTO found
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
        WHERE p.oid = object;
    ELSIF class = 'pg_operator'::regclass THEN
        SELECT jsonb_build_array(n.nspname, to_jsonb(o) - 'oprowner')::text INTO found
        FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = object;
    ELSIF class = 'pg_type'::regclass THEN
        SELECT jsonb_build_array(
                   n.nspname, t.typname, t.typtype, t.typbasetype, t.typtypmod, t.typnotnull, t.typdefault,
                   t.typcollation, t.typinput, t.typoutput,
                   (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
                   (SELECT jsonb_agg(jsonb_build_array(c.attnum, c.name, c.type) ORDER BY c.attnum)
                    FROM pgtrickle._columns(t.typrelid) c),
                   (SELECT jsonb_agg(pg_get_constraintdef(k.oid) ORDER BY k.oid)
                    FROM pg_constraint k WHERE k.contypid = t.oid),
                   (SELECT jsonb_agg(to_jsonb(r)) FROM pg_range r WHERE r.rngtypid = t.oid),
                   (SELECT jsonb_agg(to_jsonb(k) ORDER BY k.oid) FROM pg_cast k
                    WHERE t.oid IN (k.castsource, k.casttarget)))::text
          INTO found
        FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = object;
    ELSIF class = 'pg_collation'::regclass THEN
        SELECT jsonb_build_array(to_jsonb(c) - 'collowner', pg_collation_actual_version(c.oid))::text INTO found
        FROM pg_collation c WHERE c.oid = object;
    ELSIF class = 'pg_class'::regclass THEN
        SELECT string_agg(r.ev_action::text, '' ORDER BY r.rulename) INTO found
        FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE c.oid = object AND c.relkind = 'v';
    ELSIF class = 'pg_database'::regclass THEN
        SELECT jsonb_build_array(d.datcollversion, pg_database_collation_actual_version(d.oid))::text INTO found
        FROM pg_database d WHERE d.oid = object;
    END IF;
    RETURN md5(found || coalesce((SELECT e.extversion FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                                  WHERE d.classid = class AND d.objid = object AND d.deptype = 'e'
                                    AND d.refclassid = 'pg_extension'::regclass), ''));
END
$$;
COMMENT ON FUNCTION pgtrickle._fingerprint(oid, oid) IS 'Another value when the object computes something else.';

-- What an object rests on in its turn: what PostgreSQL has recorded of it, and what a body that is text seems to name.
-- That is a guess on the safe side: a name too many costs a needless rebuild when its bearer changes.
CREATE FUNCTION pgtrickle._object_parts(class oid, object oid, sub integer)
RETURNS TABLE (classid oid, objid oid, subid integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.refclassid, d.refobjid, d.refobjsubid
    FROM pg_depend d
    WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                           'pg_collation'::regclass, 'pg_class'::regclass)
      AND ((d.classid = class AND d.objid = object
            -- Of a table just the column that is used; a function that reads tables is another matter.
            AND (class <> 'pg_class'::regclass OR d.objsubid = sub) AND d.refclassid <> 'pg_class'::regclass)
           OR (class = 'pg_class'::regclass AND d.classid = 'pg_rewrite'::regclass
               AND d.objid IN (SELECT r.oid FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
                               WHERE r.ev_class = object AND c.relkind = 'v'))
           OR (class = 'pg_type'::regclass AND d.classid = 'pg_constraint'::regclass
               AND d.objid IN (SELECT k.oid FROM pg_constraint k WHERE k.contypid = object)))
    UNION ALL
    SELECT 'pg_type'::regclass, a.atttypid, 0
    FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
    WHERE class = 'pg_type'::regclass AND t.oid = object AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'pg_proc'::regclass, k.castfunc, 0 FROM pg_cast k
    WHERE class = 'pg_type'::regclass AND object IN (k.castsource, k.casttarget)
    UNION ALL
    SELECT named.classid, named.objid, 0
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    CROSS JOIN LATERAL (
        WITH words AS MATERIALIZED (
            SELECT DISTINCT coalesce(m[1], lower(m[2])) AS word
            FROM regexp_matches(p.prosrc, '"([^"]+)"|([[:alpha:]_][[:alnum:]_$]*)', 'g') m)
        SELECT 'pg_proc'::regclass::oid AS classid, f.oid AS objid
        FROM words w JOIN pg_proc f ON f.proname = w.word
        WHERE f.pronamespace <> 'pgtrickle'::regnamespace
        UNION ALL
        SELECT 'pg_type'::regclass, t.oid
        FROM words w JOIN pg_type t ON t.typname = w.word LEFT JOIN pg_class c ON c.oid = t.typrelid
        WHERE c.oid IS NULL OR c.relkind = 'c'
        UNION ALL
        SELECT 'pg_operator'::regclass, o.oid FROM pg_operator o
        WHERE o.oid >= 12000 AND strpos(p.prosrc, o.oprname) > 0) named
    WHERE class = 'pg_proc'::regclass AND p.oid = object AND p.prosqlbody IS NULL
      AND l.lanname NOT IN ('internal', 'c')
$$;

-- Objects below this number belong to PostgreSQL itself, and only another server has others.
CREATE FUNCTION pgtrickle._objects(classes oid[], objects oid[], subs integer[])
RETURNS TABLE (classid oid, objid oid, name text, fingerprint text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE needed (classid, objid, subid) AS (
        SELECT * FROM unnest(classes, objects, subs)
        UNION
        SELECT p.classid, p.objid, p.subid
        FROM needed n CROSS JOIN LATERAL pgtrickle._object_parts(n.classid, n.objid, n.subid) p
        WHERE p.objid >= 12000
    ), known AS (
        SELECT DISTINCT n.classid, n.objid FROM needed n WHERE n.objid >= 12000
        UNION ALL
        SELECT 'pg_database'::regclass, d.oid FROM pg_database d WHERE d.datname = current_database()
    )
    SELECT k.classid, k.objid,
           CASE WHEN k.classid = 'pg_database'::regclass THEN 'the collation of the database'
                ELSE pg_describe_object(k.classid, k.objid, 0) END,
           f.fingerprint
    FROM known k CROSS JOIN LATERAL (SELECT pgtrickle._fingerprint(k.classid, k.objid) AS fingerprint) f
    WHERE f.fingerprint IS NOT NULL
$$;
COMMENT ON FUNCTION pgtrickle._objects(oid[], oid[], integer[]) IS
    'Everything that these objects rest on, down to what comes with PostgreSQL, and the database''s collation.';

CREATE FUNCTION pgtrickle._record_objects(id bigint, classes oid[], objects oid[], subs integer[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM pgtrickle.pgt_objects WHERE pgt_id = id;
    INSERT INTO pgtrickle.pgt_objects (pgt_id, classid, objid, name, fingerprint)
    SELECT id, o.classid, o.objid, o.name, o.fingerprint FROM pgtrickle._objects(classes, objects, subs) o;
$$;

-- ------------------------------------------------------------------ what changed

-- What no longer fits and cannot be followed. Beside what was checked before: an unlogged table is emptied by a crash
-- and no trigger is told.
CREATE OR REPLACE FUNCTION pgtrickle._check_sources() RETURNS TABLE (pgt_id bigint, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.pgt_id, format('source %s: %s', d.source_name, p.problem)
    FROM pgtrickle.pgt_dependencies d
    LEFT JOIN pg_class r ON r.oid = d.source_relid
    LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
    CROSS JOIN LATERAL (
        SELECT 'the relation was dropped; alter the stream table''s query or drop it' AS problem
        WHERE r.oid IS NULL
        UNION ALL
        SELECT format('%s; alter the stream table''s query, or undo this and call pgtrickle.resume_stream_table',
                      CASE WHEN moved.attname IS NOT NULL
                           THEN format('column "%s" was renamed to "%s"', u.name, moved.attname)
                           ELSE format('column "%s" was dropped', u.name) END)
        FROM unnest(d.columns_used) AS u (name)
        LEFT JOIN pg_attribute a ON a.attrelid = r.oid AND a.attname = u.name AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN jsonb_to_recordset(coalesce(t.columns, k.columns)) AS c (name text, attnum smallint)
               ON c.name = u.name
        LEFT JOIN pg_attribute moved ON moved.attrelid = r.oid AND moved.attnum = c.attnum AND NOT moved.attisdropped
        WHERE r.oid IS NOT NULL AND a.attnum IS NULL
        UNION ALL
        SELECT format('table %1$s is unlogged: a crash empties it and nobody is told; run ALTER TABLE %1$s SET LOGGED, '
                      'then pgtrickle.resume_stream_table', pgtrickle._relation_name(c.oid))
        FROM unnest(t.relations || CASE WHEN d.source_type = 'VIEW' THEN '{}'
                                        ELSE pgtrickle._descendants(d.source_relid) END) u (relation)
        JOIN pg_class c ON c.oid = u.relation AND c.relpersistence = 'u'
        GROUP BY c.oid
    ) p
    UNION ALL
    SELECT s.pgt_id, format('the stream table itself is unlogged: a crash empties it; run ALTER TABLE %s SET LOGGED, '
                            'then pgtrickle.resume_stream_table', pgtrickle._relation_name(s.pgt_relid))
    FROM pgtrickle.pgt_stream_tables s JOIN pg_class c ON c.oid = s.pgt_relid AND c.relpersistence = 'u'
$$;

CREATE OR REPLACE FUNCTION pgtrickle._mark_broken() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    marked integer;
BEGIN
    UPDATE pgtrickle.pgt_stream_tables s
       SET status = 'ERROR', last_error = b.problems, needs_reinit = true, retry_at = NULL, updated_at = now()
      FROM (SELECT c.pgt_id, string_agg(c.problem, E'\n' ORDER BY c.problem) AS problems
            FROM pgtrickle._check_sources() c GROUP BY c.pgt_id) b
     -- The first report stands: once capture has followed a rename, the same check can only say 'dropped'.
     WHERE b.pgt_id = s.pgt_id
       AND (s.status <> 'ERROR' OR s.last_error IS NULL
            OR NOT (s.last_error LIKE 'source %' OR s.last_error LIKE 'the stream table itself %'));
    GET DIAGNOSTICS marked = ROW_COUNT;
    RETURN marked;
END
$$;

-- What changed and can be followed.
CREATE FUNCTION pgtrickle._drift() RETURNS TABLE (pgt_id bigint, news text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.pgt_id, format('source %s is now called %I.%I', d.source_name, n.nspname, r.relname)
    FROM pgtrickle.pgt_dependencies d
    JOIN pg_class r ON r.oid = d.source_relid
    JOIN pg_namespace n ON n.oid = r.relnamespace
    WHERE d.source_name NOT IN (format('%I.%I', n.nspname, r.relname), n.nspname || '.' || r.relname)
    UNION ALL
    SELECT d.pgt_id, format('source %s: column "%s" changed its type from %s to %s', d.source_name, u.name, u.type,
                            format_type(a.atttypid, a.atttypmod))
    FROM pgtrickle.pgt_dependencies d
    CROSS JOIN LATERAL unnest(d.columns_used, d.column_types) AS u (name, type)
    JOIN pg_attribute a ON a.attrelid = d.source_relid AND a.attname = u.name AND a.attnum > 0 AND NOT a.attisdropped
    WHERE u.type IS NOT NULL AND format_type(a.atttypid, a.atttypmod) <> u.type
      -- A type recorded while its schema was on the search_path carries no schema.
      AND format_type(a.atttypid, a.atttypmod) NOT LIKE '%.' || u.type
    UNION ALL
    SELECT o.pgt_id, format('%s was %s', o.name, CASE WHEN now.fingerprint IS NULL THEN 'dropped' ELSE 'changed' END)
    FROM (SELECT k.classid, k.objid, pgtrickle._fingerprint(k.classid, k.objid) AS fingerprint
          FROM (SELECT DISTINCT classid, objid FROM pgtrickle.pgt_objects) k) now
    JOIN pgtrickle.pgt_objects o USING (classid, objid)
    WHERE now.fingerprint IS DISTINCT FROM o.fingerprint
$$;
COMMENT ON FUNCTION pgtrickle._drift() IS 'Stream tables whose query must be compiled anew, and why.';

CREATE FUNCTION pgtrickle._mark_drifted() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    marked integer;
BEGIN
    UPDATE pgtrickle.pgt_stream_tables s
       SET drift = d.news, needs_reinit = true, updated_at = now()
      FROM (SELECT f.pgt_id, string_agg(f.news, '; ' ORDER BY f.news) AS news
            FROM (SELECT DISTINCT * FROM pgtrickle._drift()) f GROUP BY f.pgt_id) d
     WHERE d.pgt_id = s.pgt_id AND s.status <> 'ERROR' AND s.drift IS DISTINCT FROM d.news;
    GET DIAGNOSTICS marked = ROW_COUNT;
    IF marked > 0 THEN
        PERFORM pg_notify('pgtrickle_ddl', 'drift');
    END IF;
    RETURN marked;
END
$$;
COMMENT ON FUNCTION pgtrickle._mark_drifted() IS 'Ask the engine to follow what _drift() found.';

-- A stream table may be renamed or moved like any table; its row follows. Two steps, because names may be swapped.
CREATE FUNCTION pgtrickle._follow_names() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moved bigint[] := ARRAY(
        SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s
        JOIN pg_class c ON c.oid = s.pgt_relid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE (s.pgt_schema, s.pgt_name) <> (n.nspname, c.relname));
BEGIN
    IF moved = '{}' THEN
        RETURN;
    END IF;
    UPDATE pgtrickle.pgt_stream_tables SET pgt_name = 'moving ' || pgt_id WHERE pgt_id = ANY (moved);
    UPDATE pgtrickle.pgt_stream_tables s SET pgt_schema = n.nspname, pgt_name = c.relname, updated_at = now()
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = s.pgt_relid AND s.pgt_id = ANY (moved);
    PERFORM pg_notify('pgtrickle_ddl', 'names');
END
$$;

-- ------------------------------------------------------------------ event triggers

CREATE OR REPLACE FUNCTION pgtrickle._on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    touched oid[];
    relation oid;
BEGIN
    IF current_setting('pgtrickle.internal', true) = 'on' THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(DISTINCT objid) FILTER (WHERE classid = 'pg_class'::regclass), '{}')
      INTO touched
    FROM pg_event_trigger_ddl_commands();

    IF TG_TAG = 'CREATE TABLE' OR TG_TAG = 'CREATE FOREIGN TABLE' THEN
        -- A new child is empty: its triggers are needed, a recomputation is not.
        IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = ANY (touched)) THEN
            PERFORM pgtrickle._mark_broken();
            PERFORM pgtrickle._capture_follow(touched, false);
        END IF;
        RETURN;
    END IF;
    -- Before capture is repaired: the old names of captured columns tell a rename from a drop.
    PERFORM pgtrickle._follow_names();
    PERFORM pgtrickle._mark_broken();
    PERFORM pgtrickle._mark_drifted();
    IF touched <> '{}' THEN
        PERFORM pgtrickle._capture_follow(touched, pgtrickle._rows_may_differ(touched));
    END IF;
    FOREACH relation IN ARRAY touched LOOP
        IF EXISTS (SELECT FROM pgtrickle.pgt_dependencies WHERE source_relid = relation) THEN
            PERFORM pg_notify('pgtrickle_ddl', relation::text);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._on_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone oid[];
    released oid[];
    relation oid;
BEGIN
    IF current_setting('pgtrickle.internal', true) = 'on' THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d
               WHERE d.classid = 'pg_cast'::regclass
                  OR EXISTS (SELECT FROM pgtrickle.pgt_objects o WHERE o.objid = d.objid AND o.classid = d.classid)) THEN
        PERFORM pgtrickle._mark_drifted();
    END IF;
    SELECT array_agg(DISTINCT d.objid) INTO gone
    FROM pg_event_trigger_dropped_objects() d
    WHERE d.classid = 'pg_class'::regclass AND NOT d.is_temporary
      AND (EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = d.objid)
           OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies p WHERE p.source_relid = d.objid)
           OR EXISTS (SELECT FROM pgtrickle.pgt_change_tracking t WHERE d.objid = ANY (t.relations || t.ancestors)));
    -- A lost column of an ALTER TABLE is handled at the end of that command; a cascade has no such end.
    IF gone IS NULL OR TG_TAG = 'ALTER TABLE' THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT d.source_relid) INTO released
    FROM pgtrickle.pgt_stream_tables s JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = s.pgt_id
    WHERE s.pgt_relid = ANY (gone);
    DELETE FROM pgtrickle.pgt_stream_tables s
     WHERE s.pgt_relid = ANY (gone) AND NOT EXISTS (SELECT FROM pg_class WHERE oid = s.pgt_relid);
    PERFORM pgtrickle._mark_broken();
    PERFORM pgtrickle._capture_follow(gone, pgtrickle._rows_may_differ(gone));
    PERFORM pgtrickle._capture_collect(gone || released, false);
    FOREACH relation IN ARRAY gone LOOP
        PERFORM pg_notify('pgtrickle_ddl', relation::text);
    END LOOP;
END
$$;

DO $$
BEGIN
    DROP EVENT TRIGGER IF EXISTS pgtrickle_ddl;
    CREATE EVENT TRIGGER pgtrickle_ddl ON ddl_command_end
        WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE', 'ALTER FOREIGN TABLE', 'ALTER SCHEMA',
                     'CREATE VIEW', 'ALTER VIEW', 'ALTER TYPE', 'ALTER DOMAIN', 'CREATE FUNCTION', 'ALTER FUNCTION',
                     'ALTER ROUTINE', 'CREATE AGGREGATE', 'ALTER AGGREGATE', 'ALTER OPERATOR', 'CREATE CAST',
                     'ALTER COLLATION', 'ALTER EXTENSION')
        EXECUTE FUNCTION pgtrickle._on_ddl();
    ALTER EVENT TRIGGER pgtrickle_ddl ENABLE ALWAYS;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'no right to create event triggers: the engine looks for changes by itself instead';
END
$$;

SELECT pgtrickle._pin_followers();

-- ------------------------------------------------------------------ direct writes

-- Against accidents: a row written by hand would stay until the next rebuild. The engine is known by its session.
ALTER TABLE pgtrickle.pgt_engine ADD COLUMN refresh_pid integer;
COMMENT ON COLUMN pgtrickle.pgt_engine.refresh_pid IS 'The session that writes to stream tables.';

CREATE FUNCTION pgtrickle._guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_backend_pid() IS DISTINCT FROM (SELECT e.refresh_pid FROM pgtrickle.pgt_engine e)
       AND coalesce(nullif(current_setting('pgtrickle.allow_direct_writes', true), ''), 'off')::boolean IS NOT TRUE THEN
        RAISE EXCEPTION 'stream table %.% is maintained by Runnel', quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Write to its sources. SET pgtrickle.allow_direct_writes = on lets this session write to it '
                         'all the same, until the next rebuild.';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION pgtrickle._guard_attach(relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER pgtrickle_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._guard()', pgtrickle._relation_name(relation));
END
$$;

DO $$
DECLARE
    relation oid;
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    FOR relation IN SELECT s.pgt_relid FROM pgtrickle.pgt_stream_tables s JOIN pg_class c ON c.oid = s.pgt_relid LOOP
        PERFORM pgtrickle._guard_attach(relation);
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ scheduled verification

CREATE TABLE pgtrickle.pgt_verifications (
    pgt_id      bigint PRIMARY KEY REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    verified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ok          boolean NOT NULL,
    detail      text
);
GRANT SELECT ON pgtrickle.pgt_verifications TO PUBLIC;
COMMENT ON TABLE pgtrickle.pgt_verifications IS 'The last scheduled verification of each stream table.';

CREATE FUNCTION pgtrickle._verification_health()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'verification', CASE WHEN bool_and(v.ok) IS FALSE THEN 'ERROR' ELSE 'OK' END,
           coalesce(string_agg(format('%I.%I: %s', s.pgt_schema, s.pgt_name, v.detail), '; '
                               ORDER BY s.pgt_schema, s.pgt_name) FILTER (WHERE NOT v.ok),
                    format('%s stream tables verified', count(v.pgt_id)))
    FROM pgtrickle.pgt_stream_tables s LEFT JOIN pgtrickle.pgt_verifications v ON v.pgt_id = s.pgt_id
$$;

-- As before, and: what scheduled verifications found.
DO $$
DECLARE
    internal regprocedure;
BEGIN
    FOR internal IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace
          AND p.proname IN ('_fingerprint', '_object_parts', '_objects', '_record_objects', '_drift', '_mark_drifted',
                            '_follow_names', '_guard', '_guard_attach')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', internal);
    END LOOP;
END
$$;
