-- IN and NOT IN with NULLs
--
-- x NOT IN (a list with a NULL) is never true: one NULL in the list empties the result.

-- setup
CREATE TABLE tags (id int, tag text, rank int);
CREATE TABLE wanted (tag text, rank int);
CREATE TABLE banned (tag text);
INSERT INTO tags VALUES (1, 'red', 1), (2, 'blue', 2), (3, NULL, 3), (4, 'red', NULL), (2, 'blue', 2);
INSERT INTO wanted VALUES ('red', 1), ('red', 1), ('pink', 9);

-- case: IN
-- Duplicates in the list do not multiply rows.
SELECT id, tag FROM tags WHERE tag IN (SELECT tag FROM wanted);

-- case: NOT IN
-- An empty list keeps all rows, even NULLs; a NULL in the list removes all.
SELECT id, tag FROM tags WHERE tag NOT IN (SELECT tag FROM banned);

-- case: NOT IN with a filter against NULL
-- The usual remedy.
SELECT id, tag FROM tags WHERE tag NOT IN (SELECT tag FROM banned WHERE tag IS NOT NULL);

-- case: two columns
-- A row is looked for.
SELECT id FROM tags WHERE (tag, rank) IN (SELECT tag, rank FROM wanted);

-- case: NOT IN with two columns
-- A partly NULL row can be unknown.
SELECT id FROM tags WHERE (tag, rank) NOT IN (SELECT tag, rank FROM wanted);

-- case: as a value
-- true, false or unknown.
SELECT id, tag IN (SELECT tag FROM wanted) AS is_wanted, tag NOT IN (SELECT tag FROM banned) AS is_allowed FROM tags;

-- case: inside OR and CASE
-- Where the unknown matters.
SELECT id, CASE WHEN tag IN (SELECT tag FROM banned) THEN 'banned' ELSE 'fine' END AS state
FROM tags WHERE rank = 3 OR tag IN (SELECT tag FROM wanted);

-- case: correlated IN
-- The list depends on the row.
SELECT id FROM tags t WHERE t.tag IN (SELECT w.tag FROM wanted w WHERE w.rank <= t.rank);

-- case: IN a list of aggregates
-- Rows with the highest rank of a tag.
SELECT id, tag FROM tags WHERE rank IN (SELECT max(rank) FROM tags GROUP BY tag);

-- case: IN and NOT IN together
-- Wanted and not banned.
SELECT id FROM tags WHERE tag IN (SELECT tag FROM wanted) AND tag NOT IN (SELECT tag FROM banned);

-- case: IN over a union
-- Any query can be the list.
SELECT id FROM tags WHERE tag IN (SELECT tag FROM wanted UNION SELECT tag FROM banned);

-- change: something is banned
INSERT INTO banned VALUES ('blue');
INSERT INTO wanted VALUES ('blue', 2);

-- change: a NULL is banned
INSERT INTO banned VALUES (NULL);
UPDATE wanted SET rank = NULL WHERE tag = 'red';

-- change: the NULL goes
DELETE FROM banned WHERE tag IS NULL;
UPDATE tags SET tag = COALESCE(tag, 'pink'), rank = COALESCE(rank, 9);

-- change: the lists are emptied
DELETE FROM banned;
DELETE FROM wanted;
