-- Numbers
--
-- Large, small and special numbers survive the way through joins, groups and sums.

-- setup
CREATE TABLE nums (id int, big bigint, exact numeric, money numeric(12, 2), fl double precision, sm smallint);
INSERT INTO nums VALUES
    (1, 9223372036854775807, 12345678901234567890.123456789, 0.01, 0.1, 32767),
    (2, -9223372036854775808, 'NaN', -9999999999.99, 'NaN', -32768),
    (3, 0, 0.000, NULL, '-Infinity', 0),
    (4, NULL, 'Infinity', 0.10, 1e300, NULL),
    (3, 0, 0.000, NULL, '-Infinity', 0);
CREATE TABLE rates (factor numeric, fl double precision);
INSERT INTO rates VALUES (0, 0.1), (12345678901234567890.1234567890, 'NaN'), (NULL, 1e300);

-- case: as they are
-- Every digit is kept.
SELECT id, big, exact, money, fl, sm FROM nums;

-- case: sums beyond bigint
-- The sum of bigints is a numeric.
SELECT sum(big) AS total, avg(big) AS mean, count(big) AS n FROM nums;

-- case: exact sums
-- NaN and Infinity take part; without them digits are exact.
SELECT id, sum(exact) AS total, max(exact) AS most FROM nums GROUP BY id;

-- case: money
-- Bounded numerics are added exactly, with their scale.
SELECT sum(money) AS total, avg(money) AS mean, min(money) AS least FROM nums;

-- case: floats
-- Special values are ordinary values of a group.
SELECT id % 2 AS odd, sum(fl) AS total, min(fl) AS least, max(fl) AS most FROM nums GROUP BY id % 2;

-- case: equal numerics of different scale join
-- 0.000 equals 0, trailing zeros do not matter.
SELECT n.id FROM nums n JOIN rates r ON r.factor = n.exact;

-- case: NaN joins NaN
-- PostgreSQL counts NaN as equal to itself.
SELECT n.id, r.fl FROM nums n JOIN rates r ON r.fl = n.fl;

-- case: mixed types join
-- int, bigint and numeric are compared by value.
SELECT a.id, b.id AS other FROM nums a JOIN nums b ON a.id = b.sm OR a.big = b.exact;

-- case: smallint arithmetic
-- Types follow PostgreSQL's rules.
SELECT sm, sm::int * 2 AS twice, (sm / 7.0)::numeric(10, 4) AS part FROM nums;

-- case: group by special values
-- NaN and Infinity are keys like others.
SELECT fl, count(*) AS n FROM nums GROUP BY fl;

-- case: sums of products longer than 38 digits
-- A product of bounded numbers has bounded digits, here 42 and more: it is added up in pieces, to the last digit.
SELECT sm > 0 AS positive, sum(money * money * big::numeric(19, 0)) AS s, avg(money * big::numeric(19, 0)) AS a,
       var_pop(big::numeric(19, 0)) AS v
FROM nums GROUP BY 1;

-- change: more of the same
INSERT INTO nums VALUES (5, 9223372036854775807, 1e-20, 9999999999.99, 0.2, 1),
    (6, 1, 0.0000000000000000000000000001, 0.30, 1e-300, 2);

-- change: special values go, others come
UPDATE nums SET exact = 1.5, fl = 0.1, money = 0.10 WHERE id = 2;
UPDATE nums SET fl = 'NaN', big = 2 WHERE id = 4;

-- change: infinities go
DELETE FROM nums WHERE exact = 'Infinity' OR fl = '-Infinity';
UPDATE rates SET factor = 1.50, fl = 0.1 WHERE factor = 0;

-- change: only small numbers
DELETE FROM nums WHERE big NOT BETWEEN -1000 AND 1000;
