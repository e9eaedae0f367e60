-- Whole error messages for those who may act as a table's owner; names that fit; calls at the same time; the pulse.

-- A message may quote a row. What everybody may read (last_error, error_message) names the condition; the text is here.
CREATE TABLE pgtrickle.pgt_error_texts (
    refresh_id bigint PRIMARY KEY REFERENCES pgtrickle.pgt_refresh_history ON DELETE CASCADE,
    message    text NOT NULL
);
COMMENT ON TABLE pgtrickle.pgt_error_texts IS 'Whole messages of failed refreshes; a role sees those of the owners it may act as.';

ALTER TABLE pgtrickle.pgt_error_texts ENABLE ROW LEVEL SECURITY;
CREATE POLICY owners ON pgtrickle.pgt_error_texts FOR SELECT USING (EXISTS (
    SELECT FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
    WHERE h.refresh_id = pgt_error_texts.refresh_id AND pg_has_role(s.owner, 'MEMBER')));
REVOKE ALL ON pgtrickle.pgt_error_texts FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_error_texts TO PUBLIC;

-- Messages of earlier releases: nobody can tell any more which of them quote a row. Those of tables in ERROR never do.
INSERT INTO pgtrickle.pgt_error_texts (refresh_id, message)
SELECT h.refresh_id, h.error_message
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
WHERE h.error_message IS NOT NULL AND NOT (s.status = 'ERROR' AND h.error_message = s.last_error);
UPDATE pgtrickle.pgt_refresh_history h
SET error_message = 'an error; who may act as its owner reads the message in pgtrickle.pgt_status() and get_refresh_history()'
FROM pgtrickle.pgt_error_texts t WHERE t.refresh_id = h.refresh_id;
UPDATE pgtrickle.pgt_stream_tables s SET last_error = f.error_message
FROM (SELECT DISTINCT ON (h.pgt_id) h.pgt_id, h.error_message, t.message
      FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
      ORDER BY h.pgt_id, h.refresh_id DESC) f
WHERE f.pgt_id = s.pgt_id AND f.message = s.last_error AND s.status <> 'ERROR';
UPDATE pgtrickle.pgt_refresh_history SET reason = 'the delta failed' WHERE reason LIKE 'the delta failed: %';

