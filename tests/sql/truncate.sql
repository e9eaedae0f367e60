-- TRUNCATE
--
-- TRUNCATE removes rows without naming them: everything that reads the table is recomputed once, and goes on by deltas.

-- setup
CREATE TABLE orders (id int, customer int, total int);
CREATE TABLE customers (id int, name text);
INSERT INTO customers VALUES (1, 'ann'), (2, 'bob'), (NULL, NULL);
INSERT INTO orders VALUES (10, 1, 5), (11, 1, 6), (12, 2, NULL), (13, NULL, 8), (12, 2, NULL);

-- case: rows
-- Empty afterwards.
SELECT id, total FROM orders WHERE total > 5 OR total IS NULL;

-- case: a join
-- Either side may be truncated.
SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer;

-- case: an outer join
-- Padding returns.
SELECT c.name, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id;

-- case: groups
-- Groups vanish.
SELECT customer, sum(total) AS total, count(*) AS n FROM orders GROUP BY customer;

-- case: a whole-table aggregate
-- Zero remains.
SELECT count(*) AS n, max(total) AS most, count(DISTINCT customer) AS customers FROM orders;

-- case: DISTINCT and UNION
-- One member goes, the other stays.
SELECT DISTINCT customer AS v FROM orders UNION SELECT id FROM customers;

-- case: one that does not read the truncated table
-- Not recomputed.
SELECT id, upper(name) AS name FROM customers;

-- case: NOT EXISTS
-- All customers are without orders.
SELECT c.name FROM customers c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.customer = c.id);

-- change: ordinary changes first
INSERT INTO orders VALUES (14, 2, 9);
UPDATE customers SET name = 'anna' WHERE id = 1;

-- change: TRUNCATE
TRUNCATE orders;

-- change: rows after a TRUNCATE
INSERT INTO orders VALUES (20, 1, 7), (21, NULL, 3);
UPDATE customers SET name = 'bobby' WHERE id = 2;

-- change: TRUNCATE and new rows in one transaction
TRUNCATE orders;
INSERT INTO orders VALUES (30, 2, 6);

-- change: a deletion afterwards
DELETE FROM orders WHERE id = 30;
INSERT INTO orders VALUES (31, 1, 60);

-- change: a TRUNCATE that is rolled back, and an insert that is not
BEGIN;
TRUNCATE orders;
ROLLBACK;
INSERT INTO orders VALUES (32, 1, 61);

-- change: two tables at once
TRUNCATE orders, customers;
