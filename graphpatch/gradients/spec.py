"""G, what flows back: from a rules file to a value, whether it fits an op, and its key.

A key is what `_gradient_op_type` holds. For a gradient of ours it is `graphpatch:` and the
gradient as a rules file spells it, so that a consumer can register it from the file alone.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from graphpatch import opdefs
from graphpatch.differentiation.flow import is_registered
from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY, alike, library_entry
from graphpatch.gradients.ops import Program, Scalar, Signature
from graphpatch.gradients.program import input_values
from graphpatch.gradients.tensors import ConstantTensor, as_float, unpacked
from graphpatch.graph.op_types import OPTIONAL_PLACEHOLDER
from graphpatch.opdefs import OpDef

KEY_PREFIX = "graphpatch:"
REGISTERED, FORMULA, PYTHON, CONSTANTS = "registered", "formula", "python", "constants"

# TensorFlow's default gradient of the op; rules files of 0.1 call it "stock".
DEFAULT = ("default", "stock")

# What keys hold besides, which no rules file spells so: see FilteredGradient, SurrogateFormula.
OWN, SURROGATE = "own", "surrogate"

# What only a formula has.
FORMULA_VARIABLE = re.compile(r"\b(?:d?x|d?y)\d*\b", re.ASCII)

# TensorFlow's gradient of Identity is dy, that of Neg -dy, that of Sign zeros of the input's shape.
IDENTITY, NEG, ZERO = "Identity", "Neg", "Sign"

GIVE_DY = frozenset({"Identity", "RefIdentity", OPTIONAL_PLACEHOLDER})
"""Op types whose own gradient with respect to input 0 is dy as it comes."""

BUILT_IN = "built-in"
"""What a report says of a gradient that the file stores as the name of one of TensorFlow's own."""

SIDES = r"^(outputs|inputs|output:\d{1,9}|input:\d{1,9})$"
Side = Annotated[str, msgspec.Meta(pattern=SIDES)]
"""All outputs or inputs of an op, or one of them."""

GradientSpec = str | dict[str, Any]


class DefaultGradient(msgspec.Struct, frozen=True):
    """TensorFlow's default gradient of the op again: an override is taken off."""


class RegisteredKey(msgspec.Struct, frozen=True):
    """A gradient that TensorFlow, or whoever loads the file, has registered under this key.

    `built_in`: TensorFlow itself registers it, as its gradient of the op type `key`.
    `by_name` says that a rules file gave the op type alone, without `registered`.
    """

    key: str
    built_in: bool = False
    by_name: bool = False


class LibraryGradient(msgspec.Struct, frozen=True, dict=True):
    """A gradient of the library, with its parameters."""

    name: str
    parameters: tuple[tuple[str, Scalar | ConstantTensor], ...] = ()

    @cached_property
    def key(self) -> str:
        """Return the key that carries it: `graphpatch:guided_relu`."""
        values = {name: json_value(value) for name, value in self.parameters}
        return _key({self.name: values}) if values else KEY_PREFIX + self.name

    @cached_property
    def formula(self) -> Formula:
        """Return what it computes."""
        return LIBRARY[self.name].formula(dict(self.parameters))

    def for_op(self, op_type: str) -> LibraryGradient:
        """Return the gradient of the same family that is meant for this op type."""
        name = library_entry(self.name, op_type).name
        return self if name == self.name else replace(self, name=name)


class InlineFormula(msgspec.Struct, frozen=True, dict=True):
    """A formula that the rules file spells out."""

    formula: Formula

    @cached_property
    def key(self) -> str:
        """Return the key that carries it: `graphpatch:` and the formula."""
        texts = self.formula.texts[0] if self.formula.alike else self.formula.texts
        constants = {name: json_value(value) for name, value in self.formula.values}
        return _key({FORMULA: texts, **({CONSTANTS: constants} if constants else {})})

    def for_op(self, op_type: str) -> InlineFormula:
        """Return the formula itself, which is for any op type."""
        return self


class PythonGradient(msgspec.Struct, frozen=True):
    """A gradient function `package.module:function` of TensorFlow's convention, (op, *grads).

    TensorFlow traces it for each op, and it is stored as a function.
    """

    path: str

    @property
    def key(self) -> str:
        """Return the key of it, for the process that has set it."""
        return _key({PYTHON: self.path})


class SurrogateFormula(msgspec.Struct, frozen=True):
    """The gradient that TensorFlow computes of a formula of the inputs."""

    formula: Formula

    @property
    def key(self) -> str:
        """Return the key that carries it."""
        return _key({SURROGATE: self.formula.texts[0]})


