"""Where an op lies that is not on the path that a match asks for: the words of a miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import data_uses, downstream, tensor_named, upstream
from graphpatch.match.glob import texts
from graphpatch.match.nth import natural_sort_key
from graphpatch.match.spec import Between, DependencySearch, Match
from graphpatch.names import TensorName, op_of
from graphpatch.table import short

CUT = "the path leads through ops that `within` or `stop_at` leaves out"


def upstream_of(node: Node, match: Match) -> str:
    """What is computed from the op, where none of the tensors is."""
    targets = _texts_of_ends(match.upstream_of)
    if _leads(node, targets, match.control):
        return CUT
    if not match.control and _leads(node, targets, control=True):
        return f"{short(targets)} runs after it, by control edges alone"
    return f"{short(targets)} is not computed from it; {_ends_behind(node)}"


def downstream_of(node: Node, match: Match) -> str:
    """What the op is computed from, where it is none of the tensors."""
    sources = _texts_of_ends(match.downstream_of)
    if _depends(node, sources, match.control):
        return CUT
    if not match.control and _depends(node, sources, control=True):
        return f"it runs after {short(sources)}, by control edges alone"
    return f"it is not computed from {short(sources)}; {_ends_before(node)}"


def between(node: Node, match: Match) -> str:
    """At which end no path leads on from the op."""
    path = match.between
    assert path is not None
    sources, targets = texts(path.sources), texts(path.targets)
    is_end = node.name in {tensor.op for tensor in _tensors_there(node.body, (*sources, *targets))}
    if is_end and not path.ends:
        return "it is an end of the path"
    parts = []
    if not _depends(node, sources, match.control) and not is_end:
        parts.append(f"it is not computed from {short(sources)}; {_ends_before(node)}")
    if not _leads(node, targets, match.control):
        parts.append(f"{short(targets)} is not computed from it; {_ends_behind(node)}")
    return ", and ".join(parts) or (CUT if _is_limited(path) else "no path leads from end to end")


def _texts_of_ends(value: str | Sequence[str] | DependencySearch | None) -> tuple[str, ...]:
    return texts(value.of if isinstance(value, DependencySearch) else value or ())


def _is_limited(path: Between) -> bool:
    return path.within is not None or path.stop_at is not None


def _leads(node: Node, targets: Iterable[str], control: bool) -> bool:
    return bool(upstream(node.body, _tensors_there(node.body, targets), control)[node.index])


def _depends(node: Node, sources: Iterable[str], control: bool) -> bool:
    return bool(downstream(node.body, _tensors_there(node.body, sources), control)[node.index])


def _ends_behind(node: Node) -> str:
    found, todo, last = {node.name}, [node.name], []
    while todo:
        name = todo.pop()
        read = [node.body.heads.names[index] for index, _, _ in data_uses(node.body, name)]
        if not read and name != node.name:
            last.append(name)
        todo += [one for one in dict.fromkeys(read) if one not in found]
        found.update(read)
    return f"what is, ends in {short(sorted(last, key=natural_sort_key))}" if last else "nothing is"


def _ends_before(node: Node) -> str:
    body = node.body
    marks = upstream(body, [TensorName(node.name)])
    every = [Node(body, index) for index, mark in enumerate(marks) if mark]
    first = {one.name for one in every if not one.data_inputs and one.index != node.index}
    first |= {op_of(text) for one in every for text in one.data_inputs} - body.by_name.keys()
    return (
        f"it is computed from {short(sorted(first, key=natural_sort_key))}"
        if first
        else "it reads nothing"
    )


def _tensors_there(body: Body, wanted: Iterable[str]) -> list[TensorName]:
    found = (tensor_named(body, text) for text in wanted)
    return [tensor for tensor in found if tensor is not None]
