"""A gradient that is linear in dy as ops of a graph: a construction, which needs no function.

`Select(true, StopGradient(f), g)` with the gradient of AddN gives on f bit for bit, and what flows
back goes to g, whose default gradient is the formula's. What multiplies dy is behind StopGradient,
so that a second derivative takes it as constant.
"""

from __future__ import annotations

from graphpatch.errors import FormulaError
from graphpatch.gradients.adjoint import DY, LIVE, Adjoint, Y
from graphpatch.gradients.adjoint_steps import BACK
from graphpatch.gradients.broadcast_shape import BroadcastShape, shape_of_tensor
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.gradient_program import choose
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.linear_in_dy import linear_steps
from graphpatch.gradients.lowering import Lowering
from graphpatch.gradients.nodedef_form import FormulaNodes, node_defs
from graphpatch.gradients.program import Program, Value
from graphpatch.gradients.signature import Signature

# The library has the gradients of products, which are known to have the shapes of their inputs:
# of these op types exactly, of the others at least.
PRODUCTS = {"MatMul": "matmul", "BatchMatMul": "batch_matmul", "BatchMatMulV2": "batch_matmul"}
BROADCAST = frozenset({"BatchMatMulV2"})


def construction(
    formula: Formula, signature: Signature, op_type: str, in_function: bool
) -> FormulaNodes | None:
    """The nodes of g, for an op of this signature; None where there is no such g.

    There is none where the formula is not known to be linear in dy, or to give a gradient of the
    shape of its input. In the nodes `x0` and `y0` stand for the op's inputs and output, `dy0` for a
    tensor of its shape, and `live_x0` for an input as it is read to get its gradient. Raises
    FormulaError where the formula does not suit the op.
    """
    if len(signature.outputs) != 1:
        return None
    program = Program()
    dxs = _lowered(program, formula, signature)
    linear = linear_steps(program, dxs.values())
    if not dxs or linear is None:
        return None
    adjoint = Adjoint(
        program, signature, linear, _known_products(program, signature, op_type), BACK
    )
    if not all(adjoint.start(dx, name) for name, dx in dxs.items()):
        return None
    return node_defs(program, [adjoint.finish()], {}, in_function)


def tensors_read(inputs: int) -> dict[str, int | None]:
    """What the nodes of a construction may read: which input of the op, or None for its output."""
    places: dict[str, int | None] = {DY: None, Y: None}
    for place in range(inputs):
        places[f"x{place}"] = places[f"{LIVE}x{place}"] = place
    return places


def _lowered(program: Program, formula: Formula, signature: Signature) -> dict[str, Value]:
    """Dx of each input that has a gradient."""
    values, found = dict(formula.values), {}
    for (name, dtype), chosen in zip(signature.inputs, choose(formula, signature), strict=True):
        if chosen is not None:
            lowering = Lowering(program, signature, values, chosen.text, int(name[1:]))
            found[name] = lowering.number(chosen.expression, dtype)
    return found


def _known_products(
    program: Program, signature: Signature, op_type: str
) -> dict[int, BroadcastShape]:
    """The shapes of matrix products that are the op's own gradients."""
    if op_type not in PRODUCTS:
        return {}
    try:
        own = _lowered(program, LIBRARY[PRODUCTS[op_type]].formula(), signature)
    except FormulaError:
        return {}
    known = {}
    for name, dx in own.items():
        shape = (
            BroadcastShape(None, frozenset({name}))
            if op_type in BROADCAST
            else shape_of_tensor(name)
        )
        if isinstance(dx.source, int):
            known[dx.source] = shape
    return known
