"""The contract of sources, over every implementation: versions, what waits, reads, deltas, rows lent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from runnel.model.frontier import Frontier, Version
from runnel.model.types import LONG
from runnel.plan.stage import Computed
from runnel.ports.rows import Clock
from tests.ports.changes import CHANGES, NOT_THREE, ONE, RESTRICTIONS, SOME, UPPER, minus, project, upper_without_three
from tests.ports.sources import CASES, FILL, ID, INT, NAME, Bag, Case, Opened, Rig, rig

if TYPE_CHECKING:
    from runnel.server.embedded import EmbeddedServer
    from runnel.spark.session import Sessions

TWELFTH = Computed('12 / l0."id"', LONG, INT)
DUE = 'l0."due" <= :clock'
NOT_DUE = 'l0."due" > :clock'
LATER = ("inlined lake table", "hidden stage", "constant rows")
"""Run by `make test-rest`: the others ask the same of most of the code."""
OTHER = "contract_reader"
"""A role that is not the engine's."""


def over(wanted: Callable[[Case], bool] = lambda _: True) -> pytest.MarkDecorator:
    """The cases that a part of the contract is about; those it says nothing of are named by their capabilities."""
    chosen = [
        pytest.param(case, marks=pytest.mark.slow if case.name in LATER else (), id=case.name.replace(" ", "-"))
        for case in CASES
        if wanted(case)
    ]
    return pytest.mark.parametrize("case", chosen)


every = over()
moving = over(lambda case: case.moves)
changing = over(lambda case: case.has_changes)


@pytest.fixture
def made(case: Case, dsn: str, tmp_path: Path, sessions: Sessions) -> Iterator[Rig]:
    """A source of the engine's own role."""
    with rig(case, dsn, tmp_path, sessions) as built:
        yield built


# -- versions and what waits ---------------------------------------------------------------------------------


@every
def test_a_version_stays_as_it_is_and_survives_the_catalog(made: Rig) -> None:
    with made.refresh() as opened:
        source = opened.source
        head, name = source.head(), source.name
        stored = json.loads(json.dumps(Frontier({name: head}).as_json()))
        assert Frontier.from_json(stored).versions[name] == head
        opened.rows(opened.leaf(ID, NAME))
        assert (source.name, source.head()) == (name, head)
    with made.refresh() as again:
        assert again.source.name == name


@every
def test_nothing_waits_at_the_version_that_is_read(made: Rig) -> None:
    since = made.since()
    with made.refresh() as opened:
        assert not opened.source.pending(opened.source.head()).any
    with made.refresh() as opened:
        assert not opened.source.pending(since).any
        assert opened.delta(opened.leaf(ID, NAME), since) == Counter()
        assert opened.source.changes == 0


@every
def test_a_source_that_was_never_read_can_be_asked(made: Rig) -> None:
    with made.refresh() as opened:
        pending = opened.source.pending(None)
        assert pending.rows >= 0
        assert opened.rows(opened.leaf(ID, NAME)) == made.held()


@moving
def test_committed_changes_wait(made: Rig) -> None:
    since = made.since()
    for statements in SOME:
        made.commit(*statements)
    with made.refresh() as opened:
        pending = opened.source.pending(since)
        assert pending.any
        assert pending.recompute is None
        delta = opened.delta(opened.leaf(ID, NAME), since)
        net = sum(abs(weight) for weight in delta.values())
        assert net > 0
        if made.case.counts:
            assert min(pending.rows, opened.source.changes) >= net
        else:
            assert (pending.rows, opened.source.changes) == (0, 0)
        now = opened.source.head()
    assert now != since
    with made.refresh() as opened:
        assert not opened.source.pending(now).any


@over(lambda case: not case.moves)
def test_nothing_waits_at_what_the_refresh_itself_makes(made: Rig) -> None:
    since = made.since()
    if made.case.has_changes:
        made.commit("DELETE FROM t WHERE id = 2")
    with made.refresh() as opened:
        assert not opened.source.pending(since).any
        assert not opened.source.pending(None).any
        assert opened.source.changes == 0


