-- Inner joins
--
-- A change of one table is joined with the matching rows of the others, before or after their own changes.

-- setup
CREATE TABLE customers (id int PRIMARY KEY, name text, city text);
CREATE TABLE orders (id int, customer_id int, total numeric(8, 2), city text);
INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Ben', 'Rome'), (3, 'Cleo', NULL);
INSERT INTO orders VALUES
    (10, 1, 5.00, 'Oslo'), (11, 1, 7.50, 'Rome'), (12, 2, 1.00, 'Rome'),
    (13, NULL, 9.00, 'Oslo'), (14, 9, 2.00, NULL), (12, 2, 1.00, 'Rome');

-- case: orders with their customer
-- The plain equi-join; duplicates multiply.
SELECT o.id, c.name, o.total FROM orders o JOIN customers c ON c.id = o.customer_id;

-- case: two columns must match
-- A join over two equalities.
SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id AND c.city = o.city;

-- case: a condition on one side
-- Part of the condition concerns one table only.
SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id AND o.total > 3;

-- case: the old comma
-- FROM a, b WHERE is the same join.
SELECT o.id, c.name FROM orders o, customers c WHERE c.id = o.customer_id AND c.city IS NOT NULL;

-- case: join by an expression
-- The key may be computed on either side.
SELECT o.id, c.name FROM orders o JOIN customers c ON lower(left(c.city, 1)) = lower(left(o.city, 1));

-- case: columns of both sides in one expression
-- Computed after the join.
SELECT o.id, c.name || ' paid ' || o.total AS line, c.city = o.city AS at_home
FROM orders o JOIN customers c ON c.id = o.customer_id;

-- case: a filter over both sides
-- Evaluated by PostgreSQL on joined rows.
SELECT o.id, c.id AS customer FROM orders o JOIN customers c ON c.id = o.customer_id WHERE length(c.name) < o.total;

-- case: joined subqueries
-- Derived tables are inlined.
SELECT big.id, c.name
FROM (SELECT id, customer_id FROM orders WHERE total > 2) big
JOIN (SELECT id, name FROM customers WHERE city IS NOT NULL) c ON c.id = big.customer_id;

-- case: join and group
-- Turnover per customer name.
SELECT c.name, sum(o.total) AS turnover, count(*) AS orders
FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.name;

-- case: join with an aggregate
-- The grouped side is a stage of its own.
SELECT c.name, t.turnover
FROM customers c JOIN (SELECT customer_id, sum(total) AS turnover FROM orders GROUP BY customer_id) t
    ON t.customer_id = c.id;

-- change: both sides at once
INSERT INTO customers VALUES (9, 'Dora', 'Lima');
INSERT INTO orders VALUES (15, 9, 4.00, 'Lima'), (16, 3, 8.00, NULL);

-- change: the join key and the payload of the same rows
UPDATE orders SET customer_id = 3, total = total + 1 WHERE customer_id = 1;
UPDATE customers SET name = name || 'e', city = 'Oslo' WHERE id IN (2, 3);

-- change: a customer goes, orders stay
DELETE FROM customers WHERE id = 2;

-- change: the customer is back under an old number, half the orders go
INSERT INTO customers VALUES (2, 'Bo', 'Rome');
DELETE FROM orders WHERE id % 2 = 0;
