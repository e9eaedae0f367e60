-- Outboxes, consumer groups and the relay's configuration: the schema `tide`, with the names that pg-tide documents.
--
-- Rights are PostgreSQL's own: functions run as their caller, and row security decides. An outbox belongs to the role
-- that made it. The outbox of a stream table is read by whoever may SELECT from that table, and written by the engine.

CREATE SCHEMA tide;
GRANT USAGE ON SCHEMA tide TO PUBLIC;

CREATE FUNCTION tide.version() RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT pgtrickle.version() $$;

-- ------------------------------------------------------------------ outboxes

CREATE TABLE tide.tide_outbox_config (
    outbox_name       text PRIMARY KEY CHECK (outbox_name <> ''),
    owner             oid NOT NULL DEFAULT current_user::regrole::oid,
    retention_hours   integer NOT NULL DEFAULT 24 CHECK (retention_hours >= 0),
    inline_threshold  integer NOT NULL DEFAULT 10000 CHECK (inline_threshold > 0),
    enabled           boolean NOT NULL DEFAULT true,
    created_at        timestamptz NOT NULL DEFAULT now(),
    last_offset       bigint NOT NULL DEFAULT 0,
    pgt_id            bigint UNIQUE,
    relid             oid,
    columns           jsonb,
    definition_version bigint
);
COMMENT ON TABLE tide.tide_outbox_config IS 'One row per outbox.';
COMMENT ON COLUMN tide.tide_outbox_config.last_offset IS 'The offset that was given to a message last.';
COMMENT ON COLUMN tide.tide_outbox_config.pgt_id IS 'The stream table whose changes it holds; null for an application''s.';
COMMENT ON COLUMN tide.tide_outbox_config.columns IS '[name, type, lake type] of the rows published last; null: none yet.';