@moving
def test_what_is_committed_during_a_refresh_waits_for_the_next(made: Rig) -> None:
    since = made.since()
    made.commit("INSERT INTO t (id, name) VALUES (5, 'five')")
    before = made.held()
    with made.refresh() as opened:
        made.commit("INSERT INTO t (id, name) VALUES (6, 'six')", "DELETE FROM t WHERE id = 2")
        leaf = opened.leaf(ID, NAME)
        assert opened.source.pending(since).any
        assert opened.delta(leaf, since) == {(5, "five"): 1}
        assert opened.rows(leaf) == before
        assert opened.keys(leaf, [0, 1]) == before
        if made.case.framed:
            assert opened.framed(leaf) == before
        opened.source.lend()
        assert opened.lent() == before
        since = opened.source.head()
    with made.refresh() as opened:
        assert opened.source.pending(since).any
        assert opened.delta(leaf, since) == {(6, "six"): 1, (2, "two"): -2}


# -- reads ---------------------------------------------------------------------------------------------------


@every
def test_a_read_gives_all_rows(made: Rig) -> None:
    held = made.held()
    assert held[2, "two"] == 2
    with made.refresh() as opened:
        for read in _ways_to_read(opened, made.case):
            assert read(opened.leaf(ID, NAME)) == held
            assert read(opened.leaf(NAME, uses=("name",))) == project(held, lambda _, name: (name,))
            assert read(opened.leaf(uses=())) == {(): held.total()}
            assert read(opened.leaf(UPPER, filters=(NOT_THREE,))) == upper_without_three(held)
            assert read(opened.leaf(ID, filters=("l0.\"name\" LIKE '%o%'",))) == project(
                held, lambda id_, name: (id_,) if name and "o" in name else None
            )


@every
def test_a_restriction_narrows_a_read(made: Rig) -> None:
    held = made.held()
    with made.refresh() as opened:
        leaf = opened.leaf(ID, NAME)
        for by, (restriction, holds) in RESTRICTIONS.items():
            matching = Counter({row: weight for row, weight in held.items() if holds(*row)})
            assert opened.rows(leaf, restriction) == matching, by
            framed = opened.framed(leaf, restriction)
            assert framed is None or matching <= framed <= held, f"{by}: tasks may read more, but nothing less"
            assert opened.keys(leaf, [0], restriction) == project(matching, lambda id_, _: (id_,)), by


@every
def test_keys_come_with_their_multiplicities(made: Rig) -> None:
    held = made.held()
    with made.refresh() as opened:
        leaf = opened.leaf(ID, NAME)
        assert opened.keys(leaf, [0]) == project(held, lambda id_, _: (id_,))
        assert opened.keys(leaf, [1]) == project(held, lambda _, name: (name,))
        assert opened.keys(leaf, [1, 0]) == project(held, lambda id_, name: (name, id_))
        assert opened.keys(leaf, [0], ONE) == {(2,): 2}


@every
def test_tasks_read_what_they_are_said_to_read(made: Rig) -> None:
    """The capability is true: a source whose rows tasks can read offers both ways."""
    with made.refresh() as opened:
        rows = opened.source.read(opened.leaf(ID, NAME), None)
        assert rows.estimate >= 0
        assert rows.select is not None
        assert (rows.frame is not None or rows.slices is not None) == made.case.framed


# -- deltas --------------------------------------------------------------------------------------------------


