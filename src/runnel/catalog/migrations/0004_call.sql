-- The way from a SQL statement to the engine and back.
--
-- A function cannot commit, so the request is written through a second connection to this same server. The
-- engine is told by NOTIFY, does the work in transactions of its own, and leaves its answer in the request.

-- An engine is alive as long as a session holds its advisory lock; the lock goes with the session.
CREATE FUNCTION pgtrickle._engine_alive() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1920298606 AND l.objid = 1 AND l.objsubid = 2
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
$$;

CREATE FUNCTION pgtrickle._loopback() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given text := (SELECT value FROM pgtrickle.pgt_settings WHERE key = 'loopback');
    directory text;
BEGIN
    IF given IS NULL THEN
        IF pg_has_role(current_user, 'pg_read_all_settings', 'USAGE') THEN
            directory := nullif(trim(split_part(current_setting('unix_socket_directories'), ',', 1)), '');
        END IF;
        given := format('host=''%s'' port=%s user=''%s''',
            replace(replace(coalesce(directory, '127.0.0.1'), '\', '\\'), '''', '\'''), current_setting('port'),
            replace(replace(current_user, '\', '\\'), '''', '\'''));
    END IF;
    -- The last word wins in a connection string: whatever was stored, the database is this one.
    RETURN given || format(' dbname=''%s'' connect_timeout=3 application_name=runnel-call',
        replace(replace(current_database(), '\', '\\'), '''', '\'''));
END
$$;

-- What the caller's session adds to the meaning of a query text.
CREATE FUNCTION pgtrickle._session_settings() RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name))
    FROM pg_catalog.unnest('{search_path,TimeZone,DateStyle,IntervalStyle}'::pg_catalog.text[]) AS s (name)
$$;

CREATE FUNCTION pgtrickle._call(kind text, args jsonb, role text, settings jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    link CONSTANT text := 'pgtrickle_' || pg_backend_pid();
    -- A caller that has written holds rows that the engine cannot see.
    wrote CONSTANT boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    dblink text := (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
                    WHERE e.extname = 'dblink');
    request bigint;
    answer record;
    pause double precision := 0.002;
    checked timestamptz := clock_timestamp();
    failure jsonb;
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    IF NOT pg_has_role(session_user, role, 'SET') THEN
        RAISE EXCEPTION 'role "%" may not call Runnel as role "%"', session_user, role
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Call the function from a session that may SET ROLE to it.';
    END IF;
    IF NOT pgtrickle._engine_alive() THEN
        RAISE EXCEPTION 'no Runnel engine is running on database "%"', current_database()
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('start one with: runnel up --dsn "dbname=%s ..." (or runnel up for the embedded server)',
                                current_database());
    END IF;
    IF dblink IS NULL THEN
        RAISE EXCEPTION 'the dblink extension is not installed, so SQL functions cannot reach the engine'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'As an administrator run: CREATE EXTENSION dblink;';
    END IF;

    BEGIN
        EXECUTE format('SELECT %s.dblink_connect($1, $2)', dblink) USING link, pgtrickle._loopback();
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
        RAISE EXCEPTION 'cannot connect back to this server to reach the engine'
            USING ERRCODE = 'sqlclient_unable_to_establish_sqlconnection',
                  DETAIL = concat_ws(': ', message, nullif(detail, '')),
                  HINT = 'Set the connection string that works on the server itself: '
                         'runnel init --loopback, or the key "loopback" in pgtrickle.pgt_settings.';
    END;

    BEGIN
        EXECUTE format('SELECT id FROM %s.dblink($1, $2) AS t (id bigint)', dblink) INTO request
        USING link, format(
            'WITH new AS (INSERT INTO pgtrickle.pgt_requests (kind, args, role, caller_pid, settings) '
            'VALUES (%L, %L, %L, %s, %L) RETURNING request_id), '
            'old AS (DELETE FROM pgtrickle.pgt_requests WHERE created_at < now() - interval ''1 hour'' '
            'AND status IN (''DONE'', ''FAILED'', ''CANCELLED'')) '
            'SELECT request_id FROM new', kind, args, role, pg_backend_pid(), coalesce(settings, '{}'));
        EXECUTE format('SELECT FROM %s.dblink($1, $2) AS t (ignored text)', dblink)
        USING link, format('SELECT pg_notify(''pgtrickle_request'', ''%s'')::text', request);
        LOOP
            EXECUTE format('SELECT * FROM %s.dblink($1, $2) AS t (status text, result jsonb, error jsonb)', dblink)
            INTO answer
            USING link, format('SELECT status, result, error FROM pgtrickle.pgt_requests WHERE request_id = %s', request);
            EXIT WHEN answer.status IS NULL OR answer.status NOT IN ('PENDING', 'RUNNING');
            IF clock_timestamp() > checked + interval '500 milliseconds' THEN
                checked := clock_timestamp();
                IF NOT pgtrickle._engine_alive() THEN
                    EXECUTE format('SELECT * FROM %s.dblink($1, $2) AS t (status text, result jsonb, error jsonb)', dblink)
                    INTO answer
                    USING link, format(
                        'UPDATE pgtrickle.pgt_requests SET status = ''CANCELLED'', finished_at = now() '
                        'WHERE request_id = %s AND status IN (''PENDING'', ''RUNNING'') '
                        'RETURNING status, result, error', request);
                    EXIT WHEN answer.status IS NOT NULL;
                    CONTINUE;  -- it had answered just before it went
                END IF;
            END IF;
            PERFORM pg_sleep(pause);
            pause := least(pause * 1.3, 0.025);
        END LOOP;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                                hint = PG_EXCEPTION_HINT;
        BEGIN
            -- Work that has begun cannot be taken back from here; work that has not must not begin.
            IF request IS NOT NULL THEN
                EXECUTE format('SELECT %s.dblink_cancel_query($1)', dblink) USING link;
                EXECUTE format('SELECT %s.dblink_disconnect($1)', dblink) USING link;
                EXECUTE format('SELECT %s.dblink_connect($1, $2)', dblink) USING link, pgtrickle._loopback();
                EXECUTE format('SELECT %s.dblink_exec($1, $2)', dblink) USING link, format(
                    'UPDATE pgtrickle.pgt_requests SET status = ''CANCELLED'', finished_at = now() '
                    'WHERE request_id = %s AND status = ''PENDING''', request);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            NULL;  -- the connection itself may be what failed
        END;
        BEGIN
            EXECUTE format('SELECT %s.dblink_disconnect($1)', dblink) USING link;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
        failure := jsonb_build_object('sqlstate', state, 'message', message, 'detail', nullif(detail, ''),
                                      'hint', nullif(hint, ''));
    END;

    IF failure IS NULL THEN
        EXECUTE format('SELECT %s.dblink_disconnect($1)', dblink) USING link;
        IF answer.status = 'DONE' THEN
            RETURN answer.result;
        ELSIF answer.status = 'FAILED' THEN
            failure := answer.error;
            IF wrote THEN
                failure := failure || jsonb_build_object('hint', concat_ws(E'\n', failure ->> 'hint',
                    'The calling transaction has already written: its uncommitted work is invisible to the engine. '
                    'Commit first, then call.'));
            END IF;
        ELSE
            failure := jsonb_build_object(
                'sqlstate', '57P01', 'message', 'the Runnel engine stopped before it finished the request',
                'hint', 'Start it again (runnel up), check pgtrickle.pgt_status(), and repeat the call if needed.');
        END IF;
    END IF;

    message := coalesce(failure ->> 'message', 'the engine gave no reason');
    state := CASE WHEN failure ->> 'sqlstate' ~ '^[0-9A-Z]{5}$' AND failure ->> 'sqlstate' !~ '^(00|01|02)'
                  THEN failure ->> 'sqlstate' ELSE 'P0001' END;
    detail := nullif(failure ->> 'detail', '');
    hint := nullif(failure ->> 'hint', '');
    -- RAISE takes no NULL options and prints empty ones.
    IF detail IS NOT NULL AND hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail, HINT = hint;
    ELSIF detail IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail;
    ELSIF hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
END
$$;

-- Everyone may ask; the engine acts with the rights of the role that asks.
CREATE FUNCTION pgtrickle._ask(kind text, args jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
    SELECT pgtrickle._call(kind, args, current_user::pg_catalog.text, pgtrickle._session_settings())
$$;
