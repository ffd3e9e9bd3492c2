"""Ops that count as others, and ops of several inputs and outputs, in every place.

Forward the bits stay; backward the gradient is that of closed form, or TensorFlow's without the
noise. The models are differentiated in fresh processes that cannot import graphpatch. In a function
that a Session differentiates as a whole, it would ask for the op's own gradient even behind a
StopGradient: there may be none, or it may be NaN of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from tests.draws import quick, selected
from tests.gradients.oracle import numpy_gradient
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES

tf = pytest.importorskip("tensorflow")

Array = Any
SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
STEPS = (
    "x:_ -> m:Mul; c0:Const -> m -> a:AddV2; c1:Const -> a -> f:Floor -> d:RealDiv; c2:Const -> d"
)
OWN = "dy * (y + sigmoid(x) * (1 - y))"
W, ORDER, AXIS = np.float32([0.5, -2.0, 1.5]), np.int32([2, 0, 1]), np.int32(0)
RANGE = {"min": np.float32(-1.0), "max": np.float32(1.0)}


class Unit(NamedTuple):
    """Ops to patch, and the rule; what they read, x first, and give, and the gradient, in numpy."""

    build: Callable[[Any], Any]
    match: dict[str, Any]
    patch: Any
    forward: Callable[[Array], tuple[list[Array], Array]]
    pullback: Callable[[list[Array], Array, Array], Array]
    emit: str = "auto"


def swish(x: Any) -> Any:
    return x * tf.sigmoid(x)


def swish_forward(x: Array) -> tuple[list[Array], Array]:
    return [x], x / (1 + np.exp(-x))


def steps_forward(x: Array) -> tuple[list[Array], Array]:
    return [x], np.floor(x * np.float32(4) + np.float32(0.5)) / np.float32(4)


def as_one(
    build: Any, pattern: str, forward: Any, formula: Any, patch: Any = None, emit: str = "auto"
) -> Unit:
    """A match as one op; without a patch an override by the formula that is its gradient."""
    parsed = Formula.parse(formula)
    patch = patch or {"override_gradient": {"formula": formula}}

    def pullback(inputs: list[Array], y: Array, dy: Array) -> Array:
        given = [np.asarray(x, np.float32) for x in inputs]
        return numpy_gradient(parsed, given, [y], [dy])[0]

    return Unit(build, {"pattern": pattern}, {**patch, "on": "match"}, forward, pullback, emit)


def surrogate(
    op: str, formula: str, value: Any, pullback: Callable[[Array, Array], Array], emit: str = "auto"
) -> Unit:
    def back(inputs: list[Array], y: Array, dy: Array) -> Array:
        return pullback(inputs[0], dy)

    patch = {"surrogate_gradient": formula}
    build = getattr(tf.math, op.lower())
    return Unit(build, {"op": op}, patch, lambda x: ([x], value(x)), back, emit)


def tanh(x: Array, dy: Array) -> Array:
    return dy * 4 / np.cosh(4 * x) ** 2


def noisy(a: Any) -> Any:
    """Noise that is the same on every run, and through which nothing flows back."""
    return a / (4.5 + tf.floor(5.0 * a))


def through(clean: Callable[[Any], Any], with_noise: Callable[[Any], Any], emit: str) -> Unit:
    """A noise-free path: TensorFlow's gradient of what is clean."""

    def pullback(inputs: list[Array], _: Array, dy: Array) -> Array:
        x = tf.constant(inputs[0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = clean(x)
        return tape.gradient(y, x, tf.constant(dy)).numpy()

    forward = lambda x: ([x, clean(x).numpy()], with_noise(tf.constant(x)).numpy())  # noqa: E731
    return Unit(with_noise, {"op": "RealDiv"}, {"backward_as": {}}, forward, pullback, emit)


def named(build: Any, forward: Any, formula: Any, pullback: Any = None, **more: Any) -> Unit:
    """Ops that are named `patched` and overridden by formulas, all of whose gradients are x's."""
    parsed, patch = Formula.parse(formula), [{"override_gradient": {"formula": formula}}]

    def own(inputs: list[Array], y: Any, dy: Any) -> Array:
        outputs, upstream = (one if isinstance(one, list) else [one] for one in (y, dy))
        found = numpy_gradient(parsed, inputs, outputs, upstream, more.get("attrs", {}))
        return sum(dx for dx in found if dx is not None)

    def back(inputs: list[Array], y: Array, dy: Array) -> Array:
        return pullback(own, inputs, y, dy) if pullback else own(inputs, y, dy)

    match = {"name_regex": r"(.*/)?patched(_\d+)?"}
    return Unit(lambda x: build(x, "patched"), match, patch + more.get("then", []), forward, back)


def of_parts(own: Any, inputs: list[Array], y: Array, dy: Array) -> Array:
    return own(inputs, np.split(inputs[1], 3), np.split(W * dy, 3))


def of_distance(own: Any, inputs: list[Array], y: Array, dy: Array) -> Array:
    return np.sign(inputs[1]) * own(inputs[:1], y, dy)


def quantized(x: Any, name: str = "") -> Any:
    return tf.raw_ops.FakeQuantWithMinMaxVars(inputs=x, **RANGE, name=name)


def distance(x: Array) -> tuple[list[Array], Array]:
    apart = x - 2 * np.float32(X[0])
    return [abs(apart), apart], np.sqrt(abs(apart))


# fmt: off
UNITS = {
    "sign as tanh": surrogate("Sign", "tanh(4 * x)", np.sign, tanh),
    "sign as tanh, function": surrogate("Sign", "tanh(4 * x)", np.sign, tanh, "function"),
    "a scalar for a vector": surrogate("Floor", "sum(x * x)", np.floor,
                                       lambda x, dy: np.sum(dy) * 2 * x),
    "swish as a cube": as_one(swish, SWISH, swish_forward, "3 * x * x * dy",
                              {"surrogate_gradient": "x ** 3"}),
    "swish, its own gradient": as_one(swish, SWISH, swish_forward, OWN),
    "swish, from input and output": as_one(swish, SWISH, swish_forward, "tanh(dy) * x + y"),
    "swish, filtered behind": as_one(swish, SWISH, swish_forward, f"3 * {OWN}",
                                     {"filter_gradient": {"scale": 3}}),
    "swish, filtered before": as_one(
        swish, SWISH, swish_forward, f"clip({OWN}, -0.4, 0.4)",
        {"filter_gradient": {"clip": {"min": -0.4, "max": 0.4}}, "at": "inputs"}),
    "steps, straight through": as_one(lambda x: tf.floor(x * 4.0 + 0.5) / 4.0, STEPS,
                                      steps_forward, "dy", {"straight_through": {"input": "x"}}),
    **{
        f"{name}, {emit}": through(clean, with_noise, emit)
        for emit in ("auto", "function")
        for name, clean, with_noise in (
            ("noise", tf.tanh, lambda a: tf.tanh(noisy(a))),
            ("noise twice", lambda a: tf.tanh(tf.square(a)),
             lambda a: tf.tanh(noisy(tf.square(noisy(a))))),
        )
    },
}
OPS = {
    "both inputs": named(lambda x, name: tf.multiply(x, x, name), lambda x: ([x, x], x * x),
                         ["dy * x1", "dy * dy * x0 + x1"]),
    "three outputs and an integer": named(
        lambda x, name: W * tf.concat(tf.split(x, 3, name=name), 0), lambda x: ([AXIS, x], W * x),
        [None, "dy0 * dy1 + dy2"], of_parts),
    "an integer is read": named(
        lambda x, name: tf.gather(x, ORDER, name=name), lambda x: ([x, ORDER, AXIS], x[ORDER]),
        ["dy * dy + cast_like(x1, dy)", None, None]),
    "overridden and filtered": named(
        tf.tanh, lambda x: ([x], np.tanh(x)), "0.5 * dy * dy + x * y",
        lambda own, x, y, dy: own(x, y, np.clip(dy, -0.1, 0.1)),
        then=[{"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}}]),
    "no gradient in a function": named(
        lambda x, name: tf.nn.leaky_relu(x, 0.3, name),
        lambda x: ([x], np.where(x > 0, x, np.float32(0.3) * x)), "dy * attr.alpha + 1",
        attrs={"alpha": 0.3}),
    "own gradient is NaN": named(
        lambda x, name: tf.sqrt(tf.abs(x - 2 * np.float32(X[0])), name), distance,
        "where(x > 0, 0.5 * dy / y, 0)", of_distance),
    "three inputs, straight through": named(
        quantized, lambda x: ([x], quantized(tf.constant(x)).numpy()), "dy",
    )._replace(patch={"straight_through": True}),
}
UNITS |= OPS
# fmt: on
LONG = ("main", "PartitionedCall", "While", "v1 while", "nested two deep", "v1 cond")
EVERYWHERE = ("sign as tanh", "swish, its own gradient", "noise, auto")
OF_OPS = ("If", "If in While", "legacy call", "PartitionedCall in While")
IN_PLACE = {
    **dict.fromkeys(PLACES, EVERYWHERE),
    **dict.fromkeys(OF_OPS, OPS),
    **dict.fromkeys(LONG, UNITS),
}
PAIRS = quick(
    ((place, name) for place in PLACES for name in IN_PLACE[place]),
    lambda place, name: place == "main" or (place in LONG[:4] and name == EVERYWHERE[0]),
)


def reference(name: str, times: int) -> Array:
    """The gradient of the sum of y by x, in numpy."""
    x, tape = np.array(X, np.float32), []
    for _ in range(times):
        inputs, y = UNITS[name].forward(2 * x)
        # The Sin is the end of a noise-free path: its gradient is taken without the noise, too.
        tape.append((inputs, inputs[1] if "backward_as" in UNITS[name].patch else y))
        x = np.sin(y) + x
    dy = np.ones_like(x)
    for inputs, y in reversed(tape):
        dy = dy + 2 * UNITS[name].pullback(inputs, y, (dy * np.cos(y)).astype(np.float32))
    return dy


def rules(name: str, model: Any) -> Iterator[dict[str, Any]]:
    """The rule; of noise one for each body that has noisy ops, up to the Sin in it."""
    unit = UNITS[name]
    if "backward_as" not in unit.patch:
        for patch in unit.patch if isinstance(unit.patch, list) else [unit.patch]:
            yield {"name": str(patch), "match": unit.match, "patch": patch, "emit": unit.emit}
        return
    graph_def = getattr(model, "graph_def", model)
    bodies = {one.signature.name: one.node_def for one in graph_def.library.function}
    for label, nodes in {"main": graph_def.node, **bodies}.items():
        ends = [node.name for node in nodes if node.op == "Sin"]
        if ends:
            match = {**unit.match, "body": label}
            yield {"match": match, "patch": {"backward_as": {"until": ends}}, "emit": unit.emit}


def around_unit(name: str) -> Callable[[Any], Any]:
    return lambda x: tf.sin(UNITS[name].build(2.0 * x)) + x


def built(place: str, name: str) -> Any:
    around, at = around_unit(name), PLACES[place]
    return graph(lambda x: at.build(around, x), at.v1)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("units"))
    for place, name in selected(request, "place", "name"):
        model = built(place, name)
        found.add(f"{place}, {name}", model, list(rules(name, model)))
    return found.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "name"), PAIRS)
def test_the_gradient(batch: Batch, place: str, name: str, runtime: str) -> None:
    key = f"{place}, {name}"
    assert key not in batch.refused, batch.refused[key]
    if name.startswith("sign"):
        is_function = PLACES[place].whole or UNITS[name].emit == "function"
        assert batch.emitted[key] == ("function" if is_function else "construction")
    if PLACES[place].unknown_to == runtime:
        assert "not registered" in batch.error(key, runtime)
        return
    expected = reference(name, PLACES[place].times)
    np.testing.assert_allclose(batch.gradient(key, runtime), expected, rtol=1e-3, atol=1e-4)
