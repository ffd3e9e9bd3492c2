"""`between`, `upstream_of` and `downstream_of`: where an op lies on the way of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphpatch.graph.body import Body
from graphpatch.graph.graph import Graph
from graphpatch.graph.topology import downstream, tensor_named, upstream
from graphpatch.match.condition import Condition, Test
from graphpatch.match.spec import Between, Match, Pattern, texts
from graphpatch.names import TensorName


def upstream_of(value: str | Sequence[str], control: bool) -> Condition:
    """One of these tensors is computed from the op; the op that gives the tensor is among them."""
    return lambda body: _marked(upstream(body, _tensors(body, value), control))


def downstream_of(value: str | Sequence[str], control: bool) -> Condition:
    """The op is computed from one of these tensors; the op that gives the tensor is not."""
    return lambda body: _marked(downstream(body, _tensors(body, value), control))


def between(value: Between, control: bool) -> Condition:
    """The op is on a path from one of the first tensors to one of the second.

    It is downstream of the one and upstream of the other: the op that gives a tensor at the
    start is before the path, the op that gives one at the end is its last.
    """

    def prepared(body: Body) -> Test:
        behind = downstream(body, _tensors(body, value.sources), control)
        before = upstream(body, _tensors(body, value.targets), control)
        return lambda node: bool(behind[node.index] and before[node.index])

    return prepared


def unknown(graphs: Iterable[Graph], match: Match) -> list[str]:
    """The tensors that a match names for its paths and that no body of these graphs has."""
    bodies = [body for graph in graphs for body in graph.bodies]
    return [
        text
        for text in dict.fromkeys(_named(match))
        if all(tensor_named(body, text) is None for body in bodies)
    ]


def _named(match: Match) -> Iterator[str]:
    for value in (match.upstream_of, match.downstream_of):
        yield from texts(value or ())
    if match.between is not None:
        yield from texts(match.between.sources)
        yield from texts(match.between.targets)
    inside = [*(match.any or ()), *(match.all or ()), match.not_ or Match()]
    for neighbours in (match.inputs, match.consumers):
        inside += (neighbours or {}).values()
    for form in match.pattern if isinstance(match.pattern, tuple) else (match.pattern,):
        inside += form.nodes.values() if isinstance(form, Pattern) else ()
    for one in inside:
        if one != Match():
            yield from _named(one)


def _tensors(body: Body, value: str | Sequence[str]) -> list[TensorName]:
    found = [tensor_named(body, text) for text in texts(value)]
    return [tensor for tensor in found if tensor is not None]


def _marked(marks: bytearray) -> Test:
    return lambda node: bool(marks[node.index])
