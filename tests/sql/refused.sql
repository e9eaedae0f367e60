-- What is refused, and what is recomputed
--
-- A query without one right answer is refused in every mode. What has an answer but no delta is recomputed.

-- setup
CREATE TABLE t (id int, v int, at timestamptz);
CREATE TABLE u (id int, name text);
CREATE UNLOGGED TABLE quick (id int);
CREATE SEQUENCE seq;
CREATE MATERIALIZED VIEW frozen AS SELECT id FROM t;
INSERT INTO t VALUES (1, 10, now()), (2, 20, NULL), (2, 20, NULL), (NULL, NULL, NULL);
INSERT INTO u VALUES (1, 'a'), (2, NULL);

-- case: random
-- A volatile function has a new answer every time.
-- error: random
SELECT id, random() AS r FROM t;

-- case: clock_timestamp
-- Moves within a query.
-- error: clock_timestamp
SELECT id FROM t WHERE at < clock_timestamp();

-- case: nextval
-- Has an effect.
-- error: nextval
SELECT id, nextval('seq') AS n FROM t;

-- case: LIMIT without ORDER BY
-- Any rows would be right.
-- error: LIMIT without ORDER BY
SELECT id FROM t LIMIT 1;

-- case: LIMIT without ORDER BY inside
-- In a subquery as well.
-- error: LIMIT without ORDER BY
SELECT count(*) AS n FROM (SELECT id FROM t LIMIT 1) x;

-- case: OFFSET without ORDER BY
-- The same for OFFSET.
-- error: without ORDER BY
SELECT id FROM t OFFSET 1;

-- case: an unlogged table
-- A crash empties it without telling anybody.
-- error: cannot be captured
SELECT id FROM quick;

-- case: no column names
-- A table needs one name for each column.
-- error: specified more than once
SELECT id, id FROM t;

-- case: an unknown column
-- In PostgreSQL's words.
-- error: column "nope" does not exist
SELECT nope FROM t;

-- case: a syntax error
-- In PostgreSQL's words.
-- error: syntax error at or near "SELEC"
SELEC id FROM t;

-- case: not a query
-- Only SELECT, VALUES and WITH.
-- error: syntax error
DELETE FROM t;

-- case: division by zero
-- An error of the first evaluation is an error of the creation.
-- error: division by zero
SELECT id, v / (v - 10) AS q FROM t;

-- case: SELECT INTO
-- Not a query either.
-- error: INTO
SELECT id INTO new_table FROM t;

-- case: a statement that writes
-- WITH may not change data.
-- error: WITH
WITH gone AS (DELETE FROM t RETURNING id) SELECT id FROM gone;

-- case: TABLESAMPLE
-- A sample by a seed has an answer, but no delta.
-- mode: FULL because TABLESAMPLE
SELECT id FROM t TABLESAMPLE bernoulli (100) REPEATABLE (1);

-- case: FOR UPDATE
-- A lock has no meaning in a stream table.
-- mode: FULL because FOR UPDATE
SELECT id FROM t FOR UPDATE;

-- case: a materialized view
-- Its changes are not captured.
-- mode: FULL because frozen
SELECT id FROM frozen;

-- case: a session's setting
-- The answer depends on who asks.
-- mode: FULL because current_setting
SELECT id, current_setting('server_version_num')::int > 0 AS modern FROM t;

-- case: the catalog
-- System tables have no triggers.
-- mode: FULL because pg_class
SELECT relname FROM pg_catalog.pg_class WHERE relname LIKE 'my\_%';

-- case: a whole row as a value
-- A row of the table as one column.
-- mode: FULL because row
SELECT t AS whole FROM t;

-- case: a system column
-- Where a row is stored is not part of its changes.
-- mode: FULL because tableoid
SELECT id, tableoid IS NOT NULL AS stored FROM t;

-- change: rows come
INSERT INTO t VALUES (3, 30, now()), (4, NULL, NULL);
INSERT INTO u VALUES (3, 'c');
REFRESH MATERIALIZED VIEW frozen;
CREATE TABLE my_new ();

-- change: rows change
UPDATE t SET v = v + 1, id = id + 1;
REFRESH MATERIALIZED VIEW frozen;
DROP TABLE my_new;

-- change: rows go
DELETE FROM t WHERE id > 2;
