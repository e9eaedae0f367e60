"""The contract of sinks, over every implementation: published, rolled back, refused, dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runnel.errors import UserError
from runnel.lake.store.storage import Store, StoreError
from runnel.plan.stage import Origin
from runnel.ports.sink import Published, Result
from runnel.sources.ducklake.ref import LakeRef
from tests.e2e.helpers import eventually
from tests.ports.sinks import CASES, FILES, ID, LAKES, Case, Rig, rig

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

FIRST = [(1, "one"), (2, "two"), (2, "two"), (3, None), (4, "vier")]


class Trouble(Exception):
    """Something that has nothing to do with sinks."""


@pytest.fixture(
    params=[
        # The others ask the same of most of the code; what each part does is tried by the parts.
        pytest.param(case, marks=() if case in (LAKES[0], FILES) else pytest.mark.slow, id=case.name.replace(" ", "-"))
        for case in CASES
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    """One way of publishing."""
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture
def fresh(case: Case, dsn: str, tmp_path: Path, sessions: Sessions) -> Iterator[Rig]:
    """A stream table that is published nowhere yet."""
    with rig(case, dsn, tmp_path, sessions) as made:
        yield made


@pytest.fixture
def built(fresh: Rig) -> Rig:
    """A stream table that is published, with its first rows."""
    fresh.define()
    fresh.refresh(FIRST, action="INITIAL")
    return fresh


def _forget(_: int) -> Result:
    raise AssertionError("nobody asks for a stream table that is gone")


def test_a_first_build_is_published_as_it_is(fresh: Rig) -> None:
    fresh.define()
    done = fresh.refresh(FIRST, action="INITIAL")
    assert done is not None
    assert (done.inserted, done.reason) == (len(FIRST), None)
    assert fresh.seen() == fresh.rows
    assert fresh.files()
    assert fresh.uploads() == 0


def test_changes_are_published_in_turn(built: Rig) -> None:
    for inserted, deleted in (
        ([(5, "five"), (2, "two")], []),
        ([], [(3, None), (1, "one")]),
        ([(4, "four")], [(4, "vier")]),
        ([], [(2, "two")] * 3 + [(4, "four"), (5, "five")]),
        ([(1, "again")], []),
    ):
        _apply(built, inserted, deleted)
        assert built.seen() == built.rows
    assert built.uploads() == 0


def test_without_changes_there_is_nothing_to_publish(built: Rig) -> None:
    before = built.files()
    with built.transaction() as publication:
        assert not publication.wants(ID, changed=False, definition_version=1)
        assert publication.wants(ID, changed=True, definition_version=1)
        assert built.publish(publication) is None
        assert not publication.later()
    assert built.files() == before
    assert built.seen() == built.rows


def test_a_stream_table_without_a_sink_is_left_alone(fresh: Rig) -> None:
    with fresh.transaction() as publication:
        assert not publication.wants(ID, changed=True, definition_version=1)
        assert fresh.publish(publication, FIRST) is None
        publication.drop(ID, "it never was there")
    assert fresh.files() == set()
    assert fresh.sink.describe(fresh.conn, ID) is None


def test_a_rolled_back_publication_leaves_nothing(built: Rig) -> None:
    files, seen, sinks = built.files(), built.seen(), built.sinks()
    with pytest.raises(Trouble), built.transaction() as publication:
        assert built.publish(publication, [(9, "never")], [(1, "one")]) is not None
        assert built.files() > files
        if built.case.in_lake:
            assert built.seen() == seen, "a lake shows nothing of it before the commit"
        raise Trouble
    assert built.files() == files
    assert built.seen() == seen
    assert (built.sinks(), built.uploads()) == (sinks, 0)


def test_a_first_publication_that_failed_leaves_nothing_and_can_be_made_again(fresh: Rig) -> None:
    fresh.define()
    with pytest.raises(Trouble), fresh.transaction() as publication:
        fresh.publish(publication, FIRST, action="INITIAL")
        raise Trouble
    assert not fresh.seen()
    assert fresh.files() == set()
    assert fresh.state() == 0
    fresh.refresh(FIRST, action="INITIAL")
    assert fresh.seen() == fresh.rows


def test_a_file_that_arrives_although_its_store_failed_is_gone_in_the_end(
    built: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, put = built.files(), Store.put

    def arrives_unseen(self: Store, path: str, data: Any) -> None:
        put(self, path, data)
        raise StoreError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "put", arrives_unseen)
        with pytest.raises(StoreError), built.transaction() as publication:
            built.publish(publication, [(9, "never")], [(1, "one")])
    eventually(lambda: built.files() == files)
    _apply(built, [(5, "five")], [(1, "one")])
    assert built.seen() == built.rows


def test_what_waits_for_the_commit_is_published_after_it(fresh: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may leave work for later: everything is there in the end, and the sink goes on from it."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2)
    fresh.define()
    done = fresh.refresh(FIRST, action="INITIAL")
    assert done is not None
    assert done.reason is None
    assert fresh.seen() == fresh.rows
    _apply(fresh, [(5, "five")], [(2, "two")])
    assert fresh.seen() == fresh.rows


def test_options_are_refused_before_anything_changes(fresh: Rig) -> None:
    for args in fresh.case.refused:
        with pytest.raises(UserError):
            fresh.wish(args, is_there=False)
    fresh.define()
    fresh.refresh(FIRST, action="INITIAL")
    files, told = fresh.files(), fresh.sink.describe(fresh.conn, ID)
    assert told is not None
    for args in fresh.case.refused:
        with pytest.raises(UserError):
            fresh.wish(args)
    assert fresh.sink.describe(fresh.conn, ID) == told
    assert fresh.files() == files
    assert fresh.seen() == fresh.rows


def test_a_wish_changes_nothing_by_itself(fresh: Rig) -> None:
    nothing = fresh.wish({}, is_there=False)
    assert not nothing.changes
    assert not nothing.publishes
    wish = fresh.wish(is_there=False)
    assert wish.changes
    assert wish.publishes
    assert fresh.sinks() == 0
    fresh.define()
    assert fresh.sinks() == 1
    same = fresh.wish()
    assert not same.changes
    assert same.publishes
    assert not fresh.wish({}).changes
    assert set(fresh.case.args) <= set(fresh.sink.options)


def test_a_sink_that_is_ended_publishes_no_more(built: Rig) -> None:
    off = built.wish(built.case.off)
    assert off.changes
    assert not off.publishes
    seen, files = built.seen(), built.files()
    built.define(built.case.off)
    _assert_gone(built)
    assert built.refresh([(7, "seven")]) is None
    if not built.case.in_lake:
        assert built.seen() == seen, "exported files are their readers'"
    assert built.files() == files


def test_drop_leaves_nothing_behind(built: Rig) -> None:
    seen = built.seen()
    with built.transaction() as publication:
        publication.drop(ID, "stream table t was dropped")
    _assert_gone(built)
    if not built.case.in_lake:
        assert built.seen() == seen, "exported files are their readers'"


def test_a_drop_that_is_rolled_back_never_was(built: Rig) -> None:
    with pytest.raises(Trouble), built.transaction() as publication:
        publication.drop(ID, "stream table t was dropped")
        assert not publication.wants(ID, changed=True, definition_version=1)
        raise Trouble
    assert built.sink.describe(built.conn, ID) is not None
    _apply(built, [(5, "five")], [(1, "one")])
    assert built.seen() == built.rows


def test_what_a_vanished_stream_table_has_published_is_tidied_up(built: Rig) -> None:
    """The rig's stream table is not in the catalog, as after a plain DROP TABLE."""
    seen = built.seen()
    built.sink.tidy(built.conn, _forget)
    _assert_gone(built)
    if not built.case.in_lake:
        assert built.seen() == seen, "exported files are their readers'"


def test_only_tables_of_lakes_have_a_stream_table_behind_them(built: Rig) -> None:
    found = built.conn.execute("SELECT lake, table_id FROM pgtrickle.pgt_sinks").fetchone()
    assert found is not None
    lake, table = found
    shown = Origin("LAKE_TABLE", LakeRef(lake or "lake", table or 1, "main", "shown"))
    assert built.sink.upstream(built.conn, shown) == (ID if lake else None)
    other = Origin("LAKE_TABLE", LakeRef("elsewhere", table or 1, "main", "shown"))
    assert built.sink.upstream(built.conn, other) is None
    assert built.sink.upstream(built.conn, Origin()) is None


def _apply(rig: Rig, inserted: list[Any], deleted: list[Any]) -> Published:
    done = rig.refresh(inserted, deleted)
    assert done is not None
    return done


def _assert_gone(rig: Rig) -> None:
    """Neither the catalog nor a reader knows anything of it any more, and nothing is kept for it."""
    assert rig.sink.describe(rig.conn, ID) is None
    assert (rig.sinks(), rig.state(), rig.uploads()) == (0, 0, 0)
    if rig.case.in_lake:
        assert rig.seen() is None
