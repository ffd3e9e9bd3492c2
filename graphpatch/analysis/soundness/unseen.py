"""The ops that rules were at of which none of the tensors that were compared is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphpatch import names
from graphpatch.analysis.rule_words import rules_at
from graphpatch.graph.body import Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.graph import Graph
from graphpatch.graph.topology import upstream
from graphpatch.names import TensorName


def unseen(graph: Graph, compared: Iterable[str]) -> Iterator[str]:
    """The ops of a patched graph, as their rules name them, of which nothing was compared."""
    tensors = [TensorName(names.op_of(text)) for text in compared]
    marks = upstream(graph.main, tensors, control=True)
    nodes = [Node(graph.main, index) for index, mark in enumerate(marks) if mark]
    functions = _reached(graph, nodes)
    for body, op in rules_at(graph):
        if body == graph.main.label:
            index = graph.main.by_name.get(op)
            if index is None or not marks[index]:
                yield repr(op)
        elif body not in functions:
            yield f"{op!r} in function {body!r}"


def _reached(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """The functions that these ops call, and those that these call in their turn."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        for name in called_functions(todo.pop()):
            if name not in found:
                found.add(name)
                todo += graph.functions.get(name, ())
    return found
