-- SQL functions where the server cannot connect to itself (no dblink, or no password that the server asks for): the
-- request becomes part of the caller's transaction, and its number is told. pgtrickle.wait(number) gives the answer, or
-- raises the error, as the function itself would have; it needs no second connection. All else is as it was.
CREATE OR REPLACE FUNCTION pgtrickle._on_call() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on
SET row_security = on
AS $$
DECLARE
    outside CONSTANT boolean := current_setting('transaction_isolation') <> 'read committed';
    -- One connection, one statement, whose rows are read as the columns say.
    remote CONSTANT text := (
        SELECT format('SELECT * FROM %I.dblink($1, $2) AS t ', n.nspname)
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink');
    looking CONSTANT text := 'SELECT status, result, error FROM pgtrickle.pgt_requests WHERE request_id = ';
    cancelling CONSTANT text := 'UPDATE pgtrickle.pgt_requests SET status = ''CANCELLED'', finished_at = now() '
        'WHERE status = ANY (%L) AND request_id = %s RETURNING status, result, error';
    columns CONSTANT text := '(status text, result jsonb, error jsonb)';
    waits CONSTANT boolean := NEW.kind = 'wait';
    request bigint;
    asker text;
    answer record;
    began CONSTANT timestamptz := clock_timestamp();
    checked timestamptz := began;
    failure jsonb;
    message text;
    detail text;
    hint text;
    state text;
BEGIN
    IF waits THEN
        request := (NEW.args ->> 'request')::bigint;
        SELECT r.role INTO asker FROM pgtrickle.pgt_requests r WHERE r.request_id = request;
        IF outside THEN
            failure := jsonb_build_object('sqlstate', '25001',
                'message', 'pgtrickle.wait needs the isolation level READ COMMITTED: no other sees the answer');
        ELSIF request::text = ANY (string_to_array(current_setting('pgtrickle.handed_over', true), ',')) THEN
            failure := jsonb_build_object('sqlstate', '25001',
                'message', format('request %s goes to the engine when this transaction commits', request),
                'hint', 'Commit first, then wait.');
        ELSIF asker IS NULL THEN
            failure := jsonb_build_object('sqlstate', '42704', 'message', format('there is no request %s', request),
                'hint', 'Requests exist once the transaction that made them is committed, and are kept for an hour.');
        ELSIF NOT coalesce(pg_has_role(NEW.caller, to_regrole(quote_ident(asker)), 'MEMBER'), false) THEN
            failure := jsonb_build_object('sqlstate', '42501', 'message', format('request %s is of another role', request));
        END IF;
    ELSIF NOT pgtrickle._engine_alive() THEN
        failure := jsonb_build_object('sqlstate', '55000',
            'message', format('no Runnel engine is running on database "%s"', current_database()),
            'hint', format('start one with: runnel up --dsn "dbname=%s ..." (or runnel up for the embedded server)',
                           current_database()));
    ELSIF remote IS NOT NULL THEN
        BEGIN
            EXECUTE remote || '(id bigint, notified text)' INTO request, message USING pgtrickle._loopback(), format(
                'INSERT INTO pgtrickle.pgt_requests (kind, args, role, caller_pid, settings) '
                'VALUES (%L, %L, %L, %s, %L) RETURNING request_id, '
                'pg_notify(''pgtrickle_request'', request_id::text)::text '
                '|| set_config(''synchronous_commit'', ''off'', true)',
                NEW.kind, NEW.args, NEW.caller, pg_backend_pid(), NEW.settings);
        -- 2F003: dblink wants a password, because the engine's role is no superuser.
        EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection OR SQLSTATE '2F003' THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
            request := NULL;
            detail := concat_ws(': ', 'cannot connect back to this server to reach the engine', message, nullif(detail, ''));
        END;
    END IF;

    IF failure IS NULL AND request IS NULL THEN
        -- No second connection: the request is part of the caller's transaction, and reaches the engine when that
        -- commits. Its caller may be gone by then, so it is nobody's session's.
        INSERT INTO pgtrickle.pgt_requests (kind, args, role, caller_pid, settings, created_at)
        VALUES (NEW.kind, NEW.args, NEW.caller, 0, NEW.settings, clock_timestamp()) RETURNING request_id INTO request;
        PERFORM pg_notify('pgtrickle_request', request::text);
        PERFORM set_config('pgtrickle.answer', jsonb_build_object(
            'request', request, 'why', coalesce(detail, 'the dblink extension is not installed'))::text, true);
        PERFORM set_config('pgtrickle.handed_over', concat_ws(',', current_setting('pgtrickle.handed_over', true), request), true);
        RETURN NULL;
    END IF;

    IF failure IS NULL THEN
        BEGIN
            LOOP
                IF outside THEN
                    EXECUTE remote || columns INTO answer USING pgtrickle._loopback(), looking || request;
                ELSE
                    SELECT r.status, r.result, r.error INTO answer
                    FROM pgtrickle.pgt_requests r WHERE r.request_id = request;
                END IF;
                EXIT WHEN answer.status IS NULL OR answer.status NOT IN ('PENDING', 'RUNNING');
                IF clock_timestamp() > checked + interval '500 milliseconds' THEN
                    checked := clock_timestamp();
                    IF NOT pgtrickle._engine_alive() THEN
                        EXIT WHEN waits;
                        EXECUTE remote || columns INTO answer
                        USING pgtrickle._loopback(), format(cancelling, '{PENDING,RUNNING}', request);
                        EXIT WHEN answer.status IS NOT NULL;
                        CONTINUE;  -- it had answered just before it went
                    END IF;
                END IF;
                -- From outside every look is a connection.
                PERFORM pg_sleep(least(extract(epoch FROM clock_timestamp() - began)::float8
                                       / CASE WHEN outside THEN 4 ELSE 20 END, 0.025));
            END LOOP;
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                                    hint = PG_EXCEPTION_HINT;
            failure := jsonb_build_object('sqlstate', state, 'message', message, 'detail', nullif(detail, ''),
                                          'hint', nullif(hint, ''));
            IF NOT waits THEN BEGIN
                -- Work that has not begun will not; work that has is stopped, and undone by the engine.
                EXECUTE remote || columns INTO answer
                USING pgtrickle._loopback(), format(cancelling, '{PENDING,RUNNING}', request);
                EXECUTE remote || '(notified text)' INTO message
                USING pgtrickle._loopback(), 'SELECT pg_notify(''pgtrickle_request'', '''')::text';
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END; END IF;
        END;
    END IF;

    IF failure IS NULL THEN
        IF answer.status = 'DONE' THEN
            PERFORM set_config('pgtrickle.answer', jsonb_build_object('result', answer.result)::text, true);
            RETURN NULL;
        ELSIF answer.status = 'FAILED' THEN
            failure := answer.error;
            IF NEW.wrote THEN
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
    PERFORM set_config('pgtrickle.answer', jsonb_build_object('failure', failure)::text, true);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._ask(kind text, args jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    -- A caller that has written holds rows that the engine cannot see.
    wrote CONSTANT pg_catalog.bool := pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL;
    -- A client that was given a number calls the same function again, to have the answer as that function gives it.
    resumed CONSTANT pg_catalog.text := nullif(pg_catalog.current_setting('pgtrickle.resume', true), '');
    answer pg_catalog.jsonb;
    state pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
BEGIN
    IF pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on' THEN
        RAISE EXCEPTION 'the engine cannot be called in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Run: SET transaction_read_only = off, then call again.';
    END IF;
    IF resumed IS NOT NULL THEN
        PERFORM pg_catalog.set_config('pgtrickle.resume', '', true);
        kind := 'wait';
        args := pg_catalog.jsonb_build_object('request', resumed);
    END IF;
    INSERT INTO pgtrickle.pgt_calls (kind, args, settings, wrote)
    VALUES (kind, args, pgtrickle._session_settings(), wrote);
    answer := pg_catalog.current_setting('pgtrickle.answer')::pg_catalog.jsonb;
    IF answer OPERATOR(pg_catalog.?) 'result' THEN
        RETURN answer OPERATOR(pg_catalog.->) 'result';
    ELSIF answer OPERATOR(pg_catalog.?) 'request' THEN
        RAISE NOTICE 'request % goes to the engine when this transaction commits', answer OPERATOR(pg_catalog.->>) 'request'
            USING ERRCODE = '01RW1', DETAIL = answer OPERATOR(pg_catalog.->>) 'why', HINT = pg_catalog.format('Then wait for its answer: SELECT pgtrickle.wait(%s)',
                                           answer OPERATOR(pg_catalog.->>) 'request');
        RETURN NULL;
    END IF;
    SELECT f.sqlstate, f.message, nullif(f.detail, ''), nullif(f.hint, '') INTO state, message, detail, hint
    FROM pg_catalog.jsonb_to_record(answer OPERATOR(pg_catalog.->) 'failure')
      AS f (sqlstate pg_catalog.text, message pg_catalog.text, detail pg_catalog.text, hint pg_catalog.text);
    IF state IS NULL OR state OPERATOR(pg_catalog.!~) '^[0-9A-Z]{5}$' OR state OPERATOR(pg_catalog.~) '^(00|01|02)' THEN
        state := 'P0001';
    END IF;
    message := coalesce(message, 'the engine gave no reason');
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

CREATE FUNCTION pgtrickle.wait(request bigint) RETURNS jsonb
LANGUAGE plpgsql VOLATILE STRICT
AS $$
BEGIN
    RETURN pgtrickle._ask('wait', pg_catalog.jsonb_build_object('request', request));
END
$$;
COMMENT ON FUNCTION pgtrickle.wait(bigint) IS
    'Wait for the answer to a request that was handed to the engine by a COMMIT.';
