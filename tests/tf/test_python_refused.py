"""`{"python": ...}` from outside: who may run it, what it says where it cannot, what it leaves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.application import PATCH_LAST
from graphpatch.errors import GraphpatchError
from graphpatch.rules import load_rules, rules_from
from tests import graphs
from tests.forked import COMMAND, python
from tests.graphs import graphdef, node
from tests.tf import run_graph

tf = pytest.importorskip("tensorflow")

MODULE = "tests.tf.python_gradients"
Write = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A graph `z = relu(x) * relu(x)`, with a product too."""
    path = tmp_path / "model.pb"
    graph = graphdef(
        node("x", "Placeholder"), node("r", "Relu", "x"), node("m", "Mul", "r", "x"),
        node("z", "Square", "m"),
    )  # fmt: skip
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


def python_rule(path: str, op: str = "Relu", kind: str = "override_gradient", **keys: Any) -> Any:
    return {"match": {"op": op}, "patch": {kind: {"python": path}}, "name": "mine", **keys}


def applied(rule: Any, model: Path) -> graphpatch.Result:
    return graphpatch.apply(rules_from([rule], allow_python=True), model)


def gradient(result: graphpatch.Result, x: Any) -> Any:
    raw = graphs.joined(result.model.pieces())
    return run_graph.run(raw, {"x": x}, ["z:0"], "z:0", ["x:0"])["gradient:x:0"]


