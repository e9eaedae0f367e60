-- Time
--
-- Filters with now(): rows enter and leave as time passes, without any write.

-- setup
CREATE TABLE events (id int, at timestamptz, kind text, until timestamptz);
CREATE TABLE kinds (kind text, keep interval);
INSERT INTO events VALUES
    (1, now() - interval '2 hours', 'a', now() + interval '1 day'), (2, now() - interval '2 days', 'a', NULL),
    (3, now() + interval '3 hours', 'b', now() + interval '5 hours'), (4, NULL, 'b', now() - interval '1 hour'),
    (1, now() - interval '2 hours', 'a', now() + interval '1 day');
INSERT INTO kinds VALUES ('a', '1 day'), ('b', '7 days');

-- case: the last day
-- A sliding window over a table.
SELECT id, kind FROM events WHERE at >= now() - interval '1 day';

-- case: not yet
-- Rows that appear when their time has come.
SELECT id FROM events WHERE at <= now();

-- case: valid now
-- Between two moments.
SELECT id FROM events WHERE at <= now() AND (until > now() OR until IS NULL);

-- case: today and before
-- current_date, a day in the session's time zone.
SELECT id FROM events WHERE at::date <= current_date + 1;

-- case: counts of the last day
-- A group over a sliding window.
SELECT kind, count(*) AS n, max(id) AS last FROM events WHERE at > current_timestamp - interval '1 day' GROUP BY kind;

-- case: joined
-- The window is part of a join.
SELECT e.id, k.keep FROM events e JOIN kinds k ON k.kind = e.kind WHERE e.at > now() - interval '1 day';

-- case: the current time as a value
-- Changes with every look, so it is recomputed.
-- mode: FULL because time
SELECT count(*) AS n, now() > min(at) AS begun FROM events;

-- case: compared with columns of two tables
-- Each kind has its own time to live.
-- mode: FULL because time
SELECT e.id FROM events e JOIN kinds k ON k.kind = e.kind WHERE e.at + k.keep > now();

-- case: the current time in HAVING
-- A group would enter as time passes, without a change of any row.
-- mode: FULL because time
SELECT kind, count(*) AS n FROM events GROUP BY kind HAVING max(at) < now();

-- case: the current time beside a window
-- The same for a value above a window function.
-- mode: FULL because time
SELECT id, row_number() OVER (ORDER BY at, id) AS n, at < now() AS past FROM events WHERE at IS NOT NULL;

-- case: AT LOCAL
-- The time zone of the session that created the stream table.
SELECT id, at AT LOCAL AS local, (at AT LOCAL)::date AS day FROM events WHERE (until AT LOCAL) AT LOCAL IS DISTINCT FROM at;

-- change: old, new and future rows
INSERT INTO events VALUES
    (5, now() - interval '1 minute', 'b', now() + interval '1 minute'), (6, now() - interval '3 days', 'b', NULL),
    (7, now() + interval '2 days', 'a', NULL);

-- change: rows are moved in time
UPDATE events SET at = at - interval '23 hours', until = now() - interval '1 second' WHERE id IN (1, 3);

-- change: two rows that will change soon
INSERT INTO events VALUES (8, now() + interval '1 second', 'c', now() + interval '2 days'),
    (9, now() - interval '1 day' + interval '1 second', 'c', now() + interval '1 second');

-- change: nobody writes, but a second and a bit passes
SELECT pg_sleep(1.2);

-- change: rows and kinds go
DELETE FROM events WHERE id IN (1, 5);
DELETE FROM kinds WHERE kind = 'b';
