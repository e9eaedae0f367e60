-- Filters and expressions
--
-- PostgreSQL evaluates every expression, so whatever it can compute from one row can be filtered by and shown.

-- setup
CREATE TABLE parcels (id int, dest text, weight numeric(8, 2), price int, sent date, tags text[]);
INSERT INTO parcels VALUES
    (1, 'Oslo', 1.50, 10, '2026-01-05', '{fragile}'),
    (2, 'Oslo', 0.25, 3, '2026-01-06', '{}'),
    (3, 'Rome', NULL, 7, '2026-02-01', NULL),
    (4, NULL, 12.00, NULL, NULL, '{fragile,heavy}'),
    (4, NULL, 12.00, NULL, NULL, '{fragile,heavy}'),
    (5, 'Bergen', 3.10, 15, '2026-02-28', '{heavy}');

-- case: all rows as they are
-- A stream table holds duplicates exactly as often as the query returns them.
SELECT id, dest, weight, price, sent, tags FROM parcels;

-- case: a plain comparison
-- A row enters and leaves when its value crosses the bound; a NULL weight never qualifies.
SELECT id, weight FROM parcels WHERE weight > 2;

-- case: arithmetic and concatenation
-- Computed columns follow the columns they are computed from.
SELECT id, price * 2 + 1 AS doubled, dest || ' (' || id || ')' AS label FROM parcels;

-- case: CASE and COALESCE
-- Classes are recomputed when the weight changes.
SELECT id, CASE WHEN weight < 1 THEN 'letter' WHEN weight < 5 THEN 'parcel' ELSE 'freight' END AS class,
       COALESCE(dest, 'unknown') AS dest
FROM parcels;

-- case: IN a list
-- A list of constants is an ordinary filter.
SELECT id, dest FROM parcels WHERE dest IN ('Oslo', 'Rome');

-- case: BETWEEN and LIKE
-- Ranges and patterns are evaluated by PostgreSQL.
SELECT id, dest, price FROM parcels WHERE price BETWEEN 5 AND 15 AND dest LIKE '%e%';

-- case: OR and NOT
-- Boolean combinations keep SQL's three values.
SELECT id FROM parcels WHERE NOT (dest = 'Oslo' OR price < 10);

-- case: arrays in a filter
-- Operators of arrays work like any other.
SELECT id, cardinality(tags) AS tags FROM parcels WHERE tags @> '{heavy}' OR tags = '{}';

-- case: dates
-- Parts of dates and date arithmetic.
SELECT id, extract(month FROM sent)::int AS month, sent + 14 AS due, date_trunc('month', sent)::date AS first
FROM parcels WHERE sent < '2026-02-15';

-- case: division guarded by CASE
-- An expression that may fail is only evaluated where the query would evaluate it.
SELECT id, CASE WHEN price <> 0 THEN 100 / price END AS per_hundred FROM parcels;

-- case: regular expressions and functions
-- Any immutable function can be used.
SELECT id, upper(left(dest, 2)) AS code, regexp_replace(dest, '[aeiou]', '*', 'g') AS masked
FROM parcels WHERE dest ~ '^[A-P]';

-- case: a constant column and ORDER BY
-- ORDER BY without LIMIT has no effect: a table has no order.
SELECT 'parcel' AS kind, id FROM parcels WHERE price IS NOT NULL ORDER BY price DESC;

-- change: new rows, one of them a duplicate
INSERT INTO parcels VALUES (6, 'Rome', 5.00, 0, '2026-02-10', '{heavy}'), (2, 'Oslo', 0.25, 3, '2026-01-06', '{}');

-- change: values cross bounds, NULLs come and go
UPDATE parcels
SET weight = CASE WHEN weight IS NULL THEN 2.5 WHEN id = 1 THEN NULL ELSE weight + 1 END, price = price - 5;

-- change: one of two equal rows goes
DELETE FROM parcels WHERE ctid IN (SELECT ctid FROM parcels WHERE id = 4 LIMIT 1);

-- change: everything moves to Paris, then the rest is deleted
UPDATE parcels SET dest = 'Paris', sent = sent + 60, tags = tags || '{heavy}' WHERE id < 4;
DELETE FROM parcels WHERE dest IS DISTINCT FROM 'Paris';
