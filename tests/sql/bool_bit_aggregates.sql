-- Boolean and bit aggregates
--
-- bool_and turns with the first false and back with the last; bits are recomputed from the values of the group.

-- setup
CREATE TABLE checks (job text, passed boolean, flags int, mask bit(4), big bigint);
INSERT INTO checks VALUES
    ('build', true, 3, B'0011', 7), ('build', true, 5, B'0101', 12), ('test', false, 6, B'1111', NULL),
    ('test', NULL, NULL, NULL, 1), ('lint', NULL, NULL, NULL, NULL), (NULL, true, 1, B'1000', 255);

-- case: bool_and
-- NULLs do not count; all NULL gives NULL.
SELECT job, bool_and(passed) AS green FROM checks GROUP BY job;

-- case: bool_or and every
-- every is bool_and by its standard name.
SELECT job, bool_or(passed) AS any_green, every(passed) AS all_green FROM checks GROUP BY job;

-- case: a condition inside
-- Any boolean expression.
SELECT job, bool_and(flags > 2) AS high, bool_or(flags IS NULL) AS has_null FROM checks GROUP BY job;

-- case: bits of integers
-- and, or, exclusive or.
SELECT job, bit_and(flags) AS all_bits, bit_or(flags) AS any_bit, bit_xor(flags) AS odd_bits FROM checks GROUP BY job;

-- case: bits of bit strings
-- Also for the type bit.
SELECT job, bit_and(mask) AS all_bits, bit_or(mask) AS any_bit, bit_xor(mask) AS odd_bits FROM checks GROUP BY job;

-- case: bits of bigint over the whole table
-- One row, NULL when there is no value.
SELECT bit_or(big) AS any_bit, bit_and(big) AS all_bits FROM checks;

-- case: HAVING a boolean aggregate
-- Jobs without a failure.
SELECT job, count(*) AS n FROM checks GROUP BY job HAVING bool_and(passed);

-- case: distinct bits
-- bit_xor of DISTINCT values differs from bit_xor.
SELECT job, bit_xor(DISTINCT flags) AS bits FROM checks GROUP BY job;

-- change: a failure and a duplicate
INSERT INTO checks VALUES ('build', false, 5, B'0101', 2), ('lint', true, 4, B'0100', 2);

-- change: results flip
UPDATE checks SET passed = NOT passed, flags = flags + 1, mask = ~mask;

-- change: failures are gone
DELETE FROM checks WHERE passed IS FALSE;

-- change: only unknown results
UPDATE checks SET passed = NULL, flags = NULL, mask = NULL, big = NULL;
