"""The links of a body, read plainly: for the reference that patterns are compared with."""

from __future__ import annotations

from typing import Any

import networkx as nx

from graphpatch.graph.node import Body
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.spec import Link, Match

Tensor = tuple[str, str, int]


def reads(body: Body) -> list[tuple[int, int, Tensor | None]]:
    """(reader, slot, tensor); None where it is a control input."""
    found = []
    for reader, inputs in enumerate(body.heads.inputs):
        for slot, text in enumerate(inputs):
            found.append((reader, slot, None if text[0] == "^" else tensor(body, text)))
    return found


def tensor(body: Body, text: str) -> Tensor:
    op, *rest = text.split(":")
    if len(rest) == 2:
        return op, rest[0], int(rest[1])
    return op, "", int(rest[0]) if rest else 0


def output_number(body: Body, read: Tensor) -> int | None:
    if body.is_main:
        return read[2]
    index = body.by_name.get(read[0])
    if index is None:
        return None
    flat = next(node for node in body if node.index == index).outputs or []
    return [(one.name, one.index) for one in flat].index(read[1:])


def is_such(body: Body, index: int, match: Match) -> bool:
    return any(glob.compiled(text)(body.heads.ops[index]) for text in texts(match.op or "*"))


def fits(body: Body, use: tuple[int, int, Tensor | None], source: int | Tensor, link: Link) -> bool:
    """Whether this use is one of the op or tensor by such a link."""
    reader, slot, read = use
    if isinstance(source, tuple):
        return read == source and link.input in (None, slot)
    if link.control:
        return read is None and body.heads.inputs[reader][slot] == "^" + body.heads.names[source]
    if read is None or read[0] != body.heads.names[source] or link.input not in (None, slot):
        return False
    return link.output is None or output_number(body, read) == link.output


def followers(body: Body, source: int | Tensor, link: Link) -> list[int]:
    return [use[0] for use in reads(body) if fits(body, use, source, link)]


def runs(
    body: Body, source: int | Tensor, end: int, link: Link, match: Match, taken: set[Any]
) -> set[int] | None:
    """The ops on all ways from the source to the end of a run; None where there is no way.

    In a circle a way may come to an op twice, and to the end once: there it ends.
    """
    graph: Any = nx.DiGraph()
    on = Link(input=link.input)
    such = [i for i in range(len(body)) if i not in taken and is_such(body, i, match)]
    graph.add_nodes_from(["source", *such])
    graph.add_edges_from(("source", i) for i in followers(body, source, link) if i in graph)
    for one in such:
        if one != end:
            graph.add_edges_from((one, i) for i in followers(body, one, on) if i in graph)
    if end not in graph or not nx.has_path(graph, "source", end):
        return None
    return {end} | (nx.descendants(graph, "source") & nx.ancestors(graph, end))
