"""All sinks as one: each has its part, and none is in another's way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports.sinks import ALL, ID, Rig, rig

if TYPE_CHECKING:
    from runnel.spark.session import Sessions


@pytest.fixture
def both(dsn: str, tmp_path: Path, sessions: Sessions) -> Iterator[Rig]:
    """A stream table that is published to a lake, as a log, and exported."""
    with rig(ALL, dsn, tmp_path, sessions) as made:
        made.define({**ALL.args, "ducklake_sink_mode": "append", "delta_export_compression": "gzip"})
        made.refresh([(1, "one"), (2, "two")], action="INITIAL")
        yield made


def test_both_are_published(both: Rig) -> None:
    done = both.refresh([(3, "three")], [(1, "one")])
    assert done is not None
    assert (done.inserted, done.deleted, done.reason) == (1, 1, None)
    assert done.snapshot is not None
    assert done.timings.keys() == {"publish", "upload"}
    assert both.seen() == both.exported() == both.rows
    told = both.sink.describe(both.conn, ID)
    assert told == f"lake.main.t (append, zstd); deltas to {both.folder}/deltas/ (gzip)"


def test_one_may_end_while_the_other_goes_on(both: Rig) -> None:
    both.define({"sink": "none"})
    assert both.seen() is None
    assert both.sink.describe(both.conn, ID) == f"deltas to {both.folder}/deltas/ (gzip)"
    both.refresh([(3, "three")])
    assert both.exported() == both.rows
    both.define({"sink": "ducklake"})
    both.refresh()
    assert both.seen() == both.rows
    both.define({"delta_export_path": ""})
    assert both.sink.describe(both.conn, ID) == "lake.main.t (append, zstd)"
    both.refresh([(4, "four")])
    assert both.seen() == both.rows
    assert both.exported() == both.rows - Counter([(4, "four")])


def test_what_one_refuses_no_other_does(both: Rig) -> None:
    before = both.sink.describe(both.conn, ID)
    with pytest.raises(Exception, match="there is no lake"):
        both.wish({"delta_export_path": "{folder}/elsewhere", "ducklake_lake": "nowhere"})
    assert both.sink.describe(both.conn, ID) == before
