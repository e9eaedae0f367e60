-- Kinds of tables
--
-- Partitioned tables, inheritance, generated columns, tables without a key, tables with triggers.

-- setup
CREATE TABLE logs (day date, level int, line text) PARTITION BY RANGE (day);
CREATE TABLE logs_jan PARTITION OF logs FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE logs_feb PARTITION OF logs FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE TABLE logs_rest PARTITION OF logs DEFAULT;
INSERT INTO logs VALUES ('2026-01-05', 1, 'a'), ('2026-02-05', 2, 'b'), (NULL, 3, 'c'), ('2026-01-05', 1, 'a');
CREATE TABLE animals (name text, legs int);
CREATE TABLE birds (wings int) INHERITS (animals);
INSERT INTO animals VALUES ('dog', 4);
INSERT INTO birds VALUES ('owl', 2, 2);
CREATE TABLE boxes (w int, h int, area int GENERATED ALWAYS AS (w * h) STORED,
    half int GENERATED ALWAYS AS (w / 2) VIRTUAL);
INSERT INTO boxes VALUES (2, 3), (4, NULL);

-- case: a partitioned table
-- Changes of all partitions count.
SELECT day, level, line FROM logs WHERE level < 3;

-- case: groups over partitions
-- Rows may move between partitions.
SELECT date_trunc('month', day) AS month, count(*) AS n, max(level) AS worst FROM logs GROUP BY 1;

-- case: one partition
-- A partition is a table as well.
SELECT day, line FROM logs_jan;

-- case: inheritance
-- A parent shows the rows of its children.
SELECT name, legs FROM animals;

-- case: a child
-- With its own columns.
SELECT name, wings FROM birds;

-- case: generated columns
-- Stored and virtual ones.
SELECT w, area, half FROM boxes WHERE area IS NULL OR area > 5;

-- case: joined kinds
-- Any mixture.
SELECT l.line, a.name, b.area FROM logs l JOIN animals a ON a.legs = l.level JOIN boxes b ON b.w = a.legs;

-- change: writes to the root and to a partition
INSERT INTO logs VALUES ('2026-02-20', 4, 'd'), ('2030-01-01', 2, 'e');
INSERT INTO logs_jan VALUES ('2026-01-31', 2, 'f');
INSERT INTO birds VALUES ('emu', 2, 0);
INSERT INTO boxes VALUES (9, 9);

-- change: rows move to another partition
UPDATE logs SET day = day + 30, level = level + 1 WHERE level <= 2;
UPDATE animals SET legs = legs + 1 WHERE name IN ('owl', 'dog');
UPDATE boxes SET h = 2 WHERE w = 4;

-- change: rows go
DELETE FROM logs WHERE day IS NULL OR line = 'a';
DELETE FROM ONLY animals;
DELETE FROM boxes WHERE w = 2;

-- change: a new partition, and a row in it
CREATE TABLE logs_mar PARTITION OF logs FOR VALUES FROM ('2027-03-01') TO ('2027-04-01');
INSERT INTO logs VALUES ('2027-03-03', 1, 'g'), ('2026-01-01', 1, 'h');
INSERT INTO animals VALUES ('cat', 4);
