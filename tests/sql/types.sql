-- Types
--
-- Whatever PostgreSQL can store can be a column of a stream table and, where it has equality, a join key or a group.

-- setup
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (x int, y text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE things (
    id positive, m mood, u uuid, doc jsonb, raw json, arr int[], bin bytea, span int4range, at timestamptz,
    local timestamp,
    day date, clock time, gap interval, addr inet, p pair, pt point, b bit varying(8)
);
INSERT INTO things VALUES
    (1, 'ok', '11111111-1111-1111-1111-111111111111', '{"a": 1, "b": [1, 2]}', '{"z":1,  "a":2}', '{1,2}', '\x00ff',
    '[1,5)', '2026-03-29 01:30+00',
     '2026-03-29 02:30', '2026-03-29', '23:59:59.999999', '1 mon -1 day', '10.0.0.1', '(1,one)', '(1,2)', B'101'),
    (2, 'sad', '22222222-2222-2222-2222-222222222222', '{"a": 1.0, "b": []}', 'null', '{}', '', 'empty', '-infinity',
    'infinity',
     '0044-03-15 BC', '00:00', '-00:00:01', '10.0.0.0/8', '(,)', '(0,-1)', B''),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

-- case: all types as they are
-- A copy of everything, also of types without equality (json, point).
SELECT * FROM things;

-- case: enums
-- Order and equality of enums are those of their definition.
SELECT m, count(*) AS n, max(id) AS last FROM things WHERE m IS NULL OR m < 'happy' GROUP BY m;

-- case: uuid and bytea as keys
-- A self join by both.
SELECT a.id, b.id AS other FROM things a JOIN things b ON b.u = a.u AND b.bin = a.bin;

-- case: jsonb
-- Fields, containment and equality of documents.
SELECT id, doc -> 'b' AS b, (doc ->> 'a')::numeric AS a FROM things WHERE doc @> '{"a": 1}';

-- case: jsonb as a key
-- Documents are equal when their values are: 1 and 1.0 are one group.
SELECT count(*) AS n, count(DISTINCT doc -> 'b') AS bs FROM things GROUP BY doc -> 'a';

-- case: arrays
-- As group and as key.
SELECT arr, count(*) AS n, min(arr[1]) AS first FROM things GROUP BY arr;

-- case: ranges
-- Containment in a join.
SELECT a.id, b.id AS inside FROM things a JOIN things b ON a.span @> b.id::int;

-- case: moments
-- Parts, truncation, time zones.
SELECT id, at AT TIME ZONE 'Europe/Rome' AS rome, date_trunc('day', local) AS day, clock + gap AS later FROM things
WHERE isfinite(local) OR local IS NULL;

-- case: intervals as a group
-- 30 days equal a month.
SELECT gap >= '1 day' AS long, count(*) AS n, max(gap) AS most FROM things GROUP BY 1;

-- case: addresses and bits
-- Types from the far corners.
SELECT id, host(addr) AS host, masklen(addr) AS len, b::text AS bits
FROM things WHERE addr > '9.0.0.0' OR family(addr) = 6;

-- case: networks inside networks
-- Containment of networks has a sign of its own.
SELECT id, addr FROM things WHERE addr <<= '10.0.0.0/8';

-- case: rows
-- Composite types and their fields.
SELECT id, p, (p).x AS x, (p).y AS y FROM things WHERE p IS DISTINCT FROM ROW(1, 'one')::pair;

-- case: domains
-- A domain behaves as its base type.
SELECT id + 1 AS next, count(*) AS n FROM things GROUP BY id;

-- change: copies of the first, with other values here and there
INSERT INTO things
SELECT 4, 'happy', u, doc || '{"b": "text"}', raw, arr || 3, bin, '[2,9]', at + interval '1 hour', local, day, clock,
       '31 days', addr, p, pt, b FROM things WHERE id = 1;
INSERT INTO things
SELECT 5, 'ok', u, doc, '{"z": 1}', arr, bin, span, at, local, day, clock, gap, '10.1.0.0/16', '(2,"a,b")', '(1,2)', b
FROM things WHERE id = 1;

-- change: NULLs get values, values get NULL
UPDATE things
SET m = 'sad', u = '22222222-2222-2222-2222-222222222222', doc = '{"a": 1}', bin = '', span = '(,)', gap = '1 day',
    addr = '::1', p = '(7,seven)' WHERE id = 3;
UPDATE things SET doc = NULL, arr = NULL, raw = NULL, pt = NULL WHERE id = 1;

-- change: rows go
DELETE FROM things WHERE id IN (2, 4);
