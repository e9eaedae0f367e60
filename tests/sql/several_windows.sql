-- Named and several windows
--
-- Windows over different partitions in one query, and windows that build on each other.

-- setup
CREATE TABLE staff (id int, dept text, site text, pay int);
INSERT INTO staff VALUES (1, 'lab', 'n', 10), (2, 'lab', 's', 20), (3, 'shop', 'n', 15), (4, 'shop', 's', 15),
    (5, NULL, 'n', NULL), (6, 'lab', NULL, 30);

-- case: WINDOW clause
-- One window, used twice.
SELECT id, rank() OVER w AS rank, sum(pay) OVER w AS total FROM staff WINDOW w AS (PARTITION BY dept ORDER BY pay);

-- case: a window that refines another
-- Order added to a named partition.
SELECT id, count(*) OVER d AS heads, row_number() OVER (d ORDER BY pay, id) AS n FROM staff
WINDOW d AS (PARTITION BY dept);

-- case: two partitions
-- A change touches a partition of each.
SELECT id, sum(pay) OVER (PARTITION BY dept) AS dept_pay, sum(pay) OVER (PARTITION BY site) AS site_pay FROM staff;

-- case: a partition and the whole
-- Share of the department and of everything.
SELECT id, pay * 100 / NULLIF(sum(pay) OVER (PARTITION BY dept), 0) AS of_dept,
       pay * 100 / NULLIF(sum(pay) OVER (), 0) AS of_all FROM staff;

-- case: two orders
-- Up and down in one query.
SELECT id, rank() OVER (ORDER BY pay) AS up, rank() OVER (ORDER BY pay DESC) AS down FROM staff;

-- case: a window over a window
-- Ranks of department totals.
SELECT id, total, dense_rank() OVER (ORDER BY total DESC) AS place
FROM (SELECT id, sum(pay) OVER (PARTITION BY dept) AS total FROM staff) t;

-- case: windows in an expression
-- Distance to the best of the department.
SELECT id, max(pay) OVER (PARTITION BY dept) - pay AS to_best, pay > avg(pay) OVER (PARTITION BY site) AS above
FROM staff;

-- case: DISTINCT over windows
-- Applied after the windows.
SELECT DISTINCT dept, count(*) OVER (PARTITION BY dept) AS n FROM staff;

-- case: windows and GROUP BY
-- The share of a group in all groups.
SELECT dept, sum(pay) AS pay, sum(sum(pay)) OVER () AS all_pay FROM staff GROUP BY dept;

-- change: a new one in each
INSERT INTO staff VALUES (7, 'shop', 'n', 40), (8, NULL, 's', 5);

-- change: moves and raises
UPDATE staff SET dept = 'shop', site = 's', pay = pay + 1 WHERE id IN (1, 5);

-- change: the best paid leave
DELETE FROM staff WHERE pay >= 30;

-- change: all in one site
UPDATE staff SET site = 'n', pay = COALESCE(pay, 2);
