-- Who evaluated a refresh: Spark's jobs and tasks, what these read and wrote, what passed the driver.
-- One jsonb like timings and lake_io: it is read whole, shown to people, and may count more one day.
ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN work jsonb;

COMMENT ON COLUMN pgtrickle.pgt_refresh_history.work IS
    'Jobs, tasks, rows and bytes that tasks read and wrote, rows that passed the driver; all zero: PostgreSQL alone. '
    'NULL when nothing was evaluated, when the refresh failed, and in rows of earlier releases.';

DROP FUNCTION pgtrickle.get_refresh_history(text, integer);
CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS TABLE (
    refresh_id bigint, data_timestamp timestamptz, start_time timestamptz, end_time timestamptz, action text,
    status text, rows_inserted bigint, rows_deleted bigint, duration_ms double precision, error_message text,
    initiated_by text, changes_read bigint, reason text, timings jsonb, spark_jobs integer, lake_io jsonb, work jsonb)
LANGUAGE sql STABLE SET row_security = on
AS $$
    SELECT h.refresh_id, h.data_timestamp, h.start_time, h.end_time, h.action, h.status, h.rows_inserted,
           h.rows_deleted, (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           coalesce(t.message, h.error_message), h.initiated_by, h.changes_read, h.reason, h.timings, h.spark_jobs,
           h.lake_io, h.work
    FROM pgtrickle.pgt_refresh_history h LEFT JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
    WHERE h.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY h.refresh_id DESC LIMIT max_rows
$$;
