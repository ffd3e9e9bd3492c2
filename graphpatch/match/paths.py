"""`between`, `upstream_of` and `downstream_of`: where an op lies on paths between tensors."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.topology import (
    Passes,
    anywhere,
    downstream,
    nowhere,
    readers_of,
    tensor_named,
    upstream,
)
from graphpatch.match.condition import Condition, Test
from graphpatch.match.glob import texts
from graphpatch.match.spec import Between, DependencySearch, Match, inner
from graphpatch.names import TensorName

Holds = Callable[[Match], Condition]
"""All conditions of a match as one."""


TensorsOrSearch = str | Sequence[str] | DependencySearch


def upstream_of(value: TensorsOrSearch, control: bool, holds: Holds) -> Condition:
    """One of these tensors is computed from the op; the op that gives the tensor is among them."""
    return _found_by_search(upstream, value, control, holds)


def downstream_of(value: TensorsOrSearch, control: bool, holds: Holds) -> Condition:
    """The op is computed from one of these tensors; the op that gives the tensor is not."""
    return _found_by_search(downstream, value, control, holds)


def _found_by_search(
    marks_of: Callable[..., bytearray], value: TensorsOrSearch, control: bool, holds: Holds
) -> Condition:
    if not isinstance(value, DependencySearch):
        value = DependencySearch(of=tuple(texts(value)))
    search = value  # as mypy knows its type inside of the function too

    def prepared(body: Body) -> Test:
        limits = _limits(search, body, holds)
        return _marked(marks_of(body, _ends_in(body, search.of), control, *limits))

    return prepared


def between(value: Between, control: bool, holds: Holds) -> Condition:
    """The op is on a path from one of the first tensors to one of the second.

    The ops that give the tensors at both ends belong to it, or neither does. A path leads on
    through ops that are `within` and are none of `stop_at`; what these say is not asked of ends.
    """

    def prepared(body: Body) -> Test:
        sources, targets = _ends_in(body, value.sources), _ends_in(body, value.targets)
        found = _ops_on_paths(body, sources, targets, control, _limits(value, body, holds))
        ends = {body.by_name.get(tensor.op) for tensor in (*sources, *targets)}
        if value.ends:
            return lambda node: node.index in found
        return lambda node: node.index in found and node.index not in ends

    return prepared


def _ops_on_paths(
    body: Body,
    sources: Sequence[TensorName],
    targets: Sequence[TensorName],
    control: bool,
    limits: tuple[Passes, Passes],
) -> set[int]:
    """The ops on the paths, those at both ends included."""
    through, last = limits
    ends = {body.by_name.get(tensor.op) for tensor in targets}

    def passes(index: int) -> bool:
        return index in ends or (through(index) and not last(index))

    behind = downstream(body, sources, control, passes)
    starts = {body.by_name.get(tensor.op) for tensor in sources}
    before = upstream(body, targets, control, lambda i: i in starts or bool(behind[i]))
    inner = {index for index, mark in enumerate(before) if mark and behind[index]}
    found = set(inner)
    for tensor in sources:  # each by itself: a path may not lead through the op of another
        index = body.by_name.get(tensor.op)
        if index is not None and (tensor in targets or _is_read(body, tensor, inner, control)):
            found.add(index)
    return found


def _is_read(body: Body, tensor: TensorName, found: Container[int], control: bool) -> bool:
    """Whether one of these ops reads a tensor, or runs after the op that gives it."""
    inputs = body.heads.inputs
    uses = body.readers.get(tensor.op, ()) if control else ()
    after = (index for index, slot in uses if inputs[index][slot].startswith("^"))
    reading = (index for index, _ in readers_of(body, tensor))
    return any(index in found for index in (*reading, *after))


def _limits(value: DependencySearch | Between, body: Body, holds: Holds) -> tuple[Passes, Passes]:
    """Through which ops a walk leads, and behind which it does not go on."""
    within = None if value.within is None else holds(value.within)(body)
    stop_at = None if value.stop_at is None else holds(value.stop_at)(body)
    return (
        anywhere if within is None else lambda index: within(Node(body, index)),
        nowhere if stop_at is None else lambda index: stop_at(Node(body, index)),
    )


def unknown_tensors(graphs: Iterable[Graph], match: Match) -> list[str]:
    """The tensors that a match names for its paths and that no body of these graphs has."""
    bodies = [body for graph in graphs for body in graph.bodies]
    return [
        text
        for text in dict.fromkeys(_tensors_of(match))
        if all(tensor_named(body, text) is None for body in bodies)
    ]


def _tensors_of(match: Match) -> Iterator[str]:
    for value in (match.upstream_of, match.downstream_of):
        yield from texts((value.of if isinstance(value, DependencySearch) else value) or ())
    if match.between is not None:
        yield from texts(match.between.sources)
        yield from texts(match.between.targets)
    for one in inner(match):
        yield from _tensors_of(one)


def _ends_in(body: Body, value: str | Sequence[str]) -> list[TensorName]:
    found = [tensor_named(body, text) for text in texts(value)]
    return [tensor for tensor in found if tensor is not None]


def _marked(marks: bytearray) -> Test:
    return lambda node: bool(marks[node.index])
