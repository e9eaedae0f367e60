-- Long work, seen and stopped.

-- ------------------------------------------------------------------ what the engine is at

-- Written by the engine while something takes longer than a moment. Not worth a place in the write-ahead log.
CREATE UNLOGGED TABLE pgtrickle.pgt_work (
    job        bigint PRIMARY KEY,
    name       text NOT NULL,
    command    text NOT NULL,
    phase      text NOT NULL,
    rows_done  bigint,
    rows_total bigint,
    started_at timestamptz NOT NULL,
    phase_started_at timestamptz NOT NULL,
    stopping   boolean NOT NULL,
    caller_pid integer,
    worker_pid integer NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE pgtrickle.pgt_work IS 'What the workers of the engine are at, for pgt_progress.';
REVOKE ALL ON pgtrickle.pgt_work FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_work TO PUBLIC;

CREATE VIEW pgtrickle.pgt_progress AS
SELECT w.name, w.command, CASE WHEN w.stopping THEN 'stopping' ELSE w.phase END AS phase, w.rows_done, w.rows_total,
       clock_timestamp() - w.started_at AS elapsed,
       CASE WHEN w.rows_done > 0 AND w.rows_total >= w.rows_done THEN
           (clock_timestamp() - w.phase_started_at) * ((w.rows_total - w.rows_done)::float8 / w.rows_done) END AS remaining,
       w.started_at, w.caller_pid, w.worker_pid
FROM pgtrickle.pgt_work w
WHERE pgtrickle._engine_alive();
COMMENT ON VIEW pgtrickle.pgt_progress IS
    'What the engine has been at for more than a second. Rows and the time that remains are those of the phase.';
GRANT SELECT ON pgtrickle.pgt_progress TO PUBLIC;

-- ------------------------------------------------------------------ stopping

CREATE FUNCTION pgtrickle.cancel(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN pgtrickle._ask('cancel', pg_catalog.jsonb_build_object('name', name));
END
$$;
COMMENT ON FUNCTION pgtrickle.cancel(text) IS
    'Stop whatever the engine is doing to a stream table: its creation, refresh, redefinition or verification. '
    'Returns whether there was anything to stop. Needs membership in the owner''s role.';

-- ------------------------------------------------------------------ whether the engine keeps up

ALTER TABLE pgtrickle.pgt_heartbeat ADD COLUMN pace jsonb;
COMMENT ON COLUMN pgtrickle.pgt_heartbeat.pace IS
    'How many stream tables are being refreshed, how many are due and wait for their turn, and for how many seconds.';

CREATE FUNCTION pgtrickle._pace() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN p.late > 3 AND p.waiting > 0 THEN 'WARN' ELSE 'OK' END,
           CASE WHEN p.late > 3 AND p.waiting > 0 THEN
                    format('%s stream tables are due and wait for their turn, one of them for %s s: there is more to do '
                           'than this machine can, and schedules stretch', p.waiting, round(p.late::numeric, 1))
                ELSE format('%s being refreshed, %s waiting', coalesce(p.running, 0), coalesce(p.waiting, 0)) END
    FROM (VALUES (1)) one
    LEFT JOIN LATERAL (
        SELECT (h.pace ->> 'late')::float8 AS late, (h.pace ->> 'waiting')::int AS waiting,
               (h.pace ->> 'running')::int AS running
        FROM pgtrickle.pgt_heartbeat h WHERE h.seen_at > clock_timestamp() - interval '40 seconds') p ON true
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
    UNION ALL
    SELECT 'keeping_up', p.severity, p.detail FROM pgtrickle._pace() p
$$;
