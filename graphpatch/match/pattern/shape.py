"""A neighbourhood without its names: equal ones look alike, wherever they are in a body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphpatch.graph.body import Body
from graphpatch.match.pattern.decide import Decider, Shape
from graphpatch.match.pattern.plan import Step
from graphpatch.match.pattern.wiring import Vertex
from graphpatch.names import TensorName

Links = dict[tuple[Vertex, Vertex], dict[tuple[int, int], int]]
"""Between two vertices: for each link, the edges of the pattern that it can be, as bits."""

Places = dict[tuple[Vertex, int], int]
"""Where a vertex stands: of an op by (index, 0), of a tensor by it and the node that it can be."""


class Neighbourhood(NamedTuple):
    """The vertices that each node of the pattern can be, as far as was walked, and their links.

    `failed` is the step that led on to nothing.
    """

    found: dict[int, set[Vertex]]
    links: Links
    failed: Step | None


def shaped(around: Neighbourhood, decider: Decider, body: Body) -> tuple[list[Vertex], Shape]:
    """The vertices, ops in the file's order and then tensors, and the shape by their numbers.

    A tensor is there once for each name that it can be: two names may well mean one tensor,
    whereas two ops of a pattern are never one.
    """
    ops: dict[int, int] = {}
    for number in range(decider.op_count):
        for vertex in around.found[number]:
            if not isinstance(vertex, TensorName):
                ops[vertex] = ops.get(vertex, 0) | 1 << number
    vertices: list[Vertex] = [*sorted(ops)]
    place: Places = {(vertex, 0): at for at, vertex in enumerate(vertices)}
    roles, ranks = [ops[index] for index in sorted(ops)], list(range(len(ops)))
    tensors = range(decider.op_count, len(decider.names))
    ordered = _ordered(around, tensors, body) if tensors else []
    for number in tensors:
        for rank, tensor in enumerate(ordered):
            if tensor in around.found[number]:
                place[tensor, number] = len(vertices)
                vertices.append(tensor)
                roles.append(1 << number)
                ranks.append(rank)
    links = tuple(sorted(_linked(around.links, place, decider)))
    return vertices, Shape(tuple(roles), tuple(ranks), links)


def _ordered(around: Neighbourhood, tensors: range, body: Body) -> list[TensorName]:
    """All tensors in the order of the ops that give them, a function's arguments first."""
    every = {one for number in tensors for one in around.found[number]}
    return sorted(
        (one for one in every if isinstance(one, TensorName)),
        key=lambda tensor: (body.by_name.get(tensor.op, -1), tensor.op, tensor.arg, tensor.index),
    )


def _linked(
    links: Links, place: Places, decider: Decider
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """The links whose two ends both are vertices, each with the edges that it can be."""
    for (source, target), between in links.items():
        at = place.get((target, 0))
        if at is None:
            continue
        if not isinstance(source, TensorName):
            if (source, 0) in place:
                yield place[source, 0], at, tuple(sorted(between.values()))
            continue
        for number in range(decider.op_count, len(decider.names)):
            mine = decider.leaving[number]
            kept = sorted(bits & mine for bits in between.values() if bits & mine)
            if kept and (source, number) in place:
                yield place[source, number], at, tuple(kept)
