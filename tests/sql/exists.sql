-- EXISTS and NOT EXISTS
--
-- A row qualifies with the first match, and no longer when the last one goes. How many there are does not matter.

-- setup
CREATE TABLE customers (id int, name text, city text);
CREATE TABLE orders (id int, customer_id int, total int, item text);
CREATE TABLE recalls (item text);
INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Ben', 'Rome'), (3, 'Cy', NULL), (NULL, 'Nemo', 'Rome'),
    (2, 'Ben', 'Rome');
INSERT INTO orders VALUES (10, 1, 5, 'pen'), (11, 1, 50, 'ink'), (12, NULL, 7, 'pen'), (13, 2, 3, NULL);
INSERT INTO recalls VALUES ('ink'), (NULL);

-- case: EXISTS
-- Customers with an order, each as often as it is listed, however many orders there are.
SELECT c.id, c.name FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id);

-- case: NOT EXISTS
-- Flips when the first order of a customer arrives and when the last one goes; a NULL id never has one.
SELECT c.id, c.name FROM customers c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id);

-- case: with a condition on the inner side
-- Only large orders count.
SELECT c.name FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id AND o.total > 10);

-- case: two of them
-- Customers with orders, but none above 10.
SELECT c.name FROM customers c
WHERE EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id)
    AND NOT EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id AND o.total > 10);

-- case: uncorrelated
-- All customers, or none.
SELECT c.name FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.total > 40);

-- case: inside OR
-- Either the city or an order qualifies.
SELECT c.name FROM customers c WHERE c.city = 'Rome' OR EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id);

-- case: as a value
-- A boolean column.
SELECT c.name, EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id) AS buys FROM customers c;

-- case: over a join
-- Customers who bought something that was recalled.
SELECT c.name FROM customers c
WHERE EXISTS (SELECT FROM orders o JOIN recalls r ON r.item = o.item WHERE o.customer_id = c.id);

-- case: EXISTS in EXISTS
-- The same, nested.
SELECT c.name FROM customers c
WHERE EXISTS (SELECT FROM orders o
              WHERE o.customer_id = c.id AND NOT EXISTS (SELECT FROM recalls r WHERE r.item = o.item));

-- case: the same table
-- Customers who share their city with another one.
SELECT a.id, a.name FROM customers a WHERE EXISTS (SELECT FROM customers b WHERE b.city = a.city AND b.id <> a.id);

-- case: over a group
-- Customers with at least two orders.
SELECT c.name FROM customers c
WHERE EXISTS (SELECT o.customer_id FROM orders o WHERE o.customer_id = c.id GROUP BY o.customer_id HAVING count(*) > 1);

-- case: EXISTS with LIMIT
-- One row is enough anyway.
SELECT c.id FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id LIMIT 1);

-- change: first orders
INSERT INTO orders VALUES (14, 3, 11, 'pen'), (15, 2, 60, 'ink');

-- change: orders change hands, a customer moves, a recall is lifted
UPDATE orders SET customer_id = 3, total = 2 WHERE customer_id = 1;
DELETE FROM recalls WHERE item = 'ink';
UPDATE customers SET city = 'Rome' WHERE id = 1;

-- change: last orders go, another recall
DELETE FROM orders WHERE customer_id = 2 OR total > 40;
INSERT INTO recalls VALUES ('pen'), ('pen');

-- change: customers change their number
UPDATE customers SET id = 3 WHERE name = 'Ben';
DELETE FROM customers WHERE name = 'Ada';
