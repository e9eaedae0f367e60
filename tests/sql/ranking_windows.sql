-- Ranking windows
--
-- Numbers by order within a partition. Only touched partitions are computed again.

-- setup
CREATE TABLE results (id int, race text, runner text, secs int);
INSERT INTO results VALUES (1, 'a', 'ann', 50), (2, 'a', 'bob', 45), (3, 'a', 'cy', 50), (4, 'b', 'ann', 60),
    (5, 'b', 'dee', NULL), (6, NULL, 'ed', 10), (7, NULL, 'flo', 12);
CREATE TABLE races (race text, title text);
INSERT INTO races VALUES ('a', 'sprint'), ('b', 'hurdles');

-- case: row_number
-- A number without gaps; the order must be complete.
SELECT id, row_number() OVER (PARTITION BY race ORDER BY secs, id) AS n FROM results;

-- case: rank and dense_rank
-- Ties share a rank, with and without gaps after them.
SELECT id, rank() OVER (PARTITION BY race ORDER BY secs) AS rank,
       dense_rank() OVER (PARTITION BY race ORDER BY secs) AS dense FROM results;

-- case: shares
-- percent_rank and cume_dist.
SELECT id, percent_rank() OVER (PARTITION BY race ORDER BY secs) AS pr,
       cume_dist() OVER (PARTITION BY race ORDER BY secs) AS cd FROM results;

-- case: ntile
-- Two halves of each race.
SELECT id, ntile(2) OVER (PARTITION BY race ORDER BY secs NULLS FIRST, id) AS half FROM results;

-- case: without PARTITION BY
-- The whole table is one partition.
SELECT id, rank() OVER (ORDER BY secs DESC NULLS LAST) AS rank FROM results;

-- case: the winner of each race
-- A filter over a window in a subquery.
SELECT race, runner FROM (SELECT race, runner, rank() OVER (PARTITION BY race ORDER BY secs) AS r FROM results) x
WHERE r = 1;

-- case: an open order
-- Ties in row_number are broken by the other columns, as the recorded query says.
SELECT id, race, runner, row_number() OVER (PARTITION BY race ORDER BY secs) AS n FROM results;

-- case: partition by an expression
-- And by two columns.
SELECT id, row_number() OVER (PARTITION BY race, secs > 48 ORDER BY id) AS n FROM results;

-- case: rank over a join
-- The window is computed after the join.
SELECT c.title, r.runner, rank() OVER (PARTITION BY c.title ORDER BY r.secs) AS rank FROM races c
JOIN results r ON r.race = c.race;

-- case: rank of groups
-- A window over aggregates.
SELECT race, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS by_size FROM results GROUP BY race;

-- case: count per rank
-- Aggregates over a window.
SELECT r, count(*) AS n FROM (SELECT rank() OVER (PARTITION BY race ORDER BY secs) AS r FROM results) x GROUP BY r;

-- change: a new winner and a tie
INSERT INTO results VALUES (8, 'a', 'gus', 44), (9, 'b', 'gus', 60);

-- change: times and races change
UPDATE results SET secs = CASE WHEN secs IS NULL THEN 55 ELSE secs + 3 END WHERE id IN (2, 5);
UPDATE results SET race = 'b' WHERE id = 1;

-- change: the winner is disqualified
DELETE FROM results WHERE id = 8 OR race IS NULL;
UPDATE races SET title = 'sprint' WHERE race = 'b';

-- change: a race is cancelled
DELETE FROM results WHERE race = 'b';
