-- Updates of keys
--
-- No key is needed and none is trusted: an update of a primary key, a join key or a group is a row out and a row in.

-- setup
CREATE TABLE accounts (id int PRIMARY KEY, owner text UNIQUE, branch int);
CREATE TABLE moves (id int PRIMARY KEY, account int REFERENCES accounts ON UPDATE CASCADE ON DELETE CASCADE,
    amount int);
CREATE TABLE logs (account int, line text);
INSERT INTO accounts VALUES (1, 'ann', 10), (2, 'bob', 10), (3, NULL, 20);
INSERT INTO moves VALUES (100, 1, 5), (101, 1, -3), (102, 2, 8), (103, NULL, 1);
INSERT INTO logs VALUES (1, 'x'), (1, 'x'), (NULL, 'y');

-- case: the key as a column
-- Old number out, new number in.
SELECT id, owner FROM accounts;

-- case: joined by the key
-- ON UPDATE CASCADE changes both tables in one statement.
SELECT a.owner, m.id, m.amount FROM accounts a JOIN moves m ON m.account = a.id;

-- case: padded by the key
-- Numbers that are swapped must not pad anything for long.
SELECT a.id, a.owner, l.line FROM accounts a LEFT JOIN logs l ON l.account = a.id;

-- case: grouped by the key
-- Balances move with the number.
SELECT account, sum(amount) AS balance, count(*) AS n FROM moves GROUP BY account;

-- case: grouped by a column of the other table
-- A changed branch moves whole balances.
SELECT a.branch, sum(m.amount) AS balance, count(DISTINCT a.id) AS accounts FROM accounts a
LEFT JOIN moves m ON m.account = a.id GROUP BY a.branch;

-- case: a semi join by the key
-- Accounts with a log line.
SELECT a.id FROM accounts a WHERE a.id IN (SELECT account FROM logs);

-- case: neighbours by number
-- A self join over keys.
SELECT a.id, b.id AS next FROM accounts a JOIN accounts b ON b.id = a.id + 1;

-- case: grouped by the primary key
-- The other columns follow from the key.
SELECT a.id, a.owner, a.branch, count(m.id) AS moves FROM accounts a LEFT JOIN moves m ON m.account = a.id
GROUP BY a.id;

-- change: keys are shifted
UPDATE accounts SET id = id + 10;

-- change: two keys are swapped
UPDATE accounts SET id = 0 WHERE id = 11;
UPDATE accounts SET id = 11 WHERE id = 12;
UPDATE accounts SET id = 12 WHERE id = 0;

-- change: an upsert, and one that changes nothing
INSERT INTO accounts VALUES (12, 'ann', 30) ON CONFLICT (id) DO UPDATE SET branch = EXCLUDED.branch;
UPDATE accounts SET owner = owner;
INSERT INTO logs VALUES (12, 'z');

-- change: MERGE
MERGE INTO accounts a USING (VALUES (13, 'cy'), (14, 'dee')) AS v(id, owner) ON v.id = a.id
WHEN MATCHED THEN UPDATE SET owner = v.owner, branch = 30
WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.owner, 40);
UPDATE logs SET account = 11 WHERE account = 1;

-- change: a deletion that cascades
DELETE FROM accounts WHERE id = 12;
