-- Nested subqueries
--
-- Subqueries in subqueries, in FROM and as values, several levels deep.

-- setup
CREATE TABLE orders (id int, customer int, total int);
CREATE TABLE lines (order_id int, item text, qty int);
CREATE TABLE stock (item text, qty int);
INSERT INTO orders VALUES (1, 7, 10), (2, 7, 30), (3, 8, 20), (4, NULL, 5);
INSERT INTO lines VALUES (1, 'pen', 2), (1, 'ink', 1), (2, 'pen', 10), (3, 'cap', 1), (3, NULL, 1), (1, 'pen', 2);
INSERT INTO stock VALUES ('pen', 5), ('ink', 0), ('lid', 3);

-- case: an aggregate of an aggregate
-- The best customer's turnover.
SELECT max(turnover) AS best FROM (SELECT customer, sum(total) AS turnover FROM orders GROUP BY customer) t;

-- case: three levels of FROM
-- Filters at every level.
SELECT customer, n
FROM (SELECT customer, count(*) AS n FROM (SELECT id, customer FROM orders WHERE total > 8) big GROUP BY customer) c
WHERE n > 1;

-- case: IN of IN
-- Customers who ordered something that is out of stock.
SELECT DISTINCT customer FROM orders
WHERE id IN (SELECT order_id FROM lines WHERE item IN (SELECT item FROM stock WHERE qty = 0));

-- case: EXISTS with a scalar inside
-- Orders with a line larger than the stock.
SELECT o.id FROM orders o
WHERE EXISTS (SELECT FROM lines l WHERE l.order_id = o.id
    AND l.qty > COALESCE((SELECT s.qty FROM stock s WHERE s.item = l.item ORDER BY s.qty LIMIT 1), 0));

-- case: a scalar over a grouped subquery
-- Above the average of the customers' turnovers.
SELECT customer, sum(total) AS turnover FROM orders GROUP BY customer
HAVING sum(total) >= (SELECT avg(t) FROM (SELECT sum(total) AS t FROM orders GROUP BY customer) x);

-- case: NOT EXISTS of NOT EXISTS
-- Relational division: orders that contain every item in stock with a quantity.
SELECT o.id FROM orders o
WHERE NOT EXISTS (SELECT FROM stock s WHERE s.qty > 0 AND s.item <> 'lid'
    AND NOT EXISTS (SELECT FROM lines l WHERE l.order_id = o.id AND l.item = s.item));

-- case: a subquery in a join condition
-- The condition asks another table.
SELECT o.id, l.item FROM orders o JOIN lines l ON l.order_id = o.id AND l.item IN (SELECT item FROM stock);

-- case: a subquery in FROM with a subquery as a value
-- Value subqueries below a join.
SELECT o.id, d.need FROM orders o
JOIN (SELECT l.order_id, l.qty - (SELECT count(*) FROM stock s WHERE s.item = l.item) AS need FROM lines l) d
    ON d.order_id = o.id;

-- case: group by a subquery's value
-- The value is a key.
SELECT available, count(*) AS lines
FROM (SELECT EXISTS (SELECT FROM stock s WHERE s.item = l.item AND s.qty >= l.qty) AS available FROM lines l) x
GROUP BY available;

-- change: stock and lines
INSERT INTO stock VALUES ('cap', 0), ('lid', 1);
INSERT INTO lines VALUES (4, 'ink', 1), (2, 'ink', 3);

-- change: a customer merges with another
UPDATE orders SET customer = 8, total = total * 2 WHERE customer = 7;
UPDATE stock SET qty = 4 - qty WHERE item IN ('ink', 'cap');

-- change: lines and stock go
DELETE FROM lines WHERE item = 'pen';
DELETE FROM stock WHERE item = 'pen' OR item = 'ink';

-- change: orders go
DELETE FROM orders WHERE id IN (1, 3);
