"""Recipes give what DeepExplain's tests, iNNvestigate and shap say, and what defines DeepLIFT."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import GraphpatchError
from tests import draws
from tests.graphs import function, graphdef, node

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = [[-10.0, -5.0], [3.0, 1.0]]


def simpler_model() -> None:
    """DeepExplain's: relu(relu(x1 - 1) - relu(x2))."""
    x = tf1.placeholder(tf.float32, [None, 2], name="x")
    hidden = tf.nn.relu(tf.matmul(x, np.eye(2, dtype=np.float32)) + tf.constant([-1.0, 0.0]))
    tf.nn.relu(tf.matmul(hidden, [[1.0], [-1.0]]), name="y")


DATA = Path(__file__).parents[1] / "data"
PEER = json.loads((DATA / "innvestigate.json").read_text())
X_PEER = np.array(PEER["x"], np.float32)
SHAP = json.loads((DATA / "shap.json").read_text())


def peer_net() -> None:
    """The net of scripts/methods/innvestigate_values.py."""
    w, b, v, c, m, d, n, e = (np.array(one, np.float32) for one in PEER["weights"])
    x = tf1.placeholder(tf.float32, [None, 4, 4, 1], name="x")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME", name="first"), b, name="bias_1"))
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, v, 2, "VALID"), c))
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(tf.reshape(h, [-1, m.shape[0]]), m), d))
    tf.nn.bias_add(tf.matmul(h, n), e, name="y")


def pooled_peer_net() -> None:
    """The net with pooling of scripts/methods/innvestigate_values.py."""
    w, b, v, c, n, e = (np.array(one, np.float32) for one in PEER["pooled"]["weights"])
    x = tf1.placeholder(tf.float32, [None, 8, 8, 1], name="x")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))
    h = tf.nn.avg_pool2d(h, 2, 2, "VALID")
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, v, 1, "SAME"), c))
    h = tf.nn.max_pool2d(h, 2, 2, "VALID")
    tf.nn.bias_add(tf.matmul(tf.reshape(h, [-1, n.shape[0]]), n), e, name="y")


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


@pytest.mark.parametrize(
    ("recipe", "references", "expected"),
    [("@lrp_epsilon(1e-9)", [], [[0, 0], [3, -1]]), ("@deeplift", [[0, 0]] * 2, [[0, 0], [2, -1]])],
)
def test_values_of_deep_explain(
    recipe: str, references: list[Any], expected: Any, tmp_path: Path
) -> None:
    patched = graphpatch.apply(recipe, saved(simpler_model, tmp_path / "model.pb")).model
    _, dx = gradient(patched, [*X, *references])
    np.testing.assert_almost_equal(X * dx[:2], expected, 6)


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


def test_the_composite_has_a_rule_for_each_kind_of_layer() -> None:
    with tf.Graph().as_default() as graph:
        pooled_peer_net()
    result = graphpatch.apply("@lrp_composite(epsilon=1e-9)", graph)
    rules = {rule["name"]: rule["matches"] for rule in result.report["rules"] if rule["matches"]}
    assert {name: sorted(one["type"] for one in matches) for name, matches in rules.items()} == {
        "@lrp_composite: biases": ["BiasAdd"] * 2,
        "@lrp_composite: activations": ["Relu"] * 2,
        "@lrp_composite: means": ["AvgPool"],
        "@lrp_composite: z-plus": ["Conv2D"] * 2,
    }
    assert result.report["consumer"] == {"session": [], "tape": []}
    _, dx = gradient(result.model, abs(np.float32(PEER["pooled"]["x"])), 0)
    assert np.isfinite(dx).all()
    assert np.abs(dx).max() > 0


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


def bias_rules() -> list[dict[str, Any]]:
    """Alpha-beta with biases, each layer as one op; iNNvestigate adds whole biases to both sums."""
    return [
        {
            "match": {"pattern": f"{op_type} -> BiasAdd -> Relu?"},
            "patch": {"override_gradient": {gradient: {"whole": 1}}, "on": "match"},
        }
        for op_type, gradient in (
            ("MatMul", "lrp_alpha_beta_bias"),
            ("Conv2D", "lrp_alpha_beta_bias_conv"),
        )
    ]


