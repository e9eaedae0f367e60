-- User-defined functions, operators and aggregates
--
-- What is immutable is computed by PostgreSQL row by row; aggregates are computed from the values of a group.

-- setup
CREATE FUNCTION net(gross numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT round(gross / 1.25, 2)';
CREATE FUNCTION grade(points int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN RETURN CASE WHEN points >= 50 THEN 'pass' WHEN points IS NULL THEN 'absent' ELSE 'fail' END; END $$;
CREATE FUNCTION multiply(state numeric, v numeric) RETURNS numeric LANGUAGE sql IMMUTABLE STRICT AS 'SELECT state * v';
CREATE AGGREGATE product(numeric) (SFUNC = multiply, STYPE = numeric, INITCOND = '1');
CREATE FUNCTION is_even(n int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT n % 2 = 0';
CREATE TABLE marks (id int, class text, points int, fee numeric(6, 2));
INSERT INTO marks VALUES (1, 'x', 60, 12.50), (2, 'x', 40, 10), (3, 'y', NULL, NULL), (4, NULL, 50, 0.01),
    (2, 'x', 40, 10);

-- case: in the select list
-- SQL and PL/pgSQL functions.
SELECT id, grade(points) AS grade, net(fee) AS net FROM marks;

-- case: in WHERE
-- A function as a filter.
SELECT id FROM marks WHERE is_even(id) OR grade(points) = 'absent';

-- case: as a key
-- Groups by a function's result.
SELECT grade(points) AS grade, count(*) AS n, sum(net(fee)) AS net FROM marks GROUP BY grade(points);

-- case: in a join
-- Joined by a function's result.
SELECT a.id, b.id AS other FROM marks a JOIN marks b ON grade(b.points) = grade(a.points) AND a.id < b.id;

-- case: a user-defined aggregate
-- Computed anew for touched groups.
SELECT class, product(fee) AS product FROM marks GROUP BY class;

-- case: over everything
-- The initial value over nothing.
SELECT product(fee) AS product FROM marks WHERE points > 45;

-- change: new marks
INSERT INTO marks VALUES (5, 'y', 49, 3), (6, 'z', 100, 2);

-- change: points change
UPDATE marks SET points = COALESCE(points, 0) + 10, fee = COALESCE(fee, 1) + 1 WHERE id IN (2, 3, 5);

-- change: all that passed go
DELETE FROM marks WHERE points >= 50;
