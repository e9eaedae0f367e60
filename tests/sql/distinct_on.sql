-- DISTINCT ON
--
-- The first row of each group in the order of the query; only touched groups are looked at again.

-- setup
CREATE TABLE prices (item text, day date, price int, source text);
INSERT INTO prices VALUES
    ('a', '2026-01-01', 10, 'x'), ('a', '2026-01-03', 12, 'y'), ('b', '2026-01-02', 7, NULL),
    (NULL, '2026-01-01', 1, 'x'),
    ('b', NULL, 9, 'y'), ('a', '2026-01-03', 12, 'y');
CREATE TABLE items (item text, name text);
INSERT INTO items VALUES ('a', 'apple'), ('b', 'berry'), ('c', 'cherry');

-- case: the latest price
-- One row per item, the newest.
SELECT DISTINCT ON (item) item, day, price FROM prices ORDER BY item, day DESC NULLS LAST, price;

-- case: the cheapest of each day
-- Another group, another order.
SELECT DISTINCT ON (day) day, item, price FROM prices ORDER BY day, price, item;

-- case: two columns
-- One row per item and source.
SELECT DISTINCT ON (item, source) item, source, price FROM prices ORDER BY item, source, price DESC, day;

-- case: an expression
-- Groups by a computed value.
SELECT DISTINCT ON (price > 8) price > 8 AS dear, item, price FROM prices ORDER BY price > 8, price, item, day;

-- case: an open order
-- Several rows could be first; Runnel completes the order by the other columns, and its recorded query says so.
SELECT DISTINCT ON (item) item, source, price FROM prices ORDER BY item;

-- case: over a join
-- The latest price with the item's name.
SELECT DISTINCT ON (i.name) i.name, p.price, p.day FROM items i LEFT JOIN prices p ON p.item = i.item
ORDER BY i.name, p.day DESC NULLS LAST, p.price;

-- case: in a subquery
-- The latest prices are added up.
SELECT sum(price) AS total, count(*) AS n
FROM (SELECT DISTINCT ON (item) item, price FROM prices ORDER BY item, day DESC NULLS LAST, price) latest;

-- case: of groups
-- The best source of each item.
SELECT DISTINCT ON (item) item, source, sum(price) AS total FROM prices GROUP BY item, source
ORDER BY item, sum(price) DESC, source;

-- change: newer prices and an older one
INSERT INTO prices VALUES ('a', '2026-01-05', 8, 'z'), ('b', '2025-12-31', 3, 'z'), ('c', '2026-01-01', 5, 'x');

-- change: the first rows change places
UPDATE prices SET day = day - 10, price = price + 2 WHERE price IN (8, 3);

-- change: the first rows go
DELETE FROM prices WHERE day = '2026-01-03' OR item IS NULL;

-- change: a whole group goes
DELETE FROM prices WHERE item = 'a';
DELETE FROM items WHERE item = 'c';
