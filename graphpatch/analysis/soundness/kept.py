"""What a patched model must keep of its original: names, what they give, weights, signatures."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import unlike
from graphpatch.analysis.soundness.fault import Fault, at
from graphpatch.analysis.surroundings import differences_around
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph

SIGNATURES = ("signature_def", "asset_file_def", "saver_def")


def lost(one: Graph, other: Graph) -> Iterator[Fault]:
    """Names that consumers hold on to and that are gone, or stand for something else now."""
    bodies = {body.label: body for body in other.bodies}
    for body in one.bodies:
        if body.label not in bodies:
            yield Fault("function_lost", body.label, "", f"function {body.label!r} is gone")
        else:
            yield from _lost(body, bodies[body.label])


def _lost(one: Body, other: Body) -> Iterator[Fault]:
    for name in one.by_name:
        if name not in other.by_name:
            yield Fault("lost", one.label, name, f"{one.node(name)} is gone: no op has its name")
    for first, second in unlike(one, other, _by_name(one, other)):
        left, right = Node(one, first), Node(other, second)
        before, after = _given(left), _given(right)
        if before is not None and after is not None and before != after:
            says = f"it gives {_shown(after)}, and gave {_shown(before)}"
            yield Fault("outputs", one.label, left.name, f"{right}: {says}")
        if left.op == right.op == "Const":
            yield from _weight(left, right)


def _by_name(one: Body, other: Body) -> list[tuple[int, int]]:
    there = other.by_name
    return [(first, there[name]) for name, first in one.by_name.items() if name in there]


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
