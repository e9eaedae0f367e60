-- Nobody else can stop the engine: a claim that others cannot take, functions that mind no caller's settings, bad data
-- of one stream table that stays its own, and tables that any publication may contain.

-- ------------------------------------------------------------------ the claim on the database

-- The engine of a database is the session in this row, as long as that session lives. Process ids come again, the
-- moment of a start does not; so a row left by a killed engine, in a restored dump or on a promoted standby, names nobody.
ALTER TABLE pgtrickle.pgt_engine ADD COLUMN backend_start timestamptz, ADD COLUMN role oid;
UPDATE pgtrickle.pgt_engine e SET backend_start = a.backend_start, role = a.usesysid
  FROM pg_stat_activity a WHERE a.pid = e.pid AND a.datname = current_database();
DELETE FROM pgtrickle.pgt_engine WHERE backend_start IS NULL OR role IS NULL;
ALTER TABLE pgtrickle.pgt_engine ALTER COLUMN backend_start SET NOT NULL, ALTER COLUMN role SET NOT NULL;
COMMENT ON TABLE pgtrickle.pgt_engine IS
    'Which session is the engine: it is alive while pg_stat_activity has this pid with this backend_start.';

CREATE OR REPLACE FUNCTION pgtrickle._engine_alive() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Within a transaction PostgreSQL goes on showing the sessions it has shown first.
    PERFORM pg_stat_clear_snapshot();
    RETURN EXISTS (
        SELECT FROM pgtrickle.pgt_engine e JOIN pg_stat_activity a ON a.pid = e.pid AND a.usesysid = e.role
        WHERE a.datname = current_database()
          -- Not shown to a role without rights on the engine's; then the process and its role must do.
          AND coalesce(a.backend_start, e.backend_start) = e.backend_start);
END
$$;

-- ------------------------------------------------------------------ callers' settings

-- The session that carries a request must not inherit what a server, a database or a role sets for everybody.
CREATE OR REPLACE FUNCTION pgtrickle._loopback() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on
AS $$
DECLARE
    given text := (SELECT value FROM pgtrickle.pgt_settings WHERE key = 'loopback');
    directory text;
    unlogged text := '';
