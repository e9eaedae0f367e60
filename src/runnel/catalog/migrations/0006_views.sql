-- The functions that only read the catalog. They work whether or not an engine runs.

-- Rows waiting in the buffers, per stream table and source. The owner's rights are needed to count rows of
-- buffers; what comes out is a number.
CREATE FUNCTION pgtrickle._pending()
RETURNS TABLE (pgt_id bigint, source_relid oid, pending bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pair record;
BEGIN
    FOR pair IN
        SELECT d.pgt_id, d.source_relid, t.buffer, (s.frontier ->> 'postgres')::pg_snapshot AS frontier
        FROM pgtrickle.pgt_stream_tables s
        JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = s.pgt_id
        JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
        WHERE s.frontier ? 'postgres'
    LOOP
        pgt_id := pair.pgt_id;
        source_relid := pair.source_relid;
        EXECUTE format('SELECT count(*) FROM pgtrickle_changes.%I b '
                       'WHERE b.pgt_xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(b.pgt_xid, $1)',
                       pair.buffer)
            INTO pending USING pair.frontier;
        RETURN NEXT;
    END LOOP;
END
$$;

-- A stream table is behind when a source has rows for it, when one that it reads from has moved on or is itself
-- behind, when time alone can change it, or when it is not being refreshed.
CREATE FUNCTION pgtrickle._freshness()
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

CREATE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (
    name text, status text, refresh_mode text, is_populated boolean, consecutive_errors integer, schedule text,
    data_timestamp timestamptz, staleness interval, effective_mode text, pending_changes bigint,
    last_refresh_ms double precision, last_rows bigint, last_error text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), s.status, s.refresh_mode, s.is_populated, s.consecutive_errors,
           s.schedule, s.data_timestamp, f.staleness, s.effective_mode, f.pending,
           (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           h.rows_inserted + h.rows_deleted, s.last_error
    FROM pgtrickle.pgt_stream_tables s
    JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
    LEFT JOIN LATERAL (
        SELECT * FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = s.pgt_id AND h.status = 'COMPLETED' ORDER BY h.refresh_id DESC LIMIT 1) h ON true
    ORDER BY s.pgt_schema, s.pgt_name
$$;

CREATE FUNCTION pgtrickle.get_staleness(name text) RETURNS double precision
LANGUAGE sql STABLE
AS $$
    SELECT extract(epoch FROM f.staleness)::double precision
    FROM pgtrickle._freshness() f WHERE f.pgt_id = pgtrickle._find_or_fail(name)
$$;

CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS TABLE (
    refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
    status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text,
    initiated_by text, changes_read bigint, reason text, timings jsonb, spark_jobs integer)
LANGUAGE sql STABLE
AS $$
    SELECT h.refresh_id, h.data_timestamp, h.start_time, h.end_time, h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision, h.error_message,
           h.initiated_by, h.changes_read, h.reason, h.timings, h.spark_jobs
    FROM pgtrickle.pgt_refresh_history h
    WHERE h.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;

CREATE FUNCTION pgtrickle.refresh_timeline(max_rows integer DEFAULT 50)
RETURNS TABLE (
    start_time timestamptz, stream_table text, action text, status text, rows_inserted bigint, rows_deleted bigint,
    duration_ms double precision, error_message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT h.start_time, format('%I.%I', s.pgt_schema, s.pgt_name), h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision, h.error_message
    FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;

-- Roots are the stream tables that feed no other; below each come the sources it reads.
CREATE FUNCTION pgtrickle.dependency_tree()
RETURNS TABLE (tree_line text, node text, node_type text, depth integer, status text, refresh_mode text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE named AS (
        SELECT s.*, format('%I.%I', s.pgt_schema, s.pgt_name) AS node FROM pgtrickle.pgt_stream_tables s
    ), edges AS (
        SELECT d.pgt_id, d.source_pgt_id, coalesce(n.node, d.source_name) AS node,
               lower(d.source_type) AS node_type, n.status, n.refresh_mode,
               row_number() OVER w AS place, count(*) OVER (PARTITION BY d.pgt_id) AS siblings
        FROM pgtrickle.pgt_dependencies d LEFT JOIN named n ON n.pgt_id = d.source_pgt_id
        WINDOW w AS (PARTITION BY d.pgt_id ORDER BY coalesce(n.node, d.source_name))
    ), tree AS (
        SELECT n.pgt_id, n.node, 'stream_table' AS node_type, 0 AS depth, n.status, n.refresh_mode,
               n.node AS tree_line, '' AS indent, ARRAY[n.node] AS path
        FROM named n
        WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_pgt_id = n.pgt_id)
        UNION ALL
        SELECT e.source_pgt_id, e.node, e.node_type, t.depth + 1, e.status, e.refresh_mode,
               t.indent || CASE WHEN e.place = e.siblings THEN '└── ' ELSE '├── ' END || e.node,
               t.indent || CASE WHEN e.place = e.siblings THEN '    ' ELSE '│   ' END,
               t.path || e.node
        FROM tree t JOIN edges e ON e.pgt_id = t.pgt_id
    )
    SELECT t.tree_line, t.node, t.node_type, t.depth, t.status, t.refresh_mode FROM tree t ORDER BY t.path
$$;

CREATE FUNCTION pgtrickle.change_buffer_sizes()
RETURNS TABLE (
    stream_table text, source_table text, source_oid oid, cdc_mode text, pending_rows bigint, buffer_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), d.source_name, d.source_relid, 'trigger',
           coalesce(p.pending, 0), pg_total_relation_size(to_regclass('pgtrickle_changes.' || t.buffer))
    FROM pgtrickle.pgt_dependencies d
    JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
    JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle._pending() p ON p.pgt_id = d.pgt_id AND p.source_relid = d.source_relid
    ORDER BY 1, 2
$$;

CREATE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH s AS (
        SELECT t.*, format('%I.%I', t.pgt_schema, t.pgt_name) AS full_name, f.pending, f.staleness
        FROM pgtrickle.pgt_stream_tables t JOIN pgtrickle._freshness() f ON f.pgt_id = t.pgt_id
    )
    SELECT 'scheduler_running', CASE WHEN alive THEN 'OK' ELSE 'ERROR' END,
           CASE WHEN alive
                THEN coalesce((SELECT format('engine %s, process %s on %s, since %s', e.version, e.os_pid, e.host,
                                             e.started_at) FROM pgtrickle.pgt_engine e), 'an engine is running')
                ELSE 'no Runnel engine is running on this database; start one with: runnel up' END
    FROM pgtrickle._engine_alive() alive
    UNION ALL
    SELECT 'error_tables', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'ERROR' END,
           coalesce(string_agg(full_name || ': ' || coalesce(last_error, status), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.status IN ('ERROR', 'SUSPENDED') AND (s.status = 'ERROR' OR s.last_error IS NOT NULL)
    UNION ALL
    SELECT 'stale_tables', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s behind', full_name, date_trunc('second', staleness)), '; '
                               ORDER BY full_name), 'none')
    FROM s WHERE s.status = 'ACTIVE' AND s.pending > 0 AND s.staleness > interval '5 minutes'
    UNION ALL
    SELECT 'needs_reinit', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(full_name, ', ' ORDER BY full_name), 'none')
    FROM s WHERE s.needs_reinit
    UNION ALL
    SELECT 'consecutive_errors', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s in a row', full_name, consecutive_errors), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.consecutive_errors > 0
    UNION ALL
    SELECT 'buffer_growth', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s changes wait', full_name, pending), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.pending > 1000000
$$;

CREATE FUNCTION pgtrickle.version() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT value FROM pgtrickle.pgt_settings WHERE key = 'version'
$$;

-- Functions that begin with an underscore are the engine's, except the few that the public ones stand on.
DO $$
DECLARE
    internal regprocedure;
BEGIN
    FOR internal IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace AND starts_with(p.proname::text, '_')
          AND p.proname NOT IN ('_ask', '_call', '_session_settings', '_find', '_find_or_fail', '_freshness', '_pending',
                                '_engine_alive')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', internal);
    END LOOP;
END
$$;
