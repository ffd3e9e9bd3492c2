"""`verify`: what is sound passes, and each thing that is broken is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import ModelError, UnsafeError
from tests.tf import verify_graphs as nets
from tests.tf.consumer import save

tf = pytest.importorskip("tensorflow")

Edit = Callable[[Any, Any], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nets.original(tmp_path)
    return tmp_path


def verify(folder: Path, **options: Any) -> graphpatch.Verification:
    return graphpatch.verify(folder / "model.pb", folder / "patched.pb", **options)


def test_a_patched_model_is_verified(folder: Path) -> None:
    nets.patched_net(folder)
    found = verify(folder)
    assert found.failures == []
    [graph] = found.document()["graphs"]
    assert {"y:0", "count:0", "hidden:0", "relu:0"} <= set(graph["forward"]["compared"])
    assert graph["forward"]["differing"] == {}
    pairs = {(one["from"], one["to"]): one for one in graph["gradients"]}
    assert (pairs["x:0", "y:0"]["before"], pairs["x:0", "y:0"]["after"]) == ("None", "a tensor")
    fired = {one["op"] for one in graph["overrides"]["fired"]}
    assert fired == {"relu", "hidden", "round"}
    formulas = {one["formula"]: one["max_error"] for one in graph["formulas"]}
    assert formulas == {"guided_relu": 0, "filter_gradient clip(min=-0.1, max=0.1)": 0}


def test_it_says_by_how_much_a_gradient_changed(folder: Path) -> None:
    rule = {"match": {"name": "hidden"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    nets.patched_net(folder, [rule])
    [graph] = verify(folder, sources=["relu"], targets=["y"]).document()["graphs"]
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


def lost_gradient(graph: Any, nodes: Any) -> None:
    functions = graph.library.function
    name = f"{nodes['relu'].op}_gradient"
    functions.remove(next(one for one in functions if one.signature.name == name))


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
    "gradient": (lost_gradient, [r"function 'graphpatch_\w+_gradient' is gone"]),
    "last bit": (
        last_bit,
        ["Mul 'y' differs: op type: Tanh", r"forward: y:0: \d+ of 6 elements differ, by at most"],
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(folder: Path, name: str) -> None:
    edit, says = BROKEN[name]
    nets.edited(nets.patched_net(folder), edit)
    found = verify(folder)
    assert found.verdict == "differs"
    for text in says:
        assert any(re.search(text, one) for one in found.failures), found.failures


@pytest.mark.slow
def test_a_key_that_nobody_registers_fails_and_one_that_is_passes(folder: Path) -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"registered": "VerifyMine"}}}
    nets.patched_net(folder, [rule])
    assert "no program registers the key 'VerifyMine'" in str(verify(folder).failures)
    mine = folder / "mine.py"
    mine.write_text(
        "import tensorflow as tf\ntf.RegisterGradient('VerifyMine')(lambda op, dy: dy)\n"
    )
    found = verify(folder, sources=["w"], imports=[str(mine)])
    assert found.ok, found.failures
    [graph] = found.document()["graphs"]
    assert [one["op"] for one in graph["overrides"]["fired"]] == ["relu"]


def test_a_gradient_in_python_is_compared_by_running(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.py").write_text("def own(op, dy):\n    return dy * 2\n")
    monkeypatch.syspath_prepend(folder)
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"python": "own:own"}}}
    rules = graphpatch.load_rules([rule], allow_python=True)
    graphpatch.apply(rules, folder / "model.pb").model.save(folder / "patched.pb")
    why = "one of its rules has a gradient in Python, so they are not applied again"
    found = verify(folder, run=False)
    gap = f"structure: {why}, and nothing was run"
    assert (found.verdict, found.failures, found.not_compared) == ("not compared", [], [gap])
    nets.edited(folder / "patched.pb", last_bit)
    found = verify(folder, run=False)
    assert any("'y'" in failure for failure in found.failures), found.failures


def test_an_override_that_does_not_fire_is_told_with_the_reason(folder: Path) -> None:
    nets.patched_net(folder, nets.RULES[:2])
    found = verify(folder, targets=["y"], sources=["hidden"])
    assert (found.ok, found.verdict, found.failures) == (False, "not compared", [])
    assert len(found.not_compared) == 2
    [graph] = found.document()["graphs"]
    idle = {one["op"]: one["why"] for one in graph["overrides"]["not_fired"]}
    assert idle.keys() == {"relu", "hidden"}
    assert idle["relu"].startswith("no gradient that was taken comes to it")


def test_an_override_that_a_failing_gradient_does_not_reach(tmp_path: Path) -> None:
    """Mod has no gradient: tf.gradients raises before it comes to the Relu, in both models."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [4], "x")
        tf.exp(tf.raw_ops.Mod(x=tf.nn.relu(x, "relu"), y=tf.fill([4], 0.7)), name="y")

    save(build, tmp_path / "model.pb")
    nets.patched_net(tmp_path, nets.RULES[:1])
    [gap] = verify(tmp_path).not_compared
    assert " relu did not fire: no gradient that was taken comes to it; those of y:0 cannot" in gap
    assert "tf.gradients raises LookupError" in gap


@pytest.mark.slow
def test_feeds_are_taken_from_a_file(folder: Path) -> None:
    nets.patched_net(folder)
    np.savez(folder / "feed.npz", x=np.ones((5, 4), np.float32))
    [graph] = verify(folder, feed=folder / "feed.npz").document()["graphs"]
    assert graph["fed"] == {"x:0": "[5, 4]"}
    np.savez(folder / "wrong.npz", xs=np.ones(1))
    with pytest.raises(ModelError, match="no tensor of the main graph is named 'xs:0'"):
        verify(folder, feed=folder / "wrong.npz")


def test_what_cannot_be_run_is_no_success(tmp_path: Path) -> None:
    def build() -> None:
        queue = tf.queue.FIFOQueue(1, [tf.float32], [[]])
        tf.exp(tf.debugging.check_numerics(tf.constant(1.0) / tf.constant(0.0), "broken"), "y")
        queue.close()

    path = save(build, tmp_path / "model.pb")
    found = graphpatch.verify(path, path)
    assert (found.verdict, found.failures) == ("not compared", [])
    assert "nothing could be compared" in found.not_compared[0]
    assert "broken" in found.not_compared[0]


def test_ops_that_touch_files_are_not_run(tmp_path: Path) -> None:
    written = tmp_path / "written"

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        write = tf.raw_ops.WriteFile(filename=str(written), contents="there", name="write")
        with tf.control_dependencies([write]):
            tf.exp(x, "y")

    path = save(build, tmp_path / "model.pb")
    with pytest.raises(UnsafeError, match="WriteFile 'write' touches files"):
        graphpatch.verify(path, path)
    assert not written.exists()
    assert graphpatch.verify(path, path, allow_unsafe_ops=True).ok
    assert written.exists()
