-- The monitoring surface that pg_trickle's dashboards and scripts ask for, with its names and columns. All of it only
-- reads; what a role sees of an error is what it sees elsewhere.

-- ------------------------------------------------------------------ how often a stream table may be refreshed

CREATE FUNCTION pgtrickle._duration(schedule text) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN schedule ~ '^(\d{1,9}(ms|w|d|h|m|s))+$' THEN (
        SELECT sum(part[1]::float8 * CASE part[2] WHEN 'ms' THEN interval '1 millisecond' WHEN 's' THEN interval '1 second'
                                                  WHEN 'm' THEN interval '1 minute' WHEN 'h' THEN interval '1 hour'
                                                  WHEN 'd' THEN interval '1 day' ELSE interval '7 days' END)
        FROM regexp_matches(schedule, '(\d+)(ms|w|d|h|m|s)', 'g') part) END
$$;
COMMENT ON FUNCTION pgtrickle._duration(text) IS 'A schedule that is a duration; null for any other.';

-- A calculated schedule is the shortest duration of what reads the table, however far down, and a second without any.
CREATE FUNCTION pgtrickle._periods() RETURNS TABLE (pgt_id bigint, period interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE readers (pgt_id, reader) AS (
        SELECT s.pgt_id, d.pgt_id FROM pgtrickle.pgt_stream_tables s
        JOIN pgtrickle.pgt_dependencies d ON d.source_pgt_id = s.pgt_id
        WHERE s.schedule = 'calculated'
        UNION
        SELECT r.pgt_id, d.pgt_id FROM readers r JOIN pgtrickle.pgt_dependencies d ON d.source_pgt_id = r.reader
    )
    SELECT s.pgt_id, CASE WHEN s.schedule = 'calculated' THEN coalesce((
               SELECT min(pgtrickle._duration(t.schedule)) FROM readers r
               JOIN pgtrickle.pgt_stream_tables t ON t.pgt_id = r.reader WHERE r.pgt_id = s.pgt_id), interval '1 second')
           ELSE pgtrickle._duration(s.schedule) END
    FROM pgtrickle.pgt_stream_tables s
$$;
COMMENT ON FUNCTION pgtrickle._periods() IS 'The least time between two refreshes of each stream table; null for cron.';

-- ------------------------------------------------------------------ views

CREATE VIEW pgtrickle.stream_tables_info AS
SELECT s.*, f.staleness, f.staleness > p.period AS stale
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
JOIN pgtrickle._periods() p ON p.pgt_id = s.pgt_id;
COMMENT ON VIEW pgtrickle.stream_tables_info IS 'The catalog of stream tables, with how far each is behind.';

-- What the history says of each stream table: of the refreshes that are still in it.
CREATE FUNCTION pgtrickle._refresh_totals() RETURNS TABLE (
    pgt_id bigint, total bigint, successful bigint, failed bigint, inserted bigint, deleted bigint, avg_ms double precision,
    last_action text, last_status text, last_initiated_by text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.pgt_id, t.total, t.successful, t.failed, t.inserted, t.deleted, t.avg_ms, l.action, l.status, l.initiated_by
    FROM (
        SELECT h.pgt_id, count(*) AS total, count(*) FILTER (WHERE h.status = 'COMPLETED') AS successful,
               count(*) FILTER (WHERE h.status = 'FAILED') AS failed, coalesce(sum(h.rows_inserted), 0)::bigint AS inserted,
               coalesce(sum(h.rows_deleted), 0)::bigint AS deleted, max(h.refresh_id) AS newest,
               (avg(extract(epoch FROM h.end_time - h.start_time)) * 1000)::double precision AS avg_ms
        FROM pgtrickle.pgt_refresh_history h GROUP BY h.pgt_id) t
    JOIN pgtrickle.pgt_refresh_history l ON l.refresh_id = t.newest
$$;

CREATE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT s.pgt_id, s.pgt_schema, s.pgt_name, s.status, s.refresh_mode, s.is_populated, s.data_timestamp, s.schedule,
       s.staleness, s.stale, s.consecutive_errors, s.needs_reinit, s.last_refresh_at,
       coalesce(t.total, 0) AS total_refreshes, coalesce(t.successful, 0) AS successful_refreshes,
       coalesce(t.failed, 0) AS failed_refreshes, coalesce(t.inserted, 0) AS total_rows_inserted,
       coalesce(t.deleted, 0) AS total_rows_deleted, t.avg_ms AS avg_duration_ms, t.last_action, t.last_status,
       t.last_initiated_by,
       ARRAY(SELECT 'trigger' FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_change_tracking c USING (source_relid)
             WHERE d.pgt_id = s.pgt_id LIMIT 1) AS cdc_modes,
       NULL::integer AS scc_id, NULL::integer AS last_fixpoint_iterations, s.effective_mode
FROM pgtrickle.stream_tables_info s
LEFT JOIN pgtrickle._refresh_totals() t ON t.pgt_id = s.pgt_id;
COMMENT ON VIEW pgtrickle.pg_stat_stream_tables IS 'Each stream table with the totals of its refreshes in the history.';

CREATE VIEW pgtrickle.quick_health AS
SELECT n.total_stream_tables, n.error_tables, n.stale_tables, n.scheduler_running,
       CASE WHEN n.total_stream_tables = 0 THEN 'EMPTY'
            WHEN n.suspended > 0 OR NOT n.scheduler_running THEN 'CRITICAL'
            WHEN n.error_tables > 0 OR n.stale_tables > 0 THEN 'WARNING' ELSE 'OK' END AS status
FROM (SELECT count(*) AS total_stream_tables,
             count(*) FILTER (WHERE s.status = 'ERROR' OR s.consecutive_errors > 0) AS error_tables,
             count(*) FILTER (WHERE s.stale) AS stale_tables, pgtrickle._engine_alive() AS scheduler_running,
             count(*) FILTER (WHERE s.status = 'SUSPENDED') AS suspended
      FROM pgtrickle.stream_tables_info s) n;
COMMENT ON VIEW pgtrickle.quick_health IS 'All stream tables in one row: EMPTY, OK, WARNING or CRITICAL.';

GRANT SELECT ON pgtrickle.stream_tables_info, pgtrickle.pg_stat_stream_tables, pgtrickle.quick_health TO PUBLIC;

-- ------------------------------------------------------------------ functions over all stream tables

CREATE FUNCTION pgtrickle.health_summary() RETURNS TABLE (
    total_stream_tables integer, active_count integer, error_count integer, suspended_count integer, stale_count integer,
    reinit_pending integer, max_staleness_seconds double precision, scheduler_status text, cache_hit_rate double precision)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*)::int, (count(*) FILTER (WHERE s.status = 'ACTIVE'))::int,
           (count(*) FILTER (WHERE s.status = 'ERROR'))::int, (count(*) FILTER (WHERE s.status = 'SUSPENDED'))::int,
           (count(*) FILTER (WHERE s.stale))::int, (count(*) FILTER (WHERE s.needs_reinit))::int,
           extract(epoch FROM max(s.staleness))::double precision,
           CASE WHEN pgtrickle._engine_alive() THEN 'ACTIVE' ELSE 'STOPPED' END,
           (SELECT (h.prepared_plans ->> 'used')::double precision
                   / nullif((h.prepared_plans ->> 'used')::bigint + (h.prepared_plans ->> 'made')::bigint, 0)
            FROM pgtrickle.pgt_heartbeat h)
    FROM pgtrickle.stream_tables_info s
$$;

CREATE FUNCTION pgtrickle.st_refresh_stats() RETURNS TABLE (
    pgt_name text, pgt_schema text, status text, refresh_mode text, is_populated boolean, total_refreshes bigint,
    successful_refreshes bigint, failed_refreshes bigint, total_rows_inserted bigint, total_rows_updated bigint,
    total_rows_deleted bigint, avg_duration_ms double precision, last_refresh_action text, last_refresh_status text,
    last_refresh_at timestamptz, staleness_secs double precision, stale boolean, consecutive_errors integer, schedule text,
    last_error_message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.pgt_name, s.pgt_schema, s.status, s.refresh_mode, s.is_populated, s.total_refreshes, s.successful_refreshes,
           s.failed_refreshes, s.total_rows_inserted, 0::bigint, s.total_rows_deleted, s.avg_duration_ms, s.last_action,
           s.last_status, s.last_refresh_at, extract(epoch FROM s.staleness)::double precision, s.stale,
           s.consecutive_errors, s.schedule, pgtrickle._last_error(s.pgt_id, t.last_error)
    FROM pgtrickle.pg_stat_stream_tables s JOIN pgtrickle.pgt_stream_tables t ON t.pgt_id = s.pgt_id
    ORDER BY s.pgt_schema, s.pgt_name
$$;
COMMENT ON FUNCTION pgtrickle.st_refresh_stats() IS
    'Totals of the history by stream table. Nothing is updated in place: an update counts as deleted and inserted.';

CREATE FUNCTION pgtrickle.check_cdc_health() RETURNS TABLE (
    source_relid bigint, source_table text, cdc_mode text, slot_name text, lag_bytes bigint, confirmed_lsn text, alert text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.source_relid::bigint, coalesce(format('%I.%I', n.nspname, c.relname), d.source_name), 'TRIGGER', NULL::text,
           NULL::bigint, NULL::text,
           CASE WHEN c.oid IS NULL THEN 'source_table_missing'
                WHEN to_regclass(format('pgtrickle_changes.%I', t.buffer)) IS NULL THEN 'change_buffer_missing'
                WHEN EXISTS (
                    SELECT FROM unnest(t.relations) r (oid) CROSS JOIN unnest('{ins,upd,del,trunc}'::text[]) k (kind)
                    WHERE EXISTS (SELECT FROM pg_class p WHERE p.oid = r.oid) AND NOT EXISTS (
                        SELECT FROM pg_trigger g WHERE g.tgrelid = r.oid AND g.tgenabled = 'A'
                          AND g.tgname = format('pgtrickle_%s_%s', t.source_relid, k.kind)))
                THEN 'capture_trigger_missing_or_disabled' END
    FROM pgtrickle.pgt_change_tracking t
    LEFT JOIN pg_class c ON c.oid = t.source_relid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (SELECT e.source_name FROM pgtrickle.pgt_dependencies e
                       WHERE e.source_relid = t.source_relid LIMIT 1) d ON true
    ORDER BY 2
$$;

-- Of the refreshes that did something: an empty delta says little of what a delta costs.
CREATE FUNCTION pgtrickle.refresh_efficiency() RETURNS TABLE (
    pgt_schema text, pgt_name text, refresh_mode text, total_refreshes bigint, diff_count bigint, full_count bigint,
    avg_diff_ms double precision, avg_full_ms double precision, avg_change_ratio double precision, diff_speedup text,
    last_refresh_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.pgt_schema, s.pgt_name, s.refresh_mode, coalesce(h.total, 0), coalesce(h.deltas, 0), coalesce(h.fulls, 0),
           h.delta_ms, h.full_ms, h.changes / nullif(greatest(c.reltuples, 0), 0),
           round((h.full_ms / nullif(h.delta_ms, 0))::numeric, 1) || 'x', s.last_refresh_at
    FROM pgtrickle.pgt_stream_tables s
    LEFT JOIN pg_class c ON c.oid = s.pgt_relid
    LEFT JOIN (
        SELECT r.pgt_id, count(*) AS total, count(*) FILTER (WHERE r.action = 'DIFFERENTIAL') AS deltas,
               count(*) FILTER (WHERE r.action <> 'DIFFERENTIAL') AS fulls,
               (avg(r.ms) FILTER (WHERE r.action = 'DIFFERENTIAL' AND r.changes_read > 0))::float8 AS delta_ms,
               (avg(r.ms) FILTER (WHERE r.action <> 'DIFFERENTIAL'))::float8 AS full_ms,
               (avg(r.rows_inserted + r.rows_deleted) FILTER (WHERE r.action = 'DIFFERENTIAL'))::float8 AS changes
        FROM (SELECT h.*, extract(epoch FROM h.end_time - h.start_time) * 1000 AS ms
              FROM pgtrickle.pgt_refresh_history h WHERE h.status = 'COMPLETED') r
        GROUP BY r.pgt_id) h ON h.pgt_id = s.pgt_id
    ORDER BY s.pgt_schema, s.pgt_name
$$;

CREATE FUNCTION pgtrickle.recommend_refresh_mode(st_name text DEFAULT NULL) RETURNS TABLE (
    pgt_schema text, pgt_name text, current_mode text, effective_mode text, recommended_mode text, confidence text,
    reason text, signals jsonb)
LANGUAGE sql STABLE
AS $$
    SELECT s.pgt_schema, s.pgt_name, s.refresh_mode, s.effective_mode, a.mode, a.confidence, a.reason,
           pg_catalog.jsonb_build_object(
               'diff_count', e.diff_count, 'full_count', e.full_count, 'avg_diff_ms', e.avg_diff_ms,
               'avg_full_ms', e.avg_full_ms, 'avg_change_ratio', e.avg_change_ratio, 'diff_speedup', e.diff_speedup,
               'mode_reason', s.mode_reason)
    FROM pgtrickle.pgt_stream_tables s
    JOIN pgtrickle.refresh_efficiency() e ON e.pgt_schema = s.pgt_schema AND e.pgt_name = s.pgt_name
    CROSS JOIN LATERAL (
        SELECT CASE WHEN s.effective_mode = 'FULL' AND s.mode_reason IS NOT NULL AND s.refresh_mode <> 'DIFFERENTIAL'
                    THEN ARRAY['KEEP', 'high', pg_catalog.format('deltas are not possible: %s', s.mode_reason)]
                    WHEN e.diff_count < 5 OR e.full_count = 0 OR e.avg_diff_ms IS NULL OR e.avg_full_ms IS NULL
                    THEN CASE WHEN s.refresh_mode = 'FULL'
                              THEN ARRAY['AUTO', 'low', 'no deltas were measured; AUTO computes them, and everything where that is faster']
                              ELSE ARRAY['KEEP', 'low', pg_catalog.format('only %s deltas and %s full refreshes were measured', e.diff_count, e.full_count)] END
                    WHEN e.avg_diff_ms > e.avg_full_ms * 1.5 AND s.refresh_mode = 'DIFFERENTIAL'
                    THEN ARRAY['AUTO', CASE WHEN e.diff_count >= 20 THEN 'high' ELSE 'medium' END,
                               pg_catalog.format('a delta takes %s ms, everything %s ms; AUTO takes what is faster each time', round(e.avg_diff_ms), round(e.avg_full_ms))]
                    WHEN e.avg_full_ms > e.avg_diff_ms * 1.5 AND s.refresh_mode = 'FULL'
                    THEN ARRAY['DIFFERENTIAL', CASE WHEN e.diff_count >= 20 THEN 'high' ELSE 'medium' END,
                               pg_catalog.format('a delta takes %s ms, everything %s ms', round(e.avg_diff_ms), round(e.avg_full_ms))]
                    ELSE ARRAY['KEEP', CASE WHEN e.diff_count >= 20 THEN 'high' ELSE 'medium' END,
                               pg_catalog.format('a delta takes %s ms, everything %s ms', round(e.avg_diff_ms), round(e.avg_full_ms))] END
    ) AS chosen (words)
    CROSS JOIN LATERAL (SELECT words[1], words[2], words[3]) AS a (mode, confidence, reason)
    WHERE st_name IS NULL OR s.pgt_id = pgtrickle._find_or_fail(st_name)
    ORDER BY s.pgt_schema, s.pgt_name
$$;

-- ------------------------------------------------------------------ functions of one stream table

CREATE FUNCTION pgtrickle.list_sources(name text) RETURNS TABLE (
    source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text)
LANGUAGE sql STABLE
AS $$
    SELECT d.source_name, d.source_relid::bigint, lower(d.source_type),
           CASE WHEN t.source_relid IS NOT NULL THEN 'trigger' WHEN d.source_pgt_id IS NOT NULL THEN 'log'
                WHEN k.relid IS NOT NULL THEN 'snapshot' END,
           nullif(pg_catalog.array_to_string(d.columns_used, ', '), '')
    FROM pgtrickle.pgt_dependencies d
    LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
    WHERE d.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY d.source_name
$$;
COMMENT ON FUNCTION pgtrickle.list_sources(text) IS
    'What a stream table reads, and how its changes are known: by triggers, a stream table''s log, or a lake''s snapshots.';

CREATE FUNCTION pgtrickle._remedy(error text) RETURNS TABLE (kind text, remedy text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.kind, r.remedy FROM (VALUES
        ('user', '\((2[0-7]|44|P0)...\)', 'A row or an expression of the query does: look at the message with the owner''s role, correct the row or the query, then pgtrickle.resume_stream_table.'),
        ('correctness', 'disagree|somebody else|rows are gone|check constraint|\(XX...\)', 'The table is rebuilt by itself; afterwards pgtrickle.verify_stream_table compares it with its query.'),
        ('performance', 'memory|timeout|timed out|canceling statement|disk|temporary file|\((53|54)...\)', 'Give the server or Spark more of what was short, or index what explain_stream_table marks with "!".'),
        ('schema', 'does not exist|was dropped|was renamed|permission denied|unlogged|cannot|\((0A|3F|42)...\)', 'Undo the change to the source, or alter the stream table''s query, then pgtrickle.resume_stream_table.'),
        ('infrastructure', '', 'The refresh is tried again by itself; if it keeps failing, look at the engine''s log and pgtrickle.health_check().')
    ) AS r (kind, pattern, remedy)
    WHERE error ~* r.pattern LIMIT 1
$$;

CREATE FUNCTION pgtrickle.diagnose_errors(name text) RETURNS TABLE (
    event_time timestamptz, error_type text, error_message text, remediation text)
LANGUAGE sql STABLE SET row_security = on
AS $$
    SELECT h.start_time, r.kind, coalesce(t.message, h.error_message), r.remedy
    FROM pgtrickle.pgt_refresh_history h
    LEFT JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
    CROSS JOIN LATERAL pgtrickle._remedy(coalesce(h.error_message, '')) r
    WHERE h.pgt_id = pgtrickle._find_or_fail(name) AND h.status = 'FAILED'
    ORDER BY h.refresh_id DESC LIMIT 5
$$;

-- The query as PostgreSQL prints it: its names are whole, so the statement means the same under any search path.
CREATE FUNCTION pgtrickle.export_definition(name text) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.format(E'SELECT pgtrickle.create_or_replace_stream_table(\n    name => %L,\n    query => $pgt$%s$pgt$,\n'
                             '    schedule => %L,\n    refresh_mode => %L%s\n);\n',
               pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name), s.defining_query, s.schedule, s.refresh_mode,
               CASE WHEN k.sink = 'ducklake' THEN pg_catalog.format(
                   E',\n    sink => %L,\n    ducklake_lake => %L,\n    ducklake_sink_mode => %L,\n'
                   '    inline_small_changes => %L,\n    ducklake_compression => %L',
                   k.sink, k.lake, k.mode, k.inline_small_changes, k.compression) ELSE '' END
               || CASE WHEN k.delta_export_path IS NOT NULL THEN pg_catalog.format(
                   E',\n    delta_export_path => %L,\n    delta_export_compression => %L',
                   k.delta_export_path, k.delta_export_compression) ELSE '' END
               || CASE WHEN s.ducklake_expired <> 'fallback'
                       THEN pg_catalog.format(E',\n    ducklake_expired => %L', s.ducklake_expired) ELSE '' END)
           || CASE WHEN s.status = 'SUSPENDED' THEN pg_catalog.format(
                  E'SELECT pgtrickle.alter_stream_table(%L, status => ''SUSPENDED'');\n',
                  pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name)) ELSE '' END
    FROM pgtrickle.pgt_stream_tables s LEFT JOIN pgtrickle.pgt_sinks k ON k.pgt_id = s.pgt_id
    WHERE s.pgt_id = pgtrickle._find_or_fail(name)
$$;
COMMENT ON FUNCTION pgtrickle.export_definition(text) IS 'The statements that make a stream table what it is.';

-- The plan itself is the engine's to tell: the property is left out when none runs, or nothing may be asked of it.
DROP FUNCTION pgtrickle.explain_st(text);
CREATE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE (property text, value text)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    id CONSTANT pg_catalog.int8 := pgtrickle._find_or_fail(name);
    st record;
BEGIN
    SELECT s.*, pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name) AS full_name INTO st
    FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = id;
    RETURN QUERY VALUES
        ('pgt_name', st.full_name), ('defining_query', st.defining_query), ('refresh_mode', st.refresh_mode),
        ('effective_mode', st.effective_mode), ('status', st.status), ('is_populated', st.is_populated::text),
        ('dvm_supported', (st.effective_mode = 'DIFFERENTIAL' OR st.mode_reason IS NULL)::text);
    IF st.mode_reason IS NOT NULL THEN
        RETURN QUERY SELECT 'mode_reason', st.mode_reason;
    END IF;
    IF pgtrickle._engine_alive() AND pg_catalog.current_setting('transaction_read_only') = 'off' THEN
        RETURN QUERY SELECT 'operator_tree', pg_catalog.string_agg(l.line, E'\n')
                     FROM pgtrickle.explain_stream_table(name) AS l (line);
    END IF;
    RETURN QUERY
        SELECT 'output_columns', pg_catalog.string_agg(a.attname::text, ', ' ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = st.pgt_relid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT 'source_oids', pg_catalog.string_agg(d.source_relid::text, ', ' ORDER BY d.source_relid)
        FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = id
        UNION ALL
        SELECT 'frontier', st.frontier::text
        UNION ALL
        SELECT 'amplification_stats', pg_catalog.jsonb_build_object(
                   'samples', count(*), 'min', min(h.ratio), 'max', max(h.ratio), 'avg', avg(h.ratio))::text
        FROM (SELECT round((r.rows_inserted + r.rows_deleted)::numeric / r.changes_read, 3) AS ratio
              FROM pgtrickle.pgt_refresh_history r
              WHERE r.pgt_id = id AND r.status = 'COMPLETED' AND r.changes_read > 0
              ORDER BY r.refresh_id DESC LIMIT 20) h HAVING count(*) > 0
        UNION ALL
        SELECT 'refresh_timing_stats', pg_catalog.jsonb_build_object(
                   'samples', count(*), 'min_ms', min(h.ms), 'max_ms', max(h.ms), 'avg_ms', round(avg(h.ms), 3),
                   'latest_ms', (pg_catalog.array_agg(h.ms ORDER BY h.refresh_id DESC))[1],
                   'latest_action', (pg_catalog.array_agg(h.action ORDER BY h.refresh_id DESC))[1])::text
        FROM (SELECT r.refresh_id, r.action, round(extract(epoch FROM r.end_time - r.start_time) * 1000, 3) AS ms
              FROM pgtrickle.pgt_refresh_history r WHERE r.pgt_id = id AND r.status = 'COMPLETED'
              ORDER BY r.refresh_id DESC LIMIT 20) h HAVING count(*) > 0
        UNION ALL
        SELECT 'source_partitions', pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                   'source', d.source_name, 'partition_key', pg_catalog.pg_get_partkeydef(d.source_relid),
                   'partitions', (SELECT count(*) FROM pg_catalog.pg_inherits i WHERE i.inhparent = d.source_relid)))::text
        FROM pgtrickle.pgt_dependencies d JOIN pg_catalog.pg_class c ON c.oid = d.source_relid AND c.relkind = 'p'
        WHERE d.pgt_id = id HAVING count(*) > 0
        UNION ALL
        SELECT 'dependency_graph_dot', pg_catalog.format(
                   E'digraph dependency_subgraph {\n  rankdir=LR;\n  "%s" [shape=box, style=bold];\n%s}\n',
                   replace(st.full_name, '"', '\"'), (
                   SELECT pg_catalog.string_agg(pg_catalog.format(
                              E'  "%1$s" [shape=%2$s];\n  "%1$s" -> "%3$s";\n', replace(e.other, '"', '\"'), e.shape,
                              replace(st.full_name, '"', '\"')), '')
                   FROM (SELECT d.source_name AS other, CASE WHEN d.source_pgt_id IS NULL THEN 'ellipse' ELSE 'box' END AS shape
                         FROM pgtrickle.pgt_dependencies d WHERE d.pgt_id = id ORDER BY 1) e)
                   || coalesce((
                   SELECT pg_catalog.string_agg(pg_catalog.format(
                              E'  "%1$s" [shape=box];\n  "%2$s" -> "%1$s";\n', replace(e.other, '"', '\"'),
                              replace(st.full_name, '"', '\"')), '')
                   FROM (SELECT pg_catalog.format('%I.%I', r.pgt_schema, r.pgt_name) AS other
                         FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables r ON r.pgt_id = d.pgt_id
                         WHERE d.source_pgt_id = id ORDER BY 1) e), ''));
END
$$;
COMMENT ON FUNCTION pgtrickle.explain_st(text) IS
    'What is known of a stream table, as properties; explain_stream_table prints the plan alone.';
