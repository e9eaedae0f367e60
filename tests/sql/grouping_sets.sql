-- ROLLUP, CUBE and GROUPING SETS
--
-- Several groupings in one query; GROUPING tells a subtotal from a NULL key.

-- setup
CREATE TABLE sales (region text, shop text, item text, qty int);
INSERT INTO sales VALUES
    ('n', 'n1', 'pen', 5), ('n', 'n1', 'ink', 2), ('n', 'n2', 'pen', 1), ('s', 's1', 'pen', 7), ('s', NULL, 'ink', 3),
    (NULL, NULL, 'pen', 1), ('s', 's1', 'pen', 7);

-- case: ROLLUP
-- Shops, regions and the grand total.
SELECT region, shop, sum(qty) AS qty FROM sales GROUP BY ROLLUP (region, shop);

-- case: CUBE
-- Every combination of the keys.
SELECT region, item, sum(qty) AS qty, count(*) AS n FROM sales GROUP BY CUBE (region, item);

-- case: GROUPING SETS
-- Exactly the groupings that are listed.
SELECT region, item, sum(qty) AS qty FROM sales GROUP BY GROUPING SETS ((region), (item), ());

-- case: GROUPING
-- 1 where the key was rolled up.
SELECT region, shop, GROUPING(region, shop) AS level, sum(qty) AS qty FROM sales GROUP BY ROLLUP (region, shop);

-- case: a key beside a ROLLUP
-- Each item has its own subtotals.
SELECT item, region, shop, sum(qty) AS qty FROM sales GROUP BY item, ROLLUP (region, shop);

-- case: the same grouping twice
-- Duplicates are kept.
SELECT region, count(*) AS n FROM sales GROUP BY GROUPING SETS ((region), (region), ());

-- case: HAVING over subtotals
-- Applies to every row, whatever its grouping.
SELECT region, item, sum(qty) AS qty FROM sales GROUP BY ROLLUP (region, item) HAVING sum(qty) > 4;

-- case: distinct values and lists in subtotals
-- Any aggregate works at every level.
SELECT region, count(DISTINCT item) AS items, max(qty) AS most FROM sales GROUP BY ROLLUP (region);

-- case: expressions as keys
-- Rolled up expressions.
SELECT upper(region) AS r, qty > 2 AS many, count(*) AS n FROM sales GROUP BY CUBE (upper(region), (qty > 2));

-- case: labels for subtotals
-- GROUPING inside CASE.
SELECT CASE WHEN GROUPING(region) = 1 THEN 'all' ELSE COALESCE(region, '?') END AS region, sum(qty) AS qty FROM sales
GROUP BY ROLLUP (region);

-- change: a new region and a shop without a name
INSERT INTO sales VALUES ('w', 'w1', 'pen', 4), ('n', NULL, 'ink', 6);

-- change: rows change group at every level
UPDATE sales SET region = 's', shop = 's2', qty = qty + 1 WHERE region = 'n' AND item = 'pen';

-- change: a region goes
DELETE FROM sales WHERE region = 's';

-- change: everything goes, the grand totals stay
DELETE FROM sales;
