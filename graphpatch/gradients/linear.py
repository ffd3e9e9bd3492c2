"""A gradient that is linear in dy as ops of a graph: a construction, which needs no function.

Where dx is L(dy), g is the adjoint of L, applied to x: TensorFlow's default gradient of g is dx,
op by op what the formula computes. For dx = dy * h(x), g is x * stop(h(x)).
`Select(true, StopGradient(f), g)` with the gradient of AddN gives on f bit for bit, and what flows
back goes to g, whose default gradient is the formula's. What multiplies dy is behind StopGradient:
a second derivative would lack the terms of a factor that varies, so that it has to raise.

Linear are dy itself, its product with anything that does not depend on dy, sums and choices of
such terms, and what moves or adds up their elements. Nothing else is taken for linear: `clip`,
`relu`, `abs`, a norm, a comparison of dy. What reads no more of dy than its shape does not depend
on it. The adjoint of a linear op is its gradient: see `op_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from graphpatch.differentiation import flow
from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import SINGLE, joined, size_along, sum_to
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.op_gradients import OP_GRADIENTS, OpCall, OpGradient, ops
from graphpatch.gradients.ops import (
    FLOATS,
    BroadcastShape,
    Program,
    Signature,
    Step,
    Value,
    broadcast_together,
    op,
    shape_of_tensor,
)
from graphpatch.gradients.program import FormulaNodes, input_values, node_defs
from graphpatch.graph.walk import reached

DY, Y = "dy0", "y0"
LIVE = "live_"  # before the name of an input, where it is read to get its gradient

# The library has the gradients of products, which are known to have the shapes of their inputs:
# of these op types exactly, of the others at least.
PRODUCTS = {"MatMul": "matmul", "BatchMatMul": "batch_matmul", "BatchMatMulV2": "batch_matmul"}
BROADCAST = frozenset({"BatchMatMulV2"})

JOINED = frozenset({"AddV2", "Sub", "Mul", "RealDiv", "SelectV2", "Neg", "Cast", "StopGradient"})

# Ops that read of a tensor no more than its shape and dtype.
SHAPE_ONLY = frozenset({"Shape", "Rank", "ZerosLike", "OnesLike"})

JOINTLY: Mapping[str, tuple[int, ...]] = {
    "AddV2": (0, 1), "Sub": (0, 1), "SelectV2": (1, 2), "BiasAdd": (0, 1)
}  # fmt: skip
"""Op types that are linear in these inputs together: not where one is neither linear nor zero."""

ALONE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys("Identity StopGradient Neg Cast RealDiv Sum Reshape BroadcastTo".split(), (0,)),
    **dict.fromkeys("Transpose BiasAddGrad AvgPool".split(), (0,)),
    **dict.fromkeys("ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad".split(), (0,)),
    **dict.fromkeys("SoftplusGrad SoftsignGrad".split(), (0,)),
    **dict.fromkeys("AvgPoolGrad SigmoidGrad TanhGrad Split".split(), (1,)),
    **dict.fromkeys("Mul BatchMatMulV2 Conv2D DepthwiseConv2dNative".split(), (0, 1)),
    **dict.fromkeys(("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"), (1, 2)),
    **dict.fromkeys(("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"), (0, 2)),
    "MaxPoolGrad": (2,),
}
"""Op types that are linear in each of these inputs alone: not where two of them depend on dy."""


def construction(
    formula: Formula, signature: Signature, op_type: str, in_function: bool
) -> FormulaNodes | None:
    """Return the nodes of g, for an op of this signature; None where there is no such g.

    There is none where the formula is not known to be linear in dy, or to give a gradient of the
    shape of its input. In the nodes `x0` and `y0` stand for the op's inputs and output, `dy0` for a
    tensor of its shape, and `live_x0` for an input as it is read to get its gradient. Raises
    FormulaError where the formula does not suit the op.
    """
    if len(signature.outputs) != 1:
        return None
    program = Program()
    dxs = dict(input_values(program, formula, signature))
    linear = _linear_steps(program)
    if not dxs or not all(dx.source == DY or dx.source in linear for dx in dxs.values()):
        return None
    shapes = _known_products(program, signature, op_type)
    adjoint = Adjoint(program, signature, linear, shapes)
    if not all(adjoint.start(dx, name) for name, dx in dxs.items()):
        return None
    result = adjoint.finish()
    return replace(node_defs([result], in_function), varying=_varying(result))


def _known_products(
    program: Program, signature: Signature, op_type: str
) -> dict[int | str, BroadcastShape]:
    """Return the shapes of matrix products that are the op's own gradients."""
    if op_type not in PRODUCTS:
        return {}
    try:
        own = dict(input_values(program, LIBRARY[PRODUCTS[op_type]].formula(), signature))
    except FormulaError:
        return {}
    at_least = op_type in BROADCAST
    return {
        dx.source: BroadcastShape(None, frozenset({x})) if at_least else shape_of_tensor(x)
        for x, dx in own.items()
    }