@changing
def test_before_and_delta_are_after(made: Rig) -> None:
    for what, commits in CHANGES.items():
        made.commit("DELETE FROM t", FILL)
        since, before = made.since(), made.held()
        for statements in commits:
            made.commit(*statements)
        after = made.held()
        with made.refresh() as opened:
            _look(opened, since)
            leaf = opened.leaf(ID, NAME)
            assert opened.delta(leaf, since) == minus(after, before), what
            assert opened.rows(leaf) == after, what
            assert opened.delta(leaf, since) == minus(after, before), f"{what}: each leaf over a source asks anew"
            some = opened.leaf(UPPER, filters=(NOT_THREE,))
            assert opened.delta(some, since) == minus(*map(upper_without_three, (after, before))), what
            count = after.total() - before.total()
            assert opened.delta(opened.leaf(uses=()), since) == ({(): count} if count else {}), what


@over(lambda case: case.framed and case.has_changes)
@pytest.mark.slow
def test_tasks_read_the_same_changes(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 0)
    since, before = made.since(), made.held()
    for statements in [statements for commits in CHANGES.values() for statements in commits][:-1]:
        made.commit(*statements)
    after = made.held()
    with made.refresh() as opened:
        _look(opened, since)
        every, some = opened.leaf(ID, NAME), opened.leaf(UPPER, filters=(NOT_THREE,))
        assert opened.framed_delta(every, since) == minus(after, before)
        assert opened.framed_delta(some, since) == minus(*map(upper_without_three, (after, before)))
        assert opened.framed_delta(opened.leaf(uses=()), since) == {(): after.total() - before.total()}
        assert opened.delta(every, since) == minus(after, before)