REFUSED = {
    "no such module": (
        python_rule("tests.tf.no_such:f"),
        "cannot import tests.tf.no_such: ModuleNotFoundError: No module named 'tests.tf.no_such'",
    ),
    "no such function": (python_rule(f"{MODULE}:clippd"), "has no 'clippd'; nearest: clipped"),
    "no function": (python_rule(f"{MODULE}:NOT_A_FUNCTION"), "is a int, not a function"),
    "no path": (python_rule("clipped"), '"python" is a function as "package.module:function"'),
    "too many gradients": (
        python_rule(f"{MODULE}:too_many"),
        "gives 2 gradients, and Relu 'r' has 1 inputs: it gives one for each, or None",
    ),
    "too few gradients": (
        python_rule(f"{MODULE}:clipped", "Mul"), "gives 1 gradients, and Mul 'm' has 2 inputs"
    ),
    "no gradient at all": (python_rule(f"{MODULE}:nothing"), "stop_gradient says that"),
    "a function that raises": (
        python_rule(f"{MODULE}:failing"),
        "failing failed on Relu 'r': IndexError: tuple index out of range",
    ),
    "another dtype": (
        python_rule(f"{MODULE}:of_another_dtype"),
        "gives a gradient of float64 for input 0 of Relu 'r', which is float32",
    ),
    "a variable": (
        python_rule(f"{MODULE}:captures_a_variable"), "uses the variable 'weights:0' from"
    ),
    "a tensor": (
        python_rule(f"{MODULE}:captures_a_tensor"), "uses a tensor (float32, shape (1000,)) from"
    ),
    "what a stand-in has not": (
        python_rule(f"{MODULE}:asks_for_the_graph"),
        "AttributeError: op.graph is not there while a gradient is traced",
    ),
    "as an attr": (
        python_rule(f"{MODULE}:clipped", emit="attr"), "is stored as a function, not as an attr"
    ),
    "a filter as an attr": (
        python_rule(f"{MODULE}:clipped", kind="filter_gradient", emit="attr"),
        "is stored as a function, not as an attr",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_says_what_is_wrong(case: str, model: Path) -> None:
    spec, said = REFUSED[case]
    with pytest.raises(GraphpatchError) as error:
        applied(spec, model)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["override_gradient", "filter_gradient"])
def test_nobody_runs_code_unasked(kind: str, model: Path, rules_file: Write) -> None:
    spec = python_rule("os:getcwd", kind=kind)
    said = r"rules\[0\] \('mine'\): patch.*runs the code of that module.*--allow-python"
    with pytest.raises(GraphpatchError, match=said):
        load_rules(rules_file(spec))
    with pytest.raises(GraphpatchError, match=said):
        graphpatch.apply([spec], model)


@pytest.mark.parametrize(("function", "dx"), [("clipped", 0.5), ("guided", 54.0 * 3.0)])
def test_a_filter_reads_the_tensor_as_input_and_output(
    model: Path, function: str, dx: float
) -> None:
    rule = python_rule(f"{MODULE}:{function}", kind="filter_gradient")
    # m = 9 gives 18 at m; 18 * x = 54 reaches the filter; 18 * r = 54 by the other way.
    np.testing.assert_allclose(gradient(applied(rule, model), [3.0, -1.0]), [dx + 54.0, 0.0])


def test_ops_that_tensorflow_1_does_not_know_are_noted(model: Path) -> None:
    note, last = applied(python_rule(f"{MODULE}:newer"), model).report["notes"]
    assert last == PATCH_LAST
    assert "TensorFlow 1.15 does not know: Ndtri" in note
    assert applied(python_rule(f"{MODULE}:guided"), model).report["notes"] == [PATCH_LAST]


@pytest.mark.every(2)
@pytest.mark.parametrize("function", ["guided", "with_control_flow"])
def test_the_file_is_the_same_on_every_run(function: str, model: Path, rules_file: Write) -> None:
    spec = python_rule(f"{MODULE}:{function}")
    first, second = (graphs.joined(applied(spec, model).model.pieces()) for _ in range(2))
    assert first == second
    code = (
        "import sys, graphpatch; from graphpatch.rules import load_rules;"
        "rules = load_rules(sys.argv[1], allow_python=True);"
        "graphpatch.apply(rules, sys.argv[2]).model.save(sys.argv[3])"
    )
    out = model.with_name("out.pb")
    command = [*python("tensorflow"), "-c", code]
    subprocess.run([*command, rules_file(spec), model, out], check=True)
    assert out.read_bytes() == first


@pytest.mark.parametrize("function", ["guided", "with_control_flow"])
def test_registered_it_has_a_second_derivative(function: str, model: Path) -> None:
    out = model.with_name("registered.pb")
    applied(python_rule(f"{MODULE}:{function}"), model).model.save(out)
    graphpatch.register_gradients(out)
    with tf.Graph().as_default() as graph:
        definition = tf.compat.v1.GraphDef.FromString(out.read_bytes())
        tf.import_graph_def(definition, name="")
        x = graph.get_tensor_by_name("x:0")
        (first,) = tf.gradients(graph.get_tensor_by_name("r:0"), x)
        (second,) = tf.gradients(first, x)
        with tf.compat.v1.Session() as session:
            found = session.run([first, second], {x: [3.0]})
    # guided: dx = x where dy = 1; the other: dx = 8 * x * x.
    expected = {"guided": [[3.0], [1.0]], "with_control_flow": [[72.0], [48.0]]}
    np.testing.assert_allclose(found, expected[function])


def test_the_command_line(run_cli: Any, model: Path, rules_file: Write, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(
        "import tensorflow as tf\n\ndef half(op, dy):\n    return 0.5 * dy\n"
    )
    rules, out = rules_file(python_rule("here:half")), tmp_path / "model.patched.pb"
    refused = run_cli("apply", rules, model, cwd=tmp_path)
    assert (refused.code, out.exists()) == (1, False)
    assert refused.stderr.count("\n") == 1
    assert "--allow-python" in refused.stderr
    done = run_cli("apply", rules, model, "--allow-python", cwd=tmp_path)
    assert done.code == 0, done.stderr
    found = run_graph.run(out.read_bytes(), {"x": [3.0]}, ["z:0"], "r:0", ["x:0"])
    np.testing.assert_allclose(found["gradient:x:0"], [0.5])


def test_without_tensorflow_it_says_so(run_cli: Any, model: Path, rules_file: Write) -> None:
    rules = rules_file(python_rule("os:getcwd"))
    block = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from graphpatch.cli import main; sys.argv[0] = 'graphpatch'; main()"
    )
    done = run_cli("apply", rules, model, "--allow-python", command=[*python(COMMAND), "-c", block])
    assert done.code == 1
    assert "is traced by TensorFlow, which is not installed here" in done.stderr
    assert not model.with_name("model.patched.pb").exists()
