-- Sinks: stream tables that are also published to a lake, or whose changes are exported.

CREATE TABLE pgtrickle.pgt_sinks (
    pgt_id                   bigint PRIMARY KEY,
    sink                     text NOT NULL CHECK (sink IN ('none', 'ducklake')),
    lake                     text,
    mode                     text NOT NULL DEFAULT 'merge' CHECK (mode IN ('merge', 'append', 'replace')),
    inline_small_changes     boolean NOT NULL DEFAULT false,
    compression              text NOT NULL DEFAULT 'zstd',
    delta_export_path        text,
    delta_export_compression text NOT NULL DEFAULT 'snappy',
    lake_schema              text NOT NULL,
    view_name                text NOT NULL,
    table_id                 bigint,
    columns                  jsonb,
    snapshot_id              bigint,
    next_row_id              bigint,
    row_count                bigint,
    definition_version       integer,
    map_start                bigint,
    map_storage              bigint,
    CHECK (sink = 'none' OR lake IS NOT NULL)
) WITH (fillfactor = 70);

-- No reference to pgt_stream_tables: after a plain DROP TABLE the row stays until the lake's table is dropped too.
COMMENT ON TABLE pgtrickle.pgt_sinks IS 'Where stream tables are published, and what was published last.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.table_id IS 'The table in the lake; null until the first publication.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.columns IS 'Name, PostgreSQL type and lake type of each published column.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.next_row_id IS
    'With row_count what the lake said of the table after the last publication; another writer would have moved them.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.map_start IS
    'First row id of a table that was published in its physical order; null once the row map is complete.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.map_storage IS 'The file node whose physical order is meant.';
COMMENT ON COLUMN pgtrickle.pgt_sinks.definition_version IS 'The definition that the view in the lake describes.';

CREATE TABLE pgtrickle.pgt_ducklake_provenance (
    stream_table_oid     oid NOT NULL,
    stream_table_name    text NOT NULL,
    ducklake_snapshot_id bigint NOT NULL,
    refresh_id           bigint NOT NULL,
    delta_row_count      bigint NOT NULL,
    written_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    lake                 text NOT NULL,
    frontier             jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (lake, ducklake_snapshot_id)
);
CREATE INDEX pgt_ducklake_provenance_table ON pgtrickle.pgt_ducklake_provenance (stream_table_name, ducklake_snapshot_id);

COMMENT ON TABLE pgtrickle.pgt_ducklake_provenance IS 'Which refresh of which stream table made a snapshot of a lake.';
COMMENT ON COLUMN pgtrickle.pgt_ducklake_provenance.delta_row_count IS 'Rows added and removed by the snapshot.';
COMMENT ON COLUMN pgtrickle.pgt_ducklake_provenance.frontier IS 'Version of each source that the snapshot reflects.';

-- Written, and committed, before a file is: whatever ends an engine, the next one knows what it may have left behind.
CREATE TABLE pgtrickle.pgt_lake_uploads (
    upload_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lake       text,
    path       text NOT NULL,
    xid        xid8 NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE pgtrickle.pgt_lake_uploads IS 'Files that were, or may have been, written and are not known to be published.';
COMMENT ON COLUMN pgtrickle.pgt_lake_uploads.xid IS 'The transaction that publishes the file, if it commits.';

GRANT SELECT ON pgtrickle.pgt_sinks, pgtrickle.pgt_ducklake_provenance TO PUBLIC;
REVOKE ALL ON pgtrickle.pgt_lake_uploads FROM PUBLIC;

-- The functions that define stream tables, with the options of sinks.
DO $$
DECLARE
    old regprocedure;
BEGIN
    FOR old IN
        SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.proname IN (
            'create_stream_table', 'create_or_replace_stream_table', 'create_stream_table_if_not_exists',
            'alter_stream_table')
    LOOP
        EXECUTE format('DROP FUNCTION %s', old);
    END LOOP;
END
$$;

CREATE FUNCTION pgtrickle.create_stream_table(
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
BEGIN
    PERFORM pgtrickle._ask('create', pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'initialize', initialize,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode)
        OPERATOR(pg_catalog.||) pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'sink', sink, 'ducklake_sink_mode', ducklake_sink_mode, 'ducklake_lake', ducklake_lake,
        'inline_small_changes', inline_small_changes, 'ducklake_compression', ducklake_compression,
        'delta_export_path', delta_export_path, 'delta_export_compression', delta_export_compression,
        'ducklake_expired', ducklake_expired)));
END
$$;

CREATE FUNCTION pgtrickle.create_or_replace_stream_table(
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
BEGIN
    PERFORM pgtrickle._ask('create_or_replace', pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'initialize', initialize,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode)
        OPERATOR(pg_catalog.||) pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'sink', sink, 'ducklake_sink_mode', ducklake_sink_mode, 'ducklake_lake', ducklake_lake,
        'inline_small_changes', inline_small_changes, 'ducklake_compression', ducklake_compression,
        'delta_export_path', delta_export_path, 'delta_export_compression', delta_export_compression,
        'ducklake_expired', ducklake_expired)));
END
$$;

CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(
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
BEGIN
    IF pgtrickle._find(name) IS NOT NULL THEN
        RAISE NOTICE 'stream table "%" already exists, skipping', name;
        RETURN;
    END IF;
    PERFORM pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
        diamond_schedule_policy, cdc_mode, append_only, pooler_compatibility_mode, sink, ducklake_sink_mode,
        ducklake_lake, inline_small_changes, ducklake_compression, delta_export_path, delta_export_compression,
        ducklake_expired);
END
$$;

-- NULL means unchanged; sink => 'none' ends publishing, delta_export_path => '' ends exporting.
CREATE FUNCTION pgtrickle.alter_stream_table(
    name text,
    query text DEFAULT NULL,
    schedule text DEFAULT NULL,
    refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT NULL,
    pooler_compatibility_mode boolean DEFAULT NULL,
    tier text DEFAULT NULL,
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
BEGIN
    PERFORM pgtrickle._ask('alter', pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'status', status,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode,
        'tier', tier,
        'sink', sink, 'ducklake_sink_mode', ducklake_sink_mode, 'ducklake_lake', ducklake_lake,
        'inline_small_changes', inline_small_changes, 'ducklake_compression', ducklake_compression,
        'delta_export_path', delta_export_path, 'delta_export_compression', delta_export_compression,
        'ducklake_expired', ducklake_expired)));
END
$$;
