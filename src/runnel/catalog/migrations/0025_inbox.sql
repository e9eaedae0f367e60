-- Inboxes: ordinary tables in which messages from elsewhere arrive once each, and the pipelines that fill them.

CREATE TABLE tide.tide_inbox_config (
    inbox_name                text PRIMARY KEY CHECK (inbox_name <> ''),
    inbox_schema              text NOT NULL DEFAULT 'tide',
    owner                     oid NOT NULL DEFAULT current_user::regrole::oid,
    max_retries               integer NOT NULL DEFAULT 3 CHECK (max_retries >= 0),
    processed_retention_hours integer NOT NULL DEFAULT 72 CHECK (processed_retention_hours >= 0),
    dlq_retention_hours       integer NOT NULL DEFAULT 0 CHECK (dlq_retention_hours >= 0),
    created_at                timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tide.tide_inbox_config IS 'One row per inbox; its messages are in the table inbox_schema."<inbox_name>_inbox".';
ALTER TABLE tide.tide_inbox_config ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON tide.tide_inbox_config FOR SELECT USING (true);
CREATE POLICY made ON tide.tide_inbox_config FOR INSERT WITH CHECK (owner = current_user::regrole::oid);
CREATE POLICY dropped ON tide.tide_inbox_config FOR DELETE USING (pg_has_role(owner, 'USAGE'));
REVOKE ALL ON tide.tide_inbox_config FROM PUBLIC;
GRANT SELECT, DELETE,
    INSERT (inbox_name, inbox_schema, max_retries, processed_retention_hours, dlq_retention_hours)
    ON tide.tide_inbox_config TO PUBLIC;

CREATE FUNCTION tide._inbox(p_name text) RETURNS tide.tide_inbox_config
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found tide.tide_inbox_config;
BEGIN
    SELECT * INTO found FROM tide.tide_inbox_config WHERE inbox_name = p_name;
    IF found.inbox_name IS NULL THEN
        RAISE EXCEPTION 'there is no inbox "%"', p_name USING ERRCODE = 'undefined_object',
            HINT = 'Make one with tide.inbox_create().';
    END IF;
    RETURN found;
END
$$;
CREATE FUNCTION tide._inbox_table(p_name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT format('%I.%I', i.inbox_schema, i.inbox_name || '_inbox') FROM tide._inbox(p_name) AS i $$;

CREATE FUNCTION tide.inbox_create(
    p_name text, p_schema text DEFAULT 'tide', p_max_retries integer DEFAULT 3,
    p_processed_retention_hours integer DEFAULT 72, p_dlq_retention_hours integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        INSERT INTO tide.tide_inbox_config (inbox_name, inbox_schema, max_retries, processed_retention_hours, dlq_retention_hours)
        VALUES (p_name, p_schema, p_max_retries, p_processed_retention_hours, p_dlq_retention_hours);
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'inbox "%" already exists', p_name USING ERRCODE = 'duplicate_object';
    END;
    EXECUTE format(
        'CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id text NOT NULL UNIQUE, source text, '
        'payload jsonb NOT NULL, headers jsonb NOT NULL DEFAULT ''{}'', received_at timestamptz NOT NULL DEFAULT now(), '
        'processed_at timestamptz, retry_count integer NOT NULL DEFAULT 0, last_error text)', tide._inbox_table(p_name));
END
$$;

CREATE FUNCTION tide.inbox_drop(p_name text, p_if_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_if_exists AND NOT EXISTS (SELECT FROM tide.tide_inbox_config WHERE inbox_name = p_name) THEN
        RETURN;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %s', tide._inbox_table(p_name));
    DELETE FROM tide.tide_inbox_config WHERE inbox_name = p_name;
END
$$;

CREATE FUNCTION tide.inbox_mark_processed(p_name text, p_event_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('UPDATE %s SET processed_at = now() WHERE event_id = $1 AND processed_at IS NULL', tide._inbox_table(p_name))
    USING p_event_id;
END
$$;
CREATE FUNCTION tide.inbox_mark_failed(p_name text, p_event_id text, p_error text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('UPDATE %s SET retry_count = retry_count + 1, last_error = $2 WHERE event_id = $1', tide._inbox_table(p_name))
    USING p_event_id, p_error;
END
$$;
CREATE FUNCTION tide.replay_inbox_messages(p_name text, p_event_ids text[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    again bigint;
BEGIN
    EXECUTE format('UPDATE %s SET retry_count = 0, last_error = NULL, processed_at = NULL WHERE event_id = ANY ($1)',
                   tide._inbox_table(p_name)) USING p_event_ids;
    GET DIAGNOSTICS again = ROW_COUNT;
    RETURN again;
END
$$;

CREATE FUNCTION tide.inbox_status(p_name text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    counted jsonb;
    each tide.tide_inbox_config;
    all_of_them jsonb := '[]';
BEGIN
    IF p_name IS NULL THEN
        FOR each IN SELECT * FROM tide.tide_inbox_config ORDER BY inbox_name LOOP
            IF has_table_privilege(tide._inbox_table(each.inbox_name), 'SELECT') THEN
                all_of_them := all_of_them || tide.inbox_status(each.inbox_name);
            END IF;
        END LOOP;
        RETURN all_of_them;
    END IF;
    each := tide._inbox(p_name);
    EXECUTE format(
        'SELECT jsonb_build_object(''inbox_name'', $1, '
        '''pending'', count(*) FILTER (WHERE processed_at IS NULL AND retry_count <= $2), '
        '''dlq_count'', count(*) FILTER (WHERE processed_at IS NULL AND retry_count > $2), '
        '''processed'', count(processed_at)) FROM %s', tide._inbox_table(p_name))
    INTO counted USING p_name, each.max_retries;
    RETURN counted;
END
$$;

-- ------------------------------------------------------------------ pipelines to an inbox

CREATE TABLE tide.relay_inbox_config (
    name        text PRIMARY KEY CHECK (name <> ''),
    inbox_name  text NOT NULL REFERENCES tide.tide_inbox_config ON DELETE CASCADE,
    source_type text NOT NULL CHECK (source_type IN ('redis', 'nats', 'kafka', 'webhook')),
    config      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(config) = 'object'),
    batch_size  integer NOT NULL DEFAULT 100 CHECK (batch_size BETWEEN 1 AND 100000),
    enabled     boolean NOT NULL DEFAULT true,
    owner       oid NOT NULL DEFAULT current_user::regrole::oid,
    received_count bigint NOT NULL DEFAULT 0,
    attempts    integer NOT NULL DEFAULT 0,
    last_error  text
);
COMMENT ON TABLE tide.relay_inbox_config IS 'One row per pipeline from a source elsewhere to an inbox.';
ALTER TABLE tide.relay_inbox_config ENABLE ROW LEVEL SECURITY;
REVOKE ALL ON tide.relay_inbox_config FROM PUBLIC;
GRANT SELECT, DELETE, INSERT (name, inbox_name, source_type, config, batch_size, enabled),
    UPDATE (inbox_name, source_type, config, batch_size, enabled) ON tide.relay_inbox_config TO PUBLIC;
-- What it reads, it reads with the relay's own rights.
CREATE POLICY own ON tide.relay_inbox_config USING (pg_has_role(owner, 'USAGE'))
    WITH CHECK (pg_has_role(owner, 'USAGE') AND tide._may_send(current_user, source_type));
CREATE TRIGGER relay_inbox_config_notify
    AFTER INSERT OR DELETE OR UPDATE OF inbox_name, source_type, config, batch_size, enabled ON tide.relay_inbox_config
    FOR EACH ROW EXECUTE FUNCTION tide._relay_changed();

CREATE FUNCTION tide.relay_set_inbox(
    p_name text, p_inbox text, p_config jsonb DEFAULT '{}', p_batch_size integer DEFAULT 100,
    p_source text DEFAULT NULL, p_enabled boolean DEFAULT true, p_max_retries integer DEFAULT 3,
    p_idempotent boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source text := coalesce(p_source, p_config ->> 'source_type');
BEGIN
    PERFORM tide._inbox(p_inbox);
    IF source IS NULL THEN
        RAISE EXCEPTION 'p_source is missing' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'One of redis, nats, kafka, webhook.';
    ELSIF NOT p_idempotent THEN
        RAISE EXCEPTION 'an inbox always takes a message once' USING ERRCODE = 'feature_not_supported';
    ELSIF NOT tide._may_send(current_user, source) THEN
        RAISE EXCEPTION 'a pipeline from % may only be set by members of the engine''s role', source
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO tide.relay_inbox_config (name, inbox_name, source_type, config, batch_size, enabled)
    VALUES (p_name, p_inbox, source, p_config - 'source_type', p_batch_size, p_enabled)
    ON CONFLICT (name) DO UPDATE SET inbox_name = excluded.inbox_name, source_type = excluded.source_type,
        config = excluded.config, batch_size = excluded.batch_size, enabled = excluded.enabled;
END
$$;
CREATE FUNCTION tide.relay_set_inbox_v2(config jsonb) RETURNS void
LANGUAGE sql
AS $$
    SELECT tide.relay_set_inbox(config ->> 'name', config ->> 'inbox', coalesce(config -> 'config', '{}'),
        coalesce((config ->> 'batch_size')::pg_catalog.int4, 100), config ->> 'source_type',
        coalesce((config ->> 'enabled')::pg_catalog.bool, true))
$$;

-- ------------------------------------------------------------------ both ways

CREATE FUNCTION tide._relay_set(p_name text, p_enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    hit bigint := 0;
    more bigint;
BEGIN
    UPDATE tide.relay_outbox_config SET enabled = p_enabled WHERE name = p_name;
    GET DIAGNOSTICS hit = ROW_COUNT;
    UPDATE tide.relay_inbox_config SET enabled = p_enabled WHERE name = p_name;
    GET DIAGNOSTICS more = ROW_COUNT;
    IF hit + more = 0 THEN
        PERFORM tide._relay_missing(p_name);
    END IF;
END
$$;
CREATE FUNCTION tide.relay_enable(p_name text) RETURNS void LANGUAGE sql AS $$ SELECT tide._relay_set(p_name, true) $$;
CREATE FUNCTION tide.relay_disable(p_name text) RETURNS void LANGUAGE sql AS $$ SELECT tide._relay_set(p_name, false) $$;
CREATE FUNCTION tide.relay_delete(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    hit bigint := 0;
    more bigint;
BEGIN
    DELETE FROM tide.relay_outbox_config WHERE name = p_name;
    GET DIAGNOSTICS hit = ROW_COUNT;
    DELETE FROM tide.relay_inbox_config WHERE name = p_name;
    GET DIAGNOSTICS more = ROW_COUNT;
    IF hit + more = 0 THEN
        PERFORM tide._relay_missing(p_name);
    END IF;
END
$$;
CREATE FUNCTION tide.relay_remove_outbox(outbox_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM tide.relay_outbox_config c WHERE c.outbox_name = relay_remove_outbox.outbox_name;
    IF NOT FOUND THEN
        PERFORM tide._relay_missing(outbox_name);
    END IF;
END
$$;
COMMENT ON FUNCTION tide.relay_remove_outbox(text) IS 'Delete all pipelines from an outbox.';

-- A config may hold credentials: what looks like one is not shown, whoever asks.
CREATE FUNCTION tide._shown(config jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_object_agg(key, CASE
        WHEN key ~* '(secret|password|token|key|headers|dsn|url|postgres)' AND jsonb_typeof(value) = 'string'
             AND (value #>> '{}') !~ '^\$\{env:[A-Za-z0-9_]+\}$' AND key !~* '^(url)$' THEN '"***"'
        WHEN key = 'url' THEN to_jsonb(regexp_replace(value #>> '{}', '//[^/@]*@', '//***@'))
        WHEN key = 'headers' THEN '"***"'
        ELSE value END), '{}')
    FROM jsonb_each(config)
$$;
CREATE FUNCTION tide.relay_get_config(p_name text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object('name', name, 'direction', 'outbox', 'outbox', outbox_name, 'sink_type', sink_type,
        'config', tide._shown(config), 'batch_size', batch_size, 'enabled', enabled)
    FROM tide.relay_outbox_config WHERE name = p_name
    UNION ALL
    SELECT jsonb_build_object('name', name, 'direction', 'inbox', 'inbox', inbox_name, 'source_type', source_type,
        'config', tide._shown(config), 'batch_size', batch_size, 'enabled', enabled)
    FROM tide.relay_inbox_config WHERE name = p_name
$$;
CREATE FUNCTION tide.relay_list_configs() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('name', name, 'direction', direction, 'enabled', enabled) ORDER BY name), '[]')
    FROM (SELECT name, 'outbox' AS direction, enabled FROM tide.relay_outbox_config
          UNION ALL SELECT name, 'inbox', enabled FROM tide.relay_inbox_config) AS p
$$;
