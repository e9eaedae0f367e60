-- Whose rights code runs with.
--
-- 1. The owner's SQL runs through functions in a schema of its own (runnel.catalog.owner).
-- 2. Who calls the engine is what PostgreSQL says, not what the caller says.
-- 3. Creating stream tables needs a role.
-- 4. No code of others runs when the engine's own tables are analysed, or when a partition's rows are captured.

-- ------------------------------------------------------------------ 1. the owner's SQL

-- Closed to everybody but the engine: the functions in it belong to owners of stream tables, who must not alter them.
CREATE SCHEMA pgtrickle_run;
REVOKE ALL ON SCHEMA pgtrickle_run FROM PUBLIC;

-- What foreign code leaves in a session's temporary schema would stay there for as long as the engine runs.
CREATE FUNCTION pgtrickle._sweep_temporary() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_behind record;
BEGIN
    FOR left_behind IN
        SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END AS kind,
               format('pg_temp.%I', c.relname) AS name
        FROM pg_class c
        WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind IN ('r', 'p', 'v', 'S', 'c')
          AND c.relowner <> current_user::regrole
        UNION ALL
        SELECT 'TYPE', format('pg_temp.%I', t.typname) FROM pg_type t
        WHERE t.typnamespace = pg_my_temp_schema() AND t.typrelid = 0 AND t.typelem = 0 AND t.typtype IN ('d', 'e', 'r')
          AND t.typowner <> current_user::regrole
        UNION ALL
        SELECT CASE p.prokind WHEN 'a' THEN 'AGGREGATE' WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
               format('pg_temp.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) FROM pg_proc p
        WHERE p.pronamespace = pg_my_temp_schema() AND p.proowner <> current_user::regrole
    LOOP
        EXECUTE format('DROP %s IF EXISTS %s CASCADE', left_behind.kind, left_behind.name);
    END LOOP;
END
$$;
COMMENT ON FUNCTION pgtrickle._sweep_temporary() IS 'Drop temporary objects of other roles in this session.';
REVOKE ALL ON FUNCTION pgtrickle._sweep_temporary() FROM PUBLIC;

-- ------------------------------------------------------------------ 2. who calls

-- A SECURITY DEFINER function cannot know who called it: session_user is whoever logged in, also when the code of
-- somebody else runs in that session (an index's function under a superuser's ANALYZE). So calls come as rows. The
-- first trigger runs with the rights of the caller and notes who that is; the second runs with the engine's, asks
-- the engine, and lets no row through: the table is always empty.
CREATE TABLE pgtrickle.pgt_calls (
    caller text,
    kind text NOT NULL,
    args jsonb NOT NULL,
    settings jsonb NOT NULL,
    wrote boolean NOT NULL
);
ALTER TABLE pgtrickle.pgt_calls REPLICA IDENTITY FULL;  -- for publications of all tables, as everywhere
REVOKE ALL ON pgtrickle.pgt_calls FROM PUBLIC;
GRANT INSERT ON pgtrickle.pgt_calls TO PUBLIC;

CREATE FUNCTION pgtrickle._note_caller() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.caller := current_user;
    RETURN NEW;
END
$$;

-- Every use of dblink opens a connection of its own and closes it: one that stayed open, say because the caller was
-- cancelled twice, could be used by the caller's session, with the engine's rights. The answer is read in the caller's
-- own transaction; only one with a fixed snapshot has to look from outside.
CREATE FUNCTION pgtrickle._on_call() RETURNS trigger
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
    pause double precision := 0.002;
    checked timestamptz := clock_timestamp();
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
                'WITH new AS (INSERT INTO pgtrickle.pgt_requests (kind, args, role, caller_pid, settings) '
                'VALUES (%L, %L, %L, %s, %L) RETURNING request_id), '
                'old AS (DELETE FROM pgtrickle.pgt_requests WHERE created_at < now() - interval ''1 hour'' '
                'AND status IN (''DONE'', ''FAILED'', ''CANCELLED'')) '
                'SELECT request_id, pg_notify(''pgtrickle_request'', request_id::text)::text FROM new',
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
                    EXECUTE looking || request INTO answer;
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
                PERFORM pg_sleep(pause);
                pause := least(pause * 1.3, 0.025);
            END LOOP;
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                                    hint = PG_EXCEPTION_HINT;
            failure := jsonb_build_object('sqlstate', state, 'message', message, 'detail', nullif(detail, ''),
                                          'hint', nullif(hint, ''));
            BEGIN
                -- Work that has begun cannot be taken back from here; work that has not must not begin.
                EXECUTE remote || columns INTO answer
                USING pgtrickle._loopback(), format(cancelling, '{PENDING}', request);
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

CREATE TRIGGER pgt_1_note_caller BEFORE INSERT ON pgtrickle.pgt_calls
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._note_caller();
CREATE TRIGGER pgt_2_ask BEFORE INSERT ON pgtrickle.pgt_calls
    FOR EACH ROW EXECUTE FUNCTION pgtrickle._on_call();
ALTER TABLE pgtrickle.pgt_calls ENABLE ALWAYS TRIGGER pgt_1_note_caller;
ALTER TABLE pgtrickle.pgt_calls ENABLE ALWAYS TRIGGER pgt_2_ask;
REVOKE ALL ON FUNCTION pgtrickle._note_caller(), pgtrickle._on_call() FROM PUBLIC;

-- Everyone may ask; the engine acts with the rights of the role that asks. The error is raised here, so that two lines
-- of context say where it comes from, and not twelve.
DROP FUNCTION pgtrickle._ask(text, jsonb);
DROP FUNCTION pgtrickle._call(text, jsonb, text, jsonb);
CREATE FUNCTION pgtrickle._ask(kind text, args jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    -- A caller that has written holds rows that the engine cannot see.
    wrote CONSTANT pg_catalog.bool := pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL;
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
    INSERT INTO pgtrickle.pgt_calls (kind, args, settings, wrote)
    VALUES (kind, args, pgtrickle._session_settings(), wrote);
    answer := pg_catalog.current_setting('pgtrickle.answer')::pg_catalog.jsonb;
    IF answer OPERATOR(pg_catalog.?) 'result' THEN
        RETURN answer OPERATOR(pg_catalog.->) 'result';
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

-- PERFORM would add its whole statement to the context of every error: an assignment is evaluated without one.
DO $$
DECLARE
    definition text;
BEGIN
    FOR definition IN
        SELECT pg_get_functiondef(p.oid) FROM pg_proc p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.prosrc ~ '^\s*BEGIN\s+PERFORM pgtrickle\._ask\('
    LOOP
        EXECUTE regexp_replace(definition, 'BEGIN\s+PERFORM (pgtrickle\._ask\()',
                               E'DECLARE\n    ignored pg_catalog.jsonb;\nBEGIN\n    ignored := \\1');
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ 3. who may create stream tables

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgtrickle_user') THEN
        CREATE ROLE pgtrickle_user NOLOGIN;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'role pgtrickle_user could not be created; until an administrator does, only members of the engine''s role may create stream tables';
WHEN duplicate_object OR unique_violation THEN
    NULL;  -- an engine of another database was faster
END
$$;

-- ------------------------------------------------------------------ 4. code that runs unasked

-- ANALYZE, autovacuum's too, runs with the rights of a table's owner and calls functions of the columns' types (a
-- range's subtype_diff). The engine's tables hold columns of types that belong to others: those get no statistics.
CREATE FUNCTION pgtrickle._without_statistics(relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    foreign_column text;
BEGIN
    FOR foreign_column IN
        SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attstattarget IS DISTINCT FROM 0
          AND t.typnamespace <> 'pg_catalog'::regnamespace
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', pgtrickle._relation_name(relation), foreign_column);
    END LOOP;
END
$$;
COMMENT ON FUNCTION pgtrickle._without_statistics(oid) IS
    'Keep ANALYZE from calling functions of types that others made.';
REVOKE ALL ON FUNCTION pgtrickle._without_statistics(oid) FROM PUBLIC;

-- As before, and without statistics.
CREATE OR REPLACE FUNCTION pgtrickle._buffer_columns(source oid, columns jsonb, may_wait boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    buffer oid := format('pgtrickle_changes.changes_%s', source)::regclass;
    col record;
BEGIN
    FOR col IN
        SELECT coalesce(have.name, want.name) AS name, have.type AS old_type, want.type AS new_type
        FROM (SELECT a.attname::text AS name, pgtrickle._buffer_type(buffer, a.attnum) AS type FROM pg_attribute a
              WHERE a.attrelid = buffer AND a.attnum > 0 AND NOT a.attisdropped AND a.attname LIKE 'c%') have
        FULL JOIN (SELECT 'c' || (c ->> 'attnum') AS name,
                          pgtrickle._buffer_type(source, (c ->> 'attnum')::smallint) AS type
                   FROM jsonb_array_elements(columns) c) want USING (name)
        WHERE have.type IS DISTINCT FROM want.type
        ORDER BY have.type IS NULL, name
    LOOP
        IF col.old_type IS NOT NULL THEN
            IF NOT may_wait THEN
                BEGIN
                    EXECUTE format('LOCK TABLE pgtrickle_changes.changes_%s IN ACCESS EXCLUSIVE MODE NOWAIT', source);
                EXCEPTION WHEN lock_not_available THEN
                    RETURN;
                END;
            END IF;
            EXECUTE format('ALTER TABLE pgtrickle_changes.changes_%s DROP COLUMN %I', source, col.name);
        END IF;
        IF col.new_type IS NOT NULL THEN
            EXECUTE format('ALTER TABLE pgtrickle_changes.changes_%s ADD COLUMN %I %s', source, col.name, col.new_type);
        END IF;
    END LOOP;
    PERFORM pgtrickle._without_statistics(buffer);
END
$$;

SELECT pgtrickle._without_statistics(c.oid) FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace IN ('pgtrickle_changes'::regnamespace, 'pgtrickle_state'::regnamespace);

CREATE OR REPLACE FUNCTION pgtrickle._partition_filter(source oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN (SELECT relispartition FROM pg_class WHERE oid = source)
        AND NOT EXISTS (
            SELECT FROM pg_partitioned_table p
            WHERE p.partrelid = ANY (pgtrickle._ancestors(source))
              AND (p.partexprs IS NOT NULL
                   OR p.partdefid = source OR p.partdefid = ANY (pgtrickle._ancestors(source))
                   OR EXISTS (SELECT FROM unnest(p.partclass) o WHERE o >= 16384)
                   -- A bound is a constant of the key's type, and reading it may call the code of that type's maker.
                   OR EXISTS (SELECT FROM unnest(p.partattrs::smallint[]) k
                              JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k
                              JOIN pg_type t ON t.oid = a.atttypid
                              WHERE t.typnamespace <> 'pg_catalog'::regnamespace)))
        THEN pg_get_partition_constraintdef(source) END
$$;
