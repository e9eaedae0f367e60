-- Lakes: DuckLake catalogs that stream tables read from and publish to.

CREATE TABLE pgtrickle.pgt_lakes (
    name           text PRIMARY KEY CHECK (name <> ''),
    catalog_schema text NOT NULL,
    data_path      text NOT NULL,
    encrypted      boolean NOT NULL DEFAULT false,
    dsn            text,
    remote         boolean GENERATED ALWAYS AS (dsn IS NOT NULL) STORED,
    options        jsonb NOT NULL DEFAULT '{}',
    is_default     boolean NOT NULL DEFAULT false,
    attached_at    timestamptz NOT NULL DEFAULT now(),
    maintain_every interval CHECK (maintain_every > interval '0'),
    maintained_at  timestamptz
);
CREATE UNIQUE INDEX pgt_lakes_default ON pgtrickle.pgt_lakes (is_default) WHERE is_default;

COMMENT ON TABLE pgtrickle.pgt_lakes IS 'One row per attached lake.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.catalog_schema IS 'The schema that holds its ducklake_* tables.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.data_path IS 'Folder or URL below which its files lie; ends with a slash.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.dsn IS
    'Sealed connection string of the server that holds its catalog; null for this database.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.options IS 'Settings of its object store; what is secret is sealed.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.maintain_every IS
    'How often the engine tidies its files by itself; null for lakes that others look after.';
COMMENT ON COLUMN pgtrickle.pgt_lakes.is_default IS 'Where a sink publishes that names no lake.';

-- Sealed is not for everybody's eyes either.
REVOKE ALL ON pgtrickle.pgt_lakes FROM PUBLIC;
GRANT SELECT (name, catalog_schema, data_path, encrypted, remote, is_default, attached_at, maintain_every, maintained_at)
    ON pgtrickle.pgt_lakes TO PUBLIC;

-- With it a client seals credentials before they leave it, so that no server, log or buffer ever sees them.
CREATE FUNCTION pgtrickle.sealing_key() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT value FROM pgtrickle.pgt_settings WHERE key = 'sealing_key'
$$;

CREATE FUNCTION pgtrickle.attach_ducklake(
    name text,
    catalog_schema text DEFAULT 'public',
    dsn text DEFAULT NULL,
    data_path text DEFAULT NULL,
    options jsonb DEFAULT NULL,
    create_if_missing boolean DEFAULT false,
    encrypted boolean DEFAULT false,
    make_default boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('attach_lake', pg_catalog.jsonb_build_object(
        'name', name, 'catalog_schema', catalog_schema, 'dsn', dsn, 'data_path', data_path, 'options', options,
        'create_if_missing', create_if_missing, 'encrypted', encrypted, 'make_default', make_default));
END
$$;

CREATE FUNCTION pgtrickle.detach_ducklake(name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('detach_lake', pg_catalog.jsonb_build_object('name', name));
END
$$;

-- A setting of the lake's object store, such as secret_access_key, or maintain_every; NULL forgets it.
CREATE FUNCTION pgtrickle.set_lake_option(name text, option text, value text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('set_lake_option', pg_catalog.jsonb_build_object(
        'name', name, 'option', option, 'value', value));
END
$$;

-- What a client needs to attach the lake, and what it holds; no secrets.
CREATE FUNCTION pgtrickle.lake_info(name text DEFAULT NULL) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
    SELECT pgtrickle._ask('lake_info', pg_catalog.jsonb_build_object('name', name))
$$;

CREATE FUNCTION pgtrickle.lake_tables(lake text DEFAULT NULL)
RETURNS TABLE (schema_name text, table_name text, kind text, rows bigint, files bigint, bytes bigint, columns jsonb)
LANGUAGE sql VOLATILE
AS $$
    SELECT t ->> 'schema', t ->> 'name', t ->> 'kind', (t ->> 'rows')::pg_catalog.int8,
           (t ->> 'files')::pg_catalog.int8, (t ->> 'bytes')::pg_catalog.int8, t -> 'columns'
    FROM pg_catalog.jsonb_array_elements(
        pgtrickle._ask('lake_tables', pg_catalog.jsonb_build_object('name', lake))) AS t
$$;

-- Merge small files, flush inlined rows, remove files that no snapshot needs.
CREATE FUNCTION pgtrickle.maintain_ducklake(name text DEFAULT NULL) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
    SELECT pgtrickle._ask('maintain_lake', pg_catalog.jsonb_build_object('name', name))
$$;
