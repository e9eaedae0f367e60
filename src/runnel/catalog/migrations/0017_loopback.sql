-- Does the way from a SQL function to the engine work? Asked at every start, before anybody waits for an answer.

-- NULL when it does; else what is wrong (kind), the server's words, and whom the functions connect as.
CREATE FUNCTION pgtrickle._try_loopback() RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    link CONSTANT text := 'pgtrickle_try_' || pg_backend_pid();
    dblink text := (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                    WHERE e.extname = 'dblink');
    said jsonb := jsonb_build_object(
        'role', current_user, 'database', current_database(), 'port', current_setting('port'),
        'stored', EXISTS (SELECT FROM pgtrickle.pgt_settings WHERE key = 'loopback'));
    started text;
    may boolean;
    message text;
    detail text;
BEGIN
    IF dblink IS NULL THEN
        RETURN said || jsonb_build_object('kind', 'dblink');
    END IF;
    BEGIN
        EXECUTE format('SELECT %s.dblink_connect($1, $2)', dblink) USING link, pgtrickle._loopback();
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
        RETURN said || jsonb_build_object('kind', 'connect', 'detail', concat_ws(': ', message, nullif(detail, '')));
    END;
    BEGIN
        EXECUTE format('SELECT * FROM %s.dblink($1, $2) AS t (started text, may boolean)', dblink) INTO started, may
        USING link, 'SELECT extract(epoch FROM pg_postmaster_start_time())::text, '
                    'to_regclass(''pgtrickle.pgt_requests'') IS NOT NULL AND '
                    'has_table_privilege(to_regclass(''pgtrickle.pgt_requests''), ''INSERT'')';
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
        detail := message;
    END;
    EXECUTE format('SELECT %s.dblink_disconnect($1)', dblink) USING link;
    IF detail IS NOT NULL THEN
        RETURN said || jsonb_build_object('kind', 'connect', 'detail', detail);
    ELSIF started IS DISTINCT FROM extract(epoch FROM pg_postmaster_start_time())::text THEN
        RETURN said || jsonb_build_object('kind', 'elsewhere');
    ELSIF may IS NOT TRUE THEN
        RETURN said || jsonb_build_object('kind', 'rights');
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._try_loopback() FROM PUBLIC;
