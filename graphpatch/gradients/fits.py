"""Does a gradient fit the op it is to be the gradient of?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphpatch import opdefs
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, LibraryGradient, RegisteredKey
from graphpatch.graph import attrs
from graphpatch.graph.node import Node

# The op that filters are made of: any gradient may stand there.
FILTER = "Identity"


def check_fit(gradient: Computed | RegisteredKey, node: Node) -> None:
    """Raise PatchError where TensorFlow would fail with this gradient on this op.

    Of a gradient that the consumer registers nothing is known, so it fits everywhere. A gradient
    with the shape of dy is one of x only where the op keeps the shape of x.
    """
    op = node.opdef
    if isinstance(gradient, RegisteredKey):
        theirs = opdefs.lookup(gradient.key) if gradient.by_name else None
        if theirs is not None and op is not None and theirs.name != op.name:
            _check_arity(theirs, op, node)
        return
    if isinstance(gradient, LibraryGradient):
        entry = LIBRARY[gradient.name]
        if entry.ops and node.op not in (*entry.ops, FILTER):
            raise PatchError(
                f"{gradient.name} is for {', '.join(entry.ops)}, not for {node}; where it is meant "
                f'all the same, {{"formula": ...}} says it'
            )
        is_known = op is not None and op.known_to != "library"
        for slot, arg in enumerate(node.arguments or [] if entry.elementwise and is_known else []):
            if arg.dtype in opdefs.DIFFERENTIABLE and op and slot not in op.keeps_shape:
                raise PatchError(
                    f"{gradient.name} gives a gradient of the shape of the output, but {node} does "
                    f"not keep the shape of its input {slot} ({arg.name}); filter_gradient changes "
                    f"what flows back to its output, or through its inputs"
                )
    if node.outputs is None or gradient.formula.tensors:
        return  # what is read is known to the consumer alone: it is checked when it is built
    try:
        gradient_ops(gradient.formula, signature(node))
    except (FormulaError, ValueError) as error:
        raise PatchError(f"{node}: {error}") from error


def signature(node: Node) -> Signature:
    """Return the op as formulas see it: inputs x0, x1, ..., outputs y0, ..., and the attrs."""
    inputs, outputs, op = node.arguments or [], node.outputs or [], node.opdef
    defaults = {} if op is None else {attr.name: attr.default for attr in op.attrs}
    values = {key: attrs.as_json(value) for key, value in node.attrs().items()}
    same_shape = op is not None and len(inputs) == len(outputs) == 1 and 0 in op.keeps_shape
    return Signature.of(
        [arg.dtype or "" for arg in inputs],
        [arg.dtype or "" for arg in outputs],
        {**defaults, **values},
        same_shape=same_shape,
        op_type=node.op,
    )


def windows_of(nodes: Iterable[Node]) -> Mapping[str, object]:
    """The attrs of the one convolution or pooling of a match; nothing where there are more."""
    windowed = [node for node in nodes if node.attr("strides") is not None]
    return signature(windowed[0]).attrs if len(windowed) == 1 else {}


def _check_arity(theirs: opdefs.OpDef, op: opdefs.OpDef, node: Node) -> None:
    """The gradient of another op type gives one gradient for each input of that type."""
    for which, expected, actual in (
        ("inputs", theirs.inputs, op.inputs),
        ("outputs", theirs.outputs, op.outputs),
    ):
        if not any(arg.is_list for arg in (*expected, *actual)) and len(expected) != len(actual):
            raise PatchError(
                f"the gradient of {theirs.name} is for {len(expected)} {which}; {node} has "
                f"{len(actual)}"
            )
    own = {attr.name for attr in op.attrs}
    missing = sorted({attr.name for attr in theirs.attrs if attr.type != "type"} - own)
    if missing:
        raise PatchError(
            f"the gradient of {theirs.name} may read the attr {', '.join(missing)}, which {node} "
            f'does not have; {{"registered": "{theirs.name}"}} is for who knows that it does not'
        )
