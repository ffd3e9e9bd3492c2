"""Gradients that the first of two graphs carries, and that the second has lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphpatch.analysis.rule_words import own_name, patched_ops
from graphpatch.analysis.soundness.fault import Fault
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.table import short


def gone(one: Graph, other: Graph) -> Iterator[Fault]:
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
            yield Fault("gone", "", lost[0], says)


def _of_first(one: Graph, other: Graph) -> Iterator[tuple[str, str, bool]]:
    """What rules put into the first graph: rule, op, and whether it is gone."""
    for body in one.bodies:
        touched = [] if body.is_ours else list(provenance.touched(body))
        now = _by_own_name(other.counterpart(body) if touched else None)
        for node in touched:
            for edit, op in patched_ops(node):
                yield edit.rule, op, not _is_kept(node, now)


def _of_second(other: Graph) -> Iterator[tuple[str, str, bool]]:
    """What rules moved aside in the second graph, and whether nothing of them is in its place."""
    for body in other.bodies:
        for node in provenance.touched(body):
            for edit in provenance.of_kind(node, "renamed"):
                there = edit.was in body.by_name and provenance.entries(body.node(edit.was))
                yield edit.rule, edit.was, not there


def _by_own_name(body: Body | None) -> dict[str, list[Node]]:
    """The ops by the names that they have, and that they had before a rule moved them."""
    found: dict[str, list[Node]] = {}
    for node in body or ():
        found.setdefault(node.name, []).append(node)
    for node in provenance.touched(body) if body is not None else ():
        found.setdefault(own_name(node), []).append(node)
    return found


def _is_kept(node: Node, now: Mapping[str, Sequence[Node]]) -> bool:
    """Whether what a rule put there is there: the op, its type, its key, what it calls."""
    return any(_carries(one) == _carries(node) for one in now.get(node.name, ()))


def _carries(node: Node) -> object:
    return node.op, node.attr(OVERRIDE), node.body.library.gradients.get(node.op)
