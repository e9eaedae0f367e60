-- string_agg and array_agg
--
-- Lists of the values of a group. The order inside is the query's; where it is open, Runnel closes it, and the stream
-- table's recorded query says how.

-- setup
CREATE TABLE tracks (album text, pos int, title text, seconds int);
INSERT INTO tracks VALUES
    ('blue', 1, 'river', 240), ('blue', 2, 'carey', 180), ('blue', 2, 'carey', 180), ('red', 1, NULL, 200),
    ('red', 2, 'state', NULL), (NULL, 1, 'loose', 10);

-- case: an ordered string
-- Titles in order of position.
SELECT album, string_agg(title, ', ' ORDER BY pos, title) AS titles FROM tracks GROUP BY album;

-- case: an ordered array
-- NULLs are elements too.
SELECT album, array_agg(title ORDER BY pos DESC, title) AS titles FROM tracks GROUP BY album;

-- case: DISTINCT elements
-- Each value once, in its own order.
SELECT album, array_agg(DISTINCT title) AS titles, string_agg(DISTINCT title, '/') AS line FROM tracks GROUP BY album;

-- case: FILTER
-- NULLs can be left out.
SELECT album, array_agg(pos ORDER BY pos) FILTER (WHERE title IS NOT NULL) AS named FROM tracks GROUP BY album;

-- case: NULLS FIRST
-- Where NULLs go is the query's choice.
SELECT array_agg(seconds ORDER BY seconds DESC NULLS LAST) AS down,
       array_agg(seconds ORDER BY seconds NULLS FIRST) AS up FROM tracks;

-- case: an open order
-- Without ORDER BY any order would be right; Runnel chooses one and keeps to it.
SELECT album, string_agg(title, ',') AS titles FROM tracks GROUP BY album;

-- case: a separator that varies
-- The second argument may be a column.
SELECT string_agg(title, album ORDER BY pos, title, album) AS odd FROM tracks WHERE album IS NOT NULL;

-- case: over nothing
-- NULL, not an empty array.
SELECT array_agg(pos ORDER BY pos) AS positions FROM tracks WHERE seconds > 1000;

-- case: expressions around and inside
-- Lengths of lists, lists of expressions.
SELECT album, cardinality(array_agg(upper(title) ORDER BY title)) AS n,
       array_to_string(array_agg(seconds / 60 ORDER BY seconds), '+') AS minutes
FROM tracks GROUP BY album;

-- case: arrays of arrays and of rows joined
-- An aggregate over a join.
SELECT a.album, array_agg(ARRAY[a.pos, b.pos] ORDER BY a.pos, b.pos) AS pairs
FROM tracks a JOIN tracks b ON b.album = a.album AND b.pos >= a.pos GROUP BY a.album;

-- change: a track in the middle and a long one
INSERT INTO tracks VALUES ('blue', 1, 'all', 99), ('red', 1, 'amber', 2000);

-- change: positions are swapped and a title is found
UPDATE tracks SET pos = 3 - pos, title = COALESCE(title, 'holy') WHERE album = 'red';

-- change: one copy of a duplicate goes
DELETE FROM tracks WHERE ctid IN (SELECT ctid FROM tracks WHERE title = 'carey' LIMIT 1);

-- change: nothing but NULL titles
UPDATE tracks SET title = NULL, seconds = NULL;
