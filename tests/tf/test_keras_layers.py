"""The layers of graphpatch.keras and graphpatch.tf_keras: gradients, saving, training."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import GraphpatchError, ModelError, OutputError, RulesError
from tests.forked import python
from tests.tf import consumer
from tests.tf.consumer import same_bits

tf = pytest.importorskip("tensorflow")
MODELS = Path(__file__).parents[2] / "scripts" / "models"
X = np.array([[-2.0, -1.0, 1.0]], np.float32)
DY = np.array([[5.0, 0.05, -3.0]], np.float32)
GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
WEIGHTS = np.arange(9, dtype=np.float32).reshape(3, 3) - 4
RELU = np.maximum(X, 0)


class Case(NamedTuple):
    """A layer between Input and output, what it gives for X (None: random) and its dx for DY."""

    build: Callable[[Any, Any], Callable[[Any], Any]]
    value: Any
    dx: Any


def frozen(relu: Callable[[Any], Any], *rules: Any) -> Any:
    """x [None, 3] -> relu -> MatMul y, as a GraphDef; it may have v1 loops."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        tf.matmul(relu(x), tf.constant(WEIGHTS), name="y")

    message = consumer.built(build, control_flow_v2=False)
    return graphpatch.apply(rules, message).graph_def() if rules else message


def plain(*rules: Any) -> Any:
    return frozen(lambda x: tf.nn.relu(x, name="relu"), *rules)


def looped(x: Any) -> Any:
    """Relu halved in each of two steps of a v1 loop."""
    return tf.while_loop(lambda n, _: n < 2, lambda n, x: (n + 1, tf.nn.relu(x) / 2), (0, x))[1]


def of_graph(layers: Any, message: Any, *ends: Any, **more: Any) -> Any:
    return layers.PatchedModel(message, *(ends or ("x", "y")), **more)


def noisy_pair(layers: Any, keras: Any) -> Callable[[Any], Any]:
    """Noise, and the way back that ignores it."""
    noise, relu = keras.layers.GaussianNoise(0.1), keras.layers.ReLU()
    return lambda x: layers.BackwardAs()([noise(x, training=True), relu(x)])


_THROUGH = DY @ WEIGHTS.T
_GUIDED = np.where((X > 0) & (_THROUGH > 0), _THROUGH, 0)
LOOPED = "a graph with a v1 loop"
# fmt: off
CASES = {
    "clip": Case(
        lambda layers, _: layers.GradientFilter({"clip": {"min": -0.1, "max": 0.1}}),
        X, np.clip(DY, -0.1, 0.1)),
    "scale": Case(lambda layers, _: layers.GradientFilter({"scale": 0.5}), X, DY / 2),
    "reverse": Case(lambda layers, _: layers.GradientFilter("reverse"), X, -DY),
    "formula": Case(
        lambda layers, _: layers.GradientFilter({"formula": "dy * square(x)"}), X, DY * X**2),
    "adjustable": Case(
        lambda layers, _: layers.GradientFilter({"reverse": 0.3}, adjustable=True), X, -0.3 * DY),
    "surrogate": Case(
        lambda layers, _: layers.Surrogate("sign(x)", "tanh(x)"),
        np.sign(X), DY * (1 - np.tanh(X) ** 2)),
    "surrogate of layers": Case(
        lambda layers, keras: layers.Surrogate(
            keras.layers.ReLU(max_value=6.0), keras.layers.ReLU()),
        RELU, np.where(X > 0, DY, 0)),
    "backward as": Case(noisy_pair, None, np.where(X > 0, DY, 0)),
    "a graph and rules": Case(
        lambda layers, _: of_graph(layers, plain(), rules=[GUIDED]), RELU @ WEIGHTS, _GUIDED),
    LOOPED: Case(
        lambda layers, _: of_graph(layers, frozen(looped), rules=[GUIDED]),
        RELU @ WEIGHTS / 4, _GUIDED / 4),
    "a graph with functions": Case(
        lambda layers, _: of_graph(layers, plain({**GUIDED, "emit": "function"})),
        RELU @ WEIGHTS, _GUIDED),
    "a graph with keys": Case(
        lambda layers, _: of_graph(
            layers, plain({**GUIDED, "emit": "attr"}).SerializeToString()),
        RELU @ WEIGHTS, _GUIDED),
}
# fmt: on


