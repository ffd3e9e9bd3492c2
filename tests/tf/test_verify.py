"""`verify` says "verified" of what it compared alone: what is sound passes, faults are named."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.cli.verify import _lines_of_verification
from graphpatch.errors import UnsafeError
from graphpatch.runtime.verify import process
from scripts import matrix_consumer
from tests import forked
from tests.tf.consumer import imported, save
from tests.tf.verify_graphs import GUIDED, edited, patched_beside

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Edit = Callable[[Any, Any], None]
CLIPPED = {
    "match": {"name": "hidden"},
    "patch": {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
}
ROUNDED = {"match": {"op": "Round"}, "patch": {"straight_through": True}}
RULES = [GUIDED, CLIPPED, ROUNDED]


def net() -> None:
    """x [n, 4] -> round -> two dense layers -> y [n, 3], with noise and a count beside it."""
    random = np.random.default_rng(0)
    x = tf1.placeholder(tf.float32, [None, 4], "x")
    rounded = tf.round(x * 8, "round")
    w = tf.constant(random.standard_normal((4, 6)), tf.float32, name="w")
    hidden = tf.identity(tf.nn.relu(tf.matmul(rounded, w), "relu"), "hidden")
    v = tf.constant(random.standard_normal((6, 3)), tf.float32, name="v")
    noise = tf.random.normal([3], name="noise")
    tf.tanh(tf.matmul(hidden, v) + noise, "y")
    tf.argmax(hidden, 1, name="count")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The net in a file."""
    return save(net, tmp_path / "model.pb")


def verified(path: Path, *rules: Any, **options: Any) -> graphpatch.Verification:
    """What comes of the model beside its patched copy."""
    return graphpatch.verify(path, patched_beside(path, *rules), **options)


def test_a_patched_model_is_verified(path: Path) -> None:
    verification = verified(path, *RULES)
    assert verification.failures == []
    [graph] = verification.document()["graphs"]
    assert {"y:0", "count:0", "hidden:0", "relu:0"} <= set(graph["forward"]["compared"])
    assert graph["forward"]["differing"] == {}
    pairs = {(pair["from"], pair["to"]): pair for pair in graph["gradients"]}
    assert (pairs["x:0", "y:0"]["before"], pairs["x:0", "y:0"]["after"]) == ("None", "a tensor")
    fired = {override["op"] for override in graph["overrides"]["fired"]}
    assert fired == {"relu", "hidden", "round"}
    formulas = {check["formula"]: check["max_error"] for check in graph["formulas"]}
    assert formulas == {"guided_relu": 0, "filter_gradient clip(min=-0.1, max=0.1)": 0}


