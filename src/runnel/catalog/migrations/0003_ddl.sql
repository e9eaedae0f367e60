-- DDL on sources: notice it, keep writers going, and stop exactly the stream tables that it breaks.

-- What no longer fits, for every stream table: one query, used by the event triggers below and, on servers
-- where none could be created, by the engine.
CREATE FUNCTION pgtrickle._check_sources() RETURNS TABLE (pgt_id bigint, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.pgt_id, format('source %s: %s', d.source_name, p.problem)
    FROM pgtrickle.pgt_dependencies d
    LEFT JOIN pg_class r ON r.oid = d.source_relid
    LEFT JOIN pg_namespace n ON n.oid = r.relnamespace
    LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    CROSS JOIN LATERAL (
        SELECT 'the relation was dropped; alter the stream table''s query or drop it' AS problem
        WHERE r.oid IS NULL
        UNION ALL
        SELECT format('the relation is now called %I.%I; rename it back, or alter the stream table''s query',
                      n.nspname, r.relname)
        WHERE r.oid IS NOT NULL
          AND d.source_name NOT IN (format('%I.%I', n.nspname, r.relname), n.nspname || '.' || r.relname,
                                    quote_ident(r.relname), r.relname)
        UNION ALL
        SELECT CASE
                   WHEN a.attnum IS NULL AND moved.attname IS NOT NULL THEN
                       format('column "%s" was renamed to "%s"', u.name, moved.attname)
                   WHEN a.attnum IS NULL THEN format('column "%s" was dropped', u.name)
                   ELSE format('column "%s" changed its type from %s to %s', u.name, u.type,
                               format_type(a.atttypid, a.atttypmod))
               END || '; alter the stream table''s query or drop it'
        FROM unnest(d.columns_used, d.column_types) AS u (name, type)
        LEFT JOIN pg_attribute a ON a.attrelid = r.oid AND a.attname = u.name AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN jsonb_to_recordset(t.columns) AS c (name text, attnum smallint) ON c.name = u.name
        LEFT JOIN pg_attribute moved ON moved.attrelid = r.oid AND moved.attnum = c.attnum AND NOT moved.attisdropped
        WHERE r.oid IS NOT NULL
          AND (a.attnum IS NULL
               OR (u.type IS NOT NULL AND format_type(a.atttypid, a.atttypmod) <> u.type
                   -- A type recorded while its schema was on the search_path carries no schema.
                   AND format_type(a.atttypid, a.atttypmod) NOT LIKE '%.' || u.type))
    ) p
$$;
COMMENT ON FUNCTION pgtrickle._check_sources() IS 'Sources that no longer look as a stream table''s query needs them.';

-- Only rows with news are touched, so that DDL never waits for the refresh of a stream table it does not break.
CREATE FUNCTION pgtrickle._mark_broken() RETURNS integer
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
     WHERE b.pgt_id = s.pgt_id AND (s.status <> 'ERROR' OR s.last_error IS NULL OR s.last_error NOT LIKE 'source %');
    GET DIAGNOSTICS marked = ROW_COUNT;
    RETURN marked;
END
$$;
COMMENT ON FUNCTION pgtrickle._mark_broken() IS 'Put the stream tables that _check_sources names in status ERROR.';

-- A foreign partition makes every write through the root fail while a trigger collects transition rows, so
-- there capture gives way.
CREATE FUNCTION pgtrickle._capture_yield(source oid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    culprit oid := (SELECT c.oid FROM pg_class c
                    WHERE c.oid = ANY (pgtrickle._descendants(source)) AND c.relkind = 'f' LIMIT 1);
BEGIN
    IF culprit IS NULL THEN
        RETURN false;
    END IF;
    UPDATE pgtrickle.pgt_stream_tables s
       SET status = 'ERROR', needs_reinit = true, retry_at = NULL, updated_at = now(),
           last_error = format('source %s: its changes can no longer be captured since foreign table %s is part of it',
                               pgtrickle._relation_name(source), pgtrickle._relation_name(culprit))
      FROM pgtrickle.pgt_dependencies d
     WHERE d.pgt_id = s.pgt_id AND d.source_relid = source;
    PERFORM pgtrickle._capture_remove(source);
    RETURN true;
END
$$;

CREATE FUNCTION pgtrickle._capture_follow(touched oid[], mark boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source oid;
BEGIN
    FOR source IN
        SELECT d.source_relid FROM pgtrickle._capture_drift() d
        JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
        JOIN pg_class c ON c.oid = t.source_relid
        WHERE touched && (t.relations || t.ancestors || pgtrickle._descendants(t.source_relid)
                            || pgtrickle._ancestors(t.source_relid))
    LOOP
        IF NOT pgtrickle._capture_yield(source) THEN
            PERFORM pgtrickle._capture_build(source, '{}', false, mark);
        END IF;
    END LOOP;
END
$$;

-- The engine's own DDL runs with pgtrickle.internal = on: it keeps the catalog in step itself.
CREATE FUNCTION pgtrickle._on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    touched oid[];
    views oid[];
    relation oid;
BEGIN
    IF current_setting('pgtrickle.internal', true) = 'on' THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(DISTINCT objid) FILTER (WHERE classid = 'pg_class'::regclass), '{}'),
           coalesce(array_agg(DISTINCT objid) FILTER (WHERE object_type = 'view'), '{}')
      INTO touched, views
    FROM pg_event_trigger_ddl_commands();

    IF TG_TAG = 'CREATE TABLE' OR TG_TAG = 'CREATE FOREIGN TABLE' THEN
        -- A new child is empty: its triggers are needed, a recomputation is not.
        IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = ANY (touched)) THEN
            PERFORM pgtrickle._capture_follow(touched, false);
        END IF;
        RETURN;
    END IF;
    IF TG_TAG = 'CREATE VIEW' THEN
        UPDATE pgtrickle.pgt_stream_tables s SET needs_reinit = true, updated_at = now()
          FROM pgtrickle.pgt_dependencies d
         WHERE d.pgt_id = s.pgt_id AND d.source_type = 'VIEW' AND d.source_relid = ANY (views);
    END IF;
    -- Before capture is repaired: the old names of captured columns tell a rename from a drop.
    PERFORM pgtrickle._mark_broken();
    PERFORM pgtrickle._capture_follow(touched, pgtrickle._rows_may_differ(touched));
    FOREACH relation IN ARRAY touched LOOP
        IF EXISTS (SELECT FROM pgtrickle.pgt_dependencies WHERE source_relid = relation) THEN
            PERFORM pg_notify('pgtrickle_ddl', relation::text);
        END IF;
    END LOOP;
END
$$;

-- Whether a recorded table shows other rows or values than before although nobody wrote: a child came or went,
-- or a generated column has another expression. A renamed column or a re-enabled trigger needs no marker.
CREATE FUNCTION pgtrickle._rows_may_differ(touched oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pgtrickle.pgt_change_tracking t
        WHERE (t.relations <> pgtrickle._descendants(t.source_relid)
               OR EXISTS (SELECT FROM jsonb_to_recordset(t.columns) AS c (attnum smallint, gen text)
                          JOIN pgtrickle._columns(t.source_relid) n ON n.attnum = c.attnum
                          WHERE n.gen IS DISTINCT FROM c.gen))
          AND touched && (t.relations || pgtrickle._descendants(t.source_relid)))
$$;

CREATE FUNCTION pgtrickle._on_drop() RETURNS event_trigger
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

-- ALTER COLUMN ... TYPE ... USING may change every value and yet leave the type as it was.
CREATE FUNCTION pgtrickle._on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rewritten oid := pg_event_trigger_table_rewrite_oid();
    source oid;
BEGIN
    IF pg_event_trigger_table_rewrite_reason() & 4 = 0 THEN
        RETURN;
    END IF;
    FOR source IN SELECT t.source_relid FROM pgtrickle.pgt_change_tracking t WHERE rewritten = ANY (t.relations) LOOP
        PERFORM pgtrickle._capture_marker(source);
    END LOOP;
END
$$;

DO $$
BEGIN
    CREATE EVENT TRIGGER pgtrickle_ddl ON ddl_command_end
        WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE', 'ALTER FOREIGN TABLE', 'ALTER SCHEMA',
                     'CREATE VIEW', 'ALTER VIEW', 'ALTER TYPE', 'ALTER DOMAIN')
        EXECUTE FUNCTION pgtrickle._on_ddl();
    CREATE EVENT TRIGGER pgtrickle_drop ON sql_drop EXECUTE FUNCTION pgtrickle._on_drop();
    CREATE EVENT TRIGGER pgtrickle_rewrite ON table_rewrite EXECUTE FUNCTION pgtrickle._on_rewrite();
    ALTER EVENT TRIGGER pgtrickle_ddl ENABLE ALWAYS;
    ALTER EVENT TRIGGER pgtrickle_drop ENABLE ALWAYS;
    ALTER EVENT TRIGGER pgtrickle_rewrite ENABLE ALWAYS;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'no right to create event triggers: the engine checks sources before each refresh instead';
END
$$;
