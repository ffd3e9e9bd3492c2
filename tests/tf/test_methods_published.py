"""Recipes give what DeepExplain's tests and iNNvestigate say, and what defines DeepLIFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import GraphpatchError
from tests.graphs import function, graphdef, node

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = [[-10.0, -5.0], [3.0, 1.0]]


def simpler_model() -> None:
    """DeepExplain's: relu(relu(x1 - 1) - relu(x2))."""
    x = tf1.placeholder(tf.float32, [None, 2], name="x")
    hidden = tf.nn.relu(tf.matmul(x, np.eye(2, dtype=np.float32)) + tf.constant([-1.0, 0.0]))
    tf.nn.relu(tf.matmul(hidden, [[1.0], [-1.0]]), name="y")


def concatenated() -> None:
    """DeepExplain's model of two inputs, here the halves of one: relu(concat(3 * x1, 2 * x2))."""
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    tf.nn.relu(tf.concat([3.0 * x[:, :2], 2.0 * x[:, 2:]], 1), name="y")


def small_net() -> None:
    """Two convolutions, pooling, a dense layer and a softmax."""
    draw = np.random.default_rng(0)
    x = tf1.placeholder(tf.float32, [None, 6, 6, 1], name="x")
    w = draw.normal(size=(3, 3, 1, 4)).astype(np.float32)
    h = tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), [0.1, 0.2, -0.1, 0.0]))
    h = tf.nn.max_pool2d(h, 2, 2, "VALID")
    h = tf.nn.elu(tf.nn.conv2d(h, draw.normal(size=(2, 2, 4, 3)).astype(np.float32), 1, "SAME"))
    h = tf.reshape(tf.nn.avg_pool2d(h, 3, 3, "VALID"), [-1, 3])
    tf.matmul(tf.sigmoid(h), draw.normal(size=(3, 2)).astype(np.float32), name="y")


def trained_swish() -> None:
    """y = 2 * swish(x), and its gradient, whose ops read the sigmoid."""
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    y = tf.multiply(2.0, x * tf.sigmoid(x, name="gate"), name="y")
    tf1.gradients(y, x)


PEER = json.loads((Path(__file__).parents[1] / "data" / "innvestigate.json").read_text())
X_PEER = np.array(PEER["x"], np.float32)


def peer_net() -> None:
    """The net of scripts/methods/innvestigate_values.py."""
    w, b, v, c, m, d, n, e = (np.array(one, np.float32) for one in PEER["weights"])
    x = tf1.placeholder(tf.float32, [None, 4, 4, 1], name="x")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME", name="first"), b, name="bias_1"))
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, v, 2, "VALID"), c))
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(tf.reshape(h, [-1, m.shape[0]]), m), d))
    tf.nn.bias_add(tf.matmul(h, n), e, name="y")


def saved(build: Callable[[], None], path: Path) -> Path:
    with tf.Graph().as_default() as graph:
        build()
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def gradient(model: Any, x: Any, target: int | None = None) -> tuple[Any, Any]:
    """The output, and its gradient by the input: of all outputs, or of one."""
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(model)
        y, fed = graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0")
        (dx,) = tf1.gradients(y if target is None else y[:, target], fed)
        with tf1.Session() as session:
            found = session.run([y, dx], {fed: x})
            return found[0], found[1]


def matched(result: Any) -> dict[str, list[str]]:
    """By the name of a rule that matches anything, the types of the ops that it matches."""
    rules = result.report["rules"]
    types = {rule["name"]: sorted(one["type"] for one in rule["matches"]) for rule in rules}
    return {name: found for name, found in types.items() if found}


@pytest.mark.parametrize(("epsilon", "decimals"), [("1e-4", 3), ("1e-9", 6)])
def test_epsilon_lrp_of_deep_explain(epsilon: str, decimals: int, tmp_path: Path) -> None:
    model = saved(simpler_model, tmp_path / "model.pb")
    patched = graphpatch.apply(f"@lrp_epsilon({epsilon})", model).model
    _, dx = gradient(patched, X)
    np.testing.assert_almost_equal(X * dx, [[0, 0], [3, -1]], decimals)


