"""A patched graph as a TF2 SavedModel: loaded without graphpatch, its gradients hold on a tape."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import OutputError, PatchError
from graphpatch.formats import Export
from tests.draws import quick, selected
from tests.forked import python
from tests.pinned import PINNED
from tests.tf import consumer, run_saved_models
from tests.tf.batch import X
from tests.tf.places import PLACES, UNREACHED
from tests.tf.test_places import OWN_KEYS, PATCHES, Case, built, reference, rule_of

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

XY = Export(("x",), ("y",))
# A tape looks into the bodies of functions op by op, so it comes where a Session does not.
REACHED = {
    name: place._replace(times=1 + ("While" in name))
    for name, place in UNREACHED.items()
    if not name.startswith("before")  # `reference` knows nothing of what comes after
}
ALL = PLACES | REACHED
SHORT = ("override formula", "filter formula", "straight through", "stop")
STATEFUL = {name for name in PLACES if "tateful" in name}
LEGACY = {name for name in ALL if "legacy" in name}
V1_LOOPS = {name for name in ALL if "v1 while" in name} - LEGACY
EVERYWHERE = ALL.keys() - STATEFUL - LEGACY - V1_LOOPS
LONG = {"main", "While", "If in PartitionedCall", "nested two deep"}
WIDE = sorted(set(PATCHES) - set(OWN_KEYS))
QUICK = ("If in While", "override formula")
PAIRS = quick(
    ((name, patch) for name in sorted(EVERYWHERE) for patch in (WIDE if name in LONG else SHORT)),
    lambda place, patch: (place == "main" and patch in SHORT) or (place, patch) == QUICK,
)


class Ran:
    """What a fresh process made of SavedModels in a folder."""

    def __init__(self, folder: Path, names: list[str], twice: Container[str] = ()) -> None:
        (folder / "jobs.json").write_text(json.dumps({name: (X, name in twice) for name in names}))
        command = [*python("tensorflow"), str(Path(run_saved_models.__file__)), str(folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=PINNED, check=False, timeout=400
        )
        assert done.returncode == 0, done.stderr[-2000:]
        self.values = dict(np.load(folder / "values.npz"))
        self.errors = json.loads((folder / "errors.json").read_text())

    def __call__(self, name: str, what: str, signature: str = "serving_default") -> Any:
        return self.values.get(f"{name}/{signature}/{what}")


def written(place: str, folder: Path) -> Path:
    """The unpatched model of a place, built anew where it is not there yet."""
    path = folder / f"{place}{'.meta' if ALL[place].v1 else '.pb'}"
    if not path.exists():
        path.write_bytes(built(ALL[place]).SerializeToString(deterministic=True))
    return path


def exported(model: Path, rules: list[dict[str, Any]], target: Path, export: Export = XY) -> Any:
    result = graphpatch.apply(rules, model, export=export)
    result.model.save(target)
    return result.report


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Ran:
    folder, names = tmp_path_factory.mktemp("out"), []
    for place, patch in selected(request, "place", "patch"):
        if place in EVERYWHERE:
            names.append(f"{place}, {patch}")
            exported(written(place, folder), [rule_of(PATCHES[patch])], folder / names[-1])
    return Ran(folder, names)


@pytest.mark.parametrize(("place", "patch"), PAIRS)
def test_the_gradient_on_a_tape(ran: Ran, place: str, patch: str, tmp_path: Path) -> None:
    """And the forward bits, and that a Session refuses to differentiate."""
    name, expected = f"{place}, {patch}", reference(ALL[place], PATCHES[patch])
    np.testing.assert_allclose(ran(name, "dx"), expected, rtol=2e-4, atol=1e-5)
    assert not np.allclose(ran(name, "dx"), reference(ALL[place], Case({})), rtol=1e-2)
    said = "gradients of this SavedModel are for a tape"
    assert said in ran.errors[f"{name}/serving_default"]
    if not ALL[place].v1:  # a GraphDef; of a MetaGraphDef the forward pass is in other tests
        [y] = consumer.run(written(place, tmp_path), {"x:0": X}, ["y:0"])
        assert consumer.same_bits(ran(name, "y"), y)


@pytest.mark.parametrize("patch", SHORT)
@pytest.mark.parametrize("place", sorted(name for name in LEGACY if not ALL[name].v1))
def test_where_a_tape_does_not_look_a_patch_is_refused(
    place: str, patch: str, tmp_path: Path
) -> None:
    model = written(place, tmp_path)
    with pytest.raises(PatchError, match=r"calls the function as an op of its own, and a tape"):
        graphpatch.apply([rule_of(PATCHES[patch])], model, export=XY)


@pytest.mark.parametrize("place", sorted(V1_LOOPS | STATEFUL))
def test_what_a_function_cannot_hold_is_refused(place: str, tmp_path: Path) -> None:
    said = "belongs to a v1 loop" if place in V1_LOOPS else "is a variable or table"
    with pytest.raises(OutputError, match=said):
        graphpatch.apply([rule_of(PATCHES["stop"])], written(place, tmp_path), export=XY)


def test_the_second_derivative(tmp_path: Path) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [3], name="x")
        tf.square(tf.nn.relu(x, name="relu"), name="y")

    model = consumer.save(build, tmp_path / "model.pb")
    patch = {"override_gradient": {"formula": "dy * dy * x"}}
    exported(model, [{"match": {"op": "Relu"}, "patch": patch}], tmp_path / "out")
    found = Ran(tmp_path, ["out"], twice=["out"])
    # With r the Relu's output, y = r * r: dx = (2 r) ** 2 * x. By x that gives (2 r) ** 2, and by r
    # 8 * r * x, which the Relu turns into (8 * r * x) ** 2 * x.
    x = np.array(X, np.float32)
    r = np.maximum(x, 0)
    np.testing.assert_allclose(found("out", "dx"), 4 * r * r * x, rtol=1e-6)
    second = 4 * r * r + (8 * r * x) ** 2 * x
    np.testing.assert_allclose(found("out", "second"), second, rtol=1e-6)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    def build() -> None:
        b = tf1.placeholder(tf.float32, [2], name="scope/b")
        a = tf1.placeholder(tf.float32, [2], name="lambda")
        keep = tf1.placeholder_with_default(tf.constant(2.0), [], name="keep")
        first, second = tf.split(a - b, 2, name="split")
        with tf1.colocate_with(b.op):
            tf.multiply(second * keep, tf.tanh(first, name="tanh"), name="z")
        tf.add(a, 10.0 * b, name="y")

    return consumer.save(build, tmp_path / "model.pb")


def test_each_name_is_the_tensor_that_it_names(several: Path, tmp_path: Path) -> None:
    export = Export(("scope/b", "lambda"), ("z", "y", "split:1"))
    rules = [{"match": {"name": "tanh"}, "patch": {"override_gradient": {"scale": 3.0}}}]
    report = exported(several, rules, tmp_path / "out", export)
    assert report["notes"] == [
        "scope/b is 'scope_b' in the signature",
        "lambda is 't_lambda' in the signature",
        "split:1 is 'split_1' in the signature",
    ]
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    a, b = tf.constant([1.0, 2.0]), tf.constant([0.5, 0.25])
    for call in (loaded, loaded.signatures["serving_default"]):
        answers = call(scope_b=b, t_lambda=a)
        assert answers["y"].numpy().tolist() == [6.0, 4.5]
        assert answers["split_1"].numpy().tolist() == [1.75]
        z, dx = consumer.taped(lambda a, call=call: call(scope_b=b, t_lambda=a)["z"], a)
        np.testing.assert_allclose(z, [3.5 * np.tanh(0.5)], rtol=1e-6)
        np.testing.assert_allclose(dx, [3 * 3.5, 2 * np.tanh(0.5)], rtol=1e-6)
    with pytest.raises(TypeError, match="takes 0 positional arguments, got 2"):
        loaded(b, a)


def test_a_cut_at_tensors_inside(several: Path, tmp_path: Path) -> None:
    export = Export(("split", "split:1", "keep"), ("z",))
    rules = [{"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"scale": 3.0}}}]
    exported(several, rules, tmp_path / "out", export)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    w, keep = tf.constant([1.75]), tf.constant(4.0)
    z, dx = consumer.taped(lambda x: loaded(split=x, split_1=w, keep=keep)["z"], [0.5])
    np.testing.assert_allclose(z, [7.0 * np.tanh(0.5)], rtol=1e-6)
    np.testing.assert_allclose(dx, [21 * (1 - np.tanh(0.5) ** 2)], rtol=1e-6)
