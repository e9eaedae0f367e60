-- Set-returning functions
--
-- Functions in FROM and in the select list that make several rows of one.

-- setup
CREATE TABLE posts (id int, tags text[], scores int[], doc jsonb, days int);
INSERT INTO posts VALUES
    (1, '{red,blue}', '{1,2,3}', '{"lines": [{"item": "pen", "qty": 2}, {"item": "ink", "qty": 1}], "k": {"a": 1}}', 2),
    (2, '{}', NULL, '{"lines": []}', 0),
    (3, '{red,NULL,red}', '{5}', '{"lines": [{"item": null}], "k": {"b": null, "c": 3}}', 3),
    (4, NULL, '{7,8}', NULL, NULL);

-- case: unnest in FROM
-- One row for each element, NULL elements included.
SELECT p.id, t.tag FROM posts p CROSS JOIN unnest(p.tags) AS t(tag);

-- case: unnest with padding
-- Posts without tags stay.
SELECT p.id, t.tag FROM posts p LEFT JOIN unnest(p.tags) AS t(tag) ON true;

-- case: WITH ORDINALITY
-- The place of each element.
SELECT p.id, t.tag, t.n FROM posts p, unnest(p.tags) WITH ORDINALITY AS t(tag, n);

-- case: two arrays side by side
-- The shorter one is filled up with NULLs.
SELECT p.id, t.tag, t.score FROM posts p, unnest(p.tags, p.scores) AS t(tag, score);

-- case: generate_series
-- One row for each day.
SELECT p.id, g.day FROM posts p, generate_series(1, p.days) AS g(day);

-- case: in the select list
-- The same, written shorter.
SELECT id, unnest(scores) AS score FROM posts;

-- case: jsonb_array_elements
-- Lines of a document.
SELECT p.id, l.line ->> 'item' AS item, (l.line ->> 'qty')::int AS qty
FROM posts p, jsonb_array_elements(p.doc -> 'lines') AS l(line);

-- case: jsonb_each_text
-- Keys and values of an object.
SELECT p.id, e.key, e.value FROM posts p, jsonb_each_text(p.doc -> 'k') AS e(key, value);

-- case: jsonb_to_recordset
-- Rows with typed columns.
SELECT p.id, r.item, r.qty FROM posts p, jsonb_to_recordset(p.doc -> 'lines') AS r(item text, qty int);

-- case: JSON_TABLE
-- The standard's way of saying the same.
SELECT p.id, j.item, j.qty
FROM posts p, JSON_TABLE(p.doc, '$.lines[*]' COLUMNS (item text PATH '$.item', qty int PATH '$.qty')) AS j;

-- case: groups over elements
-- How often each tag is used.
SELECT t.tag, count(*) AS n, count(DISTINCT p.id) AS posts FROM posts p, unnest(p.tags) AS t(tag) GROUP BY t.tag;

-- case: words of a text
-- Functions of text.
SELECT p.id, w.word FROM posts p, regexp_split_to_table(array_to_string(p.tags, ' '), '[ l]') AS w(word);

-- case: a series joined with a table
-- Days without a post are padded.
SELECT g.n, p.id FROM generate_series(0, 3) AS g(n) LEFT JOIN posts p ON p.days = g.n;

-- change: new arrays and documents
INSERT INTO posts VALUES (5, '{green}', '{4,4}', '{"lines": [{"item": "pen", "qty": 9}], "k": {"a": 2}}', 1);

-- change: elements come and go
UPDATE posts
SET tags = tags || '{new}', scores = scores[2:], doc = jsonb_set(doc, '{lines,0}', '{"item": "cap", "qty": 4}'),
    days = days + 1 WHERE id < 4;

-- change: NULL instead of empty, and the other way round
UPDATE posts SET tags = CASE WHEN tags IS NULL THEN '{}'::text[] END, days = NULL WHERE id IN (1, 4);

-- change: posts go
DELETE FROM posts WHERE id > 2;
