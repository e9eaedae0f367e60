-- Many at once: several sessions write, calls can be stopped, work can be seen.

-- ------------------------------------------------------------------ several sessions of an engine write

ALTER TABLE pgtrickle.pgt_engine ADD COLUMN writers integer[] NOT NULL DEFAULT '{}';
ALTER TABLE pgtrickle.pgt_engine DROP COLUMN refresh_pid;
COMMENT ON COLUMN pgtrickle.pgt_engine.writers IS 'The sessions that write to stream tables.';

CREATE OR REPLACE FUNCTION pgtrickle._guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgtrickle.pgt_engine e WHERE pg_backend_pid() = ANY (e.writers))
       AND coalesce(nullif(current_setting('pgtrickle.allow_direct_writes', true), ''), 'off')::boolean IS NOT TRUE THEN
        RAISE EXCEPTION 'stream table %.% is maintained by Runnel', quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Write to its sources. SET pgtrickle.allow_direct_writes = on lets this session write to it '
                         'all the same, until the next rebuild.';
    END IF;
    RETURN NULL;
END
$$;

-- Only the engine's loop: what its workers are at says nothing about whether it answers.
CREATE OR REPLACE FUNCTION pgtrickle._engine_busy() RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(a.xact_start) FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usename = current_user AND a.application_name = 'runnel requests'
$$;

-- ------------------------------------------------------------------ looking at some stream tables, not at all

CREATE INDEX pgt_dependencies_upstream ON pgtrickle.pgt_dependencies (source_pgt_id) WHERE source_pgt_id IS NOT NULL;

-- As _check_sources, which asks this for all of them.
CREATE FUNCTION pgtrickle._check_sources_of(tables bigint[]) RETURNS TABLE (pgt_id bigint, problem text)
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
    WHERE d.pgt_id = ANY (tables)
    UNION ALL
    SELECT s.pgt_id, format('the stream table itself is unlogged: a crash empties it; run ALTER TABLE %s SET LOGGED, '
                            'then pgtrickle.resume_stream_table', pgtrickle._relation_name(s.pgt_relid))
    FROM pgtrickle.pgt_stream_tables s JOIN pg_class c ON c.oid = s.pgt_relid AND c.relpersistence = 'u'
    WHERE s.pgt_id = ANY (tables)
$$;
REVOKE ALL ON FUNCTION pgtrickle._check_sources_of(bigint[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION pgtrickle._check_sources() RETURNS TABLE (pgt_id bigint, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.pgt_id, c.problem
    FROM pgtrickle._check_sources_of(ARRAY(SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s)) c
$$;