def test_deeplift_of_deep_explain(tmp_path: Path) -> None:
    model = saved(simpler_model, tmp_path / "model.pb")
    patched = graphpatch.apply("@deeplift", model).model
    references = np.zeros((2, 2))
    _, dx = gradient(patched, [*X, *references])
    np.testing.assert_almost_equal(dx[:2] * (X - references), [[0, 0], [2, -1]])
    _, dx = gradient(patched, [X[1], X[1]])  # the reference is the input itself
    np.testing.assert_almost_equal(dx[:1] * (np.subtract(X[1], X[1])), [[0, 0]])


@pytest.mark.parametrize("recipe", ["@lrp_epsilon(1e-9)", "@deeplift"])
def test_two_inputs_of_deep_explain(recipe: str, tmp_path: Path) -> None:
    model = saved(concatenated, tmp_path / "model.pb")
    x = np.array([[-10.0, -5.0, 3.0, 1.0]])
    fed = np.concatenate([x, 0 * x]) if recipe == "@deeplift" else x
    _, dx = gradient(graphpatch.apply(recipe, model).model, fed)
    np.testing.assert_almost_equal(x * dx[:1], [[0, 0, 6, 2]], 6)


def test_a_swish_of_a_training_graph_is_one_activation(tmp_path: Path) -> None:
    model = saved(trained_swish, tmp_path / "model.pb")
    x = np.array([[-1.5, 0.5, 2.0], [0.25, -1.0, 3.0]], np.float32)
    for recipe in ("@lrp_epsilon(0.01)", "@deeplift"):
        result = graphpatch.apply(recipe, model)
        assert matched(result) == {f"{recipe.split('(')[0]}: swish": ["Mul", "Sigmoid"]}
        assert any("Sigmoid 'gate'" in note for note in result.report["notes"])
        y, dx = gradient(result.model, x)
        if recipe == "@deeplift":
            np.testing.assert_allclose(((x[:1] - x[1:]) * dx[:1]), y[:1] - y[1:], rtol=1e-5)
        else:
            np.testing.assert_allclose(dx, y / (x + 0.01 * np.sign(x)), rtol=1e-5)


