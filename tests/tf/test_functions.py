"""Functions on tensors: forward bits, gradient and second derivatives in every mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch import (
    backward_as,
    clip_gradient,
    filter_gradient,
    override_gradient,
    reverse_gradient,
    scale_gradient,
    straight_through,
    surrogate,
)
from graphpatch.errors import FormulaError, RulesError
from graphpatch.runtime.tf_gradients import control_flow
from tests.forked import python
from tests.tf.consumer import same_bits, taped

tf = pytest.importorskip("tensorflow")

X = np.array([-2.0, -1.0, 0.5, 3.0])
DY = np.array([-5.0, 0.05, 2.0, 0.0])
S = 1 / (1 + np.exp(-X))
TANH = 1 - np.tanh(X) ** 2
ONE = np.ones(4)
NORM = np.linalg.norm(DY)


@dataclass(frozen=True)
class Case:
    """f, and in closed form f(x), dx, and the sums of the second derivatives by dy and by x."""

    f: Callable[[Any], Any]
    value: Any
    dx: Any
    by_dy: Any
    by_x: Any = 0.0


GUIDED_ELU = np.where(DY > 0, np.where(X > 0, 1, np.exp(X)), 0)
# fmt: off
CASES = {
    "clip": Case(
        lambda x: clip_gradient(x, -0.1, 0.1), X, [-0.1, 0.05, 0.1, 0.0], [0.0, 1.0, 0.0, 1.0]),
    "clip by tensors": Case(
        lambda x: clip_gradient(x, tf.constant(-0.1), tf.constant([0.1, 0.1, 1.0, 1.0])),
        X, [-0.1, 0.05, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]),
    "scale": Case(lambda x: scale_gradient(x, 0.5), X, DY / 2, ONE / 2),
    "reverse": Case(lambda x: reverse_gradient(x, 0.3), X, -0.3 * DY, -0.3 * ONE),
    "reverse by a tensor": Case(
        lambda x: reverse_gradient(x, tf.constant(0.3)), X, -0.3 * DY, -0.3 * ONE),
    "sign": Case(lambda x: filter_gradient(x, "sign"), X, np.sign(DY), 0 * ONE),
    "clip by norm": Case(
        lambda x: filter_gradient(x, {"clip_by_norm": 1.0}),
        X, DY / NORM, (1 - DY * DY.sum() / NORM**2) / NORM),
    "a formula of x": Case(
        lambda x: filter_gradient(x, {"formula": "dy * square(x)"}),
        X, DY * X**2, X**2, 2 * DY * X),
    "a Python function": Case(lambda x: filter_gradient(x, lambda dy: dy * dy), X, DY**2, 2 * DY),
    "an override that reads x": Case(
        lambda x: override_gradient(tf.nn.relu, {"formula": "dy * sigmoid(x)"})(x),
        np.maximum(X, 0), DY * S, S, DY * S * (1 - S)),
    # y counts by its new gradient: dy * (y + 1) by x is dy * 1 * guided_elu(1).
    "an override that reads y": Case(
        lambda x: override_gradient(tf.nn.elu, "guided_elu")(x),
        np.where(X > 0, X, np.expm1(X)), DY * GUIDED_ELU, GUIDED_ELU,
        np.where((DY > 0) & (X < 0), DY * np.exp(X), 0)),
    "an override by Python": Case(
        lambda x: override_gradient(tf.sign, lambda op, dy: dy * op.inputs[0])(x),
        np.sign(X), DY * X, X, DY),
    "straight through": Case(lambda x: straight_through(tf.sign, x), np.sign(X), DY, ONE),
    "surrogate": Case(
        lambda x: surrogate(tf.sign, tf.tanh, x),
        np.sign(X), DY * TANH, TANH, -2 * DY * np.tanh(X) * TANH),
    "backward as": Case(
        lambda x: backward_as(tf.sqrt(x * x * 4.0), tf.sqrt(x * x)),
        2 * np.abs(X), DY * np.sign(X), np.sign(X)),
}
# fmt: on
MODES = ("eager", "tf.function", "jit", "v1 graph")


def derivatives(f: Callable[[Any], Any], x: Any, dy: Any) -> list[Any]:
    """f(x), dx, and what the sum of dx has as its gradients by dy and x: zeros for None."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch([x, dy])
        y, dx = taped(f, x, dy)
    zeros = tf.UnconnectedGradients.ZERO
    return [y, dx, *(outer.gradient(dx, one, unconnected_gradients=zeros) for one in (dy, x))]


