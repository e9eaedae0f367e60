-- Cross joins
--
-- Every row of one side with every row of the other; the delta of one side meets all of the other.

-- setup
CREATE TABLE sizes (size text, rank int);
CREATE TABLE colours (colour text);
CREATE TABLE settings (discount int);
INSERT INTO sizes VALUES ('S', 1), ('M', 2), (NULL, 3);
INSERT INTO colours VALUES ('red'), ('blue'), ('blue');
INSERT INTO settings VALUES (10);

-- case: CROSS JOIN
-- All combinations, duplicates included.
SELECT s.size, c.colour FROM sizes s CROSS JOIN colours c;

-- case: comma
-- The same with a comma, of three tables.
SELECT s.size, c.colour, t.discount FROM sizes s, colours c, settings t;

-- case: JOIN ON true
-- Another way to write it.
SELECT s.size, c.colour FROM sizes s JOIN colours c ON true;

-- case: LEFT JOIN ON true
-- Pads only when the other side is empty.
SELECT c.colour, t.discount FROM colours c LEFT JOIN settings t ON true;

-- case: pairs of a table with itself
-- All ordered pairs.
SELECT a.colour, b.colour AS other FROM colours a CROSS JOIN colours b;

-- case: a row of settings
-- A table of one row, used as a parameter of every row.
SELECT s.size, s.rank * (100 - t.discount) AS price FROM sizes s, settings t;

-- case: counting combinations
-- An aggregate over all combinations.
SELECT count(*) AS n, count(DISTINCT c.colour) AS colours, sum(s.rank) AS ranks FROM sizes s CROSS JOIN colours c;

-- case: filter that cannot be a key
-- A condition over both sides, after the product.
SELECT s.size, c.colour FROM sizes s CROSS JOIN colours c WHERE s.rank < length(c.colour);

-- case: constant rows
-- A list of VALUES is a table that never changes.
SELECT c.colour, v.word FROM colours c CROSS JOIN (VALUES ('light', 1), ('dark', 2)) AS v(word, n) WHERE v.n < 3;

-- change: both sides grow
INSERT INTO sizes VALUES ('L', 4);
INSERT INTO colours VALUES ('green');

-- change: both sides change
UPDATE sizes SET rank = rank + 2 WHERE size = 'S';
UPDATE colours SET colour = 'navy' WHERE colour = 'blue';
UPDATE settings SET discount = 20;

-- change: no settings
DELETE FROM settings;

-- change: two rows of settings, no sizes
INSERT INTO settings VALUES (1), (2);
DELETE FROM sizes;
