-- LATERAL
--
-- A subquery in FROM that sees the tables before it.

-- setup
CREATE TABLE shops (id int, name text, quota int);
CREATE TABLE sales (id int, shop int, amount int, day date);
INSERT INTO shops VALUES (1, 'north', 2), (2, 'south', 1), (3, 'east', 5), (NULL, 'nowhere', 1);
INSERT INTO sales VALUES (1, 1, 5, '2026-01-01'), (2, 1, 8, '2026-01-02'), (3, 1, 8, '2026-01-03'), (4, 2, 3, NULL),
    (5, 2, NULL, '2026-01-05'), (6, NULL, 1, '2026-01-06');

-- case: an aggregate per row
-- Always one row for each shop.
SELECT s.name, t.total, t.n FROM shops s
CROSS JOIN LATERAL (SELECT sum(x.amount) AS total, count(*) AS n FROM sales x WHERE x.shop = s.id) t;

-- case: filtered rows
-- Like a join, when nothing is aggregated.
SELECT s.name, t.id FROM shops s, LATERAL (SELECT x.id FROM sales x WHERE x.shop = s.id AND x.amount > s.quota) t;

-- case: LEFT JOIN LATERAL
-- Shops without a sale are padded.
SELECT s.name, t.amount FROM shops s LEFT JOIN LATERAL (SELECT x.amount FROM sales x WHERE x.shop = s.id) t ON true;

-- case: the two best sales of each shop
-- Top-k per row.
SELECT s.name, t.id, t.amount FROM shops s
CROSS JOIN LATERAL (SELECT x.id, x.amount FROM sales x WHERE x.shop = s.id
                    ORDER BY x.amount DESC NULLS LAST, x.id LIMIT 2) t;

-- case: the latest, or nothing
-- Top 1 with padding.
SELECT s.name, t.id, t.day FROM shops s
LEFT JOIN LATERAL (SELECT x.id, x.day FROM sales x WHERE x.shop = s.id
                   ORDER BY x.day DESC NULLS LAST, x.id LIMIT 1) t ON true;

-- case: computed columns with names
-- LATERAL without FROM gives names to expressions.
SELECT x.id, v.double, v.double + 1 AS more FROM sales x CROSS JOIN LATERAL (SELECT x.amount * 2 AS double) v;

-- case: columns to rows
-- LATERAL VALUES: one row for each column.
SELECT s.name, v.what, v.n FROM shops s CROSS JOIN LATERAL (VALUES ('id', s.id), ('quota', s.quota)) AS v(what, n);

-- case: two in a row
-- The second sees the first.
SELECT s.name, a.best, b.n FROM shops s
CROSS JOIN LATERAL (SELECT max(x.amount) AS best FROM sales x WHERE x.shop = s.id) a
CROSS JOIN LATERAL (SELECT count(*) AS n FROM sales x WHERE x.amount < a.best) b;

-- case: grouped inside
-- Several rows per shop, one for each day.
SELECT s.name, t.amount, t.n FROM shops s
CROSS JOIN LATERAL (SELECT x.amount, count(*) AS n FROM sales x WHERE x.shop = s.id GROUP BY x.amount) t;

-- change: sales for everyone
INSERT INTO sales VALUES (7, 3, 9, '2026-01-07'), (8, 2, 4, '2026-01-08'), (9, 1, 8, '2026-01-09');

-- change: quotas and amounts change
UPDATE shops SET quota = quota + 3;
UPDATE sales SET amount = COALESCE(amount, 7) + 1, shop = 2 WHERE id IN (3, 5);

-- change: the best go
DELETE FROM sales WHERE amount >= 9;
DELETE FROM shops WHERE id IS NULL;

-- change: a shop changes its number
UPDATE shops SET id = 3 - id WHERE id < 3;
