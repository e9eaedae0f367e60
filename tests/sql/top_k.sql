-- Top-k: ORDER BY with LIMIT, OFFSET and WITH TIES
--
-- The first rows only. When one of them goes, the next one moves up.

-- setup
CREATE TABLE scores (id int, player text, points int, at date);
INSERT INTO scores VALUES
    (1, 'ann', 50, '2026-01-01'), (2, 'bob', 70, '2026-01-02'), (3, 'cy', 70, '2026-01-03'),
    (4, 'dee', NULL, '2026-01-04'), (5, 'ed', 20, NULL), (6, 'flo', 60, '2026-01-06');
CREATE TABLE players (player text, team text);
INSERT INTO players VALUES ('ann', 'x'), ('bob', 'x'), ('cy', 'y'), ('gus', 'y');

-- case: the best three
-- Descending, NULLs last, ties broken by id.
SELECT id, player, points FROM scores ORDER BY points DESC NULLS LAST, id LIMIT 3;

-- case: NULLs first
-- Descending order puts NULLs first unless told otherwise.
SELECT id, points FROM scores ORDER BY points DESC, id LIMIT 2;

-- case: OFFSET
-- The second page of two.
SELECT id, points FROM scores ORDER BY points DESC NULLS LAST, id OFFSET 2 LIMIT 2;

-- case: OFFSET without LIMIT
-- All but the first.
SELECT id FROM scores ORDER BY id OFFSET 1;

-- case: WITH TIES
-- All rows equal to the last one that fits.
SELECT id, points FROM scores ORDER BY points DESC NULLS LAST FETCH FIRST 1 ROW WITH TIES;

-- case: an open order
-- Two players have 70 points; which one is kept is decided by the other columns, as the recorded query says.
SELECT player, points FROM scores ORDER BY points DESC NULLS LAST LIMIT 1;

-- case: by an expression that is not shown
-- Order by something else.
SELECT player FROM scores ORDER BY length(player), player DESC FETCH FIRST 2 ROWS ONLY;

-- case: of a filter
-- Top-k of qualifying rows.
SELECT id, points FROM scores WHERE at >= '2026-01-02' ORDER BY points, id LIMIT 2;

-- case: of groups
-- The best team.
SELECT p.team, sum(s.points) AS points FROM scores s JOIN players p ON p.player = s.player GROUP BY p.team
ORDER BY sum(s.points) DESC NULLS LAST, p.team LIMIT 1;

-- case: in a subquery
-- The sum of the best three.
SELECT sum(points) AS best_three FROM (SELECT points FROM scores ORDER BY points DESC NULLS LAST, id LIMIT 3) t;

-- case: joined afterwards
-- Teams of the best two.
SELECT t.player, p.team FROM (SELECT player FROM scores ORDER BY points DESC NULLS LAST, id LIMIT 2) t
LEFT JOIN players p ON p.player = t.player;

-- case: of a union
-- Names from both tables.
SELECT player FROM scores UNION SELECT player FROM players ORDER BY 1 DESC LIMIT 3;

-- case: LIMIT over one row
-- There is nothing to choose, so it needs no ORDER BY.
SELECT count(*) AS n, max(points) AS most FROM scores LIMIT 10;

-- case: LIMIT over a join of one row each
-- Neither here.
SELECT a.n, b.teams FROM (SELECT count(*) AS n FROM scores) a, (SELECT count(DISTINCT team) AS teams FROM players) b LIMIT 3;

-- change: a new best, a tie, and rows beyond the bound
INSERT INTO scores VALUES (7, 'gus', 90, '2026-01-07'), (8, 'hal', 60, '2026-01-08'), (9, 'ida', 1, '2026-01-09');

-- change: the best fall back
UPDATE scores SET points = 10 WHERE points >= 70;

-- change: the first rows go
DELETE FROM scores WHERE points = 60 OR id = 1;
UPDATE players SET team = 'x' WHERE player = 'cy';

-- change: fewer rows than the limit
DELETE FROM scores WHERE id > 4;
