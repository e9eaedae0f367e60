-- A subquery used as a value must not give more than one row. Maintained as a group, its rows are counted, and this
-- raises PostgreSQL's own error where the value is used.

CREATE FUNCTION pgtrickle._single(n bigint, value anyelement) RETURNS anyelement
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (SELECT value FROM generate_series(1, greatest(n, 1)))
$$;