BEGIN
    IF given IS NULL THEN
        -- A request may hold credentials, and its text is ours, not the caller's.
        IF has_parameter_privilege(current_user, 'log_statement', 'SET') THEN
            unlogged := ' -c log_statement=none';
        END IF;
        IF pg_has_role(current_user, 'pg_read_all_settings', 'USAGE') THEN
            directory := nullif(trim(split_part(current_setting('unix_socket_directories'), ',', 1)), '');
        END IF;
        given := format('host=''%s'' port=%s user=''%s''',
            replace(replace(coalesce(directory, '127.0.0.1'), '\', '\\'), '''', '\'''), current_setting('port'),
            replace(replace(current_user, '\', '\\'), '''', '\'''));
    END IF;
    -- The last word wins in a connection string: whatever was stored, the database is this one.
    RETURN given || format(' dbname=''%s'' connect_timeout=3 application_name=runnel-call options=''%s''',
        replace(replace(current_database(), '\', '\\'), '''', '\'''),
        '-c statement_timeout=0 -c lock_timeout=0 -c transaction_timeout=0 -c idle_session_timeout=0 '
        '-c idle_in_transaction_session_timeout=0 -c default_transaction_read_only=off '
        '-c default_transaction_isolation=read\\ committed -c default_transaction_deferrable=off '
        '-c standard_conforming_strings=on -c search_path=pg_catalog -c exit_on_error=off -c DateStyle=ISO' || unlogged);
END
$$;

-- DDL is followed in the session that does it. What is printed there is compared with, and kept beside, what other
-- sessions have printed; and a deleted row of the catalog must take its dependants along. CREATE OR REPLACE forgets such
-- settings, so whoever replaces one of these functions calls this again.
CREATE FUNCTION pgtrickle._pin_followers() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    follower regprocedure;
BEGIN
    FOREACH follower IN ARRAY '{pgtrickle._on_ddl(),pgtrickle._on_drop(),pgtrickle._on_rewrite()}'::regprocedure[] LOOP
        EXECUTE format('ALTER FUNCTION %s SET quote_all_identifiers = off', follower);
        EXECUTE format('ALTER FUNCTION %s SET standard_conforming_strings = on', follower);
        EXECUTE format('ALTER FUNCTION %s SET DateStyle = ''ISO, MDY''', follower);
        EXECUTE format('ALTER FUNCTION %s SET IntervalStyle = postgres', follower);
        EXECUTE format('ALTER FUNCTION %s SET extra_float_digits = 1', follower);
        EXECUTE format('ALTER FUNCTION %s SET bytea_output = hex', follower);
        BEGIN
            EXECUTE format('ALTER FUNCTION %s SET session_replication_role = origin', follower);
        EXCEPTION WHEN insufficient_privilege THEN
            NULL;  -- nor may such a role create event triggers
        END;
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._pin_followers() FROM PUBLIC;
SELECT pgtrickle._pin_followers();

-- ------------------------------------------------------------------ bad data stays its own

-- A frontier that cannot be read holds nothing back: its table is rebuilt, and needs no old changes for that.
CREATE OR REPLACE FUNCTION pgtrickle._capture_cleanup() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source record;
    running xid8 := pgtrickle._oldest_running();
    deleted bigint;
    total bigint := 0;
BEGIN
    FOR source IN
        SELECT t.buffer,
               min(CASE WHEN pg_input_is_valid(s.frontier ->> 'postgres', 'pg_snapshot')
                        THEN pg_snapshot_xmin((s.frontier ->> 'postgres')::pg_snapshot) END)
                   FILTER (WHERE s.is_populated AND NOT s.needs_reinit) AS passed
        FROM pgtrickle.pgt_change_tracking t
        LEFT JOIN pgtrickle.pgt_dependencies d ON d.source_relid = t.source_relid
        LEFT JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
        WHERE to_regclass(format('pgtrickle_changes.%I', t.buffer)) IS NOT NULL
        GROUP BY t.source_relid, t.buffer
        -- While one of its consumers is being built the buffer is left alone: its snapshot is not known here.
        HAVING NOT coalesce(bool_or(s.status = 'INITIALIZING'), false)
    LOOP
        EXECUTE format('DELETE FROM pgtrickle_changes.%I WHERE pgt_xid < $1', source.buffer)
            USING least(source.passed, running);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        total := total + deleted;
    END LOOP;
    RETURN total;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._pending()
RETURNS TABLE (pgt_id bigint, source_relid oid, pending bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pair record;
BEGIN
    FOR pair IN
        SELECT d.pgt_id, d.source_relid, t.buffer, s.frontier ->> 'postgres' AS frontier
        FROM pgtrickle.pgt_stream_tables s
        JOIN pgtrickle.pgt_dependencies d ON d.pgt_id = s.pgt_id
        JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
        WHERE pg_input_is_valid(s.frontier ->> 'postgres', 'pg_snapshot')
          AND to_regclass(format('pgtrickle_changes.%I', t.buffer)) IS NOT NULL
    LOOP
        pgt_id := pair.pgt_id;
        source_relid := pair.source_relid;
        EXECUTE format('SELECT count(*) FROM pgtrickle_changes.%I b '
                       'WHERE b.pgt_xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(b.pgt_xid, $1)',
                       pair.buffer)
            INTO pending USING pair.frontier::pg_snapshot;
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE FUNCTION pgtrickle._version(text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN pg_input_is_valid($1, 'bigint') THEN $1::bigint END $$;
COMMENT ON FUNCTION pgtrickle._version(text) IS 'A version in a frontier; null when it is none.';

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
                      WHERE d.pgt_id = s.pgt_id AND u.version > coalesce(
                          pgtrickle._version(s.frontier #>> ARRAY['stream_tables', u.pgt_id::text]), 0))
           OR EXISTS (SELECT FROM pgtrickle.pgt_dependencies d
                      JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
                      JOIN pgtrickle._lake_heads() h ON h.lake = k.lake
                      WHERE d.pgt_id = s.pgt_id AND h.head > coalesce(pgtrickle._version(s.frontier ->> format(
                          'ducklake:%s.%s.%s', k.lake, k.lake_schema, k.lake_table)), -1))
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

-- What a query over all rows reads must have its shape in each of them.
ALTER TABLE pgtrickle.pgt_change_tracking ADD CHECK (
    jsonb_typeof(columns) = 'array' AND NOT jsonb_path_exists(columns, '$[*] ? (@.type() != "object")'));
ALTER TABLE pgtrickle.pgt_stream_tables ADD CHECK (jsonb_typeof(settings) = 'object'),
    ADD CHECK (jsonb_typeof(frontier) = 'object');

-- ------------------------------------------------------------------ publications

-- FOR ALL TABLES makes PostgreSQL refuse to update or delete in a table that no key identifies. Here a row is its own
-- identity. It costs nothing unless changes are decoded.
CREATE FUNCTION pgtrickle._identify(tables oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation oid;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    FOR relation IN
        SELECT c.oid FROM pg_class c
        WHERE c.oid = ANY (tables) AND c.relkind IN ('r', 'p') AND c.relreplident = 'd'
          AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    LOOP
        BEGIN
            EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', pgtrickle._relation_name(relation));
        EXCEPTION WHEN insufficient_privilege THEN
            NULL;  -- a table of somebody else, who may do it
        END;
    END LOOP;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._identify(oid[]) FROM PUBLIC;
COMMENT ON FUNCTION pgtrickle._identify(oid[]) IS 'Let tables without a key be part of a publication.';

CREATE OR REPLACE FUNCTION pgtrickle._buffer_create(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A queue: rows live for seconds and leave in bulk, so dead rows must go soon whatever the table's size,
    -- and vacuuming for inserts alone has nothing to gain.
    EXECUTE format(
        'CREATE TABLE pgtrickle_changes.changes_%s ('
        'pgt_xid xid8 NOT NULL DEFAULT pg_current_xact_id(), pgt_w smallint NOT NULL) WITH ('
        'autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, '
        'autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, '
        'autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000)', source);
    EXECUTE format('REVOKE ALL ON pgtrickle_changes.changes_%s FROM PUBLIC', source);
    EXECUTE format('ALTER TABLE pgtrickle_changes.changes_%s REPLICA IDENTITY FULL', source);
END
$$;

SELECT pgtrickle._identify(ARRAY(
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname IN ('pgtrickle', 'pgtrickle_changes', 'pgtrickle_state')
       OR (n.nspname IN (SELECT catalog_schema FROM pgtrickle.pgt_lakes WHERE dsn IS NULL) AND c.relname LIKE 'ducklake%')
       OR c.oid IN (SELECT pgt_relid FROM pgtrickle.pgt_stream_tables)));
