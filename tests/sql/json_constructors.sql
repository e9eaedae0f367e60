-- SQL/JSON constructors and queries
--
-- Documents made of columns and taken apart again, in the words of the SQL standard.

-- setup
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric, doc jsonb, raw text);
INSERT INTO items VALUES
    (1, 'pen', 1.50, '{"tags": ["a", "b"], "size": 3, "deep": {"x": 1}}', '{"k": 1}'),
    (2, NULL, NULL, '{"tags": [], "size": null}', '[1, 2]'),
    (3, 'it''s, "quoted"', 0, NULL, NULL);
CREATE TABLE owners (item int, who text, "Value" int);
INSERT INTO owners VALUES (1, 'ann', 1), (1, 'bob', NULL), (2, NULL, 5);

-- case: JSON_OBJECT
-- NULLs are kept, or left out.
SELECT id, JSON_OBJECT('id' : id, 'name' : name) AS doc,
       JSON_OBJECT('name' VALUE name, 'price' : price ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb) AS lean
FROM items;

-- case: JSON_OBJECT over a join
-- Values of several tables in one document, and as text.
SELECT i.id, JSON_OBJECT('item' : i.name, 'owner' : o.who, 'n' : o."Value" RETURNING text) AS doc
FROM items i LEFT JOIN owners o ON o.item = i.id;

-- case: JSON_ARRAY
-- NULLs are left out, or kept.
SELECT id, JSON_ARRAY(id, name, price) AS lean, JSON_ARRAY(name, price NULL ON NULL RETURNING jsonb) AS whole,
       JSON_ARRAY() AS none
FROM items;

-- case: constructors inside constructors
-- A document of documents; the text is a document already.
SELECT id, JSON_OBJECT('all' : JSON_ARRAY(raw FORMAT JSON, name), 'raw' : raw FORMAT JSON RETURNING jsonb) AS doc
FROM items;

-- case: grouped by a document
-- A constructor as a key, and in HAVING.
SELECT JSON_OBJECT('who' : who RETURNING text) AS who, count(*) AS n FROM owners
GROUP BY 1 HAVING JSON_ARRAY(count(*) RETURNING text) <> '[7]';

-- case: JSON, JSON_SCALAR and JSON_SERIALIZE
-- From text to a document and back.
SELECT id, JSON(raw) AS doc, JSON(raw WITH UNIQUE KEYS) AS strict_doc, JSON_SCALAR(price) AS scalar,
       JSON_SERIALIZE(doc RETURNING text) AS text
FROM items;

-- case: IS JSON
-- A test of texts.
SELECT id, raw IS JSON AS any_json, raw IS JSON OBJECT AS an_object, raw IS NOT JSON ARRAY AS no_array FROM items;

-- case: JSON_QUERY with a wrapper
-- Parts of a document, wrapped into an array or not, with and without quotes.
SELECT id, JSON_QUERY(doc, '$.tags') AS tags, JSON_QUERY(doc, '$.tags[*]' WITH WRAPPER) AS wrapped,
       JSON_QUERY(doc, '$.size' WITH CONDITIONAL WRAPPER) AS size,
       JSON_QUERY(doc, '$.tags[0]' RETURNING text OMIT QUOTES) AS first,
       JSON_QUERY(doc, '$.none' EMPTY ARRAY ON EMPTY) AS none
FROM items;

-- case: JSON_VALUE and JSON_EXISTS with arguments
-- PASSING takes columns of the query into the path.
SELECT i.id, JSON_VALUE(i.doc, '$.size' RETURNING int DEFAULT -1 ON EMPTY) AS size,
       JSON_EXISTS(i.doc, '$.size ? (@ > $least)' PASSING o."Value" AS least) AS larger
FROM items i JOIN owners o ON o.item = i.id;

-- case: a condition on a part
-- In WHERE.
SELECT id, name FROM items WHERE JSON_QUERY(doc, '$.tags' RETURNING jsonb WITHOUT WRAPPER) = '["a", "b"]';

-- change: new items and owners
INSERT INTO items VALUES (4, 'cup', 3, '{"tags": ["c"], "size": 9}', 'true');
INSERT INTO owners VALUES (3, 'cy', 3), (4, 'ann', 2);

-- change: documents change
UPDATE items SET doc = '{"tags": ["a", "b"], "size": 0}', raw = '{"a": {"b": null}}', name = 'x' WHERE id IN (2, 3);

-- change: owners and items go
DELETE FROM owners WHERE who = 'ann';
DELETE FROM items WHERE id = 1;
