"""Which outputs and inputs of an op carry a gradient, and the words for those that don't."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.opdefs import FlatArg

# Ops whose value comes from outside the graph: whoever feeds them, or asks for the gradient at
# them, goes by their name, so the name stays with them.
FED = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})

# Ops that TensorFlow accepts only where they stand, next to the ops they belong to.
FIXED = frozenset({"NextIteration", "RefNextIteration", "LoopCond"})
MERGES = frozenset({"Merge", "RefMerge"})
JOINS = MERGES | {"Switch", "RefSwitch"}
ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})

# Ops that leave all outputs but one dead: what reads two of them is dead, too.
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})

# Where a loop or branch ends; ops that lead into or out of one.
ENDS = EXITS | MERGES
BOUNDARIES = ENTERS | ENDS | SWITCHES | FIXED


def carries(arg: FlatArg) -> bool:
    """Whether gradients flow through a tensor: a float or complex one that is no reference."""
    return arg.dtype in DIFFERENTIABLE and not arg.is_ref


def is_asked_for(arg: FlatArg) -> bool:
    """Whether TensorFlow may ask an op that gives this tensor for its gradient.

    A reference counts as what it refers to, the handle of a variable or list as what it holds.
    """
    return arg.dtype is None or arg.dtype in DIFFERENTIABLE | {"resource", "variant"}


def outputs(node: Node) -> list[FlatArg]:
    """The outputs of an op; PatchError where its op type is not known."""
    return _known(node, node.outputs, "outputs")


def inputs(node: Node) -> list[FlatArg]:
    """The data inputs of an op; PatchError where its op type is not known, or has others."""
    refuse_malformed(node)
    return _known(node, node.arguments, "inputs")


def refuse_malformed(node: Node) -> None:
    """Raise PatchError for an op that does not read as many tensors as its op type does."""
    known = node.opdef
    if known is None:
        return
    listed = any(arg.number_attr or arg.type_list_attr for arg in known.inputs)
    takes = len(node.arguments or ()) if listed else len(known.inputs)
    if len(node.data_inputs) != takes:
        raise PatchError(
            f"{node} reads {len(node.data_inputs)} tensors, and {node.op} takes {takes}: the model "
            f"is broken there"
        )


def numbered(args: Sequence[FlatArg]) -> str:
    """The numbers that inputs have, in words."""
    numbers = [str(place) for place in range(len(args))]
    return " and ".join(filter(None, [", ".join(numbers[:-1]), *numbers[-1:]])) or "none"


def is_source(node: Node) -> bool:
    """Whether the op's value comes from outside: nothing lies before it that a gradient reaches."""
    return node.op in FED or not node.data_inputs


def why_not(arg: FlatArg) -> str:
    """Why nothing flows back through a tensor."""
    if arg.is_ref:
        return f"is a reference to a variable ({arg.dtype}_ref): patch the op that reads it"
    if arg.dtype is None:
        return "has a dtype that the NodeDef does not tell"
    return f"is {arg.dtype}, which carries no gradient"


def _known(node: Node, flat: list[FlatArg] | None, which: str) -> list[FlatArg]:
    if flat is None:
        raise PatchError(
            f"{node}: op type {node.op} is not one that TensorFlow or the model's library "
            f"defines, so its {which} are not known; only override_gradient can reach it"
        )
    return flat