def in_mode(f: Callable[[Any], Any], mode: str, x: Any, dy: Any) -> list[np.ndarray]:
    if mode != "v1 graph":
        run = (
            derivatives if mode == "eager" else tf.function(derivatives, jit_compile=mode == "jit")
        )
        return [found.numpy() for found in run(f, tf.constant(x), tf.constant(dy))]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = [tf.compat.v1.placeholder(x.dtype, [None]) for _ in range(2)]
        y = f(given[0])
        [dx] = tf.gradients(y, given[0], given[1])
        zeros = tf.UnconnectedGradients.ZERO
        second = tf.gradients(dx, given[::-1], unconnected_gradients=zeros)
        fed = dict(zip(given, (x, dy), strict=True))
        return [np.asarray(found) for found in session.run([y, dx, *second], fed)]


@pytest.mark.every(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_in_closed_form(name: str, mode: str) -> None:
    case, dtype = CASES[name], np.float32
    found = in_mode(case.f, mode, X.astype(dtype), DY.astype(dtype))
    expected = (case.value, case.dx, case.by_dy, case.by_x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.broadcast_to(other, 4), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("wrapped", [lambda f: f, tf.function])
@pytest.mark.parametrize("name", ["scale", "an override that reads x", "surrogate"])
def test_forward_mode_is_right_for_gradients_that_are_linear(name: str, wrapped: Any) -> None:
    case, x = CASES[name], tf.constant(X.astype(np.float32))
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = wrapped(case.f)(x)
    np.testing.assert_allclose(accumulator.jvp(y), case.by_dy, rtol=2e-6, atol=1e-6)


FILTERS = {name: case.f for name, case in CASES.items() if same_bits(np.asarray(case.value), X)}
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-40, 1.5)


def special(dtype: Any) -> np.ndarray:
    """Special values; the payload and sign of a NaN, and subnormal numbers, too."""
    narrow = np.array(SPECIAL, dtype.as_numpy_dtype)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[narrow.itemsize]
    odd = np.array([1, 3, ~bits(0), ~bits(0) >> bits(1)], bits).view(narrow.dtype)
    return np.concatenate([narrow, odd])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [name for name in FILTERS if name != "clip by tensors"])
def test_the_forward_bits_of_every_dtype(name: str) -> None:
    for dtype in DTYPES:
        x = special(dtype)
        f = FILTERS[name]
        for run in (f, tf.function(f), tf.function(f, jit_compile=True)):
            assert same_bits(run(tf.constant(x)).numpy(), x), dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_has_the_dtype_of_x(dtype: Any) -> None:
    x, dy = tf.cast(X, dtype), tf.cast(DY, dtype)
    half = tf.constant(0.5)
    _, dx = taped(lambda x: clip_gradient(reverse_gradient(x, half), -1.0, 1.0), x, dy)
    assert dx.dtype == dtype
    np.testing.assert_allclose(tf.cast(dx, tf.float64), -0.5 * np.clip(DY, -1, 1), rtol=1e-2)


def test_values_forward_do_not_depend_on_what_they_count_as() -> None:
    x = tf.constant(special(tf.float32))
    infinite = tf.fill(x.shape, np.float32(np.inf)) * x
    assert same_bits(backward_as(x, infinite).numpy(), x.numpy())
    assert same_bits(straight_through(tf.identity, x).numpy(), x.numpy())


