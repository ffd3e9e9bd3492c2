"""What a patched model must keep of its original: names, what they give, weights, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import Differences
from graphpatch.analysis.soundness.fault import Fault, at
from graphpatch.analysis.surroundings import differences_around
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph

SIGNATURES = ("signature_def", "asset_file_def", "saver_def")


def lost(one: Graph, other: Graph, differ: Differences) -> Iterator[Fault]:
    """Names that consumers hold on to and that are gone, or stand for something else now."""
    for body in one.bodies:
        there = other.counterpart(body)
        if there is None:
            yield Fault("function_lost", body.label, "", f"function {body.label!r} is gone")
        else:
            yield from _lost(body, there, differ[body])


def _lost(one: Body, other: Body, differ: Mapping[int, int]) -> Iterator[Fault]:
    for name in one.by_name:
        if name not in other.by_name:
            yield Fault("lost", one.label, name, f"{one.node(name)} is gone: no op has its name")
    for first, second in differ.items():
        left, right = Node(one, first), Node(other, second)
        before, after = _given(left), _given(right)
        if before is not None and after is not None and before != after:
            says = f"it gives {_shown(after)}, and gave {_shown(before)}"
            yield Fault("outputs", one.label, left.name, f"{right}: {says}")
        if left.op == right.op == "Const":
            yield from _weight(left, right)


def _given(node: Node) -> list[str | None] | None:
    try:
        return None if node.outputs is None else [arg.dtype for arg in node.outputs]
    except ModelError:
        return None


def _shown(dtypes: list[str | None]) -> str:
    return ", ".join(map(str, dtypes)) or "nothing"


def _weight(left: Node, right: Node) -> Iterator[Fault]:
    """No rule may change a constant."""
    for change in differences(left, right):
        if change.startswith(("value", "attr value", "attr dtype")):
            yield at("weight", right, change)


def signatures(one: Model, other: Model) -> Iterator[Fault]:
    """What a consumer reads beside the graph, and finds changed."""
    if one.container is other.container:
        for text in differences_around(one, other):
            if text.startswith(SIGNATURES):
                yield Fault("signature", "", text, f"{text} of the MetaGraphDef was changed")
