"""Failures that random scenarios have found, each in its smallest form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.oracle.scenario import Scenario

pytestmark = pytest.mark.slow

Replay = Callable[[Scenario], None]


def test_is_not_distinct_from_is_a_join_key_of_outer_joins(replay: Replay) -> None:
    """PostgreSQL prints it as NOT (a IS DISTINCT FROM b), which was taken for a condition only it can evaluate."""
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int, a int)",
                "CREATE TABLE t1 (k int, a int)",
                "INSERT INTO t0 VALUES (1, 1), (2, NULL)",
                "INSERT INTO t1 VALUES (1, 1), (5, NULL)",
            ],
            streams={
                "s0": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 LEFT JOIN t1 a1 ON a0.a IS NOT DISTINCT FROM a1.a",
                "s1": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 JOIN t1 a1 ON a0.a IS NOT DISTINCT FROM a1.a",
                "s2": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 LEFT JOIN t1 a1 "
                "ON a0.k = a1.k AND a0.a IS DISTINCT FROM a1.a",
            },
            steps=[
                ["INSERT INTO t1 VALUES (6, NULL), (7, 1)"],
                ["DELETE FROM t1 WHERE a IS NULL", "UPDATE t1 SET a = NULL WHERE k = 7"],
                ["INSERT INTO t0 VALUES (3, NULL), (7, 0)", "DELETE FROM t1 WHERE k = 7"],
            ],
        )
    )


def test_outer_join_on_false_pads_every_row(replay: Replay) -> None:
    replay(
        Scenario(
            tables=["CREATE TABLE t0 (k int)", "CREATE TABLE t1 (k int)", "INSERT INTO t0 VALUES (1)"],
            streams={"s0": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 FULL JOIN t1 a1 ON false"},
            steps=[["INSERT INTO t1 VALUES (1), (NULL)"], ["DELETE FROM t0"], ["DELETE FROM t1 WHERE k = 1"]],
        )
    )


def test_is_not_true_is_printed_back_faithfully(replay: Replay) -> None:
    replay(
        Scenario(
            tables=["CREATE TABLE t0 (k int, a bool)", "INSERT INTO t0 VALUES (1, true), (2, NULL), (3, false)"],
            streams={
                "s0": "SELECT a0.k AS c0, (a0.a IS NOT FALSE) AS c1 FROM t0 a0 WHERE a0.a IS NOT TRUE",
            },
            steps=[["UPDATE t0 SET a = NOT a"], ["UPDATE t0 SET a = NULL WHERE k = 1"]],
        )
    )


def test_nan_sorts_above_all_numbers_in_join_conditions(replay: Replay) -> None:
    """Spark compares decimals, and decimals have no NaN."""
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int, a numeric(10,2), b int)",
                "INSERT INTO t0 VALUES (1, 'NaN', 5), (1, 99999999.99, 6)",
            ],
            streams={
                "s0": "SELECT a0.a AS c0, a1.a AS c1 FROM t0 a0 LEFT JOIN t0 a1 ON a0.k = a1.k AND a0.a < a1.a",
                "s1": "SELECT a0.a AS c0, a1.b AS c1 FROM t0 a0 JOIN t0 a1 ON a0.k = a1.k AND a0.a >= a1.b",
            },
            steps=[["INSERT INTO t0 VALUES (1, 'NaN', 7), (1, -3, 8)"], ["DELETE FROM t0 WHERE b = 5"]],
        )
    )


def test_is_not_null_of_padded_columns(replay: Replay) -> None:
    """Evaluated by Spark, because it concerns two tables; it was taken for IS NULL."""
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int)",
                "CREATE TABLE t1 (k int, a int)",
                "INSERT INTO t0 VALUES (0), (1)",
                "INSERT INTO t1 VALUES (1, 5), (2, NULL), (3, 6)",
            ],
            streams={
                "s0": "SELECT a0.k AS c0, a1.a AS c1 FROM t0 a0 FULL JOIN t1 a1 ON a1.k = a0.k "
                "WHERE a0.k >= 1 OR a1.a IS NOT NULL",
                "s1": "SELECT a0.k AS c0, a1.a AS c1 FROM t0 a0 FULL JOIN t1 a1 ON a1.k = a0.k "
                "WHERE a0.k >= 1 OR a1.a IS NULL",
            },
            steps=[["INSERT INTO t1 VALUES (0, NULL), (7, 8), (8, NULL)"], ["DELETE FROM t0 WHERE k = 1"]],
        )
    )


def test_null_dates_compare_with_nothing(replay: Replay) -> None:
    """Dates travel to Spark as numbers; NULL travelled as minus infinity."""
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int, a date, b timestamptz)",
                "INSERT INTO t0 VALUES (1, '2026-01-01', NULL), (2, NULL, '-infinity'), (3, '2025-01-01', 'infinity')",
            ],
            streams={
                "s0": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 LEFT JOIN t0 a1 ON a0.a > a1.a",
                "s1": "SELECT a0.k AS c0, a1.k AS c1 FROM t0 a0 JOIN t0 a1 ON a0.b >= a1.b",
            },
            steps=[
                ["INSERT INTO t0 VALUES (4, NULL, NULL), (5, '2027-01-01', 'infinity')"],
                ["DELETE FROM t0 WHERE k = 3"],
            ],
        )
    )


def test_aggregates_with_filter_and_within_group_below_windows(replay: Replay) -> None:
    """The aggregate was taken out of its FILTER and its WITHIN GROUP, and PostgreSQL did not know what was left."""
    replay(
        Scenario(
            tables=["CREATE TABLE t0 (k int, a int)", "INSERT INTO t0 VALUES (1, 1), (1, 2), (2, 5), (NULL, 2)"],
            streams={
                "s0": "SELECT k AS c0, count(*) FILTER (WHERE a > 1) AS c1, rank() OVER (ORDER BY k) AS c2 "
                "FROM t0 GROUP BY k",
                "s1": "SELECT k AS c0, mode() WITHIN GROUP (ORDER BY a) AS c1, "
                "lag(percentile_disc(0.5) WITHIN GROUP (ORDER BY a)) OVER (ORDER BY k) AS c2 FROM t0 GROUP BY k",
                "s2": "SELECT first_value(c0) OVER (ORDER BY c0) AS c0 FROM (SELECT k AS c0, "
                "count(percentile_disc(0.5) WITHIN GROUP (ORDER BY a)) OVER (ORDER BY k) AS c1 FROM t0 GROUP BY k) x",
            },
            steps=[
                ["INSERT INTO t0 VALUES (2, 1), (3, NULL)"],
                ["DELETE FROM t0 WHERE k = 1"],
                ["UPDATE t0 SET a = 3"],
            ],
            twins=True,
        )
    )


def test_members_of_a_union_above_another_set_operation(replay: Replay) -> None:
    """Columns that nobody reads were left out of some members of the UNION ALL only."""
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int, a int)",
                "CREATE TABLE t1 (id int PRIMARY KEY, a int)",
                "INSERT INTO t0 VALUES (1, 1), (1, 1), (2, NULL)",
                "INSERT INTO t1 VALUES (1, 1), (3, NULL)",
            ],
            streams={
                "s0": "SELECT count(*) AS c0 FROM ((SELECT k, a FROM t0) EXCEPT (SELECT id, a FROM t1) "
                "UNION ALL (SELECT 1, NULL::int FROM (SELECT k FROM t0) u)) x",
            },
            steps=[["DELETE FROM t1 WHERE id = 1"], ["INSERT INTO t0 VALUES (3, NULL), (4, 4)"], ["DELETE FROM t0"]],
            twins=True,
        )
    )


def test_functions_of_the_padded_side_of_an_outer_join(replay: Replay) -> None:
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (k int, a int)",
                "CREATE TABLE t1 (id int PRIMARY KEY, a int, b int[])",
                "INSERT INTO t0 VALUES (1, 1), (2, 2), (NULL, 3)",
                "INSERT INTO t1 VALUES (1, 2, '{1,NULL,1}'), (3, 5, '{}')",
            ],
            streams={
                "s0": "SELECT a0.a AS c0, a8.v AS c1 FROM t0 a0 LEFT JOIN t1 a1 ON a1.id = a0.k "
                "CROSS JOIN LATERAL unnest(a1.b) AS a8(v)",
                "s1": "SELECT a0.a AS c0, a8.v AS c1 FROM t0 a0 LEFT JOIN t1 a1 ON a1.id = a0.k "
                "LEFT JOIN LATERAL generate_series(1, LEAST(a1.a, 3)) AS a8(v) ON true",
            },
            steps=[
                ["INSERT INTO t1 VALUES (2, 1, '{7}')", "INSERT INTO t0 VALUES (3, 4)"],
                ["UPDATE t1 SET b = '{9,9}', a = 3 WHERE id = 1"],
                ["DELETE FROM t1 WHERE id = 2", "UPDATE t1 SET b = NULL WHERE id = 1"],
            ],
        )
    )
