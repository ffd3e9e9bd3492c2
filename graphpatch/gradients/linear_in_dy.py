"""Whether a gradient is linear in dy, as far as the ops that its formula is written as prove it.

Linear are dy itself, its product with anything that does not depend on dy, sums and choices of
such terms, and what moves or adds up their elements. Nothing else is taken for linear: `clip`,
`relu`, `abs`, a norm, a comparison of dy. What reads no more of dy than its shape does not depend
on it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from graphpatch.gradients.program import Program, Step, Value

# Ops that read of a tensor no more than its shape and dtype.
SHAPE_ONLY = frozenset({"Shape", "Rank", "ZerosLike", "OnesLike"})


class LinearIn(msgspec.Struct, frozen=True):
    """Which inputs of an op it is linear in: each for itself, or, with `jointly`, all together.

    What is linear in each of two factors alone is not linear where both depend on dy. What is
    linear in them together is not where one is anything but linear or zero.
    """

    places: tuple[int, ...] = (0,)
    jointly: bool = False


CONV_BY_INPUT = ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput")
CONV_BY_FILTER = ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter")

LINEAR = {
    **dict.fromkeys(("Identity", "StopGradient", "Neg", "Cast", "RealDiv"), LinearIn()),
    **dict.fromkeys(("Sum", "Reshape", "BroadcastTo", "Transpose"), LinearIn()),
    **dict.fromkeys(("Mul", "BatchMatMulV2"), LinearIn((0, 1))),
    **dict.fromkeys(("AddV2", "Sub"), LinearIn((0, 1), jointly=True)),
    "SelectV2": LinearIn((1, 2), jointly=True),
    "BiasAdd": LinearIn((0, 1), jointly=True),
    **dict.fromkeys(("StridedSlice", "GatherV2", "BiasAddGrad", "AvgPool"), LinearIn()),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), LinearIn((0, 1))),
    **dict.fromkeys(CONV_BY_INPUT, LinearIn((1, 2))),
    **dict.fromkeys(CONV_BY_FILTER, LinearIn((0, 2))),
    **dict.fromkeys(("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad"), LinearIn()),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad"), LinearIn()),
    **dict.fromkeys(("SigmoidGrad", "TanhGrad", "AvgPoolGrad"), LinearIn((1,))),
    "MaxPoolGrad": LinearIn((2,)),
}


def linear_steps(program: Program, values: Iterable[Value]) -> frozenset[int] | None:
    """The numbers of the steps that are linear in dy; None where one of the values is not.

    A value that does not depend on dy at all is not linear in it.
    """
    linear: set[int] = set()
    depends: set[int] = set()
    for number, step in enumerate(program.steps):
        if step.op_type in SHAPE_ONLY or not any(
            _depends_on_dy(one, depends) for one in step.tensors
        ):
            continue
        depends.add(number)
        if _is_linear(program, step, linear, depends):
            linear.add(number)
    return frozenset(linear) if all(_depends_on_dy(one, linear) for one in values) else None


def linear_inputs_of(step: Step) -> LinearIn | None:
    """In which inputs an op is linear; None where it is in none."""
    if step.op_type == "ConcatV2":  # of any number of tensors, with the axis last
        return LinearIn(tuple(range(len(list(step.tensors)) - 1)), jointly=True)
    return LINEAR.get(step.op_type)


def is_zero(program: Program, value: Value) -> bool:
    """Whether a value is zero throughout."""
    if value.constant is not None:
        return not any(value.constant.numbers)
    return isinstance(value.source, int) and program.steps[value.source].op_type == "ZerosLike"


def _is_linear(program: Program, step: Step, linear: set[int], depends: set[int]) -> bool:
    rule = linear_inputs_of(step)
    if rule is None:
        return False
    places = [place for place, one in enumerate(step.tensors) if _depends_on_dy(one, depends)]
    tensors = list(step.tensors)
    if not all(place in rule.places and _depends_on_dy(tensors[place], linear) for place in places):
        return False
    if not rule.jointly:
        return len(places) == 1
    return all(is_zero(program, tensors[place]) for place in rule.places if place not in places)


def _depends_on_dy(value: Value, numbers: set[int]) -> bool:
    """Whether a value is dy, or the result of one of these steps."""
    if isinstance(value.source, str):
        return value.source.startswith("dy")
    return value.source in numbers
