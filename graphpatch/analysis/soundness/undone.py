"""What differs between a graph and its patched copy once all that rules tell was taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphpatch import names
from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import Differences, unlike_by_name
from graphpatch.analysis.rule_words import StructureFault, fault_at, rules_at
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.topology import upstream
from graphpatch.graph.undo import undo
from graphpatch.names import TensorName

SWAPPED = "the arguments look swapped"


def swapped_faults(one: Model, other: Model) -> Iterator[StructureFault]:
    """A fault where the second model is the first without its rules."""
    if any(map(_is_patched, other.graphs)) or not any(map(_is_patched, one.graphs)):
        return
    try:
        pairs = zip(other.graphs, one.graphs, strict=True)
        differ = any(any(untold_faults(*pair, unlike_by_name(*pair))) for pair in pairs)
    except GraphpatchError:
        differ = True
    if not differ:
        says = (
            f"{SWAPPED}: {other.path} is {one.path} without its rules, and the "
            f"original comes first: graphpatch verify {other.path} {one.path}"
        )
        yield StructureFault("swapped", "", "", says)


def _is_patched(graph: Graph) -> bool:
    return any(True for body in graph.bodies for _ in provenance.touched(body))


def untold_faults(one: Graph, other: Graph, differ: Differences) -> Iterator[StructureFault]:
    """Each difference that no rule tells of. A rule that the first graph has too stays as it is.

    `differ` are the ops of one name that differ as they stand.
    """
    was = read_record(other)
    if was is None or was.exported or provenance.applied_rules(one):
        return  # of its original it holds a part, which is compared by name
    before = other.copy()
    try:
        undo(before)
    except GraphpatchError as error:
        yield StructureFault(
            "provenance", "", "", f"what its rules tell cannot be taken back: {error}"
        )
        return
    yield from _untold_functions(one, before)
    for body in one.bodies:
        there = before.counterpart(body)
        now = other.counterpart(body)
        if there is not None and now is not None:
            yield from _node_faults(body, there, now, differ[body])
            if not body.is_main:
                yield from _signature_faults(body, there)


def _node_faults(
    one: Body, before: Body, now: Body, changed: Mapping[int, int]
) -> Iterator[StructureFault]:
    """Nodes that came, went or changed; those whose bytes are the same now were not touched."""
    for name, index in one.by_name.items():
        if name not in before.by_name:
            if name in now.by_name:
                says = f"{Node(one, index)} is another op, and no rule tells what became of it"
                yield StructureFault("untold", one.label, name, says)
        elif index in changed or name not in now.by_name:
            found = before.node(name)
            for change in differences(Node(one, index), found)[:1]:
                yield fault_at("untold", found, f"{change}, and no rule tells of it")
    for name in before.by_name.keys() - one.by_name.keys():
        yield fault_at(
            "untold", before.node(name), "it is not in the original, and no rule tells of it"
        )


def _untold_functions(one: Graph, before: Graph) -> Iterator[StructureFault]:
    for name in before.functions.keys() - one.functions.keys():
        says = f"function {name!r} is not in the original, and no rule tells of it"
        yield StructureFault("untold", name, "", says)
    left, right = one.library.gradients, before.library.gradients
    for name in left.keys() | right.keys():
        if left.get(name) != right.get(name):
            says = (
                f"the gradient function of {name!r} was {left.get(name)} and is "
                f"{right.get(name)}; no rule tells of it"
            )
            yield StructureFault("untold", name, "", says)


def _signature_faults(one: Body, before: Body) -> Iterator[StructureFault]:
    """What a function takes and gives, and from where."""
    if one.signature != before.signature:
        says = f"the signature of function {one.label!r} changed, and no rule tells of it"
        yield StructureFault("untold", one.label, "", says)
    for output in one.ret.keys() | before.ret.keys():
        if one.ret.get(output) != before.ret.get(output):
            says = (
                f"output {output!r} of function {one.label!r} is read from "
                f"{before.ret.get(output)!r}, not from {one.ret.get(output)!r}; no rule tells of it"
            )
            yield StructureFault("untold", one.label, output, says)


def uncompared_ops(graph: Graph, compared: Iterable[str]) -> Iterator[str]:
    """The ops of a patched graph, as their rules name them, of which nothing was compared."""
    tensors = [TensorName(names.op_of(text)) for text in compared]
    marks = upstream(graph.main, tensors, control=True)
    nodes = [Node(graph.main, index) for index, mark in enumerate(marks) if mark]
    functions = _functions_below(graph, nodes)
    for body, op in rules_at(graph):
        if body == graph.main.label:
            index = graph.main.by_name.get(op)
            if index is None or not marks[index]:
                yield repr(op)
        elif body not in functions:
            yield f"{op!r} in function {body!r}"


def _functions_below(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """The functions that these ops call, and those that these call in their turn."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        for name in called_functions(todo.pop()):
            if name not in found:
                found.add(name)
                todo += graph.functions.get(name, ())
    return found
