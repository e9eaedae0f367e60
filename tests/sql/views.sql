-- Views
--
-- A view means its query; stream tables over views are maintained by the changes of the tables below.

-- setup
CREATE TABLE orders (id int, customer text, total int, state text);
INSERT INTO orders VALUES (1, 'ann', 10, 'paid'), (2, 'bob', 20, 'open'), (3, 'ann', 30, 'paid'), (4, NULL, 40, NULL),
    (2, 'bob', 20, 'open');
CREATE VIEW paid AS SELECT id, customer, total FROM orders WHERE state = 'paid';
CREATE VIEW spend(who, total) AS SELECT customer, sum(total) FROM orders GROUP BY customer;
CREATE VIEW paid_spend AS SELECT p.customer, sum(p.total) AS paid, max(s.total) AS total FROM paid p
JOIN spend s ON s.who = p.customer GROUP BY p.customer;
CREATE VIEW everybody AS SELECT customer FROM orders UNION SELECT who FROM spend;
CREATE TABLE archive (LIKE orders);

-- case: a filter
-- The simplest view.
SELECT id, total FROM paid;

-- case: filter on a view
-- Both filters apply.
SELECT id FROM paid WHERE total > 15;

-- case: an aggregate
-- Columns have the names of the view.
SELECT who, total FROM spend WHERE total > 15;

-- case: a view over views
-- Three levels.
SELECT customer, paid, total FROM paid_spend;

-- case: a view joined with its table
-- A change reaches the result on both ways.
SELECT o.id, s.total FROM orders o JOIN spend s ON s.who = o.customer;

-- case: the same view twice
-- Each use is its own.
SELECT a.id, b.id AS other FROM paid a JOIN paid b ON b.customer = a.customer AND b.id > a.id;

-- case: a view with UNION
-- Set operations inside.
SELECT customer FROM everybody;

-- case: whole rows of a view
-- A star is expanded when the stream table is created.
SELECT * FROM paid;

-- case: aggregates over a view
-- Groups over groups.
SELECT count(*) AS n, max(total) AS best FROM spend;

-- case: a view under an outer join
-- Views pad like tables.
SELECT o.id, p.total FROM orders o LEFT JOIN paid p ON p.id = o.id;

-- change: new orders
INSERT INTO orders VALUES (5, 'cy', 5, 'paid'), (6, 'bob', 1, 'paid');

-- change: orders are paid, others are not any more
UPDATE orders SET state = CASE state WHEN 'paid' THEN 'open' ELSE 'paid' END, total = total + 1;

-- change: rows are moved to another table
WITH gone AS (DELETE FROM orders WHERE customer = 'bob' RETURNING *) INSERT INTO archive SELECT * FROM gone;

-- change: all customers are known
UPDATE orders SET customer = 'ann', state = 'paid' WHERE customer IS NULL;
