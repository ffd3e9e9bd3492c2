"""TF2 SavedModels, made of patched graphs or patched: their gradients hold without graphpatch."""

from __future__ import annotations

import itertools
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
from tests.tf.test_places import OWN_KEYS, PATCHES, Case, built, reference, rule_of, unit

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


# A patched TF2 SavedModel stays one: rules reach its functions, and all else is kept.

# fmt: off
WHOLE = ("main", "PartitionedCall", "nested two deep")
IN_LOOPS = ("While", "Case", "If in While", "PartitionedCall in While in PartitionedCall")
NAMES = (*WHOLE, *IN_LOOPS)
KINDS = ("override formula", "override built-in", "filter formula", "filter inputs",
         "straight through", "stop")
# fmt: on
CASES = quick(itertools.product(NAMES, KINDS), lambda _, kind: kind == KINDS[0])


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
    for kind in {KINDS[0], *selected(request, "kind")}:
        result = graphpatch.apply([rule_of(PATCHES[kind])], found / "before")
        result.model.save(found / kind)
    return found


@pytest.fixture(scope="module")
def ran_kept(folder: Path, request: pytest.FixtureRequest) -> Ran:
    return Ran(folder, ["before", *selected(request, "kind")])


def expected(name: str, case: Case) -> Any:
    return reference((PLACES | REACHED)[name], case)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_gradient_of_what_is_kept_on_a_tape(ran_kept: Ran, name: str, kind: str) -> None:
    dx, stock = ran_kept(kind, "dx", key(name)), expected(name, Case({}))
    np.testing.assert_allclose(dx, expected(name, PATCHES[kind]), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(ran_kept("before", "dx", key(name)), stock, rtol=2e-4, atol=1e-5)
    assert not np.allclose(dx, stock, rtol=1e-2)
    for output in ("y", "size"):
        after, before = ran_kept(kind, output, key(name)), ran_kept("before", output, key(name))
        assert consumer.same_bits(after, before)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_gradient_of_what_is_kept_in_a_session(
    ran_kept: Ran, folder: Path, name: str, kind: str
) -> None:
    report = graphpatch.apply([rule_of(PATCHES[kind])], folder / "before").report
    dx = ran_kept(kind, "session", key(name))
    if kind == "override built-in":
        assert any("a Session ignores it silently" in note for note in report["notes"])
        before = ran_kept("before", "session", key(name))
        assert name == "main" or dx is before is None or np.array_equal(dx, before)
    elif name in WHOLE:
        np.testing.assert_allclose(dx, expected(name, PATCHES[kind]), rtol=2e-4, atol=1e-5)
    else:
        # TensorFlow has no gradient through loops and branches in functions, patched or not.
        before = ran_kept("before", "session", key(name))
        assert dx is None or np.array_equal(dx, before) or key(name) in str(ran_kept.errors)
        assert any("and not in a Session: a Session gives no" in n for n in report["notes"])


@pytest.mark.parametrize("kind", quick(KINDS, lambda kind: kind == KINDS[0]))
def test_variables_assets_and_methods_are_kept(folder: Path, kind: str) -> None:
    for path in (folder / "before" / "variables").iterdir():
        assert (folder / kind / "variables" / path.name).read_bytes() == path.read_bytes()
    loaded = tf.saved_model.load(str(folder / kind))
    assert list(loaded.signatures) == [key(name) for name in NAMES]
    assert loaded.words().numpy() == b"zero\none\n"
    loaded.zeros.assign([1.0, 2.0, 3.0])
    _, dx = consumer.taped(lambda x: loaded.While(x)["y"], X)
    np.testing.assert_allclose(dx, expected("While", PATCHES[kind]), rtol=2e-4, atol=1e-5)
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
