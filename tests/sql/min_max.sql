-- min and max of text, dates, intervals and more
--
-- The extreme of a group is read from the values of the group, so deleting it costs no scan. Order is PostgreSQL's.

-- setup
CREATE TABLE guests (
    room int, name text COLLATE "C", label text, born date, stay interval, left_at timestamptz, bill numeric, rate real
);
INSERT INTO guests VALUES
    (1, 'bob', 'Äpfel', '1980-05-01', '3 days', '2026-01-04 10:00+00', 10.5, 1.5),
    (1, 'Ann', 'apple', '1990-01-31', '49 hours', '2026-01-03 10:00+02', 99, -2),
    (1, 'Zed', 'Zebra', NULL, '1 mon', NULL, NULL, 'NaN'),
    (2, 'ann', 'b', '2001-12-31', NULL, '2026-02-01 00:00+00', 0, 0),
    (2, NULL, NULL, NULL, '1 hour', NULL, -1, NULL);

-- case: text in C order
-- Upper case comes before lower case.
SELECT room, min(name) AS first, max(name) AS last FROM guests GROUP BY room;

-- case: text by the column's collation
-- The database's order, whatever it is.
SELECT room, min(label) AS first, max(label) AS last FROM guests GROUP BY room;

-- case: text by another collation
-- COLLATE inside the aggregate decides.
SELECT room, min(label COLLATE "C") AS first, max(upper(label) COLLATE "C") AS last FROM guests GROUP BY room;

-- case: dates and moments
-- Moments compare as instants, whatever zone they were written in.
SELECT room, max(born) AS youngest, min(left_at) AS first_out, max(left_at) AS last_out FROM guests GROUP BY room;

-- case: intervals
-- A month is 30 days, a day is 24 hours.
SELECT room, min(stay) AS shortest, max(stay) AS longest FROM guests GROUP BY room;

-- case: numbers with NaN
-- NaN is greater than every number.
SELECT room, min(rate) AS least, max(rate) AS most, max(bill) AS bill FROM guests GROUP BY room;

-- case: arrays and rows of the whole table
-- Anything with an order has extremes.
SELECT min(ARRAY[room, bill::int]) AS least, max(ARRAY[room, bill::int]) AS most FROM guests;

-- case: the spread
-- Expressions over both extremes.
SELECT room, max(born) - min(born) AS days, max(bill) - min(bill) AS spread FROM guests GROUP BY room;

-- case: least and greatest across rooms
-- Extremes of extremes.
SELECT min(last) AS least, max(last) AS most FROM (SELECT room, max(name) AS last FROM guests GROUP BY room) g;

-- change: new extremes
INSERT INTO guests VALUES
    (1, 'AAA', 'aaa', '1900-01-01', '1 second', '2025-12-31 23:59+00', -5, '-Infinity'),
    (2, 'zzz', 'éclair', '2020-02-29', '1 year', 'infinity', 1000, 'Infinity');

-- change: the extremes change
UPDATE guests SET name = 'mmm', label = 'mmm', born = '1950-06-15', stay = '2 days', bill = 7, rate = 1
WHERE name IN ('AAA', 'zzz');

-- change: the extremes are deleted
DELETE FROM guests WHERE name = 'Zed' OR label = 'apple';

-- change: only NULLs are left in room 2
DELETE FROM guests WHERE room = 2 AND name IS NOT NULL;
