-- Whoever asks for a refresh that has nothing to do need not wait for the engine: that nothing waits can be seen from
-- here. Every commit before the call is visible in its snapshot, and so are the rows that capture has written with it.
-- Whatever only the engine can tell goes to the engine: lakes, the clock, sinks, drift, tables that
-- are not at work or whose changes come from the WAL.
CREATE FUNCTION pgtrickle._nothing_to_do(stream_table bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source record;
    waiting boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR NOT pgtrickle._engine_alive()
       OR NOT pgtrickle._ddl_is_followed()
    THEN
        RETURN false;
    END IF;
    FOR source IN
        WITH RECURSIVE needed (pgt_id) AS (
            SELECT stream_table
            UNION
            SELECT d.source_pgt_id FROM needed n JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = n.pgt_id
            WHERE d.source_pgt_id IS NOT NULL
        )
        SELECT s.frontier ->> 'postgres' AS frontier, t.buffer,
               s.status <> 'ACTIVE' OR NOT s.is_populated OR s.needs_reinit OR s.uses_clock OR s.drift IS NOT NULL
               OR s.last_error IS NOT NULL OR s.effective_mode <> 'DIFFERENTIAL'
               OR NOT coalesce(pg_input_is_valid(s.frontier ->> 'postgres', 'pg_snapshot'), false)
               OR EXISTS (SELECT FROM pgtrickle.pgt_sinks k WHERE k.pgt_id = s.pgt_id)
               -- No event trigger tells of another version of a collation.
               OR EXISTS (SELECT FROM pgtrickle.pgt_objects o
                          WHERE o.pgt_id = s.pgt_id AND o.classid IN ('pg_collation'::regclass, 'pg_database'::regclass)
                            AND pgtrickle._fingerprint(o.classid, o.objid) IS DISTINCT FROM o.fingerprint)
               OR d.source_type = 'LAKE_TABLE' OR (d.source_type = 'TABLE' AND t.buffer IS NULL)
               OR t.capture <> 'trigger'  -- from the WAL changes come to the buffer later
               OR (d.source_pgt_id IS NOT NULL AND u.version IS DISTINCT FROM
                   coalesce(pgtrickle._version(s.frontier #>> ARRAY['stream_tables', d.source_pgt_id::text]), 0))
               AS unclear
        FROM needed n JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = n.pgt_id
        LEFT JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = s.pgt_id
        LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
        LEFT JOIN pgtrickle.pgt_stream_tables u ON u.pgt_id = d.source_pgt_id
        ORDER BY unclear DESC
    LOOP
        IF source.unclear THEN
            RETURN false;
        END IF;
        CONTINUE WHEN source.buffer IS NULL;
        EXECUTE format('SELECT EXISTS (SELECT FROM pgtrickle_changes.%I b '
                       'WHERE b.pgt_xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(b.pgt_xid, $1))',
                       source.buffer)
            INTO waiting USING source.frontier::pg_snapshot;
        IF waiting THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION pgtrickle._nothing_to_do(bigint) IS
    'Whether a refresh of a stream table, with all that it reads, would certainly find nothing to do.';

CREATE OR REPLACE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ignored pg_catalog.jsonb;
BEGIN
    IF nullif(pg_catalog.current_setting('pgtrickle.resume', true), '') IS NULL
       AND pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.<>) 'on'
       AND name IS NOT NULL AND pgtrickle._nothing_to_do(pgtrickle._find(name))
    THEN
        RETURN;
    END IF;
    ignored := pgtrickle._ask('refresh', pg_catalog.jsonb_build_object('name', name));
END
$$;
