-- Self joins and joins of three and more tables
--
-- One change reaches a query through several of its tables; deletes on all sides at once must not be counted twice.

-- setup
CREATE TABLE staff (id int, name text, boss int, dept int);
CREATE TABLE depts (id int, name text, site int);
CREATE TABLE sites (id int, name text);
INSERT INTO staff VALUES
    (1, 'Ada', NULL, 1), (2, 'Ben', 1, 1), (3, 'Cy', 1, 2), (4, 'Di', 2, 2), (5, 'Ed', 2, NULL), (4, 'Di', 2, 2);
INSERT INTO depts VALUES (1, 'sales', 1), (2, 'lab', 2), (3, 'attic', NULL);
INSERT INTO sites VALUES (1, 'north'), (2, 'south');

-- case: everyone with their boss
-- The table joined with itself.
SELECT s.name, b.name AS boss FROM staff s JOIN staff b ON b.id = s.boss;

-- case: the top is padded
-- A self outer join.
SELECT s.name, b.name AS boss FROM staff s LEFT JOIN staff b ON b.id = s.boss;

-- case: boss of the boss
-- Three times the same table.
SELECT s.name, bb.name AS top FROM staff s JOIN staff b ON b.id = s.boss JOIN staff bb ON bb.id = b.boss;

-- case: colleagues
-- Pairs of one department, each pair once.
SELECT a.name, b.name AS colleague FROM staff a JOIN staff b ON a.dept = b.dept AND a.id < b.id;

-- case: three tables in a row
-- A delta in the middle table reaches both neighbours.
SELECT s.name, d.name AS dept, t.name AS site
FROM staff s JOIN depts d ON d.id = s.dept JOIN sites t ON t.id = d.site;

-- case: three tables in a triangle
-- Boss and employee in departments of the same site.
SELECT s.name, b.name AS boss, d.site
FROM staff s JOIN staff b ON b.id = s.boss JOIN depts d ON d.id = s.dept
JOIN depts e ON e.id = b.dept AND e.site = d.site;

-- case: a chain padded at both joins
-- Deletes in depts pad staff, deletes in sites pad departments.
SELECT s.name, d.name AS dept, t.name AS site
FROM staff s LEFT JOIN depts d ON d.id = s.dept LEFT JOIN sites t ON t.id = d.site;

-- case: a FULL chain
-- Empty departments and empty sites appear too.
SELECT s.name, d.name AS dept, t.name AS site
FROM staff s FULL JOIN depts d ON d.id = s.dept FULL JOIN sites t ON t.id = d.site;

-- case: a self join of groups
-- Departments compared with each other by size.
SELECT a.dept, b.dept AS larger
FROM (SELECT dept, count(*) AS n FROM staff GROUP BY dept) a
JOIN (SELECT dept, count(*) AS n FROM staff GROUP BY dept) b ON b.n > a.n;

-- case: headcount per site
-- A group over three joined tables.
SELECT t.name, count(*) AS heads, count(DISTINCT d.id) AS depts
FROM sites t JOIN depts d ON d.site = t.id JOIN staff s ON s.dept = d.id GROUP BY t.name;

-- change: a department moves and its people change boss
UPDATE depts SET site = 1 WHERE id = 2;
UPDATE staff SET boss = 3, dept = 2 WHERE id IN (2, 5);

-- change: matching rows of all three tables go at once
DELETE FROM staff WHERE id = 3;
DELETE FROM depts WHERE id = 1;
DELETE FROM sites WHERE id = 1;

-- change: and come back, with a duplicate site
INSERT INTO sites VALUES (1, 'north'), (1, 'northern');
INSERT INTO depts VALUES (1, 'sales', 2);
INSERT INTO staff VALUES (3, 'Cyd', 3, 3);

-- change: ids are swapped
UPDATE staff SET id = CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE id END;
UPDATE depts SET id = 4 - id;
