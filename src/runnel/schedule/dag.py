"""The graph of stream tables: order, cycles, and the diamonds that must move together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

Graph = Mapping[int, frozenset[int]]
"""Each stream table with the stream tables it reads."""


def ordered(graph: Graph) -> list[int]:
    """Upstream first; ties by id, so that the order is stable.

    >>> ordered({3: frozenset({1, 2}), 1: frozenset(), 2: frozenset({1})})
    [1, 2, 3]
    """
    sorter = TopologicalSorter({k: sorted(v & graph.keys()) for k, v in sorted(graph.items())})
    return list(sorter.static_order())


def find_circle(graph: Graph) -> list[int]:
    """Stream tables that read each other in a circle; none in a graph that has an order.

    >>> find_circle({1: frozenset({2}), 2: frozenset({1}), 3: frozenset({1})})
    [1, 2]
    """
    try:
        ordered(graph)
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def ancestors(graph: Graph, node: int) -> frozenset[int]:
    """Everything a stream table reads, directly or not."""
    found: set[int] = set()
    waiting = list(graph.get(node, ()))
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting.extend(graph.get(current, ()))
    return frozenset(found)


def descendants(graph: Graph, node: int) -> frozenset[int]:
    """Everything that reads a stream table, directly or not."""
    return frozenset(other for other in graph if node in ancestors(graph, other))


def units(graph: Graph, sources: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Stream tables grouped by what must be refreshed in one transaction, upstream first.

    Where two paths from one source (a table or a stream table) meet again, every stream table on them belongs to
    one unit: their common reader must never see one path newer than the other.

    >>> graph = {1: frozenset(), 2: frozenset(), 3: frozenset({1, 2})}
    >>> units(graph, {1: [100], 2: [100], 3: []})
    [[1, 2, 3]]
    >>> units(graph, {1: [100], 2: [200], 3: []})
    [[1], [2], [3]]
    """
    parent = {node: node for node in graph}

    def find(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    reach = {n: _reach(graph, sources, n) for n in graph}
    for node in graph:
        direct = sorted(graph[node] & graph.keys())
        for i, left in enumerate(direct):
            for right in direct[i + 1 :]:
                shared = reach[left] & reach[right]
                if shared:
                    for member in _between(graph, reach, shared, node):
                        parent[find(member)] = find(node)
        # A table read both directly and through a stream table is a diamond too.
        for up in direct:
            shared = reach[up] & {("t", s) for s in sources.get(node, ())}
            if shared:
                for member in _between(graph, reach, shared, node):
                    parent[find(member)] = find(node)
    order = ordered(graph)
    grouped: dict[int, list[int]] = {}
    for node in order:
        grouped.setdefault(find(node), []).append(node)
    position = {node: i for i, node in enumerate(order)}
    return sorted(grouped.values(), key=lambda unit: position[unit[-1]])


def _reach(graph: Graph, sources: Mapping[int, Iterable[int]], node: int) -> set[tuple[str, int]]:
    """All tables and stream tables a node depends on, itself included."""
    every = ancestors(graph, node) | {node}
    return {("s", n) for n in every} | {("t", t) for n in every for t in sources.get(n, ())}


def _between(
    graph: Graph, reach: Mapping[int, set[tuple[str, int]]], shared: set[tuple[str, int]], node: int
) -> set[int]:
    """The stream tables on the paths from what is shared to the node."""
    above = ancestors(graph, node)
    return {a for a in above if reach[a] & shared and ("s", a) not in shared} | {node}