def test_it_says_by_how_much_a_gradient_changed(path: Path) -> None:
    rule = {"match": {"name": "hidden"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    [graph] = verified(path, rule, sources=["relu"], targets=["y"]).document()["graphs"]
    [pair] = graph["gradients"]
    assert (pair["from"], pair["to"], pair["state"]) == ("relu:0", "y:0", "changed")
    assert pair["max_rel"] == pytest.approx(0.5)


def weight_byte(graph: Any, nodes: Any) -> None:
    content = bytearray(nodes["w"].attr["value"].tensor.tensor_content)
    content[0] ^= 1
    nodes["w"].attr["value"].tensor.tensor_content = bytes(content)


def dangling(graph: Any, nodes: Any) -> None:
    nodes["y"].input[0] = "ad"


def twice(graph: Any, nodes: Any) -> None:
    graph.node.add().CopyFrom(nodes["w"])


def last_bit(graph: Any, nodes: Any) -> None:
    """y is multiplied by the float32 that comes after 1."""
    one, y = graph.node.add(name="one", op="Const"), nodes["y"]
    one.attr["dtype"].type = 1
    one.attr["value"].tensor.dtype = 1
    one.attr["value"].tensor.float_val.append(float(np.nextafter(np.float32(1), np.float32(2))))
    moved = graph.node.add()
    moved.CopyFrom(y)
    moved.name = "y/moved"
    y.op = "Mul"
    y.input[:] = ["y/moved", "one"]


BROKEN: dict[str, tuple[Edit, list[str]]] = {
    "weight": (weight_byte, [r"Const 'w' differs: value: 1 of 24 elements, by up to"]),
    "dangling": (dangling, [r"Tanh 'y' differs: input 0: add -> ad", "TensorFlow does not import"]),
    "twice": (twice, [r"2 ops are named 'w'", "TensorFlow does not import it"]),
    "last bit": (last_bit,
        ["Mul 'y' differs: op type: Tanh", r"forward: y:0: \d+ of 6 elements differ, by at most"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(path: Path, name: str) -> None:
    edit, says = BROKEN[name]
    verification = graphpatch.verify(path, edited(patched_beside(path, *RULES), edit))
    assert verification.verdict == "differs"
    for text in says:
        assert any(re.search(text, failure) for failure in verification.failures)


@pytest.mark.slow
def test_a_key_that_nobody_registers_fails_and_one_that_is_passes(path: Path) -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"registered": "VerifyMine"}}}
    assert "no program registers the key 'VerifyMine'" in str(verified(path, rule).failures)
    mine = path.with_name("mine.py")
    text = "import tensorflow as tf\ntf.RegisterGradient('VerifyMine')(lambda op, dy: dy)\n"
    mine.write_text(text)
    verification = verified(path, rule, sources=["w"], imports=[str(mine)])
    assert verification.ok, verification.failures
    [graph] = verification.document()["graphs"]
    assert [override["op"] for override in graph["overrides"]["fired"]] == ["relu"]


def test_a_gradient_in_python_is_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_name("own.py").write_text("def own(op, dy):\n    return dy * 2\n")
    monkeypatch.syspath_prepend(path.parent)
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"python": "own:own"}}}
    target = patched_beside(path, *graphpatch.load_rules([rule], allow_python=True))
    why = "one of its rules has a gradient in Python, so they are not applied again"
    verification = graphpatch.verify(path, target, run=False)
    gap = f"structure: {why}, and nothing was run"
    assert (verification.verdict, verification.failures) == ("not compared", [])
    assert verification.not_compared == [gap]
    verification = graphpatch.verify(path, edited(target, last_bit), run=False)
    assert any("'y'" in failure for failure in verification.failures), verification.failures


def test_an_override_that_does_not_fire_is_told_with_the_reason(path: Path) -> None:
    verification = verified(path, *RULES[:2], targets=["y"], sources=["hidden"])
    assert (verification.verdict, verification.failures) == ("not compared", [])
    assert (verification.ok, len(verification.not_compared)) == (False, 2)
    [graph] = verification.document()["graphs"]
    idle = {override["op"]: override["why"] for override in graph["overrides"]["not_fired"]}
    assert idle.keys() == {"relu", "hidden"}
    assert idle["relu"].startswith("no gradient that was taken comes to it")


