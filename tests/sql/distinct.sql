-- DISTINCT
--
-- A row is there while at least one input row produces it.

-- setup
CREATE TABLE hits (ip text, page text, ms numeric(6, 1), at date);
CREATE TABLE pages (page text, owner text);
INSERT INTO hits VALUES
    ('1', 'home', 1.5, '2026-01-01'), ('1', 'home', 2.5, '2026-01-01'), ('2', 'home', 1.5, '2026-01-02'),
    (NULL, 'help', NULL, NULL), (NULL, 'help', NULL, NULL);
INSERT INTO pages VALUES ('home', 'ann'), ('help', 'bob'), ('help', 'bob'), ('faq', NULL);

-- case: one column
-- Pages that were hit.
SELECT DISTINCT page FROM hits;

-- case: several columns
-- Pairs, NULLs included.
SELECT DISTINCT ip, page FROM hits;

-- case: all columns
-- Copies of a row collapse.
SELECT DISTINCT * FROM hits;

-- case: an expression
-- Distinct after the computation.
SELECT DISTINCT length(page) AS len, ms > 2 AS slow FROM hits;

-- case: over a join
-- Owners whose pages were hit.
SELECT DISTINCT p.owner FROM pages p JOIN hits h ON h.page = p.page;

-- case: over an outer join
-- A padded row is a row like others.
SELECT DISTINCT p.page, h.ip FROM pages p LEFT JOIN hits h ON h.page = p.page;

-- case: over groups
-- Different counts.
SELECT DISTINCT count(*) AS n FROM hits GROUP BY page;

-- case: DISTINCT in a subquery that is joined
-- The inner DISTINCT is a stage of its own.
SELECT p.owner, d.ip FROM pages p JOIN (SELECT DISTINCT page, ip FROM hits) d ON d.page = p.page;

-- case: counting distinct rows
-- An aggregate over DISTINCT.
SELECT count(*) AS n FROM (SELECT DISTINCT ip, page FROM hits) d;

-- case: DISTINCT and GROUP BY together
-- Groups that look the same collapse.
SELECT DISTINCT max(at) AS last FROM hits GROUP BY ip;

-- change: known and new rows
INSERT INTO hits VALUES ('1', 'home', 1.5, '2026-01-01'), ('3', 'faq', 9.0, '2026-01-03');

-- change: one of several goes, another is the last one
DELETE FROM hits WHERE ms = 2.5 OR ip = '2';

-- change: rows become equal
UPDATE hits SET ip = '1', page = 'home', at = '2026-01-01';
UPDATE pages SET owner = 'ann';

-- change: nothing is left
DELETE FROM hits;
