-- Tests of stream tables: what must be true of their rows, looked at after each refresh that changed them.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN tested boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.tested IS 'Whether it has rows in pgt_tests.';

CREATE TABLE pgtrickle.pgt_tests (
    pgt_id       bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    position     integer NOT NULL,
    name         text NOT NULL,
    definition   jsonb NOT NULL,
    on_violation text NOT NULL CHECK (on_violation IN ('warn', 'hold')),
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'ok', 'violated', 'error')),
    violations   bigint NOT NULL DEFAULT 0,
    problem      text,
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    checked_at   timestamptz,
    repeat_at    timestamptz,
    PRIMARY KEY (pgt_id, position),
    UNIQUE (pgt_id, name)
) WITH (fillfactor = 50);

COMMENT ON TABLE pgtrickle.pgt_tests IS 'What must be true of the rows of stream tables, and what was found last.';
COMMENT ON COLUMN pgtrickle.pgt_tests.violations IS
    'Rows, keys or references that violate it; carried on from each refresh''s changes, counted anew after a recomputation.';
COMMENT ON COLUMN pgtrickle.pgt_tests.problem IS 'Why the test itself could not be run.';
COMMENT ON COLUMN pgtrickle.pgt_tests.since IS 'Since when it has this status.';
COMMENT ON COLUMN pgtrickle.pgt_tests.repeat_at IS
    'When the engine counts anew although the stream table has not changed, because other tables may have.';
REVOKE ALL ON pgtrickle.pgt_tests FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_tests TO PUBLIC;

ALTER TABLE pgtrickle.pgt_sinks ADD COLUMN held_since timestamptz;
COMMENT ON COLUMN pgtrickle.pgt_sinks.held_since IS
    'Since when the lake keeps an older version, because a test does not hold; null when the lake is in step.';

CREATE FUNCTION pgtrickle.set_tests(name text, tests jsonb, on_violation text DEFAULT 'warn') RETURNS jsonb
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN pgtrickle._ask('set_tests', pg_catalog.jsonb_build_object(
        'name', name, 'tests', tests, 'on_violation', on_violation));
END
$$;
COMMENT ON FUNCTION pgtrickle.set_tests(text, jsonb, text) IS
    'Replace the tests of a stream table, and run them; an empty array removes them. on_violation: ''warn'' or ''hold''. '
    'Needs membership in the owner''s role.';

CREATE FUNCTION pgtrickle.test_status(name text DEFAULT NULL) RETURNS TABLE (
    stream_table text, test text, on_violation text, status text, violations bigint, problem text,
    since timestamptz, checked_at timestamptz, definition jsonb)
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name), t.name, t.on_violation, t.status, t.violations, t.problem,
           t.since, t.checked_at, t.definition
    FROM pgtrickle.pgt_tests t JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = t.pgt_id
    WHERE test_status.name IS NULL OR s.pgt_id = pgtrickle._find_or_fail(test_status.name)
    ORDER BY s.pgt_schema, s.pgt_name, t.position
$$;
COMMENT ON FUNCTION pgtrickle.test_status(text) IS 'What the tests of stream tables found last.';

-- In a line: null without tests.
CREATE FUNCTION pgtrickle._tests_in_words(id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN bool_and(t.status = 'ok') THEN 'ok' ELSE
               string_agg(CASE t.status WHEN 'violated' THEN format('%s: %s violations', t.name, t.violations)
                                        WHEN 'pending' THEN format('%s: not run yet', t.name)
                                        ELSE format('%s: could not be run: %s', t.name, t.problem) END, '; '
                          ORDER BY t.position) FILTER (WHERE t.status <> 'ok') END
           || coalesce((SELECT format('; not published since %s', date_trunc('second', k.held_since))
                        FROM pgtrickle.pgt_sinks k WHERE k.pgt_id = id AND k.held_since IS NOT NULL), '')
    FROM pgtrickle.pgt_tests t WHERE t.pgt_id = id
$$;

-- As before, with the tests behind everything else.
DROP FUNCTION pgtrickle.pgt_status();
CREATE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (
    name text, status text, refresh_mode text, is_populated boolean, consecutive_errors integer, schedule text,
    data_timestamp timestamptz, staleness interval, effective_mode text, pending_changes bigint,
    last_refresh_ms double precision, last_rows bigint, last_error text, tests text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), s.status, s.refresh_mode, s.is_populated, s.consecutive_errors,
           s.schedule, s.data_timestamp, f.staleness, s.effective_mode, f.pending,
           (extract(epoch FROM h.end_time - h.start_time) * 1000)::double precision,
           h.rows_inserted + h.rows_deleted, pgtrickle._last_error(s.pgt_id, s.last_error),
           CASE WHEN s.tested THEN pgtrickle._tests_in_words(s.pgt_id) END
    FROM pgtrickle.pgt_stream_tables s
    JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
    LEFT JOIN LATERAL (
        SELECT * FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = s.pgt_id AND h.status = 'COMPLETED' ORDER BY h.refresh_id DESC LIMIT 1) h ON true
    ORDER BY s.pgt_schema, s.pgt_name
$$;

CREATE FUNCTION pgtrickle._test_health() RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'tests', CASE WHEN count(*) = 0 THEN 'OK' WHEN bool_or(t.held) THEN 'ERROR' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s', t.full_name, t.words), '; ' ORDER BY t.full_name), 'none violated')
    FROM (SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS full_name, pgtrickle._tests_in_words(s.pgt_id) AS words,
                 EXISTS (SELECT FROM pgtrickle.pgt_sinks k WHERE k.pgt_id = s.pgt_id AND k.held_since IS NOT NULL) AS held
          FROM pgtrickle.pgt_stream_tables s
          WHERE EXISTS (SELECT FROM pgtrickle.pgt_tests t WHERE t.pgt_id = s.pgt_id AND t.status IN ('violated', 'error'))) t
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
    UNION ALL
    SELECT t.* FROM pgtrickle._test_health() t
$$;
