"""The ops of a graph that a match means, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.match import glob
from graphpatch.match.conditions import conditions
from graphpatch.match.spec import Match, texts


def select(graph: Graph, match: Match) -> list[Node]:
    """The ops that a match means: bodies in the file's order, ops in their body's order.

    Functions that an earlier patch added carry gradients: what is in them is never meant.
    """
    return [node for body in _bodies(graph, match) for node in _in_body(body, match)]


def _bodies(graph: Graph, match: Match) -> Iterator[Body]:
    wanted = texts(match.body) if match.body is not None else ("**",)
    for body in graph.bodies:
        if not body.is_ours and any(glob.matches(one, body.label) for one in wanted):
            yield body


def _in_body(body: Body, match: Match) -> Iterator[Node]:
    # Indices answer for op types and plain names; the other conditions look at what is left.
    found = conditions(match)
    found.pop("body", None)
    candidates: Iterable[int] = range(len(body))
    if match.name is not None and not any(glob.is_glob(one) for one in texts(match.name)):
        candidates = sorted(
            body.by_name[one] for one in set(texts(match.name)) & body.by_name.keys()
        )
        del found["name"]
    elif match.op is not None:
        candidates = of_types(body, texts(match.op))
        del found["op"]
    tests = list(found.values())
    for index in candidates:
        node = Node(body, index)
        if all(test(node) for test in tests):
            yield node


def of_types(body: Body, wanted: Iterable[str]) -> list[int]:
    """The indices of the ops of these types, which may be globs."""
    types = {t for t in body.by_type if any(glob.matches(one, t) for one in wanted)}
    return sorted(index for one in types for index in body.by_type[one])
