-- Capture from the WAL: a table's changes are decoded from the write-ahead log instead of written by triggers.
--
-- The buffers are the same, and so is pgt_xid: that of the writing transaction. Which tables are decoded is said by one
-- publication; a table enters and leaves it under a lock that keeps writers out, in the transaction that drops or makes
-- its triggers. So each change is captured by exactly one of the two.

-- ------------------------------------------------------------------ the catalog

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN cdc_mode text CHECK (cdc_mode IN ('wal', 'trigger', 'auto'));
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.cdc_mode IS
    'How its owner wants the changes of its sources to be captured; null: as the default says (key cdc_mode of pgt_settings).';

ALTER TABLE pgtrickle.pgt_change_tracking
    ADD COLUMN capture text NOT NULL DEFAULT 'trigger' CHECK (capture IN ('trigger', 'wal', 'leaving')),
    ADD COLUMN capture_reason text,
    ADD COLUMN identities jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.capture IS
    'trigger, wal, or leaving: by triggers again, while older changes are still to come from the WAL.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.capture_reason IS 'Why not from the WAL although somebody wishes it.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.identities IS
    'REPLICA IDENTITY of its relations before WAL capture made it FULL: d, n, or the name of an index.';

CREATE TABLE pgtrickle.pgt_wal (
    single      boolean PRIMARY KEY DEFAULT true CHECK (single),
    slot        text NOT NULL,
    generation  bigint NOT NULL DEFAULT 1,
    decoded_lsn pg_lsn NOT NULL,
    warn_bytes  bigint NOT NULL DEFAULT 1073741824,
    lost        text,
    lost_at     timestamptz,
    lost_xid    xid8
);
COMMENT ON TABLE pgtrickle.pgt_wal IS 'How far the WAL has been decoded into the buffers; one row while a slot is in use.';
COMMENT ON COLUMN pgtrickle.pgt_wal.generation IS 'Rises when a slot was lost: what lies between two generations is unknown.';
COMMENT ON COLUMN pgtrickle.pgt_wal.lost_xid IS 'The transaction that recorded the loss: who has not seen it has missed changes.';
COMMENT ON COLUMN pgtrickle.pgt_wal.warn_bytes IS 'health_check warns when the server keeps more WAL than that for the slot.';
COMMENT ON COLUMN pgtrickle.pgt_wal.decoded_lsn IS 'What was committed before it is in the buffers; moves with their rows.';
GRANT SELECT ON pgtrickle.pgt_wal TO PUBLIC;

-- ------------------------------------------------------------------ what stands in the way

