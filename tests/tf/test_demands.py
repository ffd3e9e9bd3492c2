"""What users of this field asked for in vain: the graph of each, and the answer it gets here.

The numbers are issues of tensorflow/tensorflow, but where a repository is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import MatchError
from graphpatch.runtime.tf_gradients import control_flow

tf = pytest.importorskip("tensorflow")

from tests.tf import consumer, live  # noqa: E402
from tests.tf.live import filtered, imported, overridden  # noqa: E402

tf1 = tf.compat.v1
GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def graph_of(build: Callable[[Any], Any], *sizes: int) -> Any:
    """From the placeholder x, of shape [2] by default, to y."""
    with tf.Graph().as_default() as graph:
        tf.identity(build(tf1.placeholder(tf.float32, sizes or [2], name="x")), name="y")
    return graph


def gradient(graph: Any, x: Any = (-1.0, 2.0)) -> Any:
    found = live.gradients(graph, "y:0", ["x:0"], {"x:0": x})[0]
    return None if found is None else list(found)


def relu(x: Any) -> Any:
    return tf.nn.relu(x, name="relu")


def test_1_an_override_that_does_nothing_for_a_typo_is_an_error() -> None:
    # 8138: gradient_override_map({"ReLU": ...}) is silent, as it knows no op of that type.
    with pytest.raises(MatchError, match=r"matched nothing(.|\n)*nearest: Relu"):
        graphpatch.apply([overridden({"op": "ReLU"}, "guided_relu")], graph_of(relu))


def test_1_an_op_that_is_really_two_is_found_as_a_pattern() -> None:
    # 8608: a layer is no op: a dense layer is MatMul and BiasAdd.
    w = [[1.0, 2.0], [3.0, 4.0]]
    graph = graph_of(lambda x: tf.nn.bias_add(tf.matmul(x[None], w), [0.5, 0.5], name="sum"))
    with pytest.raises(MatchError, match=r"there are: .*BiasAdd"):
        graphpatch.apply([overridden({"op": "Dense"}, "zero")], graph)
    found = graphpatch.select(graph, pattern="MatMul -> BiasAdd")
    assert [op.name for op in found] == ["sum"]


def test_2_a_model_that_is_built_already() -> None:
    # 35203, 36870: gradient_override_map reaches only what is built inside of it.
    graph = graph_of(lambda x: relu(x) * [1.0, -1.0])
    assert gradient(graph, x=(1.0, 2.0)) == [1.0, -1.0]
    assert gradient(graphpatch.patch_graph([GUIDED], graph).graph, x=(1.0, 2.0)) == [1.0, 0.0]


def test_3_no_gradient_defined_names_the_op_and_proposes_a_rule() -> None:
    # deepmd-kit 3724, lucid 62: LookupError: No gradient defined for operation.
    graph = graph_of(lambda x: tf.raw_ops.Bitcast(input=x, type=tf.float32, name="bits"))
    with pytest.raises(LookupError):
        gradient(graph)
    [pair] = graphpatch.diagnose(graph, ["x"], ["y"]).pairs
    assert (pair.verdict, pair.findings[0].node.name) == ("error", "bits")
    assert "override_gradient" in pair.findings[0].remedy
    model = graphpatch.apply([overridden("bits", {"formula": "dy"})], graph)
    assert gradient(imported(model)) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("blocker", "build"),
    [
        ("Cast", lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32)),
        ("Round", tf.round),
        ("ArgMax", lambda x: tf.cast(tf.argmax(x), tf.float32)),
        ("Greater", lambda x: tf.cast(x > 0.0, tf.float32)),
        ("StopGradient", tf.stop_gradient),
    ],
)
def test_4_which_op_makes_the_gradient_none(blocker: str, build: Any) -> None:
    # 783, lucid 34: tf.gradients returns None, and does not say why.
    graph = graph_of(build)
    assert gradient(graph) is None
    [pair] = graphpatch.diagnose(graph, ["x"], ["y"]).pairs
    assert pair.verdict == "none"
    assert blocker in [finding.node.op for finding in pair.findings]


def test_5_a_loop_from_a_file_has_a_gradient() -> None:
    # 7404, 20263, models 7329: 'NoneType' object has no attribute 'outer_context'.
    with control_flow(False):
        data = in_steps(2, lambda x, _, y: y * 3.0, 2).as_graph_def()
        with pytest.raises(AttributeError, match="outer_context"):
            gradient(consumer.imported(data))
        assert gradient(imported(data)) == [9.0, 9.0]


def test_6_the_inputs_of_an_op_can_be_changed() -> None:
    # 1758, 54363: ops of a live graph cannot be rewired; here a new graph is written.
    graph = graph_of(lambda x: tf.square(x, name="square"))
    rule = filtered("square", {"scale": 0.5}, at="inputs")
    assert gradient(imported(graphpatch.apply([rule], graph))) == [-1.0, 2.0]
    assert gradient(graph) == [-2.0, 4.0]


def test_8_activations_that_no_rule_covers_are_listed() -> None:
    # Grad-CAM-tensorflow 10, keras-vis 177, shap 1463: Relu6, LeakyRelu, swish are left out.
    graph = graph_of(lambda x: tf.nn.leaky_relu(tf.nn.relu6(relu(x), "two"), name="three"))
    model = graphpatch.apply([GUIDED], graph)
    notes = [note.text() for note in graphpatch.diagnose(model, ["x"], ["y"]).seen[0].notes]
    assert "activations on the way that no rule covers: Relu6 two, LeakyRelu three" in notes


def test_9_a_group_of_ops_has_one_gradient() -> None:
    # 18673: override the gradient of several ops as one.
    patch = {"override_gradient": {"formula": "7 * dy"}, "on": "match"}
    graph = graph_of(lambda x: tf.multiply(x, tf.sigmoid(x)))
    model = graphpatch.apply([{"match": {"pattern": "@swish"}, "patch": patch}], graph)
    assert gradient(imported(model)) == [7.0, 7.0]


def test_10_a_gradient_in_parts_and_of_one_use() -> None:
    # 6395, 54065, 56879.
    graph = graph_of(
        lambda x: tf.square(tf.multiply(x, 3.0, name="h"), name="a") + tf.square(x, name="b")
    )
    with graph.as_default():
        parts = graphpatch.gradient_in_parts(graph, "y:0", ["h:0", "b:0"], "x:0")
        [whole] = parts.at_wrt.values()
    assert list(live.run(graph, [whole], {"x:0": [1.0, 2.0]})[0]) == [20.0, 40.0]
    one_use = filtered("b", "zero", at="inputs")
    assert gradient(imported(graphpatch.apply([one_use], graph)), x=(1.0, 2.0)) == [18.0, 36.0]


def test_11_a_module_that_is_used_twice() -> None:
    # captum 1082: hooks go to the module, and hit each of its uses.
    graph = graph_of(lambda x: -tf.nn.relu(tf.nn.relu(x, name="block/relu"), name="block/relu_1"))
    model = graphpatch.apply([overridden({"name": "block/relu_1"}, "guided_relu")], graph)
    assert gradient(graph, x=(1.0, 2.0)) == [-1.0, -1.0]
    assert gradient(imported(model), x=(1.0, 2.0)) == [0.0, 0.0]


def test_12_signatures_and_collections_stay() -> None:
    # 20519, 28812, 43688: lost by tools that rewrite graphs.
    with graph_of(relu).as_default() as graph:
        tf1.add_to_collection("losses", graph.get_tensor_by_name("y:0"))
        meta = tf1.train.export_meta_graph()
    meta.signature_def["serve"].outputs["y"].name = "y:0"
    after = graphpatch.apply([GUIDED], meta).meta_graph_def()
    assert after.signature_def == meta.signature_def
    assert after.collection_def == meta.collection_def


def test_13_a_difference_starts_with_gradients() -> None:
    # netron 705, model-explorer 46.
    graph = graph_of(relu)
    found = graphpatch.diff(graph, graphpatch.apply([GUIDED], graph)).document()
    assert [one["op"] for one in found["gradients"]] == ["relu"]
    assert next(key for key, value in found.items() if isinstance(value, list)) == "gradients"


X = np.float32([0.5, 0.25, -0.5])


def strengthened() -> Any:
    """A feature layer, a classifier of its domain, and how strongly that is to be reversed."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3], name="x")
        tf1.placeholder_with_default(tf.constant(0.0), [], name="strength")
        tf1.get_variable("step", initializer=tf.constant(0, tf.int64), use_resource=True)
        for name, feature in (("y", tf.square), ("spiking", tf.sign)):
            tf.multiply(feature(x, f"{name}_feature"), [1.0, -2.0, 3.0], name=name)
    return graph


