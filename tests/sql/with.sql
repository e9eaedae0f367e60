-- WITH
--
-- Common table expressions: named parts of a query, used once or several times.

-- setup
CREATE TABLE orders (id int, customer text, total int, day date);
INSERT INTO orders VALUES (1, 'ann', 10, '2026-01-01'), (2, 'ann', 30, '2026-01-02'), (3, 'bob', 20, '2026-01-02'),
    (4, NULL, 5, NULL), (3, 'bob', 20, '2026-01-02');
CREATE TABLE vips (customer text);
INSERT INTO vips VALUES ('ann'), ('zoe');

-- case: a filter with a name
-- Inlined like a subquery.
WITH large AS (SELECT id, customer FROM orders WHERE total >= 10) SELECT id, customer FROM large
WHERE customer IS NOT NULL;

-- case: an aggregate with a name
-- Kept as a stage of its own.
WITH spend AS (SELECT customer, sum(total) AS total FROM orders GROUP BY customer) SELECT customer, total FROM spend
WHERE total > 15;

-- case: used twice
-- Computed once, joined with itself.
WITH spend AS (SELECT customer, sum(total) AS total FROM orders GROUP BY customer)
SELECT a.customer, b.customer AS richer FROM spend a JOIN spend b ON b.total > a.total;

-- case: one builds on the other
-- Two levels.
WITH daily AS (SELECT day, sum(total) AS total FROM orders GROUP BY day),
    best AS (SELECT max(total) AS total FROM daily)
SELECT d.day, d.total FROM daily d JOIN best b ON b.total = d.total;

-- case: MATERIALIZED
-- A hint for PostgreSQL that changes no answer.
WITH o AS MATERIALIZED (SELECT customer, total FROM orders) SELECT customer, max(total) AS best FROM o
GROUP BY customer;

-- case: column names
-- Renamed in the WITH clause.
WITH spend(who, how_much) AS (SELECT customer, sum(total) FROM orders GROUP BY customer) SELECT s.who, s.how_much
FROM spend s JOIN vips v ON v.customer = s.who;

-- case: inside a subquery
-- WITH may stand in FROM.
SELECT s.n, v.customer FROM vips v
LEFT JOIN (WITH c AS (SELECT customer, count(*) AS n FROM orders GROUP BY customer) SELECT customer, n FROM c
    WHERE n > 1) s ON s.customer = v.customer;

-- case: in a union
-- Both members use it.
WITH big AS (SELECT customer FROM orders WHERE total > 15) SELECT customer FROM big UNION ALL SELECT customer FROM vips
WHERE customer NOT IN (SELECT customer FROM big WHERE customer IS NOT NULL);

-- case: a name that hides a table
-- The CTE comes first.
WITH orders AS (SELECT id, total * 2 AS total FROM orders) SELECT id, total FROM orders;

-- case: one that is not used
-- Has no effect.
WITH unused AS (SELECT 1 / 0 AS boom), v AS (SELECT customer FROM vips) SELECT customer FROM v;

-- change: new orders
INSERT INTO orders VALUES (5, 'zoe', 25, '2026-01-01'), (6, 'ann', 1, '2026-01-03');
INSERT INTO vips VALUES ('bob');

-- change: totals change hands
UPDATE orders SET customer = 'bob', total = total + 5 WHERE customer = 'ann';

-- change: the best day goes
DELETE FROM orders WHERE day = '2026-01-02';
DELETE FROM vips WHERE customer = 'ann';
