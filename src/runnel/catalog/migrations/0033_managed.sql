-- Servers where nobody is superuser.

-- Where no foreign-data wrapper is to be had, an ordinary table stands for a lake's table. It stays empty.
CREATE FUNCTION pgtrickle._standin_guard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '%.% stands for a table of a lake', quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Write to the lake itself: with DuckDB, Spark, or a client of Iceberg.';
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._standin_guard() FROM PUBLIC;
COMMENT ON TABLE pgtrickle.pgt_lake_tables IS
    'One row per table, foreign where PostgreSQL lets us, that stands for a table of a lake, so that queries can name it.';

-- A notice is not shown everywhere: without a number the caller waits for what its role has asked for last.
CREATE FUNCTION pgtrickle._latest_request(caller name) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT max(r.request_id) FROM pgtrickle.pgt_requests r WHERE r.role = caller AND r.caller_pid = 0
$$;
COMMENT ON FUNCTION pgtrickle._latest_request(name) IS
    'The number of the newest request that a role has handed over by a COMMIT; whether one may wait for it is asked later.';

CREATE FUNCTION pgtrickle.wait() RETURNS jsonb
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    request pg_catalog.int8 := pgtrickle._latest_request(current_user);
BEGIN
    IF request IS NULL THEN
        RAISE EXCEPTION 'role % has handed no request over', pg_catalog.quote_ident(current_user)
            USING ERRCODE = 'undefined_object',
                  HINT = 'Functions hand requests over at COMMIT only where the server cannot connect to itself.';
    END IF;
    RETURN pgtrickle.wait(request);
END
$$;
COMMENT ON FUNCTION pgtrickle.wait() IS 'Wait for the answer to what the caller''s role has asked for last.';