def _linear_steps(program: Program) -> frozenset[int | str]:
    """Return the numbers of the steps that are linear in dy, and depend on it."""
    linear: set[int | str] = set()
    dependent: set[int | str] = set()
    for number, step in enumerate(program.steps):
        tensors = list(step.tensors)
        upstream = {value.source for value in tensors if str(value.source).startswith("dy")}
        places = [n for n, value in enumerate(tensors) if value.source in dependent | upstream]
        if step.op_type in SHAPE_ONLY or not places:
            continue
        dependent.add(number)
        legal, jointly = _linear_places(step)
        if all(n in legal and tensors[n].source in linear | upstream for n in places):
            others = [tensors[n] for n in legal if n not in places]
            if all(map(_is_zero, others)) if jointly else len(places) == 1:
                linear.add(number)
    return frozenset(linear)


def _linear_places(step: Step) -> tuple[tuple[int, ...], bool]:
    """Return the inputs that an op is linear in, and whether in all of them together."""
    if step.op_type == "ConcatV2":  # of any number of tensors, with the axis last
        return tuple(range(len(list(step.tensors)) - 1)), True
    if step.op_type in JOINTLY:
        return JOINTLY[step.op_type], True
    return ALONE.get(step.op_type, ()), False


def _is_zero(value: Value) -> bool:
    """Return whether a value is zero throughout."""
    if value.constant is not None:
        return not any(value.constant.numbers)
    source = value.source
    return isinstance(source, int) and value.program.steps[source].op_type == "ZerosLike"


def _varying(result: Value) -> frozenset[str]:
    """Return the tensors with respect to which what multiplies dy can be differentiated."""

    def flowing(source: int | str) -> Iterator[int | str]:
        if isinstance(source, int):
            step = result.program.steps[source]
            tensors = list(step.tensors)
            for slot, value in enumerate(tensors):
                passes = flow.into(step.op_type, slot, len(tensors), value.dtype)
                if step.op_type == "StopGradient" or passes == "flows":
                    yield value.source

    sources = reached([result.source], flowing)
    return frozenset(name for name in sources if isinstance(name, str) and name[0] in "xy")


class Adjoint:
    """Goes back through the steps of a program that are `linear` in dy, from dx to dy.

    `shapes` is what is known of results besides; `came` has what came to each value. In ops that
    are added here, dy stands for a tensor of its shape, which is y.
    """

    def __init__(
        self,
        program: Program,
        signature: Signature,
        linear: frozenset[int | str],
        shapes: dict[int | str, BroadcastShape],
    ) -> None:
        self.program, self.signature = program, signature
        self.linear, self.shapes = linear, shapes
        self.came: dict[tuple[int | str, int], Value] = {}
        for number, step in enumerate(program.steps):
            if number in linear and step.op_type in JOINED:
                shapes[number] = broadcast_together(*map(self.shape, step.tensors))

    def shape(self, value: Value) -> BroadcastShape:
        """Return what is known of the shape of a value."""
        return self.shapes.get(value.source) or value.shape

    def start(self, dx: Value, name: str) -> bool:
        """Let x, the input of this name, come to dx; whether that is known to be right.

        A dx that is larger than x is summed to its shape, a smaller one repeated.
        """
        x = replace(self.signature.value(self.program, name), source=LIVE + name)
        shape, came, at = self.shape(dx), x.cast(dx.dtype), _StepCall((dx,), {}, adjoint=self)
        if shape.exactly is None or shape.exactly != x.shape.exactly:
            if shape.most is not None and shape.most <= x.shape.least:
                came = sum_to(came, self.sizes(dx), came.sizes, shape)
            elif x.shape.least <= shape.least:
                came = at.repeated(0, came)
            else:
                return False
        self.arrive(dx, came)
        return True

    def finish(self) -> Value:
        """Return what comes to dy: g, of the shape and dtype of y."""
        for number, step in reversed(list(enumerate(self.program.steps))):
            outputs = [output for source, output in self.came if source == number]
            for output in outputs if number in self.linear else ():
                at = _StepCall(tuple(step.tensors), dict(step.attrs), step.op_type, adjoint=self)
                at.part, dy = output, self.came[number, output]
                for place, value in enumerate(at.xs):
                    is_linear = value.source == DY or value.source in self.linear
                    if is_linear and place in _linear_places(step)[0]:
                        self.arrive(value, BACKWARD[step.op_type](at, place, dy))
        return self.came[DY, 0]

    def arrive(self, value: Value, came: Value) -> None:
        """Add what came to a value, of its shape, to what came before."""
        before = self.came.get((value.source, value.output))
        total = came if before is None else before + came
        self.came[value.source, value.output] = replace(total, shape=self.shape(value))

    def sizes(self, value: Value) -> Value:
        """Return the sizes of a value, those of y where it has its shape."""
        exactly, y = self.shape(value).exactly, self.signature.value(self.program, Y)
        is_like_y = exactly is not None and exactly == y.shape.exactly
        return y.sizes if value.source == DY or is_like_y else value.sizes