def check_while_training(graph: Any, of: str, expected: Callable[[float, int], Any]) -> None:
    """Compare the gradient by x for strengths that are fed, and steps."""
    with graph.as_default(), tf1.Session() as session:
        names = (f"{of}:0", "x:0", "strength:0", "step:0")
        y, x, strength, handle = map(graph.get_tensor_by_name, names)
        dx, none = tf1.gradients(y, [x, strength])
        assert none is None
        for fed, step in [(0.0, 0), (0.5, 1), (2.0, 3)]:
            session.run(tf.raw_ops.AssignVariableOp(resource=handle, value=np.int64(step)))
            found = session.run(dx, {x: X, strength: fed})
            np.testing.assert_allclose(found, expected(fed, step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_live", [False, True], ids=["file", "live"])
@pytest.mark.parametrize(
    ("formula", "dy"),
    [
        ("-tensor('strength') * dy", lambda dy, fed, step: -fed * dy),
        (
            "dy - 2 * dy / (1 + exp(-10 * tensor('strength:0')))",
            lambda dy, fed, _: -np.tanh(5 * fed) * dy,
        ),
        (
            "where(cast_like(tensor('step'), dy) < 3, 0, dy)",
            lambda dy, fed, step: float(step >= 3) * dy,
        ),
        (
            "clip(dy, -tensor('strength'), tensor('strength'))",
            lambda dy, fed, _: np.clip(dy, -fed, fed),
        ),
    ],
)
def test_14566_a_factor_that_changes_while_training(formula: str, dy: Any, is_live: bool) -> None:
    # 14566; DANN's strength that is fed, lucid's global_step: a factor that is a tensor.
    rule, graph = filtered("y_feature", {"formula": formula}), strengthened()
    if is_live:
        graphpatch.patch_graph([rule], graph, in_place=True)
    else:
        model = graphpatch.apply([rule], graph)
        assert graphpatch.verify(graph, model).ok
        graph = imported(model)
    upstream = np.float32([1.0, -2.0, 3.0])
    check_while_training(graph, "y", lambda fed, step: dy(upstream, fed, step) * 2 * X)


@pytest.mark.parametrize("emit", ["auto", "function"])
@pytest.mark.parametrize(
    ("formula", "slope"),
    [
        ("tanh(tensor('strength') * x)", lambda fed, step: fed),
        ("tanh((1 + cast_like(tensor('step'), x)) * x)", lambda fed, step: 1 + step),
    ],
)
def test_a_surrogate_that_sharpens_while_training(formula: str, slope: Any, emit: str) -> None:
    rule = {"match": {"op": "Sign"}, "patch": {"surrogate_gradient": formula}, "emit": emit}
    graph = strengthened()
    model = graphpatch.apply([rule], graph)
    verified = graphpatch.verify(graph, model)
    assert (verified.failures, verified.not_compared) == ([], [])

    def expected(fed: float, step: int) -> Any:
        factor = slope(fed, step)
        return np.float32([1.0, -2.0, 3.0]) * factor * (1 - np.tanh(factor * X) ** 2)

    check_while_training(imported(model), "spiking", expected)


def in_steps(times: int, body: Callable[[Any, Any, Any], Any], *sizes: int) -> Any:
    """A loop whose step reads x, its number and what the one before gave, which is x at first."""

    def build(x: Any) -> Any:
        def step(i: Any, h: Any) -> Any:
            return i + 1, body(x, tf.cast(i, tf.float32, name="number"), h)

        return tf1.while_loop(lambda i, _: i < times, step, [tf.constant(0), x])[1]

    return graph_of(build, *sizes)


NUMBERS = {False: "tensor('while/number:0')", True: "tensor('number:0')"}


@pytest.mark.parametrize("v2", NUMBERS)
def test_a_surrogate_in_a_loop_reads_the_step(v2: bool) -> None:
    """y is the sum of x and sign(x) over steps 0, 1, 2, of slope 1, 2, 3 at 0."""
    with control_flow(v2):
        graph = in_steps(3, lambda x, _, total: total + tf.sign(x))
    patch = {"surrogate_gradient": f"tanh((1 + {NUMBERS[v2]}) * x)"}
    model = graphpatch.apply([{"match": {"op": "Sign"}, "patch": patch}], graph)
    assert gradient(imported(model), x=(0.0, 0.0)) == [1 + 1 + 2 + 3] * 2


@pytest.mark.parametrize("kept", ["dy", "clip(dy, -1e9, 1e9)"], ids=["linear", "function"])
@pytest.mark.parametrize("v2", NUMBERS)
def test_2803_truncated_backpropagation_by_the_step(v2: bool, kept: str) -> None:
    # 2803: what flows back through the state stops every third step.
    with control_flow(v2):
        graph = in_steps(5, lambda x, number, h: tf.multiply(h, 1.0 + number, name="state") + x)
    formula = f"where({NUMBERS[v2]} == 2, 0, {kept})"
    rule = filtered({"name": "**state", "op": "Mul"}, {"formula": formula})
    # y = x + 5 (x + 4 (x + 3 (...))): with the product of step 2 cut, three x are left.
    assert gradient(imported(graphpatch.apply([rule], graph))) == [1 + 5 + 5 * 4] * 2


def unfrozen() -> Any:
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("w", initializer=np.float32([[0.5, -1.0], [2.0, 0.3]]))
        v = tf1.get_variable("v", initializer=np.float32([[1.0], [0.7]]))
        x = tf1.placeholder(tf.float32, [None, 2], name="x")
        tf.matmul(tf.tanh(tf.matmul(x, w)), v, name="y")
    return graph


def trained(graph: Any, initial: Mapping[str, Any]) -> dict[str, Any]:
    """The weights after three steps of Adam from these, and what the net gives then."""
    x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
    with graph.as_default(), tf1.Session() as session:
        weights = {v.op.name: v for v in tf1.trainable_variables()}
        train = tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(y - 1.0)))
        session.run(tf1.global_variables_initializer())
        for name, value in initial.items():
            weights[name].load(value, session)
        for step in range(3):
            session.run(train, {x: np.sin(np.arange(8.0) + step).reshape(4, 2)})
        return {
            **session.run({name: variable.value() for name, variable in weights.items()}),
            "y": session.run(y, {x: np.eye(2)}),
            "frozen": tf1.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), ["y"]
            ),
        }


def test_42623_a_frozen_pb_is_trained_as_before_it_was_frozen() -> None:
    # 42623: a .pb has no trainable variables; with variables for its constants it trains on.
    first = trained(unfrozen(), {})
    graph = imported(first["frozen"])
    with graph.as_default(), pytest.raises(ValueError, match="No variables to optimize"):
        tf1.train.AdamOptimizer(0.1).minimize(graph.get_tensor_by_name("y:0"))
    constants = {n.name: n.attr["value"].tensor for n in first["frozen"].node if n.name in "wv"}
    with tf.Graph().as_default() as graph:
        variables = {
            f"{name}:0": tf1.get_variable(name, initializer=tf.make_ndarray(value))
            for name, value in constants.items()
        }
        graphpatch.import_model(first["frozen"], input_map=variables)
    actual = trained(graph, {})
    [again] = consumer.run(actual["frozen"], {"x:0": np.eye(2)}, ["y:0"])
    np.testing.assert_array_equal(again, actual["y"])
    expected = trained(unfrozen(), {name: first[name] for name in "wv"})
    for name in ("w", "v", "y"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-6)
