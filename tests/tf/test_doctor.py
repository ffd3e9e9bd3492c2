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
from graphpatch.runtime import gradient_run
from graphpatch.runtime.gradient_run import run_pairs
from tests.models.doctor_oracle import Agreement, compare_pairs
from tests.tf import loop_graphs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Build = Callable[[Any, Any, Any], Any]


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


def agreement(meta: Any, folder: Path) -> Agreement:
    """Of the gradients of each float that it holds, by x and w."""
    path = folder / "model.meta"
    path.write_bytes(meta.SerializeToString())
    model = graphpatch.load(path)
    main = model.graphs[0].main
    names = [
        f"{node.name}:{place}"
        for node in main
        for place, arg in enumerate(node.outputs or ())
        if arg.dtype == "float32"
    ]
    [seen] = survey(model, ["x", "w"], names, control_flow_v2=False)
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
    return found


@pytest.mark.every(4)
@pytest.mark.parametrize("build", loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def test_it_foretells_the_gradient_of_each_tensor(build: Build, tmp_path: Path) -> None:
    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.verdicts["flows"]
    assert found.verdicts["none"]


def test_a_variable_that_only_its_own_loop_reads(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        def step(number: Any, y: Any, z: Any) -> Any:
            return number + 1, tf1.tanh(y * z), z

        return tf1.while_loop(lambda number, y, z: number < 3, step, (0, w, x))[1]

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.foretold["flows"]


def test_a_variable_that_another_one_reads(tmp_path: Path) -> None:
    """As of a halting state: the loop gives `found`, which is made of `state`."""

    def build(tf1: Any, x: Any, w: Any) -> Any:
        def step(number: Any, state: Any, found: Any) -> Any:
            return number + 1, tf1.tanh(state * w), found + state

        return tf1.while_loop(lambda number, *_: number < 3, step, (0, x, w))[2]

    meta = loop_graphs.built(tf1, build)
    path = tmp_path / "model.meta"
    path.write_bytes(meta.SerializeToString())
    [seen] = survey(graphpatch.load(path), ["x"], ["y"], control_flow_v2=False)
    assert [one.verdict for one in seen.diagnoses] == ["flows"]
    pair = ("x:0", "y:0")
    [ran] = run_pairs(graphpatch.load(path), 0, [pair], control_flow_v2=False)
    assert (ran["ran"], ran["zero"]) == (True, False), ran


def test_what_reads_no_tensor_of_a_loop_is_differentiated_from_outside(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        def step(number: Any, y: Any) -> Any:
            z = tf1.real(tf1.stack([tf1.add_n([y, w])]))  # their gradients read not even a shape
            z = tf1.placeholder_with_default(z, None) - w  # this one reads what is not known
            tf1.squeeze(tf1.reshape(z, [1]))
            return number + 1, tf1.constant(1.0)

        return tf1.while_loop(lambda number, y: number < 3, step, (0, x))[1] * w

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.foretold["flows"]
    assert found.foretold["error"]


@pytest.mark.parametrize("is_behind_another", [False, True])
def test_targets_in_a_loop_that_starts_anew_each_time(
    is_behind_another: bool, tmp_path: Path
) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        first = loop_graphs.counted(tf1, x, w) if is_behind_another else x

        def step(number: Any, y: Any) -> Any:
            tf1.negative(y, name="inside")
            return number + 1, tf1.constant(1.0)

        def goes_on(number: Any, y: Any) -> Any:
            return tf1.logical_and(number < 3, tf1.negative(y, name="before") < 9.0)

        return tf1.while_loop(goes_on, step, (0, first))[1] * w

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.foretold["error"] >= 2


def conditional(tf1: Any) -> Any:
    """y = 2 x, where x is not below w; else x squared."""
    with tf1.Graph().as_default() as graph:
        x, w = (tf1.placeholder(tf1.float32, [], name) for name in "xw")
        tf1.identity(tf1.cond(x < w, lambda: x * x, lambda: 2 * x), name="y")
        return tf1.train.export_meta_graph(graph=graph)


def test_a_branch_that_has_its_context_is_not_said_to_lack_it(tmp_path: Path) -> None:
    meta = conditional(tf1)
    for name, message, kinds in [("m.meta", meta, set()), ("m.pb", meta.graph_def, {"branch"})]:
        path = tmp_path / name
        path.write_bytes(message.SerializeToString())
        [seen] = survey(graphpatch.load(path), ["x"], ["y"], control_flow_v2=False)
        assert {note.kind for note in seen.notes} == kinds
    with tf1.Graph().as_default():
        tf1.train.import_meta_graph(meta)
        graph = tf1.get_default_graph()
        [dx] = tf1.gradients(*(graph.get_tensor_by_name(name) for name in ("y:0", "x:0")))
        with tf1.Session() as session:
            assert session.run(dx, {"x:0": 3.0, "w:0": 4.0}) == 6
            assert session.run(dx, {"x:0": 3.0, "w:0": 2.0}) == 2


def test_loops_that_were_built_without_backprop(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        return loop_graphs.repeat(tf1, lambda y: tf1.tanh(y * w), x, back_prop=False)

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []


def test_the_gradient_of_a_gradient(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        return tf1.gradients(loop_graphs.counted(tf1, x, w), [w])[0]

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.verdicts["flows"]


X, W = np.float32([[0.3, -1.2], [2.6, 0.4]]), np.float32(0.7)


SLOPE = 1 / (1 + abs(X - W)) ** 2
ONES = np.ones_like(X)

# fmt: off
# What no gradient comes back through, and the gradient of its sum by x once it is fixed.
FIXED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Round": (tf.round, ONES),
    "Sign": (tf.sign, 1 / (1 + abs(X)) ** 2),
    "FloorDiv": (lambda x: tf1.floordiv(x, W), np.full_like(X, 1 / W)),
    "FloorDiv, the divisor": (lambda x: tf1.floordiv(W, x), -W / X**2),
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
    "LinSpace": (lambda x: tf.linspace(x[0, 0], x[0, 1], 3), np.float32([[1.5, 1.5], [0, 0]])),
    "RandomPoissonV2": (lambda x: tf.random.poisson([], tf.abs(x)), np.sign(X)),
    "RandomPoissonV2, several": (lambda x: tf.random.poisson([3], tf.abs(x)), 3 * np.sign(X)),
    "AdjustContrastv2": (
        lambda x: tf.image.adjust_contrast(x[None, :, :, None], W) * X[None, :, :, None],
        W * X + (1 - W) * X.mean()),
}
# fmt: on


def test_every_fix_of_an_op_type_has_its_numbers() -> None:
    assert {case.partition(",")[0] for case in FIXED} >= set(causes.OPS)


def test_every_fix_of_a_pair_has_its_numbers() -> None:
    assert set(FIXED) >= {f"{op}, cast" for op in causes.SURROGATES}


@pytest.mark.parametrize("case", FIXED)
def test_what_its_rules_fix_has_the_gradient_that_was_meant(case: str, tmp_path: Path) -> None:
    build, expected = FIXED[case]
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, X.shape, "x")
        tf1.identity(tf.reduce_sum(build(x)), name="y")
    path = tmp_path / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    fixed = fix(graphpatch.load(path), ["x"], ["y"])
    assert fixed.left == []
    patched = tmp_path / "patched.pb"
    fixed.model.save(patched)
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(tf1.GraphDef.FromString(patched.read_bytes()), name="")
        [dx] = tf1.gradients(graph.get_tensor_by_name("y:0"), [graph.get_tensor_by_name("x:0")])
        with tf1.Session() as session:
            found = session.run(dx, {"x:0": X})
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_a_graph_is_imported_once_for_all_pairs_without_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf1.float32, [], "x")
        names = [tf1.round(x, name=f"y{number}").name for number in range(5)]
        meta = tf1.train.export_meta_graph()
    path, imports = tmp_path / "model.meta", list[int]()
    path.write_bytes(meta.SerializeToString())
    imported = gradient_run.imported_graph
    monkeypatch.setattr(
        gradient_run,
        "imported_graph",
        lambda model, place: imports.append(1) or imported(model, place),
    )
    pairs = [("x:0", name) for name in names]
    found = run_pairs(graphpatch.load(path), 0, pairs, control_flow_v2=False)
    assert [one["gradient"] for one in found] == ["none"] * 5
    assert len(imports) == 1
