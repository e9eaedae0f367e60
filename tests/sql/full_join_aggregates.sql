-- Full joins under aggregates
--
-- Padding of both sides feeds sums and counts: a row that finds its partner takes two padded rows away and adds one.

-- setup
CREATE TABLE planned (dept text, item text, amount int);
CREATE TABLE actual (dept text, item text, amount int);
INSERT INTO planned VALUES ('a', 'x', 10), ('a', 'y', 20), ('b', 'x', 5), (NULL, 'z', 1), ('b', 'x', 5);
INSERT INTO actual VALUES ('a', 'x', 12), ('c', 'x', 7), (NULL, 'z', 2), ('b', 'w', 3);

-- case: totals per department
-- COALESCE of both keys is the group.
SELECT COALESCE(p.dept, a.dept) AS dept, sum(p.amount) AS planned, sum(a.amount) AS actual, count(*) AS n
FROM planned p FULL JOIN actual a ON a.dept = p.dept AND a.item = p.item
GROUP BY COALESCE(p.dept, a.dept);

-- case: matched, missing and unexpected
-- One row of three counts.
SELECT count(*) FILTER (WHERE p.item IS NOT NULL AND a.item IS NOT NULL) AS matched,
       count(*) FILTER (WHERE a.item IS NULL) AS missing,
       count(*) FILTER (WHERE p.item IS NULL) AS unexpected
FROM planned p FULL JOIN actual a ON a.dept = p.dept AND a.item = p.item;

-- case: aggregates joined with aggregates
-- Both sides are grouped before the full join.
SELECT p.dept AS planned_dept, a.dept AS actual_dept, p.total AS planned, a.total AS actual
FROM (SELECT dept, sum(amount) AS total FROM planned GROUP BY dept) p
FULL JOIN (SELECT dept, sum(amount) AS total FROM actual GROUP BY dept) a ON a.dept = p.dept;

-- case: extremes over padding
-- min and max over values that may all be padding.
SELECT p.dept, min(a.amount) AS least, max(a.amount) AS most
FROM planned p FULL JOIN actual a ON a.dept = p.dept GROUP BY p.dept;

-- case: HAVING keeps departments out of balance
-- The filter looks at both sums.
SELECT COALESCE(p.dept, a.dept) AS dept
FROM planned p FULL JOIN actual a ON a.dept = p.dept AND a.item = p.item
GROUP BY COALESCE(p.dept, a.dept)
HAVING COALESCE(sum(p.amount), 0) <> COALESCE(sum(a.amount), 0);

-- case: distinct items on either side
-- DISTINCT over a full join with USING.
SELECT DISTINCT item FROM planned FULL JOIN actual USING (item);

-- case: a full join of three tables
-- The result of one full join is padded by the next.
SELECT COALESCE(p.item, a.item, b.item) AS item, count(p.item) AS p, count(a.item) AS a, count(b.item) AS b
FROM planned p FULL JOIN actual a ON a.dept = p.dept AND a.item = p.item
FULL JOIN planned b ON b.dept = a.dept
GROUP BY COALESCE(p.item, a.item, b.item);

-- change: a partner for what was only planned
INSERT INTO actual VALUES ('a', 'y', 20), ('b', 'x', 4);

-- change: an item moves to another department on both sides
UPDATE planned SET dept = 'c' WHERE item = 'x' AND dept = 'a';
UPDATE actual SET dept = 'b', amount = amount + 1 WHERE dept = 'c';

-- change: partners go
DELETE FROM actual WHERE dept = 'b';

-- change: the plan is emptied, then a NULL department is planned anew
DELETE FROM planned;
INSERT INTO planned VALUES (NULL, 'z', 3), ('a', 'y', 1);
