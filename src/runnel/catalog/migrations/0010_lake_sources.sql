-- Lake tables as sources: their stand-ins in PostgreSQL, the wake-up, and what refreshes read of files.

CREATE TABLE pgtrickle.pgt_lake_tables (
    relid       oid PRIMARY KEY,
    lake        text NOT NULL,
    table_id    bigint NOT NULL,
    lake_schema text NOT NULL,
    lake_table  text NOT NULL,
    columns     jsonb NOT NULL,
    UNIQUE (lake, table_id)
);
GRANT SELECT ON pgtrickle.pgt_lake_tables TO PUBLIC;

COMMENT ON TABLE pgtrickle.pgt_lake_tables IS
    'One row per foreign table that stands for a table of a lake, so that queries can name it.';
COMMENT ON COLUMN pgtrickle.pgt_lake_tables.columns IS
    'Columns as they are in the lake: name and attnum of the stand-in, id (the Parquet field id) and type in the lake.';

ALTER TABLE pgtrickle.pgt_dependencies DROP CONSTRAINT pgt_dependencies_source_type_check;
ALTER TABLE pgtrickle.pgt_dependencies ADD CONSTRAINT pgt_dependencies_source_type_check
    CHECK (source_type IN ('TABLE', 'STREAM_TABLE', 'VIEW', 'LAKE_TABLE'));

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN ducklake_expired text NOT NULL DEFAULT 'fallback'
    CHECK (ducklake_expired IN ('fallback', 'error'));
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.ducklake_expired IS
    'What to do when a lake has forgotten the snapshot up to which its changes were read: recompute, or fail.';

ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN lake_io jsonb;
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.lake_io IS
    'What was read of lakes: files opened, files left out by their statistics, bytes, inlined rows.';

-- A lake whose catalog is in this database tells of every new snapshot, in the same way as captured tables do.
CREATE FUNCTION pgtrickle._lake_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ignored boolean;
BEGIN
    IF pg_sequence_last_value('pgtrickle.pgt_wake_gate') IS DISTINCT FROM 2 THEN
        ignored := pg_notify('pgtrickle_wake', 'lake') IS NULL;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._lake_wake() FROM PUBLIC;

-- The newest snapshot of each lake whose catalog is in this database.
CREATE FUNCTION pgtrickle._lake_heads() RETURNS TABLE (lake text, head bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place record;
BEGIN
    FOR place IN SELECT l.name, l.catalog_schema FROM pgtrickle.pgt_lakes l WHERE NOT l.remote LOOP
        IF to_regclass(format('%I.ducklake_snapshot', place.catalog_schema)) IS NOT NULL THEN
            lake := place.name;
            EXECUTE format('SELECT max(snapshot_id) FROM %I.ducklake_snapshot', place.catalog_schema) INTO head;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- As before, and: a stream table is behind when a lake that it reads has a snapshot that it has not looked at.
CREATE OR REPLACE FUNCTION pgtrickle._freshness()
RETURNS TABLE (pgt_id bigint, pending bigint, staleness interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE counted AS (
        SELECT p.pgt_id, sum(p.pending)::bigint AS pending FROM pgtrickle._pending() p GROUP BY p.pgt_id
    ), behind (pgt_id) AS (
        SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s LEFT JOIN counted c ON c.pgt_id = s.pgt_id
        WHERE c.pending > 0 OR s.uses_clock OR s.status <> 'ACTIVE' OR s.needs_reinit
           OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                      JOIN pgtrickle.pgt_stream_tables u ON u.pgt_id = d.source_pgt_id
                      WHERE d.pgt_id = s.pgt_id
                        AND u.version > coalesce((s.frontier #>> ARRAY['stream_tables', u.pgt_id::text])::bigint, 0))
           OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                      JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
                      JOIN pgtrickle._lake_heads() h ON h.lake = k.lake
                      WHERE d.pgt_id = s.pgt_id AND h.head > coalesce((s.frontier ->> format(
                          'ducklake:%s.%s.%s', k.lake, k.lake_schema, k.lake_table))::bigint, -1))
        UNION
        SELECT d.pgt_id FROM behind b JOIN pgtrickle.pgt_dependencies d ON d.source_pgt_id = b.pgt_id
    )
    SELECT s.pgt_id, coalesce(c.pending, 0),
           CASE WHEN b.pgt_id IS NULL AND s.data_timestamp IS NOT NULL THEN interval '0'
                ELSE greatest(clock_timestamp() - s.data_timestamp, interval '0') END
    FROM pgtrickle.pgt_stream_tables s
    LEFT JOIN counted c ON c.pgt_id = s.pgt_id
    LEFT JOIN behind b ON b.pgt_id = s.pgt_id
$$;

-- As before; columns of stand-ins are followed by attnum, too, so that a rename is told from a drop.
CREATE OR REPLACE FUNCTION pgtrickle._check_sources() RETURNS TABLE (pgt_id bigint, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.pgt_id, format('source %s: %s', d.source_name, p.problem)
    FROM pgtrickle.pgt_dependencies d
    LEFT JOIN pg_class r ON r.oid = d.source_relid
    LEFT JOIN pg_namespace n ON n.oid = r.relnamespace
    LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
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
        LEFT JOIN jsonb_to_recordset(coalesce(t.columns, k.columns)) AS c (name text, attnum smallint)
               ON c.name = u.name
        LEFT JOIN pg_attribute moved ON moved.attrelid = r.oid AND moved.attnum = c.attnum AND NOT moved.attisdropped
        WHERE r.oid IS NOT NULL
          AND (a.attnum IS NULL
               OR (u.type IS NOT NULL AND format_type(a.atttypid, a.atttypmod) <> u.type
                   -- A type recorded while its schema was on the search_path carries no schema.
                   AND format_type(a.atttypid, a.atttypmod) NOT LIKE '%.' || u.type))
    ) p
$$;

DROP FUNCTION pgtrickle.get_refresh_history(text, integer);
CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS TABLE (
    refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
    status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text,
    initiated_by text, changes_read bigint, reason text, timings jsonb, spark_jobs integer, lake_io jsonb)
LANGUAGE sql STABLE
AS $$
    SELECT h.refresh_id, h.data_timestamp, h.start_time, h.end_time, h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision, h.error_message,
           h.initiated_by, h.changes_read, h.reason, h.timings, h.spark_jobs, h.lake_io
    FROM pgtrickle.pgt_refresh_history h
    WHERE h.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;