class Built(NamedTuple):
    """A Keras, the layers for it, and a model of each."""

    name: str
    keras: Any
    layers: Any
    models: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    name = request.param
    keras = pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    layers = importlib.import_module(f"graphpatch.{name}")
    models = {}
    for case, made in CASES.items():
        image = keras.Input((3,))
        models[case] = keras.Model(image, made.build(layers, keras)(image))
    return Built(name, keras, layers, models, tmp_path_factory.mktemp(name))


def gradient(f: Callable[[Any], Any], x: Any = X, dy: Any = DY) -> tuple[Any, Any]:
    return consumer.taped(f, x, tf.constant(dy))


def check(case: str, value: Any, dx: Any) -> None:
    expected = CASES[case]
    if expected.value is not None:
        np.testing.assert_allclose(value, expected.value, rtol=1e-6, err_msg=case)
    np.testing.assert_allclose(dx, expected.dx, rtol=1e-6, err_msg=case)


@pytest.mark.every(4)
@pytest.mark.parametrize("case", CASES)
def test_eagerly_and_in_a_function(built: Built, case: str) -> None:
    f = built.models[case]
    check(case, *gradient(f))
    check(case, *gradient(tf.function(f)))


@pytest.mark.parametrize("case", ["clip", "scale", "reverse", "formula", "adjustable"])
def test_a_filter_passes_every_bit(built: Built, case: str) -> None:
    odd = np.array([[np.nan, -0.0, 1e-45], [np.inf, -np.inf, 3.0]], np.float32)
    assert same_bits(built.models[case](tf.constant(odd)).numpy(), odd)


# What each computes: with a Keras its .keras files, with none the SavedModels, without graphpatch.
LOADED = """
import importlib, json, pathlib, sys
import numpy as np
import tensorflow as tf

folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
x, dy = (tf.constant(np.load(folder / f"{one}.npy")) for one in ("x", "dy"))
if name != "none":
    importlib.import_module(f"graphpatch.{name}")
    load = importlib.import_module(name).models.load_model
found, kept = {}, []
for path in sorted(folder.glob("*.saved" if name == "none" else "*.keras")):
    print(f"\\nloading {path.stem}", file=sys.stderr)
    model = tf.saved_model.load(str(path)) if name == "none" else load(path)
    kept.append(model)  # the variables of a function are deleted with their model
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = getattr(model, "serve", model)(x) if name == "none" else model(x)
    found[path.stem] = [y.numpy().tolist(), tape.gradient(y, x, dy).numpy().tolist()]
assert name != "none" or "graphpatch" not in sys.modules
print(json.dumps(found))
"""


@pytest.mark.slow
def test_round_trips_in_a_fresh_process(built: Built, run_cli: Callable[..., Any]) -> None:
    np.save(built.folder / "x.npy", X)
    np.save(built.folder / "dy.npy", DY)
    for case, one in built.models.items():
        one.save(built.folder / f"{case}.keras")
        folder = str(built.folder / f"{case}.saved")
        if built.name == "keras":
            one.export(folder, verbose=False)
        else:
            tf.saved_model.save(one, folder)
    for how in (built.name, "none"):
        words = [*python("tensorflow"), "-c", LOADED]
        done = run_cli(built.folder, how, command=words, timeout=300)
        assert done.code == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert set(found) == set(CASES)
        for log in done.stderr.split("\nloading ")[1:]:
            # of a gradient through a v1 loop the gradient
            assert log.startswith(LOOPED) or "unsaved custom gradients" not in log
        for case, both in found.items():
            check(case, *both)


def test_a_config_makes_the_same_layer(built: Built) -> None:
    for case, one in built.models.items():
        again = type(one).from_config(one.get_config())
        check(case, *gradient(again))


