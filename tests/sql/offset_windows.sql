-- Offset windows
--
-- Values of neighbouring rows: a change reaches the rows next to it.

-- setup
CREATE TABLE meter (id int, place text, day date, value int);
INSERT INTO meter VALUES
    (1, 'x', '2026-01-01', 10), (2, 'x', '2026-01-02', 15), (3, 'x', '2026-01-04', NULL), (4, 'y', '2026-01-01', 100),
    (5, 'y', NULL, 90), (6, NULL, '2026-01-01', 1);

-- case: lag
-- The value of the row before.
SELECT id, value, lag(value) OVER (PARTITION BY place ORDER BY day, id) AS before FROM meter;

-- case: lead with distance and default
-- Two rows on, or -1.
SELECT id, lead(value, 2, -1) OVER (PARTITION BY place ORDER BY day, id) AS later FROM meter;

-- case: growth
-- An expression over the row and its neighbour.
SELECT id, value - lag(value) OVER (PARTITION BY place ORDER BY day, id) AS growth FROM meter;

-- case: first_value and last_value
-- The first of the partition, and the last of the whole frame.
SELECT id, first_value(value) OVER (PARTITION BY place ORDER BY day, id) AS first,
       last_value(value) OVER (PARTITION BY place ORDER BY day, id
                               ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS last
FROM meter;

-- case: nth_value
-- The second value, NULL before the frame reaches it.
SELECT id, nth_value(value, 2) OVER (PARTITION BY place ORDER BY day, id) AS second FROM meter;

-- case: gaps between days
-- Rows that come more than a day after the one before.
SELECT place, day, gap
FROM (SELECT place, day, day - lag(day) OVER (PARTITION BY place ORDER BY day) AS gap
      FROM meter WHERE day IS NOT NULL) g
WHERE gap > 1;

-- case: islands
-- Sessions: a new one begins after a gap.
SELECT place, session, count(*) AS n, min(day) AS since
FROM (SELECT place, day, sum(CASE WHEN gap > 1 THEN 1 ELSE 0 END) OVER (PARTITION BY place ORDER BY day) AS session
      FROM (SELECT place, day, day - lag(day) OVER (PARTITION BY place ORDER BY day) AS gap
            FROM meter WHERE day IS NOT NULL) g) s
GROUP BY place, session;

-- case: a neighbour by another order
-- Order by value, descending.
SELECT id, lag(id) OVER (ORDER BY value DESC NULLS LAST, id) AS next_higher FROM meter;

-- case: changes only
-- Rows whose value differs from the one before.
SELECT id FROM (SELECT id, value, lag(value) OVER (PARTITION BY place ORDER BY day, id) AS b FROM meter) m
WHERE value IS DISTINCT FROM b;

-- change: a day in between
INSERT INTO meter VALUES (7, 'x', '2026-01-03', 18), (8, 'y', '2026-01-09', 110);

-- change: values and days change
UPDATE meter SET value = COALESCE(value, 20) + 1, day = COALESCE(day, '2026-01-05') WHERE id IN (2, 3, 5);

-- change: rows leave gaps
DELETE FROM meter WHERE id IN (1, 7);

-- change: a place is renamed
UPDATE meter SET place = 'x' WHERE place = 'y';
