"""Rows of a change, kept for those who look."""

from __future__ import annotations

import pytest

from runnel.model import looks
from runnel.model.looks import Looks, Seen

CHANGE = Seen(7, ("k",), ((-1, "a"), (1, "b")))


def test_rows_are_kept_while_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Looks()
    assert not kept.wants(1)
    kept.keep(1, CHANGE)
    assert kept.look(1) is None, "nobody looked when it changed"
    assert kept.wants(1) and not kept.wants(2)
    kept.keep(1, CHANGE)
    assert kept.look(1) == CHANGE
    monkeypatch.setattr(looks, "SECONDS", 0.0)
    kept.look(1)
    assert not kept.wants(1)
    assert kept.look(1) is None, "what nobody looks at is forgotten"


def test_few_tables_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "MOST_TABLES", 2)
    kept = Looks()
    for table in (1, 2, 1, 3):
        kept.look(table)
    assert [table for table in (1, 2, 3) if kept.wants(table)] == [1, 3], "the one looked at longest ago goes"