-- Values arrive in their binary form and are read by the receive function of their type, in a session of the engine's.
-- So the type must have one, and no code of its maker may run: a field of a composite may be a domain with a CHECK, and
-- a range compares by an operator class. Base types are made by superusers.
CREATE FUNCTION pgtrickle._wal_type_fits(type oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE below (oid) AS (
        SELECT type
        UNION
        SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END
        FROM below b JOIN pg_type t ON t.oid = b.oid
        WHERE t.typtype = 'd' OR (t.typelem <> 0 AND t.typcategory = 'A')
    )
    SELECT bool_and(t.typtype = 'd'
                    OR (t.typsend <> 0 AND t.typreceive <> 0
                        AND (t.typtype IN ('b', 'e') OR (t.typtype IN ('r', 'm') AND t.oid < 16384))))
    FROM below b JOIN pg_type t ON t.oid = b.oid
$$;

CREATE FUNCTION pgtrickle._wal_column_obstacle(source oid, columns jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- Generated columns are not decoded. Whether anybody reads them or not, with one of them, a publication and REPLICA
    -- IDENTITY FULL, PostgreSQL 18 refuses to update the table.
    (SELECT format('column %I of %s is generated', a.attname, pgtrickle._relation_name(a.attrelid))
     FROM pg_attribute a
     WHERE a.attrelid = ANY (pgtrickle._descendants(source)) AND a.attgenerated <> '' AND NOT a.attisdropped
     ORDER BY a.attrelid, a.attnum LIMIT 1)
    UNION ALL
    (SELECT format('column %I of %s is of type %s, whose values cannot be taken from the WAL', a.attname,
                   pgtrickle._relation_name(source), format_type(a.atttypid, a.atttypmod))
     FROM jsonb_to_recordset(columns) AS c (attnum smallint)
     JOIN pg_attribute a ON a.attrelid = source AND a.attnum = c.attnum AND NOT a.attisdropped
     WHERE NOT pgtrickle._wal_type_fits(a.atttypid)
     ORDER BY a.attnum LIMIT 1)
    LIMIT 1
$$;

CREATE FUNCTION pgtrickle._wal_server_obstacle() RETURNS TABLE (obstacle text, way_out text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.obstacle, o.way_out FROM (VALUES
        (1, current_setting('wal_level') <> 'logical', format('wal_level is %s', current_setting('wal_level')),
            'Set wal_level = logical and restart the server.'),
        (2, NOT (SELECT r.rolsuper OR r.rolreplication FROM pg_roles r WHERE r.rolname = current_user)
            AND NOT EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(current_user, m.oid, 'MEMBER')),
            format('role %I may not read the WAL', current_user),
            format('ALTER ROLE %I REPLICATION; or grant it what the provider has for that (such as rds_replication).', current_user)),
        (3, NOT has_database_privilege(current_database(), 'CREATE')
            AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = 'runnel'),
            format('role %I may not create publications in this database', current_user),
            format('GRANT CREATE ON DATABASE %I TO %I;', current_database(), current_user)),
        (4, NOT EXISTS (SELECT FROM pgtrickle.pgt_wal)
            AND (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::int,
            'the server has no replication slot to spare', 'Raise max_replication_slots, or drop a slot that nobody uses.'),
        (5, current_setting('max_wal_senders')::int = 0, 'max_wal_senders is 0', 'Raise it and restart the server.')
    ) AS o (rank, holds, obstacle, way_out)
    WHERE o.holds ORDER BY o.rank LIMIT 1
$$;
COMMENT ON FUNCTION pgtrickle._wal_server_obstacle() IS 'Why the role that asks cannot decode the WAL of this server.';

CREATE FUNCTION pgtrickle._wal_obstacle(source oid, columns jsonb) RETURNS TABLE (obstacle text, way_out text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.obstacle, o.way_out FROM (
        SELECT 1, s.obstacle, s.way_out FROM pgtrickle._wal_server_obstacle() s
        UNION ALL
        SELECT 2, c.obstacle, 'Use cdc_mode => ''trigger'' for stream tables that read it.'
        FROM pgtrickle._wal_column_obstacle(source, columns) AS c (obstacle) WHERE c.obstacle IS NOT NULL
        UNION ALL
        (SELECT 3, format('role %I does not own %s', current_user, pgtrickle._relation_name(r.oid)),
                format('GRANT %I TO %I; then Runnel can publish it and set its REPLICA IDENTITY.',
                       pg_get_userbyid(r.relowner), current_user)
         FROM pg_class r WHERE r.oid = ANY (pgtrickle._descendants(source)) AND NOT pg_has_role(current_user, r.relowner, 'USAGE')
         LIMIT 1)
        UNION ALL
        -- With REPLICA IDENTITY FULL such a publication would make PostgreSQL refuse updates and deletes.
        (SELECT 4, format('publication %I has a column list for %s', p.pubname, pgtrickle._relation_name(m.prrelid)),
                'Publish all of its columns there, or stay with triggers.'
         FROM pg_publication_rel m JOIN pg_publication p ON p.oid = m.prpubid
         WHERE m.prattrs IS NOT NULL AND (p.pubupdate OR p.pubdelete)
           AND m.prrelid = ANY (pgtrickle._descendants(source) || pgtrickle._ancestors(source)) LIMIT 1)
    ) AS o (rank, obstacle, way_out)
    ORDER BY o.rank LIMIT 1
$$;
COMMENT ON FUNCTION pgtrickle._wal_obstacle(oid, jsonb) IS 'Why these columns of a table cannot be captured from the WAL; no row if they can.';

-- Whoever says something is heard before the default: first who cannot do with triggers, then who wants them.
CREATE FUNCTION pgtrickle._capture_wishes() RETURNS TABLE (source_relid oid, wish text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.source_relid,
           CASE WHEN bool_or(s.cdc_mode = 'wal') THEN 'wal' WHEN bool_or(s.cdc_mode = 'trigger') THEN 'trigger'
                WHEN bool_or(s.cdc_mode = 'auto') THEN 'auto'
                ELSE coalesce((SELECT lower(value) FROM pgtrickle.pgt_settings WHERE key = 'cdc_mode'), 'trigger') END
    FROM pgtrickle.pgt_change_tracking t
    JOIN pgtrickle.pgt_dependencies d ON d.source_relid = t.source_relid
    JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
    GROUP BY t.source_relid
$$;

-- ------------------------------------------------------------------ publication and identities

-- A partitioned table stands for its partitions, also for those to come. Below a parent by inheritance each child is named.
CREATE FUNCTION pgtrickle._wal_members() RETURNS TABLE (relation oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT c.oid FROM pgtrickle.pgt_change_tracking t
    CROSS JOIN LATERAL unnest(pgtrickle._descendants(t.source_relid)) r (oid) JOIN pg_class c ON c.oid = r.oid
    WHERE t.capture = 'wal' AND (c.oid = t.source_relid OR NOT c.relispartition)
$$;

-- Whoever calls it holds a lock on the tables that come, so that all of their changes come later.
CREATE FUNCTION pgtrickle._wal_publish() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    publication oid := (SELECT oid FROM pg_publication WHERE pubname = 'runnel');
    member oid;
BEGIN
    IF publication IS NULL THEN
        RETURN;
    END IF;
    FOR member IN
        SELECT m.relation FROM pgtrickle._wal_members() m
        WHERE NOT EXISTS (SELECT FROM pg_publication_rel p WHERE p.prpubid = publication AND p.prrelid = m.relation)
    LOOP
        EXECUTE format('ALTER PUBLICATION runnel ADD TABLE ONLY %s', pgtrickle._relation_name(member));
    END LOOP;
    FOR member IN
        SELECT p.prrelid FROM pg_publication_rel p
        WHERE p.prpubid = publication AND NOT EXISTS (SELECT FROM pgtrickle._wal_members() m WHERE m.relation = p.prrelid)
    LOOP
        EXECUTE format('ALTER PUBLICATION runnel DROP TABLE ONLY %s', pgtrickle._relation_name(member));
    END LOOP;
END
$$;

CREATE FUNCTION pgtrickle._wal_identify(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rel record;
BEGIN
    FOR rel IN
        SELECT c.oid, CASE c.relreplident WHEN 'i' THEN coalesce(
                   (SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                    WHERE x.indrelid = c.oid AND x.indisreplident), 'd') ELSE c.relreplident::text END AS before
        FROM pg_class c
        WHERE c.oid = ANY (pgtrickle._descendants(source)) AND c.relkind = 'r' AND c.relreplident <> 'f'
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', pgtrickle._relation_name(rel.oid));
        UPDATE pgtrickle.pgt_change_tracking t
           SET identities = jsonb_build_object(rel.oid::text, rel.before) || t.identities
         WHERE t.source_relid = source;
    END LOOP;
END
$$;
COMMENT ON FUNCTION pgtrickle._wal_identify(oid) IS 'Let old rows be written to the WAL, whole; what was there before is remembered.';

CREATE FUNCTION pgtrickle._wal_restore_identities(source oid, identities jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rel record;
BEGIN
    FOR rel IN
        SELECT c.oid, e.value AS before FROM jsonb_each_text(identities) e JOIN pg_class c ON c.oid = e.key::oid
        WHERE c.relreplident = 'f'
          AND NOT EXISTS (SELECT FROM pgtrickle.pgt_change_tracking t
                          WHERE t.capture = 'wal' AND t.source_relid <> source AND c.oid = ANY (t.relations))
    LOOP
        BEGIN
            EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY %s', pgtrickle._relation_name(rel.oid),
                           CASE rel.before WHEN 'd' THEN 'DEFAULT' WHEN 'n' THEN 'NOTHING'
                                ELSE format('USING INDEX %I', rel.before) END);
        EXCEPTION WHEN undefined_object OR insufficient_privilege OR wrong_object_type THEN
            NULL;  -- the index is gone, or the table has another owner: FULL is right, too, and only costs more
        END;
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ from one to the other

-- Under the lock everybody who has written to the table has ended, and the buffer holds what the triggers saw. Whoever
-- writes later finds no trigger, and his changes are decoded since the table is published.
CREATE FUNCTION pgtrickle._capture_to_wal(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tracked pgtrickle.pgt_change_tracking;
    relation oid;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    FOREACH relation IN ARRAY pgtrickle._ancestors(source) LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', pgtrickle._relation_name(relation));
    END LOOP;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', pgtrickle._relation_name(source));
    SELECT * INTO tracked FROM pgtrickle.pgt_change_tracking WHERE source_relid = source FOR UPDATE;
    IF NOT FOUND OR tracked.capture <> 'trigger' OR EXISTS (SELECT FROM pgtrickle._wal_obstacle(source, tracked.columns)) THEN
        RETURN;
    END IF;
    PERFORM set_config('pgtrickle.internal', 'on', true);
    UPDATE pgtrickle.pgt_change_tracking SET capture = 'wal', capture_reason = NULL WHERE source_relid = source;
    PERFORM pgtrickle._wal_identify(source);
    PERFORM pgtrickle._wal_publish();
    FOREACH relation IN ARRAY tracked.ancestors || tracked.relations LOOP
        PERFORM pgtrickle._capture_detach(source, relation);
    END LOOP;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

CREATE FUNCTION pgtrickle._capture_to_triggers(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tracked pgtrickle.pgt_change_tracking;
    relation oid;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    FOREACH relation IN ARRAY pgtrickle._ancestors(source) LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', pgtrickle._relation_name(relation));
    END LOOP;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', pgtrickle._relation_name(source));
    SELECT * INTO tracked FROM pgtrickle.pgt_change_tracking WHERE source_relid = source FOR UPDATE;
    IF NOT FOUND OR tracked.capture <> 'wal' THEN
        RETURN;
    END IF;
    PERFORM set_config('pgtrickle.internal', 'on', true);
    UPDATE pgtrickle.pgt_change_tracking SET capture = 'leaving', identities = '{}' WHERE source_relid = source;
    PERFORM pgtrickle._wal_publish();
    PERFORM pgtrickle._wal_restore_identities(source, tracked.identities);
    PERFORM pgtrickle._capture_build(source, '{}', true, false);
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

-- What lies between the old slot's end and the new one's beginning is unknown: everybody who reads these tables computes
-- anew, or stops and says so if that is what its owner wants (ducklake_expired => 'error').
CREATE FUNCTION pgtrickle._wal_lost(reason text, new_slot text, start pg_lsn) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source oid;
BEGIN
    UPDATE pgtrickle.pgt_wal SET generation = generation + 1, decoded_lsn = start, slot = new_slot, lost = reason,
                                 lost_at = clock_timestamp(), lost_xid = pg_current_xact_id();
    FOR source IN SELECT t.source_relid FROM pgtrickle.pgt_change_tracking t WHERE t.capture <> 'trigger' LOOP
        IF to_regclass(format('pgtrickle_changes.changes_%s', source)) IS NOT NULL THEN
            PERFORM pgtrickle._capture_marker(source);
        END IF;
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ install, repair, remove: as before, for both

CREATE OR REPLACE FUNCTION pgtrickle._capture_drift() RETURNS TABLE (source_relid oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.source_relid
    FROM pgtrickle.pgt_change_tracking t
    LEFT JOIN pg_class r ON r.oid = t.source_relid
    WHERE r.oid IS NULL
       OR t.relations <> pgtrickle._descendants(t.source_relid)
       OR t.ancestors <> pgtrickle._ancestors(t.source_relid)
       OR EXISTS (
            SELECT FROM jsonb_to_recordset(t.columns) AS c (attnum smallint, name text, type text, gen text)
            LEFT JOIN pgtrickle._columns(t.source_relid) n ON n.attnum = c.attnum
            WHERE (n.name, n.type, n.gen) IS DISTINCT FROM (c.name, c.type, c.gen))
       OR CASE WHEN t.capture = 'wal' THEN 0 ELSE 4 * cardinality(t.relations) + 3 * cardinality(t.ancestors) END <> (
            SELECT count(*) FROM pg_trigger g
            WHERE g.tgrelid = ANY (t.relations || t.ancestors) AND g.tgenabled = 'A'
              AND starts_with(g.tgname::text, format('pgtrickle_%s_', t.source_relid)))
       OR (t.capture = 'wal'
           AND (pgtrickle._wal_column_obstacle(t.source_relid, t.columns) IS NOT NULL
                OR EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (t.relations) AND c.relkind = 'r' AND c.relreplident <> 'f')
                OR EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (t.relations)
                             AND (c.oid = t.source_relid OR NOT c.relispartition)
                             AND NOT EXISTS (SELECT FROM pg_publication_rel m JOIN pg_publication p ON p.oid = m.prpubid
                                             WHERE p.pubname = 'runnel' AND m.prrelid = c.oid))))
$$;

CREATE OR REPLACE FUNCTION pgtrickle._capture_build(source oid, extra text[], may_wait boolean, mark boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old pgtrickle.pgt_change_tracking;
    below oid[] := pgtrickle._descendants(source);
    above oid[] := pgtrickle._ancestors(source);
    wanted jsonb;
    is_guarded boolean := NOT pgtrickle._ddl_is_followed();
    relation oid;
    known boolean;
    decoded boolean;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    SELECT * INTO old FROM pgtrickle.pgt_change_tracking WHERE source_relid = source;
    known := FOUND;
    SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'name', n.name, 'attnum', n.attnum, 'type', n.type, 'gen', n.gen)) ORDER BY n.attnum), '[]')
      INTO wanted
    FROM pgtrickle._columns(source) n
    WHERE n.name = ANY (extra)
       OR EXISTS (SELECT FROM jsonb_to_recordset(old.columns) AS c (attnum smallint, type text)
                  WHERE c.attnum = n.attnum AND c.type = n.type);

    IF NOT known THEN
        PERFORM pgtrickle._buffer_create(source);
    END IF;
    PERFORM pgtrickle._buffer_columns(source, wanted, may_wait);
    PERFORM pgtrickle._capture_functions(source, wanted, above <> '{}', is_guarded);
    -- A column that the WAL does not have makes it triggers again; the decoder still has to bring what was written before.
    decoded := coalesce(old.capture, 'trigger') = 'wal' AND pgtrickle._wal_column_obstacle(source, wanted) IS NULL;
    IF NOT decoded THEN
        FOREACH relation IN ARRAY below LOOP
            PERFORM pgtrickle._capture_attach(source, relation, '');
        END LOOP;
        FOREACH relation IN ARRAY above LOOP
            PERFORM pgtrickle._capture_attach(source, relation, '_above');
        END LOOP;
    END IF;
    IF known THEN
        -- Relations that left the tree must stop writing into its buffer.
        FOREACH relation IN ARRAY old.relations || old.ancestors LOOP
            IF relation <> ALL (below) THEN
                PERFORM pgtrickle._capture_detach(source, relation, ARRAY['']);
            END IF;
            IF relation <> ALL (above) THEN
                PERFORM pgtrickle._capture_detach(source, relation, ARRAY['_above']);
            END IF;
        END LOOP;
        UPDATE pgtrickle.pgt_change_tracking
           SET columns = wanted, relations = below, ancestors = above, guarded = is_guarded,
               capture = CASE WHEN capture = 'wal' AND NOT decoded THEN 'leaving' ELSE capture END
         WHERE source_relid = source;
        IF decoded THEN
            PERFORM pgtrickle._wal_identify(source);
        END IF;
        IF old.capture = 'wal' THEN
            PERFORM pgtrickle._wal_publish();
            IF NOT decoded THEN
                PERFORM pgtrickle._wal_restore_identities(source, old.identities);
                UPDATE pgtrickle.pgt_change_tracking SET identities = '{}' WHERE source_relid = source;
            END IF;
        END IF;
        IF mark THEN
            PERFORM pgtrickle._capture_marker(source);
        END IF;
    ELSE
        INSERT INTO pgtrickle.pgt_change_tracking (source_relid, buffer, columns, relations, ancestors, guarded)
        VALUES (source, 'changes_' || source, wanted, below, above, is_guarded);
    END IF;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle._capture_remove(source oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = 'warning'
AS $$
DECLARE
    relation oid;
    tracked pgtrickle.pgt_change_tracking;
    internal text := coalesce(current_setting('pgtrickle.internal', true), 'off');
BEGIN
    PERFORM set_config('pgtrickle.internal', 'on', true);
    SELECT * INTO tracked FROM pgtrickle.pgt_change_tracking WHERE source_relid = source;
    FOR relation IN
        SELECT r FROM unnest(tracked.ancestors || tracked.relations) r WHERE EXISTS (SELECT FROM pg_class WHERE oid = r)
    LOOP
        PERFORM pgtrickle._capture_detach(source, relation);
    END LOOP;
    EXECUTE format('DROP FUNCTION IF EXISTS pgtrickle_changes.capture_%s()', source);
    EXECUTE format('DROP FUNCTION IF EXISTS pgtrickle_changes.capture_%s_above()', source);
    EXECUTE format('DROP TABLE IF EXISTS pgtrickle_changes.changes_%s', source);
    DELETE FROM pgtrickle.pgt_change_tracking WHERE source_relid = source;
    IF tracked.capture = 'wal' THEN
        PERFORM pgtrickle._wal_publish();
        PERFORM pgtrickle._wal_restore_identities(source, tracked.identities);
    END IF;
    PERFORM set_config('pgtrickle.internal', internal, true);
END
$$;

-- ------------------------------------------------------------------ what people see

CREATE FUNCTION pgtrickle._wal_lag() RETURNS TABLE (slot_name text, retained bigint, confirmed pg_lsn, wal_status text, active boolean, warn_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.slot, CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint END,
           s.confirmed_flush_lsn, s.wal_status, s.active, w.warn_bytes
    FROM pgtrickle.pgt_wal w
    LEFT JOIN pg_replication_slots s ON s.slot_name = w.slot AND s.database = current_database()
$$;
COMMENT ON FUNCTION pgtrickle._wal_lag() IS 'The replication slot in use, and how many bytes of WAL the server keeps for it.';

CREATE FUNCTION pgtrickle._wal_health() RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH found AS (
        SELECT CASE WHEN l.wal_status IS NULL THEN 2 WHEN l.wal_status IN ('lost', 'unreserved') THEN 2
                    WHEN l.retained > l.warn_bytes THEN 1 ELSE 0 END AS rank,
               CASE WHEN l.wal_status IS NULL THEN format('replication slot %s is gone: what reads its tables is computed anew', l.slot_name)
                    WHEN l.wal_status = 'lost' THEN format('replication slot %s has lost its WAL: what reads its tables is computed anew', l.slot_name)
                    ELSE format('the server keeps %s of WAL for replication slot %s%s', pg_size_pretty(l.retained), l.slot_name,
                                CASE WHEN l.wal_status = 'unreserved' THEN ', and is about to remove it'
                                     WHEN l.retained > l.warn_bytes AND NOT l.active
                                     THEN ', which nobody reads: start the engine, or drop the slot' ELSE '' END) END AS words
        FROM pgtrickle._wal_lag() l
        UNION ALL
        SELECT DISTINCT 1, format('%s: not from the WAL, %s', d.source_name, t.capture_reason)
        FROM pgtrickle.pgt_change_tracking t JOIN pgtrickle.pgt_dependencies d USING (source_relid)
        JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
        WHERE s.cdc_mode = 'wal' AND t.capture = 'trigger' AND t.capture_reason IS NOT NULL
        UNION ALL
        SELECT 1, format('%s, at %s', w.lost, date_trunc('second', w.lost_at)) FROM pgtrickle.pgt_wal w
        WHERE w.lost_at > clock_timestamp() - interval '1 hour'
    )
    SELECT 'wal_capture', CASE max(f.rank) WHEN 2 THEN 'ERROR' WHEN 1 THEN 'WARN' ELSE 'OK' END,
           coalesce(string_agg(f.words, '; ' ORDER BY f.rank DESC, f.words), 'not in use')
    FROM found f
$$;

CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH s AS (
        SELECT t.*, format('%I.%I', t.pgt_schema, t.pgt_name) AS full_name, f.pending, f.staleness,
               pgtrickle._last_error(t.pgt_id, t.last_error) AS error
        FROM pgtrickle.pgt_stream_tables t JOIN pgtrickle._freshness() f ON f.pgt_id = t.pgt_id
    )
    SELECT 'scheduler_running', p.severity, p.detail FROM pgtrickle._pulse() p
    UNION ALL
    SELECT 'error_tables', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'ERROR' END,
           coalesce(string_agg(full_name || ': ' || coalesce(error, status), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.status IN ('ERROR', 'SUSPENDED') AND (s.status = 'ERROR' OR s.last_error IS NOT NULL)
    UNION ALL
    SELECT 'stale_tables', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s behind', full_name, date_trunc('second', staleness)), '; '
                               ORDER BY full_name), 'none')
    FROM s WHERE s.status = 'ACTIVE' AND s.pending > 0 AND s.staleness > interval '5 minutes'
    UNION ALL
    SELECT 'needs_reinit', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(full_name, ', ' ORDER BY full_name), 'none')
    FROM s WHERE s.needs_reinit
    UNION ALL
    SELECT 'consecutive_errors', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s in a row', full_name, consecutive_errors), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.consecutive_errors > 0
    UNION ALL
    SELECT 'buffer_growth', CASE WHEN count(*) = 0 THEN 'OK' ELSE 'WARN' END,
           coalesce(string_agg(format('%s: %s changes wait', full_name, pending), '; ' ORDER BY full_name), 'none')
    FROM s WHERE s.pending > 1000000
    UNION ALL
    SELECT v.* FROM pgtrickle._verification_health() v
    UNION ALL
    SELECT 'keeping_up', p.severity, p.detail FROM pgtrickle._pace() p
    UNION ALL
    SELECT t.* FROM pgtrickle._test_health() t
    UNION ALL
    SELECT w.* FROM pgtrickle._wal_health() w
$$;

CREATE OR REPLACE FUNCTION pgtrickle.change_buffer_sizes()
RETURNS TABLE (
    stream_table text, source_table text, source_oid oid, cdc_mode text, pending_rows bigint, buffer_bytes bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), d.source_name, d.source_relid,
           CASE t.capture WHEN 'wal' THEN 'wal' ELSE 'trigger' END,
           coalesce(p.pending, 0), pg_total_relation_size(to_regclass('pgtrickle_changes.' || t.buffer))
    FROM pgtrickle.pgt_dependencies d
    JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
    JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle._pending() p ON p.pgt_id = d.pgt_id AND p.source_relid = d.source_relid
    ORDER BY 1, 2
$$;

CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT s.pgt_id, s.pgt_schema, s.pgt_name, s.status, s.refresh_mode, s.is_populated, s.data_timestamp, s.schedule,
       s.staleness, s.stale, s.consecutive_errors, s.needs_reinit, s.last_refresh_at,
       coalesce(t.total, 0) AS total_refreshes, coalesce(t.successful, 0) AS successful_refreshes,
       coalesce(t.failed, 0) AS failed_refreshes, coalesce(t.inserted, 0) AS total_rows_inserted,
       coalesce(t.deleted, 0) AS total_rows_deleted, t.avg_ms AS avg_duration_ms, t.last_action, t.last_status,
       t.last_initiated_by,
       ARRAY(SELECT DISTINCT CASE c.capture WHEN 'wal' THEN 'wal' ELSE 'trigger' END
             FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_change_tracking c USING (source_relid)
             WHERE d.pgt_id = s.pgt_id ORDER BY 1) AS cdc_modes,
       NULL::integer AS scc_id, NULL::integer AS last_fixpoint_iterations, s.effective_mode
FROM pgtrickle.stream_tables_info s
LEFT JOIN pgtrickle._refresh_totals() t ON t.pgt_id = s.pgt_id;

CREATE OR REPLACE FUNCTION pgtrickle.check_cdc_health() RETURNS TABLE (
    source_relid bigint, source_table text, cdc_mode text, slot_name text, lag_bytes bigint, confirmed_lsn text, alert text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.source_relid::bigint, coalesce(format('%I.%I', n.nspname, c.relname), d.source_name),
           CASE t.capture WHEN 'wal' THEN 'WAL' WHEN 'leaving' THEN 'TRANSITIONING' ELSE 'TRIGGER' END,
           w.slot_name, w.retained, w.confirmed::text,
           CASE WHEN c.oid IS NULL THEN 'source_table_missing'
                WHEN to_regclass(format('pgtrickle_changes.%I', t.buffer)) IS NULL THEN 'change_buffer_missing'
                WHEN t.capture = 'wal' THEN
                    CASE WHEN w.wal_status IS NULL THEN 'replication_slot_missing'
                         WHEN w.wal_status IN ('lost', 'unreserved') THEN 'replication_slot_lost'
                         WHEN EXISTS (SELECT FROM pg_class r WHERE r.oid = ANY (t.relations) AND r.relkind = 'r'
                                      AND r.relreplident <> 'f')
                         THEN 'replica_identity_is_not_full' END
                WHEN EXISTS (
                    SELECT FROM unnest(t.relations) r (oid) CROSS JOIN unnest('{ins,upd,del,trunc}'::text[]) k (kind)
                    WHERE EXISTS (SELECT FROM pg_class p WHERE p.oid = r.oid) AND NOT EXISTS (
                        SELECT FROM pg_trigger g WHERE g.tgrelid = r.oid AND g.tgenabled = 'A'
                          AND g.tgname = format('pgtrickle_%s_%s', t.source_relid, k.kind)))
                THEN 'capture_trigger_missing_or_disabled' END
    FROM pgtrickle.pgt_change_tracking t
    LEFT JOIN pg_class c ON c.oid = t.source_relid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pgtrickle._wal_lag() w ON t.capture <> 'trigger'
    LEFT JOIN LATERAL (SELECT e.source_name FROM pgtrickle.pgt_dependencies e
                       WHERE e.source_relid = t.source_relid LIMIT 1) d ON true
    ORDER BY 2
$$;

CREATE OR REPLACE FUNCTION pgtrickle.list_sources(name text) RETURNS TABLE (
    source_table text, source_oid bigint, source_type text, cdc_mode text, columns_used text)
LANGUAGE sql STABLE
AS $$
    SELECT d.source_name, d.source_relid::bigint, lower(d.source_type),
           CASE WHEN t.source_relid IS NOT NULL THEN CASE t.capture WHEN 'wal' THEN 'wal' ELSE 'trigger' END
                WHEN d.source_pgt_id IS NOT NULL THEN 'log' WHEN k.relid IS NOT NULL THEN 'snapshot' END,
           nullif(pg_catalog.array_to_string(d.columns_used, ', '), '')
    FROM pgtrickle.pgt_dependencies d
    LEFT JOIN pgtrickle.pgt_change_tracking t ON t.source_relid = d.source_relid
    LEFT JOIN pgtrickle.pgt_lake_tables k ON k.relid = d.source_relid
    WHERE d.pgt_id = pgtrickle._find_or_fail(name)
    ORDER BY d.source_name
$$;
COMMENT ON FUNCTION pgtrickle.list_sources(text) IS
    'What a stream table reads, and how its changes are known: by triggers, from the WAL, a stream table''s log, or a lake''s snapshots.';

-- As before, and how changes are captured.
CREATE OR REPLACE FUNCTION pgtrickle.export_definition(name text) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.format(E'SELECT pgtrickle.create_or_replace_stream_table(\n    name => %L,\n    query => $pgt$%s$pgt$,\n'
                             '    schedule => %L,\n    refresh_mode => %L%s\n);\n',
               pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name), s.defining_query, s.schedule, s.refresh_mode,
               CASE WHEN k.sink = 'ducklake' THEN pg_catalog.format(
                   E',\n    sink => %L,\n    ducklake_lake => %L,\n    ducklake_sink_mode => %L,\n'
                   '    inline_small_changes => %L,\n    ducklake_compression => %L',
                   k.sink, k.lake, k.mode, k.inline_small_changes, k.compression) ELSE '' END
               || CASE WHEN k.delta_export_path IS NOT NULL THEN pg_catalog.format(
                   E',\n    delta_export_path => %L,\n    delta_export_compression => %L',
                   k.delta_export_path, k.delta_export_compression) ELSE '' END
               || CASE WHEN s.ducklake_expired <> 'fallback'
                       THEN pg_catalog.format(E',\n    ducklake_expired => %L', s.ducklake_expired) ELSE '' END
               || CASE WHEN s.cdc_mode IS NOT NULL
                       THEN pg_catalog.format(E',\n    cdc_mode => %L', s.cdc_mode) ELSE '' END)
           || CASE WHEN s.status = 'SUSPENDED' THEN pg_catalog.format(
                  E'SELECT pgtrickle.alter_stream_table(%L, status => ''SUSPENDED'');\n',
                  pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name)) ELSE '' END
    FROM pgtrickle.pgt_stream_tables s LEFT JOIN pgtrickle.pgt_sinks k ON k.pgt_id = s.pgt_id
    WHERE s.pgt_id = pgtrickle._find_or_fail(name)
$$;

DO $$
DECLARE
    internal regprocedure;
BEGIN
    FOR internal IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace
          AND p.proname IN ('_wal_obstacle', '_wal_server_obstacle', '_wal_publish', '_wal_identify', '_wal_restore_identities',
                            '_wal_members', '_capture_to_wal', '_capture_to_triggers', '_wal_lost')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', internal);
    END LOOP;
END
$$;
SELECT pgtrickle._identify(ARRAY['pgtrickle.pgt_wal'::regclass::oid]);
