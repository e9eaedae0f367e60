-- count, sum and avg of DISTINCT values
--
-- A value counts once however many rows have it; it goes with the last of them.

-- setup
CREATE TABLE visits (page text, visitor text, seconds int, paid numeric(6, 2));
INSERT INTO visits VALUES
    ('home', 'ann', 10, 1.50), ('home', 'ann', 10, 1.50), ('home', 'bob', 20, NULL), ('shop', 'ann', 10, 0.50),
    ('shop', NULL, NULL, 0.50), (NULL, 'cy', 5, 2.00);

-- case: count DISTINCT
-- Visitors per page.
SELECT page, count(DISTINCT visitor) AS visitors FROM visits GROUP BY page;

-- case: sum and avg DISTINCT
-- Equal values are added once.
SELECT page, sum(DISTINCT seconds) AS seconds, avg(DISTINCT paid) AS paid FROM visits GROUP BY page;

-- case: with and without DISTINCT
-- Both in one query.
SELECT page, count(visitor) AS visits, count(DISTINCT visitor) AS visitors, sum(seconds) AS all_seconds,
       sum(DISTINCT seconds) AS seconds
FROM visits GROUP BY page;

-- case: several DISTINCT columns
-- Each aggregate has its own set of values.
SELECT count(DISTINCT page) AS pages, count(DISTINCT visitor) AS visitors, count(DISTINCT seconds) AS durations
FROM visits;

-- case: DISTINCT over an expression
-- Values are distinct after the computation.
SELECT page, count(DISTINCT upper(left(visitor, 1))) AS initials FROM visits GROUP BY page;

-- case: DISTINCT pairs
-- A row counts as one value.
SELECT count(DISTINCT (page, visitor)) AS pairs FROM visits;

-- case: DISTINCT with FILTER
-- Only qualifying rows contribute values.
SELECT page, count(DISTINCT visitor) FILTER (WHERE seconds >= 10) AS stayed FROM visits GROUP BY page;

-- case: min and max do not mind
-- DISTINCT changes nothing here.
SELECT page, min(DISTINCT seconds) AS least, max(DISTINCT seconds) AS most FROM visits GROUP BY page;

-- case: HAVING over distinct values
-- Pages with more than one visitor.
SELECT page FROM visits GROUP BY page HAVING count(DISTINCT visitor) > 1;

-- change: known values once more, and a new one
INSERT INTO visits VALUES ('home', 'bob', 20, 1.50), ('shop', 'dee', 30, 0.75);

-- change: one of two equal rows goes, the value stays
DELETE FROM visits WHERE ctid IN (SELECT ctid FROM visits WHERE page = 'home' AND visitor = 'ann' LIMIT 1);

-- change: values merge and split
UPDATE visits SET visitor = 'ann', seconds = 10 WHERE visitor = 'bob' OR visitor IS NULL;

-- change: the last rows with a value go
DELETE FROM visits WHERE visitor = 'ann';
