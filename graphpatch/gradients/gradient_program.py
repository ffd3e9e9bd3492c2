"""A formula as dx for each input of an op: of the input's dtype and shape."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphpatch.errors import FormulaError
from graphpatch.gradients import op_sequences
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN
from graphpatch.gradients.constants import FLOATS
from graphpatch.gradients.expression import Expression
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import SINGLE
from graphpatch.gradients.lowering import Lowering
from graphpatch.gradients.program import Program, Value
from graphpatch.gradients.signature import NOT_SERVED, Signature
from graphpatch.gradients.tokens import formula_error
from graphpatch.table import plural


class InputFormula(msgspec.Struct, frozen=True):
    """The formula for one input: its text and expression."""

    text: str
    expression: Expression


class GradientProgram(msgspec.Struct, frozen=True):
    """The ops of a gradient, and dx of each input; None where nothing flows."""

    program: Program
    results: tuple[Value | None, ...]


def gradient_ops(formula: Formula, signature: Signature) -> GradientProgram:
    """The ops that compute dx of each input of the signature.

    A result that is larger than its input is summed over the axes that were broadcast, a smaller
    one is repeated. Raises FormulaError where the formula does not suit the op.
    """
    program = Program()
    results = tuple(
        None if value is None else fit(program, value, Value(name, dtype, signature.shape(name)))
        for name, dtype, value in _values(program, formula, signature)
    )
    return GradientProgram(program, results)


def joined_shapes(formula: Formula, signature: Signature) -> dict[str, frozenset[str]]:
    """For each input with a gradient the tensors that its formula has at least the shape of.

    Before it is summed or repeated. Raises FormulaError where the formula does not suit the op.
    """
    found = _values(Program(), formula, signature)
    return {name: value.shape.least for name, _, value in found if value is not None}


def _values(
    program: Program, formula: Formula, signature: Signature
) -> Iterator[tuple[str, str, Value | None]]:
    """Each input by name and dtype, with the value of its formula."""
    values = dict(formula.values)
    for (name, dtype), chosen in zip(signature.inputs, choose(formula, signature), strict=True):
        if chosen is None:
            yield name, dtype, None
            continue
        lowering = Lowering(program, signature, values, chosen.text, int(name[1:]))
        yield name, dtype, lowering.number(chosen.expression, dtype)


def choose(formula: Formula, signature: Signature) -> list[InputFormula | None]:
    """The formula for each input of the signature, None where nothing flows.

    Raises FormulaError where the list has more or fewer entries than the op has inputs, or where
    one is for an input that carries no gradient.
    """
    indices = [int(name[1:]) for name, _ in signature.inputs]
    if formula.alike:
        chosen = [_alike(formula, dtype) for _, dtype in signature.inputs]
        if not any(chosen):
            raise FormulaError("no input of the op carries a gradient")
        return chosen
    count = max(indices, default=-1) + 1
    foreign = [n for n, text in enumerate(formula.texts) if text is not None and n not in indices]
    if len(formula.texts) != count:
        raise FormulaError(
            f"the list has {plural(len(formula.texts), 'formula')}, and the op has "
            f"{plural(count, 'input')}; write one formula for each input, null for no gradient"
        )
    if foreign:
        raise FormulaError(f"x{foreign[0]} carries no gradient: write null for it in the list")
    return [_given_for(formula, name, dtype) for name, dtype in signature.inputs]


def _alike(formula: Formula, dtype: str) -> InputFormula | None:
    text, expression = formula.texts[0], formula.expressions[0]
    if dtype in NOT_SERVED:
        raise FormulaError(f"an input is {dtype}; formulas compute in {', '.join(FLOATS)}")
    return InputFormula(text, expression) if dtype in FLOATS and text and expression else None


def _given_for(formula: Formula, name: str, dtype: str) -> InputFormula | None:
    place = int(name[1:])
    text, expression = formula.texts[place], formula.expressions[place]
    if text is None or expression is None:
        return None
    if dtype not in FLOATS:
        raise formula_error(
            text, 1, f"{name} is {dtype}, and carries no gradient: write null for it"
        )
    return InputFormula(text, expression)


def fit(program: Program, value: Value, like: Value) -> Value:
    """The value in the dtype of its input, summed down or repeated to its shape."""
    shape = value.shape
    if shape.exactly == like.shape.exactly:
        return program.cast(value, like.dtype)
    if shape == SCALAR and value.constant is not None and value.constant.numbers == (0,):
        return program.op("ZerosLike", like)
    if shape.most is None or not shape.most <= like.shape.least:
        return program.cast(_summed_like(program, value, like), like.dtype)
    return program.cast(op_sequences.broadcast_like(program, value, like), like.dtype)


def _summed_like(program: Program, value: Value, like: Value) -> Value:
    """The sum over the axes that were broadcast, in float32 for the narrower dtypes.

    Before it, the value is repeated along axes where it may be smaller than its input.
    """
    sizes, dtype = program.shape_of(value), value.dtype
    if not like.shape.least <= value.shape.least:
        sizes = program.op("BroadcastArgs", sizes, program.shape_of(like), shape=UNKNOWN)
        value = program.op("BroadcastTo", value, sizes, shape=UNKNOWN)
    wide = program.cast(value, SINGLE.get(dtype, dtype))
    return program.cast(op_sequences.sum_like(program, wide, like, sizes), dtype)


def zeros(program: Program, signature: Signature, name: str) -> Value:
    """Zeros of the shape and dtype of an argument."""
    like = Value(name, signature.variables[name], signature.shape(name))
    return program.op("ZerosLike", like)
