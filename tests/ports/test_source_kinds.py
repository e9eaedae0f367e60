"""Every kind of source has every operation of the port, recognizes its own relations and no others, and opens them."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from runnel.model.names import Name
from runnel.plan.stage import Origin, Relation, Source
from runnel.ports import source as port
from runnel.ports.source import Kind
from runnel.refresh import leaves
from runnel.sources.registry import all_kinds, capture_sources, open_sources
from runnel.sql.describe import relation_facts
from tests.ports.sources import CASES, Case, Rig, rig
from tests.ports.structure import lacks, operations, required

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

RECOGNIZED = [case for case in CASES if case.kind is not None]


@pytest.fixture(params=RECOGNIZED, ids=lambda case: case.name.replace(" ", "-"))
def made(request: pytest.FixtureRequest, dsn: str, tmp_path: Path, sessions: Sessions) -> Iterator[Rig]:
    """A relation of some kind."""
    assert isinstance(request.param, Case)
    with rig(request.param, dsn, tmp_path, sessions) as built:
        yield built


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_a_kind_has_every_operation(kind: Kind) -> None:
    assert lacks(type(kind), Kind) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_source_has_every_operation(case: Case) -> None:
    assert lacks(case.source, port.Source) == []


def test_what_lacks_an_operation_is_noticed() -> None:
    class Half(Kind):
        def open(self, reading: object) -> Any: ...

    class Nothing:
        name = "nothing"

        def head(self) -> int:
            return 0

    assert required(Kind) == {"name", "origin", "open"}
    assert lacks(Half, Kind) == ["name", "open(self, reading: 'object') -> 'Any'", "origin"]
    assert lacks(Nothing, port.Source) == sorted(operations(port.Source) - {"name", "head"})
    assert {"pending", "delta", "read", "cost", "lend", "changes", "effort"} <= operations(port.Source)


def test_each_kind_has_a_name_of_its_own_and_is_tried_by_the_contract() -> None:
    names = [kind.name for kind in all_kinds()]
    assert len(names) == len(set(names))
    assert {case.kind for case in RECOGNIZED} == set(names)


def test_every_source_of_a_leaf_is_tried_by_the_contract() -> None:
    """A leaf's source is a relation of some kind, a stage, or constant rows: each of them has an implementation."""
    own = {case.source for case in CASES if case.kind is None}
    assert own == {leaves.HiddenStage, leaves.ConstantRows}
    assert len(typing.get_args(Source)) == len(own) + 1


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_relations_are_found_by_sql(kind: Kind, db: psycopg.Connection) -> None:
    """In a database without any relation of such a kind nothing is found, and nothing fails."""
    assert kind.found_by.strip()
    found = db.execute(f"SELECT c.relname, {kind.found_by} FROM pg_class AS c".encode()).fetchall()
    assert found
    assert all(value is None for _, value in found)


def test_a_relation_has_the_origin_of_its_kind(made: Rig) -> None:
    relation, kinds = made.relation, made.place.kinds
    assert isinstance(relation, Relation)
    assert relation.origin.source == made.case.kind
    assert relation.origin.noun
    for kind in kinds:
        row = made.place.db.execute(
            f"SELECT {kind.found_by} FROM pg_class AS c WHERE c.oid = %s".encode(), (relation.oid,)
        ).fetchone()
        assert row is not None
        if row[0] is not None:
            assert kind.name == made.case.kind, "no two kinds claim the same"
            assert kind.origin(row[0]) == relation.origin


def test_a_relation_that_no_kind_claims_is_a_table(made: Rig) -> None:
    """Whatever else is in the database."""
    made.place.execute("CREATE TABLE public.other (id int)")
    facts = relation_facts(made.place.conn, Name("public", "other"), made.place.kinds)
    assert not facts.claimed
    assert facts.relation.origin == Origin()
    assert Origin().source in {kind.name for kind in made.place.kinds}


def test_an_opened_relation_is_a_source(made: Rig) -> None:
    with made.refresh() as opened:
        assert type(opened.source) is made.case.source
        for name in operations(port.Source):
            assert hasattr(opened.source, name), name


def test_kinds_live_from_refresh_to_refresh(made: Rig) -> None:
    """What the engine does between refreshes fails at no kind, and none forgets its relations by it."""
    conn, kinds = made.place.conn, made.place.kinds
    assert isinstance(made.relation, Relation)
    for kind in kinds:
        kind.follow(conn)
        assert kind.resolve_names(conn, "SELECT 1") == "SELECT 1"
        assert kind.moved(conn) | kind.polled(conn) <= {made.relation.oid}
        kind.tidy(conn, [], [])
        kind.forget()
        kind.finish()
    with made.refresh() as opened:
        opened.source.lend()
        assert opened.lent() == made.held()


def test_relations_are_dealt_out_to_their_kinds() -> None:
    """A kind is asked for its own relations only, and not at all if there are none."""
    asked: list[tuple[str, list[int]]] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def capture(self, conn: object, used: Any, role: str) -> None:
            assert (conn, role) == ("conn", "role")
            asked.append((self.name, [u.relation.oid for u in used]))

        def open(self, reading: object, used: Any) -> dict[int, str]:
            assert reading == "reading"
            return {u.relation.oid: self.name for u in used}

    kinds: Any = [Recorder("A"), Recorder("B"), Recorder("C")]
    used = [port.Used(Relation(i, Name("s", "t"), (), origin=Origin(kind)), ()) for i, kind in enumerate("ABA")]
    conn: Any = "conn"
    reading: Any = "reading"
    capture_sources(kinds, conn, used, "role")
    assert asked == [("A", [0, 2]), ("B", [1])]
    assert open_sources(kinds, reading, used) == {0: "A", 1: "B", 2: "A"}
