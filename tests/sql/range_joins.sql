-- Joins without equality
--
-- Ranges, inequality, OR and arbitrary expressions as join conditions.

-- setup
CREATE TABLE bids (id int, price int, at timestamp, item text);
CREATE TABLE bands (name text, low int, high int);
INSERT INTO bids VALUES
    (1, 5, '2026-03-01 10:00', 'lamp'), (2, 15, '2026-03-01 11:00', 'lamp'), (3, 25, '2026-03-01 12:00', 'rug'),
    (4, NULL, '2026-03-01 13:00', NULL), (2, 15, '2026-03-01 11:00', 'lamp');
INSERT INTO bands VALUES ('cheap', 0, 10), ('fair', 10, 20), ('dear', 20, NULL), ('fair', 10, 20);

-- case: the band of a price
-- A price joins the band it falls into.
SELECT b.id, n.name FROM bids b JOIN bands n ON b.price >= n.low AND b.price < n.high;

-- case: open ended bands
-- OR in the condition makes the upper bound optional.
SELECT b.id, n.name FROM bids b JOIN bands n ON b.price >= n.low AND (b.price < n.high OR n.high IS NULL);

-- case: LEFT JOIN by range
-- A bid without a band is padded until a band covers it.
SELECT b.id, n.name FROM bids b LEFT JOIN bands n ON b.price >= n.low AND b.price < n.high;

-- case: higher bids on the same item
-- An equality and an inequality: every pair of a bid and a better one.
SELECT a.id, b.id AS better FROM bids a JOIN bids b ON b.item = a.item AND b.price > a.price;

-- case: earlier bids
-- A self join by time alone.
SELECT a.id, count(b.id) AS earlier FROM bids a LEFT JOIN bids b ON b.at < a.at GROUP BY a.id;

-- case: unequal
-- Every pair of different items.
SELECT DISTINCT a.item, b.item AS other FROM bids a JOIN bids b ON a.item <> b.item;

-- case: either of two equalities
-- OR between equalities: no single key.
SELECT b.id, n.name, n.low FROM bids b JOIN bands n ON b.price = n.low OR b.item = n.name;

-- case: LIKE as a condition
-- PostgreSQL compares after the join.
SELECT b.id, n.name FROM bids b JOIN bands n ON n.name LIKE '%' || left(b.item, 1) || '%';

-- case: intervals around a moment
-- Bids within the hour after another one.
SELECT a.id, b.id AS soon FROM bids a JOIN bids b ON b.at > a.at AND b.at <= a.at + interval '1 hour';

-- case: count per band
-- Aggregates over a range join.
SELECT n.name, count(b.id) AS bids, sum(b.price) AS total
FROM bands n LEFT JOIN bids b ON b.price BETWEEN n.low AND COALESCE(n.high, 1000) GROUP BY n.name;

-- change: a price on the border and a new band
INSERT INTO bids VALUES (5, 10, '2026-03-01 11:30', 'rug');
INSERT INTO bands VALUES ('dear', 25, 40), ('rug', 1, 2);

-- change: bounds and prices move
UPDATE bands SET low = low + 5, high = high + 5 WHERE name = 'fair';
UPDATE bids SET price = 12, item = 'fair', at = at + interval '45 minutes' WHERE id = 4;

-- change: one copy of a duplicate band and a bid go
DELETE FROM bands WHERE ctid IN (SELECT ctid FROM bands WHERE name = 'fair' LIMIT 1);
DELETE FROM bids WHERE id = 1;

-- change: no bands at all
DELETE FROM bands;
