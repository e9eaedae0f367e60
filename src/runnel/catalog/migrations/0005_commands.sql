-- The functions that change stream tables. Each hands its arguments to the engine and waits for it.

CREATE FUNCTION pgtrickle.create_stream_table(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT false,
    pooler_compatibility_mode boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('create', pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'initialize', initialize,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode));
END
$$;

CREATE FUNCTION pgtrickle.create_or_replace_stream_table(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT false,
    pooler_compatibility_mode boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('create_or_replace', pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'initialize', initialize,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode));
END
$$;

-- The stream table a name means: qualified, or the first of that name along the caller's search_path.
CREATE FUNCTION pgtrickle._find(name text) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    parts pg_catalog.text[] := pg_catalog.parse_ident(name);
BEGIN
    IF pg_catalog.cardinality(parts) > 2 THEN
        RAISE EXCEPTION 'improper qualified name: %', name USING ERRCODE = 'syntax_error';
    END IF;
    RETURN (SELECT s.pgt_id
            FROM pgtrickle.pgt_stream_tables s
            LEFT JOIN pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS p (schema, place)
              ON p.schema OPERATOR(pg_catalog.=) s.pgt_schema
            WHERE s.pgt_name OPERATOR(pg_catalog.=) parts[pg_catalog.cardinality(parts)]
              AND CASE WHEN pg_catalog.cardinality(parts) OPERATOR(pg_catalog.=) 2
                       THEN s.pgt_schema OPERATOR(pg_catalog.=) parts[1] ELSE p.place IS NOT NULL END
            ORDER BY p.place LIMIT 1);
END
$$;

CREATE FUNCTION pgtrickle._find_or_fail(name text) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    id pg_catalog.int8 := pgtrickle._find(name);
BEGIN
    IF id IS NULL THEN
        RAISE EXCEPTION 'stream table "%" does not exist', name
            USING ERRCODE = 'undefined_table', HINT = 'SELECT * FROM pgtrickle.pgt_status() lists them.';
    END IF;
    RETURN id;
END
$$;

CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text,
    query text,
    schedule text DEFAULT 'calculated',
    refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT false,
    pooler_compatibility_mode boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pgtrickle._find(name) IS NOT NULL THEN
        RAISE NOTICE 'stream table "%" already exists, skipping', name;
        RETURN;
    END IF;
    PERFORM pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
        diamond_schedule_policy, cdc_mode, append_only, pooler_compatibility_mode);
END
$$;

CREATE FUNCTION pgtrickle.alter_stream_table(
    name text,
    query text DEFAULT NULL,
    schedule text DEFAULT NULL,
    refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL,
    diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL,
    append_only boolean DEFAULT NULL,
    pooler_compatibility_mode boolean DEFAULT NULL,
    tier text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('alter', pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'status', status,
        'diamond_consistency', diamond_consistency, 'diamond_schedule_policy', diamond_schedule_policy,
        'cdc_mode', cdc_mode, 'append_only', append_only, 'pooler_compatibility_mode', pooler_compatibility_mode,
        'tier', tier)));
END
$$;

CREATE FUNCTION pgtrickle.drop_stream_table(name text, cascade boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('drop', pg_catalog.jsonb_build_object('name', name, 'cascade', cascade));
END
$$;

CREATE FUNCTION pgtrickle.resume_stream_table(name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('resume', pg_catalog.jsonb_build_object('name', name));
END
$$;

CREATE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pgtrickle._ask('refresh', pg_catalog.jsonb_build_object('name', name));
END
$$;

CREATE FUNCTION pgtrickle.validate_query(query text)
RETURNS TABLE (check_name text, result text, severity text)
LANGUAGE sql VOLATILE
AS $$
    SELECT v ->> 'check', v ->> 'result', v ->> 'severity'
    FROM pg_catalog.jsonb_array_elements(
        pgtrickle._ask('validate', pg_catalog.jsonb_build_object('query', query))) AS v
$$;

CREATE FUNCTION pgtrickle.explain_stream_table(name text) RETURNS SETOF text
LANGUAGE sql VOLATILE
AS $$
    SELECT pg_catalog.jsonb_array_elements_text(
        pgtrickle._ask('explain', pg_catalog.jsonb_build_object('name', name)))
$$;

CREATE FUNCTION pgtrickle.explain_st(name text) RETURNS SETOF text
LANGUAGE sql VOLATILE
AS $$
    SELECT pgtrickle.explain_stream_table(name)
$$;

CREATE FUNCTION pgtrickle.verify_stream_table(name text) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
    SELECT pgtrickle._ask('verify', pg_catalog.jsonb_build_object('name', name))
$$;
