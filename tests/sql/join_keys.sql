-- Join keys and group keys of every type
--
-- A key is compared as PostgreSQL compares it. Types whose values are equal exactly when their texts are travel to Spark as
-- text; the others are compared by PostgreSQL itself, which costs an inner join more and makes an outer join FULL.

-- setup
CREATE TABLE l (
    id int,
    o oid, rc regclass, rt regtype, rp regproc, rpp regprocedure, ro regoperator, rn regnamespace, rr regrole,
    rco regcollation, rcf regconfig, x xid, x8 xid8, c cid, t tid, lsn pg_lsn, ch "char", n name, b bit(3), vb
    varbit(6), m money, i inet, ci cidr, ma macaddr, m8 macaddr8, u uuid, by bytea, ti time, tz timetz, iv
    interval, j jsonb, ar text[], rg int4range, tv tsvector
);
CREATE TABLE r (LIKE l);
INSERT INTO l VALUES
    (1, 1, 'pg_class', 'int4', 'now', 'abs(int4)', '+(int4,int4)', 'pg_catalog', 'pg_monitor', '"C"', 'simple',
    '3', '3', '0', '(0,1)', '0/0', 'a', 'ann', B'000', B'', '1.50', '10.0.0.1', '10.0.0.0/8',
    '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '00000000-0000-0000-0000-000000000000', '\x', '00:00',
    '12:00+02', '1 mon', '1', '{}', 'empty', '');
INSERT INTO l VALUES
    (2, 4294967295, 'pg_type', 'numeric(10,2)', 'pg_sleep', 'abs(numeric)', '=(text,text)', 'public',
    'pg_read_all_data', '"POSIX"', 'english', '4294967295', '18446744073709551615', '7', '(4294967295,65535)',
    'FFFFFFFF/FFFFFFFF', '\377', 'Bob "q"', B'101', B'0', '-92233720368547758.08', '10.0.0.1/8', '10.0.0.0/16',
    'ff:ff:ff:ff:ff:ff', '08:00:2b:01:02:03', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\x00ff', '24:00',
    '10:00+00', '-1 day 1 hour', '{"a": [1, null]}', '{a,NULL,"b,c"}', '[1,5)', 'a:1 b:2');
INSERT INTO l VALUES
    (3, 4294967295, 'pg_type', 'numeric(10,2)', 'pg_sleep', 'abs(numeric)', '=(text,text)', 'public',
    'pg_read_all_data', '"POSIX"', 'english', '4294967295', '18446744073709551615', '7', '(4294967295,65535)',
    'FFFFFFFF/FFFFFFFF', '\377', 'Bob "q"', B'101', B'0', '-92233720368547758.08', '10.0.0.1/8', '10.0.0.0/16',
    'ff:ff:ff:ff:ff:ff', '08:00:2b:01:02:03', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\x00ff', '24:00',
    '10:00+00', '-1 day 1 hour', '{"a": [1, null]}', '{a,NULL,"b,c"}', '[1,5)', 'a:1 b:2');
INSERT INTO l (id) VALUES (4);
INSERT INTO r VALUES
    (10, 1, 'pg_class', 'int4', 'now', 'abs(int4)', '+(int4,int4)', 'pg_catalog', 'pg_monitor', '"C"', 'simple',
    '3', '3', '0', '(0,1)', '0/0', 'a', 'ann', B'000', B'', '1.50', '10.0.0.1', '10.0.0.0/8',
    '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '00000000-0000-0000-0000-000000000000', '\x', '00:00',
    '12:00+02', '1 mon', '1', '{}', 'empty', '');
INSERT INTO r VALUES
    (11, 7, 'pg_proc', 'text[]', 'version', 'sqrt(float8)', '-(none,int4)', 'pg_toast', 'pg_signal_backend',
    '"default"', 'german', '5', '5', '8', '(1,1)', '16/B374D848', '', 'ü', B'111', B'00', '0', '::1', '::/0',
    '00:00:00:00:00:00', '00:00:00:00:00:00:00:00', '11111111-1111-1111-1111-111111111111', '\xdeadbeef',
    '23:59:59.999999', '00:00-15:59', '0', '"x"', '{{1},{2}}', '(,)', 'c');
