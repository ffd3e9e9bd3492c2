"""A formula as a program of TensorFlow ops, for one op's dtypes, and the program as NodeDefs.

What is legal is decided here. The nodes stand beside others in a graph, or in the body of a
gradient function.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients import ops
from graphpatch.gradients.formula import (
    AttrRef,
    Call,
    Expression,
    Formula,
    Literal,
    Name,
    NumberList,
    ParameterRef,
    TensorRef,
    Variable,
    formula_error,
)
from graphpatch.gradients.functions import (
    OF_THE_OP,
    REQUIRED,
    SINGLE,
    WINDOWED,
    ArgumentKind,
    Function,
    broadcast_like,
    look_up,
    sum_to,
)
from graphpatch.gradients.op_gradients import op_at, op_forward, op_gradient, windowed
from graphpatch.gradients.ops import (
    CASTABLE,
    FLOATS,
    NOT_SERVED,
    SCALAR,
    AttrValue,
    Operand,
    Program,
    Scalar,
    Signature,
    Value,
    needed,
    op,
    op_def,
)
from graphpatch.gradients.tensors import ConstantTensor, survives_dtype
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import AttrValue as AttrValueProto
from graphpatch.protos import FunctionDef, NodeDef
from graphpatch.shown import plural

MOST_AXES = 254
"""The axes that a tensor of TensorFlow has at most."""

COMPUTED_IN = f"formulas compute in {', '.join(FLOATS)}"
COMPLEX_HINT = (
    "on complex tensors these work: stop_gradient, straight_through, and filter_gradient with "
    'zero, reverse (of strength 1) or {"python": "module:function"}'
)

_AXES = (-MOST_AXES, MOST_AXES - 1)
_LIMITS = {
    "axes": _AXES,
    "place": _AXES,
    "axis": (0, MOST_AXES - 1),
    "count": (1, ops.INT32[-1]),
    "natural": (0, ops.INT32[-1]),
    "seed": (0, 2**53 - 1),  # numbers of formulas are float64: a larger one would be another
    "index": (ops.INT32[0], ops.INT32[-1]),
}
"""The least and the largest integer of options of this kind."""

_IN_PYTHON: dict[str, Callable[..., Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "-x": operator.neg},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    **{"==": operator.eq, "!=": operator.ne},
}
"""What Python does as IEEE 754 has it, without waiting for numpy to be imported."""


def gradient_ops(formula: Formula, signature: Signature) -> tuple[Value | None, ...]:
    """Return dx of each input of the signature, of its dtype and shape; None where nothing flows.

    A result that is larger than its input is summed over the axes that were broadcast, a smaller
    one is repeated. Raises FormulaError where the formula does not suit the op.
    """
    program = Program()
    results = {
        name: _fitted(value, signature.value(program, name))
        for name, value in input_values(program, formula, signature)
    }
    return tuple(results.get(name) for name, _ in signature.inputs)


def joined_shapes(formula: Formula, signature: Signature) -> dict[str, frozenset[str]]:
    """Return for each input with a gradient the tensors whose shape its formula has at least.

    Before it is summed or repeated. Raises FormulaError where the formula does not suit the op.
    """
    values = input_values(Program(), formula, signature)
    return {name: value.shape.least for name, value in values}


def formula_ops(formula: Formula, signature: Signature, dtype: str) -> Value:
    """Return one formula of inputs alone, such as the g(x) of a surrogate.

    Raises FormulaError where the formula reads y or dy, or does not suit the inputs.
    """
    names = [name for name, _ in signature.inputs]
    text, expression = formula.texts[0], formula.expressions[0]
    if not formula.variables <= {*names} or not formula.alike or text is None or expression is None:
        raise FormulaError(f"expected one formula of {', '.join(names)}, found: {formula}")
    lowering = Lowering(Program(), signature, formula, text)
    return lowering.number(expression, dtype).cast(dtype)


def input_values(
    program: Program, formula: Formula, signature: Signature
) -> Iterator[tuple[str, Value]]:
    """Yield the inputs that have a gradient, with the values of their formulas.

    Raises FormulaError, before the first, where the list has more or fewer entries than the op has
    inputs, or where one is for an input that carries no gradient.
    """
    count, texts = len(signature.inputs), formula.texts
    if not formula.alike and len(texts) != count:
        raise FormulaError(
            f"the list has {plural(len(texts), 'formula')}, and the op has "
            f"{plural(count, 'input')}; write one formula for each input, null for no gradient"
        )
    chosen = []
    for index, (name, dtype) in enumerate(signature.inputs):
        place = 0 if formula.alike else index
        text, expression = formula.texts[place], formula.expressions[place]
        if formula.alike and dtype in NOT_SERVED:
            raise FormulaError(f"an input is {dtype}; {COMPUTED_IN}; {COMPLEX_HINT}")
        if text is None or expression is None or (formula.alike and dtype not in FLOATS):
            continue
        if dtype not in FLOATS:
            why = ", and carries no gradient: write null for it"
            why = f"; {COMPUTED_IN}; {COMPLEX_HINT}" if dtype in NOT_SERVED else why
            raise formula_error(text, 1, f"{name} is {dtype}{why}")
        chosen.append((name, dtype, text, expression))
    if formula.alike and not chosen:
        raise FormulaError("no input of the op carries a gradient")
    for name, dtype, text, expression in chosen:
        lowering = Lowering(program, signature, formula, text, int(name[1:]))
        yield name, lowering.number(expression, dtype)


def _fitted(value: Value, like: Value) -> Value:
    """Return the value in the dtype of its input, summed down or repeated to its shape.

    It is summed over the axes that were broadcast, in float32 for the narrower dtypes; before
    it is repeated along axes where it may be smaller than its input.
    """
    shape, dtype = value.shape, value.dtype
    if shape.exactly == like.shape.exactly:
        return value.cast(like.dtype)
    if shape == SCALAR and value.number == 0:
        return op("ZerosLike", like)
    if shape.most is not None and shape.most <= like.shape.least:
        return broadcast_like(value, like).cast(like.dtype)
    sizes = value.sizes
    if not like.shape.least <= shape.least:
        sizes = op("BroadcastArgs", sizes, like.sizes)
        value = op("BroadcastTo", value, sizes)
    wide = value.cast(SINGLE.get(dtype, dtype))
    return sum_to(wide, like.sizes, sizes, like.shape).cast(dtype).cast(like.dtype)


class Lowering:
    """One expression, the gradient with respect to input `place`, written into a program.

    A call on plain numbers is computed at once, in double precision; a plain number that meets a
    tensor is rounded to that tensor's dtype.
    """

    def __init__(
        self, program: Program, signature: Signature, formula: Formula, text: str, place: int = 0
    ) -> None:
        self.program = program
        self.signature = signature
        self.values = dict(formula.values)
        self.inputs = {(kind, name): variable for kind, name, variable in formula.inputs}
        self.text = text
        self.place = place
        self.lowered: dict[int, Operand] = {}  # of a part that several others are made of

    def fault(self, expression: Expression, message: object) -> FormulaError:
        """Return the error to raise for a part of the formula."""
        return formula_error(self.text, expression.column, str(message))

    def lower(self, expression: Expression) -> Operand:
        """Return the tensor, or the plain number or boolean, that an expression is.

        Raises FormulaError where the op has no such input or attr, or where dtypes do not agree.
        """
        match expression:
            case Call():
                if id(expression) not in self.lowered:
                    self.lowered[id(expression)] = self._call(expression)
                return self.lowered[id(expression)]
            case Literal(value):
                return value
            case Variable(name):
                return self._variable(expression, name)
            case Name(name) if variable := self.inputs.get((type(expression), name)):
                return self._variable(expression, variable)
            case NumberList():
                raise self.fault(expression, "a list stands only in axes=, perm= and gather")
            case TensorRef(name):
                message = f"tensor({name!r}) is of a graph, and here is none to read it from"
                raise self.fault(expression, message)
            case AttrRef(name):
                try:
                    return self.signature.attr(name)
                except FormulaError as error:
                    raise self.fault(expression, error) from None
            case ParameterRef(name):
                if name not in self.values:
                    raise self.fault(expression, f"parameter {name!r} has no value")
                tensor = self.values[name]
                if isinstance(tensor, ConstantTensor):
                    return self._const(tensor, expression)
                return tensor

    def number(self, expression: Expression, dtype: str) -> Value:
        """Return the tensor of numbers that an expression is; a plain number as one of `dtype`.

        Raises FormulaError for a condition, besides what `lower` raises.
        """
        operand = self.lower(expression)
        if isinstance(operand, bool):
            raise self.fault(expression, "a gradient is a number, and this is a condition")
        if not isinstance(operand, Value):
            return self.constant(operand, dtype, expression)
        if operand.dtype == "bool":
            message = "a gradient is a number, and this is a condition; write: where(..., dy, 0)"
            raise self.fault(expression, message)
        if operand.dtype not in FLOATS:
            raise self.fault(expression, f"a gradient is a number, and this is {operand.dtype}")
        return operand

    def constant(self, value: Scalar, dtype: str, argument: Expression) -> Value:
        """Return a plain number as a tensor. Raises where that dtype makes it 0 or infinite."""
        if dtype != "bool":
            value = float(value)
            if not survives_dtype(value, dtype):
                small = "0" if abs(value) < 1 else "infinite"
                raise self.fault(argument, f"{value:g} is {small} in {dtype}")
        return self.program.scalar(value, dtype)

    def _const(self, tensor: ConstantTensor, expression: ParameterRef) -> Value:
        """Return a tensor of the rule, in the dtype of dy."""
        dtype = self.signature.upstream_dtype or tensor.dtype
        value = tensor.cast(dtype)
        if any(map(math.isinf, value.numbers)) and not any(map(math.isinf, tensor.array().flat)):
            raise self.fault(expression, f"a number of {expression.name} is infinite in {dtype}")
        return self.program.constant(value, ops.shape_of_constant(tensor.shape))

    def _variable(self, expression: Expression, name: str) -> Value:
        legal = self.signature.variables
        if name not in legal:
            near = did_you_mean(name, legal)
            raise self.fault(expression, f"the op has no {name}; it has: {', '.join(legal)}{near}")
        if name.startswith("dy") and legal[name] not in FLOATS:
            message = f"{name[1:]} is {legal[name]}: no gradient reaches it, so there is no {name}"
            raise self.fault(expression, message)
        return self.signature.value(self.program, name)

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
            if reason := _why_not(function, kind, operand):
                raise self.fault(argument, reason)
        if function.name in OF_THE_OP:
            return self._of_the_op(call, [item for item in operands if isinstance(item, Value)])
        plain = [operand for operand in operands if not isinstance(operand, Value)]
        if len(plain) == len(operands) and not function.options:
            return fold(function, plain)
        unchanged = _unchanged(function.name, operands)
        return self._apply(call, function, operands) if unchanged is None else unchanged

    def _indices(self, argument: Expression) -> Operand:
        if isinstance(argument, NumberList):
            indices = [self._integer("an index", item, "index") for item in argument.items]
            return self.program.vector(*indices)
        value = self.lower(argument)
        if not isinstance(value, Value) or value.dtype not in ("int32", "int64"):
            raise self.fault(argument, "gather takes a list of integers, or a tensor of integers")
        return value

    def _of_the_op(self, call: Call, tensors: Sequence[Value]) -> Value:
        try:
            if call.function in WINDOWED:
                return windowed(self.signature, call.function, tensors)
            read = tensors[1:] if call.function == "own" else tensors
            at = op_at(self.program, self.signature, call.function, read)
            if call.function == "own":
                return op_gradient(at, self.place, tensors[0])
            return op_forward(at, self.signature)
        except FormulaError as error:
            raise self.fault(call, error) from None

    def _apply(self, call: Call, function: Function, operands: Sequence[Operand]) -> Value:
        options = self._options(call, function)
        kinds = function.kinds_of(len(operands))
        dtype = self._common_dtype(call, kinds, operands)
        wide = function.wide.get(dtype, dtype)
        values = []
        for kind, operand, argument in zip(kinds, operands, call.arguments, strict=True):
            if not isinstance(operand, Value):
                operand = self.constant(operand, "bool" if kind == "truth" else dtype, argument)
            values.append(operand.cast(wide) if kind in ("number", "tensor") else operand)
        try:
            result = function.build(values, options)
        except ValueError as error:
            raise self.fault(call, f"{call.function}: {error}") from None
        return result.cast(dtype) if result.dtype == wide else result

    def _common_dtype(
        self, call: Call, kinds: Sequence[ArgumentKind], operands: Sequence[Operand]
    ) -> str:
        """Return the dtype of the numbers of a call; that of dy where all are plain."""
        dtypes = {
            operand.dtype: None
            for kind, operand in zip(kinds, operands, strict=True)
            if isinstance(operand, Value) and kind in ("number", "tensor")
        }
        if len(dtypes) > 1:
            names = " and ".join(dtypes)
            raise self.fault(call, f"{call.function!r} meets {names}; write: cast_like(..., ...)")
        dtype = next(iter(dtypes), self.signature.upstream_dtype)
        if dtype is None:
            raise self.fault(call, "no output of the op has a dtype that carries gradients")
        return dtype

    def _options(self, call: Call, function: Function) -> dict[str, object]:
        """Return the options of a call by name, which are known before there is a tensor.

        Raises FormulaError where one is not what the function takes.
        """
        options = {
            word: self._option(word, function.options[word], expression)
            for word, expression in call.options
        }
        if "axes" in options and "from_axis" in options:
            raise self.fault(call, f"{call.function} takes axes or from_axis, not both")
        missing = [word for word in function.options if word in REQUIRED - options.keys()]
        if missing:
            raise self.fault(call, f"{call.function} needs {missing[0]}=")
        return options

    def _option(self, word: str, kind: str, expression: Expression) -> object:
        if kind == "axes":
            items = expression.items if isinstance(expression, NumberList) else (expression,)
            axes = tuple(self._integer(word, item, kind) for item in items)
            if len(set(axes)) < len(axes):
                raise self.fault(expression, f"{word} names an axis twice")
            return axes
        if kind in _LIMITS:
            return self._integer(word, expression, kind)
        value = self._plain(word, expression)
        if kind == "flag" and not isinstance(value, bool):
            raise self.fault(expression, f"{word} is true or false, not {value:g}")
        if kind == "part" and (isinstance(value, bool) or not 0 <= value <= 1):
            raise self.fault(expression, f"{word} is from 0 to 1, not {value:g}")
        return value

    def _integer(self, word: str, expression: Expression, kind: str) -> int:
        value = self._plain(word, expression)
        if isinstance(value, bool) or not float(value).is_integer():
            raise self.fault(expression, f"{word}: expected an integer, found {value}")
        least, most = _LIMITS[kind]
        if least >= 0 and value < least:
            raise self.fault(expression, f"{word} counts from {least}, and this is {value:g}")
        if not least <= value <= most:
            raise self.fault(
                expression, f"{word} is from {least} to {most}, and this is {int(value)}"
            )
        return int(value)

    def _plain(self, word: str, expression: Expression) -> Scalar:
        value = self.lower(expression)
        if isinstance(value, Value):
            message = f"{word}: expected a number, a parameter or an attr, found a tensor"
            raise self.fault(expression, message)
        return value


def _why_not(function: Function, kind: ArgumentKind, operand: Operand) -> str:
    """Return why an operand is not what the function takes in this place; nothing where it is."""
    is_tensor = isinstance(operand, Value)
    dtype = operand.dtype if isinstance(operand, Value) else type(operand).__name__
    if kind == "any":
        is_cast = not is_tensor or dtype in CASTABLE
        return "" if is_cast else f"this is {dtype}, which cannot be cast to a number"
    if kind == "index" or (kind == "like" and is_tensor):
        return ""
    if kind in ("tensor", "like") and not is_tensor:
        return f"{function.name} takes a tensor here, not a plain number"
    if kind == "truth":
        return "" if dtype == "bool" else f"{function.name!r} takes a condition here, not a number"
    if dtype == "bool":
        return f"{function.name!r} takes numbers, and this is a condition; write: where(..., 1, 0)"
    if is_tensor and dtype not in FLOATS:
        hint = COMPLEX_HINT if dtype in NOT_SERVED else "write: cast_like(..., dy)"
        return f"this is {dtype}; {COMPUTED_IN}; {hint}"
    return ""


def _unchanged(name: str, operands: Sequence[Operand]) -> Value | None:
    """Return the operand that a call gives as it is, to the bit; None where it computes."""
    match name, *operands:
        case ("*" | "/" | "**" | "pow", Value() as x, 1.0) | ("*", 1.0, Value() as x):
            return x
        case ("-", Value() as x, 0.0):
            return x
        case ("minimum", Value() as x, math.inf) | ("minimum", math.inf, Value() as x):
            return x
        case ("maximum", Value() as x, low) | ("maximum", low, Value() as x) if low == -math.inf:
            return x
        case ("clip", Value() as x, low, math.inf) if low == -math.inf:
            return x
        case ("where", Value() as a, Value() as x, y) if x == y and a.shape == x.shape:
            return x
    return None


def fold(function: Function, operands: Sequence[Scalar]) -> Scalar:
    """Return the value of a function or operator on plain numbers, in double precision."""
    if function.name in _IN_PYTHON:
        value = _IN_PYTHON[function.name](*map(float, operands))
    else:
        from graphpatch.gradients.interpreter import run

        program = Program()
        dtypes = ["bool" if isinstance(operand, bool) else "float64" for operand in operands]
        values = [program.scalar(*pair) for pair in zip(operands, dtypes, strict=True)]
        [array] = run([function.build(values, {})], {})
        value = array.item()
    return value if isinstance(value, bool) else float(value)


def condition_holds(condition: str, values: Mapping[str, Scalar]) -> bool:
    """Return whether a condition of the formula language is true of these parameters."""
    formula = Formula.parse(condition, values)
    lowering = Lowering(Program(), Signature((), ()), formula, condition)
    (expression,) = formula.expressions
    return expression is not None and lowering.lower(expression) is True


class FormulaNodes(msgspec.Struct, frozen=True):
    """Nodes in the order they are computed, and how the results asked for are spelled.

    A factor of dy can be differentiated with respect to the tensors that `varying` names.
    """

    nodes: tuple[NodeDef, ...]
    results: tuple[str, ...]
    varying: frozenset[str] = frozenset()


def node_defs(values: Iterable[Value], in_function: bool) -> FormulaNodes:
    """Return the nodes that these values are computed from, and the tensors that they are.

    A node is called by its op type, numbered from the second of its kind on.
    """
    results = tuple(values)
    steps = results[0].program.steps
    count: Counter[str] = Counter()
    names: dict[int | str, str] = {}

    def spelled(value: Value) -> str:
        if isinstance(value.source, str):
            return value.source
        arg = op_def(steps[value.source].op_type).outputs[0].name
        text = names[value.source] + (f":{arg}" if in_function else "")
        return f"{text}:{value.output}" if in_function or value.output else text

    nodes = []
    for number in needed(results):
        step = steps[number]
        same = count[step.op_type]
        names[number] = step.op_type + (f"_{same}" if same else "")
        count[step.op_type] += 1
        node = NodeDef(name=names[number], op=step.op_type, input=map(spelled, step.tensors))
        for attr, value in step.attrs:
            node.attr[attr].CopyFrom(_attr_proto(value))
        nodes.append(node)
    return FormulaNodes(tuple(nodes), tuple(map(spelled, results)))


_ATTR_FIELDS: Mapping[type, str] = {bool: "b", int: "i", float: "f", bytes: "s"}


def _attr_proto(value: AttrValue) -> AttrValueProto:
    if isinstance(value, ConstantTensor):
        return AttrValueProto(tensor=value.proto())
    if isinstance(value, tuple):
        return AttrValueProto(list=AttrValueProto.ListValue(i=value))
    if isinstance(value, str):
        return AttrValueProto(type=DTYPE_NUMBERS[value])
    return AttrValueProto(**{_ATTR_FIELDS[type(value)]: value})


Argument: TypeAlias = tuple[str, int]
"""An argument of a function: its name and the number of its dtype."""


def function_def(
    name: str,
    arguments: Iterable[Argument],
    nodes: Iterable[NodeDef],
    results: Iterable[tuple[str, int, str]],
) -> FunctionDef:
    """Return a function; of each result its name, dtype, and the tensor that it is."""
    function = FunctionDef(node_def=nodes)
    function.signature.name = name
    for argument, dtype in arguments:
        function.signature.input_arg.add(name=argument, type=dtype)
    for result, dtype, tensor in results:
        function.signature.output_arg.add(name=result, type=dtype)
        function.ret[result] = tensor
    return function


def typed_node(name: str, op_type: str, inputs: Iterable[str], dtype: int) -> NodeDef:
    """Return an op that has its dtype as attr T."""
    node = NodeDef(name=name, op=op_type, input=inputs)
    node.attr["T"].type = dtype
    return node


def gradient_function(formula: Formula, signature: Signature, name: str = "") -> FunctionDef:
    """Return the function (x..., y..., dy...) -> dx... of a gradient.

    dx is called `dx0`; an input without a gradient has none. The same arguments give the same
    function, node for node. Raises FormulaError where the formula does not suit the op.
    """
    dxs = {
        f"d{x}": op("Identity", dx) if isinstance(dx.source, str) else dx  # no argument as it came
        for (x, _), dx in zip(signature.inputs, gradient_ops(formula, signature), strict=True)
        if dx is not None
    }
    body = node_defs(dxs.values(), in_function=True)
    function = function_def(
        name,
        [(argument, DTYPE_NUMBERS[dtype]) for argument, dtype in signature.variables.items()],
        body.nodes,
        [
            (result, DTYPE_NUMBERS[dx.dtype], tensor)
            for (result, dx), tensor in zip(dxs.items(), body.results, strict=True)
        ],
    )
    function.signature.is_stateful = any(op_def(node.op).stateful for node in body.nodes)
    return function