# What a rule of iNNvestigate is here, and what the gradient is read with: the input, or what
# iNNvestigate starts from, where that is the output and not 1.
INNVESTIGATE: dict[str, tuple[Any, str]] = {
    "gradient": ([], ""),
    "guided_backprop": ("@guided_backprop", "output"),
    "deconvnet": ("@deconvnet", "output"),
    "z": (epsilon_rules(1e-7), "x"),
    "epsilon": (epsilon_rules(0.1), "x"),
    "z_plus": (shared_rules("lrp_zplus"), "x"),
    "alpha_beta": (shared_rules("lrp_alpha_beta"), "x"),
    "alpha_beta_bias": (bias_rules(), "x"),
    "w2_first": (first_rules("lrp_w2"), "x"),
    "flat_first": (first_rules("lrp_flat"), "x"),
    "w2": ("@lrp_w2(of=x)", "output"),
    "flat": ("@lrp_flat(of=x)", "output"),
    "deep_taylor": ("@deep_taylor(of=x)", "output"),
}
POOLED = ("alpha_beta_bias", "w2", "flat", "deep_taylor")


def test_every_value_of_innvestigate_is_compared() -> None:
    assert PEER["values"].keys() == INNVESTIGATE.keys()
    assert PEER["pooled"]["values"].keys() == {*POOLED}


NETS = [("plain", name) for name in INNVESTIGATE] + [("pooled", name) for name in POOLED]
QUICK = ("gradient", "z", "alpha_beta", "flat_first", "deep_taylor")


@pytest.mark.parametrize(
    ("net", "name"), draws.quick(NETS, lambda net, name: net == "pooled" or name in QUICK)
)
def test_the_values_of_innvestigate(net: str, name: str, tmp_path: Path) -> None:
    build, peer = (peer_net, PEER) if net == "plain" else (pooled_peer_net, PEER["pooled"])
    rules, read_with = INNVESTIGATE[name]
    model, x = saved(build, tmp_path / "model.pb"), np.array(peer["x"], np.float32)
    y, dx = gradient(graphpatch.apply(rules, model).model if rules else model, x, 0)
    np.testing.assert_allclose(y[0], peer["output"], rtol=1e-5)
    factors = {"": 1.0, "x": x, "output": peer["output"][0]}
    expected = np.array(peer["values"][name])
    limit = 2e-6 * np.abs(expected).max()
    np.testing.assert_allclose((factors[read_with] * dx).ravel(), expected, rtol=1e-4, atol=limit)


@pytest.mark.parametrize("recipe", ["@lrp_flat(of=x)", "@lrp_w2(of=x)", "@deep_taylor(of=x:0)"])
def test_relevance_is_kept_between_layers(recipe: str, tmp_path: Path) -> None:
    # A batch norm, sums of a residual, of windows and with constants, means, a swish.
    def net() -> None:
        x = tf1.placeholder(tf.float32, [None, 6, 6, 2], name="x")
        h = tf.nn.conv2d(x, abs(weights(3, 3, 2, 3)), 1, "SAME")
        moments = [abs(weights(3)) + 0.5 for _ in range(4)]
        h = tf1.nn.fused_batch_norm(h, *moments, is_training=False)[0]
        h = 2.0 - h * abs(weights(3))
        h = tf.nn.relu(h) + tf.nn.softplus(h) + h * tf.sigmoid(h)
        h = tf.reduce_mean(tf.reduce_sum(h, 1) + 1.0, 1)
        tf.matmul(h, abs(weights(3, 2)), name="y")

    x = abs(np.random.default_rng(1).normal(size=(2, 6, 6, 2)))
    _, dx = gradient(graphpatch.apply(recipe, saved(net, tmp_path / "model.pb")).model, x)
    np.testing.assert_allclose(dx.sum((1, 2, 3)), [2, 2], rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in SHAP if name != "made_by"])
def test_the_values_of_shap(name: str) -> None:
    net = SHAP[name]
    examples, reference = (np.array(net[key], np.float32) for key in ("examples", "reference"))
    fed = np.concatenate([examples, np.repeat(reference, len(examples), 0)])
    graph = tf1.GraphDef.FromString(base64.b64decode(net["graph"]))
    result = graphpatch.apply("@deeplift(of=x)", graph)
    _, dx = gradient(result.model, fed)
    contributions = (examples - reference) * dx[: len(examples)]
    np.testing.assert_allclose(contributions, net["contributions"], atol=1e-6)
    sums = contributions.sum((1, 2, 3))
    np.testing.assert_allclose(sums, net["differences"], atol=1e-5)
    assert not [note for note in result.report["notes"] if note.startswith("no rule")]


def weights(*shape: int) -> Any:
    return tf.constant(np.random.default_rng(shape).normal(scale=0.7, size=shape), tf.float32)


def gru(x: Any) -> Any:
    h = tf.matmul(x[:, 0], tf.zeros([3, 4]))
    for step in range(4):
        gates = tf.sigmoid(tf.matmul(tf.concat([x[:, step], h], 1), weights(7, 8)))
        r, u = tf.split(gates, 2, 1)
        n = tf.tanh(tf.matmul(tf.concat([x[:, step], r * h], 1), weights(7, 4)))
        h = u * h + (1.0 - u) * n
    return tf.matmul(h, weights(4, 1))


