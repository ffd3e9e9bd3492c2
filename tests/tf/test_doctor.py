"""`doctor` foretells what TensorFlow does with every tensor of v1 loops and branches that it built.

Of real models only placeholders and outputs are asked about; here it is what lies inside, too. And
what its rules fix has the gradient that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.analysis.doctor import causes
from graphpatch.analysis.doctor.survey import fix, survey
from graphpatch.runtime import doctor_run, tf_gradients
from graphpatch.runtime.doctor_run import run_pairs
from scripts.models import build_random
from tests.models import catalogue
from tests.models.doctor_oracle import Agreement, compare_pairs
from tests.tf import consumer, live, loop_graphs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Build = Callable[[Any, Any, Any], Any]


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


def agreement(meta: Any, *ends: list[str]) -> Agreement:
    """Whether doctor and TensorFlow agree about a MetaGraphDef."""
    [seen] = survey(graphpatch.load(meta), *ends, control_flow_v2=False)
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
    assert found.differing == []
    return found


def floats(meta: Any) -> list[str]:
    """The floats of a graph, by name."""
    return [
        f"{node.name}:{place}"
        for node in graphpatch.load(meta).graphs[0].main
        for place, arg in enumerate(node.outputs or ())
        if arg.dtype == "float32"
    ]


def of_each_float(build: Build) -> Agreement:
    """Of the gradients of each float that the graph holds, by x, w and every third one."""
    meta = loop_graphs.built(tf1, build)
    names = floats(meta)
    return agreement(meta, ["x", "w", *names[::3]], names)


@pytest.mark.every(4)
@pytest.mark.parametrize("build", loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def test_it_foretells_the_gradient_of_each_tensor(build: Build) -> None:
    found = of_each_float(build)
    assert found.verdicts["flows"]
    assert found.verdicts["none"]


def reads_nothing_of_its_loop(tf1: Any, x: Any, w: Any) -> Any:
    def step(number: Any, y: Any) -> Any:
        z = tf1.real(tf1.stack([tf1.add_n([y, w])]))  # their gradients read not even a shape
        z = tf1.placeholder_with_default(z, None) - w  # this one reads what is not known
        tf1.squeeze(tf1.reshape(z, [1]))
        return number + 1, tf1.constant(1.0)

    return tf1.while_loop(lambda number, y: number < 3, step, (0, x))[1] * w


def starts_anew(tf1: Any, first: Any, w: Any) -> Any:
    """Targets in a loop whose variable starts anew each time."""

    def step(number: Any, y: Any) -> Any:
        tf1.negative(y, name="inside")
        return number + 1, tf1.constant(1.0)

    def goes_on(number: Any, y: Any) -> Any:
        return tf1.logical_and(number < 3, tf1.negative(y, name="before") < 9.0)

    return tf1.while_loop(goes_on, step, (0, first))[1] * w


def read_by_another(tf1: Any, x: Any, w: Any) -> Any:
    """As of a halting state: the loop gives `total`, which is made of `state`."""

    def step(number: Any, state: Any, total: Any) -> Any:
        return number + 1, tf1.tanh(state * w), total + state

    return tf1.while_loop(lambda number, *_: number < 3, step, (0, x, w))[2]


# Of each, how often at least what is foretold comes.
# fmt: off
LOOPS: dict[str, tuple[Build, dict[str, int]]] = {
    "a variable that only its own loop reads": (lambda tf1, x, w: tf1.while_loop(
        lambda number, *_: number < 3,
        lambda number, y, z: (number + 1, tf1.tanh(y * z), z), (0, w, x))[1], {"flows": 1}),
    "what reads no tensor of a loop": (reads_nothing_of_its_loop, {"flows": 1, "error": 1}),
    "a variable that another one reads": (read_by_another, {"flows": 1}),
    "targets in a loop that starts anew": (starts_anew, {"error": 2}),
    "behind another": (
        lambda tf1, x, w: starts_anew(tf1, loop_graphs.counted(tf1, x, w), w), {"error": 2}),
    "built without backprop": (lambda tf1, x, w: loop_graphs.repeat(
        tf1, lambda y: tf1.tanh(y * w), x, back_prop=False), {}),
    "the gradient of a gradient": (
        lambda tf1, x, w: tf1.gradients(loop_graphs.counted(tf1, x, w), [w])[0], {"flows": 1}),
}
# fmt: on


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_all_kinds(name: str) -> None:
    build, least = LOOPS[name]
    found = of_each_float(build)
    assert all(found.foretold[verdict] >= count for verdict, count in least.items())


@pytest.mark.every(8)
@pytest.mark.parametrize("build", loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def test_it_says_which_gradients_lie_in_loops_and_cannot_be_fetched(build: Build) -> None:
    meta = loop_graphs.built(tf1, build)
    [seen] = survey(graphpatch.load(meta), floats(meta), ["y"], control_flow_v2=False)
    with tf1.Graph().as_default() as graph:
        tf1.train.import_meta_graph(meta)
        y, *xs = (graph.get_tensor_by_name(name) for name in ["y:0", *floats(meta)])
        dxs = {x.name: tf1.gradients(y, x)[0] for x in xs}
    lost = {name for name, dx in dxs.items() if dx is not None and not graph.is_fetchable(dx)}
    said = {pair.source for pair in seen.diagnoses if "no Session can fetch" in pair.says}
    assert said == lost


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 9, 21])
def test_it_knows_the_shapes_in_loops_that_tensorflow_infers(seed: int, tmp_path: Path) -> None:
    """Of random graphs whose files tell no shapes."""
    build_random.write(build_random.build(seed), seed, tmp_path)
    assert agreement(catalogue.read(tmp_path / f"random-{seed}.meta")).pairs > 10


def test_a_branch_that_has_its_context_is_not_said_to_lack_it() -> None:
    """y = 2 x, where x is not below w; else x squared."""
    meta = loop_graphs.built(tf1, lambda tf1, x, w: tf1.cond(x < w, lambda: x * x, lambda: 2 * x))
    for message, kinds in [(meta, set()), (meta.graph_def, {"branch"})]:
        [seen] = survey(graphpatch.load(message), ["x"], ["y"], control_flow_v2=False)
        assert {note.kind for note in seen.notes} == kinds
    with tf1.Graph().as_default() as graph:
        tf1.train.import_meta_graph(meta)
    for w, expected in ((4.0, 6), (2.0, 2)):
        assert live.gradients(graph, "y:0", ["x:0"], {"x:0": 3.0, "w:0": w}) == [expected]


X, W = np.float32([[0.3, -1.2], [2.6, 0.4]]), np.float32(0.7)
SLOPE = 1 / (1 + abs(X - W)) ** 2
ONES = np.ones_like(X)


def folded(x: Any) -> Any:
    """The mean and variance of a batch norm with the key that tf.contrib.quantize gives it."""
    with tf1.get_default_graph().gradient_override_map({"FusedBatchNorm": causes.FOLDED}):
        values = {"scale": [1.0], "offset": [1.0], "mean": [], "variance": []}
        norm = tf.raw_ops.FusedBatchNorm(x=tf.reshape(x, [X.size, 1, 1, 1]), **values)
    return norm.batch_mean + norm.batch_variance


# fmt: off
# What no gradient comes back through, and the gradient of its sum by x once it is fixed.
FIXED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Round": (tf.round, ONES),
    "Sign": (tf.sign, 1 / (1 + abs(X)) ** 2),
    "FloorDiv": (lambda x: tf1.floordiv(x, W), np.full_like(X, 1 / W)),
    "FloorDiv, the divisor": (lambda x: tf1.floordiv(W, x), -W / X**2),
    "FusedBatchNorm": (folded, 1 / X.size + 2 * (X - X.mean()) / (X.size - 1)),
    "TruncateDiv": (lambda x: tf1.truncatediv(x, W), np.full_like(X, 1 / W)),
    "TruncateMod": (lambda x: tf1.truncatemod(x, W), ONES),
    "TruncateMod, the divisor": (lambda x: tf1.truncatemod(W, x), -np.trunc(W / X)),
    "Greater, cast": (lambda x: tf.cast(x > W, tf.float32), SLOPE),
    "GreaterEqual, cast": (lambda x: tf.cast(x >= W, tf.float32), SLOPE),
    "Less, cast": (lambda x: tf.cast(x < W, tf.float32), -SLOPE),
    "LessEqual, cast": (lambda x: tf.cast(x <= W, tf.float32), -SLOPE),
    "Less, cast, its second input": (lambda x: tf.cast(tf.less(W, x), tf.float32), SLOPE),
    "Cast, cast": (lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32), ONES),
    "StopGradient": (tf.stop_gradient, ONES),
    "LinSpace": (
        lambda x: tf.raw_ops.LinSpace(start=x[0, 0], stop=x[0, 1], num=3),
        np.float32([[1.5, 1.5], [0, 0]])),
    "LinSpace, of one number": (
        lambda x: tf.raw_ops.LinSpace(start=x[0, 0], stop=x[0, 0], num=3),
        np.float32([[3, 0], [0, 0]])),
    "RandomPoissonV2": (lambda x: tf.random.poisson([], tf.abs(x)), np.sign(X)),
    "RandomPoissonV2, several": (lambda x: tf.random.poisson([3], tf.abs(x)), 3 * np.sign(X)),
    "RandomPoissonV2, beside": (lambda x: x + tf.random.poisson([], abs(x)), 1 + np.sign(X)),
    "AdjustContrastv2": (
        lambda x: tf.image.adjust_contrast(x[None, :, :, None], W) * X[None, :, :, None],
        W * X + (1 - W) * X.mean()),
}
# fmt: on


def test_every_fix_of_an_op_type_has_its_numbers() -> None:
    assert {
        case.partition(",")[0] for case in FIXED
    } >= causes.TRUE_GRADIENTS.keys() | causes.STAND_INS
    assert set(FIXED) >= {f"{op}, cast" for op in causes.SURROGATES}


@pytest.mark.parametrize("case", FIXED)
def test_what_its_rules_fix_has_the_gradient_that_was_meant(case: str) -> None:
    build, expected = FIXED[case]
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, X.shape, "x")
        tf1.identity(tf.reduce_sum(build(x)), name="y")
    fixed = fix(graphpatch.load(graph), ["x"], ["y"])
    assert fixed.left == []
    [found] = consumer.differentiate(fixed.model.graph_def(), "y:0", ["x:0"], {"x:0": X})
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_a_graph_is_imported_once_and_each_gradient_built_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf1.float32, [], "x")
        names = [*(tf1.round(x, name=f"y{n}").name for n in range(4)), tf1.square(x, name="y").name]
    calls = list[str]()

    def count(module: Any, name: str) -> None:
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: calls.append(name) or call(*args))

    count(doctor_run, "imported_graph")
    count(tf_gradients, "gradients")
    pairs = [("x:0", name) for name in names]
    found = run_pairs(graphpatch.load(graph), 0, pairs, control_flow_v2=False)
    assert [one["gradient"] for one in found] == [*["none"] * 4, "tensor"]
    assert sorted(calls) == [*["gradients"] * 5, "imported_graph"]


def test_a_file_of_a_version_that_tensorflow_cannot_parse_is_run() -> None:
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf1.float32, [], "x")
        tf1.square(x, name="y")
        meta = tf1.train.export_meta_graph()
    meta.meta_info_def.tensorflow_version = "0.12.head"
    [found] = run_pairs(graphpatch.load(meta), 0, [("x:0", "y:0")])
    assert found["ran"]