def test_classes_have_one_identity(built: Built) -> None:
    layer = importlib.import_module(f"graphpatch.{built.name}").GradientFilter
    registered = built.keras.saving.get_registered_object("graphpatch>GradientFilter")
    assert layer is built.layers.GradientFilter is registered
    assert layer.__module__ == f"graphpatch.{built.name}"
    assert "bit for bit" in layer.__doc__
    assert built.layers.PatchedGraph is built.layers.PatchedModel  # an early name


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_frozen_layer_forward_is_saved_and_loaded(built: Built, suffix: str) -> None:
    """Keras freezes a layer without telling its variables, which exist when a model is loaded."""
    keras, layers = built.keras, built.layers
    frozen = keras.layers.Dense(3, trainable=False, name="frozen")
    trained = keras.layers.Dense(3, activation="tanh", name="trained")
    given = keras.Input((3,))
    net = keras.Model(given, layers.Surrogate(frozen, trained)(given))
    assert len(net.trainable_weights) == 2
    net.save(built.folder / f"frozen{suffix}")
    again = keras.models.load_model(built.folder / f"frozen{suffix}")
    for one, other in zip(gradient(net), gradient(again), strict=True):
        np.testing.assert_array_equal(one, other)
    again.layers[1].forward.trainable = True
    with pytest.raises(ValueError, match="may have trainable=False"):
        again.layers[1](X)


def test_a_registered_function_is_read_from_an_h5_file(built: Built) -> None:
    keras = built.keras
    rounded = keras.utils.register_keras_serializable("tests")(_rounded)
    net = keras.Sequential([keras.Input((3,)), built.layers.Surrogate(rounded, "tanh(x)")])
    net.save(built.folder / "rounded.h5")
    again = keras.models.load_model(built.folder / "rounded.h5")
    assert again.layers[-1].forward is _rounded
    assert again.layers[-1].backward == "tanh(x)"


def _rounded(x: Any) -> Any:
    return tf.round(x)


def test_floats_are_cast_to_what_the_graph_takes_and_not_by_a_policy(built: Built) -> None:
    layer = graph_layer(built)
    value, dx = gradient(layer, X.astype(np.float16))
    assert (value.dtype, dx.dtype) == (tf.float32, tf.float16)
    np.testing.assert_array_equal(layer(X.astype(np.float64)), layer(X))
    filtered = built.layers.GradientFilter("reverse", dtype="mixed_float16")
    assert filtered(tf.constant(X)).dtype == tf.float32
    keras = built.keras
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), graph_layer(built)])
        assert net(X).shape == (1, 3)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_an_adjustable_filter(built: Built) -> None:
    layer = built.layers.GradientFilter({"reverse": 0.3}, adjustable=True)
    with pytest.raises(RulesError, match="has not been called yet"):
        layer.adjust(strength=1.0)
    f = tf.function(layer)
    for strength in (0.3, 0.7):
        _, dx = gradient(f)
        np.testing.assert_allclose(dx, -strength * DY, rtol=1e-6)
        layer.adjust(strength=0.7)
    assert layer.trainable_weights == []
    with pytest.raises(RulesError, match="strength >= 0"):
        layer.adjust(strength=-1.0)
    with pytest.raises(RulesError, match="is not adjustable"):
        built.layers.GradientFilter("reverse").adjust(strength=1.0)


def trained_net(built: Built) -> tuple[Any, Any, Any, Any]:
    """Images, rules, and a layer of the digits without and with them."""
    images = np.load(MODELS / "digits.npz")["images"][:2].astype(np.float32)
    rules = graphpatch.load_rules(MODELS / "guided.json")
    layers = (
        built.layers.PatchedModel(MODELS / "digits.pb", "image", "logits", rules=one)
        for one in (None, rules)
    )
    return images, rules, *layers


