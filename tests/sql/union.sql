-- UNION and UNION ALL
--
-- UNION ALL adds up, UNION keeps a row while any member has it.

-- setup
CREATE TABLE staff (id int, name text, site text);
CREATE TABLE guests (id int, name text, host int);
INSERT INTO staff VALUES (1, 'ann', 'x'), (2, 'bob', 'y'), (2, 'bob', 'y'), (3, NULL, 'x');
INSERT INTO guests VALUES (1, 'ann', 2), (7, 'zoe', 1), (8, NULL, NULL);

-- case: UNION ALL
-- Rows of both, as often as they are there.
SELECT id, name FROM staff UNION ALL SELECT id, name FROM guests;

-- case: UNION
-- Every row once.
SELECT id, name FROM staff UNION SELECT id, name FROM guests;

-- case: types are made equal
-- PostgreSQL finds the common type of the members.
SELECT id AS v FROM staff UNION ALL SELECT 1.25 * host FROM guests;

-- case: a label for each member
-- Constants tell where a row comes from.
SELECT 'staff' AS kind, name FROM staff UNION SELECT 'guest', name FROM guests;

-- case: three members, mixed
-- UNION of a UNION ALL.
(SELECT name FROM staff UNION ALL SELECT name FROM guests) UNION SELECT site FROM staff;

-- case: groups over a union
-- Counting over both tables.
SELECT name, count(*) AS n, count(DISTINCT kind) AS kinds
FROM (SELECT name, 's' AS kind FROM staff UNION ALL SELECT name, 'g' FROM guests) u GROUP BY name;

-- case: a union of groups
-- Each member has state of its own.
SELECT site AS k, count(*) AS n FROM staff GROUP BY site UNION ALL SELECT name, max(host) FROM guests GROUP BY name;

-- case: a union joined with a table
-- The union is one side of a join.
SELECT u.name, s.site FROM (SELECT id, name FROM guests UNION SELECT host, 'host of ' || name FROM guests) u
JOIN staff s ON s.id = u.id;

-- case: the same table twice
-- A change reaches the result through both members.
SELECT name FROM staff WHERE site = 'x' UNION ALL SELECT name FROM staff WHERE id < 3;

-- case: a member that is a join
-- Joins inside a member.
SELECT s.name FROM staff s JOIN guests g ON g.host = s.id UNION SELECT name FROM guests WHERE host IS NULL;

-- case: constants and VALUES
-- Rows that are always there.
SELECT name FROM staff UNION SELECT 'nobody' UNION ALL VALUES ('somebody'), ('somebody');

-- change: the same row on both sides
INSERT INTO staff VALUES (7, 'zoe', 'y');
INSERT INTO guests VALUES (2, 'bob', 7);

-- change: one of them goes, the row stays
DELETE FROM staff WHERE name = 'ann';
UPDATE guests SET host = 3, name = COALESCE(name, 'may') WHERE id > 6;

-- change: the other goes as well
DELETE FROM guests WHERE name = 'ann' OR host = 7;
UPDATE staff SET site = 'z', name = 'bo' WHERE name = 'bob';

-- change: one member is empty
DELETE FROM staff;
