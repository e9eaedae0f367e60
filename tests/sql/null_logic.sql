-- NULL logic
--
-- NULL is neither equal nor unequal to anything. Groups and DISTINCT treat NULLs as one value, joins never match them.

-- setup
CREATE TABLE people (id int, nick text, age int, member boolean);
INSERT INTO people VALUES (1, 'ann', 30, true), (2, NULL, 41, NULL), (3, 'cy', NULL, false), (4, NULL, NULL, NULL);
CREATE TABLE badges (nick text, badge text);
INSERT INTO badges VALUES ('ann', 'gold'), (NULL, 'lost'), (NULL, 'lost'), ('zoe', NULL);

-- case: IS NULL
-- Rows without a nickname.
SELECT id, age FROM people WHERE nick IS NULL;

-- case: unequal leaves NULLs out
-- `<>` is not true for NULL, so those rows are absent.
SELECT id, nick FROM people WHERE nick <> 'ann';

-- case: IS DISTINCT FROM
-- Unlike `<>`, this counts NULL as a value of its own.
SELECT id, nick FROM people WHERE nick IS DISTINCT FROM 'ann';

-- case: three values of a boolean
-- IS TRUE, IS FALSE and IS NULL split all rows without overlap.
SELECT id, member IS TRUE AS yes, member IS FALSE AS no, member IS NULL AS unknown, member IS NOT TRUE AS not_yes
FROM people;

-- case: IS UNKNOWN
-- Of a boolean it means the same as IS NULL.
SELECT id FROM people WHERE member IS UNKNOWN;

-- case: NOT of unknown
-- NOT (age > 35) is unknown where the age is.
SELECT id FROM people WHERE NOT (age > 35);

-- case: NULL keys do not join
-- Two NULLs are not equal, so lost badges have no owner.
SELECT p.id, b.badge FROM people p JOIN badges b ON b.nick = p.nick;

-- case: NULL keys joined on purpose
-- IS NOT DISTINCT FROM in the condition brings NULLs together.
SELECT p.id, b.badge FROM people p JOIN badges b ON b.nick IS NOT DISTINCT FROM p.nick;

-- case: NULLs are one group
-- GROUP BY puts all NULLs together.
SELECT nick, count(*) AS rows, count(age) AS ages FROM people GROUP BY nick;

-- case: aggregates skip NULLs
-- count(*) counts rows, count(age) ages; the sum of no ages is NULL.
SELECT member, count(*) AS n, count(age) AS known, sum(age) AS total, avg(age) AS mean FROM people GROUP BY member;

-- case: DISTINCT keeps one NULL
-- However many rows have none.
SELECT DISTINCT nick FROM people;

-- case: NULLIF, COALESCE, GREATEST
-- GREATEST ignores NULLs, COALESCE takes the first value.
SELECT id, NULLIF(nick, 'cy') AS nick, COALESCE(age, 0) AS age, GREATEST(age, 35) AS at_least FROM people;

-- case: concatenation with NULL
-- `||` gives NULL, concat() does not.
SELECT id, nick || '!' AS strict, concat(nick, '!') AS lenient FROM people;

-- change: a name becomes known, another is forgotten
UPDATE people SET nick = CASE WHEN id = 2 THEN 'zoe' WHEN id = 1 THEN NULL ELSE nick END, member = NOT member;

-- change: badges come and go
INSERT INTO badges VALUES ('cy', 'red'), ('zoe', 'blue'), (NULL, 'found');
DELETE FROM badges WHERE badge = 'lost';

-- change: ages become known
UPDATE people SET age = id * 10 WHERE age IS NULL;

-- change: all rows with a NULL anywhere go
DELETE FROM people WHERE nick IS NULL OR age IS NULL OR member IS NULL;
