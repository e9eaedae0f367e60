-- GROUP BY and HAVING
--
-- A group appears with its first row and goes with its last. Only touched groups are written.

-- setup
CREATE TABLE sales (id int, shop text, day date, qty int, price numeric(6, 2), rate double precision);
INSERT INTO sales VALUES
    (1, 'north', '2026-01-01', 2, 1.50, 0.1), (2, 'north', '2026-01-02', 1, 9.99, 0.2),
    (3, 'south', '2026-01-01', 5, 2.00, 0.3),
    (4, NULL, '2026-01-03', 1, 4.00, NULL), (5, 'east', NULL, NULL, 3.00, 0.5),
    (3, 'south', '2026-01-01', 5, 2.00, 0.3);

-- case: one key
-- Rows, quantity and turnover per shop.
SELECT shop, count(*) AS n, sum(qty) AS qty, sum(qty * price) AS turnover FROM sales GROUP BY shop;

-- case: two keys
-- A group per shop and day.
SELECT shop, day, count(*) AS n FROM sales GROUP BY shop, day;

-- case: a computed key
-- Groups by an expression, named by its position.
SELECT date_trunc('month', day)::date AS month, price > 2.5 AS dear, count(*) AS n FROM sales GROUP BY 1, 2;

-- case: a key that is not shown
-- The key decides, but is no column of the result: equal rows may appear.
SELECT count(*) AS n FROM sales GROUP BY shop;

-- case: averages and extremes
-- avg is exact for numeric, min and max survive the deletion of the extreme row.
SELECT shop, avg(price) AS mean, min(price) AS least, max(price) AS most FROM sales GROUP BY shop;

-- case: floats
-- Sums of floats are recomputed from the values of the group, so that no error builds up.
SELECT shop, sum(rate) AS rate, avg(rate) AS mean FROM sales GROUP BY shop;

-- case: HAVING
-- A group enters and leaves the result as its count crosses the bound.
SELECT shop, count(*) AS n FROM sales GROUP BY shop HAVING count(*) > 1;

-- case: HAVING over another aggregate
-- The condition may use aggregates that are not shown.
SELECT shop FROM sales GROUP BY shop HAVING sum(qty) >= 3 AND max(price) < 5;

-- case: expressions over aggregates
-- Computed from the finished aggregates.
SELECT shop, sum(qty * price) / NULLIF(sum(qty), 0) AS unit_price, count(*) || ' rows' AS label FROM sales
GROUP BY shop;

-- case: a group of groups
-- How many shops have how many sales.
SELECT n, count(*) AS shops FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop) g GROUP BY n;

-- case: filter before grouping
-- WHERE decides what reaches the group.
SELECT shop, sum(qty) AS qty FROM sales WHERE price < 5 GROUP BY shop;

-- case: the primary key stands for its table
-- All columns of a table may be shown when its key is grouped by; here by listing them.
SELECT s.id, s.shop, count(*) AS copies FROM sales s GROUP BY s.id, s.shop;

-- case: CASE inside an aggregate
-- A pivot.
SELECT day, sum(CASE WHEN shop = 'north' THEN qty END) AS north,
       sum(CASE WHEN shop = 'south' THEN qty ELSE 0 END) AS south
FROM sales GROUP BY day;

-- change: new groups and a new row in an old one
INSERT INTO sales VALUES (6, 'west', '2026-02-01', 3, 1.25, 1e10), (7, 'north', '2026-01-02', 4, 0.01, -1e10);

-- change: rows move between groups
UPDATE sales SET shop = 'east', qty = COALESCE(qty, 0) + 1 WHERE id IN (1, 4);

-- change: the extreme values go, and one copy of a duplicate
DELETE FROM sales WHERE price = 9.99 OR ctid IN (SELECT ctid FROM sales WHERE id = 3 LIMIT 1);

-- change: groups lose their last row
DELETE FROM sales WHERE shop <> 'east';
