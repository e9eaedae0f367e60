-- ANY and ALL
--
-- Comparisons with all values of a subquery. ALL over nothing is true, ANY over nothing false.

-- setup
CREATE TABLE cars (id int, price int, brand text);
CREATE TABLE offers (price int, brand text);
INSERT INTO cars VALUES (1, 10, 'a'), (2, 20, 'a'), (3, 30, 'b'), (4, NULL, 'b'), (1, 10, 'a');

-- case: equal to ANY
-- The same as IN.
SELECT id FROM cars WHERE price = ANY (SELECT price FROM offers);

-- case: greater than ALL
-- Dearer than every offer; true for all rows while there is no offer.
SELECT id, price FROM cars WHERE price > ALL (SELECT price FROM offers);

-- case: less than ANY
-- Cheaper than some offer.
SELECT id, price FROM cars WHERE price < ANY (SELECT price FROM offers);

-- case: unequal to ALL
-- The same as NOT IN.
SELECT id, price FROM cars WHERE price <> ALL (SELECT price FROM offers);

-- case: correlated
-- At least as dear as all offers of its brand.
SELECT id FROM cars c WHERE c.price >= ALL (SELECT o.price FROM offers o WHERE o.brand = c.brand);

-- case: the dearest of its brand
-- The table compared with itself.
SELECT id, brand FROM cars c
WHERE c.price >= ALL (SELECT d.price FROM cars d WHERE d.brand = c.brand AND d.price IS NOT NULL);

-- case: as a value
-- Unknown where a NULL decides.
SELECT id, price > ALL (SELECT price FROM offers) AS above_all, price <= SOME (SELECT price FROM offers) AS below_some
FROM cars;

-- case: an array instead of a subquery
-- A list in an array is an ordinary expression.
SELECT id FROM cars WHERE brand = ANY (ARRAY['b', 'c']) AND price > ALL (ARRAY[5, 25]);

-- case: NOT ANY
-- Negation keeps the unknown.
SELECT id FROM cars WHERE NOT price < ANY (SELECT price FROM offers);

-- case: ANY of an array that a query makes
-- As good as the query itself.
SELECT id, brand FROM cars WHERE price = ANY (ARRAY(SELECT o.price FROM offers o));

-- case: ALL of an array that a correlated query makes
-- Without offers of the brand it is true.
SELECT c.id, c.price <> ALL (ARRAY(SELECT o.price FROM offers o WHERE o.brand = c.brand)) AS unlike FROM cars c;

-- case: an array of another type
-- The cast of the array is one of its elements.
SELECT id FROM cars WHERE brand = ANY (ARRAY(SELECT o.brand::varchar FROM offers o));

-- case: an operator without an opposite
-- Brands that match no offer's brand as a pattern.
SELECT id, brand !~ ALL (SELECT o.brand FROM offers o) AS fresh, price ^ 2 AS squared FROM cars;

-- change: first offers
INSERT INTO offers VALUES (15, 'a'), (20, 'b'), (20, 'b');

-- change: a NULL offer, another price
INSERT INTO offers VALUES (NULL, 'a');
UPDATE cars SET price = price + 5 WHERE id >= 2;

-- change: the NULL goes, a high offer comes
DELETE FROM offers WHERE price IS NULL;
INSERT INTO offers VALUES (100, 'b');
UPDATE cars SET price = 40 WHERE id = 4;

-- change: no offers
DELETE FROM offers;
