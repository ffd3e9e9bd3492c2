"""Every patch kind, by every carrier, in every place: the gradient is that of its numpy form.

The models are differentiated in fresh processes that cannot import graphpatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.gradients.formula import Formula
from tests.draws import quick, selected
from tests.gradients.oracle import numpy_gradient
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES, UNREACHED, Place

tf = pytest.importorskip("tensorflow")

Rule = Callable[[Any, Any, Any], Any]

FORMULA = "0.5 * dy * dy + x * y"


def unit(x: Any) -> Any:
    """The ops around the patched one; a way past it, so that there always is a gradient."""
    return tf.square(tf.tanh(3.0 * x)) + x


def own(x: Any, y: Any, dy: Any) -> Any:
    return dy * (1 - y * y)


def numpy_form(text: str) -> Rule:
    formula = Formula.parse(text)
    return lambda x, y, dy: numpy_gradient(formula, [x], [y], [dy])[0]


class Case(NamedTuple):
    """A patch on Tanh; what its gradient then is, and what what flows back to it passes first."""

    patch: dict[str, Any]
    gradient: Rule = own
    passes: Rule = lambda x, y, dy: dy
    emit: str = "auto"


# fmt: off
PATCHES: dict[str, Case] = {
    "override formula": Case({"override_gradient": {"formula": FORMULA}}, numpy_form(FORMULA)),
    "override exact": Case({"override_gradient": "reverse"}, numpy_form("-dy")),
    "override built-in": Case({"override_gradient": "Neg"}, numpy_form("-dy")),
    "override key": Case({"override_gradient": {"formula": FORMULA}}, emit="attr"),
    "filter formula": Case({"filter_gradient": {"formula": FORMULA}},
                           passes=lambda _, y, dy: numpy_form(FORMULA)(y, y, dy)),
    "filter inputs": Case({"filter_gradient": {"formula": FORMULA}, "at": "inputs"},
                          lambda x, y, dy: numpy_form(FORMULA)(x, x, own(x, y, dy))),
    "filter library": Case({"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
                           passes=numpy_form("clip(dy, -0.1, 0.1)")),
    "filter exact": Case({"filter_gradient": "reverse"}, passes=numpy_form("-dy")),
    "filter key": Case({"filter_gradient": {"formula": FORMULA}}, emit="attr"),
    "straight through": Case({"straight_through": True}, numpy_form("dy")),
    "stop": Case({"stop_gradient": True}, numpy_form("zeros_like(x)")),
    "stop inputs": Case({"stop_gradient": True, "at": "inputs"}, numpy_form("zeros_like(x)")),
}
OWN_KEYS = ("override key", "filter key")
KEYS = {"override built-in", *OWN_KEYS}
# What is tried everywhere; the rest of the patches where places differ in how they are treated.
SHORT = ("override formula", "override built-in", "override key",
         "filter formula", "straight through", "stop")
FEW = {(place, patch) for place in ("PartitionedCall", "While") for patch in SHORT[:3]}
LONG = ("main", "While", "If", "Case", "PartitionedCall", "nested two deep", "legacy call",
        "v1 while", "v1 cond")
# fmt: on
PAIRS = quick(
    ((place, patch) for place in PLACES for patch in (PATCHES if place in LONG else SHORT)),
    lambda place, patch: place == "main" or patch == SHORT[0] or (place, patch) in FEW,
)


def reference(place: Place, case: Case) -> Any:
    """The gradient of the sum of y by x, in numpy."""
    x, tape = np.array(X, np.float32), []
    for _ in range(place.times):
        tape.append((3 * x, np.tanh(3 * x)))
        x = np.square(tape[-1][1]) + x
    dy = np.ones_like(x)
    for a, t in reversed(tape):
        dy = dy + 3 * case.gradient(a, t, case.passes(a, t, 2 * t * dy))
    return dy


def built(place: Place, around: Callable[[Any], Any] = unit) -> Any:
    return graph(lambda x: place.build(around, x), place.v1)


def rule_of(case: Case) -> dict[str, Any]:
    return {"match": {"op": "Tanh"}, "patch": case.patch, "emit": case.emit}


# Ops that count as others, and ops of several inputs and outputs. In a function that a Session
# differentiates as a whole, it would ask for the op's own gradient even behind a StopGradient:
# there may be none, or it may be NaN of zeros.

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
IN_PLACES = {
    **dict.fromkeys(PLACES, ("sign as tanh", "swish, its own gradient", "noise, auto")),
    **dict.fromkeys(("If", "If in While", "legacy call", "PartitionedCall in While"), OPS),
    **dict.fromkeys(
        ("main", "PartitionedCall", "While", "v1 while", "nested two deep", "v1 cond"), UNITS
    ),
}
IN_BRIEF = ("PartitionedCall", "While", "v1 while")
UNITS_IN_PLACES = quick(
    ((place, name) for place in PLACES for name in IN_PLACES[place]),
    lambda place, name: place == "main" or (place in IN_BRIEF and name == "sign as tanh"),
)


def reference_of_unit(name: str, times: int) -> Array:
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


def rules_of_unit(name: str, model: Any) -> Iterator[dict[str, Any]]:
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


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    models = Batch(tmp_path_factory.mktemp("places"))
    # Built anew each time: TensorFlow 2 wants functions of one name to be the same.
    for place, patch in selected(request, "place", "patch"):
        if place in PLACES:
            models.add(f"{place}, {patch}", built(PLACES[place]), [rule_of(PATCHES[patch])])
    for place, name in selected(request, "place", "name"):
        model = built(PLACES[place], around_unit(name))
        models.add(f"{place}, {name}", model, list(rules_of_unit(name, model)))
    return models.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "name"), UNITS_IN_PLACES)
def test_the_gradient_of_a_unit(batch: Batch, place: str, name: str, runtime: str) -> None:
    key, at = f"{place}, {name}", PLACES[place]
    assert key not in batch.refused, batch.refused[key]
    if name.startswith("sign"):
        is_function = at.whole or UNITS[name].emit == "function"
        assert batch.emitted[key] == ("function" if is_function else "construction")
    if at.unknown_to == runtime:
        assert "not registered" in batch.error(key, runtime)
        return
    expected = reference_of_unit(name, at.times)
    np.testing.assert_allclose(batch.gradient(key, runtime), expected, rtol=1e-3, atol=1e-4)


def test_an_op_that_has_no_gradient_in_a_function_is_refused_there() -> None:
    def normalized(x: Any) -> Any:
        image, ones = tf.reshape(x, [1, 1, 3, 1]), np.ones(1, np.float32)
        return tf.reshape(tf.compat.v1.nn.fused_batch_norm(image, ones, ones)[0], [3])

    gradient = {"override_gradient": {"formula": ["dy0", *[None] * 4]}}
    rule = {"match": {"op": "FusedBatchNorm*"}, "patch": gradient}
    with pytest.raises(PatchError, match="TensorFlow has no gradient of FusedBatchNorm"):
        graphpatch.apply([rule], built(PLACES["PartitionedCall"], normalized))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "patch"), PAIRS)
def test_the_gradient(batch: Batch, place: str, patch: str, runtime: str) -> None:
    name, case = f"{place}, {patch}", PATCHES[patch]
    if patch in KEYS and PLACES[place].whole:
        assert "TensorFlow ignores the attr silently" in batch.refused[name]
        assert "(emit: auto)" in batch.refused[name]
        return
    if PLACES[place].unknown_to == runtime:
        assert "not registered" in batch.error(name, runtime)
        return
    if patch in OWN_KEYS:
        assert batch.error(name, runtime).startswith("LookupError: No gradient defined for oper")
        return
    expected = reference(PLACES[place], case)
    found = batch.gradient(name, runtime)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
    assert not np.allclose(found, reference(PLACES[place], Case({})), rtol=1e-2)


@pytest.mark.parametrize(("place", "patch"), PAIRS)
def test_how_it_travels(batch: Batch, place: str, patch: str) -> None:
    expected: str | None = "function"
    if patch in KEYS:
        carrier = "attr" if patch in OWN_KEYS else "built-in"
        expected = None if PLACES[place].whole else carrier
    elif not PLACES[place].whole and patch in {
        "override exact",
        "filter exact",
        "straight through",
    }:
        expected = "built-in"
    elif not PLACES[place].whole and patch in {"stop", "stop inputs"}:
        expected = "construction"
    assert batch.emitted.get(f"{place}, {patch}") == expected


@pytest.mark.every(3)
@pytest.mark.parametrize("patch", SHORT)
@pytest.mark.parametrize("place", UNREACHED)
def test_where_a_session_gives_no_gradient_a_patch_is_refused(
    place: str, patch: str, tmp_path: Path
) -> None:
    path = tmp_path / ("model.meta" if UNREACHED[place].v1 else "model.pb")
    path.write_bytes(built(UNREACHED[place]).SerializeToString())
    with pytest.raises(PatchError, match=r"a Session gives no gradient through .*inline") as error:
        graphpatch.apply([rule_of(PATCHES[patch])], path)
    assert '"body": "main" leaves functions out' in str(error.value)
