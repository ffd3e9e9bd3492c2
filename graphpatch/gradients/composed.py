"""Gradients made of an op's own gradient and filters around it, as one key can name them.

`{"own": "Relu", "outputs": [[null, {"clip": ...}]], "inputs": []}`: what arrives at the outputs
passes the filters, then the gradient `own`, then the filters at the inputs. A filter is
`[place, gradient]`: the output or input that it is at, null for all. The key says it all, so that
`register_gradients` can register it for a graph that was written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    KEY_PREFIX,
    OWN,
    PYTHON,
    REGISTERED,
    SURROGATE,
    DefaultGradient,
    Gradient,
    PythonGradient,
    RegisteredKey,
    parse_gradient,
)

STOP = "stop_gradient"


@dataclass(frozen=True, slots=True)
class GradientLayer:
    """A filter at one output or input of an op, or at all; `gradient` None lets nothing through."""

    place: int | None
    gradient: Gradient | None

    def holds(self, place: int) -> bool:
        """Whether it is at this output or input."""
        return self.place is None or self.place == place


@dataclass(frozen=True, slots=True)
class ComposedGradient:
    """The key of a gradient, and the filters before and behind it, in the order they are passed."""

    own: str
    outputs: tuple[GradientLayer, ...] = ()
    inputs: tuple[GradientLayer, ...] = ()

    @property
    def key(self) -> str:
        """The key that carries it: that of the gradient alone where there is no filter."""
        if not (self.outputs or self.inputs):
            return self.own
        sides = {"outputs": _layers_as_json(self.outputs), "inputs": _layers_as_json(self.inputs)}
        return _encoded_key({OWN: self.own, **sides})

    def behind(self, layer: GradientLayer) -> ComposedGradient:
        """With one more filter behind the outputs: what flows back passes it first."""
        return replace(self, outputs=(layer, *self.outputs))

    def before(self, layer: GradientLayer) -> ComposedGradient:
        """With one more filter before the inputs, next to the op."""
        return replace(self, inputs=(layer, *self.inputs))


def composed_gradient(key: str) -> ComposedGradient:
    """What a key means: filters around a gradient where it says so, else a gradient alone."""
    found = _decoded_key(key)
    if OWN not in found:
        return ComposedGradient(key)
    return ComposedGradient(
        found[OWN], _layers_from(found["outputs"]), _layers_from(found["inputs"])
    )


def surrogate_key(formula: Formula) -> str:
    """The key of the gradient that TensorFlow computes of a formula of the inputs."""
    return _encoded_key({SURROGATE: formula.texts[0]})


def surrogate_of(key: str) -> Formula | None:
    """The formula whose gradient a key names; None where it names another gradient."""
    text = _decoded_key(key).get(SURROGATE)
    return None if text is None else Formula.parse(text)


def python_key(gradient: PythonGradient) -> str:
    """The key of a gradient function in Python, for the process that has set it."""
    return _encoded_key({PYTHON: gradient.path})


def python_of(key: str) -> str | None:
    """The `package.module:function` that a key names; None where it names none."""
    return _decoded_key(key).get(PYTHON)


def _encoded_key(value: object) -> str:
    return KEY_PREFIX + msgspec.json.encode(value, order="deterministic").decode()


def _decoded_key(key: str) -> dict[str, Any]:
    text = key.removeprefix(KEY_PREFIX)
    if text == key or not text.startswith("{"):
        return {}
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def _layers_as_json(layers: tuple[GradientLayer, ...]) -> list[list[Any]]:
    return [[layer.place, _gradient_as_json(layer.gradient)] for layer in layers]


def _gradient_as_json(gradient: Gradient | None) -> Any:
    """A gradient as a rules file spells it."""
    if gradient is None:
        return STOP
    if isinstance(gradient, RegisteredKey):
        return {REGISTERED: gradient.key}
    if isinstance(gradient, PythonGradient):
        return {PYTHON: gradient.path}
    assert not isinstance(gradient, DefaultGradient), "it is not a filter"
    text = gradient.key.removeprefix(KEY_PREFIX)
    return msgspec.json.decode(text) if text.startswith("{") else text


def _layers_from(layers: list[list[Any]]) -> tuple[GradientLayer, ...]:
    return tuple(
        GradientLayer(place, None if one == STOP else parse_gradient(one)) for place, one in layers
    )
