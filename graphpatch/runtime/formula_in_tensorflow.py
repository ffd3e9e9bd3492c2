"""A formula as TensorFlow ops: the gradient function that tf.RegisterGradient takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import AttrValue, Constant, Step, Value, needed, op_def
from graphpatch.gradients.program import GradientProgram, formula_ops, gradient_ops
from graphpatch.gradients.signature import Signature

GradientFunction = Callable[..., "list[Any]"]

_RAW_NAMES = {"reduction_indices": "axis"}
"""The input args that tf.raw_ops calls otherwise than the op does."""


def tensorflow_gradient(formula: Formula) -> GradientFunction:
    """The gradient function (op, *dy) -> [dx...] of a formula, for tf.RegisterGradient.

    It works where ops are differentiated in a graph, and on tapes over functions that hold such
    ops. It gives None for an input without a gradient. It raises FormulaError, when it is called,
    where the formula does not suit the op.
    """

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        attrs, op_type = op_attrs(formula, op), op.type if formula.reads_op else ""
        return formula_gradients(formula, op.inputs, op.outputs, upstream, attrs, op_type=op_type)

    return gradient


def op_attrs(formula: Formula, op: Any) -> dict[str, object]:
    """The attrs of an op that a formula reads. Raises FormulaError where the op has none such."""
    from graphpatch import opdefs

    known = opdefs.lookup(op.type) if formula.reads_op else None
    own = {one.name for one in known.attrs if one.type != "type"} if known else set[str]()
    found = {name: _attr_of_op(op, name) for name in sorted(formula.attrs)}
    return {**{name: _own_attr(op, name) for name in sorted(own)}, **found}


def signature_of(
    inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, object] | None = None
) -> Signature:
    """The signature of an op with these tensors."""
    return Signature.of(
        _dtypes("x", inputs), _dtypes("y", outputs), attrs, _same_shape([*inputs, *outputs])
    )


def formula_gradients(
    formula: Formula,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    upstream: Sequence[Any],
    attrs: Mapping[str, object] | None = None,
    given: Mapping[str, Any] | None = None,
    op_type: str = "",
) -> list[Any]:
    """The dx of each input tensor, or None, from an op's inputs, outputs and upstream gradients.

    An upstream gradient that is None counts as zeros. `given` are the parameters that are tensors,
    not numbers: of the dtype of what they meet, and of a shape that broadcasts. `op_type` is what
    `forward` and `own` compute. Raises
    FormulaError where the formula does not suit these tensors.
    """
    count, more = len(inputs), list((given or {}).values())
    formula = formula.with_parameter_inputs(count, list(given or {}))
    shaped = [*inputs, *outputs, *(one for one in more if one.shape != ())]
    scalars = {f"x{count + place}" for place, one in enumerate(more) if one.shape == ()}
    inputs = [*inputs, *more]
    signature = Signature.of(
        _dtypes("x", inputs), _dtypes("y", outputs), attrs, _same_shape(shaped), scalars, op_type
    )
    found = gradient_ops(formula, signature)
    arguments = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    arguments |= {f"y{place}": tensor for place, tensor in enumerate(outputs)}
    arguments |= _dense_dy(formula, outputs, upstream)
    return result_values(found, arguments)[:count]


def result_values(found: GradientProgram, arguments: Mapping[str, Any]) -> list[Any]:
    """The tensor of each result, None for None, from those that its variables stand for."""
    steps = _steps_run(found, arguments)
    return [
        None if value is None else _tensor_at(value, arguments, steps) for value in found.results
    ]


def check_formula(formula: Formula, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise FormulaError where a formula does not suit an op of these tensors."""
    gradient_ops(formula, Signature.of(_dtypes("x", inputs), _dtypes("y", outputs)))


def formula_value(formula: Formula, inputs: Sequence[Any]) -> Any:
    """The tensor that one formula of the inputs `x0, x1, ...` computes.

    Raises FormulaError where it does not suit these tensors.
    """
    signature = Signature.of(_dtypes("x", inputs), [], None, _same_shape(inputs))
    arguments = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    return result_values(formula_ops(formula, signature, signature.inputs[0][1]), arguments)[0]


def _dtypes(kind: str, tensors: Sequence[Any]) -> list[tuple[str, str]]:
    """Each tensor's name in a formula, and its dtype."""
    return [(f"{kind}{n}", tensor.dtype.base_dtype.name) for n, tensor in enumerate(tensors)]


def _dense_dy(formula: Formula, outputs: Sequence[Any], upstream: Sequence[Any]) -> dict[str, Any]:
    """The upstream gradients that the formula reads, as dense tensors."""
    import tensorflow as tf

    if len(upstream) != len(outputs):
        raise FormulaError(f"{len(outputs)} outputs, and {len(upstream)} upstream gradients")
    return {
        f"dy{place}": tf.zeros_like(output) if dy is None else tf.convert_to_tensor(dy)
        for place, (output, dy) in enumerate(zip(outputs, upstream, strict=True))
        if f"dy{place}" in formula.variables
    }


def _attr_of_op(op: Any, name: str) -> object:
    try:
        return op.get_attr(name)
    except (KeyError, ValueError):
        raise FormulaError(
            f"{getattr(op, 'name', 'an op')} ({op.type}) has no attr {name!r}"
        ) from None


def _own_attr(op: Any, name: str) -> object:
    """An attr that `forward` or `own` reads; None where this TensorFlow does not know it."""
    try:
        value = op.get_attr(name)
    except (KeyError, ValueError):
        return None
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _same_shape(tensors: Sequence[Any]) -> bool:
    """Whether all have one shape, as far as is known before they are computed."""
    if all(tensor is tensors[0] for tensor in tensors):
        return True
    first = tensors[0].shape
    return bool(first.is_fully_defined()) and all(tensor.shape == first for tensor in tensors)


def _steps_run(found: GradientProgram, arguments: Mapping[str, Any]) -> dict[int, Any]:
    """The output of each step that a result needs."""
    computed: dict[int, Any] = {}
    for number in needed(found.program, filter(None, found.results)):
        computed[number] = _compute(found.program.steps[number], arguments, computed)
    return computed


def _compute(step: Step, arguments: Mapping[str, Any], computed: Mapping[int, Any]) -> Any:
    import tensorflow as tf

    args = op_def(step.op_type).inputs
    given: dict[str, Any] = {
        _RAW_NAMES.get(arg.name, arg.name): (
            _tensor_at(value, arguments, computed)
            if isinstance(value, Value)
            else [_tensor_at(item, arguments, computed) for item in value]
        )
        for arg, value in zip(args, step.inputs, strict=True)
    }
    implied = {name for arg in args for name in (arg.type_attr, arg.number_attr)}
    attrs = {name: _raw_attr(value) for name, value in step.attrs if name not in implied}
    if step.op_type == "Const":
        return _constant(attrs["value"])
    found = getattr(tf.raw_ops, step.op_type)(**given, **attrs)
    return found[0] if len(op_def(step.op_type).outputs) > 1 else found


def _constant(value: AttrValue) -> Any:
    import tensorflow as tf

    assert isinstance(value, Constant)
    if not value.shape:
        return tf.constant(value.numbers[0], dtype=value.dtype)
    return tf.constant(list(value.numbers), dtype=value.dtype, shape=value.shape)


def _raw_attr(value: AttrValue) -> Any:
    """An attr as tf.raw_ops takes it."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _tensor_at(value: Value, arguments: Mapping[str, Any], computed: Mapping[int, Any]) -> Any:
    return arguments[value.source] if isinstance(value.source, str) else computed[value.source]
