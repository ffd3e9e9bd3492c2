"""What an assignment of ops to a pattern must keep to besides its edges: runs, absent ops, closed.

Each question has its answer as a reason in words, or as nothing where all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphpatch.graph.body import Node
from graphpatch.match.pattern.binding import Binding
from graphpatch.match.pattern.candidates import Candidates
from graphpatch.match.pattern.links import LinkWalker, Vertex
from graphpatch.match.spec import Edge, Link, Pattern
from graphpatch.names import TensorName

BoundVertices = Mapping[str, Vertex]


def run(
    wiring: LinkWalker, candidates: Candidates, edge: Edge, bound: BoundVertices
) -> tuple[tuple[int, ...], str]:
    """All ops of the run that an edge leads to, its last one last; or why there is none.

    They are those on every path there through such ops as are no others of the match. A path ends
    there: in a circle, it does not go round once more.
    """
    end, link = bound[edge.target], edge.link
    assert isinstance(end, int)
    taken = {vertex for name, vertex in bound.items() if name != edge.target}
    on, source = Link(input=link.input), bound[edge.source]
    early = _at_least(wiring, source)

    def free(index: int) -> bool:
        return index not in taken and candidates.passes(index) and early(index)

    before = _reached_from([end], lambda index: wiring.backward(index, on), free)
    start = [index for index, _ in wiring.forward(source, link)]

    def following(index: int) -> Iterator[tuple[int, int]]:
        return iter(()) if index == end else wiring.forward(index, on)

    found = _reached_from(start, following, before.__contains__)
    if end not in found:
        return (), f"the run to {edge.target!r} leads through another op of the match"
    return (*sorted(found - {end}), end), ""


def outside(binding: Binding) -> str:
    """Why a tensor from outside is none: an op of the match gives it."""
    by_name, mine = binding.body.by_name, set(binding.indices)
    for name, tensor in zip(binding.pattern.tensors, binding.read, strict=True):
        if by_name.get(tensor.op) in mine:
            return f"{name}:_ is a tensor from outside, and an op of the match gives {tensor}"
    return ""


def _at_least(wiring: LinkWalker, source: Vertex) -> Callable[[int], bool]:
    """Whether an op may be behind another, by the order of all ops; True where it is not known.

    Without it, a walk to what an op is computed from goes on beyond the source of the run.
    """
    index = wiring.body.by_name.get(source.op) if isinstance(source, TensorName) else source
    if index is None or not wiring.is_worn:
        return lambda other: True
    order = wiring.order
    least = order[index]
    return lambda other: order[other] >= least


def goes_on(wiring: LinkWalker, candidates: Candidates, edge: Edge, binding: Binding) -> str:
    """Why a run that nothing follows is not a whole one: it goes on."""
    if any(other.source == edge.target for other in _present(binding.pattern)):
        return ""
    mine, end = set(binding.indices), binding.captures[edge.target]
    for index, _ in wiring.forward(end.index, Link(input=edge.link.input)):
        if index not in mine and candidates.passes(index):
            return f"the run {edge.target!r} goes on with {Node(wiring.body, index)}"
    return ""


def absent(wiring: LinkWalker, candidates: Candidates, name: str, binding: Binding) -> str:
    """Why an op that must be absent is not: it is there, beside those of the match."""
    edges = [edge for edge in binding.pattern.edges if name in (edge.source, edge.target)]
    bound: dict[str, Vertex] = {
        **{one: node.index for one, node in binding.captures.items()},
        **dict(zip(binding.pattern.tensors, binding.read, strict=True)),
    }
    mine = set(binding.indices)
    found = set.intersection(*(set(_other_end(wiring, edge, name, bound)) for edge in edges))
    for index in sorted(found - mine):
        if candidates.passes(index):
            return f"{Node(wiring.body, index)} is there, which must be absent ({name!r})"
    return ""


def closed(binding: Binding) -> str:
    """Why a match is not closed: an op of it that others of it read is read outside too.

    Ops that read nothing are left out: a constant may well be shared. With names it is these ops
    that nothing outside may read.
    """
    wanted = binding.pattern.closed
    if wanted is False:
        return ""
    every = binding.pattern.present
    names = every if wanted is True else [name for name in every if name in wanted]
    read = {edge.source for edge in _present(binding.pattern)}
    for name in names:
        for index in binding.of([name]):
            node = Node(binding.body, index)
            inner = name in read or index != binding.of([name])[-1]
            if wanted is True and not (inner and node.data_inputs):
                continue
            for _, reader in binding.readers(index):
                return f"{node} ({name!r}) is read outside, by {reader}"
    return ""


def _present(pattern: Pattern) -> list[Edge]:
    """The edges between what is there."""
    return [edge for edge in pattern.edges if edge.target not in pattern.absent]


def _other_end(wiring: LinkWalker, edge: Edge, name: str, bound: BoundVertices) -> Iterator[int]:
    if edge.target == name:
        return (index for index, _ in wiring.forward(bound[edge.source], edge.link))
    target = bound[edge.target]
    assert isinstance(target, int)
    return (index for index, _ in wiring.backward(target, edge.link))


def _reached_from(
    start: list[int],
    following: Callable[[int], Iterator[tuple[int, int]]],
    free: Callable[[int], bool],
) -> set[int]:
    found: set[int] = set()
    stack = [index for index in start if free(index)]
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            stack += [other for other, _ in following(index) if free(other)]
    return found
