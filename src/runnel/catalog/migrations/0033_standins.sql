-- Where no foreign-data wrapper is to be had, an ordinary table stands for a lake's table. It stays empty.
CREATE FUNCTION pgtrickle._standin_guard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '%.% stands for a table of a lake', quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Write to the lake itself: with DuckDB, Spark, or a client of Iceberg.';
END
$$;
REVOKE ALL ON FUNCTION pgtrickle._standin_guard() FROM PUBLIC;
COMMENT ON TABLE pgtrickle.pgt_lake_tables IS
    'One row per table, foreign where PostgreSQL lets us, that stands for a table of a lake, so that queries can name it.';
