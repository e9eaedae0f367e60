-- Stream tables over stream tables
--
-- A stream table is a source like any other: what a refresh changed in it is the delta of its readers.

-- setup
CREATE TABLE sales (id int, shop text, amount int);
CREATE TABLE shops (shop text, region text);
INSERT INTO shops VALUES ('a', 'north'), ('b', 'north'), ('c', 'south'), (NULL, 'lost');
INSERT INTO sales VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 5), (4, NULL, 7), (3, 'b', 5);

-- setup: a stream table of groups, and one over it
SELECT pgtrickle.create_stream_table('by_shop', $$
    SELECT shop, sum(amount) AS total, count(*) AS n FROM sales GROUP BY shop $$, '@yearly', 'DIFFERENTIAL');
SELECT pgtrickle.create_stream_table('good', $$
    SELECT shop, total FROM by_shop WHERE total > 8 $$, '@yearly', 'DIFFERENTIAL');
SELECT pgtrickle.create_stream_table('plain', $$
    SELECT id, shop, amount FROM sales WHERE amount > 5 $$, '@yearly', 'DIFFERENTIAL');
SELECT pgtrickle.create_stream_table('whole', $$
    SELECT shop, max(amount) AS best FROM sales GROUP BY shop $$, '@yearly', 'FULL');

-- case: a filter over groups
-- Changed groups are the delta.
SELECT shop, total FROM by_shop WHERE n > 1;

-- case: groups over groups
-- Turnover per region.
SELECT s.region, sum(b.total) AS total FROM by_shop b JOIN shops s ON s.shop = b.shop GROUP BY s.region;

-- case: two levels
-- Over a stream table over a stream table.
SELECT count(*) AS good_shops, sum(total) AS total FROM good;

-- case: a diamond
-- Two ways to the same table, refreshed in one transaction.
SELECT b.shop, b.n, g.total FROM by_shop b LEFT JOIN good g ON g.shop = b.shop;

-- case: with the table below it
-- Each sale beside its shop's total.
SELECT x.id, x.amount, b.total FROM sales x JOIN by_shop b ON b.shop = x.shop;

-- case: a copy with duplicates
-- Duplicates pass through.
SELECT id, shop FROM plain;

-- case: over a stream table in mode FULL
-- Also a recomputed table has a delta.
SELECT shop, best FROM whole WHERE best >= 10;

-- case: joined with itself
-- Pairs of shops.
SELECT a.shop, b.shop AS richer FROM by_shop a JOIN by_shop b ON b.total > a.total;

-- case: a union of two
-- Several stream tables in one.
SELECT shop FROM good UNION SELECT shop FROM plain;

-- case: an anti join
-- Shops without a good total.
SELECT s.shop FROM shops s LEFT JOIN good g ON g.shop = s.shop WHERE g.shop IS NULL;

-- change: sales
INSERT INTO sales VALUES (5, 'c', 50), (6, 'b', 9);

-- change: amounts and shops change
UPDATE sales SET amount = amount - 5;
UPDATE shops SET region = 'south' WHERE shop = 'b';

-- change: a shop loses its sales
DELETE FROM sales WHERE shop = 'a';

-- change: the base is truncated and filled again
TRUNCATE sales;
INSERT INTO sales VALUES (7, 'a', 100), (8, 'b', 1);

-- change: back to deltas
INSERT INTO sales VALUES (9, 'c', 11), (10, 'a', 6);
