"""A neighbourhood without its names: equal ones look alike, wherever they are in a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from graphpatch.graph.body import Body
from graphpatch.match.pattern.decide import Decider, Shape
from graphpatch.match.pattern.plan import Step
from graphpatch.match.pattern.wiring import Vertex
from graphpatch.names import TensorName

Links = dict[tuple[Vertex, Vertex], dict[int, int]]
"""Between two vertices: for each link, by its slot, the edges of the pattern that it can be, as
bits. Runs are no one link: each edge that is a run has a number below zero of its own."""

Places = Mapping[Vertex, int]
"""Where each op stands among the vertices of a shape."""

Copy = tuple[Vertex, int]
"""A tensor, and the node of the pattern that it can be."""

Linked = tuple[int, int, tuple[int, ...]]


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
    ops: dict[Vertex, int] = {}
    for number in range(decider.op_count):
        for vertex in around.found[number]:
            ops[vertex] = ops.get(vertex, 0) | 1 << number
    vertices = sorted(ops, key=_index)
    roles, ranks = [ops[vertex] for vertex in vertices], list(range(len(ops)))
    places: Places = {vertex: at for at, vertex in enumerate(vertices)}
    if decider.op_count == len(decider.names):
        links = _between_ops(around.links, places)
    else:
        tensors = _tensors(around, decider, body)
        copies = {copy: len(vertices) + at for at, copy in enumerate(tensors)}
        links = _with_tensors(around.links, places, copies, decider)
        vertices += [tensor for tensor, _ in tensors]
        roles += [1 << number for _, number in tensors]
        ranks += tensors.values()
    return vertices, Shape(tuple(roles), tuple(ranks), tuple(sorted(links)))


def _index(vertex: Vertex) -> int:
    assert not isinstance(vertex, TensorName)
    return vertex


def _tensors(around: Neighbourhood, decider: Decider, body: Body) -> dict[Copy, int]:
    """Each tensor, once for each node that it can be, with its rank among all tensors."""
    numbers = range(decider.op_count, len(decider.names))
    ordered = _ordered(around, numbers, body)
    return {
        (tensor, number): rank
        for number in numbers
        for rank, tensor in enumerate(ordered)
        if tensor in around.found[number]
    }


def _ordered(around: Neighbourhood, tensors: range, body: Body) -> list[TensorName]:
    """All tensors in the order of the ops that give them, a function's arguments first."""
    every = {one for number in tensors for one in around.found[number]}
    return sorted(
        (one for one in every if isinstance(one, TensorName)),
        key=lambda tensor: (body.by_name.get(tensor.op, -1), tensor.op, tensor.arg, tensor.index),
    )


def _between_ops(links: Links, places: Places) -> list[Linked]:
    """The links whose two ends both are vertices, each with the edges that it can be."""
    return [
        (places[source], places[target], tuple(sorted(between.values())))
        for (source, target), between in links.items()
        if source in places and target in places
    ]


def _with_tensors(
    links: Links, places: Places, copies: Mapping[Copy, int], decider: Decider
) -> list[Linked]:
    """The same where some links are from tensors: from each copy those that are of its node."""
    found = _between_ops(links, places)
    for (source, target), between in links.items():
        for number in range(decider.op_count, len(decider.names)):
            mine = decider.leaving[number]
            kept = sorted(bits & mine for bits in between.values() if bits & mine)
            if kept and (source, number) in copies and target in places:
                found.append((copies[source, number], places[target], tuple(kept)))
    return found
