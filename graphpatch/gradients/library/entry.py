"""A line of the library: a named formula, its parameters, what it is for and where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from graphpatch.errors import RulesError, did_you_mean
from graphpatch.gradients.formula import Formula, FormulaText
from graphpatch.gradients.ops import Scalar
from graphpatch.gradients.program import condition_holds
from graphpatch.gradients.tensors import ConstantTensor, as_float, unpacked

ANCONA = "Ancona et al., Towards better understanding of gradient-based attribution methods, 2018"
DEEPLIFT = (
    "Shrikumar, Greenside and Kundaje, Learning Important Features Through Propagating Activation"
    " Differences, 2017"
)
GUIDED_BACKPROP = "Springenberg et al., Striving for Simplicity: The All Convolutional Net, 2015"
LRP = (
    "Bach et al., On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise"
    " Relevance Propagation, 2015"
)

ACTIVATIONS = tuple("Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Sigmoid Tanh".split())
LAYERS = (
    ("", "MatMul", "matmul({a}, {w})", "matmul({s}, {w}, transpose_b=true)"),
    ("_conv", "Conv2D", "conv2d({a}, {w})", "conv2d_transpose({s}, {w}, x0)"),
    (
        "_depthwise",
        "DepthwiseConv2dNative",
        "depthwise_conv2d({a}, {w})",
        "depthwise_conv2d_transpose({s}, {w}, x0)",
    ),
)
"""Layers as one op: a word for names, the linear op, that of {a} and {w}, its gradient of {s}."""


class Parameter(msgspec.Struct, frozen=True):
    """A number that a rule gives by name.

    `default` is None where the rule must give it. `legal` is a condition in the formula language,
    on the parameter alone. With `is_tensor` it may be a tensor too.
    """

    name: str
    does: str
    default: float | None = None
    legal: str = ""
    is_tensor: bool = False


def positive(name: str, default: float | None, does: str) -> Parameter:
    """Return a number above 0, and finite."""
    return Parameter(name, does, default, f"{name} > 0 and is_finite({name})")


class Entry(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A gradient of the library.

    `text` is its formula, or a list with one for each input. `ops` are the op types it is meant
    for, none where it suits any op with one input and one output. `by_element`: each element of
    dx is made of the same element of dy, x and y, if there is one formula. `legal` is a condition
    on several parameters. `by_op_type` names the entry to take instead for an op type of the same
    family. `differs` says what of the method in `source` the formula leaves out. `whole`: it suits
    several ops of one input that together do what the op types in `ops` do.
    """

    name: str
    text: FormulaText
    purpose: str
    avoid: str
    source: str
    parameters: tuple[Parameter, ...] = ()
    ops: tuple[str, ...] = ()
    by_element: bool = True
    legal: str = ""
    by_op_type: Mapping[str, str] = msgspec.field(default_factory=dict)
    differs: str = ""
    whole: bool = False

    def formula(self, parameters: object = None) -> Formula:
        """Return the formula with values for its parameters; raises what `checked` raises."""
        return self._parsed.bind(self.checked(parameters))

    def partly(self, numbers: Mapping[str, object]) -> Formula:
        """Return the formula with values for those parameters that are numbers; others are tensors.

        Raises RulesError as `formula` does, but only for what the numbers tell.
        """
        if len(numbers) == len(self.parameters):
            return self.formula(numbers)
        legal = {parameter.name: parameter for parameter in self.parameters}
        return self._parsed.bind({name: self._value(legal[name], numbers) for name in numbers})

    @cached_property
    def _parsed(self) -> Formula:
        return Formula.parse(self.text, [parameter.name for parameter in self.parameters])

    @property
    def elementwise(self) -> bool:
        """Return whether each element of dx is made of the same element of dy, x and y."""
        return self.by_element and isinstance(self.text, str)

    @property
    def meant_for(self) -> str:
        """Say for which ops it is, and which gradients of its family stand for it at others."""
        ops = ", ".join(self.ops) or "any op with one input and one output of one shape"
        return "; ".join([ops, *(f"at {op}: {name}" for op, name in self.by_op_type.items())])

    def checked(self, parameters: object) -> dict[str, Scalar | ConstantTensor]:
        """Return the value of each parameter, the default where none is given.

        They come by name, or the one that there is alone: `{"scale": 0.5}`. Raises RulesError where
        one is unknown, missing, no number, or out of its range.
        """
        legal = [parameter.name for parameter in self.parameters]
        by_name = {} if parameters is None else parameters
        if not isinstance(by_name, Mapping):
            if len(legal) != 1:
                takes = f"its parameters by name: {', '.join(legal)}" if legal else "no parameters"
                raise RulesError(f"{self.name} takes {takes}, not {parameters!r}")
            by_name = {legal[0]: parameters}
        for name in by_name:
            if name not in legal:
                near = did_you_mean(name, legal) or f"; it has: {', '.join(legal) or 'none'}"
                raise RulesError(f"{self.name} has no parameter {name!r}{near}")
        values = {parameter.name: self._value(parameter, by_name) for parameter in self.parameters}
        numbers = {name: n for name, n in values.items() if not isinstance(n, ConstantTensor)}
        if self.legal and not condition_holds(self.legal, numbers):
            shown = ", ".join(f"{name} is {value:g}" for name, value in numbers.items())
            raise RulesError(f"{self.name}: {shown}; expected {self.legal}")
        return {**values}

    def _value(
        self, parameter: Parameter, parameters: Mapping[str, object]
    ) -> float | ConstantTensor:
        value = parameters.get(parameter.name, parameter.default)
        if parameter.name not in parameters and parameter.default is None:
            raise RulesError(f"{self.name} needs {parameter.name}: {parameter.does}")
        if parameter.is_tensor:
            value = unpacked(value)
            if isinstance(value, ConstantTensor):
                return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RulesError(f"{self.name}: {parameter.name} is {value!r}, not a number")
        value = as_float(value)
        condition = parameter.legal or f"{parameter.name} == {parameter.name}"
        if not condition_holds(condition, {parameter.name: value}):
            must = f"expected {parameter.legal or 'a number'}"
            raise RulesError(f"{self.name}: {parameter.name} is {value:g}; {must}")
        return value