@pytest.mark.every(2)
@pytest.mark.parametrize("jit", [None, False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_trained_net_has_the_gradients_of_a_session(built: Built, jit: bool | None) -> None:
    images, rules, _, layer = trained_net(built)
    patched = graphpatch.apply(rules, MODELS / "digits.pb").graph_def()
    feeds = {"image:0": images}
    [dx] = consumer.differentiate(patched, "logits:0", ["image:0"], feeds)
    logits = consumer.run(MODELS / "digits.pb", feeds, ["logits:0"])[0]
    f = layer if jit is None else tf.function(layer, jit_compile=jit)
    value, found = gradient(f, images, np.ones_like(logits))
    np.testing.assert_allclose(found, dx, atol=2e-6)
    assert np.abs(dx).max() > 0.1
    np.testing.assert_allclose(value, logits, rtol=1e-5)


def test_the_bits_of_a_trained_net(built: Built) -> None:
    """Op by op: TensorFlow's optimiser fuses other ops where gradients are asked for, too."""
    images, _, plain, patched = trained_net(built)
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        assert same_bits(patched(images).numpy(), plain(images).numpy())
        one, other = (
            gradient(f, images, np.ones([2, 10], np.float32))[0] for f in (plain, patched)
        )
        assert same_bits(one.numpy(), other.numpy())
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


@pytest.mark.parametrize("case", [case for case in CASES if case != "backward as"])
def test_in_a_v1_graph(built: Built, case: str) -> None:
    """Without Keras's own noise, which Keras 3 does not build in a graph."""
    tf1 = tf.compat.v1
    layer = CASES[case].build(built.layers, built.keras)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 3])
        y = layer(x)
        [dx] = tf.gradients(y, x, tf.constant(DY))
        with tf1.Session(graph=graph) as session:
            session.run(tf1.global_variables_initializer())
            check(case, *session.run([y, dx], {x: X}))


@pytest.mark.parametrize("emit", ["function", "attr"])
def test_the_second_derivative_of_a_patched_graph(built: Built, emit: str) -> None:
    """dx is dy * x * x * sin(x): of x, and of y, whose gradient is the new one."""

    def build() -> None:
        tf.sin(tf.compat.v1.placeholder(tf.float32, [None], name="x"), name="y")

    formula = {"override_gradient": {"formula": "dy * x * x * y"}}
    rules = [{"match": {"op": "Sin"}, "patch": formula, "emit": emit}]
    layer = built.layers.PatchedModel(consumer.built(build), "x", "y", rules=rules)
    value = np.array([0.5, 2.0], np.float32)
    x = tf.constant(value)
    with tf.GradientTape() as outer:
        outer.watch(x)
        _, dx = gradient(layer, x, tf.ones_like(x))
    np.testing.assert_allclose(dx, value**2 * np.sin(value), rtol=1e-6)
    expected = 2 * value * np.sin(value) + value**4 * np.sin(value)
    np.testing.assert_allclose(outer.gradient(dx, x), expected, rtol=1e-5)


@pytest.mark.parametrize("emit", ["function", "attr"])
def test_a_patched_op_with_integers_beside_what_is_differentiated(built: Built, emit: str) -> None:
    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        tf.square(tf.math.top_k(x, tf.constant(2), name="op").values, name="y")

    formula = {"override_gradient": {"formula": ["sum(dy0) * ones_like(x0)", None]}}
    rules = [{"match": {"op": "TopKV2"}, "patch": formula, "emit": emit}]
    ends = ["y", "op:0", "op:1"]
    layer = built.layers.PatchedModel(consumer.built(build), "x", ends, rules=rules)
    x = tf.constant([3.0, 1.0, 2.0])
    _, values, indices = layer(x)
    assert (values.numpy().tolist(), indices.numpy().tolist()) == ([3.0, 2.0], [0, 2])
    _, dx = consumer.taped(lambda x: tf.add_n(list(map(tf.reduce_sum, layer(x)[:2]))), x)
    assert dx.numpy().tolist() == [2 * 3.0 + 2 * 2.0 + 2] * 3


