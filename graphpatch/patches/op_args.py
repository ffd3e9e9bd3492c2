"""Which outputs and inputs of an op carry a gradient, and the words for those that don't."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphpatch.differentiation.flow import carries as carries
from graphpatch.differentiation.flow import is_asked_for as is_asked_for
from graphpatch.differentiation.flow import why_not as why_not
from graphpatch.errors import PatchError
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import FED
from graphpatch.opdefs import FlatArg


def known_outputs(node: Node) -> list[FlatArg]:
    """Return the outputs of an op; PatchError where its op type is not known."""
    return _known_or_refuse(node, node.outputs, "outputs")


def known_inputs(node: Node) -> list[FlatArg]:
    """Return the data inputs of an op; PatchError where its op type is not known, or has others."""
    refuse_malformed(node)
    return _known_or_refuse(node, node.arguments, "inputs")


def refuse_all_malformed(nodes: Iterable[Node]) -> None:
    """Raise PatchError for the first that is malformed; ops that are alike are asked about once."""
    sound: set[tuple[int, str, int]] = set()
    for node in nodes:
        heads, index = node.body.heads, node.index
        inputs = heads.inputs[index]
        count = len(node.data_inputs if inputs and inputs[-1][:1] == "^" else inputs)
        kind = (id(heads), heads.ops[index], count)
        if kind not in sound:
            refuse_malformed(node)
            if node.opdef is not None and not any(arg.is_list for arg in node.opdef.inputs):
                sound.add(kind)


def refuse_malformed(node: Node) -> None:
    """Raise PatchError for an op that does not read as many tensors as its op type does."""
    known = node.opdef
    if known is None:
        return
    has_list = any(arg.is_list for arg in known.inputs)
    takes = len(node.arguments or ()) if has_list else len(known.inputs)
    if len(node.data_inputs) != takes:
        raise PatchError(
            f"{node} reads {len(node.data_inputs)} tensors, and {node.op} takes {takes}: the model "
            f"is broken there"
        )


def counted_inputs(args: Sequence[FlatArg], letter: str = "") -> str:
    """Return which inputs an op has, for a message: "its inputs are x0 and x1"."""
    names = [f"{letter}{place}" for place in range(len(args))]
    if len(names) < 2:
        return f"its only input is {names[0]}" if names else "it has no inputs"
    return f"its inputs are {', '.join(names[:-1])} and {names[-1]}"


def check_counts_as(node: Node, *pair: FlatArg) -> None:
    """Raise PatchError where an op cannot count as its input, as one of the two has no gradient."""
    for arg in pair:
        if not carries(arg):
            raise PatchError(f"{node} cannot count as its input: {arg.name} {why_not(arg)}")


def is_source(node: Node) -> bool:
    """Whether the op's value comes from outside: nothing lies before it that a gradient reaches."""
    return node.op in FED or not node.data_inputs


def _known_or_refuse(node: Node, flat: list[FlatArg] | None, which: str) -> list[FlatArg]:
    if flat is None:
        raise PatchError(
            f"{node}: op type {node.op} is not one that TensorFlow or the model's library "
            f"defines, so its {which} are not known; only override_gradient by a formula or a "
            f"registered key can reach it (emit: auto)"
        )
    return flat
