-- Spellings of pg-tide's documentation that were missing: the sink named inside of a config that follows the outbox, the
-- size of batches inside of a config, `source` of an inbox's pipeline, and an outbox that is made if it is not there.

CREATE FUNCTION tide.outbox_create_if_not_exists(
    p_name text, p_retention_hours integer DEFAULT 24, p_inline_threshold integer DEFAULT 10000) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tide.outbox_create(p_name, p_retention_hours, p_inline_threshold);
EXCEPTION WHEN duplicate_object THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION tide.outbox_create_if_not_exists(text, integer, integer) IS
    'Make an outbox; one that is there stays as it is.';

CREATE OR REPLACE FUNCTION tide.relay_set_outbox_v2(config jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
    inner_config jsonb := coalesce(relay_set_outbox_v2.config -> 'config', '{}');
    missing text := (SELECT string_agg(key, ', ') FROM unnest('{name,outbox,sink_type}'::text[]) AS key
                     WHERE coalesce(relay_set_outbox_v2.config ->> key, '') = '');
    unknown text := (SELECT string_agg(key, ', ') FROM jsonb_object_keys(relay_set_outbox_v2.config) AS key
                     WHERE key <> ALL ('{name,outbox,sink_type,config,source_mode,batch_size,enabled}'));
BEGIN
    IF missing IS NOT NULL OR unknown IS NOT NULL THEN
        RAISE EXCEPTION '%', concat_ws('; ', 'missing: ' || missing, 'unknown: ' || unknown)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Keys: name, outbox, sink_type, config, batch_size, enabled.';
    END IF;
    SELECT relay_set_outbox_v2.config ->> 'name' AS name, relay_set_outbox_v2.config ->> 'outbox' AS outbox,
           CASE relay_set_outbox_v2.config ->> 'sink_type' WHEN 'inbox' THEN 'pg-inbox'
                ELSE relay_set_outbox_v2.config ->> 'sink_type' END AS sink,
           coalesce(relay_set_outbox_v2.config ->> 'batch_size', inner_config ->> 'batch_size', '100')::integer AS size,
           coalesce((relay_set_outbox_v2.config ->> 'enabled')::boolean, true) AS enabled INTO wanted;
    inner_config := inner_config - 'batch_size';
    PERFORM tide._outbox(wanted.outbox);
    IF NOT tide._may_read(current_user, wanted.outbox) THEN
        RAISE EXCEPTION 'permission denied for outbox "%"', wanted.outbox USING ERRCODE = 'insufficient_privilege';
    ELSIF NOT tide._may_send(current_user, wanted.sink) THEN
        RAISE EXCEPTION 'a pipeline to % may only be set by members of the engine''s role', wanted.sink
            USING ERRCODE = 'insufficient_privilege', HINT = 'Publish to an attached lake: sink_type => ''ducklake''.';
    ELSIF wanted.sink <> ALL ('{ducklake,webhook,file,pg-inbox,redis,nats,kafka}') THEN
        RAISE EXCEPTION 'there is no sink %', wanted.sink USING ERRCODE = 'invalid_parameter_value',
            HINT = 'One of ducklake, webhook, file, pg-inbox, redis, nats, kafka.';
    END IF;
    IF wanted.sink = 'ducklake' AND inner_config ? 'data_path' AND NOT EXISTS (
        SELECT FROM pgtrickle.pgt_lakes l WHERE starts_with(inner_config ->> 'data_path', l.data_path)) THEN
        RAISE EXCEPTION 'no attached lake has its files at %', inner_config ->> 'data_path'
            USING ERRCODE = 'undefined_object',
                  HINT = 'Attach one first: SELECT pgtrickle.attach_ducklake(''lake'', data_path => ..., create_if_missing => true)';
    END IF;
    INSERT INTO tide.relay_outbox_config AS r (name, outbox_name, sink_type, config, batch_size, enabled)
    VALUES (wanted.name, wanted.outbox, wanted.sink, inner_config, wanted.size, wanted.enabled)
    ON CONFLICT (name) DO UPDATE SET outbox_name = excluded.outbox_name, sink_type = excluded.sink_type,
        config = excluded.config, batch_size = excluded.batch_size, enabled = excluded.enabled;
END
$$;

CREATE OR REPLACE FUNCTION tide.relay_set_outbox(
    name text, outbox text, sink_type text, config jsonb DEFAULT '{}', batch_size integer DEFAULT 100,
    enabled boolean DEFAULT true) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tide.relay_set_outbox_v2(jsonb_build_object('name', name, 'outbox', outbox,
        'sink_type', coalesce(config ->> 'sink_type', sink_type), 'config', config - 'sink_type',
        'batch_size', coalesce(config -> 'batch_size', to_jsonb(batch_size)), 'enabled', enabled))
$$;

-- Outbox, sink and its options, as pg_trickle prints it; or, where the config names the sink, pipeline, outbox and config.
CREATE OR REPLACE FUNCTION tide.relay_set_outbox(outbox_name text, sink_type text, sink_options jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tide.relay_set_outbox_v2(CASE WHEN sink_options ? 'sink_type'
        THEN jsonb_build_object('name', outbox_name, 'outbox', sink_type, 'sink_type', sink_options -> 'sink_type',
                                'config', sink_options - 'sink_type')
        ELSE jsonb_build_object('name', outbox_name, 'outbox', outbox_name, 'sink_type', sink_type, 'config', sink_options) END)
$$;

CREATE OR REPLACE FUNCTION tide.relay_set_inbox(
    p_name text, p_inbox text, p_config jsonb DEFAULT '{}', p_batch_size integer DEFAULT 100,
    p_source text DEFAULT NULL, p_enabled boolean DEFAULT true, p_max_retries integer DEFAULT 3,
    p_idempotent boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source text := coalesce(p_source, p_config ->> 'source_type');
BEGIN
    PERFORM tide._inbox(p_inbox);
    IF source IS NULL OR source <> ALL ('{redis,nats,kafka,webhook}') THEN
        RAISE EXCEPTION '%', coalesce('there is no source ' || source, 'p_source is missing')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'One of redis, nats, kafka, webhook.';
    ELSIF NOT p_idempotent THEN
        RAISE EXCEPTION 'an inbox always takes a message once' USING ERRCODE = 'feature_not_supported';
    ELSIF NOT tide._may_send(current_user, source) THEN
        RAISE EXCEPTION 'a pipeline from % may only be set by members of the engine''s role', source
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO tide.relay_inbox_config (name, inbox_name, source_type, config, batch_size, enabled)
    VALUES (p_name, p_inbox, source, p_config - 'source_type' - 'batch_size',
            coalesce((p_config ->> 'batch_size')::integer, p_batch_size), p_enabled)
    ON CONFLICT (name) DO UPDATE SET inbox_name = excluded.inbox_name, source_type = excluded.source_type,
        config = excluded.config, batch_size = excluded.batch_size, enabled = excluded.enabled;
END
$$;

CREATE OR REPLACE FUNCTION tide.relay_set_inbox_v2(config jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    said CONSTANT jsonb := relay_set_inbox_v2.config;
    missing text := (SELECT string_agg(key, ', ') FROM unnest('{name,inbox}'::text[]) AS key WHERE coalesce(said ->> key, '') = '');
    unknown text := (SELECT string_agg(key, ', ') FROM jsonb_object_keys(said) AS key
                     WHERE key <> ALL ('{name,inbox,source,source_type,config,batch_size,enabled,max_retries,idempotent}'));
BEGIN
    IF missing IS NOT NULL OR unknown IS NOT NULL THEN
        RAISE EXCEPTION '%', concat_ws('; ', 'missing: ' || missing, 'unknown: ' || unknown)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Keys: name, inbox, source, config, batch_size, enabled.';
    END IF;
    PERFORM tide.relay_set_inbox(said ->> 'name', said ->> 'inbox', coalesce(said -> 'config', '{}'),
        coalesce((said ->> 'batch_size')::integer, 100), coalesce(said ->> 'source', said ->> 'source_type'),
        coalesce((said ->> 'enabled')::boolean, true),
        p_idempotent => coalesce((said ->> 'idempotent')::boolean, true));
END
$$;