-- The last error of a stream table, whole if the caller may read it.
CREATE FUNCTION pgtrickle._last_error(id bigint, shown text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
    SELECT coalesce((
        SELECT t.message
        FROM (SELECT h.refresh_id, h.error_message FROM pgtrickle.pgt_refresh_history h
              WHERE h.pgt_id = id AND h.status = 'FAILED' AND shown IS NOT NULL
              ORDER BY h.refresh_id DESC LIMIT 1) f
        JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = f.refresh_id
        WHERE f.error_message = shown), shown)
$$;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (
    name text, status text, refresh_mode text, is_populated boolean, consecutive_errors integer, schedule text,
    data_timestamp timestamptz, staleness interval, effective_mode text, pending_changes bigint,
    last_refresh_ms double precision, last_rows bigint, last_error text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), s.status, s.refresh_mode, s.is_populated, s.consecutive_errors,
           s.schedule, s.data_timestamp, f.staleness, s.effective_mode, f.pending,
           (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           h.rows_inserted + h.rows_deleted, pgtrickle._last_error(s.pgt_id, s.last_error)
    FROM pgtrickle.pgt_stream_tables s
    JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
    LEFT JOIN LATERAL (
        SELECT * FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = s.pgt_id AND h.status = 'COMPLETED' ORDER BY h.refresh_id DESC LIMIT 1) h ON true
    ORDER BY s.pgt_schema, s.pgt_name
$$;

CREATE OR REPLACE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS TABLE (
    refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
    status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text,
    initiated_by text, changes_read bigint, reason text, timings jsonb, spark_jobs integer, lake_io jsonb)
LANGUAGE sql STABLE SET row_security = on
AS $$
    SELECT h.refresh_id, h.data_timestamp, h.start_time, h.end_time, h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           coalesce(t.message, h.error_message), h.initiated_by, h.changes_read, h.reason, h.timings, h.spark_jobs,
           h.lake_io
    FROM pgtrickle.pgt_refresh_history h LEFT JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
    WHERE h.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;

CREATE OR REPLACE FUNCTION pgtrickle.refresh_timeline(max_rows integer DEFAULT 50)
RETURNS TABLE (
    start_time timestamptz, stream_table text, action text, status text, rows_inserted bigint, rows_deleted bigint,
    duration_ms double precision, error_message text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET row_security = on
AS $$
    SELECT h.start_time, format('%I.%I', s.pgt_schema, s.pgt_name), h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           coalesce(t.message, h.error_message)
    FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
    LEFT JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;

-- The pulse of the engine: when its loop last came round. Not worth a place in the write-ahead log.
CREATE UNLOGGED TABLE pgtrickle.pgt_heartbeat (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    seen_at   timestamptz NOT NULL
) WITH (fillfactor = 10);
COMMENT ON TABLE pgtrickle.pgt_heartbeat IS 'When the loop of the engine last came round: every 5 seconds at work, every 30 asleep.';
GRANT SELECT ON pgtrickle.pgt_heartbeat TO PUBLIC;

-- Since when the engine is inside a transaction: it refreshes, and calls wait for it. The sessions are its own role's.
CREATE FUNCTION pgtrickle._engine_busy() RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(a.xact_start) FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usename = current_user
      AND a.application_name IN ('runnel refresh', 'runnel requests')
$$;

-- Whether the engine is there and answers.
CREATE FUNCTION pgtrickle._pulse() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN NOT alive THEN 'ERROR' WHEN p.silence < interval '90 seconds' THEN 'OK'
                WHEN p.busy IS NOT NULL THEN 'WARN' ELSE 'ERROR' END,
           CASE WHEN NOT alive THEN 'no Runnel engine is running on this database; start one with: runnel up'
                WHEN p.silence < interval '90 seconds' THEN coalesce(p.who, 'an engine is running')
                WHEN p.busy IS NOT NULL THEN
                    format('the engine has been at one piece of work since %s; calls wait until it is done', p.busy)
                ELSE format('the engine does not answer: its loop last came round %s ago, and calls hang; look at its '
                            'log and start it again', date_trunc('second', p.silence)) END
    FROM pgtrickle._engine_alive() alive
    CROSS JOIN LATERAL (
        SELECT clock_timestamp() - greatest((SELECT h.seen_at FROM pgtrickle.pgt_heartbeat h),
                                            (SELECT e.started_at FROM pgtrickle.pgt_engine e)) AS silence,
               pgtrickle._engine_busy() AS busy,
               (SELECT format('engine %s, process %s on %s, since %s', e.version, e.os_pid, e.host, e.started_at)
                FROM pgtrickle.pgt_engine e) AS who) p
$$;

CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH s AS (
        SELECT t.*, format('%I.%I', t.pgt_schema, t.pgt_name) AS full_name, f.pending, f.staleness,
               pgtrickle._last_error(t.pgt_id, t.last_error) AS error
        FROM pgtrickle.pgt_stream_tables t JOIN pgtrickle._freshness() f ON f.pgt_id = t.pgt_id
    )
    SELECT 'scheduler_running', p.severity, p.detail FROM pgtrickle._pulse() p
    UNION ALL
    SELECT 'error_tables', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'ERROR' END,
           coalesce(string_agg(full_name || ': ' || coalesce(error, status), '; ' ORDER BY full_name), 'none')
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
    UNION ALL
    SELECT v.* FROM pgtrickle._verification_health() v
$$;

-- Sessions that ask for the same stream table at the same time: the engine, which takes one call after another, decides
-- which of them creates it.
CREATE OR REPLACE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT false,
    pooler_compatibility_mode boolean DEFAULT false,
    sink text DEFAULT NULL,
    ducklake_sink_mode text DEFAULT NULL,
    ducklake_lake text DEFAULT NULL,
    inline_small_changes boolean DEFAULT NULL,
    ducklake_compression text DEFAULT NULL,
    delta_export_path text DEFAULT NULL,
    delta_export_compression text DEFAULT NULL,
    ducklake_expired text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    made pg_catalog.jsonb;
BEGIN
    IF pgtrickle._find(name) IS NULL THEN
        made := pgtrickle._ask('create_if_not_exists', pg_catalog.jsonb_build_object(
            'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'initialize', initialize,
            'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
            'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode)
            OPERATOR(pg_catalog.||) pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
            'sink', sink, 'ducklake_sink_mode', ducklake_sink_mode, 'ducklake_lake', ducklake_lake,
            'inline_small_changes', inline_small_changes, 'ducklake_compression', ducklake_compression,
            'delta_export_path', delta_export_path, 'delta_export_compression', delta_export_compression,
            'ducklake_expired', ducklake_expired)));
    END IF;
    IF made IS NULL OR made OPERATOR(pg_catalog.=) 'false'::pg_catalog.jsonb THEN
        RAISE NOTICE 'stream table "%" already exists, skipping', name;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._find_or_fail(name text) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    id pg_catalog.int8;
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION 'argument "name" must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give the name of a stream table.';
    END IF;
    id := pgtrickle._find(name);
    IF id IS NULL THEN
        RAISE EXCEPTION 'stream table "%" does not exist', name
            USING ERRCODE = 'undefined_table', HINT = 'SELECT * FROM pgtrickle.pgt_status() lists them.';
    END IF;
    RETURN id;
END
$$;
