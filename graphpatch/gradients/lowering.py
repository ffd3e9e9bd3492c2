"""A formula as TensorFlow ops, for one op's dtypes: what is legal is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import TypeAlias

from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients import constants, options
from graphpatch.gradients.broadcast_shape import UNKNOWN
from graphpatch.gradients.constants import CASTABLE, FLOATS
from graphpatch.gradients.expression import (
    AttrRef,
    Call,
    Expression,
    Literal,
    NumberList,
    ParameterRef,
    Scalar,
    Variable,
)
from graphpatch.gradients.folding import fold
from graphpatch.gradients.functions import (
    OF_THE_OP,
    ArgumentKind,
    Function,
    FunctionBuilder,
    look_up,
)
from graphpatch.gradients.own import op_gradient
from graphpatch.gradients.own_at import of_signature, op_forward
from graphpatch.gradients.program import Program, Value
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.gradients.tokens import formula_error
from graphpatch.gradients.windows import WINDOWS, windowed

Operand: TypeAlias = Scalar | Value


class Lowering:
    """One expression, the gradient by input `place`, written into a program.

    A call on plain numbers is computed at once, in double precision; a plain number that meets a
    tensor is rounded to that tensor's dtype.
    """

    def __init__(
        self,
        program: Program,
        signature: Signature,
        values: Mapping[str, Scalar | ConstantTensor],
        text: str,
        place: int = 0,
    ) -> None:
        self.program = program
        self.signature = signature
        self.values = values
        self.text = text
        self.place = place
        self.found: dict[int, Operand] = {}  # of a part that several others are made of

    def fault(self, expression: Expression, message: str) -> FormulaError:
        """The error to raise for a part of the formula."""
        return formula_error(self.text, expression.column, message)

    def lower(self, expression: Expression) -> Operand:
        """The tensor, or the plain number or boolean, that an expression is.

        Raises FormulaError where the op has no such input or attr, or where dtypes do not agree.
        """
        if isinstance(expression, Call):
            if id(expression) not in self.found:
                self.found[id(expression)] = self._call(expression)
            return self.found[id(expression)]
        if isinstance(expression, Literal):
            return expression.value
        if isinstance(expression, Variable):
            return self._variable(expression)
        if isinstance(expression, NumberList):
            raise self.fault(expression, "a list stands only in axes=, perm= and gather")
        return self._given(expression)

    def number(self, expression: Expression, dtype: str) -> Value:
        """The tensor of numbers that an expression is; a plain number becomes one of `dtype`.

        Raises FormulaError for a condition, besides what `lower` raises.
        """
        operand = self.lower(expression)
        if not isinstance(operand, Value):
            if isinstance(operand, bool):
                raise self.fault(expression, "a gradient is a number, and this is a condition")
            return self.constant(operand, dtype, expression)
        if operand.dtype == "bool":
            message = "a gradient is a number, and this is a condition; write: where(..., dy, 0)"
            raise self.fault(expression, message)
        if operand.dtype not in FLOATS:
            raise self.fault(expression, f"a gradient is a number, and this is {operand.dtype}")
        return operand

    def _given(self, expression: AttrRef | ParameterRef) -> Operand:
        if isinstance(expression, ParameterRef):
            if expression.name not in self.values:
                raise self.fault(expression, f"parameter {expression.name!r} has no value")
            value = self.values[expression.name]
            return self._const(value, expression) if isinstance(value, ConstantTensor) else value
        try:
            return self.signature.attr(expression.name)
        except FormulaError as error:
            raise self.fault(expression, str(error)) from None

    def _const(self, tensor: ConstantTensor, expression: ParameterRef) -> Value:
        """A tensor of the rule, in the dtype of dy."""
        dtype = self.signature.upstream_dtype or tensor.dtype
        value = constants.tensor(tensor, dtype)
        if any(map(isinf, value.numbers)) and not any(map(isinf, tensor.array().flat)):
            raise self.fault(expression, f"a number of {expression.name} is infinite in {dtype}")
        return self.program.op("Const", shape=UNKNOWN, dtype=dtype, value=value)

    def _variable(self, expression: Variable) -> Value:
        name = expression.name
        legal = self.signature.variables
        if name not in legal:
            near = did_you_mean(name, legal)
            raise self.fault(expression, f"the op has no {name}; it has: {', '.join(legal)}{near}")
        if name.startswith("dy") and legal[name] not in FLOATS:
            message = f"{name[1:]} is {legal[name]}: no gradient reaches it, so there is no {name}"
            raise self.fault(expression, message)
        return Value(name, legal[name], self.signature.shape(name))

    def _call(self, call: Call) -> Operand:
        function = look_up(call.function)
        if function.name == "where":
            condition = self.lower(call.arguments[0])
            if isinstance(condition, bool):
                return self.lower(call.arguments[1 if condition else 2])
        kinds = function.kinds_of(len(call.arguments))
        operands = [
            self._indices(argument) if kind == "index" else self.lower(argument)
            for kind, argument in zip(kinds, call.arguments, strict=True)
        ]
        for kind, operand, argument in zip(kinds, operands, call.arguments, strict=True):
            self._check(function, kind, operand, argument)
        if function.name in OF_THE_OP:
            return self._of_the_op(call, operands)
        plain = [operand for operand in operands if not isinstance(operand, Value)]
        if len(plain) == len(operands) and not function.options:
            return fold(function, plain)
        return self._apply(call, function, operands)

    def _indices(self, argument: Expression) -> Operand:
        if isinstance(argument, NumberList):
            return self.program.vector(*options.integers(self.text, argument, self.lower))
        value = self.lower(argument)
        if not isinstance(value, Value) or value.dtype not in ("int32", "int64"):
            raise self.fault(argument, "gather takes a list of integers, or a tensor of integers")
        return value

    def _of_the_op(self, call: Call, operands: Sequence[Operand]) -> Value:
        given = [operand for operand in operands if isinstance(operand, Value)]
        try:
            if call.function in WINDOWS:
                return windowed(self.program, self.signature, call.function, given)
            if call.function == "forward":
                return op_forward(of_signature(self.program, self.signature, "forward", given))
            at = of_signature(self.program, self.signature, "own", given[1:])
            return op_gradient(at, self.place, given[0])
        except FormulaError as error:
            raise self.fault(call, str(error)) from None

    def _check(
        self, function: Function, kind: ArgumentKind, operand: Operand, argument: Expression
    ) -> None:
        """Raise where an operand is not what the function takes in this place."""
        is_tensor = isinstance(operand, Value)
        dtype = operand.dtype if isinstance(operand, Value) else type(operand).__name__
        is_truth = dtype == "bool"
        if kind == "any" and is_tensor and dtype not in CASTABLE:
            raise self.fault(argument, f"this is {dtype}, which cannot be cast to a number")
        if kind in ("any", "index") or (kind == "like" and is_tensor):
            return
        if kind in ("tensor", "like") and not is_tensor:
            raise self.fault(argument, f"{function.name} takes a tensor here, not a plain number")
        if kind == "truth":
            if not is_truth:
                raise self.fault(
                    argument, f"{function.name!r} takes a condition here, not a number"
                )
        elif is_truth:
            message = f"{function.name!r} takes numbers, and this is a condition"
            raise self.fault(argument, f"{message}; write: where(..., 1, 0)")
        elif isinstance(operand, Value) and dtype not in FLOATS:
            message = f"this is {dtype}; formulas compute in {', '.join(FLOATS)}"
            raise self.fault(argument, f"{message}; write: cast_like(..., dy)")

    def _apply(self, call: Call, function: Function, operands: Sequence[Operand]) -> Value:
        given = options.option_values(self.text, call, self.lower)
        dtype = self._common_dtype(call, function, operands)
        wide = function.wide.get(dtype, dtype)
        values = []
        kinds = function.kinds_of(len(operands))
        for kind, operand, argument in zip(kinds, operands, call.arguments, strict=True):
            value = self._tensor(operand, "bool" if kind == "truth" else dtype, argument)
            values.append(self.program.cast(value, wide) if kind in ("number", "tensor") else value)
        if isinstance(function.spelling, str):
            result = self.program.op(function.spelling, *values)
        else:
            result = self._spelled(function.spelling, call, values, given)
        return self.program.cast(result, dtype) if result.dtype == wide else result

    def _spelled(
        self,
        recipe: FunctionBuilder,
        call: Call,
        values: Sequence[Value],
        given: Mapping[str, object],
    ) -> Value:
        try:
            return recipe(self.program, *values, **given)
        except ValueError as error:
            raise self.fault(call, f"{call.function}: {error}") from None

    def _common_dtype(self, call: Call, function: Function, operands: Sequence[Operand]) -> str:
        """The dtype of the numbers of a call; that of dy where all are plain."""
        dtypes: dict[str, Expression] = {}
        kinds = function.kinds_of(len(operands))
        for kind, operand, argument in zip(kinds, operands, call.arguments, strict=True):
            if isinstance(operand, Value) and kind in ("number", "tensor"):
                dtypes.setdefault(operand.dtype, argument)
        if len(dtypes) > 1:
            message = f"{function.name!r} meets {' and '.join(dtypes)}; write: cast_like(..., ...)"
            raise self.fault(call, message)
        found = next(iter(dtypes), None) or self.signature.upstream_dtype
        if found is None:
            raise self.fault(call, "no output of the op has a dtype that carries gradients")
        return found

    def _tensor(self, operand: Operand, dtype: str, argument: Expression) -> Value:
        return operand if isinstance(operand, Value) else self.constant(operand, dtype, argument)

    def constant(self, value: Scalar, dtype: str, argument: Expression) -> Value:
        """A plain number as a tensor. Raises where that dtype makes it 0 or infinite."""
        if isinstance(value, bool) and dtype != "bool":
            value = float(value)
        if dtype != "bool" and not constants.survives_dtype(value, dtype):
            small = "0" if abs(value) < 1 else "infinite"
            raise self.fault(argument, f"{value:g} is {small} in {dtype}")
        return self.program.scalar(value, dtype)
