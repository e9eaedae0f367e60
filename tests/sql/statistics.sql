-- Statistics
--
-- Variances and regressions, exact for numeric, as PostgreSQL computes them for floats.

-- setup
CREATE TABLE samples (grp text, x numeric(8, 3), y double precision, n int);
INSERT INTO samples VALUES
    ('a', 1.5, 2.5, 3), ('a', 2.25, 4.0, 5), ('a', 4.125, NULL, 8), ('b', 7, 1.0, NULL), (NULL, 1, 1, 1),
    (NULL, 3, 9, 2);

-- case: variance of numerics
-- Sample and population; one value has no sample variance.
SELECT grp, var_samp(x) AS vs, var_pop(x) AS vp, variance(x) AS v FROM samples GROUP BY grp;

-- case: standard deviation of integers
-- Exact sums of squares, one square root at the end.
SELECT grp, stddev(n) AS s, stddev_samp(n) AS ss, stddev_pop(n) AS sp FROM samples GROUP BY grp;

-- case: variance of floats
-- Recomputed from the values of the group.
SELECT grp, var_samp(y) AS vs, stddev_pop(y) AS sp FROM samples GROUP BY grp;

-- case: correlation
-- Pairs with a NULL do not count.
SELECT grp, corr(y, x) AS r FROM samples GROUP BY grp;

-- case: covariance
-- Of the whole table.
SELECT covar_pop(y, x) AS pop, covar_samp(y, x) AS samp FROM samples;

-- case: a regression line
-- Slope, intercept and goodness of fit.
SELECT grp, regr_slope(y, x) AS slope, regr_intercept(y, x) AS intercept, regr_r2(y, x) AS r2 FROM samples GROUP BY grp;

-- case: the parts of a regression
-- Counts, means and sums of squares of complete pairs.
SELECT regr_count(y, x) AS n, regr_avgx(y, x) AS ax, regr_avgy(y, x) AS ay, regr_sxx(y, x) AS sxx,
       regr_syy(y, x) AS syy,
       regr_sxy(y, x) AS sxy FROM samples;

-- case: a coefficient of variation
-- Expressions over statistics.
SELECT grp, round(stddev_pop(x) / NULLIF(avg(x), 0), 6) AS cv FROM samples GROUP BY grp;

-- case: statistics of a part
-- With FILTER and DISTINCT.
SELECT var_pop(x) FILTER (WHERE n > 1) AS filtered, stddev_pop(DISTINCT n) AS distinct_n FROM samples;

-- change: more pairs
INSERT INTO samples VALUES ('a', 9.5, 3.25, 2), ('b', 8, 2.0, 4), ('b', 9.125, 4.5, 4);

-- change: pairs become complete and incomplete
UPDATE samples SET y = CASE WHEN y IS NULL THEN 7.5 WHEN y = 1.0 THEN NULL ELSE y END, x = x + 0.125;

-- change: groups with one and with no pair
DELETE FROM samples WHERE grp = 'a' AND n > 3 OR grp IS NULL;