def test_measured_references_of_deep_explain(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    model = saved(simpler_model, tmp_path / "model.pb")
    np.savez(tmp_path / "feed.npz", x=np.zeros((1, 2), np.float32))
    rules, out = tmp_path / "rules.json", tmp_path / "patched.pb"
    done = run_cli("references", model, "--feed", tmp_path / "feed.npz", "-o", rules)
    assert (done.code, done.stdout) == (0, f"{model}: 2 activations -> {rules}\n"), done.stderr
    named = json.loads(rules.read_text())["rules"][0]["patch"]["override_gradient"]
    assert named == {"deeplift_rescale": {"reference": "rules/000.npy"}}
    assert np.load(tmp_path / "rules" / "000.npy").tolist() == [[-1.0, 0.0]]
    assert run_cli("apply", rules, model, "-o", out).code == 0
    _, dx = gradient(out, X)
    np.testing.assert_almost_equal(X * dx, [[0, 0], [2, -1]])


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    from graphpatch.runtime.references import references

    model = saved(simpler_model, tmp_path / "model.pb")
    with pytest.raises(GraphpatchError, match="the feed has no x:0"):
        references(model, {})
    with pytest.raises(GraphpatchError, match="not a batch of one"):
        references(model, {"x": np.zeros((2, 2), np.float32)})
    body = [node("r", "Relu", "a")]
    inner = [function("f", ["a"], body, {"b": "r:activations:0"})]
    nodes = [node("x", "Placeholder"), node("y", "f", "x")]
    with pytest.raises(GraphpatchError, match="such as r in function f: a call may come"):
        references(graphdef(*nodes, functions=inner), {"x": np.zeros((1, 2), np.float32)})
    both = graphdef(*nodes, node("z", "Relu", "y"), functions=inner)
    found = references(both, {"x": np.zeros((1, 2), np.float32)})
    assert list(found.skipped) == ["r in function f"]
    assert len(found.arrays) == 1


def test_what_keeps_its_own_gradient_is_told_beside_references() -> None:
    """A reference for the Sigmoid in a swish would give wrong contributions."""
    from graphpatch.runtime.references import references

    nodes = [node("x", "Placeholder"), node("s", "Sigmoid", "x"), node("y", "Mul", "x", "s")]
    nodes += [node("r", "Relu", "y"), node("soft", "Softmax", "r")]
    found = references(graphdef(*nodes), {"x": np.ones((1, 2), np.float32)})
    assert [rule["name"] for rule in found.rules["rules"]] == ["r"]
    assert found.skipped.keys() == {"y", "soft"}
    assert found.skipped["y"] == (
        "@swish keeps TensorFlow's own gradient; @deeplift has a rule for it, "
        "with references in the batch"
    )


def test_deeplift_explains_the_difference_of_a_net(tmp_path: Path) -> None:
    model = saved(small_net, tmp_path / "model.pb")
    x = np.random.default_rng(1).normal(size=(4, 6, 6, 1)).astype(np.float32)
    result = graphpatch.apply("@deeplift", model)
    assert matched(result) == {"@deeplift": ["Elu", "MaxPool", "Relu6", "Sigmoid"]}
    assert not any("left alone" in note for note in result.report["notes"])
    for target in range(2):
        y, dx = gradient(result.model, x, target)
        given = ((x[:2] - x[2:]) * dx[:2]).sum((1, 2, 3))
        np.testing.assert_allclose(given, (y[:2] - y[2:])[:, target], rtol=1e-4)


def test_the_composite_gives_all_relevance_to_the_input(tmp_path: Path) -> None:
    model = saved(small_net, tmp_path / "model.pb")
    x = np.abs(np.random.default_rng(1).normal(size=(3, 6, 6, 1))).astype(np.float32)
    result = graphpatch.apply("@lrp_composite(epsilon=1e-9)", model)
    assert matched(result) == {
        "@lrp_composite: biases": ["BiasAdd"],
        "@lrp_composite: activations": ["Elu", "Relu6", "Sigmoid"],
        "@lrp_composite: means": ["AvgPool"],
        "@lrp_composite: z-plus": ["Conv2D", "Conv2D"],
    }
    assert result.report["consumer"] == {"session": [], "tape": []}
    y, dx = gradient(result.model, x, 0)
    assert np.isfinite(dx).all()
    assert np.abs(dx).max() > 0
    before, _ = gradient(model, x, 0)
    assert before.tobytes() == y.tobytes()


@pytest.mark.every(2)
@pytest.mark.parametrize("emit", ["auto", "function"])
def test_reveal_cancel_of_a_convolution_in_a_net(emit: str, tmp_path: Path) -> None:
    model = saved(peer_net, tmp_path / "model.pb")
    patch = {"override_gradient": "reveal_cancel_conv_batch", "on": "match"}
    match = {"pattern": "first:Conv2D -> BiasAdd -> Relu"}
    first = {"match": {**match, "body": "main"}, "patch": patch, "emit": emit, "expect": 2}
    rest = override("deeplift_batch", op="Relu", taken=False)
    result = graphpatch.apply([first, rest], model)
    x = np.random.default_rng(5).normal(size=(4, 4, 4, 1))
    y, dx = gradient(result.model, x, 0)
    given = ((x[:2] - x[2:]) * dx[:2]).sum((1, 2, 3))
    np.testing.assert_allclose(given, (y[:2] - y[2:])[:, 0], rtol=1e-4)


def override(gradient: Any, **match: Any) -> dict[str, Any]:
    return {"match": match, "patch": {"override_gradient": gradient}}


def epsilon_rules(epsilon: float) -> list[dict[str, Any]]:
    """LRP's epsilon rule at all layers: an activation's is that of the layer before it."""
    last = {"lrp_epsilon_linear": {"epsilon": epsilon}}
    return [override({"lrp_epsilon": {"epsilon": epsilon}}, op="Relu"), override(last, name="y")]


def shared_rules(gradient: str) -> list[dict[str, Any]]:
    """A rule at all layers, biases without relevance."""
    passed = override("lrp_pass", op="BiasAdd")
    activations = override({"lrp_epsilon": {"epsilon": 1e-9}}, op="Relu")
    return [passed, activations, override(gradient, op=["Conv2D", "MatMul"])]


def first_rules(gradient: str) -> list[dict[str, Any]]:
    """A rule for the first layer, epsilon at the others."""
    reads_first = {"op": "Relu", "inputs": {"0": {"name": "bias_1"}}}
    others = {"all": [{"op": "Relu"}, {"not": reads_first}]}
    return [
        override("lrp_pass", name="bias_1"),
        override({"lrp_epsilon": {"epsilon": 1e-9}}, **reads_first),
        override({"lrp_epsilon": {"epsilon": 0.1}}, **others),
        override({"lrp_epsilon_linear": {"epsilon": 0.1}}, name="y"),
        override(gradient, name="first"),
    ]


# What a rule of iNNvestigate is here, and what the gradient is read with: the input, or what
# iNNvestigate starts from, where that is the output and not 1.
INNVESTIGATE: dict[str, tuple[Any, Any]] = {
    "gradient": ([], 1.0),
    "guided_backprop": ("@guided_backprop", PEER["output"][0]),
    "deconvnet": ("@deconvnet", PEER["output"][0]),
    "z": (epsilon_rules(1e-7), X_PEER),
    "epsilon": (epsilon_rules(0.1), X_PEER),
    "z_plus": (shared_rules("lrp_zplus"), X_PEER),
    "alpha_beta": (shared_rules("lrp_alpha_beta"), X_PEER),
    "w2_first": (first_rules("lrp_w2"), X_PEER),
    "flat_first": (first_rules("lrp_flat"), X_PEER),
}


@pytest.mark.slow
def test_the_values_of_innvestigate(tmp_path: Path) -> None:
    model = saved(peer_net, tmp_path / "model.pb")
    assert PEER["output"][0] > 0
    assert PEER["values"].keys() == INNVESTIGATE.keys()
    for name, (rules, read_with) in INNVESTIGATE.items():
        y, dx = gradient(graphpatch.apply(rules, model).model if rules else model, X_PEER, 0)
        np.testing.assert_allclose(y[0], PEER["output"], rtol=1e-5)
        found = (read_with * dx).ravel()
        limit = 2e-6 * np.abs(PEER["values"][name]).max()
        np.testing.assert_allclose(found, PEER["values"][name], rtol=1e-4, atol=limit, err_msg=name)


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_alpha_beta_through_a_mean(emit: str, tmp_path: Path) -> None:
    def mean() -> None:
        x = tf1.placeholder(tf.float32, [None, 2, 2, 1], name="x")
        tf.reshape(tf.nn.avg_pool2d(x, 2, 2, "VALID"), [-1], name="y")

    rule = {**override({"lrp_alpha_beta": {"alpha": 3, "beta": 2}}, op="AvgPool"), "emit": emit}
    result = graphpatch.apply([rule], saved(mean, tmp_path / "model.pb"))
    x = np.reshape([1.0, -2.0, 4.0, 5.0, 0.0, 1.0, 3.0, -8.0], (2, 2, 2, 1))
    _, dx = gradient(result.model, x)
    relevance = np.array([[0.6, -4.0, 2.4, 3.0], [0.0, -0.75, -2.25, 2.0]])
    np.testing.assert_allclose((x * dx).reshape(2, 4), relevance, rtol=1e-6)


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_two_surrogates_on_one_chain(emit: str, tmp_path: Path) -> None:
    def chain() -> None:
        x = tf1.placeholder(tf.float32, [3], name="x")
        tf.sign(tf.round(2 * x), name="y")

    outer = {"match": {"op": "Sign"}, "patch": {"surrogate_gradient": "tanh(x)"}, "emit": emit}
    inner = {"match": {"op": "Round"}, "patch": {"surrogate_gradient": "x ** 3"}, "emit": emit}
    x = np.array([-0.7, 0.2, 0.5])
    expected = 2 * 3 * (2 * x) ** 2 / np.cosh(np.round(2 * x)) ** 2
    model = saved(chain, tmp_path / "model.pb")
    for rules in ([inner, outer], [outer, inner]):
        _, dx = gradient(graphpatch.apply(rules, model).model, x)
        np.testing.assert_allclose(dx, expected, rtol=1e-5)


def weights(*shape: int) -> Any:
    return tf.constant(np.random.default_rng(shape).normal(scale=0.7, size=shape), tf.float32)


def lstm(x: Any) -> Any:
    h = c = tf.matmul(x[:, 0], tf.zeros([3, 4]))
    for step in range(4):
        z = tf.nn.bias_add(tf.matmul(tf.concat([x[:, step], h], 1), weights(7, 16)), weights(16))
        i, j, f, o = tf.split(z, 4, 1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
    return tf.matmul(h, weights(4, 1))


def gru(x: Any) -> Any:
    h = tf.matmul(x[:, 0], tf.zeros([3, 4]))
    for step in range(4):
        gates = tf.sigmoid(tf.matmul(tf.concat([x[:, step], h], 1), weights(7, 8)))
        r, u = tf.split(gates, 2, 1)
        n = tf.tanh(tf.matmul(tf.concat([x[:, step], r * h], 1), weights(7, 4)))
        h = u * h + (1.0 - u) * n
    return tf.matmul(h, weights(4, 1))


def attention(x: Any) -> Any:
    flat = tf.reshape(x, [-1, 3])
    q, k, v = (tf.reshape(tf.matmul(flat, weights(3, 4) * n), [-1, 4, 4]) for n in (1.0, 0.5, 2.0))
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 2.0), v)
    return tf.matmul(tf.reduce_mean(tf.nn.relu(mixed), 1), weights(4, 1))


