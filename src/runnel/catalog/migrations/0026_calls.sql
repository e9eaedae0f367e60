-- What was asked for is stopped when its caller is. A call that finds little to do is answered within a few
-- milliseconds, so its caller looks more often: after a twentieth of the time that it has waited already. And nobody
-- waits until a request has reached the disk, since it does not outlive its call. Old requests are removed by the
-- engine, not by the next caller, who would look at all of them. All else is as it was.
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
    request bigint;
    answer record;
    began CONSTANT timestamptz := clock_timestamp();
    checked timestamptz := began;
    failure jsonb;
    message text;
    detail text;
    hint text;
    state text;
BEGIN
    IF NOT pgtrickle._engine_alive() THEN
        failure := jsonb_build_object('sqlstate', '55000',
            'message', format('no Runnel engine is running on database "%s"', current_database()),
            'hint', format('start one with: runnel up --dsn "dbname=%s ..." (or runnel up for the embedded server)',
                           current_database()));
    ELSIF remote IS NULL THEN
        failure := jsonb_build_object('sqlstate', '55000',
            'message', 'the dblink extension is not installed, so SQL functions cannot reach the engine',
            'hint', 'As an administrator run: CREATE EXTENSION dblink;');
    ELSE
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
            failure := jsonb_build_object('sqlstate', '08001',
                'message', 'cannot connect back to this server to reach the engine',
                'detail', concat_ws(': ', message, nullif(detail, '')),
                'hint', 'Set the connection string that works on the server itself: '
                        'runnel init --loopback, or the key "loopback" in pgtrickle.pgt_settings.');
        END;
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
            BEGIN
                -- Work that has not begun will not; work that has is stopped, and undone by the engine.
                EXECUTE remote || columns INTO answer
                USING pgtrickle._loopback(), format(cancelling, '{PENDING,RUNNING}', request);
                EXECUTE remote || '(notified text)' INTO message
                USING pgtrickle._loopback(), 'SELECT pg_notify(''pgtrickle_request'', '''')::text';
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
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
