"""surrogate_gradient in every place: forward the op, backward TensorFlow's gradient of the formula.

The models are differentiated in fresh processes that cannot import graphpatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.draws import quick, selected
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES, Place

tf = pytest.importorskip("tensorflow")

Array = Any


class Case(NamedTuple):
    """Ops to patch; their value and the surrogate's derivative, in numpy, by what they read."""

    build: Callable[[Any], Any]
    match: dict[str, Any]
    formula: str
    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    emit: str = "auto"
    on: str = ""


SWISH = "x:_ -> s:Sigmoid -> m:Mul; x -> m"
SIGN = {"op": "Sign"}


def swish(x: Any) -> Any:
    return x * tf.sigmoid(x)


# fmt: off
CASES: dict[str, Case] = {
    "sign as tanh": Case(tf.sign, SIGN, "tanh(4 * x)", np.sign,
                         lambda x: 4 / np.cosh(4 * x) ** 2),
    "sign as tanh, function": Case(tf.sign, SIGN, "tanh(4 * x)", np.sign,
                                   lambda x: 4 / np.cosh(4 * x) ** 2, "function"),
    "sign as a hard tanh": Case(tf.sign, SIGN, "clip(x, -0.5, 0.5)", np.sign,
                                lambda x: (abs(x) <= 0.5) * 1.0),
    "round as a sum": Case(tf.round, {"op": "Round"}, "x * sum(x)", np.round,
                           lambda x: x + np.sum(x)),
    "a scalar for a vector": Case(tf.floor, {"op": "Floor"}, "sum(x * x)", np.floor,
                                  lambda x: 2 * x * x.size),
    "swish as a whole": Case(swish, {"pattern": SWISH}, "x ** 3", lambda x: x / (1 + np.exp(-x)),
                             lambda x: 3 * x * x, on="match"),
    "swish as a whole, function": Case(swish, {"pattern": SWISH}, "x ** 3",
                                       lambda x: x / (1 + np.exp(-x)), lambda x: 3 * x * x,
                                       "function", "match"),
}
# fmt: on
# The derivatives above are of elementwise formulas; of these two the upstream gradient counts.
JOINT = {"round as a sum", "a scalar for a vector"}
LONG = ("main", "While", "PartitionedCall", "v1 while")
ALSO = ("If", "nested two deep", "legacy call", "v1 cond")
REST = [place for place in PLACES if place not in LONG + ALSO]
PAIRS = quick(
    [
        *((place, name) for place in LONG + ALSO for name in CASES),
        *((place, "sign as tanh") for place in REST),
    ],
    lambda place, name: place == "main" or (place in LONG and name == "sign as tanh"),
)
NOT_IN_FUNCTIONS = {"sign as a hard tanh"}


def vector_jacobian(name: str, x: Array, dy: Array) -> Array:
    if name == "round as a sum":
        return dy * np.sum(x) + np.sum(dy * x)
    if name == "a scalar for a vector":
        return np.sum(dy) * 2 * x
    return dy * CASES[name].derivative(x)


def reference(place: Place, name: str) -> Array:
    """The gradient of the sum of y by x, in numpy."""
    x, tape = np.array(X, np.float32), []
    for _ in range(place.times):
        tape.append((2 * x, CASES[name].value(2 * x)))
        x = np.sin(tape[-1][1]) + x
    dy = np.ones_like(x)
    for a, f in reversed(tape):
        dy = dy + 2 * vector_jacobian(name, a, np.cos(f) * dy)
    return dy


def rule_of(name: str) -> dict[str, Any]:
    case = CASES[name]
    patch = {"surrogate_gradient": case.formula, **({"on": case.on} if case.on else {})}
    return {"match": case.match, "patch": patch, "emit": case.emit}


def built(place: Place, name: str) -> Any:
    def unit(x: Any) -> Any:
        return tf.sin(CASES[name].build(2.0 * x)) + x

    return graph(lambda x: place.build(unit, x), place.v1)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("surrogate"))
    for place, name in selected(request, "place", "name"):
        found.add(f"{place}, {name}", built(PLACES[place], name), [rule_of(name)])
    return found.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "name"), PAIRS)
def test_the_gradient(batch: Batch, place: str, name: str, runtime: str) -> None:
    key = f"{place}, {name}"
    if name in NOT_IN_FUNCTIONS and PLACES[place].whole:
        assert "TensorFlow has no gradient of SelectV2, of which the formula" in batch.refused[key]
        return
    if PLACES[place].unknown_to == runtime:
        assert "not registered" in batch.error(key, runtime)
        return
    found = batch.gradient(key, runtime)
    np.testing.assert_allclose(found, reference(PLACES[place], name), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("place", "name"), PAIRS)
def test_how_it_travels(batch: Batch, place: str, name: str) -> None:
    if name in NOT_IN_FUNCTIONS and PLACES[place].whole:
        return
    function = PLACES[place].whole or CASES[name].emit == "function"
    assert batch.emitted[f"{place}, {name}"] == ("function" if function else "construction")