@pytest.mark.parametrize(("has_branch", "mods"), [(False, 3), (True, 1)])
def test_an_override_that_failing_gradients_do_not_reach(
    has_branch: bool, mods: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mod has no gradient: no new TensorFlow is asked where it raises as it did, or must raise."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, [4], "x")
        x = tf.cond(x[0] > 0, lambda: x, lambda: -x) if has_branch else x
        rests = [tf.raw_ops.Mod(x=tf.nn.relu(x, "relu"), y=x) for _ in range(mods)]
        for number in range(3):
            tf.exp(rests[number % mods], name=f"y{number}")

    command, started = process.command, list[None]()
    monkeypatch.setattr(process, "command", lambda: started.append(None) or command())
    gap = verified(save(build, tmp_path / "model.pb"), GUIDED).not_compared[0]
    assert " relu did not fire: no gradient that was taken comes to it; those of y0:0" in gap
    assert "tf.gradients raises LookupError" in gap
    assert len(started) == 2


def test_what_the_user_names_is_compared_or_a_gap(tmp_path: Path) -> None:
    def build() -> None:
        x, zero = (tf1.placeholder(tf.float32, [4], name) for name in ("x", "0"))
        tf.raw_ops.Mod(x=tf.exp(tf.nn.relu(x), "y"), y=zero, name="mod")
        tf.argmax(tf.debugging.check_numerics(x, "finite"), name="most")
        tf.strings.as_string(x, name="text")
        tf.identity(x[:0], "empty")
        tf.while_loop(lambda i, _: i < 2, lambda i, z: (i + 1, tf.tanh(z, "inner")), [0, x])

    path = save(build, tmp_path / "model.pb", control_flow_v2=False)
    verification = graphpatch.verify(path, path, sources=["x"], feed={"0": np.ones(4, np.float32)})
    assert verification.verdict == "verified", verification
    text = "\n".join(_lines_of_verification(verification, True))
    assert "not compared: mod:0 with respect to x:0: tf.gradients raises LookupError" in text
    assert "NaN values: 2 tensors not compared: InvalidArgumentError: finite" in text
    gaps = verified(path, GUIDED, targets="y,mod,text,empty,while/inner".split(",")).not_compared
    why = "tf.gradients raises LookupError: No gradient defined for operation'mod'"
    assert [gap.partition(" (op type")[0] for gap in gaps] == [
        f"gradient of mod:0 with respect to x:0, 0:0: {why}",
        "forward: empty:0: it has no elements on these values",
        "gradient not taken: of text:0: it is a text, which has no gradient",
        "gradient not taken: of while/inner:0: it is not among what is compared",
    ]
    path = save(lambda: tf.argmax(tf1.placeholder(tf.float32, [4], "x")), path)
    [gap] = graphpatch.verify(path, path, sources=["x"]).not_compared
    assert gap == "no gradient with respect to x was taken: no output of floats was compared"
    assert graphpatch.verify(path, path).ok


def broken() -> None:
    tf.exp(tf.debugging.check_numerics(tf.fill([4], np.inf), "broken"), "y")


def aborting() -> None:
    """`Abort` ends the process of whoever runs it, alone."""
    x = tf1.placeholder(tf.float32, [2], "x")
    with tf.control_dependencies([tf.raw_ops.Abort(error_msg="the end")]):
        tf.identity(tf.nn.relu(x), "y")


@pytest.mark.parametrize(("build", "says"), [
    (broken, "nothing could be compared: .*broken"),
    (aborting, "TensorFlow ended the process that ran it, by SIGABRT: .*the end"),
])  # fmt: skip
def test_what_cannot_be_run_is_no_success(tmp_path: Path, build: Any, says: str) -> None:
    path = save(build, tmp_path / "model.pb")
    verification = graphpatch.verify(path, path, allow_unsafe_ops=True)
    assert (verification.verdict, verification.failures) == ("not compared", [])
    assert re.search(says, verification.not_compared[0])


def test_ops_that_touch_files_are_not_run(tmp_path: Path) -> None:
    written = tmp_path / "written"

    def build() -> None:
        x = tf1.placeholder(tf.float32, [2], "x")
        write = tf.raw_ops.WriteFile(filename=str(written), contents="there", name="write")
        with tf.control_dependencies([write]):
            tf.exp(x, "y")

    path = save(build, tmp_path / "model.pb")
    with pytest.raises(UnsafeError, match="WriteFile 'write' touches files"):
        graphpatch.verify(path, path)
    assert not written.exists()
    assert graphpatch.verify(path, path, allow_unsafe_ops=True).ok
    assert written.exists()


@pytest.mark.slow
def test_an_output_that_no_patch_reaches_is_not_a_verification(tmp_path: Path) -> None:
    """No program fills its table: what can be run is a step alone, which no rule touches."""

    def build() -> None:
        table = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.float32)
        keys, find = tf.zeros([4], tf.int64), tf.raw_ops.LookupTableFindV2
        value = find(table_handle=table, keys=keys, default_value=0.0)
        tf.sigmoid(tf.nn.relu(tf.ensure_shape(value, [4]), "relu"), "y")
        tf.identity(tf1.get_variable("step", initializer=0, use_resource=False), "step/read_value")

    verification = verified(save(build, tmp_path / "model.pb"), GUIDED)
    assert (verification.verdict, verification.failures) == ("not compared", [])
    gaps = verification.not_compared
    assert "forward: no tensor was compared that is computed of 'relu'" in gaps
    assert any("override of" in gap and "did not fire" in gap for gap in gaps)