INSERT INTO r (id) VALUES (12);

-- case: inner join on oid
-- Rows that match by a key of type oid; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.o = l.o;

-- case: left join on regclass
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.rc = l.rc;

-- case: inner join on regtype
-- Rows that match by a key of type regtype; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.rt = l.rt;

-- case: inner join on regprocedure
-- Rows that match by a key of type regprocedure; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.rpp = l.rpp;

-- case: inner join on regconfig
-- Rows that match by a key of type regconfig; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.rcf = l.rcf;

-- case: inner join on xid
-- Rows that match by a key of type xid; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.x = l.x;

-- case: left join on xid8
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.x8 = l.x8;

-- case: left join on tid
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.t = l.t;

-- case: left join on pg_lsn
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.lsn = l.lsn;

-- case: left join on char
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.ch = l.ch;

-- case: inner join on name
-- Rows that match by a key of type name; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.n = l.n;

-- case: inner join on bit(3)
-- Rows that match by a key of type bit(3); NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.b = l.b;

-- case: left join on bit(3)
-- Also rows that have no match; NULL has none.
-- mode: FULL because the outer join condition
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.b = l.b;

-- case: left join on varbit(6)
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.vb = l.vb;

-- case: inner join on money
-- Rows that match by a key of type money; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.m = l.m;

-- case: left join on inet
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.i = l.i;

-- case: left join on macaddr
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.ma = l.ma;

-- case: inner join on uuid
-- Rows that match by a key of type uuid; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.u = l.u;

-- case: left join on bytea
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.by = l.by;

-- case: left join on time
-- Also rows that have no match; NULL has none.
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.ti = l.ti;

-- case: inner join on timetz
-- Rows that match by a key of type timetz; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.tz = l.tz;

-- case: inner join on interval
-- Rows that match by a key of type interval; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.iv = l.iv;

-- case: inner join on jsonb
-- Rows that match by a key of type jsonb; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.j = l.j;

-- case: left join on jsonb
-- Also rows that have no match; NULL has none.
-- mode: FULL because the outer join condition
SELECT l.id, r.id AS other FROM l LEFT JOIN r ON r.j = l.j;

-- case: inner join on text[]
-- Rows that match by a key of type text[]; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.ar = l.ar;

-- case: inner join on int4range
-- Rows that match by a key of type int4range; NULL matches nothing.
SELECT l.id, r.id AS other FROM l JOIN r ON r.rg = l.rg;

-- case: groups by oid, regclass and regtype
-- One group per value, with one for NULL.
SELECT o, rc, rt, count(*) AS amount, min(id) AS first FROM l GROUP BY o, rc, rt;

-- case: groups by regproc, regprocedure and regoperator
-- One group per value, with one for NULL.
SELECT rp, rpp, ro, count(*) AS amount, min(id) AS first FROM l GROUP BY rp, rpp, ro;

-- case: groups by regnamespace, regrole and regcollation
-- One group per value, with one for NULL.
SELECT rn, rr, rco, count(*) AS amount, min(id) AS first FROM l GROUP BY rn, rr, rco;

-- case: groups by xid, xid8 and cid
-- One group per value, with one for NULL.
SELECT x, x8, c, count(*) AS amount, min(id) AS first FROM l GROUP BY x, x8, c;

-- case: groups by tid, pg_lsn and char
-- One group per value, with one for NULL.
SELECT t, lsn, ch, count(*) AS amount, min(id) AS first FROM l GROUP BY t, lsn, ch;

-- case: groups by name, bit(3) and varbit(6)
-- One group per value, with one for NULL.
SELECT n, b, vb, count(*) AS amount, min(id) AS first FROM l GROUP BY n, b, vb;

-- case: groups by money, inet and cidr
-- One group per value, with one for NULL.
SELECT m, i, ci, count(*) AS amount, min(id) AS first FROM l GROUP BY m, i, ci;

