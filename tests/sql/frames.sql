-- Frames
--
-- ROWS, RANGE and GROUPS, with bounds on both sides and EXCLUDE.

-- setup
CREATE TABLE sales (id int, shop text, day date, amount int);
INSERT INTO sales VALUES
    (1, 'a', '2026-01-01', 5), (2, 'a', '2026-01-02', 7), (3, 'a', '2026-01-02', 7), (4, 'a', '2026-01-05', NULL),
    (5, 'a', '2026-01-06', 2),
    (6, 'b', '2026-01-01', 1), (7, 'b', NULL, 3), (8, NULL, '2026-01-01', 4);

-- case: running total
-- The default frame goes to the last of equal rows.
SELECT id, sum(amount) OVER (PARTITION BY shop ORDER BY day) AS total FROM sales;

-- case: ROWS
-- A moving sum over three rows.
SELECT id, sum(amount) OVER (PARTITION BY shop ORDER BY day, id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS moving
FROM sales;

-- case: RANGE of days
-- The last two days, however many rows they have.
SELECT id, sum(amount) OVER (
    PARTITION BY shop ORDER BY day RANGE BETWEEN interval '1 day' PRECEDING AND CURRENT ROW) AS two_days
FROM sales;

-- case: GROUPS
-- The day before, this and the next one that has rows.
SELECT id, count(*) OVER (PARTITION BY shop ORDER BY day GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS near FROM sales;

-- case: EXCLUDE CURRENT ROW
-- The others of the partition.
SELECT id, sum(amount) OVER (
    PARTITION BY shop ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW) AS others
FROM sales;

-- case: EXCLUDE TIES and GROUP
-- Without the equal rows, with and without the row itself.
SELECT id,
       count(*) OVER (PARTITION BY shop ORDER BY day
                      RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE TIES) AS no_ties,
       count(*) OVER (PARTITION BY shop ORDER BY day
                      RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS no_group
FROM sales;

-- case: from here to the end
-- A frame that looks forward.
SELECT id, sum(amount) OVER (
    PARTITION BY shop ORDER BY day, id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS rest
FROM sales;

-- case: the partition's total
-- Without ORDER BY the frame is the whole partition.
SELECT id, amount, round(100.0 * amount / sum(amount) OVER (PARTITION BY shop), 1) AS percent FROM sales;

-- case: FILTER in a window
-- Only some rows of the frame count.
SELECT id, count(*) FILTER (WHERE amount > 3) OVER (PARTITION BY shop ORDER BY day, id) AS large_so_far FROM sales;

-- case: averages and extremes
-- Any aggregate is a window function.
SELECT id, avg(amount) OVER w AS mean, max(amount) OVER w AS best, array_agg(id) OVER w AS ids
FROM sales WINDOW w AS (PARTITION BY shop ORDER BY day, id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW);

-- change: rows in the middle
INSERT INTO sales VALUES (9, 'a', '2026-01-03', 4), (10, 'b', '2026-01-02', 6);

-- change: amounts and days move
UPDATE sales SET amount = COALESCE(amount, 1) * 10, day = day + 1 WHERE id IN (2, 4, 8);

-- change: first and last go
DELETE FROM sales WHERE id IN (1, 5, 7);

-- change: one partition for all
UPDATE sales SET shop = 'a';