class FilteredGradient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gradient under a key, and filters before and behind it, the first that is passed first.

    A filter is at the outputs or inputs of the op, or at one (`output:0`), and has a key too: None
    lets nothing through.
    """

    own: str
    filters: tuple[tuple[Side, str | None], ...] = ()

    @property
    def key(self) -> str:
        """Return the key that carries it: that of the gradient alone where there is no filter."""
        return _key(self) if self.filters else self.own


Computed = LibraryGradient | InlineFormula
Gradient = DefaultGradient | RegisteredKey | Computed | PythonGradient
KeyedGradient = Gradient | SurrogateFormula | FilteredGradient
"""What a key may carry."""


def parse_gradient(spec: GradientSpec) -> Gradient:
    """Return the gradient that a rules file means.

    Raises RulesError with the nearest legal name, or the parameter that is wrong.
    """
    if isinstance(spec, str):
        if spec in DEFAULT:
            return DefaultGradient()
        if spec not in LIBRARY and not is_registered(spec):
            raise RulesError(_unknown(spec))
        if spec not in LIBRARY:
            return RegisteredKey(spec, built_in=True, by_name=True)
        spec = {spec: {}}
    if FORMULA in spec and spec.keys() <= {FORMULA, CONSTANTS}:
        return InlineFormula(_formula_with_constants(spec[FORMULA], spec.get(CONSTANTS, {})))
    if len(spec) != 1:
        words = f"{len(spec)} keys: {', '.join(spec)}" if spec else "an empty object"
        raise RulesError(
            f"expected the name of a gradient, or an object with one key, {{name: parameters}}; "
            f"found {words}"
        )
    ((name, value),) = spec.items()
    if name == REGISTERED:
        if not isinstance(value, str) or not value:
            raise RulesError(f'"registered" is the name of a gradient, not {value!r}')
        return RegisteredKey(value, built_in=is_registered(value))
    if name == PYTHON:
        if not isinstance(value, str) or not re.fullmatch(r"[\w.]+:[\w.]+", value):
            raise RulesError(f'"python" is a function as "package.module:function", not {value!r}')
        return PythonGradient(value)
    if name not in LIBRARY:
        raise RulesError(_unknown(name))
    return LibraryGradient(name, tuple(sorted(LIBRARY[name].checked(value).items())))


def refuse_python(spec: Any) -> None:
    """Raise RulesError for a gradient that runs code, which nobody allowed."""
    if isinstance(spec, dict) and PYTHON in spec:
        raise RulesError(
            f'{{"python": "{spec[PYTHON]}"}} runs the code of that module; if you trust it, '
            f"--allow-python lets it run (in Python: allow_python=True)"
        )


def from_key(key: str) -> KeyedGradient:
    """Return the gradient that a key carries; of a key that is not ours, what is registered."""
    text = key.removeprefix(KEY_PREFIX)
    if text == key or not text.startswith("{"):
        return RegisteredKey(key) if text == key else parse_gradient(text)
    try:
        spec: dict[str, Any] = msgspec.json.decode(text)
        if OWN in spec:
            return msgspec.convert(spec, FilteredGradient)
    except msgspec.DecodeError as error:
        raise RulesError(
            f"the key {key!r} cannot be read: {error}; a graph with keys of another version of "
            f"graphpatch needs that version, or is patched anew from the original"
        ) from error
    if SURROGATE in spec:
        return SurrogateFormula(Formula.parse(spec[SURROGATE]))
    return parse_gradient(spec)


def json_value(value: Scalar | ConstantTensor) -> Any:
    """Return a parameter as JSON holds it."""
    return value.packed() if isinstance(value, ConstantTensor) else value


def _formula_with_constants(source: Any, constants: Any) -> Formula:
    """Return a formula with the constants that a rule gives it by name, each of which it reads."""
    if not isinstance(constants, dict):
        raise RulesError(f'"constants" has numbers and tensors by name, not {constants!r}')
    values = {}
    for name, value in constants.items():
        values[name] = number = unpacked(value)
        if isinstance(number, bool) or not isinstance(number, int | float | ConstantTensor):
            raise RulesError(f"constants.{name}: expected a number or a tensor, found {number!r}")
        if isinstance(number, int) and math.isinf(as_float(number)):
            raise RulesError(f"constants.{name} is beyond any float")
    formula = Formula.parse(source, values) if values else Formula.parse(source)
    unread = sorted(values.keys() - formula.parameters)
    if unread:
        raise RulesError(f"the formula does not read constants.{unread[0]}")
    return formula


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _key(spec: object) -> str:
    return KEY_PREFIX + _json(spec)


def _unknown(name: str) -> str:
    if FORMULA_VARIABLE.search(name):
        return f"{name!r} is no name of a gradient; of a formula: {_json({FORMULA: name})}"
    legal = [DEFAULT[0], REGISTERED, FORMULA, PYTHON, *LIBRARY]
    types = [op_type for op_type in opdefs.op_types() if op_type[:1] == name[:1].upper()]
    near = alike(name, [*legal, *types])
    return f"{name!r} is neither a gradient of the library nor an op type that has one{near}"


_BUILT_IN_KEYS = {
    LibraryGradient("identity"): IDENTITY,
    LibraryGradient("straight_through"): IDENTITY,
    LibraryGradient("scale", (("factor", 1.0),)): IDENTITY,
    LibraryGradient("scale", (("factor", -1.0),)): NEG,
    LibraryGradient("reverse", (("strength", 1.0),)): NEG,
    LibraryGradient("zero"): ZERO,
}


def built_in_key(gradient: Computed, op: OpDef | None) -> str | None:
    """Return the op type whose registered gradient this is, for an op of one input and output."""
    if op is None or any(arg.is_list for arg in (*op.inputs, *op.outputs)):
        return None
    if len(op.inputs) != 1 or len(op.outputs) != 1 or not isinstance(gradient, LibraryGradient):
        return None
    return _BUILT_IN_KEYS.get(gradient)


def gives_dy(gradient: Gradient) -> bool:
    """Return whether a gradient of ours gives each input dy, as far as its formula shows it."""
    if not isinstance(gradient, Computed):
        return False
    try:
        values = dict(input_values(Program(), gradient.formula, Signature.of_tensor("float32")))
    except FormulaError:  # it does not fit every op
        return False
    return values["x0"].source == "dy0"


# The op that filters are made of: any gradient may stand there.
FILTER = "Identity"