class _StepCall(OpCall, kw_only=True):
    """A step that is linear in dy, as its gradient is asked for: it reads no numbers of dy."""

    adjoint: Adjoint

    def x(self, place: int) -> Value:
        """Return a value that does not depend on dy, so that no gradient flows through it."""
        value = self.xs[place]
        if value.constant is not None or value.dtype not in FLOATS or value.source == Y:
            return value
        return op("StopGradient", value)

    def shape(self, place: int) -> BroadcastShape:
        return self.adjoint.shape(self.xs[place])

    def sizes(self, place: int) -> Value:
        return self.adjoint.sizes(self.xs[place])

    def repeated(self, place: int, value: Value) -> Value:
        """Repeat as `OpCall` does. The gradient of narrow dtypes is summed up in float32."""
        wide = value.cast(SINGLE.get(value.dtype, value.dtype))
        return OpCall.repeated(self, place, wide).cast(value.dtype)


def _same(at: OpCall, place: int, dy: Value) -> Value:
    return dy


def _choice(at: OpCall, place: int, dy: Value) -> Value:
    zero = dy.like(0.0)
    pair = (dy, zero) if place == 1 else (zero, dy)
    return at.summed(place, op("SelectV2", at.xs[0], *pair))


def _transpose(at: OpCall, place: int, dy: Value) -> Value:
    return op("Transpose", dy, op("InvertPermutation", at.xs[1]))


def _parts(at: OpCall, place: int, dy: Value) -> Value:
    """Return dy as one of several equal parts, the others of which are zeros."""
    parts = [op("ZerosLike", dy)] * int(str(at.attrs["num_split"]))
    parts[at.part] = dy
    return op("ConcatV2", tuple(parts), at.xs[0])


def _part_of_concat(at: OpCall, place: int, dy: Value) -> Value:
    """Return the part of a concatenation that this input is."""
    *parts, axis = at.xs
    spans = [size_along(at.sizes(n), int(axis.number)) for n in range(len(parts))]
    part = op("SplitV", dy, joined(*spans), axis, num_split=len(parts))
    return replace(part, output=place)


def _convolution_gradients(kind: str) -> dict[str, OpGradient]:
    """Return those of the two gradients of a convolution."""
    return {
        f"{kind}BackpropInput": ops("", f"{kind}BackpropFilter dy #x1 x2", f"{kind} dy x1"),
        f"{kind}BackpropFilter": ops(f"{kind}BackpropInput #x0 dy x2", "", f"{kind} x0 dy"),
    }


BACKWARD: Mapping[str, OpGradient] = {
    **OP_GRADIENTS,
    "StopGradient": _same,
    "Neg": lambda at, place, dy: -dy,
    "Cast": lambda at, place, dy: dy.cast(at.xs[0].dtype),
    "SelectV2": _choice,
    "Reshape": lambda at, place, dy: op("Reshape", dy, at.sizes(0), shape=at.shape(0)),
    "BroadcastTo": OpCall.summed,
    "Transpose": _transpose,
    **_convolution_gradients("Conv2D"),
    **_convolution_gradients("DepthwiseConv2dNative"),
    "BiasAddGrad": lambda at, place, dy: at.op("BiasAdd", op("ZerosLike", at.xs[0]), dy),
    "AvgPoolGrad": ops("AvgPool dy"),
    "MaxPoolGrad": ops("MaxPoolGradGrad x0 x1 dy"),
    "Split": _parts,
    "ConcatV2": _part_of_concat,
    **{f"{name}Grad": ops(f"{name}Grad dy x1") for name in ("Relu", "Relu6", "LeakyRelu", "Elu")},
    **{f"{name}Grad": ops(f"{name}Grad dy x1") for name in ("Selu", "Softplus", "Softsign")},
    **{f"{name}Grad": ops(f"{name}Grad x0 dy") for name in ("Sigmoid", "Tanh")},
}
"""The gradients of the ops that a gradient may be made of which is linear in dy."""
