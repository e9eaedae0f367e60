-- JSON aggregates
--
-- Documents built from groups.

-- setup
CREATE TABLE props (item int, key text, val text, n int);
INSERT INTO props VALUES (1, 'colour', 'red', 1), (1, 'size', NULL, 2), (2, 'colour', 'blue', NULL),
    (3, 'none', NULL, NULL), (1, 'size', NULL, 2);

-- case: jsonb_agg
-- An array of values, NULLs included.
SELECT item, jsonb_agg(val ORDER BY key, val) AS vals FROM props GROUP BY item;

-- case: jsonb_object_agg
-- An object; keys are unique, the last one in order wins.
SELECT item, jsonb_object_agg(key, val ORDER BY key, val) AS doc FROM props GROUP BY item;

-- case: json_agg
-- The textual type keeps order and duplicates.
SELECT item, json_agg(n ORDER BY n, key) AS ns FROM props GROUP BY item;

-- case: json_object_agg
-- Keys appear as often as rows.
SELECT item, json_object_agg(key, n ORDER BY key, n) AS doc FROM props GROUP BY item;

-- case: documents inside
-- Objects as elements.
SELECT item, jsonb_agg(jsonb_build_object('k', key, 'v', val) ORDER BY key, val) AS docs FROM props GROUP BY item;

-- case: FILTER instead of null elements
-- Only properties with a value.
SELECT item, jsonb_object_agg(key, val) FILTER (WHERE val IS NOT NULL) AS doc FROM props GROUP BY item;

-- case: strict variants
-- They leave NULLs out by themselves.
SELECT item, jsonb_agg_strict(val ORDER BY key, val) AS vals, jsonb_object_agg_strict(key, val ORDER BY key, val) AS doc
FROM props GROUP BY item;

-- case: standard JSON_ARRAYAGG and JSON_OBJECTAGG
-- The spelling of the SQL standard: an array leaves NULLs out by itself, an object keeps them.
SELECT item, JSON_ARRAYAGG(val ORDER BY key, val RETURNING jsonb) AS vals,
       JSON_OBJECTAGG(key : n RETURNING jsonb) AS doc
FROM props WHERE n IS NOT NULL OR key = 'none' GROUP BY item;

-- case: JSON_ARRAYAGG in all its forms
-- With NULLs, with a FILTER, as text, and of documents that are text.
SELECT item, JSON_ARRAYAGG(val ORDER BY key, val NULL ON NULL) AS vals,
       JSON_ARRAYAGG(n ORDER BY n RETURNING text) FILTER (WHERE n > 1) AS big,
       JSON_ARRAYAGG('[1]' || repeat(' ', n) FORMAT JSON ORDER BY n RETURNING jsonb) AS docs
FROM props GROUP BY item;

-- case: JSON_OBJECTAGG without NULLs
-- ABSENT ON NULL, and keys that must be unique (two of them would be an error).
SELECT item, JSON_OBJECTAGG(key : val ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb) AS doc
FROM (SELECT DISTINCT item, key, val FROM props) d GROUP BY item;

-- case: JSON_ARRAYAGG as a window function
-- Everything up to here.
SELECT item, key, n, JSON_ARRAYAGG(n) OVER (PARTITION BY item ORDER BY key, n, val) AS so_far FROM props;

-- case: JSON_ARRAY of a query
-- A subquery that makes an array; PostgreSQL gives NULL when it has no rows.
SELECT i.item, JSON_ARRAY(SELECT p.val FROM props p WHERE p.item = i.item AND p.val <> 'red' ORDER BY p.val, p.key) AS vals
FROM (SELECT DISTINCT item FROM props) i;

-- case: one document for the whole table
-- A document of documents.
SELECT jsonb_object_agg(item, doc) AS all_items
FROM (SELECT item, jsonb_object_agg(key, val ORDER BY key, val) AS doc FROM props GROUP BY item) g;

-- change: more properties
INSERT INTO props VALUES (2, 'weight', '3', 3), (4, 'colour', 'red', 4);

-- change: values change and appear
UPDATE props SET val = COALESCE(val, 'XL') || '!', n = 7 WHERE key IN ('colour', 'size');

-- change: properties and items go
DELETE FROM props WHERE key = 'size' OR item = 3;
