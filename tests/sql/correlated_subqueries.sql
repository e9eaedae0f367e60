-- Correlated subqueries
--
-- The subquery sees the outer row, by equality or by any other comparison.

-- setup
CREATE TABLE stays (id int, room text, from_day int, to_day int, paid numeric(6, 2));
CREATE TABLE rates (room text, since int, rate int);
INSERT INTO stays VALUES (1, 'a', 1, 5, 10), (2, 'a', 4, 8, NULL), (3, 'b', 2, 3, 7.5), (4, NULL, 3, 4, 1),
    (3, 'b', 2, 3, 7.5);
INSERT INTO rates VALUES ('a', 1, 10), ('a', 4, 20), ('b', 1, 5), ('b', 3, NULL), (NULL, 1, 1);

-- case: the rate of the day
-- Non-equality correlation: the latest rate that is not in the future.
SELECT s.id, (SELECT max(r.since) FROM rates r WHERE r.room = s.room AND r.since <= s.from_day) AS since FROM stays s;

-- case: overlapping stays
-- Another stay in the same room at the same time.
SELECT s.id FROM stays s
WHERE EXISTS (SELECT FROM stays t
              WHERE t.room = s.room AND t.id <> s.id AND t.from_day < s.to_day AND t.to_day > s.from_day);

-- case: earlier stays
-- Counting by inequality alone.
SELECT s.id, (SELECT count(*) FROM stays t WHERE t.from_day < s.from_day) AS earlier FROM stays s;

-- case: running total
-- The sum of everything up to this row.
SELECT s.id, s.from_day, (SELECT sum(t.paid) FROM stays t WHERE t.from_day <= s.from_day) AS so_far FROM stays s;

-- case: NULLs on purpose
-- IS NOT DISTINCT FROM as the correlation.
SELECT s.id, (SELECT sum(r.rate) FROM rates r WHERE r.room IS NOT DISTINCT FROM s.room) AS rates FROM stays s;

-- case: an expression of the outer row inside
-- The outer value is part of the aggregate.
SELECT s.id, (SELECT sum(r.rate * (s.to_day - s.from_day)) FROM rates r WHERE r.room = s.room) AS price FROM stays s;

-- case: a correlated filter with OR
-- Either the same room or no room at all.
SELECT s.id, (SELECT count(*) FROM rates r WHERE r.room = s.room OR r.room IS NULL) AS n FROM stays s;

-- case: in WHERE by inequality
-- Paid less than some rate since then.
SELECT s.id FROM stays s WHERE s.paid < (SELECT max(r.rate) FROM rates r WHERE r.since >= s.from_day);

-- case: correlated over an aggregate outside
-- The subquery is correlated with a group.
SELECT s.room, count(*) AS stays, (SELECT count(*) FROM rates r WHERE r.room = s.room) AS rates FROM stays s
GROUP BY s.room;

-- case: correlated with two outer tables
-- The outer row is a joined one.
SELECT s.id, r.since, (SELECT count(*) FROM stays t WHERE t.room = r.room AND t.from_day >= s.from_day) AS later
FROM stays s JOIN rates r ON r.room = s.room;

-- change: a rate in between and a stay
INSERT INTO rates VALUES ('a', 3, 15), ('b', 2, 6);
INSERT INTO stays VALUES (5, 'b', 1, 9, 99);

-- change: days move
UPDATE stays SET from_day = from_day + 2, paid = COALESCE(paid, 3) WHERE room = 'a';
UPDATE rates SET since = since + 1, rate = COALESCE(rate, 8) WHERE room = 'b';

-- change: rates and stays go
DELETE FROM rates WHERE room = 'a' OR room IS NULL;
DELETE FROM stays WHERE id = 3;

-- change: a room gets its name
UPDATE stays SET room = 'b' WHERE room IS NULL;