@pytest.mark.slow
def test_an_override_behind_another_is_not_verified(tmp_path: Path) -> None:
    """tf.nn.swish: the IdentityN's own gradient carries past the Mul; `apply` refuses it so."""
    key = "_gradient_op_type"
    build = lambda: tf.identity(tf.nn.swish(tf1.placeholder(tf.float32, [4], "x")), "y")  # noqa: E731
    model = save(build, tmp_path / "model.pb")
    [node] = [node for node in imported(model).as_graph_def().node if node.op == "IdentityN"]
    path = edited(model, lambda _, nodes: nodes["IdentityN"].attr.pop(key))
    gradient = {"override_gradient": {"formula": ["dy * 3", "dy * 3"]}}
    target = patched_beside(path, {"match": {"op": "Mul"}, "patch": gradient})
    for one in (path, target):
        edited(one, lambda _, nodes: nodes["IdentityN"].attr[key].CopyFrom(node.attr[key]))
    verification = graphpatch.verify(path, target)
    assert verification.verdict == "differs"
    [graph] = verification.document()["graphs"]
    assert [override["op"] for override in graph["overrides"]["not_fired"]] == ["mul_1"]
    assert "IdentityN 'IdentityN' has a gradient of its own" in str(verification.not_compared)


def test_branches_that_no_value_takes_are_listed(tmp_path: Path) -> None:
    """A Relu and a branch of which positive feeds show one side; `feed` keeps all inputs > 0."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, [3], "x")
        tf.nn.relu(tf.abs(x) + 1.0, "relu")
        tf.nn.elu(x, "elu")
        tf.cond(tf.reduce_sum(x) > -1e30, lambda: x, lambda: -x)

    path = save(build, tmp_path / "model.pb")
    [graph] = graphpatch.verify(path, path).document()["graphs"]
    assert {pair["state"] for pair in graph["gradients"]} == {"same"}
    branches = graph["branches"]
    assert (branches["watched"], branches["reached"]) == (4, 3)
    assert branches["not_reached"] == {"relu": "never reads what is below 0, or false"}


@pytest.mark.slow
def test_loops_and_branches_of_tf2_are_run(tmp_path: Path) -> None:
    """Each rewrites the same functions as it is differentiated."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, [3, 3], "x")
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: tf.tanh(x))
        z = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.nn.relu(a) * 0.5), [0, y])[1]
        tf.identity(tf.matmul(y, z), "one")
        tf.identity(tf.reduce_sum(z), "two")

    reverse = {"match": {"op": "MatMul"}, "patch": {"filter_gradient": "reverse"}}
    verification = verified(save(build, tmp_path / "model.pb"), GUIDED, reverse)
    assert verification.failures == []
    assert [gap for gap in verification.not_compared if "did not fire" not in gap] == []


@pytest.mark.slow
def test_what_the_caller_imported_does_not_count(path: Path) -> None:
    """Settings are those of the processes that run the models, whoever imported TensorFlow."""
    program = (
        "import os, sys, json; os.environ.pop('TF_ENABLE_ONEDNN_OPTS', None)\n"
        "import graphpatch\n"
        "verification = graphpatch.verify(sys.argv[1], sys.argv[1])\n"
        "assert 'tensorflow' not in sys.modules\n"
        "[graph] = verification.document()['graphs']\n"
        "print(json.dumps([verification.verdict, graph['settings']['onednn']]))\n"
    )
    command = [*forked.python(forked.COMMAND), "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["verified", False]


@pytest.mark.parametrize("rewrite", ["grappler_graph", "without_training_nodes"])
def test_a_file_that_a_tool_rewrote_is_never_verified(rewrite: str, tmp_path: Path) -> None:
    """Grappler inlines calls: guided_relu is silently TensorFlow's own gradient again."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, [2, 3], "x")
        tf.identity(tf.nn.relu(x, "relu") * 2.0, "y")

    path = save(build, tmp_path / "model.pb")
    whole, rewritten = patched_beside(path, GUIDED), tmp_path / "rewritten.pb"
    rewritten.write_bytes(getattr(matrix_consumer, rewrite)(str(whole)).SerializeToString())
    assert graphpatch.verify(path, rewritten, run=False).verdict == "differs"
    assert graphpatch.verify(whole, rewritten).verdict == "differs"
    failures = graphpatch.verify(whole, rewritten, run=False).failures
    gone = "the gradients of rule 'guided' are gone at 1 of 1 ops (relu): patch last, after opti"
    assert gone in str(failures)
