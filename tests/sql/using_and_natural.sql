-- USING and NATURAL
--
-- Merged columns: one column for both sides, taken from whichever side has it.

-- setup
CREATE TABLE cities (country text, city text, people int);
CREATE TABLE mayors (country text, city text, mayor text);
CREATE TABLE rivers (city text, river text);
INSERT INTO cities VALUES ('no', 'Oslo', 700), ('it', 'Rome', 2800), ('it', 'Pisa', 90), (NULL, 'Atlantis', 0);
INSERT INTO mayors VALUES ('no', 'Oslo', 'Anne'), ('it', 'Rome', 'Roberto'), ('us', 'Rome', 'Jackie'),
    ('it', NULL, 'Ugo');
INSERT INTO rivers VALUES ('Rome', 'Tiber'), ('Pisa', 'Arno'), ('Paris', 'Seine'), ('Rome', 'Tiber');

-- case: USING one column
-- The merged column appears once.
SELECT city, people, river FROM cities JOIN rivers USING (city);

-- case: USING two columns
-- Both must match.
SELECT country, city, people, mayor FROM cities JOIN mayors USING (country, city);

-- case: NATURAL JOIN
-- Joins by all columns of the same name.
SELECT * FROM cities NATURAL JOIN mayors;

-- case: NATURAL LEFT JOIN
-- Cities without a mayor are padded.
SELECT * FROM cities NATURAL LEFT JOIN mayors;

-- case: RIGHT JOIN USING
-- The merged column is that of the right side.
SELECT city, people, river FROM cities RIGHT JOIN rivers USING (city);

-- case: FULL JOIN USING
-- The merged column is never NULL because of padding.
SELECT city, people, river FROM cities FULL JOIN rivers USING (city);

-- case: chains of FULL JOIN USING
-- A merged column is merged again: the second condition compares COALESCE(cities.city, mayors.city).
-- mode: FULL because the outer join condition COALESCE
SELECT city, people, mayor, river FROM cities FULL JOIN mayors USING (city) FULL JOIN rivers USING (city);

-- case: group by a merged column
-- Groups by the merged value.
SELECT city, count(river) AS rivers, max(people) AS people FROM cities FULL JOIN rivers USING (city) GROUP BY city;

-- case: merged column and the sides it comes from
-- Each side's own column can still be named.
SELECT city, c.city AS left_city, r.city AS right_city FROM cities c LEFT JOIN rivers r USING (city);

-- case: an alias for the join
-- USING with AS names the merged columns.
-- mode: FULL because syntax unknown
SELECT j.city, people, river FROM cities FULL JOIN rivers USING (city) AS j;

-- change: rows that match by one column, by both, by none
INSERT INTO mayors VALUES ('it', 'Pisa', 'Michele'), ('fr', 'Paris', 'Emma');
INSERT INTO cities VALUES ('fr', 'Paris', 2100), ('us', 'Rome', 36);

-- change: a city is renamed on one side
UPDATE cities SET city = 'Roma' WHERE city = 'Rome';
UPDATE rivers SET river = 'Tevere', city = 'Roma' WHERE river = 'Tiber';

-- change: NULLs in merged columns
UPDATE cities SET city = NULL WHERE city = 'Oslo';
INSERT INTO rivers VALUES (NULL, 'Styx');

-- change: partners go
DELETE FROM mayors WHERE country = 'it';
DELETE FROM cities WHERE country = 'it';