def quotient(x: Any) -> Any:
    return tf.reduce_sum(tf.tanh(x[:, 0]) / (1.0 + tf.sigmoid(x[:, 1])), 1, keepdims=True)


@pytest.mark.parametrize("build", [lstm, gru, attention, quotient], ids=lambda one: one.__name__)
def test_shap_1193_contributions_through_products_add_up(build: Any) -> None:
    # shap 1193, 1490, 3605, 3344, 2153, 1079: LSTM, GRU, attention.
    with tf.Graph().as_default() as model:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4, 3], "x")
        tf.identity(build(x), "y")
    data = np.random.default_rng(5).normal(size=(6, 4, 3)).astype(np.float32)
    deficits = []
    for recipe in ("@deeplift", "@deeplift(of=x)"):
        patched = graphpatch.apply(recipe, model).model
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            graphpatch.import_model(patched)
            y, x = (graph.get_tensor_by_name(name) for name in ("y:0", "x:0"))
            dx, value = session.run([tf.compat.v1.gradients(y, x)[0], y], {x: data})
        total = np.sum((data[:3] - data[3:]) * dx[:3], (1, 2))
        deficits.append(np.abs(total - (value[:3] - value[3:])[:, 0]).max())
    assert deficits[0] > 1e-2
    assert deficits[1] < 1e-5
