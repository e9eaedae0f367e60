-- Names and texts
--
-- Quoted names, reserved words, letters of all kinds, and texts that look like something else.

-- setup
CREATE SCHEMA "Odd Schema";
CREATE TABLE "Odd Schema"."Order" ("select" int, "Größe" text, "a""b" text, "with space" int);
CREATE TABLE "user" ("group" int, "Größe" text);
INSERT INTO "Odd Schema"."Order" VALUES
    (1, 'groß', E'tab\there', 1), (2, 'クジラ', E'line\nbreak', NULL), (3, '', 'NULL', 3), (4, NULL, '\N', 4),
    (5, '🐋', '"quoted", comma', 5), (3, '', 'NULL', 3);
INSERT INTO "user" VALUES (1, 'groß'), (2, '🐋'), (3, ''), (4, NULL);

-- case: quoted columns
-- Names need quotes, values are kept byte for byte.
SELECT "select", "Größe", "a""b", "with space" FROM "Odd Schema"."Order";

-- case: quoted aliases
-- Any text can be a column name.
SELECT "select" AS "Select", "Größe" || '!' AS "größer als 1 %s {x}" FROM "Odd Schema"."Order";

-- case: joins by text
-- Equality of strings, also of empty ones.
SELECT o."select", u."group" FROM "Odd Schema"."Order" o JOIN "user" u ON u."Größe" = o."Größe";

-- case: empty is not NULL
-- Groups keep them apart.
SELECT "Größe", count(*) AS n FROM "Odd Schema"."Order" GROUP BY "Größe";

-- case: quoted table aliases
-- Aliases may need quotes as well.
SELECT "O 1"."a""b" AS v FROM "Odd Schema"."Order" AS "O 1" WHERE "O 1"."with space" > 2;

-- case: strings with quotes and backslashes
-- Literals of all spellings.
SELECT "select" FROM "Odd Schema"."Order" WHERE "a""b" IN ('NULL', E'line\nbreak', '\N', $$it's$$, U&'\0061');

-- case: length and case of letters
-- Characters, not bytes.
SELECT "Größe", length("Größe") AS len, upper("Größe") AS upper, octet_length("Größe") AS bytes FROM "user";

-- case: same column name on both sides
-- The alias decides.
SELECT a."Größe" AS left, b."Größe" AS right FROM "user" a JOIN "user" b ON b."group" = a."group" + 1;

-- case: names of types and functions as columns
-- Reserved words everywhere.
SELECT u."group" AS "from", count(*) AS "count", max(u."Größe") AS "max" FROM "user" u GROUP BY u."group";

-- change: more odd texts
INSERT INTO "Odd Schema"."Order" VALUES (6, 'ﬁ', 'it''s', 6), (7, E'a\\b', E'\\', 7);
INSERT INTO "user" VALUES (5, 'ﬁ'), (6, E'a\\b');

-- change: texts change
UPDATE "Odd Schema"."Order" SET "Größe" = '🐋' || "Größe", "a""b" = NULL WHERE "select" < 3;
UPDATE "user" SET "Größe" = '' WHERE "Größe" IS NULL;

-- change: rows go
DELETE FROM "Odd Schema"."Order" WHERE "Größe" = '' OR "Größe" IS NULL;
DELETE FROM "user" WHERE "group" = 2;
