"""Rules on a live graph: keys in place, what is refused, and cases in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from tests.tf import live  # noqa: E402
from tests.tf.consumer import same_bits  # noqa: E402
from tests.tf.live import CLIP, Rule, filtered, overridden, stopped  # noqa: E402

tf1 = tf.compat.v1

HALVE = [filtered("six", {"scale": 0.5})]


def square_of_six() -> Any:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [], name="x")
        tf.square(tf.multiply(6.0, x, name="six"), name="y")
    return graph


def gradient(graph: Any) -> float:
    found: float = live.gradients(graph, "y:0", ["x:0"], {"x:0": 3.0})[0]
    return found


def test_what_a_session_has_run_holds_and_the_report_says_so() -> None:
    graph = square_of_six()
    with graph.as_default(), tf1.Session() as session:
        [before] = tf.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"))
        assert session.run(before, {"x:0": 3.0}) == 216.0
        patched = graphpatch.patch_graph(HALVE)
        assert repr(patched) == "<PatchedGraph: 1 rule on 1 op, in place>"
        [after] = tf.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"))
        assert session.run([before, after, "y:0"], {"x:0": 3.0}) == [216.0, 108.0, 324.0]
    [note] = patched.report["notes"]
    assert note.startswith("gradients of 'six' were built before (")
    assert "--" not in note
    assert graphpatch.patch_graph(HALVE, square_of_six()).report["notes"] == []


def test_the_graph_stays_the_same_object_and_rules_are_not_applied_twice() -> None:
    graph = square_of_six()
    patched = graphpatch.patch_graph(HALVE, graph)
    x = graph.get_tensor_by_name("x:0")
    assert (patched.graph, patched.tensor(x), patched.of([x.op])) == (graph, x, [x.op])
    with pytest.raises(graphpatch.GraphpatchError, match="has been applied to this model already"):
        graphpatch.patch_graph(HALVE, graph)
    assert gradient(graph) == 108.0


def test_where_a_rule_fails_nothing_is_changed() -> None:
    graph = square_of_six()
    before = graph.as_graph_def()
    with pytest.raises(graphpatch.GraphpatchError, match="matched nothing"):
        graphpatch.patch_graph([*HALVE, filtered("seven", CLIP)], graph)
    with pytest.raises(graphpatch.GraphpatchError, match="rule 'rule 2'"):
        graphpatch.patch_graph([*HALVE, overridden("y", "guided_relu")], graph)
    assert graph.as_graph_def() == before


def test_a_finalized_graph_is_patched_beside_it() -> None:
    graph = square_of_six()
    graph.finalize()
    patched = graphpatch.patch_graph(HALVE, graph)
    assert not patched.in_place
    assert "finalized" in patched.report["notes"][0]
    assert gradient(patched.graph) == 108.0


# The graph, the rules and `in_place`, and what is said.
REFUSED: dict[str, tuple[tuple[Any, ...], bool | None, type[Exception], str]] = {
    "a source": (([filtered("x", CLIP)],), True, graphpatch.PatchError, "'x' is a source"),
    "no graph": ((HALVE, None), None, graphpatch.GraphpatchError, "executes eagerly"),
    "a path": ((HALVE, "model.pb"), None, TypeError, r"expected a tf\.Graph; found str"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    (rules, *graph), in_place, error, says = REFUSED[name]
    live_graph = graph[0] if graph else square_of_six()
    with pytest.raises(error, match=says):
        graphpatch.patch_graph(rules, live_graph, in_place=in_place)


def test_default_takes_an_override_off() -> None:
    def negated() -> Any:
        with tf.Graph().as_default() as graph, graph.gradient_override_map({"Identity": "Neg"}):
            tf.square(tf.identity(tf1.placeholder(tf.float32, [], name="x"), name="six"), name="y")
        return graph

    graph, plain, default = negated(), negated(), [overridden("six", "default")]
    assert gradient(graph) == -6.0
    graphpatch.patch_graph(HALVE, graph)  # around the override
    assert gradient(graph) == -3.0
    graphpatch.patch_graph(default, graph)
    assert gradient(graph) == 3.0  # the filter stays
    graphpatch.patch_graph(default, plain)
    assert gradient(plain) == 6.0
    assert "_gradient_op_type" not in plain.get_operation_by_name("six").node_def.attr
    # An op type whose gradient TensorFlow does not know: its name is no key to register.
    with tf.Graph().as_default() as graph, graph.gradient_override_map({"IgammaGradA": "Neg"}):
        tf.raw_ops.IgammaGradA(a=tf.constant(1.0), x=tf.constant(2.0), name="six")
    assert graphpatch.patch_graph(default, graph).report["consumer"]["session"] == []


LAYERS: dict[str, tuple[list[Rule], float | None]] = {
    # y = (6x)^2 at 3: dy at six is 36, the gradient by x 6 times what flows on.
    "two filters, the later one first": (
        [filtered("six", {"clip": {"min": -10, "max": 10}}), filtered("six", {"scale": 2.0})], 60.0
    ),
    "outputs and inputs": (
        [filtered("six", {"scale": 2.0}), filtered("six", {"reverse": 1.0}, at="inputs")], -432.0
    ),
    "a registered filter": ([filtered("six", {"registered": "Neg"})], -216.0),
    "a stop": ([stopped("six")], None),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_filters_around_a_gradient(name: str) -> None:
    rules, expected = LAYERS[name]
    graph = square_of_six()
    assert graphpatch.patch_graph(rules, graph).in_place
    assert gradient(graph) == expected
    other = graphpatch.patch_graph(rules, square_of_six(), in_place=False)
    assert gradient(other.graph) == expected


def test_a_gradient_in_python() -> None:
    """Of a filter and an override: 36 is clipped to 0.5, and reaches one input of the Mul."""
    functions = (f"tests.tf.python_gradients:{name}" for name in ("weighted", "clipped"))
    override, clip = ({"python": function} for function in functions)
    graph, rules = square_of_six(), [overridden("six", override), filtered("six", clip)]
    assert graphpatch.patch_graph(rules, graph, allow_python=True).in_place
    gradients = live.gradients(graph, "y:0", ["six/x:0", "x:0"], {"x:0": 3.0})
    assert gradients == [1.5, None]


def test_inside_of_a_function_that_is_being_traced() -> None:
    @tf.function
    def function(x: Any) -> Any:
        y = tf.square(tf.multiply(6.0, x, name="six"))
        assert graphpatch.patch_graph(HALVE).in_place
        with pytest.raises(graphpatch.GraphpatchError, match="being traced"):
            graphpatch.patch_graph([filtered("x", CLIP)])
        return y

    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert (y.numpy(), tape.gradient(y, x).numpy()) == (324.0, 108.0)


def test_the_repr_of_what_functions_on_graphs_return_is_short() -> None:
    def build() -> None:
        y = tf1.placeholder(tf.float32, [None], name="x")
        for place in range(100):
            y = tf.nn.relu(y, name=f"a_rather_long_name_of_a_layer_{place}/relu")
        tf.reduce_sum(y, name="loss")

    rules, cut = [overridden({"op": "Relu"}, "guided_relu")], "a_rather_long_name_of_a_layer_5/relu"
    with tf.Graph().as_default(), graphpatch.building(rules) as building:
        build()
    with tf.Graph().as_default() as graph:
        build()
    values: list[Any] = [
        building,
        graphpatch.load(graph),
        graphpatch.split(graph.as_graph_def(), "loss", cut, "x"),
        graphpatch.gradient_in_parts(graph, "loss", cut, "x"),
        graphpatch.patch_graph(rules, graph, in_place=False),
        graphpatch.verify(graph, graph, run=False),
        graphpatch.diagnose(graph, "x", "loss"),
    ]
    for value in values:
        assert len(repr(value)) < 400, repr(value)
        assert repr(value).count("\n") < 3
        assert " at 0x" not in repr(value)


# The documented cases, in place, in a patched graph, and while building.


@dataclass(frozen=True)
class Case:
    """What is built, the rules, what is fed, and the gradient of `loss` by each input.

    `by_key`: keys are enough, so it is done in place and while building.
    """

    build: Callable[[], object]
    rules: list[Rule]
    feeds: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    by_key: bool = True


def x_of(*shape: int) -> Any:
    return tf1.placeholder(tf.float32, shape, name="x")


def product() -> None:
    x = x_of(1, 2)
    w = tf1.placeholder(tf.float32, [2, 3], name="w")
    tf.reduce_sum(tf.matmul(x, w, name="product"), name="loss")


def rounded() -> None:
    tf.reduce_sum(tf.round(x_of(3), name="rounded") * [1.0, 2.0, 3.0], name="loss")


def signs() -> None:
    tf.reduce_sum(tf.sign(x_of(3), name="sign") * [1.0, 2.0, 3.0], name="loss")


def halves() -> None:
    a, b = tf.split(x_of(4), 2, name="op")
    tf.add(tf.reduce_sum(a), 10.0 * tf.reduce_sum(b), name="loss")


def placeholder() -> None:
    x = x_of()
    tf.add(tf.square(x), x, name="loss")


def quantized() -> None:
    tf.reduce_sum(tf.quantization.fake_quant_with_min_max_vars(x_of(3), -1.0, 1.0), name="loss")


def noisy() -> None:
    x = x_of(2)
    tf.reduce_sum(tf.square(tf.floor(x, name="noisy")), name="loss")


X3 = [-0.3, 0.2, 1.5]
SLOPES = 4.0 / np.cosh(4.0 * np.array(X3)) ** 2 * [1.0, 2.0, 3.0]

CASES = {
    "MatMul by formulas": Case(
        product, [overridden({"op": "MatMul"}, {"formula": ["7 * ones_like(x0)", None]})],
        {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)},
        {"x:0": [[1.5, 1.5]], "w:0": [[1.0] * 3, [2.0] * 3]}, {"x:0": [[7.0, 7.0]], "w:0": None},
    ),
    "straight through": Case(
        rounded, [{"match": {"op": "Round"}, "patch": {"straight_through": True}}], {"x:0": X3},
        {"x:0": None}, {"x:0": [1.0, 2.0, 3.0]},
    ),
    "straight through an op of three inputs": Case(
        quantized,
        [{"match": {"op": "FakeQuantWithMinMaxVars"}, "patch": {"straight_through": True}}],
        {"x:0": X3}, {"x:0": [1.0, 1.0, 0.0]}, {"x:0": [1.0, 1.0, 1.0]},
    ),
    "a surrogate": Case(
        signs, [{"match": {"op": "Sign"}, "patch": {"surrogate_gradient": "tanh(4 * x)"}}],
        {"x:0": X3}, {"x:0": [0.0] * 3}, {"x:0": SLOPES},
    ),
    "one output of several": Case(
        halves, [filtered("op", {"scale": 100.0}, at="output:0")], {"x:0": [3.0, 1.0, 2.0, 0.0]},
        {"x:0": [1, 1, 10, 10]}, {"x:0": [100, 100, 10, 10]},
    ),
    "a placeholder": Case(
        placeholder, [filtered("x", {"scale": 10.0})], {"x:0": 3.0}, {"x:0": 7.0}, {"x:0": 70.0},
        by_key=False,
    ),
    "backward_as": Case(
        noisy, [{"match": {"op": "Floor"}, "patch": {"backward_as": {"input": 0}}}],
        {"x:0": [1.5, -2.5]}, {"x:0": None}, {"x:0": [3.0, -5.0]}, by_key=False,
    ),
}  # fmt: skip


def differs(graph: Any, case: Case, expected: dict[str, Any]) -> None:
    found = live.gradients(graph, "loss:0", list(expected), case.feeds)
    for one, wanted in zip(found, expected.values(), strict=True):
        if wanted is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, wanted, rtol=2e-6, atol=1e-6)


def built(case: Case) -> Any:
    with tf.Graph().as_default() as graph:
        case.build()
    return graph


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_place", [None, False])
def test_a_live_graph(name: str, in_place: bool | None) -> None:
    case = CASES[name]
    graph, reference = built(case), built(case)
    patched = graphpatch.patch_graph(case.rules, graph, in_place=in_place)
    assert patched.in_place == (case.by_key and in_place is None)
    assert (patched.graph is graph) == patched.in_place
    assert [len(rule["matches"]) for rule in patched.report["rules"]] == [1] * len(case.rules)
    names = [output.name for op in reference.get_operations() for output in op.outputs]
    values = (live.run(one, names, case.feeds) for one in (reference, patched.graph))
    assert all(map(same_bits, *values))
    differs(reference, case, case.before)
    differs(patched.graph, case, case.after)
    if not patched.in_place:
        differs(graph, case, case.before)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_key])
def test_while_building(name: str) -> None:
    case = CASES[name]
    with tf.Graph().as_default() as graph, graphpatch.building(case.rules) as building:
        case.build()
    assert [len(rule["matches"]) for rule in building.report["rules"]] == [1] * len(case.rules)
    differs(graph, case, case.after)


def test_a_key_of_the_user_is_set_as_gradient_override_map_sets_it() -> None:
    feeds = {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)}
    rule = overridden({"op": "MatMul"}, {"registered": SWAPPED})
    in_place, made, oracle = (tf.Graph() for _ in range(3))
    with oracle.as_default(), oracle.gradient_override_map({"MatMul": SWAPPED}):
        product()
    with made.as_default(), graphpatch.building([rule]) as building:
        product()
    with in_place.as_default():
        product()
    report = graphpatch.patch_graph([rule], in_place).report
    wanted = live.gradients(oracle, "loss:0", list(feeds), feeds)
    for graph, done in ((in_place, report), (made, building.report)):
        assert done["consumer"]["session"] == [SWAPPED]
        assert all(map(same_bits, live.gradients(graph, "loss:0", list(feeds), feeds), wanted))
        key = graph.get_operation_by_name("product").get_attr("_gradient_op_type")
        assert key == SWAPPED.encode()


SWAPPED = "LiveSwappedMatMul"


@tf.RegisterGradient(SWAPPED)  # type: ignore[untyped-decorator]
def _swapped(op: Any, dy: Any) -> list[Any]:
    return [tf.ones_like(op.inputs[0]) * 7.0, tf.matmul(op.inputs[0], dy, transpose_a=True)]
