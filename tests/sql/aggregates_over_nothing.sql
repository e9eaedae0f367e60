-- Whole-table aggregates, also over nothing
--
-- Without GROUP BY there is always exactly one row, even when no row qualifies.

-- setup
CREATE TABLE readings (sensor int, value numeric(8, 3), ok boolean, note text);
CREATE TABLE sensors (id int, room text);
INSERT INTO sensors VALUES (1, 'hall'), (2, 'attic');

-- case: count of an empty table
-- Zero, not absent.
SELECT count(*) AS n FROM readings;

-- case: all the others are NULL
-- sum, avg, min and max of nothing are NULL.
SELECT sum(value) AS total, avg(value) AS mean, min(value) AS least, max(value) AS most FROM readings;

-- case: a filter that nothing passes
-- The row stays when the last qualifying row goes.
SELECT count(*) AS n, sum(value) AS total FROM readings WHERE value > 100;

-- case: booleans and distinct values
-- bool_and of nothing is NULL, count(DISTINCT) is 0.
SELECT bool_and(ok) AS all_ok, bool_or(ok) AS any_ok, count(DISTINCT note) AS notes FROM readings;

-- case: the total of a join
-- One row, whatever joins.
SELECT count(*) AS n, max(s.room) AS room FROM readings r JOIN sensors s ON s.id = r.sensor;

-- case: COALESCE makes it a zero
-- An expression over the aggregates of nothing.
SELECT COALESCE(sum(value), 0) AS total, count(*) = 0 AS empty FROM readings;

-- case: HAVING without GROUP BY
-- The one row is there or not.
SELECT sum(value) AS total FROM readings HAVING count(*) > 1;

-- case: no columns of the table at all
-- A constant and a count.
SELECT 'readings' AS what, count(*) AS n FROM readings;

-- case: GROUP BY over nothing has no rows
-- Unlike a whole-table aggregate.
SELECT sensor, count(*) AS n FROM readings GROUP BY sensor;

-- case: an aggregate of aggregates
-- The mean of the sensors' means.
SELECT avg(mean) AS mean, count(*) AS sensors FROM (SELECT sensor, avg(value) AS mean FROM readings GROUP BY sensor) g;

-- case: two whole-table aggregates joined
-- A cross join of single rows is a single row.
SELECT r.n AS readings, s.n AS sensors FROM (SELECT count(*) AS n FROM readings) r
CROSS JOIN (SELECT count(*) AS n FROM sensors) s;

-- change: the first rows
INSERT INTO readings VALUES (1, 20.5, true, 'a'), (2, 120.25, false, 'b'), (2, NULL, NULL, 'b'), (7, 1.125, true, NULL);

-- change: values change
UPDATE readings SET value = value + 100, ok = NOT ok;
DELETE FROM sensors WHERE id = 1;

-- change: back to nothing
DELETE FROM readings;

-- change: a row of NULLs only
INSERT INTO readings VALUES (NULL, NULL, NULL, NULL);
