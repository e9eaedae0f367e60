-- Generated columns and capture from the WAL.
CREATE OR REPLACE FUNCTION pgtrickle._wal_column_obstacle(source oid, columns jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- PostgreSQL 18 publishes stored columns, if told to. What is not published is an obstacle whether anybody reads it
    -- or not: with such a column, a publication and REPLICA IDENTITY FULL it refuses to update the table. Older versions
    -- publish none and refuse nothing, but one day they are upgraded.
    (SELECT format('column %I of %s is generated', a.attname, pgtrickle._relation_name(a.attrelid))
     FROM pg_attribute a
     WHERE a.attrelid = ANY (pgtrickle._descendants(source)) AND a.attgenerated <> '' AND NOT a.attisdropped
       AND (current_setting('server_version_num')::int < 180000 OR a.attgenerated = 'v'
            OR EXISTS (SELECT FROM pg_publication p WHERE p.pubname = 'runnel' AND to_jsonb(p) ->> 'pubgencols' = 'n'))
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