def layer_norm(h: Any, size: int) -> Any:
    mean, variance = tf1.nn.moments(h, [-1], keep_dims=True)
    scale, offset = tf.abs(weights(size)) + 0.5, weights(size)
    return tf.nn.batch_normalization(h, mean, variance, offset, scale, 1e-3)


def transformer(x: Any) -> Any:
    """A block with two heads, layer norms and a GELU; the width of heads is read from a shape."""

    def dense(h: Any, size: int, more: int) -> Any:
        return tf.reshape(tf.matmul(tf.reshape(h, [-1, size]), weights(size, more)), [-1, 4, more])

    def heads(h: Any, factor: float) -> Any:
        return tf.transpose(tf.reshape(dense(h, 8, 8) * factor, [-1, 4, 2, 4]), [0, 2, 1, 3])

    h = dense(x, 3, 8)
    q, k, v = (heads(h, factor) for factor in (1.0, 0.5, 2.0))
    width = tf.sqrt(tf.cast(tf.shape(k)[-1], tf.float32))
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / width), v)
    h = layer_norm(h + dense(tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, 4, 8]), 8, 8), 8)
    z = dense(h, 8, 16)
    h = layer_norm(h + dense(0.5 * z * (1.0 + tf.math.erf(z / tf.sqrt(2.0))), 16, 8), 8)
    return tf.matmul(h[:, 0], weights(8, 1))


def lstm(x: Any) -> Any:
    """A tf.while_loop with arrays, as tf.nn.dynamic_rnn makes it."""
    w, b, start = weights(7, 16), weights(16), tf.matmul(x[:, 0], tf.zeros([3, 4]))

    def step(at: Any, states: Any, h: Any, c: Any) -> Any:
        i, j, f, o = tf.split(tf.matmul(tf.concat([inputs.read(at), h], 1), w) + b, 4, 1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return at + 1, states.write(at, h), h, c

    inputs = tf.TensorArray(tf.float32, 4).unstack(tf.transpose(x, [1, 0, 2]))
    loop = [0, tf.TensorArray(tf.float32, 4), start, start]
    _, states, _, _ = tf1.while_loop(lambda at, *_: at < 4, step, loop)
    return tf.matmul(states.stack()[-1], weights(4, 1))


def functions(x: Any) -> Any:
    """Functions of one tensor and of two, powers and roots."""
    a, b = tf.exp(x[:, 0] * 0.5), tf.math.log(tf.square(x[:, 1]) + 0.3)
    c, d = tf.sqrt(tf.square(x[:, 2]) + 1.0), tf.math.reciprocal(2.0 + tf.sigmoid(x[:, 3]))
    powers = tf.pow(c, 3.0) + tf.pow(c, a * 0.3) + tf.pow(2.0, b)
    extremes = tf.maximum(a, c) + tf.minimum(b, d) + tf.maximum(x[:, 0], 0.3)
    differences = tf.math.squared_difference(a, 0.4) + tf.math.squared_difference(b, c)
    rest = 2.0 / (c + a) + tf.math.rsqrt(c)
    return tf.reduce_sum(powers + extremes + differences + rest, 1, keepdims=True)


PRODUCTS = (gru, transformer, lstm, functions)


@pytest.fixture
def v1_loops() -> Iterator[None]:
    """Build loops, and gradients of them, as v1 control flow."""
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


@pytest.mark.usefixtures("v1_loops")
@pytest.mark.parametrize("build", PRODUCTS, ids=lambda build: build.__name__)
def test_shap_1193_contributions_through_products_add_up(build: Any) -> None:
    # shap 1193, 1490, 3605, 3344, 2153, 1079: LSTM, GRU, attention.
    with tf.Graph().as_default() as model:
        x = tf1.placeholder(tf.float32, [None, 4, 3], "x")
        tf.identity(build(x), "y")
    data = np.random.default_rng(5).normal(size=(6, 4, 3)).astype(np.float32)
    deficits, named = [], []
    for recipe in ("@deeplift", "@deeplift(of=x)"):
        result = graphpatch.apply(recipe, model)
        y, dx = gradient(result.model, data)
        total = np.sum((data[:3] - data[3:]) * dx[:3], (1, 2))
        difference = (y[:3] - y[3:])[:, 0]
        deficits.append(np.abs(total - difference).max() / max(1.0, np.abs(difference).max()))
        named.append([note for note in result.report["notes"] if note.startswith("no rule for")])
    assert deficits[0] > 1e-2
    assert named[0]
    assert deficits[1] < 1e-5
    assert not named[1]
