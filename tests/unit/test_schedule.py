"""Schedules, who is due, in which order, and whether a delta is worth it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runnel.errors import UserError
from runnel.schedule.choose import MIN_CHANGES, full_is_cheaper
from runnel.schedule.dag import ancestors, descendants, ordered, units
from runnel.schedule.due import DEFAULT_SECONDS, MOMENT, Clocked, due_at
from runnel.schedule.spec import parse_schedule


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("1m", 60), ("1h30m", 5400), ("2d", 172800), ("1w", 604800), (" 90s ", 90), ("1s200ms", 1.2)],
)
def test_durations(text: str, seconds: float) -> None:
    schedule = parse_schedule(text)
    assert (schedule.kind, schedule.seconds) == ("duration", seconds)


@pytest.mark.parametrize("text", ["*/5 * * * *", "0 3 * * 1", "@hourly", "*/10 * * * * *"])
def test_cron_expressions(text: str) -> None:
    assert parse_schedule(text).kind == "cron"


@pytest.mark.parametrize("text", ["", "5", "5x", "s5", "0s", "-1s", "1.5s", "99 * * * *", "* * *", "@never", "1 h"])
def test_what_is_no_schedule_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError, match="invalid schedule") as refused:
        parse_schedule(text)
    assert "'5s'" in str(refused.value.hint)
    assert refused.value.sqlstate == "22023"


def test_cron_fires_next_after_a_moment() -> None:
    moment = datetime(2024, 2, 28, 23, 59, 30, tzinfo=UTC).timestamp()
    assert parse_schedule("0 0 29 2 *").next_fire(moment) == datetime(2024, 2, 29, tzinfo=UTC).timestamp()
    assert parse_schedule("*/10 * * * * *").next_fire(moment) == moment + 10


def test_calculated_in_any_case() -> None:
    assert parse_schedule("Calculated").kind == "calculated"


def clocked(text: str, **more: object) -> Clocked:
    return Clocked(parse_schedule(text), bool(more.pop("uses_clock", False)), **more)  # type: ignore[arg-type]


def test_a_clean_table_is_never_due_and_a_dirty_one_after_its_period() -> None:
    graph = {1: frozenset[int]()}
    assert due_at(1, {1: clocked("10s", last_start=100.0, dirty=False)}, graph) is None
    assert due_at(1, {1: clocked("10s", last_start=100.0)}, graph) == 110
    assert due_at(1, {1: clocked("10s", last_start=100.0, retry_at=500.0)}, graph) == 500
    assert due_at(1, {1: clocked("10s", last_start=100.0, dirty=False, uses_clock=True)}, graph) == 110


def test_calculated_takes_the_shortest_period_below() -> None:
    graph = {1: frozenset[int](), 2: frozenset({1}), 3: frozenset({2}), 4: frozenset({1})}
    tables = {
        1: clocked("calculated", last_start=100.0),
        2: clocked("1m", last_start=100.0),
        3: clocked("20s", last_start=100.0),
        4: clocked("calculated", last_start=100.0),
    }
    assert due_at(1, tables, graph) == 120
    assert due_at(4, tables, graph) == 100 + DEFAULT_SECONDS


CHAIN = {1: frozenset[int](), 2: frozenset({1}), 3: frozenset({2})}
DIAMOND = {1: frozenset[int](), 2: frozenset({1}), 3: frozenset({1}), 4: frozenset({2, 3})}


def test_order_and_relatives() -> None:
    assert ordered({3: frozenset({2}), 2: frozenset({1}), 1: frozenset()}) == [1, 2, 3]
    assert ancestors(DIAMOND, 4) == {1, 2, 3}
    assert descendants(DIAMOND, 1) == {2, 3, 4}
    assert ancestors(DIAMOND, 1) == frozenset()


def test_a_chain_is_refreshed_one_by_one() -> None:
    assert units(CHAIN, {1: [10], 2: [], 3: []}) == [[1], [2], [3]]


def test_the_arms_of_a_diamond_move_together() -> None:
    assert units(DIAMOND, {1: [10], 2: [], 3: [], 4: []})[-1] == [2, 3, 4]


def test_a_table_read_directly_and_through_a_stream_table_is_a_diamond() -> None:
    assert units({1: frozenset(), 2: frozenset({1})}, {1: [10], 2: [10]}) == [[1, 2]]
    assert units({1: frozenset(), 2: frozenset({1})}, {1: [10], 2: [20]}) == [[1], [2]]


def test_every_table_is_in_exactly_one_unit_and_upstream_comes_first() -> None:
    graph = {**DIAMOND, 5: frozenset({4}), 6: frozenset(), 7: frozenset({6, 5})}
    found = units(graph, {1: [10], 6: [99], 2: [], 3: [], 4: [], 5: [], 7: []})
    flat = [n for unit in found for n in unit]
    assert sorted(flat) == sorted(graph)
    assert all(flat.index(up) < flat.index(node) for node, reads in graph.items() for up in reads)


def test_full_is_chosen_only_from_experience() -> None:
    assert full_is_cheaper([], 10**6) is None
    assert full_is_cheaper([("INITIAL", 0, 100.0)], 10**6) is None, "no delta measured yet"
    assert full_is_cheaper([("DIFFERENTIAL", 10_000, 1_000.0)], 10**6) is None, "no full refresh measured yet"
    history = [("DIFFERENTIAL", 10_000, 1_000.0), ("INITIAL", 0, 5_000.0)]
    assert full_is_cheaper(history, 20_000) is None
    assert "100000 rows" in str(full_is_cheaper(history, 100_000))
    assert full_is_cheaper(history, MIN_CHANGES - 1) is None


def test_a_long_period_leaves_a_moment_to_whoever_asks() -> None:
    tables = {1: clocked("1h", dirty_since=10_000.0), 2: clocked("1s", dirty_since=10_000.0)}
    assert due_at(1, tables, {1: frozenset(), 2: frozenset()}) == 10_000.0 + MOMENT
    assert due_at(2, tables, {1: frozenset(), 2: frozenset()}) == 10_000.0
