"""A patched TF2 SavedModel stays one: rules reach its functions, and all else is kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.draws import quick, selected
from tests.tf import consumer
from tests.tf.batch import X
from tests.tf.places import PLACES, UNREACHED
from tests.tf.test_places import PATCHES, Case, reference, rule_of, unit
from tests.tf.test_saved_model_out import REACHED, Ran

tf = pytest.importorskip("tensorflow")

# fmt: off
WHOLE = ("main", "PartitionedCall", "nested two deep")
IN_LOOPS = ("While", "Case", "If in While", "PartitionedCall in While in PartitionedCall")
NAMES = (*WHOLE, *IN_LOOPS)
KINDS = ("override formula", "override built-in", "filter formula", "filter inputs",
         "straight through", "stop")
# fmt: on
CASES = quick(itertools.product(NAMES, KINDS), lambda _, patch: patch == KINDS[0])


def key(name: str) -> str:
    return name.replace(" ", "_")


def methods() -> dict[str, Any]:
    """For each place a function of x, with a y that a variable had a part in."""
    places = PLACES | UNREACHED

    def method(name: str) -> Any:
        def call(self: Any, x: Any) -> dict[str, Any]:
            y = places[name].build(unit, x)
            return {"y": tf.identity(y + self.zeros), "size": tf.constant(3)}

        return tf.function(call, input_signature=[tf.TensorSpec([3], name="x")], autograph=False)

    return {key(name): method(name) for name in NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with the SavedModel `before`, and one for each kind of patch that is asked for."""
    found = tmp_path_factory.mktemp("kept")
    (found / "words.txt").write_text("zero\none\n")
    read = tf.function(lambda self: tf.io.read_file(self.asset), input_signature=[])
    module = type("Module", (tf.Module,), {**methods(), "words": read})()
    module.zeros = tf.Variable([0.0, 0.0, 0.0])
    module.asset = tf.saved_model.Asset(str(found / "words.txt"))
    signatures = {key(name): getattr(module, key(name)) for name in NAMES}
    tf.saved_model.save(module, str(found / "before"), signatures=signatures)
    (found / "words.txt").unlink()
    for patch in {KINDS[0], *selected(request, "patch")}:
        result = graphpatch.apply([rule_of(PATCHES[patch])], found / "before")
        result.model.save(found / patch)
    return found


@pytest.fixture(scope="module")
def ran(folder: Path, request: pytest.FixtureRequest) -> Ran:
    return Ran(folder, ["before", *selected(request, "patch")])


def expected(name: str, case: Case) -> Any:
    return reference((PLACES | REACHED)[name], case)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "patch"), CASES)
def test_the_gradient_on_a_tape(ran: Ran, name: str, patch: str) -> None:
    dx, stock = ran(patch, "dx", key(name)), expected(name, Case({}))
    np.testing.assert_allclose(dx, expected(name, PATCHES[patch]), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(ran("before", "dx", key(name)), stock, rtol=2e-4, atol=1e-5)
    assert not np.allclose(dx, stock, rtol=1e-2)
    for output in ("y", "size"):
        after, before = ran(patch, output, key(name)), ran("before", output, key(name))
        assert consumer.same_bits(after, before)


@pytest.mark.parametrize(("name", "patch"), CASES)
def test_the_gradient_in_a_session(ran: Ran, folder: Path, name: str, patch: str) -> None:
    report = graphpatch.apply([rule_of(PATCHES[patch])], folder / "before").report
    dx = ran(patch, "session", key(name))
    if patch == "override built-in":
        assert any("a Session ignores it silently" in note for note in report["notes"])
        before = ran("before", "session", key(name))
        assert name == "main" or dx is before is None or np.array_equal(dx, before)
    elif name in WHOLE:
        np.testing.assert_allclose(dx, expected(name, PATCHES[patch]), rtol=2e-4, atol=1e-5)
    else:
        # TensorFlow has no gradient through loops and branches in functions, patched or not.
        before = ran("before", "session", key(name))
        assert dx is None or np.array_equal(dx, before) or key(name) in str(ran.errors)
        assert any("and not in a Session: a Session gives no" in n for n in report["notes"])


@pytest.mark.parametrize("patch", quick(KINDS, lambda patch: patch == KINDS[0]))
def test_variables_assets_and_methods_are_kept(folder: Path, patch: str) -> None:
    for path in (folder / "before" / "variables").iterdir():
        assert (folder / patch / "variables" / path.name).read_bytes() == path.read_bytes()
    loaded = tf.saved_model.load(str(folder / patch))
    assert list(loaded.signatures) == [key(name) for name in NAMES]
    assert loaded.words().numpy() == b"zero\none\n"
    loaded.zeros.assign([1.0, 2.0, 3.0])
    _, dx = consumer.taped(lambda x: loaded.While(x)["y"], X)
    np.testing.assert_allclose(dx, expected("While", PATCHES[patch]), rtol=2e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        y = loaded.While(tf.constant(X))["y"]
    assert tape.gradient(y, loaded.zeros).numpy().tolist() == [1.0, 1.0, 1.0]


def check(path: Path, name: str, wanted: Any) -> None:
    """Compare the gradient of a signature on a tape."""
    loaded = tf.saved_model.load(str(path))
    _, dx = consumer.taped(lambda x: loaded.signatures[key(name)](x=x)["y"], X)
    np.testing.assert_allclose(dx, wanted, rtol=2e-4, atol=1e-5)


def test_registering_what_the_file_restores_is_harmless(folder: Path) -> None:
    keys = graphpatch.register_gradients(folder / "override formula")
    assert [name.rpartition("_")[0] for name in keys] == ["graphpatch/formula"]
    assert graphpatch.register_gradients(folder / "override formula") == keys
    check(folder / "override formula", "main", expected("main", PATCHES["override formula"]))


def test_a_patched_saved_model_is_patched_again(folder: Path, tmp_path: Path) -> None:
    second = {"match": {"op": "Square"}, "patch": {"override_gradient": {"formula": "3 * dy"}}}
    graphpatch.apply([second], folder / "override formula").model.save(tmp_path / "again")
    a = 3 * np.array(X, np.float32)
    gradient = PATCHES["override formula"].gradient(a, np.tanh(a), np.full(3, 3.0, np.float32))
    check(tmp_path / "again", "nested two deep", 1 + 3 * gradient)


@pytest.mark.parametrize("emit", ["attr", "registered"])
def test_keys_work_on_a_tape_once_they_are_registered(
    folder: Path, tmp_path: Path, emit: str
) -> None:
    rule: dict[str, Any] = {"match": {"op": "Tanh"}, "emit": "attr"}
    rule["patch"] = {"override_gradient": {"reverse": {"strength": 0.5}}}
    if emit == "registered":
        tf.RegisterGradient("HalfReversed")(lambda op, dy: -0.5 * dy)
        rule["patch"], rule["emit"] = {"override_gradient": {"registered": "HalfReversed"}}, "auto"
    result = graphpatch.apply([rule], folder / "before")
    result.model.save(tmp_path / "out")
    ours = graphpatch.register_gradients(tmp_path / "out")
    assert set(result.report["consumer"]["tape"]) - {"HalfReversed"} == set(ours)
    for name in ("main", "nested two deep", "While"):
        check(tmp_path / "out", name, expected(name, Case({}, lambda x, y, dy: -0.5 * dy)))