def test_complex_tensors() -> None:
    x, dy = tf.constant([1 + 2j, -3j]), tf.constant([1 - 1j, 2j])
    for f, factor in (
        (lambda x: scale_gradient(x, 0.5), 0.5),
        (lambda x: reverse_gradient(x, tf.constant(0.3, tf.float64)), -0.3),
        (lambda x: straight_through(lambda z: z * z, x), 1.0),
    ):
        np.testing.assert_allclose(taped(f, x, dy)[1], factor * dy)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("factor", [0.3, [0.3, 0.3], np.float64(0.3)])
def test_a_factor_is_not_rounded_to_float32(dtype: str, factor: Any) -> None:
    for f, sign in ((scale_gradient, 1), (reverse_gradient, -1)):
        _, dx = taped(lambda x, f=f: f(x, factor), tf.ones([2], dtype))
        assert dx.numpy().tolist() == [0.3 * sign] * 2


def test_no_gradient_flows_to_a_parameter_or_to_the_noisy_value() -> None:
    strength, x = tf.Variable(0.3), tf.Variable(X.astype(np.float32))
    with tf.GradientTape(persistent=True) as tape:
        y = reverse_gradient(x, strength)
        noisy, clean = x * 2.0, x * 3.0
        z = backward_as(noisy, clean)
    assert tape.gradient(y, strength) is None
    assert tape.gradient(z, noisy) is None
    assert tape.gradient(z, x).numpy().tolist() == [3.0] * 4


def test_a_schedule_needs_no_new_trace() -> None:
    strength, traces = tf.Variable(0.0, trainable=False), []

    @tf.function
    def step(x: Any) -> Any:
        traces.append(x)
        return taped(lambda x: reverse_gradient(x, strength), x)[1]

    for value in (0.0, 0.5, 2.0):
        strength.assign(value)
        assert step(tf.constant([1.0])).numpy() == [-value]
    assert len(traces) == 1


def test_shapes_that_broadcast_are_summed() -> None:
    def rounded(x: Any) -> Any:
        return straight_through(lambda x: tf.round(x) + tf.zeros([2, 3]), x)

    assert taped(rounded, [[1.0], [2.0]])[1].numpy().tolist() == [[3.0], [3.0]]
    half = taped(lambda x: straight_through(lambda x: tf.cast(x, tf.float16), x), [[1.0]])
    assert half[1].dtype == tf.float32


def test_structures_come_back_as_they_were() -> None:
    formula = {"formula": ["sum(dy0) * ones_like(x0)", None]}
    f = override_gradient(lambda x, k: tuple(tf.math.top_k(x, 2)), formula)
    x = tf.constant([3.0, 1.0, 2.0])
    assert [one.numpy().tolist() for one in f(x, tf.constant(7))] == [[3.0, 2.0], [0, 2]]
    assert taped(lambda x: f(x, tf.constant(7))[0], x)[1].numpy().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("graph", [False, True])
