"""Where handles come from: of what is behind one, TensorFlow knows the shape and dtype, or not.

It does of a variable. By the handle of a table or an iterator there is no gradient, not even zeros.
"""

from __future__ import annotations

from graphpatch.control_flow.op_types import ALL_SWITCHES, ENTERS
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.graph.op_types import RESOURCE_VARIABLE

PASSING = frozenset({"Identity", "RefIdentity", *ENTERS, *ALL_SWITCHES})


def handle_origin(wiring: Wiring, tensor: Tensor) -> Tensor:
    """What gives a handle first, before it enters loops and branches; each is looked for once."""
    known, passed = wiring.handle_origins, dict[Tensor, None]()
    while tensor not in known and tensor not in passed:
        passed[tensor] = None
        node = wiring.node(tensor[0])
        inputs = wiring.inputs(tensor[0])
        if node is None or node.op not in PASSING or not inputs:
            break
        tensor = inputs[0]
    origin = known.get(tensor, tensor)
    known.update(dict.fromkeys(passed, origin))
    return origin


def holds_no_number(wiring: Wiring, tensor: Tensor) -> bool:
    """Whether a handle is that of a table, an iterator or the like: of anything but a variable.

    Not where it is not told: of an argument of a function, or where a call gives it.
    """
    if wiring.dtype(tensor) != "resource":
        return False
    index, _ = handle_origin(wiring, tensor)
    node = wiring.node(index)
    return node is not None and node.op != RESOURCE_VARIABLE and not wiring.inputs(index)
