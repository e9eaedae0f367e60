-- Scalar subqueries
--
-- A subquery as a value: in the select list, in WHERE, in HAVING. No row means NULL.

-- setup
CREATE TABLE emps (id int, name text, dept int, pay int);
CREATE TABLE depts (id int, name text);
CREATE TABLE config (key text PRIMARY KEY, val int);
INSERT INTO emps VALUES (1, 'ann', 1, 100), (2, 'bob', 1, 200), (3, 'cy', 2, 300), (4, 'di', NULL, NULL),
    (3, 'cy', 2, 300);
INSERT INTO depts VALUES (1, 'lab'), (2, 'shop'), (3, 'attic');
INSERT INTO config VALUES ('min_pay', 150);

-- case: in the select list
-- The same total beside every row.
SELECT id, pay, (SELECT sum(pay) FROM emps) AS total FROM emps;

-- case: a share of the total
-- An expression over the row and the subquery.
SELECT id, round(pay * 100.0 / (SELECT sum(pay) FROM emps), 2) AS percent FROM emps;

-- case: in WHERE
-- Above the average; one new row may move all others.
SELECT id, pay FROM emps WHERE pay > (SELECT avg(pay) FROM emps);

-- case: a looked up setting
-- No row gives NULL, and then nothing qualifies.
SELECT id FROM emps WHERE pay >= (SELECT val FROM config WHERE key = 'min_pay');

-- case: correlated in the select list
-- The head count of each department, zero included.
SELECT d.name, (SELECT count(*) FROM emps e WHERE e.dept = d.id) AS heads FROM depts d;

-- case: correlated without COALESCE
-- The best pay, NULL where there is nobody.
SELECT d.name, (SELECT max(e.pay) FROM emps e WHERE e.dept = d.id) AS best FROM depts d;

-- case: correlated in WHERE
-- Above the average of the own department.
SELECT e.id FROM emps e WHERE e.pay > (SELECT avg(f.pay) FROM emps f WHERE f.dept = e.dept);

-- case: a name instead of a number
-- A lookup that finds at most one row.
SELECT e.id, (SELECT min(d.name) FROM depts d WHERE d.id = e.dept) AS dept FROM emps e;

-- case: in HAVING
-- Departments that earn more than the average department.
SELECT dept, sum(pay) AS pay FROM emps GROUP BY dept HAVING sum(pay) > (SELECT avg(pay) FROM emps);

-- case: in an aggregate's argument
-- Deviation from the mean, added up.
SELECT dept, sum(abs(pay - (SELECT avg(pay) FROM emps))) AS deviation FROM emps GROUP BY dept;

-- case: two of them in one expression
-- Range of the pay.
SELECT d.id, (SELECT max(pay) FROM emps) - (SELECT min(pay) FROM emps) AS range FROM depts d;

-- case: inside CASE and COALESCE
-- Evaluated per row.
SELECT d.name,
       CASE WHEN (SELECT count(*) FROM emps e WHERE e.dept = d.id) = 0 THEN 'empty'
            ELSE COALESCE((SELECT min(e.name) FROM emps e WHERE e.dept = d.id), '?') END AS first
FROM depts d;

-- case: latest by ORDER BY and LIMIT
-- The best paid of a department.
SELECT d.name, (SELECT e.name FROM emps e WHERE e.dept = d.id ORDER BY e.pay DESC NULLS LAST, e.name LIMIT 1) AS best
FROM depts d;

-- case: any row will do
-- LIMIT 1 without ORDER BY: the tie rule chooses the row.
SELECT d.id, (SELECT e.name FROM emps e WHERE e.dept = d.id LIMIT 1) AS somebody,
       (SELECT name FROM emps WHERE pay > 100 LIMIT 1) AS well_paid
FROM depts d;

-- change: a first and a best one
INSERT INTO emps VALUES (5, 'ed', 3, 50), (6, 'flo', 1, 900);

-- change: settings and departments change
UPDATE config SET val = 60;
UPDATE emps SET dept = 2, pay = pay + 10 WHERE dept = 1;

-- change: the setting goes, and the last of a department
DELETE FROM config;
DELETE FROM emps WHERE dept = 3 OR id = 6;

-- change: nobody
DELETE FROM emps;
