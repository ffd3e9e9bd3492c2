"""What a patched model must keep of its original: names, what they give, weights, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphpatch.analysis.diff import differences_around
from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import Differences
from graphpatch.analysis.rule_words import StructureFault, fault_at, patched_ops
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import name_in_model
from graphpatch.table import short

SIGNATURES = ("signature_def", "asset_file_def", "saver_def")


def name_faults(one: Graph, other: Graph, differ: Differences) -> Iterator[StructureFault]:
    """Names that consumers hold on to and that are gone, or stand for something else now."""
    for body in one.bodies:
        there = other.counterpart(body)
        if there is None:
            yield StructureFault(
                "function_lost", body.label, "", f"function {body.label!r} is gone"
            )
        else:
            yield from _lost(body, there, differ[body])


def _lost(one: Body, other: Body, differ: Mapping[int, int]) -> Iterator[StructureFault]:
    for name in one.by_name:
        if name not in other.by_name:
            yield StructureFault(
                "lost", one.label, name, f"{one.node(name)} is gone: no op has its name"
            )
    for first, second in differ.items():
        left, right = Node(one, first), Node(other, second)
        before, after = _output_dtypes(left), _output_dtypes(right)
        if before is not None and after is not None and before != after:
            says = f"it gives {_dtypes_in_words(after)}, and gave {_dtypes_in_words(before)}"
            yield StructureFault("outputs", one.label, left.name, f"{right}: {says}")
        if left.op == right.op == "Const":
            yield from _weight(left, right)


def _output_dtypes(node: Node) -> list[str | None] | None:
    try:
        return None if node.outputs is None else [arg.dtype for arg in node.outputs]
    except ModelError:
        return None


def _dtypes_in_words(dtypes: list[str | None]) -> str:
    return ", ".join(map(str, dtypes)) or "nothing"


def _weight(left: Node, right: Node) -> Iterator[StructureFault]:
    """No rule may change a constant."""
    for change in differences(left, right):
        if change.startswith(("value", "attr value", "attr dtype")):
            yield fault_at("weight", right, change)


def signature_faults(one: Model, other: Model) -> Iterator[StructureFault]:
    """What a consumer reads beside the graph, and finds changed."""
    if one.container is other.container:
        for text in differences_around(one, other):
            if text.startswith(SIGNATURES):
                yield StructureFault(
                    "signature", "", text, f"{text} of the MetaGraphDef was changed"
                )


def lost_gradients(one: Graph, other: Graph) -> Iterator[StructureFault]:
    """Each rule of a patched graph of whose gradients some are not in the other graph.

    An optimiser that ran offline leaves such a graph. So it does where nodes still tell of a rule,
    and what the rule put in their place is not there.
    """
    promised: dict[str, dict[str, bool]] = {}
    for rule, op, is_lost in (*_of_first(one, other), *_of_second(other)):
        ops = promised.setdefault(rule, {})
        ops[op] = ops.get(op, False) or is_lost
    for rule, ops in promised.items():
        lost = [op for op, is_lost in ops.items() if is_lost]
        if lost:
            says = (
                f"the gradients of rule {rule!r} are gone at {len(lost)} of {len(ops)} ops "
                f"({short(lost)}): patch last, after optimisers"
            )
            yield StructureFault("gone", "", lost[0], says)


def _of_first(one: Graph, other: Graph) -> Iterator[tuple[str, str, bool]]:
    """What rules put into the first graph: rule, op, and whether it is gone."""
    for body in one.bodies:
        touched = [] if body.is_ours else list(provenance.touched(body))
        now = _by_own_name(other.counterpart(body) if touched else None)
        for node in touched:
            for place, op in patched_ops(node):
                rule = provenance.authors(node, [place])[0].rule
                yield rule, op, not _is_kept(node, now)


def _of_second(other: Graph) -> Iterator[tuple[str, str, bool]]:
    """What rules moved aside in the second graph, and whether nothing of them is in its place."""
    for body in other.bodies:
        for node in provenance.touched(body):
            was = name_in_model(node)
            if was != node.name:
                there = was in body.by_name and provenance.record(body.node(was)) is not None
                yield provenance.shadow(node), was, not there


def _by_own_name(body: Body | None) -> dict[str, list[Node]]:
    """The ops by the names that they have, and that they had before a rule moved them."""
    found: dict[str, list[Node]] = {}
    for node in body or ():
        found.setdefault(node.name, []).append(node)
    for node in provenance.touched(body) if body is not None else ():
        found.setdefault(name_in_model(node), []).append(node)
    return found


def _is_kept(node: Node, now: Mapping[str, Sequence[Node]]) -> bool:
    """Whether what a rule put there is there: the op, its type, its key, what it calls."""
    return any(_carries(one) == _carries(node) for one in now.get(node.name, ()))


def _carries(node: Node) -> object:
    return node.op, node.attr(OVERRIDE), node.body.library.gradients.get(node.op)
