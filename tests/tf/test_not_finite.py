"""`doctor --run --feed` names the op at which NaN starts, and its rule takes NaN out.

Numbers are issues of tensorflow/tensorflow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.runtime import doctor_run
from graphpatch.runtime.tf_gradients import control_flow

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Build = Callable[[], Any]


def cross_entropy() -> Any:
    """y log p, where p is 0: the value is NaN, too."""
    x = tf1.placeholder(tf.float32, [None, 2], "x")
    p = tf.nn.softmax(x, name="p")
    y = tf.constant([[0.0, 1.0]])
    tf.negative(tf.reduce_sum(y * tf.math.log(p, name="log")), name="loss")


def masked_softmax() -> Any:
    """A mask of -inf, of which softmax makes zeros, is right."""
    x = tf1.placeholder(tf.float32, [1, 2], "x")
    tf.reduce_sum(tf.nn.softmax(x + tf.constant([[0.0, -np.inf]])) ** 2, name="loss")


def two_readers() -> Any:
    """x is read by two ops that are given finite gradients; one of them gives NaN."""
    x = tf1.placeholder(tf.float32, [2], "x")
    a = tf.identity(x, name="a")
    log = tf.where(a > 0, tf.math.log(a, name="log"), tf.zeros_like(a))
    tf.reduce_sum(tf.tanh(a) + log, name="loss")


def gathered() -> Any:
    """Gradients that are IndexedSlices, of a variable with a value of its own."""
    x = tf1.placeholder(tf.int32, [2], "x")
    table = tf1.get_variable(
        "table", initializer=np.array([[0], [1], [4]], np.float32), use_resource=True
    )
    tf.reduce_sum(tf.sqrt(tf.gather(table, x, name="rows"), name="root"), name="loss")


def looped() -> Any:
    x = tf1.placeholder(tf.float32, [2], "x")
    start = tf.identity(x, name="start")

    def step(number: Any, y: Any) -> Any:
        return number + 1, tf.sqrt(y) - 0.0

    y = tf1.while_loop(lambda number, _: number < 3, step, (0, start), name="loop")[1]
    tf.reduce_sum(y, name="loss")


def chosen() -> Any:
    x = tf1.placeholder(tf.float32, [2], "x")
    y = tf1.cond(tf.reduce_sum(x) > 0, lambda: tf.sqrt(x), lambda: -x, name="cond")
    tf.reduce_sum(y, name="loss")


def called() -> Any:
    """A function in a function, whose variable is finite."""
    x = tf1.placeholder(tf.float32, [2], "x")
    w = tf1.get_variable("w", initializer=2.0, use_resource=True)
    inner = tf.function(lambda y: tf.sqrt(y))
    tf.reduce_sum(tf.function(lambda y: inner(y) * w)(tf.identity(x)), name="loss")


def undefined() -> Any:
    """A function that a Session cannot differentiate: C++ has no gradient of SelectV2."""
    x = tf1.placeholder(tf.float32, [2], "x")
    tf.reduce_sum(tf.function(lambda y: tf.where(y > 0, y, 0.0))(x), name="loss")


def looped_forward() -> Any:
    """The value is NaN: log 1 is 0 in the second step."""
    x = tf1.placeholder(tf.float32, [2], "x")
    y = tf1.while_loop(lambda y: tf.reduce_sum(y) > -9, lambda y: tf.math.log(y), [x + 1.0])
    tf.reduce_sum(y, name="loss")


def switched() -> Any:
    x = tf1.placeholder(tf.float32, [2], "x")
    number = tf.cast(tf.reduce_sum(x), tf.int32)
    y = tf.switch_case(number, [lambda: x, lambda: tf.math.rsqrt(x)])
    tf.reduce_sum(y, name="loss")


def saved(build: Build, folder: Path) -> Path:
    with tf1.Graph().as_default() as graph:
        build()
        path = folder / "model.meta"
        path.write_bytes(tf1.train.export_meta_graph(graph=graph).SerializeToString())
    return path


# What is fed, the phase, the op, its slot, and what is said of the element.
STARTS: dict[Build, tuple[Any, str, str, int | None, str]] = {
    cross_entropy: ([[300, 0]], "forward", "log", None, "infinite; -inf at [0, 1]"),
    masked_softmax: ([[1, 2]], "finite", "", None, ""),
    two_readers: ([1, 0], "backward", "log", 0, "1 NaN; nan at [1]"),
    gathered: (np.int32([1, 0]), "backward", "root", 0, "infinite; inf at [1, 0]"),
}


def started(model: Any, value: Any) -> Any:
    value = value if isinstance(value, np.ndarray) else np.float32(value)
    [[start]] = graphpatch.diagnose(model, "x", "loss", run=True, feed={"x": value}).not_finite
    return start


@pytest.mark.parametrize("build", STARTS, ids=lambda build: build.__name__)
def test_it_names_the_first_op(build: Build, tmp_path: Path) -> None:
    value, phase, op, slot, says = STARTS[build]
    start = started(saved(build, tmp_path), value)
    assert (start.phase, start.op, start.slot) == (phase, op, slot)
    assert says in "".join(start.values[:1])


# Of each the op and its phase in control flow v2, and what is said in v1.
INSIDE: dict[Build, tuple[str, str, str]] = {
    called: ("Sqrt", "backward", ""),
    looped: ("Sqrt", "backward", "not at start:0: the v1 loop 'loop/while_context'"),
    looped_forward: ("Log", "forward", "not finite; the v1 loop 'while/while_context'"),
    switched: ("Rsqrt", "forward", ""),
    chosen: ("Sqrt", "backward", "not at x:0: the v1 branch by 'cond/pred_id'"),
}


def in_control_flow(build: Build, is_v2: bool, folder: Path) -> tuple[Path, Any]:
    with control_flow(is_v2):
        path = saved(build, folder)
    feed = {"x": np.array([0, 1], np.float32)}
    diagnosis = graphpatch.diagnose(path, "x", "loss", run=True, feed=feed, control_flow_v2=is_v2)
    [[start]] = diagnosis.not_finite
    return path, start


@pytest.mark.parametrize("build", INSIDE)
def test_it_looks_into_functions(build: Build, tmp_path: Path) -> None:
    path, start = in_control_flow(build, True, tmp_path)
    op, phase, _ = INSIDE[build]
    graph = graphpatch.load(path).graphs[0]
    assert (start.type, start.phase) == (op, phase)
    assert graph.functions[start.body].node(start.op).op == op
    assert not any("graphpatch_inside" in value for value in start.values)
    assert "0 at [0]" in "".join(start.values)
    if build in (called, chosen):  # TensorFlow rewrites loops, and refuses them a second time
        graphpatch.apply(start.rule, path).save(tmp_path / "patched.meta")
        assert started(tmp_path / "patched.meta", [0, 1]).phase == "finite"


def test_gradients_that_do_not_run_are_not_called_finite(tmp_path: Path) -> None:
    _, start = in_control_flow(undefined, True, tmp_path)
    assert start.phase == "not run"
    assert "SelectV2" in start.says


def test_a_long_loop_is_named_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_run, "MOST_STEPS", 3)
    _, start = in_control_flow(looped, True, tmp_path)
    assert (start.type, start.body, start.rule is not None) == ("StatelessWhile", "main", True)
    assert "is not known" in start.says


@pytest.mark.parametrize("build", [build for build, (_, _, named) in INSIDE.items() if named])
def test_v1_loops_and_branches_are_named_with_what_to_do(build: Build, tmp_path: Path) -> None:
    _, start = in_control_flow(build, False, tmp_path)
    assert f"{INSIDE[build][2]} cannot be looked into" in start.says
    assert "enable_control_flow_v2()" in start.remedy
    assert start.rule is None


def gradient(model: Any, value: Any) -> Any:
    with tf1.Graph().as_default() as graph:
        graphpatch.import_model(model)
        x, loss = (graph.get_tensor_by_name(name) for name in ("x:0", "loss:0"))
        with tf1.Session() as session:
            return session.run(tf1.gradients(loss, x)[0], {x: value})


# What the issue differentiates, where, the ops at which NaN starts in turn, and the true gradient.
THREADS: dict[int, tuple[Callable[[Any], Any], list[float], str, list[float]]] = {
    2540: (lambda x: tf.where(x > 0, 0.0, tf.exp(x)), [1e3, -1], "Exp", [0, np.exp(-1)]),
    20091: (lambda x: tf.where(x > 0, 2 / x, 0.0), [0, 2], "RealDiv", [0, -0.5]),
    20355: (
        lambda x: tf.where(x < 0, 1 / (1 - x), tf.math.log(x + 1)),
        *([1, -1, 0], "Log RealDiv", [0.5, 0.25, 1]),
    ),
    38349: (lambda x: tf.where(x < 15, x, tf.pow(10.0, tf.exp(x))), [10], "Pow", [1]),
}


@pytest.mark.parametrize("thread", THREADS)
def test_its_rules_take_nan_out(thread: int, tmp_path: Path) -> None:
    """`where` does not keep NaN of the branch that it does not take out of gradients."""
    function, value, types, expected = THREADS[thread]

    def build() -> None:
        tf.reduce_sum(function(tf1.placeholder(tf.float32, [None], "x")), name="loss")

    model: Any = saved(build, tmp_path)
    for op_type in types.split():
        assert np.isnan(gradient(model, value)).any()
        start = started(model, value)
        assert (start.phase, start.type) == ("backward", op_type)
        model = graphpatch.apply(start.rule, model).model
    np.testing.assert_allclose(gradient(model, value), expected, rtol=1e-6)
    assert started(model, value).phase == "finite"


def test_27684_a_safe_where_in_a_sum(tmp_path: Path) -> None:
    """`finite` takes the whole gradient of a factor out, a formula only what is NaN of its sum."""

    def build() -> None:
        data, x = tf.constant([0.5, -1, 4]), tf1.placeholder(tf.float32, [], "x")
        tf.reduce_sum(tf.where(data > 0, x * tf.math.log(data), 0.0), name="loss")

    path = saved(build, tmp_path)
    formula = {"formula": ["sum(where(dy == 0, 0, dy * x1))", None]}
    safe = {"match": {"op": "Mul"}, "patch": {"override_gradient": formula}}
    models = [path, *(graphpatch.apply(rule, path) for rule in (started(path, 3).rule, safe))]
    found = [gradient(model, 3) for model in models]
    np.testing.assert_allclose(found, [np.nan, 0, np.log(2)], rtol=1e-6)


def test_variables_have_the_values_of_the_checkpoint(tmp_path: Path) -> None:
    """Of the initialiser, the first row is 0; of the checkpoint, it is 9."""
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        gathered()
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        session.run(tf1.global_variables()[0].assign([[9.0], [1.0], [4.0]]))
        saver.save(session, str(tmp_path / "model"))
        assert graph is tf1.get_default_graph()
    assert started(tmp_path / "model.meta", STARTS[gathered][0]).phase == "finite"


def asked(folder: Path, build: Build, value: Any, to: str = "loss") -> tuple[Any, ...]:
    """The model, and what is asked of it: from where to where, and what is fed."""
    np.savez(folder / "feed.npz", x=np.float32(value))
    ends = ("--from", "x", "--to", to, "--run", "--feed", folder / "feed.npz")
    return saved(build, folder), *ends


def test_seeded_placeholders_are_named_and_the_rule_is_written(
    tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    def build() -> None:
        two_readers()
        loss = tf1.get_default_graph().get_tensor_by_name("loss:0")
        tf.multiply(loss, tf1.placeholder(tf.float32, [], "scale"), name="scaled")

    (path, *ends), fixed = asked(tmp_path, build, [1, 0], "scaled"), tmp_path / "fix.json"
    done = run_cli("doctor", path, *ends, "--fix", fixed)
    assert "  starts   Log log, input 0\n" in done.stdout
    assert "  scale:0 seeded, not real data: give --feed FILE.npz\n" in done.stdout
    assert done.stdout.endswith(f"{fixed}: 1 rule (1 against NaN)\n")
    patched = tmp_path / "patched.meta"
    assert run_cli("apply", fixed, path, "-o", patched).code == 0
    assert "starts" not in run_cli("doctor", patched, *ends).stdout
    assert run_cli("doctor", path, *ends[-2:]).code == 2
    done = run_cli("doctor", *asked(tmp_path, called, [0, 1]))
    assert "  starts   Sqrt Sqrt in function __inference_" in done.stdout


def test_view_says_nan_in_the_console_and_on_the_page(
    tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    page = tmp_path / "page.html"
    done = run_cli("view", *asked(tmp_path, two_readers, [1, 0]), "-o", page)
    says = "NaN or infinite at 2 ops: graphpatch doctor MODEL --to loss:0 --run --feed FILE"
    assert says in done.stdout
    assert says in page.read_text()
