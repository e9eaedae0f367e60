"""Every implementation has every operation of the port, with the port's own parameters."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

from runnel.ports.sink import Publication, Sink
from runnel.sinks.registry import KINDS, Publications, Sinks
from tests.ports.sinks import CASES


def operations(protocol: type) -> set[str]:
    """What a protocol asks for."""
    return {name for name in vars(protocol) if not name.startswith("_")}


def lacks(implementation: Any, protocol: type) -> list[str]:
    """What an implementation does not have, or takes otherwise."""
    found = []
    for name in sorted(operations(protocol)):
        wanted, own = vars(protocol)[name], getattr(implementation, name, None)
        if own is None:
            found.append(name)
        elif not isinstance(wanted, property) and parameters(own) != parameters(wanted):
            found.append(f"{name}{inspect.signature(own)}")
    return found


def parameters(function: Any) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


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
    assert {case.kind for case in CASES} >= set(KINDS)


def test_no_option_belongs_to_two_sinks() -> None:
    options = [option for kind in KINDS for option in kind.options]
    assert len(options) == len(set(options))
    assert publication_of(Sinks) is Publications
