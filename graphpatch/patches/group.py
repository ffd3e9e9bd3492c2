"""A matched subgraph seen as one op: what it reads from outside, and what it gives to outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.opdefs import FlatArg
from graphpatch.patches import flow

MOST = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Ops of one body that count as one op.

    `last` is the op whose outputs are the group's outputs. `reads` are the tensors that the group
    reads from outside, each once, in the order in which its ops, as given, read them; `args` says
    what each is.
    """

    nodes: tuple[Node, ...]
    last: Node
    reads: tuple[str, ...]
    args: tuple[FlatArg, ...]


def grouped(nodes: Sequence[Node]) -> Group:
    """The ops as one op.

    Raises PatchError where they have not one last op, or where a tensor inside is read outside
    (its readers are named): another gradient for the whole would leave those readers without.
    """
    inside = {node.name for node in nodes}
    last = _last(nodes, inside)
    for node in nodes:
        if node is not last:
            _refuse_outside(node, inside)
    reads: dict[str, FlatArg] = {}
    for node in nodes:
        for text, arg in zip(node.data_inputs, flow.inputs(node), strict=True):
            if names.op_of(text) not in inside:
                reads.setdefault(_canonical(node, text), arg)
    return Group(tuple(nodes), last, tuple(reads), tuple(reads.values()))


def _last(nodes: Sequence[Node], inside: set[str]) -> Node:
    ends = [node for node in nodes if not any(one.name in inside for one in _readers(node))]
    if len(ends) != 1:
        found = ", ".join(str(node) for node in ends) or "none"
        raise PatchError(f"a match counts as one op where it ends in one op; this ends in: {found}")
    return ends[0]


def _refuse_outside(node: Node, inside: set[str]) -> None:
    readers = [str(one) for one in _readers(node) if one.name not in inside]
    readers += [f"the output {key!r} of the function" for key in _returned(node)]
    if readers:
        more = f" and {len(readers) - MOST} more" if len(readers) > MOST else ""
        raise PatchError(
            f"{node} is inside the match, and is read outside by {', '.join(readers[:MOST])}{more}"
        )


def _readers(node: Node) -> list[Node]:
    """The ops that read a tensor of this one."""
    found = dict.fromkeys(
        index
        for index, slot in node.body.readers.get(node.name, ())
        if not node.body.heads.inputs[index][slot].startswith("^")
    )
    return [Node(node.body, index) for index in found]


def _returned(node: Node) -> list[str]:
    return [key for key, text in node.body.ret.items() if names.op_of(text) == node.name]


def _canonical(node: Node, text: str) -> str:
    """One spelling for each tensor: the main graph may say `x` and `x:0`."""
    return str(names.parse(text)) if node.body.is_main else text
