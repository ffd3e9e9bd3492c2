"""`at`: on which side of an op a patch is put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.match.described import described
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args
from graphpatch.patches.inline import InlineOp, nothing_flows, on_inputs, on_outputs
from graphpatch.patches.reach import check_reached

# A side, or one place on it: "output:0", "input:1".
At = Annotated[
    str,
    Meta(pattern=r"^(outputs|inputs|output:\d{1,9}|input:\d{1,9})$"),
    described("Which side: outputs (default), inputs, or one, as output:0 or input:1.", "inputs"),
]

OUTPUTS = "outputs"


def idle(node: Node, at: str) -> str:
    """Why nothing flows back at that place, so that a patch there means nothing; else nothing."""
    side, place = parsed(at)
    return nothing_flows(node, side == "output", place)


def check_gradient_flows(nodes: Sequence[Node], at: str) -> None:
    """Raise PatchError where nothing flows back at that place of any of these ops."""
    if nodes and all(idle(node, at) for node in nodes):
        raise PatchError(f"nothing flows back there: {idle(nodes[0], at)}")


def tensors_at(node: Node, at: str) -> list[FlatArg]:
    """The tensors at that place of an op."""
    side, place = parsed(at)
    flat = op_args.known_outputs(node) if side == "output" else op_args.known_inputs(node)
    return flat if place is None else flat[place : place + 1]


def put_at(node: Node, editor: Editor, inline: InlineOp, at: str) -> list[Node]:
    """Put `inline` on the side of `node` that `at` names, and return the ops added for it.

    Where nothing flows back there, there is nothing to do, and the report says so.
    """
    reason = idle(node, at)
    if reason:
        editor.skipped(reason)
        return []
    check_reached(node, editor)
    side, place = parsed(at)
    return (on_outputs if side == "output" else on_inputs)(node, editor, inline, place)


def parsed(at: str) -> tuple[str, int | None]:
    """The side that `at` names, "output" or "input", and the one place on it."""
    side, _, place = at.partition(":")
    return side.removesuffix("s"), int(place) if place else None
