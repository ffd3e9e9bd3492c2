"""The functions that edits added, taken out of a library where nothing calls them any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensorboard.compat.proto.function_pb2 import GradientDef, RegisteredGradient

from graphpatch.errors import ModelError
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.dropping import drop_functions
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.provenance import touched
from graphpatch.graph.wire import Field, fields, message

GRADIENT, REGISTERED = 2, 3  # fields of FunctionDefLibrary


def drop_unused(graph: Graph) -> frozenset[str]:
    """Drop the functions of ours that no op needs any more, and return their names."""
    parts = [(library, part, _owner_of(graph, part)) for library, part in _parts(graph)]
    gone = frozenset(name for name, body in graph.functions.items() if body.is_ours)
    gone -= _used(graph, dict(_registered(graph, parts)))
    for body in graph.bodies:
        if not body.is_ours and (calls := gone & set(body.heads.ops)):
            raise ModelError(f"{body.label} calls {min(calls)}, which a rule added, from elsewhere")
    names = {part: name for name, (_, part) in graph.function_fields.items()}
    cut = [(library, part) for library, part, of in parts if names.get(part, of) in gone]
    drop_functions(graph, gone, cut)
    return gone


def _parts(graph: Graph) -> Iterator[tuple[Field, Field]]:
    for library in graph.others:
        if library.holds(LIBRARY):
            for part in fields(graph.source.data, library.value, library.end):
                yield library, part


def _owner_of(graph: Graph, part: Field) -> str:
    """The function that a GradientDef or RegisteredGradient belongs to."""
    raw = graph.source.data[part.value : part.end] if part.number in (GRADIENT, REGISTERED) else b""
    if part.holds(GRADIENT):
        return str(message(GradientDef, raw).function_name)
    return str(message(RegisteredGradient, raw).gradient_func) if part.holds(REGISTERED) else ""


def _registered(
    graph: Graph, parts: Iterable[tuple[Field, Field, str]]
) -> Iterator[tuple[str, str]]:
    """The keys that the library registers gradients for, and their functions."""
    for _, part, of in parts:
        if part.holds(REGISTERED):
            raw = graph.source.data[part.value : part.end]
            yield message(RegisteredGradient, raw).registered_op_type, of


def _used(graph: Graph, registered: Mapping[str, str]) -> set[str]:
    """The functions that ops with provenance need, and those that these functions need."""
    theirs = (body for body in graph.bodies if not body.is_ours)
    todo = [name for body in theirs for node in touched(body) for name in _needs(node, registered)]
    used: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in used and name in graph.functions:
            used.add(name)
            todo.append(graph.library.gradients.get(name, ""))
            if graph.functions[name].is_ours:
                todo += (one for n in graph.functions[name] for one in _needs(n, registered))
    return used


def _needs(node: Node, registered: Mapping[str, str]) -> Iterator[str]:
    yield from called_functions(node)
    key = node.attr(OVERRIDE)
    if key is not None:
        yield registered.get(key.s.decode(errors="replace"), "")