def test_slices_flow_back(graph: bool) -> None:
    def gathered(f: Callable[[Any], Any], table: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(f(table), [1, 1, 3])
        return tape.gradient(rows, table)

    table = tf.Variable(tf.ones([5, 2]))
    run = tf.function(gathered) if graph else gathered
    scaled = run(lambda x: scale_gradient(x, 0.5), table)
    assert isinstance(scaled, tf.IndexedSlices)
    expected = np.outer([0, 2, 0, 1, 0], [1, 1])
    assert tf.convert_to_tensor(scaled).numpy().tolist() == (expected / 2).tolist()
    # Slices of one row are added up before they are clipped.
    found = run(lambda x: clip_gradient(x, -1.5, 1.5), table)
    assert tf.convert_to_tensor(found).numpy().tolist() == np.minimum(expected, 1.5).tolist()


def test_ragged_and_sparse_tensors() -> None:
    def clipped(x: Any) -> Any:
        return clip_gradient(tf.RaggedTensor.from_row_splits(x, [0, 2, 3]), -0.1, 0.1)

    x = [1.0, 2.0, 3.0]
    assert clipped(x).to_list() == [[1.0, 2.0], [3.0]]
    np.testing.assert_allclose(taped(lambda x: clipped(x).flat_values, x)[1], [0.1] * 3)
    sparse = tf.sparse.from_dense([[0.0, 2.0]])
    assert tf.sparse.to_dense(reverse_gradient(sparse)).numpy().tolist() == [[0.0, 2.0]]


def test_in_v1_loops() -> None:
    """The gradient passes through a v1 while loop three times."""
    with control_flow(False), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(1.0)
        _, y = tf.compat.v1.while_loop(
            lambda k, a: k < 3,
            lambda k, a: (k + 1, filter_gradient(a * 3.0, {"formula": "dy * x"})),
            [0, x],
        )
        assert session.run([y, *tf.gradients(y, x)]) == [27.0, 27.0 * 3 * 9 * 27]


def test_functions_in_a_tf_function_may_branch_on_tensors() -> None:
    def f(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:  # AutoGraph makes a tf.cond of it
            return tf.round(x)
        return x

    through = tf.function(lambda x: straight_through(f, x))
    assert through(tf.constant([1.4])).numpy() == [1.0]
    assert through(tf.constant([-1.5])).numpy() == [-1.5]


class Scaled:
    """A function that reads a trainable variable."""

    def __init__(self) -> None:
        self.w = tf.Variable(2.0, name="w")

    def __call__(self, x: Any) -> Any:
        return x * self.w


def ragged(rows: list[int]) -> Any:
    return tf.RaggedTensor.from_row_splits(tf.constant([1.0, 2.0, 3.0]), rows)


# fmt: off
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "integers": (lambda: clip_gradient(tf.constant([1]), 0, 1), TypeError, "found int32"),
    "complex": (lambda: filter_gradient([1j], "sign"), TypeError, "complex128"),
    "rounded to integers": (
        lambda: straight_through(lambda x: tf.cast(x, tf.int32), [1.0]),
        TypeError, "straight_through takes a floating or complex tensor and found int32"),
    "an override of integers": (
        lambda: override_gradient(tf.abs, "identity")(tf.constant(1)), TypeError, "takes int32"),
    "bounds": (lambda: clip_gradient([1.0], 1, 0), RulesError, "min <= max"),
    "a shape": (
        lambda: scale_gradient([1.0], tf.ones([3])), ValueError, r"factor has shape \(3,\)"),
    "a wrong name": (lambda: filter_gradient([1.0], "sgin"), RulesError, "sign"),
    "what only files have": (
        lambda: filter_gradient([1.0], "default"),
        RulesError, "ops of a graph that exists already"),
    "an attr": (
        lambda: filter_gradient([1.0], "guided_leaky_relu"), FormulaError, "no attr 'alpha'"),
    "variables": (
        lambda: override_gradient(Scaled(), "identity")(tf.ones([2])),
        ValueError, "trainable variable 'w:0'"),
    "variables that g does not read": (
        lambda: surrogate(Scaled(), tf.tanh, tf.ones([2])), ValueError, "trainable variable"),
    "a gradient of another kind": (
        lambda: filter_gradient([1.0], 3),  # type: ignore[arg-type]
        TypeError, 'expected a gradient as a rules file has it, such as "sign"'),
    "a tensor as the function": (
        lambda: override_gradient(tf.ones([2]), "sign"),
        TypeError, "override_gradient: f: expected a function of tensors; found EagerTensor"),
    "an option": (
        lambda: override_gradient(tf.nn.leaky_relu, "sign")(tf.ones([2]), alpha=0.1),
        TypeError, "found alpha; bind options before"),
    "an override of a ragged tensor": (
        lambda: override_gradient(tf.nn.relu, "sign")(ragged([0, 1, 3])),
        TypeError, "found a RaggedTensor; use it on the values"),
    "more ragged dimensions": (
        lambda: surrogate(
            tf.identity, lambda x: tf.RaggedTensor.from_row_splits(x, [0, 2]), ragged([0, 1, 3])),
        ValueError, "must have the same ragged_rank"),
    "ragged and dense": (
        lambda: backward_as(ragged([0, 1, 3]), tf.ones([3])),
        TypeError, "the value is a RaggedTensor, what it counts as a dense tensor"),
    "sparse values in other places": (
        lambda: straight_through(
            lambda x: tf.SparseTensor(x.indices + 1, x.values, x.dense_shape),
            tf.SparseTensor([[0]], [1.0], [3])),
        tf.errors.InvalidArgumentError, "Mismatched indices"),
    "a shape that does not broadcast": (
        lambda: backward_as(tf.ones([2]), tf.ones([3])), ValueError, "does not broadcast"),
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_when_called(name: str) -> None:
    call, error, says = REFUSED[name]
    with pytest.raises(error, match=says):
        call()


def test_rows_that_differ_when_run_are_refused() -> None:
    @tf.function
    def weighted(rows: Any) -> Any:
        x = tf.constant([1.0, 2.0, 3.0])
        noisy = tf.RaggedTensor.from_row_splits(x, rows, validate=False)
        clean = tf.RaggedTensor.from_row_splits(2.0 * x, [0, 1, 3])
        [dx] = tf.gradients(backward_as(noisy, clean).flat_values, x)
        return dx

    assert weighted(tf.constant([0, 1, 3], tf.int64)).numpy().tolist() == [2.0] * 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible row_splits"):
        weighted(tf.constant([0, 2, 3], tf.int64))


def test_a_gradient_function_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"returned float32 \(1,\)"):
        taped(lambda x: filter_gradient(x, lambda dy: dy[:1]), tf.ones([2]))


def test_surrogate_trains_what_both_read() -> None:
    scaled, x = Scaled(), tf.constant([1.0, 3.0])
    with tf.GradientTape() as tape:
        y = surrogate(lambda x: tf.round(scaled(x)), scaled, x)
    assert tape.gradient(y, scaled.w).numpy() == 4.0


LOADED = """
import sys
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
x, dy = (tf.constant(np.array(eval(text), np.float32)) for text in sys.argv[2:4])
for name in model.names.numpy().decode().split(","):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(model, name)(x)
        dx = tape.gradient(y, x, dy)
    second = outer.gradient(dx, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    print(repr([value.numpy().tolist() for value in (y, dx, second)]))
assert "graphpatch" not in sys.modules
"""


@pytest.mark.slow
def test_saved_and_loaded_in_a_fresh_process(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    module, spec = tf.Module(), [tf.TensorSpec([None], tf.float32)]
    # The bounds of "clip by tensors" have a shape that is not that of any x.
    cases = {f"f_{name.replace(' ', '_')}": case for name, case in CASES.items()}
    del cases["f_clip_by_tensors"]
    for name, case in cases.items():
        setattr(module, name, tf.function(case.f, spec))
    module.names = tf.Variable(",".join(cases))
    tf.saved_model.save(module, str(tmp_path / "saved"))
    done = run_cli(
        *(tmp_path / "saved", X.tolist(), DY.tolist()),
        command=[*python("tensorflow"), "-c", LOADED],
    )
    assert done.code == 0, done.stderr
    for case, line in zip(cases.values(), done.stdout.splitlines(), strict=True):
        for value, expected in zip(eval(line), (case.value, case.dx, case.by_x), strict=True):
            np.testing.assert_allclose(value, np.broadcast_to(expected, 4), rtol=2e-6, atol=1e-7)
