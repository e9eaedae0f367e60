-- INTERSECT and EXCEPT, with and without ALL
--
-- With ALL, multiplicities count: the smaller one, or the difference.

-- setup
CREATE TABLE ordered (item text, qty int);
CREATE TABLE delivered (item text, qty int);
INSERT INTO ordered VALUES ('pen', 1), ('pen', 1), ('pen', 1), ('ink', 2), (NULL, NULL), (NULL, NULL), ('cap', 1);
INSERT INTO delivered VALUES ('pen', 1), ('ink', 3), (NULL, NULL), ('lid', 1);

-- case: INTERSECT
-- Rows in both, once.
SELECT item, qty FROM ordered INTERSECT SELECT item, qty FROM delivered;

-- case: INTERSECT ALL
-- As often as in both.
SELECT item, qty FROM ordered INTERSECT ALL SELECT item, qty FROM delivered;

-- case: EXCEPT
-- Rows of the first that the second lacks, once; NULLs are equal here.
SELECT item, qty FROM ordered EXCEPT SELECT item, qty FROM delivered;

-- case: EXCEPT ALL
-- One delivery takes one order away.
SELECT item, qty FROM ordered EXCEPT ALL SELECT item, qty FROM delivered;

-- case: the other way round
-- What was delivered without an order.
SELECT item, qty FROM delivered EXCEPT ALL SELECT item, qty FROM ordered;

-- case: INTERSECT binds first
-- a EXCEPT (b INTERSECT c) without parentheses.
SELECT item FROM ordered EXCEPT SELECT item FROM delivered INTERSECT SELECT item FROM ordered WHERE qty = 1;

-- case: parentheses
-- The symmetric difference.
(SELECT item FROM ordered EXCEPT SELECT item FROM delivered)
UNION ALL (SELECT item FROM delivered EXCEPT SELECT item FROM ordered);

-- case: groups compared
-- Totals that agree.
SELECT item, sum(qty) AS qty FROM ordered GROUP BY item INTERSECT SELECT item, sum(qty) FROM delivered GROUP BY item;

-- case: counting differences
-- An aggregate over EXCEPT ALL.
SELECT count(*) AS missing FROM (SELECT item, qty FROM ordered EXCEPT ALL SELECT item, qty FROM delivered) m;

-- case: a chain of EXCEPT
-- Left to right.
SELECT item FROM ordered EXCEPT ALL SELECT item FROM delivered EXCEPT ALL SELECT item FROM ordered WHERE qty = 2;

-- change: deliveries
INSERT INTO delivered VALUES ('pen', 1), ('cap', 1), ('ink', 2);

-- change: both sides change
UPDATE ordered SET qty = 3 WHERE item = 'ink';
UPDATE delivered SET item = NULL, qty = NULL WHERE item = 'lid';

-- change: orders are cancelled
DELETE FROM ordered WHERE item = 'pen' OR item IS NULL;

-- change: nothing was delivered after all
DELETE FROM delivered;