-- A message gets its offset when it is first seen after its commit, so that offsets follow the order of commits: a
-- number given out inside a transaction could appear after a larger one was delivered, and be passed over.
CREATE TABLE tide.tide_outbox_messages (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_name  text NOT NULL REFERENCES tide.tide_outbox_config ON UPDATE CASCADE ON DELETE CASCADE,
    "offset"     bigint,
    payload      jsonb NOT NULL,
    headers      jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX tide_outbox_messages_offset ON tide.tide_outbox_messages (outbox_name, "offset");
CREATE INDEX tide_outbox_messages_new ON tide.tide_outbox_messages (outbox_name, id) WHERE "offset" IS NULL;
COMMENT ON TABLE tide.tide_outbox_messages IS 'The messages of all outboxes.';
COMMENT ON COLUMN tide.tide_outbox_messages."offset" IS 'Its place in the order of commits, given by the first reader.';

CREATE FUNCTION tide._may_read(role name, outbox text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce((
        SELECT CASE WHEN c.pgt_id IS NULL THEN pg_has_role(role, c.owner, 'USAGE')
                    ELSE has_table_privilege(role, c.relid, 'SELECT') AND EXISTS (
                        -- Policies show some rows to some roles; a delta shows all of them.
                        SELECT FROM pg_class t WHERE t.oid = c.relid AND (NOT t.relrowsecurity
                            OR (NOT t.relforcerowsecurity AND pg_has_role(role, t.relowner, 'USAGE')))) END
        FROM tide.tide_outbox_config c WHERE c.outbox_name = outbox), false)
$$;
COMMENT ON FUNCTION tide._may_read(name, text) IS 'Whether a role may read the messages of an outbox.';

ALTER TABLE tide.tide_outbox_config ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON tide.tide_outbox_config FOR SELECT USING (true);
CREATE POLICY made ON tide.tide_outbox_config FOR INSERT WITH CHECK (owner = current_user::regrole::oid AND pgt_id IS NULL);
CREATE POLICY altered ON tide.tide_outbox_config FOR UPDATE USING (pg_has_role(owner, 'USAGE'));
CREATE POLICY dropped ON tide.tide_outbox_config FOR DELETE USING (pg_has_role(owner, 'USAGE') AND pgt_id IS NULL);
REVOKE ALL ON tide.tide_outbox_config FROM PUBLIC;
GRANT SELECT, DELETE, INSERT (outbox_name, retention_hours, inline_threshold), UPDATE (enabled, retention_hours)
    ON tide.tide_outbox_config TO PUBLIC;

ALTER TABLE tide.tide_outbox_messages ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON tide.tide_outbox_messages FOR SELECT USING (tide._may_read(current_user, outbox_name));
CREATE POLICY published ON tide.tide_outbox_messages FOR INSERT WITH CHECK (EXISTS (
    SELECT FROM tide.tide_outbox_config c
    WHERE c.outbox_name = tide_outbox_messages.outbox_name AND c.pgt_id IS NULL AND pg_has_role(c.owner, 'USAGE')));
REVOKE ALL ON tide.tide_outbox_messages FROM PUBLIC;
GRANT SELECT, INSERT (outbox_name, payload, headers) ON tide.tide_outbox_messages TO PUBLIC;

CREATE FUNCTION tide._outbox(p_name text) RETURNS tide.tide_outbox_config
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found tide.tide_outbox_config;
BEGIN
    SELECT * INTO found FROM tide.tide_outbox_config WHERE outbox_name = p_name;
    IF found.outbox_name IS NULL THEN
        RAISE EXCEPTION 'there is no outbox "%"', p_name USING ERRCODE = 'undefined_object',
            HINT = 'Make one with tide.outbox_create(), or pgtrickle.attach_outbox() for a stream table.';
    END IF;
    RETURN found;
END
$$;

CREATE FUNCTION tide.outbox_create(p_name text, p_retention_hours integer DEFAULT 24, p_inline_threshold integer DEFAULT 10000)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO tide.tide_outbox_config (outbox_name, retention_hours, inline_threshold)
    VALUES (p_name, p_retention_hours, p_inline_threshold);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'outbox "%" already exists', p_name USING ERRCODE = 'duplicate_object';
END
$$;

CREATE FUNCTION tide.outbox_drop(p_name text, p_if_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known tide.tide_outbox_config;
BEGIN
    IF p_if_exists AND NOT EXISTS (SELECT FROM tide.tide_outbox_config WHERE outbox_name = p_name) THEN
        RETURN;
    END IF;
    known := tide._outbox(p_name);
    IF known.pgt_id IS NOT NULL THEN
        RAISE EXCEPTION 'outbox "%" is attached to a stream table', p_name USING ERRCODE = 'dependent_objects_still_exist',
            HINT = format('First: SELECT pgtrickle.detach_outbox(%L)', p_name);
    END IF;
    DELETE FROM tide.tide_outbox_config WHERE outbox_name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'must be owner of outbox "%"', p_name USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

-- In the caller's own transaction: the message is there exactly when the rest of the transaction is.
CREATE FUNCTION tide.outbox_publish(p_name text, p_payload jsonb, p_headers jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found tide.tide_outbox_config := tide._outbox(p_name);
BEGIN
    IF found.pgt_id IS NOT NULL OR NOT pg_has_role(found.owner, 'USAGE') THEN
        RAISE EXCEPTION 'permission denied for outbox "%"', p_name USING ERRCODE = 'insufficient_privilege',
            HINT = CASE WHEN found.pgt_id IS NOT NULL THEN 'Only refreshes write to the outbox of a stream table.'
                        ELSE format('Become a member of its owner: GRANT %s TO ...', found.owner::regrole) END;
    ELSIF NOT found.enabled THEN
        RAISE EXCEPTION 'outbox "%" is disabled', p_name USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = format('SELECT tide.outbox_enable(%L)', p_name);
    END IF;
    INSERT INTO tide.tide_outbox_messages (outbox_name, payload, headers)
    VALUES (p_name, p_payload, coalesce(p_headers, '{}'));
    PERFORM pg_notify('tide_outbox_new', p_name);
END
$$;

CREATE FUNCTION tide._set_outbox(p_name text, p_enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tide._outbox(p_name);
    UPDATE tide.tide_outbox_config SET enabled = p_enabled WHERE outbox_name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'must be owner of outbox "%"', p_name USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;
CREATE FUNCTION tide.outbox_enable(p_name text) RETURNS void
LANGUAGE sql AS $$ SELECT tide._set_outbox(p_name, true) $$;
CREATE FUNCTION tide.outbox_disable(p_name text) RETURNS void
LANGUAGE sql AS $$ SELECT tide._set_outbox(p_name, false) $$;

-- Gives offsets to what was committed since somebody last looked. The row of the outbox is locked first: whoever numbers
-- next sees, in a later snapshot, all that is numbered here. So only who may read the outbox may cause that: others could
-- hold the lock, and keep its readers waiting.
CREATE FUNCTION tide._number(p_name text, p_limit integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base bigint;
    numbered bigint;
BEGIN
    IF session_user <> current_user AND NOT tide._may_read(session_user, p_name) THEN
        RAISE EXCEPTION 'permission denied for outbox "%"', p_name USING ERRCODE = 'insufficient_privilege';
    ELSIF NOT EXISTS (SELECT FROM tide.tide_outbox_messages WHERE outbox_name = p_name AND "offset" IS NULL) THEN
        RETURN 0;
    END IF;
    SELECT last_offset INTO base FROM tide.tide_outbox_config WHERE outbox_name = p_name FOR NO KEY UPDATE;
    UPDATE tide.tide_outbox_messages m SET "offset" = base + n.place
    FROM (SELECT id, row_number() OVER (ORDER BY id) AS place
          FROM (SELECT id FROM tide.tide_outbox_messages WHERE outbox_name = p_name AND "offset" IS NULL
                ORDER BY id LIMIT p_limit) AS f) AS n
    WHERE m.id = n.id;
    GET DIAGNOSTICS numbered = ROW_COUNT;
    UPDATE tide.tide_outbox_config SET last_offset = base + numbered WHERE outbox_name = p_name;
    RETURN numbered;
END
$$;
COMMENT ON FUNCTION tide._number(text, integer) IS 'Give offsets to committed messages that have none.';

-- ------------------------------------------------------------------ consumer groups

CREATE TABLE tide.tide_consumer_groups (
    group_name         text PRIMARY KEY CHECK (group_name <> ''),
    outbox_name        text NOT NULL REFERENCES tide.tide_outbox_config ON UPDATE CASCADE ON DELETE CASCADE,
    auto_offset_reset  text NOT NULL DEFAULT 'earliest' CHECK (auto_offset_reset IN ('earliest', 'latest', 'none')),
    owner              oid NOT NULL DEFAULT current_user::regrole::oid,
    created_at         timestamptz NOT NULL DEFAULT now(),
    handed_out         bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN tide.tide_consumer_groups.handed_out IS 'The highest offset that any consumer has been given.';
CREATE TABLE tide.tide_consumer_offsets (
    group_name       text NOT NULL REFERENCES tide.tide_consumer_groups ON DELETE CASCADE,
    consumer_id      text NOT NULL,
    committed_offset bigint NOT NULL DEFAULT 0,
    last_heartbeat   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_name, consumer_id)
);
CREATE TABLE tide.tide_consumer_leases (
    group_name  text NOT NULL REFERENCES tide.tide_consumer_groups ON DELETE CASCADE,
    consumer_id text NOT NULL,
    lease_start bigint NOT NULL,
    lease_end   bigint NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (group_name, lease_start)
);
DO $$
DECLARE
    relation text;
BEGIN
    FOREACH relation IN ARRAY ARRAY['tide_consumer_groups', 'tide_consumer_offsets', 'tide_consumer_leases'] LOOP
        EXECUTE format('ALTER TABLE tide.%I ENABLE ROW LEVEL SECURITY', relation);
        EXECUTE format('REVOKE ALL ON tide.%I FROM PUBLIC', relation);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON tide.%I TO PUBLIC', relation);
        IF relation <> 'tide_consumer_groups' THEN
            -- The groups that a caller sees are those that row security lets it see.
            EXECUTE format('CREATE POLICY own ON tide.%1$I USING (EXISTS (SELECT FROM tide.tide_consumer_groups g '
                           'WHERE g.group_name = %1$I.group_name))', relation);
        END IF;
    END LOOP;
END
$$;
REVOKE INSERT, UPDATE ON tide.tide_consumer_groups FROM PUBLIC;
GRANT INSERT (group_name, outbox_name, auto_offset_reset, handed_out), UPDATE (handed_out) ON tide.tide_consumer_groups TO PUBLIC;
CREATE POLICY own ON tide.tide_consumer_groups USING (pg_has_role(owner, 'USAGE'))
    WITH CHECK (pg_has_role(owner, 'USAGE') AND tide._may_read(current_user, outbox_name));

CREATE FUNCTION tide.create_consumer_group(
    p_name text, p_outbox text, p_auto_offset_reset text DEFAULT 'earliest', p_if_not_exists boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    start bigint := 0;
BEGIN
    PERFORM tide._outbox(p_outbox);
    IF p_auto_offset_reset = 'latest' THEN
        WHILE tide._number(p_outbox) > 0 LOOP END LOOP;
        start := (tide._outbox(p_outbox)).last_offset;
    END IF;
    INSERT INTO tide.tide_consumer_groups (group_name, outbox_name, auto_offset_reset, handed_out)
    VALUES (p_name, p_outbox, p_auto_offset_reset, start);
EXCEPTION WHEN unique_violation THEN
    IF NOT p_if_not_exists THEN
        RAISE EXCEPTION 'consumer group "%" already exists', p_name USING ERRCODE = 'duplicate_object';
    END IF;
END
$$;

CREATE FUNCTION tide.drop_consumer_group(p_name text, p_if_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM tide.tide_consumer_groups WHERE group_name = p_name;
    IF NOT FOUND AND NOT p_if_exists THEN
        RAISE EXCEPTION 'there is no consumer group "%"', p_name USING ERRCODE = 'undefined_object';
    END IF;
END
$$;

-- The next messages for one consumer of a group. What another has been given comes again when its lease has expired.
CREATE FUNCTION tide.outbox_poll(
    p_group text, p_consumer text, p_batch_size integer DEFAULT 100, p_lease_seconds integer DEFAULT 30)
RETURNS TABLE ("offset" bigint, payload jsonb, headers jsonb, created_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found tide.tide_consumer_groups;
    lease tide.tide_consumer_leases;
    until CONSTANT timestamptz := clock_timestamp() + make_interval(secs => p_lease_seconds);
    last bigint;
BEGIN
    SELECT * INTO found FROM tide.tide_consumer_groups WHERE group_name = p_group FOR NO KEY UPDATE;
    IF found.group_name IS NULL THEN
        RAISE EXCEPTION 'there is no consumer group "%"', p_group USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM tide.consumer_heartbeat(p_group, p_consumer);
    SELECT * INTO lease FROM tide.tide_consumer_leases
    WHERE group_name = p_group AND (consumer_id = p_consumer OR expires_at < clock_timestamp()) ORDER BY lease_start LIMIT 1;
    IF lease.group_name IS NOT NULL THEN
        UPDATE tide.tide_consumer_leases SET consumer_id = p_consumer, expires_at = until
        WHERE group_name = p_group AND lease_start = lease.lease_start;
    ELSE
        PERFORM tide._number(found.outbox_name);
        SELECT max(m."offset") INTO last FROM (
            SELECT o."offset" FROM tide.tide_outbox_messages o
            WHERE o.outbox_name = found.outbox_name AND o."offset" > found.handed_out
            ORDER BY o."offset" LIMIT p_batch_size) AS m;
        IF last IS NULL THEN
            RETURN;
        END IF;
        INSERT INTO tide.tide_consumer_leases VALUES (p_group, p_consumer, found.handed_out + 1, last, until)
        RETURNING * INTO lease;
        UPDATE tide.tide_consumer_groups SET handed_out = last WHERE group_name = p_group;
    END IF;
    RETURN QUERY SELECT m."offset", m.payload, m.headers, m.created_at FROM tide.tide_outbox_messages m
        WHERE m.outbox_name = found.outbox_name AND m."offset" BETWEEN lease.lease_start AND lease.lease_end
        ORDER BY m."offset";
END
$$;

CREATE FUNCTION tide.commit_offset(p_group text, p_consumer text, p_last_offset bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO tide.tide_consumer_offsets AS o VALUES (p_group, p_consumer, p_last_offset, now())
    ON CONFLICT (group_name, consumer_id) DO UPDATE
    SET committed_offset = greatest(o.committed_offset, excluded.committed_offset), last_heartbeat = now();
    DELETE FROM tide.tide_consumer_leases
    WHERE group_name = p_group AND consumer_id = p_consumer AND lease_end <= p_last_offset;
    UPDATE tide.tide_consumer_leases SET lease_start = p_last_offset + 1
    WHERE group_name = p_group AND consumer_id = p_consumer AND p_last_offset BETWEEN lease_start AND lease_end;
END
$$;
CREATE FUNCTION tide.outbox_commit_offset(p_group text, p_consumer text, p_last_offset bigint) RETURNS void
LANGUAGE sql AS $$ SELECT tide.commit_offset(p_group, p_consumer, p_last_offset) $$;

CREATE FUNCTION tide.consumer_heartbeat(p_group text, p_consumer text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO tide.tide_consumer_offsets (group_name, consumer_id) VALUES (p_group, p_consumer)
    ON CONFLICT (group_name, consumer_id) DO UPDATE SET last_heartbeat = now()
$$;

CREATE VIEW tide.consumer_lag WITH (security_invoker = true) AS
SELECT g.group_name, g.outbox_name, o.consumer_id, o.committed_offset,
       greatest(c.last_offset - o.committed_offset, 0) AS lag, o.last_heartbeat
FROM tide.tide_consumer_groups g JOIN tide.tide_outbox_config c USING (outbox_name)
LEFT JOIN tide.tide_consumer_offsets o USING (group_name);

-- ------------------------------------------------------------------ pipelines from an outbox

CREATE TABLE tide.relay_outbox_config (
    name        text PRIMARY KEY CHECK (name <> ''),
    outbox_name text NOT NULL REFERENCES tide.tide_outbox_config ON UPDATE CASCADE ON DELETE CASCADE,
    sink_type   text NOT NULL CHECK (sink_type IN
        ('ducklake', 'webhook', 'file', 'pg-inbox', 'redis', 'nats', 'kafka')),
    config      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(config) = 'object'),
    batch_size  integer NOT NULL DEFAULT 100 CHECK (batch_size BETWEEN 1 AND 100000),
    enabled     boolean NOT NULL DEFAULT true,
    owner       oid NOT NULL DEFAULT current_user::regrole::oid
);
COMMENT ON TABLE tide.relay_outbox_config IS 'One row per pipeline from an outbox to a sink.';

CREATE TABLE tide.relay_consumer_offsets (
    relay_group_id  text NOT NULL DEFAULT 'default',
    pipeline_id     text NOT NULL REFERENCES tide.relay_outbox_config ON DELETE CASCADE,
    outbox_name     text NOT NULL,
    last_change_id  bigint NOT NULL DEFAULT 0,
    delivered_count bigint NOT NULL DEFAULT 0,
    failed_count    bigint NOT NULL DEFAULT 0,
    attempts        integer NOT NULL DEFAULT 0,
    last_error      text,
    failed_at       timestamptz,
    state           jsonb,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (relay_group_id, pipeline_id, outbox_name)
);
COMMENT ON COLUMN tide.relay_consumer_offsets.last_change_id IS 'The highest offset that the sink has.';
COMMENT ON COLUMN tide.relay_consumer_offsets.attempts IS 'Failures since the last success.';
COMMENT ON COLUMN tide.relay_consumer_offsets.state IS 'What the sink remembers from one batch to the next.';

CREATE TABLE tide.relay_claims (
    pipeline      text PRIMARY KEY,
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL
);
COMMENT ON TABLE tide.relay_claims IS 'Which session works on a pipeline; it counts as long as that session lives.';
REVOKE ALL ON tide.relay_claims FROM PUBLIC;

CREATE TABLE tide.relay_dead_letters (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id text NOT NULL REFERENCES tide.relay_outbox_config ON DELETE CASCADE,
    outbox_name text NOT NULL,
    "offset"    bigint NOT NULL,
    payload     jsonb NOT NULL,
    headers     jsonb NOT NULL,
    created_at  timestamptz NOT NULL,
    error       text NOT NULL,
    failed_at   timestamptz NOT NULL DEFAULT now(),
    replay      boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE tide.relay_dead_letters IS 'Messages that a sink has refused for good.';

DO $$
DECLARE
    relation text;
BEGIN
    FOREACH relation IN ARRAY ARRAY['relay_outbox_config', 'relay_consumer_offsets', 'relay_dead_letters'] LOOP
        EXECUTE format('ALTER TABLE tide.%I ENABLE ROW LEVEL SECURITY', relation);
        EXECUTE format('REVOKE ALL ON tide.%I FROM PUBLIC', relation);
        EXECUTE format('GRANT SELECT ON tide.%I TO PUBLIC', relation);
        IF relation <> 'relay_outbox_config' THEN
            EXECUTE format('CREATE POLICY own ON tide.%1$I USING (EXISTS (SELECT FROM tide.relay_outbox_config p '
                           'WHERE p.name = %1$I.pipeline_id))', relation);
        END IF;
    END LOOP;
END
$$;
GRANT UPDATE (replay), DELETE ON tide.relay_dead_letters TO PUBLIC;
GRANT DELETE, INSERT (name, outbox_name, sink_type, config, batch_size, enabled),
    UPDATE (outbox_name, sink_type, config, batch_size, enabled) ON tide.relay_outbox_config TO PUBLIC;

-- A lake that is attached is open to everybody who publishes; all else is reached with the relay's own rights, so only
-- who could act as the engine may say where to send.
CREATE FUNCTION tide._may_send(role name, sink_type text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sink_type = 'ducklake'
        OR pg_has_role(role, (SELECT relowner FROM pg_class WHERE oid = 'tide.relay_outbox_config'::regclass), 'USAGE')
$$;
CREATE POLICY own ON tide.relay_outbox_config USING (pg_has_role(owner, 'USAGE'))
    WITH CHECK (pg_has_role(owner, 'USAGE') AND tide._may_read(current_user, outbox_name)
                AND tide._may_send(current_user, sink_type));

CREATE FUNCTION tide._relay_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_notify('tide_relay_config', coalesce(NEW.name, OLD.name));
    RETURN NULL;
END
$$;
CREATE TRIGGER relay_outbox_config_notify AFTER INSERT OR UPDATE OR DELETE ON tide.relay_outbox_config
    FOR EACH ROW EXECUTE FUNCTION tide._relay_changed();

CREATE FUNCTION tide.relay_set_outbox_v2(config jsonb) RETURNS void
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
           relay_set_outbox_v2.config ->> 'sink_type' AS sink,
           coalesce((relay_set_outbox_v2.config ->> 'batch_size')::integer, 100) AS size,
           coalesce((relay_set_outbox_v2.config ->> 'enabled')::boolean, true) AS enabled INTO wanted;
    PERFORM tide._outbox(wanted.outbox);
    IF NOT tide._may_read(current_user, wanted.outbox) THEN
        RAISE EXCEPTION 'permission denied for outbox "%"', wanted.outbox USING ERRCODE = 'insufficient_privilege';
    ELSIF NOT tide._may_send(current_user, wanted.sink) THEN
        RAISE EXCEPTION 'a pipeline to % may only be set by members of the engine''s role', wanted.sink
            USING ERRCODE = 'insufficient_privilege', HINT = 'Publish to an attached lake: sink_type => ''ducklake''.';
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

-- Two spellings, as pg-tide and pg_trickle print them. In the first the sink may also be named inside of the config.
CREATE FUNCTION tide.relay_set_outbox(
    name text, outbox text, sink_type text, config jsonb DEFAULT '{}', batch_size integer DEFAULT 100,
    enabled boolean DEFAULT true) RETURNS void
LANGUAGE sql
AS $$
    SELECT tide.relay_set_outbox_v2(pg_catalog.jsonb_build_object('name', name, 'outbox', outbox,
        'sink_type', coalesce(config ->> 'sink_type', sink_type), 'config', config - 'sink_type',
        'batch_size', batch_size, 'enabled', enabled))
$$;
CREATE FUNCTION tide.relay_set_outbox(outbox_name text, sink_type text, sink_options jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql
AS $$
    SELECT tide.relay_set_outbox_v2(pg_catalog.jsonb_build_object('name', outbox_name, 'outbox', outbox_name,
        'sink_type', sink_type, 'config', sink_options))
$$;

CREATE FUNCTION tide._relay_missing(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'there is no pipeline "%"', p_name USING ERRCODE = 'undefined_object',
        HINT = 'SELECT tide.relay_list_configs() lists those that are yours.';
END
$$;
CREATE FUNCTION tide.relay_replay(p_name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    asked bigint;
BEGIN
    UPDATE tide.relay_dead_letters SET replay = true WHERE pipeline_id = p_name AND NOT replay;
    GET DIAGNOSTICS asked = ROW_COUNT;
    PERFORM pg_notify('tide_relay_config', p_name);
    RETURN asked;
END
$$;
COMMENT ON FUNCTION tide.relay_replay(text) IS 'Send the dead letters of a pipeline again.';

-- ------------------------------------------------------------------ what there is to see

CREATE VIEW tide.relay_pipeline_lag WITH (security_invoker = true) AS
SELECT coalesce(o.relay_group_id, 'default') AS relay_group_id, p.name AS pipeline_id, p.outbox_name, p.sink_type,
       p.enabled, coalesce(o.last_change_id, 0) AS last_change_id,
       (SELECT count(*) FROM tide.tide_outbox_messages m
        WHERE m.outbox_name = p.outbox_name AND (m."offset" IS NULL OR m."offset" > coalesce(o.last_change_id, 0))) AS lag,
       coalesce(o.delivered_count, 0) AS delivered_count, coalesce(o.failed_count, 0) AS failed_count,
       (SELECT count(*) FROM tide.relay_dead_letters d WHERE d.pipeline_id = p.name) AS dead_letters, o.updated_at
FROM tide.relay_outbox_config p LEFT JOIN tide.relay_consumer_offsets o
    ON o.pipeline_id = p.name AND o.outbox_name = p.outbox_name;

CREATE VIEW tide.relay_failures WITH (security_invoker = true) AS
SELECT pipeline_id, outbox_name, last_change_id + 1 AS at_offset, attempts, last_error, failed_at
FROM tide.relay_consumer_offsets WHERE attempts > 0
UNION ALL
SELECT pipeline_id, outbox_name, "offset", NULL, error, failed_at FROM tide.relay_dead_letters;

CREATE FUNCTION tide._safe_offset(p_name text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(passed) FROM (
        SELECT coalesce(o.last_change_id, 0) AS passed FROM tide.relay_outbox_config p
        LEFT JOIN tide.relay_consumer_offsets o ON o.pipeline_id = p.name AND o.outbox_name = p.outbox_name
        WHERE p.outbox_name = p_name
        UNION ALL
        SELECT least(g.handed_out, (SELECT min(l.lease_start) - 1 FROM tide.tide_consumer_leases l
                                    WHERE l.group_name = g.group_name))
        FROM tide.tide_consumer_groups g WHERE g.outbox_name = p_name) AS readers
$$;
COMMENT ON FUNCTION tide._safe_offset(text) IS 'What every reader of an outbox has passed; null if nobody reads it.';

CREATE VIEW tide.outbox_pending WITH (security_invoker = true) AS
SELECT m.outbox_name, count(*) AS pending_count, min(m.created_at) AS oldest_at, max(m.id) AS max_id
FROM tide.tide_outbox_messages m
WHERE m."offset" IS NULL OR m."offset" > coalesce(tide._safe_offset(m.outbox_name), 0) GROUP BY m.outbox_name;

CREATE VIEW tide.outboxes WITH (security_invoker = true) AS
SELECT c.outbox_name, CASE WHEN c.enabled THEN 'enabled' ELSE 'disabled' END AS status,
       coalesce((SELECT p.pending_count FROM tide.outbox_pending p WHERE p.outbox_name = c.outbox_name), 0) AS pending_count,
       coalesce(sum(l.delivered_count), 0)::bigint AS delivered_count, coalesce(sum(l.failed_count), 0)::bigint AS failed_count
FROM tide.tide_outbox_config c LEFT JOIN tide.relay_pipeline_lag l USING (outbox_name)
GROUP BY c.outbox_name, c.enabled;

CREATE FUNCTION tide.outbox_status(p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found tide.tide_outbox_config := tide._outbox(p_name);
BEGIN
    RETURN jsonb_build_object(
        'outbox_name', p_name,
        'enabled', found.enabled,
        'pending_messages', coalesce((SELECT pending_count FROM tide.outbox_pending WHERE outbox_name = p_name), 0),
        'retained_messages', (SELECT count(*) FROM tide.tide_outbox_messages WHERE outbox_name = p_name),
        'native_safe_offset', coalesce(tide._safe_offset(p_name), 0),
        'oldest_pending_age_seconds', (SELECT extract(epoch FROM now() - oldest_at)::float8 FROM tide.outbox_pending
                                       WHERE outbox_name = p_name),
        'retention_hours', found.retention_hours);
END
$$;

-- Messages that everybody has, and that are older than the outbox keeps them.
CREATE FUNCTION tide._sweep(p_name text, p_batch_size integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM tide.tide_outbox_messages WHERE id IN (
        SELECT m.id FROM tide.tide_outbox_messages m JOIN tide.tide_outbox_config c USING (outbox_name)
        WHERE m.outbox_name = p_name AND m."offset" <= coalesce(tide._safe_offset(p_name), 9223372036854775807)
          AND m.created_at < now() - make_interval(hours => c.retention_hours)
        ORDER BY m."offset" LIMIT p_batch_size);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;
REVOKE ALL ON FUNCTION tide._sweep(text, integer) FROM PUBLIC;

-- ------------------------------------------------------------------ stream tables

CREATE FUNCTION pgtrickle.attach_outbox(
    name text, retention_hours integer DEFAULT 24, inline_threshold_rows integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ignored pg_catalog.jsonb;
BEGIN
    ignored := pgtrickle._ask('alter', pg_catalog.jsonb_build_object('name', name, 'outbox', 'attach',
        'outbox_retention_hours', retention_hours, 'outbox_rows', inline_threshold_rows));
END
$$;
COMMENT ON FUNCTION pgtrickle.attach_outbox(text, integer, integer) IS
    'Write what each refresh of a stream table changes to an outbox of its name, in the same transaction.';

CREATE FUNCTION pgtrickle.detach_outbox(name text, if_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ignored pg_catalog.jsonb;
BEGIN
    ignored := pgtrickle._ask('alter', pg_catalog.jsonb_build_object('name', name,
        'outbox', CASE WHEN if_exists THEN 'detach if attached' ELSE 'detach' END));
END
$$;
COMMENT ON FUNCTION pgtrickle.detach_outbox(text, boolean) IS 'End that; the outbox and its messages stay.';
