"""Under XLA a gradient that a function carries raises, never zeros; a construction is right."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.conftest import CHECKOUT
from tests.forked import python
from tests.tf import run_under_xla
from tests.tf.batch import graph

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")

SIGN = "0.5 * sign(dy)"


def override(formula: Any) -> dict[str, Any]:
    return {"override_gradient": {"formula": formula}}


TANH = {"op": "Tanh"}
# What is built, what is matched, the patch. Inputs and outputs differ in shape and number too.
CARRIED: dict[str, tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = {
    "override": (lambda x: tf.tanh(2.0 * x), TANH, override(SIGN)),
    "filter": (lambda x: tf.tanh(2.0 * x), TANH, {"filter_gradient": {"formula": SIGN}}),
    "broadcast": (
        lambda x: tf.add(2.0 * x, tf.ones([4, 1, 3])),
        {"name": "Add"},
        override([SIGN, None]),
    ),
    "product": (
        lambda x: tf.matmul(2.0 * x, tf.ones([3, 5])),
        {"op": "MatMul"},
        override(["sign(matmul(dy, x1, transpose_b=true))", None]),
    ),
    "two outputs": (
        lambda x: tf.nn.top_k(2.0 * x, 2)[0],
        {"op": "TopKV2"},
        override(["x * sum(sign(dy))", None]),
    ),
    "match": (
        lambda x: (2.0 * x) * tf.sigmoid(x),
        {"pattern": "a:_ -> m:0; b:_ -> s:Sigmoid -> m:Mul:1"},
        {**override([SIGN, SIGN]), "on": "match"},
    ),
}
LINEAR = {
    "linear": (lambda x: tf.tanh(2.0 * x), TANH, override("dy * x * y")),
    "linear, broadcast": (
        lambda x: tf.multiply(2.0 * x, tf.ones([4, 1, 3])),
        {"name": "Mul_1"},
        override(["dy * x1 * y", None]),
    ),
    "linear, product": (
        lambda x: tf.matmul(2.0 * x, tf.ones([3, 5])),
        {"op": "MatMul"},
        override(["matmul(dy, x1, transpose_b=true) * x0", None]),
    ),
    "linear filter": (lambda x: tf.tanh(2.0 * x), TANH, {"filter_gradient": {"scale": 0.25}}),
}
REGISTERED = ("override", "broadcast", "product", "filter", "match")


def written(folder: Path, name: str, case: Any, emit: str) -> str:
    build, match, patch = case
    (folder / "model.pb").write_bytes(graph(lambda x: build(x[tf.newaxis])).SerializeToString())
    rule = {"match": match, "patch": patch, "emit": emit}
    graphpatch.apply([rule], folder / "model.pb").model.save(folder / f"{name}.pb")
    return f"{name}.pb"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each model, in a process where nothing of ours was registered before."""
    folder = tmp_path_factory.mktemp("xla")
    jobs = {
        name: written(folder, name, case, "auto") for name, case in {**CARRIED, **LINEAR}.items()
    }
    for name, case in LINEAR.items():
        jobs[f"registered {name}"] = written(folder, f"registered {name}", case, "function")
    for name in REGISTERED:
        jobs[f"registered {name}"] = jobs[name]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [*python("tensorflow"), run_under_xla.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads((folder / "xla.json").read_text())
    return answers


@pytest.mark.parametrize("name", CARRIED)
def test_it_raises_where_nobody_registered_it(found: dict[str, Any], name: str) -> None:
    gradients, forward = found[name]
    assert all(isinstance(one, str) for one in gradients), gradients
    assert forward < 1e-6


@pytest.mark.parametrize("name", REGISTERED)
def test_it_is_the_same_everywhere_once_registered(found: dict[str, Any], name: str) -> None:
    gradients, _ = found[f"registered {name}"]
    assert gradients == pytest.approx([gradients[0]] * 6)
    assert gradients[0] != 0


@pytest.mark.parametrize("name", LINEAR)
def test_a_construction_needs_no_registration(found: dict[str, Any], name: str) -> None:
    gradients, forward = found[name]
    assert gradients == pytest.approx(found[f"registered {name}"][0], rel=1e-5)
    assert gradients[0] != 0
    assert forward < 1e-6
