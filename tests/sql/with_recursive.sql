-- WITH RECURSIVE
--
-- Trees and graphs: what is reachable, how far, by which way.

-- setup
CREATE TABLE parts (part text, parent text, qty int);
CREATE TABLE links (a int, b int);
INSERT INTO parts VALUES ('bike', NULL, 1), ('wheel', 'bike', 2), ('spoke', 'wheel', 36), ('rim', 'wheel', 1),
    ('bell', 'bike', 1), ('cart', NULL, 1);
INSERT INTO links VALUES (1, 2), (2, 3), (3, 1), (3, 4), (7, 8), (NULL, 1);

-- case: a tree
-- Every part with its depth.
WITH RECURSIVE tree AS (
    SELECT part, 0 AS depth FROM parts WHERE parent IS NULL
    UNION ALL
    SELECT p.part, t.depth + 1 FROM parts p JOIN tree t ON p.parent = t.part)
SELECT part, depth FROM tree;

-- case: the way to the root
-- Paths as text.
WITH RECURSIVE tree AS (
    SELECT part, part AS path FROM parts WHERE parent IS NULL
    UNION ALL
    SELECT p.part, t.path || '/' || p.part FROM parts p JOIN tree t ON p.parent = t.part)
SELECT path FROM tree;

-- case: a bill of materials
-- Quantities multiply on the way down, and are added up.
WITH RECURSIVE need AS (
    SELECT part AS top, part, qty FROM parts WHERE parent IS NULL
    UNION ALL
    SELECT n.top, p.part, n.qty * p.qty FROM parts p JOIN need n ON p.parent = n.part)
SELECT top, part, sum(qty) AS qty FROM need GROUP BY top, part;

-- case: reachable in a graph with cycles
-- UNION ends the recursion when nothing new appears.
WITH RECURSIVE reach AS (
    SELECT b FROM links WHERE a = 1
    UNION
    SELECT l.b FROM links l JOIN reach r ON l.a = r.b)
SELECT b FROM reach;

-- case: all pairs
-- The transitive closure.
WITH RECURSIVE closure AS (
    SELECT a, b FROM links
    UNION
    SELECT c.a, l.b FROM closure c JOIN links l ON l.a = c.b)
SELECT a, b FROM closure;

-- case: bounded depth
-- UNION ALL with a bound, cycles and all.
WITH RECURSIVE walk AS (
    SELECT a, b, 1 AS steps FROM links
    UNION ALL
    SELECT w.a, l.b, w.steps + 1 FROM walk w JOIN links l ON l.a = w.b WHERE w.steps < 3)
SELECT a, b, steps FROM walk;

-- case: recursion joined and counted
-- How many parts are below each part.
WITH RECURSIVE below AS (
    SELECT parent AS top, part FROM parts WHERE parent IS NOT NULL
    UNION
    SELECT b.top, p.part FROM below b JOIN parts p ON p.parent = b.part)
SELECT p.part, count(b.part) AS below FROM parts p LEFT JOIN below b ON b.top = p.part GROUP BY p.part;

-- case: leaves only
-- A filter after the recursion.
WITH RECURSIVE tree AS (
    SELECT part, part AS root FROM parts WHERE parent IS NULL
    UNION ALL
    SELECT p.part, t.root FROM parts p JOIN tree t ON p.parent = t.part)
SELECT t.root, t.part FROM tree t WHERE NOT EXISTS (SELECT FROM parts c WHERE c.parent = t.part);

-- case: a series
-- Recursion over a table's values.
WITH RECURSIVE steps AS (
    SELECT part, qty AS n FROM parts WHERE qty < 5
    UNION ALL
    SELECT part, n - 1 FROM steps WHERE n > 0)
SELECT part, n FROM steps;

-- change: new leaves and a shortcut
INSERT INTO parts VALUES ('nipple', 'spoke', 1), ('wheel', 'cart', 4);
INSERT INTO links VALUES (4, 7), (1, 3);

-- change: a subtree moves
UPDATE parts SET parent = 'cart', qty = 3 WHERE part = 'bell';
UPDATE links SET b = 5 WHERE a = 3 AND b = 4;

-- change: an inner node goes, the nodes below are cut off
DELETE FROM parts WHERE part = 'wheel' AND parent = 'bike';
DELETE FROM links WHERE a = 2;

-- change: the root goes
DELETE FROM parts WHERE part = 'cart';
DELETE FROM links WHERE a = 1;
