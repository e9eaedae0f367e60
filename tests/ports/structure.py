"""What a protocol asks for, and what an implementation lacks of it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def operations(protocol: type) -> set[str]:
    """What a protocol asks for: its operations, and the attributes that it names."""
    return {name for name in {*vars(protocol), *vars(protocol).get("__annotations__", {})} if not name.startswith("_")}


def required(protocol: type) -> set[str]:
    """What of it an implementation must bring along itself: attributes without a value, operations without a body."""
    given = vars(protocol)
    return {
        name
        for name in operations(protocol)
        if name not in given or (inspect.isfunction(given[name]) and _has_no_body(given[name]))
    }


def lacks(implementation: Any, protocol: type) -> list[str]:
    """What an implementation does not have, or takes otherwise."""
    found = []
    own_to_bring = required(protocol)
    for name in sorted(operations(protocol)):
        wanted, own = vars(protocol).get(name), getattr(implementation, name, None)
        if not hasattr(implementation, name) or (name in own_to_bring and own is wanted):
            found.append(name)
        elif inspect.isfunction(wanted) and parameters(own) != parameters(wanted):
            found.append(f"{name}{inspect.signature(own)}")
    return found


def parameters(function: Any) -> list[tuple[str, object, object]]:
    """What a function takes."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def _has_no_body(function: Any) -> bool:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in definition.body)
