-- Outer joins
--
-- A row without a match is padded with NULLs: no longer when its first match arrives, again when the last one goes.

-- setup
CREATE TABLE customers (id int, name text, city text);
CREATE TABLE orders (id int, customer_id int, total int, city text);
CREATE TABLE payments (order_id int, amount int);
INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Ben', 'Rome'), (3, 'Cleo', NULL), (NULL, 'Nemo', 'Rome');
INSERT INTO orders VALUES (10, 1, 5, 'Oslo'), (11, 1, 7, 'Rome'), (12, NULL, 9, 'Rome'), (13, 8, 2, NULL);
INSERT INTO payments VALUES (10, 5), (11, 3), (11, 4), (99, 1);

-- case: LEFT JOIN pads
-- Customers without orders appear once, with NULLs.
SELECT c.name, o.id AS order_id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id;

-- case: RIGHT JOIN pads the other side
-- Orders of nobody appear without a customer.
SELECT c.name, o.id AS order_id FROM customers c RIGHT JOIN orders o ON o.customer_id = c.id;

-- case: FULL JOIN pads both
-- Rows without a partner on either side.
SELECT c.name, o.id AS order_id FROM customers c FULL JOIN orders o ON o.customer_id = c.id;

-- case: a condition on the inner side in ON
-- A small order does not count as a match, so the customer is padded.
SELECT c.name, o.id AS order_id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.total > 6;

-- case: the same condition in WHERE
-- WHERE comes after padding and removes it.
SELECT c.name, o.id AS order_id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id WHERE o.total > 6;

-- case: a condition on the outer side in ON
-- Customers of other cities are always padded, never dropped.
SELECT c.name, o.id AS order_id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND c.city = 'Oslo';

-- case: an anti join
-- IS NULL on a column of the inner side finds customers without orders.
SELECT c.id, c.name FROM customers c LEFT JOIN orders o ON o.customer_id = c.id WHERE o.id IS NULL;

-- case: a chain of outer joins
-- Payments hang on orders, orders on customers.
SELECT c.name, o.id AS order_id, p.amount
FROM customers c LEFT JOIN orders o ON o.customer_id = c.id LEFT JOIN payments p ON p.order_id = o.id;

-- case: an inner join below an outer one
-- A customer whose orders are all unpaid is padded.
SELECT c.name, o.id AS order_id, p.amount
FROM customers c LEFT JOIN (orders o JOIN payments p ON p.order_id = o.id) ON o.customer_id = c.id;

-- case: a cross join below an outer one
-- Every pair of a customer and a payment; most of them find no order, and those are the ones that must not be missed.
SELECT c.name, p.order_id, p.amount, o.total
FROM customers c CROSS JOIN payments p LEFT JOIN orders o ON o.customer_id = c.id AND o.id = p.order_id;

-- case: an outer join below an inner one
-- The padded rows find no payment and vanish.
SELECT c.name, p.amount
FROM customers c LEFT JOIN orders o ON o.customer_id = c.id JOIN payments p ON p.order_id = o.id;

-- case: counting over padding
-- count(o.id) is 0 for a padded row, count(*) is 1.
SELECT c.name, count(o.id) AS orders, count(*) AS rows, COALESCE(sum(o.total), 0) AS total
FROM customers c LEFT JOIN orders o ON o.customer_id = c.id GROUP BY c.name;

-- case: values computed from the padded side
-- COALESCE sees the NULLs of padding; a constant on the padded side becomes NULL too.
SELECT c.name, COALESCE(o.total * 2, -1) AS twice, o.mark
FROM customers c LEFT JOIN (SELECT customer_id, total, 'seen' AS mark FROM orders) o ON o.customer_id = c.id;

-- case: outer join with an aggregate
-- The grouped side pads like a table.
SELECT c.name, t.total
FROM customers c
LEFT JOIN (SELECT customer_id, sum(total) AS total FROM orders GROUP BY customer_id) t ON t.customer_id = c.id;

-- case: two keys
-- Both must match; NULL city never does.
SELECT c.name, o.id AS order_id FROM customers c FULL JOIN orders o ON o.customer_id = c.id AND o.city = c.city;

-- change: first orders unpad two customers
INSERT INTO orders VALUES (14, 2, 6, 'Rome'), (15, 3, 8, 'Oslo');
INSERT INTO payments VALUES (14, 6);

-- change: the orders of a customer change hands
UPDATE orders SET customer_id = 8, total = 10 WHERE customer_id = 1;

-- change: a customer for the orphans, and the last order of another goes
INSERT INTO customers VALUES (8, 'Hal', NULL);
DELETE FROM orders WHERE id = 14;
DELETE FROM payments WHERE order_id = 11;

-- change: keys become NULL, and a key is known
UPDATE customers SET id = CASE WHEN id = 8 THEN NULL ELSE 4 END, city = 'Oslo' WHERE id = 8 OR id IS NULL;

-- change: one side is emptied
DELETE FROM orders;
