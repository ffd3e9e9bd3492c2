"""Ops of several inputs and outputs, of other dtypes, without a gradient: patched in every place.

In a function that a Session differentiates as a whole, it would ask for the op's own gradient even
behind a StopGradient: there may be none, or it may be NaN of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from tests.gradients.oracle import numpy_gradient
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES, Place, loop

tf = pytest.importorskip("tensorflow")

W = np.array([0.5, -2.0, 1.5], np.float32)
ORDER = np.array([2, 0, 1], np.int32)

Pullback = Callable[[Any], Any]


def formula(text: Any, **attrs: float) -> Callable[..., Any]:
    """dx of each input, from lists of inputs, outputs and upstream gradients."""
    parsed = Formula.parse(text)
    return lambda x, y, dy: numpy_gradient(parsed, x, y, dy, attrs)


class Unit(NamedTuple):
    """Ops around one that is named `patched`; y and its pullback in numpy, as patched."""

    build: Callable[[Any], Any]
    reference: Callable[[Any], tuple[Any, Pullback]]
    patches: tuple[dict[str, Any], ...]


UNITS: dict[str, Unit] = {}


def unit(build: Callable[[Any], Any], *patches: dict[str, Any]) -> Callable[[Any], Any]:
    """Let a reference be that of this unit, with these patches one after the other."""

    def note(reference: Callable[[Any], tuple[Any, Pullback]]) -> None:
        UNITS[reference.__name__.replace("_", " ").strip()] = Unit(build, reference, patches)

    return note


def override(text: Any) -> dict[str, Any]:
    return {"override_gradient": {"formula": text}}


TWO = ["dy * x1 * x0", None]
BOTH = ["dy * x1", "dy * dy * x0 + x1"]
THREE = "dy0 * dy1 + dy2"
NAN = "where(x > 0, 0.5 * dy / y, 0)"
SQUARE = "0.5 * dy * dy + x * y"
BOUNDED = "tanh(0.5 * dy) + x * y"


@unit(lambda x: tf.raw_ops.Mul(x=3.0 * x, y=W, name="patched") + x, override(TWO))
def one_input_gets_none(x: Any) -> tuple[Any, Pullback]:
    return 3 * x * W + x, lambda d: d + 3 * formula(TWO)([3 * x, W], [3 * x * W], [d])[0]


@unit(lambda x: tf.raw_ops.Mul(x=3.0 * x, y=tf.sin(x), name="patched") + x, override(BOTH))
def both_inputs(x: Any) -> tuple[Any, Pullback]:
    a, b = 3 * x, np.sin(x)

    def pullback(d: Any) -> Any:
        da, db = formula(BOTH)([a, b], [a * b], [d])
        return d + 3 * da + np.cos(x) * db

    return a * b + x, pullback


def _parts(a: Any, b: Any, c: Any) -> Any:
    return tf.stack([tf.reshape(part, []) for part in (a * a, b * 2.0, c * 3.0)])


@unit(
    lambda x: _parts(*tf.raw_ops.Split(axis=0, value=3.0 * x, num_split=3, name="patched")) + x,
    override([None, THREE]),
)
def three_outputs_and_an_integer(x: Any) -> tuple[Any, Pullback]:
    a, inputs = 3 * x, [np.int32(0), 3 * x]
    y = np.array([a[0] * a[0], a[1] * 2, a[2] * 3], np.float32) + x

    def pullback(d: Any) -> Any:
        upstream = [np.array([2 * a[0] * d[0]]), np.array([2 * d[1]]), np.array([3 * d[2]])]
        found = formula([None, THREE])(inputs, [p.reshape(1) for p in a], upstream)
        return d + 3 * found[-1]

    return y, pullback


INDEXED = ["dy * dy + cast_like(x1, dy)", None, None]


@unit(
    lambda x: tf.raw_ops.GatherV2(params=3.0 * x, indices=ORDER, axis=0, name="patched") ** 2 + x,
    override(INDEXED),
)
def an_integer_is_read(x: Any) -> tuple[Any, Pullback]:
    a, axis = 3 * x, np.int32(0)
    t = a[ORDER]
    return t * t + x, lambda d: d + 3 * formula(INDEXED)([a, ORDER, axis], [t], [2 * t * d])[0]


def _tanh(x: Any, gradient: Callable[..., Any]) -> tuple[Any, Pullback]:
    a, t = 3 * x, np.tanh(3 * x)
    return t * t + x, lambda d: d + 3 * gradient([a], [t], [2 * t * d])[0]


@unit(
    lambda x: tf.square(tf.tanh(3.0 * tf.tanh(3.0 * x, "patched"), "patched")) + x,
    override(BOUNDED),
)
def two_of_a_kind(x: Any) -> tuple[Any, Pullback]:
    a, t = 3 * x, np.tanh(3 * x)
    y, inner = _tanh(t, formula(BOUNDED))
    y, one = y - t, formula(BOUNDED)
    return y + x, lambda d: d + 3 * one([a], [t], [inner(d) - d])[0]


@unit(
    lambda x: tf.square(tf.tanh(3.0 * x, "patched")) + x,
    override(SQUARE),
    {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
)
def overridden_and_filtered(x: Any) -> tuple[Any, Pullback]:
    one = formula(SQUARE)
    return _tanh(x, lambda x, y, dy: one(x, y, [np.clip(dy[0], -0.1, 0.1)]))


@unit(
    lambda x: tf.square(tf.raw_ops.LeakyRelu(features=3.0 * x, alpha=0.3, name="patched")) + x,
    override("dy * attr.alpha + 1"),
)
def no_gradient_in_a_function(x: Any) -> tuple[Any, Pullback]:
    a, t = 3 * x, np.where(x > 0, 3 * x, np.float32(0.9) * x)
    one = formula("dy * attr.alpha + 1", alpha=float(np.float32(0.3)))
    return t * t + x, lambda d: d + 3 * one([a], [t], [2 * t * d])[0]


@unit(lambda x: tf.square(tf.sqrt(tf.abs(x - X[0]), "patched")) + x, override(NAN))
def own_gradient_is_nan(x: Any) -> tuple[Any, Pullback]:
    a = x - np.float32(X[0])
    t, one = np.sqrt(np.abs(a)), formula(NAN)
    return t * t + x, lambda d: d + np.sign(a) * one([np.abs(a)], [t], [2 * t * d])[0]


CLAMP = {"min": np.float32(-1.0), "max": np.float32(1.0)}


@unit(
    lambda x: tf.raw_ops.FakeQuantWithMinMaxVars(inputs=3.0 * x, **CLAMP, name="patched") ** 2 + x,
    {"straight_through": True},
)
def straight_through_of_three_inputs(x: Any) -> tuple[Any, Pullback]:
    given = tf.raw_ops.FakeQuantWithMinMaxVars(inputs=tf.constant(3 * x), **CLAMP)
    t = given.numpy()
    return t * t + x, lambda d: d + 3 * (2 * t * d)


def _normalized(x: Any) -> Any:
    one = np.ones(1, np.float32)
    given = tf.reshape(3.0 * x, [1, 1, 3, 1])
    found = tf.compat.v1.nn.fused_batch_norm(given, one, one, name="patched")[0]
    return tf.square(tf.reshape(found, [3])) + x


@unit(_normalized, override(["dy0 * dy0", "1", "2", None, None]))
def batch_norm(x: Any) -> tuple[Any, Pullback]:
    t = _normalized(tf.constant(x)).numpy() - x
    t = np.sqrt(t) * np.sign((3 * x - np.mean(3 * x)) / np.std(3 * x) + 1)
    return t * t + x, lambda d: d + 3 * np.square(2 * t * d)


CHOSEN = ("main", "While", "If", "If in While", "PartitionedCall", "nested two deep", "legacy call")
V1 = ("v1 while", "v1 cond", "v1 while in v1 while", "PartitionedCall in While")


def reference(times: int, name: str) -> Any:
    x, pullbacks = np.array(X, np.float32), []
    for _ in range(times):
        x, pullback = UNITS[name].reference(x)
        pullbacks.append(pullback)
    d = np.ones_like(x)
    for pullback in reversed(pullbacks):
        d = pullback(d)
    return d


def called_by_both(unit: Callable[[Any], Any]) -> Any:
    """The body of a While, which a PartitionedCall calls once more."""
    found = graph(lambda x: loop(unit, x))
    (name,) = [node.name for node in found.node if node.op == "StatelessWhile"]
    (body,) = [node.attr["body"].func.name for node in found.node if node.name == name]
    (function,) = [f.signature for f in found.library.function if f.signature.name == body]
    (output,) = [k for k, arg in enumerate(function.output_arg) if arg.type == 1]
    call = found.node.add(name="call", op="PartitionedCall")
    call.input.extend(f"{name}:{k}" for k, _ in enumerate(function.input_arg))
    call.attr["f"].func.name = body
    call.attr["Tin"].list.type.extend(arg.type for arg in function.input_arg)
    call.attr["Tout"].list.type.extend(arg.type for arg in function.output_arg)
    next(node for node in found.node if node.name == "y").input[0] = f"call:{output}"
    return found


def models(name: str) -> Iterator[tuple[str, int, Any]]:
    """The unit in each place: its name, how often it is applied, and the graph."""
    build = UNITS[name].build
    for place in (*CHOSEN, *V1):
        found: Place = PLACES[place]
        yield place, found.times, graph(lambda x, found=found: found.build(build, x), found.v1)
    yield "body called by both", 3, called_by_both(build)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("ops"))
    for name, unit in UNITS.items():
        match = {"name_regex": r"(.*/)?patched(_\d+)?"}
        rules = [{"match": match, "patch": patch, "name": str(patch)} for patch in unit.patches]
        for place, _, model in models(name):
            found.add(f"{place}, {name}", model, rules)
    return found.run(request)


TIMES = {**{place: PLACES[place].times for place in (*CHOSEN, *V1)}, "body called by both": 3}

# Where a Session differentiates the function as a whole.
WHOLE = {"body called by both", *(place for place in (*CHOSEN, *V1) if PLACES[place].whole)}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("place", TIMES)
def test_the_gradient(batch: Batch, place: str, name: str, runtime: str) -> None:
    if place in WHOLE and name == "batch norm":
        assert "TensorFlow has no gradient of FusedBatchNorm" in batch.refused[f"{place}, {name}"]
        return
    found = batch.gradient(f"{place}, {name}", runtime)
    np.testing.assert_allclose(found, reference(TIMES[place], name), rtol=1e-3, atol=1e-4)
