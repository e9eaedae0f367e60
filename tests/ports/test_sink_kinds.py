"""Every implementation has every operation of the port, with the port's own parameters."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from runnel.ports.sink import Publication, Sink
from runnel.sinks.outbox.sink import OutboxSink
from runnel.sinks.registry import KINDS, Publications, Sinks
from tests.ports.sinks import CASES
from tests.ports.structure import lacks, operations


def publication_of(kind: Any) -> type:
    """The class of a sink's publications."""
    hints = typing.get_type_hints(kind.publication)
    found = hints["return"]
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize("kind", [*KINDS, Sinks])
def test_a_sink_has_every_operation(kind: Any) -> None:
    assert lacks(kind, Sink) == []
    assert lacks(publication_of(kind), Publication) == []


def test_a_sink_that_lacks_an_operation_is_noticed() -> None:
    class Half:
        name = "half"
        options = ()

        def publication(self, conn: object) -> object: ...
        def wish(self, conn: object, args: object) -> object: ...

    assert lacks(Half, Sink) == [
        "close",
        "describe",
        "tidy",
        "upstream",
        "wish(self, conn: 'object', args: 'object') -> 'object'",
    ]
    assert {"put", "drop", "prepare", "publish", "undo"} <= operations(Publication)


def test_each_kind_is_tried_by_the_contract() -> None:
    # Of an outbox a reader sees messages, not rows: tests/relay tries it.
    assert {case.kind for case in CASES} >= set(KINDS) - {OutboxSink}


def test_no_option_belongs_to_two_sinks() -> None:
    options = [option for kind in KINDS for option in kind.options]
    assert len(options) == len(set(options))
    assert publication_of(Sinks) is Publications
