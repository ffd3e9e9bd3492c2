"""A matched subgraph as one op: its gradient is the formula's in every place and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from tests.draws import quick, selected
from tests.gradients.oracle import numpy_gradient
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES

tf = pytest.importorskip("tensorflow")


class Unit(NamedTuple):
    """Ops that match a pattern; `forward` in numpy gives what they read, first x, and their y."""

    build: Callable[[Any], Any]
    pattern: Any
    gradient: Any
    forward: Callable[[Any], tuple[list[Any], Any]]
    patch: Any = None  # what is done, where it is not an override by that gradient


def swish(x: Any) -> Any:
    return x * tf.sigmoid(x)


def swish_forward(x: Any) -> tuple[list[Any], Any]:
    return [x], x / (1 + np.exp(-x))


MEAN, VARIANCE, GAMMA, BETA = (np.float32(value) for value in (0.1, 0.8, 1.5, -0.2))


def batch_norm(x: Any) -> Any:
    return tf.nn.batch_normalization(x, MEAN, VARIANCE, BETA, GAMMA, 0.001)


def batch_norm_forward(x: Any) -> tuple[list[Any], Any]:
    scale = GAMMA / np.sqrt(VARIANCE + np.float32(0.001))
    return [x, scale, BETA - MEAN * scale], x * scale + BETA - MEAN * scale


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.math.erf(x * 0.70710678))


def gelu_forward(x: Any) -> tuple[list[Any], Any]:
    return [x], tf.nn.gelu(tf.constant(x)).numpy()


GELU = (
    "x:_ -> half:Mul; c0:Const -> half; x -> scaled:Mul; c1:Const -> scaled -> erf:Erf"
    " -> one:AddV2; c2:Const -> one -> mul:Mul; half -> mul"
)
SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
NORM = "x:_ -> scaled:Mul:0 -> shifted:AddV2:0; scale:_ -> scaled:1; offset:_ -> shifted:1"


def steps(x: Any) -> Any:
    return tf.floor(x * 4.0 + 0.5) / 4.0


def steps_forward(x: Any) -> tuple[list[Any], Any]:
    return [x], np.floor(x * np.float32(4) + np.float32(0.5)) / np.float32(4)


def ramp(x: Any) -> Any:
    return tf.maximum(x, 0.0)


def ramp_forward(x: Any) -> tuple[list[Any], Any]:
    return [x], np.maximum(x, 0)


def step(x: Any) -> Any:
    return tf.cast(x > 0.0, tf.float32)


def step_forward(x: Any) -> tuple[list[Any], Any]:
    return [x], (x > 0).astype(np.float32)


STEPS = (
    "x:_ -> m:Mul; c0:Const -> m -> a:AddV2; c1:Const -> a -> f:Floor -> d:RealDiv; c2:Const -> d"
)
RAMP = "x:_ -> m:Maximum; c:Const -> m"
STEP = "x:_ -> g:Greater; c:Const -> g -> y:Cast"
OWN = "dy * (y + sigmoid(x) * (1 - y))"

UNITS = {
    "steps, straight through": Unit(
        steps, STEPS, "dy", steps_forward, {"straight_through": {"input": "x"}}
    ),
    "a ramp, by the library": Unit(
        ramp, RAMP, "relu(dy)", ramp_forward, {"override_gradient": "deconv_relu"}
    ),
    "a step, by the library": Unit(
        step,
        STEP,
        "dy * (3 * sigmoid(3 * x) * sigmoid(-3 * x))",
        step_forward,
        {"override_gradient": {"sigmoid_surrogate": {"slope": 3}}},
    ),
    "swish, filtered behind": Unit(
        swish, SWISH, f"3 * {OWN}", swish_forward, {"filter_gradient": {"scale": 3}}
    ),
    "swish, filtered before": Unit(
        swish,
        SWISH,
        f"clip({OWN}, -0.4, 0.4)",
        swish_forward,
        {"filter_gradient": {"clip": {"min": -0.4, "max": 0.4}}, "at": "inputs"},
    ),
    "swish, stopped before": Unit(
        swish, SWISH, "0 * dy", swish_forward, {"stop_gradient": True, "at": "input:0"}
    ),
    "swish, its own gradient": Unit(swish, SWISH, "dy * (y + sigmoid(x) * (1 - y))", swish_forward),
    "swish, straight through": Unit(swish, SWISH, "dy", swish_forward),
    "swish, from input and output": Unit(swish, SWISH, "tanh(dy) * x + y", swish_forward),
    "batch norm, scale alone": Unit(
        batch_norm, NORM, ["dy * sign(x1)", None, None], batch_norm_forward
    ),
    "gelu as swish": Unit(gelu, GELU, "dy * sigmoid(1.702 * x)", gelu_forward),
}
SOME = ("main", "PartitionedCall", "v1 while")
CHOSEN = ("main", "PartitionedCall", "nested two deep", "While", "If in While", "v1 while")


def places_of(name: str) -> tuple[str, ...]:
    """Where a unit is tried: of those that are carried as overrides are, in some places alone."""
    return CHOSEN if UNITS[name].patch is None else SOME


def around(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: tf.sin(build(2.0 * x)) + x


def reference(name: str, times: int) -> Any:
    """The gradient of the sum of y by x, in numpy."""
    unit = UNITS[name]
    formula = Formula.parse(unit.gradient)
    x, tape = np.array(X, np.float32), []
    for _ in range(times):
        inputs, y = unit.forward(2 * x)
        tape.append(([np.asarray(one, np.float32) for one in inputs], y))
        x = np.sin(y) + x
    dy = np.ones_like(x)
    for inputs, y in reversed(tape):
        dy = dy + 2 * numpy_gradient(formula, inputs, [y], [dy * np.cos(y)])[0]
    return dy


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("whole"))
    for place, name in selected(request, "place", "name"):
        unit, at = UNITS[name], PLACES[place]
        patch = unit.patch or {"override_gradient": {"formula": unit.gradient}}
        rule = {"match": {"pattern": unit.pattern}, "patch": {**patch, "on": "match"}}
        built = graph(lambda x, unit=unit, at=at: at.build(around(unit.build), x), at.v1)
        found.add(f"{place}, {name}", built, [rule])
    return found.run(request)


CASES = quick(
    [(place, name) for name in UNITS for place in places_of(name)],
    lambda place, name: place == "main" or name == next(iter(UNITS)),
)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "name"), CASES)
def test_the_gradient(batch: Batch, place: str, name: str, runtime: str) -> None:
    found = batch.gradient(f"{place}, {name}", runtime)
    expected = reference(name, PLACES[place].times)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