def test_patched_ops_in_bodies_of_functions(built: Built) -> None:
    """In a branch and in a loop that runs twice; beside the same functions unpatched."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        b = tf.cond(tf.reduce_sum(x) > -9, lambda: tf.nn.relu(x), lambda: x)
        _, c = tf.while_loop(lambda k, v: k < 2, lambda k, v: (k + 1, tf.nn.relu(v)), [0, b])
        tf.identity(c, name="y")

    rules = [{"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": "3 * dy"}}}]
    layer = built.layers.PatchedModel(consumer.built(build), "x", "y", rules=rules)
    for f in (layer, tf.function(layer)):
        _, dx = gradient(f, X[0], np.ones_like(X[0]))
        assert dx.numpy().tolist() == [3.0**3] * 3


def test_files_of_keras_are_refused_by_their_content(built: Built, tmp_path: Path) -> None:
    for name in ("net.keras", "net.h5"):
        built.models["clip"].save(tmp_path / name)
        with pytest.raises(ModelError, match=rf"load_model\('{name}'\)\.export\('net'\)"):
            graphpatch.load(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("legacy", ["1", "0"])
def test_the_legacy_keras_of_tensorflow(run_cli: Callable[..., Any], legacy: str) -> None:
    pytest.importorskip("tf_keras")
    program = (
        "import graphpatch.keras as a, graphpatch.tf_keras as b; print(a.Surrogate is b.Surrogate)"
    )
    done = run_cli(command=[sys.executable, "-c", program], env={"TF_USE_LEGACY_KERAS": legacy})
    assert done.stdout.strip() == str(legacy == "1"), done.stderr


def test_several_outputs_and_an_input_inside(built: Built) -> None:
    relu, y = graph_layer(built, ["x"], ["relu", "y"])(tf.constant(X))
    assert same_bits(relu.numpy(), np.maximum(X, 0))
    assert y.shape == (1, 3)
    cut = graph_layer(built, "relu", "y")
    np.testing.assert_allclose(cut({"relu": tf.constant(X)}), X @ WEIGHTS)


NOTHING = [{"match": {"op": "Elu"}, "patch": {"stop_gradient": True}}]
# fmt: off
REFUSED: dict[str, tuple[Callable[[Built], Any], type[Exception], str]] = {
    "a wrong name": (lambda b: b.layers.GradientFilter("revers"), RulesError, "reverse"),
    "default": (lambda b: b.layers.GradientFilter("default"), RulesError, "that exists already"),
    "nothing to adjust": (
        lambda b: b.layers.GradientFilter("sign", adjustable=True),
        RulesError, "no parameters to adjust"),
    "neither formula nor layer": (lambda b: b.layers.Surrogate(3, "x"), TypeError, "found 3"),
    "a formula": (lambda b: b.layers.Surrogate("tahn(x)", "x"), GraphpatchError, "tanh"),
    "one tensor": (lambda b: b.layers.BackwardAs()(tf.ones([2])), ValueError, "two tensors"),
    "no such tensor": (lambda b: graph_layer(b, "z", "y"), OutputError, "no tensor z"),
    "a rule without a match": (
        lambda b: graph_layer(b, rules=NOTHING), GraphpatchError, "matched nothing"),
    "a TF2 SavedModel": (
        lambda b: b.layers.PatchedModel(saved(b.folder), "x", "y"), ModelError, "saved_model.load"),
    "another dtype": (
        lambda b: graph_layer(b)(np.ones([1, 3], np.int64)),
        TypeError, "x is float32 in the graph, and found int64"),
    "another name": (
        lambda b: graph_layer(b)({"z": X}), ValueError, r"takes inputs \['x'\], and found \['z'\]"),
    "two inputs": (lambda b: graph_layer(b)([X, X]), ValueError, r"inputs \['x'\], and found 2"),
}
# fmt: on


def graph_layer(built: Built, *ends: Any, **more: Any) -> Any:
    return of_graph(built.layers, plain(), *ends, **more)


def saved(folder: Path) -> str:
    tf.saved_model.save(tf.Module(), str(folder / "module"))
    return str(folder / "module")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(built: Built, name: str) -> None:
    call, error, says = REFUSED[name]
    with pytest.raises(error, match=says):
        call(built)


def test_a_live_model_is_told_what_to_do() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
    with pytest.raises(TypeError, match=r"found Sequential; save it with its `export\(folder\)`"):
        graphpatch.load(model)


def test_keras_reads_a_patched_saved_model_as_a_layer(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    if not hasattr(keras.layers, "TFSMLayer"):
        pytest.skip("this Keras has no TFSMLayer: it is of Keras 3")

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
        def __call__(self, x: Any) -> dict[str, Any]:
            return {"y": tf.nn.relu(x)}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), signatures=net.__call__)
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": "dy * 5"}}}
    graphpatch.apply([rule], tmp_path / "net").model.save(tmp_path / "patched")
    layer = keras.layers.TFSMLayer(str(tmp_path / "patched"), call_endpoint="serving_default")
    x = np.float32([[1, -1, 2]])
    y, dx = gradient(lambda x: layer(x)["y"], x, np.ones_like(x))
    assert (np.asarray(y).tolist(), np.asarray(dx).tolist()) == ([[1, 0, 2]], [[5, 5, 5]])
