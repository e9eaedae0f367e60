-- Percentiles and mode
--
-- Ordered-set aggregates, computed by PostgreSQL from the values of each touched group.

-- setup
CREATE TABLE timings (api text, ms int, took interval, outcome text, score numeric(6, 2));
INSERT INTO timings VALUES
    ('get', 10, '1 s', 'ok', 1.5), ('get', 30, '2 s', 'ok', 2.5), ('get', 20, '4 s', 'late', NULL),
    ('put', 5, '1 min', 'late', 9), ('put', NULL, NULL, NULL, 8.25), (NULL, 7, '7 s', 'ok', 0),
    ('get', 30, '2 s', 'ok', 2.5);

-- case: the median
-- Interpolated between the two in the middle.
SELECT api, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS median FROM timings GROUP BY api;

-- case: discrete percentiles
-- Always one of the values, of any type with an order.
SELECT api, percentile_disc(0.5) WITHIN GROUP (ORDER BY outcome) AS outcome,
       percentile_disc(0.9) WITHIN GROUP (ORDER BY score DESC) AS score
FROM timings GROUP BY api;

-- case: several percentiles at once
-- An array of fractions gives an array.
SELECT api, percentile_disc(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY ms) AS quartiles FROM timings GROUP BY api;

-- case: percentiles of intervals
-- Interpolation works on intervals too.
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY took) AS median FROM timings;

-- case: the most frequent value
-- mode(); of equally frequent values the first in order.
SELECT api, mode() WITHIN GROUP (ORDER BY outcome) AS usual FROM timings GROUP BY api;

-- case: percentiles of a part
-- With FILTER.
SELECT api, percentile_cont(0.9) WITHIN GROUP (ORDER BY ms) FILTER (WHERE outcome = 'ok') AS p90 FROM timings
GROUP BY api;

-- case: beside ordinary aggregates
-- Counters and lists of values in one row.
SELECT count(*) AS n, avg(ms) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS median FROM timings;

-- case: HAVING the median
-- Slow interfaces only.
SELECT api FROM timings GROUP BY api HAVING percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) >= 20;

-- case: hypothetical rank
-- Which rank 15 ms would have.
SELECT api, rank(15) WITHIN GROUP (ORDER BY ms) AS would_be FROM timings GROUP BY api;

-- change: new values on both ends
INSERT INTO timings VALUES ('get', 1, '1 ms', 'late', 7), ('put', 100, '1 hour', 'ok', 1),
    ('put', 50, '1 day', 'ok', 1);

-- change: the middle moves
UPDATE timings SET ms = ms * 3, outcome = 'late', took = took * 2 WHERE ms BETWEEN 7 AND 30;

-- change: the middle goes
DELETE FROM timings WHERE ms = 90 OR outcome IS NULL;

-- change: only NULLs
UPDATE timings SET ms = NULL, took = NULL, outcome = NULL, score = NULL;