-- case: groups by macaddr, macaddr8 and uuid
-- One group per value, with one for NULL.
SELECT ma, m8, u, count(*) AS amount, min(id) AS first FROM l GROUP BY ma, m8, u;

-- case: groups by bytea, time and timetz
-- One group per value, with one for NULL.
SELECT by, ti, tz, count(*) AS amount, min(id) AS first FROM l GROUP BY by, ti, tz;

-- case: groups by interval, jsonb and text[]
-- One group per value, with one for NULL.
SELECT iv, j, ar, count(*) AS amount, min(id) AS first FROM l GROUP BY iv, j, ar;

-- case: groups by regconfig, int4range and tsvector
-- One group per value, with one for NULL.
SELECT rcf, rg, tv, count(*) AS amount, min(id) AS first FROM l GROUP BY rcf, rg, tv;

-- case: a regclass and a table's oid
-- Aliases of oid are compared as numbers.
SELECT l.id, r.id AS other FROM l JOIN r ON r.rc = l.o;

-- case: equal intervals that look different
-- A month is thirty days.
SELECT l.id, r.id AS other FROM l JOIN r ON r.iv = l.iv AND l.id > 0;

-- case: json has no equality
-- PostgreSQL says so itself.
-- error: operator does not exist: json = json
SELECT a.id FROM l a JOIN l b ON a.j::json = b.j::json;

-- change: matches come
INSERT INTO r VALUES
    (13, 4294967295, 'pg_type', 'numeric(10,2)', 'pg_sleep', 'abs(numeric)', '=(text,text)', 'public',
    'pg_read_all_data', '"POSIX"', 'english', '4294967295', '18446744073709551615', '7', '(4294967295,65535)',
    'FFFFFFFF/FFFFFFFF', '\377', 'Bob "q"', B'101', B'0', '-92233720368547758.08', '10.0.0.1/8', '10.0.0.0/16',
    'ff:ff:ff:ff:ff:ff', '08:00:2b:01:02:03', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\x00ff', '24:00',
    '10:00+00', '-1 day 1 hour', '{"a": [1, null]}', '{a,NULL,"b,c"}', '[1,5)', 'a:1 b:2');
INSERT INTO r (id, iv, o, rc) VALUES (14, '30 days', 1259, 'pg_class');
INSERT INTO l (id, o) VALUES (6, 1259);

-- change: keys change, duplicates come
UPDATE l SET id = 2 WHERE id = 3;
INSERT INTO r VALUES
    (13, 4294967295, 'pg_type', 'numeric(10,2)', 'pg_sleep', 'abs(numeric)', '=(text,text)', 'public',
    'pg_read_all_data', '"POSIX"', 'english', '4294967295', '18446744073709551615', '7', '(4294967295,65535)',
    'FFFFFFFF/FFFFFFFF', '\377', 'Bob "q"', B'101', B'0', '-92233720368547758.08', '10.0.0.1/8', '10.0.0.0/16',
    'ff:ff:ff:ff:ff:ff', '08:00:2b:01:02:03', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\x00ff', '24:00',
    '10:00+00', '-1 day 1 hour', '{"a": [1, null]}', '{a,NULL,"b,c"}', '[1,5)', 'a:1 b:2');
INSERT INTO l VALUES
    (5, 7, 'pg_proc', 'text[]', 'version', 'sqrt(float8)', '-(none,int4)', 'pg_toast', 'pg_signal_backend',
    '"default"', 'german', '5', '5', '8', '(1,1)', '16/B374D848', '', 'ü', B'111', B'00', '0', '::1', '::/0',
    '00:00:00:00:00:00', '00:00:00:00:00:00:00:00', '11111111-1111-1111-1111-111111111111', '\xdeadbeef',
    '23:59:59.999999', '00:00-15:59', '0', '"x"', '{{1},{2}}', '(,)', 'c');

-- change: and go
DELETE FROM r WHERE id = 10;
DELETE FROM l WHERE id = 2;