@changing
def test_a_row_that_is_gone_again_hurts_nobody(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that fails on it must not be computed on it."""
    since = made.since()
    made.commit("INSERT INTO t (id, name) VALUES (0, 'zero')")
    made.commit("UPDATE t SET id = 6 WHERE id = 0")
    with made.refresh() as opened:
        _look(opened, since)
        leaf = opened.leaf(TWELFTH, may_raise=True, uses=("id",))
        assert opened.delta(leaf, since) == {(2,): 1}
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 0)
        assert opened.framed_delta(leaf, since) == ({(2,): 1} if made.case.framed else None)


@every
def test_the_clock_moves_rows(made: Rig) -> None:
    since = made.since()
    how = {"clock_filters": (DUE,), "clock_negations": (NOT_DUE,)}
    with made.refresh(Clock("2026-01-01 12:00:00+00", "2026-01-03 12:00:00+00")) as opened:
        _look(opened, since)
        entered = opened.leaf(ID, **how)
        assert opened.delta(entered, since) == {(2,): 2, (3,): 1}
        assert opened.rows(entered) == {(1,): 1, (2,): 2, (3,): 1}
    with made.refresh(Clock("2026-01-03 12:00:00+00", "2026-01-05 12:00:00+00")) as opened:
        _look(opened, since)
        left = opened.leaf(ID, clock_filters=(NOT_DUE,), clock_negations=(DUE,))
        assert opened.delta(left, since) == {(None,): -1}
        assert opened.rows(left) == {}


@changing
def test_the_clock_moves_rows_that_change_as_well(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    since = made.since()
    made.commit("DELETE FROM t WHERE id = 1", "UPDATE t SET id = 30 WHERE id = 3")
    with made.refresh(Clock("2026-01-01 12:00:00+00", "2026-01-03 12:00:00+00")) as opened:
        _look(opened, since)
        leaf = opened.leaf(ID, clock_filters=(DUE,), clock_negations=(NOT_DUE,))
        assert opened.delta(leaf, since) == {(1,): -1, (2,): 2, (30,): 1}
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 0)
        assert opened.delta(leaf, since) == {(1,): -1, (2,): 2, (30,): 1}
        assert opened.framed_delta(leaf, since) == ({(1,): -1, (2,): 2, (30,): 1} if made.case.framed else None)


@over(lambda case: not case.has_changes)
def test_what_never_changes_has_no_delta(made: Rig) -> None:
    with made.refresh() as opened:
        leaf = opened.leaf(ID, NAME)
        assert opened.source.delta(leaf, None) is None
        assert opened.source.delta(leaf, opened.source.head()) is None


# -- the rest ------------------------------------------------------------------------------------------------


@over(lambda case: case.lent)
def test_lent_rows_are_what_a_query_over_the_name_reads(made: Rig) -> None:
    with made.refresh() as opened:
        opened.source.lend()
        assert opened.lent() == made.held()
    made.commit("UPDATE t SET name = 'TWO' WHERE id = 2")
    with made.refresh() as opened:
        opened.source.lend()
        opened.source.lend()
        assert opened.lent() == made.held()


@over(lambda case: not case.lent)
def test_what_no_query_names_need_not_be_lent(made: Rig) -> None:
    with made.refresh() as opened:
        opened.source.lend()
        assert opened.rows(opened.leaf(ID, NAME)) == made.held()


@every
def test_a_cost_is_positive_and_grows_with_the_keys(made: Rig) -> None:
    with made.refresh() as opened:
        leaf = opened.leaf(ID, NAME)
        indexed, other, computed = (
            [opened.source.cost(leaf, sql, keys) for keys in (1, 10, 1000)] for sql in (ID.sql, NAME.sql, UPPER.sql)
        )
        for costs in (indexed, other, computed):
            assert 0 < costs[0] <= costs[1] <= costs[2]
        if made.case.indexed:
            assert all(a < b for a, b in zip(indexed, other, strict=True))
        else:
            assert indexed == other


@every
def test_effort_is_counted_in_whole_numbers(made: Rig) -> None:
    with made.refresh() as opened:
        opened.source.pending(opened.source.head())
        before = dict(opened.source.effort())
        opened.rows(opened.leaf(ID, NAME))
        after = opened.source.effort()
        for effort in (before, after):
            assert all(type(spent) is int and spent >= 0 for spent in effort.values())
        assert before.keys() == after.keys()
        assert all(after[what] >= spent for what, spent in before.items())


@changing
def test_a_refresh_that_was_rolled_back_never_was(made: Rig) -> None:
    since, before = made.since(), made.held()
    made.commit("UPDATE t SET name = 'TWO' WHERE id = 2")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), made.refresh() as opened:
            _use_fully(opened, made, since, before)
            raise ZeroDivisionError
    with made.refresh() as opened:
        _use_fully(opened, made, since, before)


@changing
def test_a_source_serves_the_owner_of_the_stream_table(
    case: Case, server: EmbeddedServer, dsn: str, tmp_path: Path, sessions: Sessions
) -> None:
    """Whoever owns the reader has the rights to read, and needs none on what the engine keeps for it."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (OTHER,)).fetchone() is None:
            admin.execute(f"CREATE ROLE {OTHER}".encode())
    with rig(case, dsn, tmp_path, sessions, OTHER) as made:
        since, before = made.since(), made.held()
        made.commit("UPDATE t SET name = 'TWO' WHERE id = 2")
        with made.refresh() as opened:
            _use_fully(opened, made, since, before)


def _use_fully(opened: Opened, made: Rig, since: Version, before: Bag) -> None:
    """All that a refresh may ask, with the answers that it must get."""
    _look(opened, since)
    leaf, after = opened.leaf(ID, NAME), made.held()
    assert opened.delta(leaf, since) == minus(after, before)
    for read in _ways_to_read(opened, made.case):
        assert read(leaf) == after
    assert opened.rows(leaf, ONE) == {(2, "TWO"): 2}
    opened.source.lend()
    if made.case.lent:
        assert opened.lent() == after


def _look(opened: Opened, since: Version) -> None:
    """As every refresh does before it reads anything."""
    assert opened.source.pending(since).recompute is None


def _ways_to_read(opened: Opened, case: Case) -> Sequence[Callable[..., Bag | None]]:
    return (opened.rows, opened.framed) if case.framed else (opened.rows,)
