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

    Of a gradient that the consumer registers nothing is known, so it fits everywhere.
    """
    if isinstance(gradient, RegisteredKey):
        if gradient.by_name:
            _check_arity(gradient.key, node)
        return
    if isinstance(gradient, LibraryGradient):
        _check_family(gradient, node)
        _check_shape(gradient, node)
    _check_formula(gradient, node)


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


def _check_family(gradient: LibraryGradient, node: Node) -> None:
    legal = LIBRARY[gradient.name].ops
    if legal and node.op not in legal and node.op != FILTER:
        raise PatchError(
            f"{gradient.name} is for {', '.join(legal)}, not for {node}; where it is meant all the "
            f'same, {{"formula": ...}} says it'
        )


def _check_formula(gradient: Computed, node: Node) -> None:
    if node.outputs is None or gradient.formula.tensors:
        return  # what is read is known to the consumer alone: it is checked when it is built
    try:
        gradient_ops(gradient.formula, signature(node))
    except (FormulaError, ValueError) as error:
        raise PatchError(f"{node}: {error}") from error


def _check_shape(gradient: LibraryGradient, node: Node) -> None:
    """A gradient with the shape of dy is one of x only where the op keeps the shape of x."""
    op = node.opdef
    if not LIBRARY[gradient.name].elementwise or op is None or op.known_to == "library":
        return
    for slot, arg in enumerate(node.arguments or []):
        if arg.dtype in opdefs.DIFFERENTIABLE and slot not in op.keeps_shape:
            raise PatchError(
                f"{gradient.name} gives a gradient of the shape of the output, but {node} does "
                f"not keep the shape of its input {slot} ({arg.name}); filter_gradient changes "
                f"what flows back to its output, or through its inputs"
            )


def _check_arity(key: str, node: Node) -> None:
    """The gradient of op type `key` gives one gradient for each input of `key`."""
    theirs, op = opdefs.lookup(key), node.opdef
    if theirs is None or op is None or theirs.name == op.name:
        return
    for which, expected, actual in (
        ("inputs", theirs.inputs, op.inputs),
        ("outputs", theirs.outputs, op.outputs),
    ):
        if not any(arg.is_list for arg in (*expected, *actual)) and len(expected) != len(actual):
            raise PatchError(
                f"the gradient of {key} is for {len(expected)} {which}; {node} has {len(actual)}"
            )
    missing = {attr.name for attr in theirs.attrs if attr.type != "type"} - {
        attr.name for attr in op.attrs
    }
    if missing:
        raise PatchError(
            f"the gradient of {key} may read the attr {', '.join(sorted(missing))}, which {node} "
            f'does not have; {{"registered": "{key}"}} is for who knows that it does not'
        )
