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
