-- FILTER
--
-- An aggregate that looks at some rows of its group only.

-- setup
CREATE TABLE tickets (team text, state text, hours numeric(5, 1), opened date);
INSERT INTO tickets VALUES
    ('a', 'open', 1.0, '2026-01-01'), ('a', 'done', 2.5, '2026-01-02'), ('a', 'done', 2.5, '2026-01-02'),
    ('b', 'open', NULL, NULL),
    ('b', NULL, 4.0, '2026-01-05'), (NULL, 'done', 3.0, '2026-02-01');

-- case: counts by state
-- A pivot with FILTER.
SELECT team, count(*) AS n, count(*) FILTER (WHERE state = 'open') AS open,
       count(*) FILTER (WHERE state = 'done') AS done
FROM tickets GROUP BY team;

-- case: sums that may have no rows
-- A group whose rows all fail the filter gets NULL.
SELECT team, sum(hours) FILTER (WHERE state = 'done') AS done_hours, avg(hours) FILTER (WHERE hours > 2) AS long
FROM tickets GROUP BY team;

-- case: extremes of a part
-- min and max with a condition.
SELECT team, min(opened) FILTER (WHERE state = 'open') AS oldest_open, max(hours) FILTER (WHERE state <> 'open') AS most
FROM tickets GROUP BY team;

-- case: distinct values of a part
-- DISTINCT and FILTER together.
SELECT count(DISTINCT team) FILTER (WHERE state = 'done') AS teams_done, count(DISTINCT state) AS states FROM tickets;

-- case: a share
-- Ratio of two filtered counts.
SELECT team, round(100.0 * count(*) FILTER (WHERE state = 'done') / count(*), 1) AS percent FROM tickets GROUP BY team;

-- case: HAVING with FILTER
-- Teams with open tickets.
SELECT team FROM tickets GROUP BY team HAVING count(*) FILTER (WHERE state = 'open') > 0;

-- case: conditions over two columns
-- Any expression over the row.
SELECT team, bool_or(hours > 2) FILTER (WHERE opened < '2026-01-15' AND state IS NOT NULL) AS early_long FROM tickets
GROUP BY team;

-- case: FILTER over a join
-- Conditions over both tables.
SELECT a.team, count(*) FILTER (WHERE b.hours > a.hours) AS pairs_longer, count(*) AS pairs
FROM tickets a JOIN tickets b ON b.team = a.team GROUP BY a.team;

-- change: new tickets
INSERT INTO tickets VALUES ('b', 'done', 8.0, '2026-01-09'), ('c', 'open', 0.5, '2026-01-10');

-- change: work is done, other work is opened again
UPDATE tickets
SET state = CASE state WHEN 'open' THEN 'done' WHEN 'done' THEN 'open' ELSE 'open' END, hours = hours + 1;

-- change: done is archived
DELETE FROM tickets WHERE state = 'done';

-- change: a team leaves
UPDATE tickets SET team = NULL WHERE team = 'a';
