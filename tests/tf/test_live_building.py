"""Ops that get their gradients as they are made, beside TensorFlow's own gradient_override_map."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from graphpatch.graph import provenance  # noqa: E402
from graphpatch.match import select  # noqa: E402
from graphpatch.runtime.tf_gradients import control_flow  # noqa: E402
from tests.tf import live  # noqa: E402
from tests.tf.consumer import taped  # noqa: E402
from tests.tf.live import CLIP, Rule, filtered, overridden  # noqa: E402

tf1 = tf.compat.v1

TEN = [overridden({"op": "Neg"}, {"formula": "10 * dy"})]


def place_x() -> Any:
    return tf1.placeholder(tf.float32, [], name="x")


def call(x: Any) -> Any:
    return tf.function(lambda x: -x)(x)


def loop(x: Any, times: int = 2) -> Any:
    return tf.while_loop(lambda i, _: i < times, lambda i, x: (i + 1, -x), [0, x])[1]


PLACES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "the graph": (lambda x: -x, 10.0),
    "tf.function": (call, 10.0),
    "tf.while_loop": (loop, 100.0),
    "tf.cond": (lambda x: tf.cond(x < 100.0, lambda: 3.0 * -x, lambda: x), 30.0),
    "a loop in a branch": (lambda x: tf.cond(x < 100.0, lambda: loop(x), lambda: x), 100.0),
    "tf.switch_case": (
        lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: -x, lambda: 2.0 * x]), 10.0
    ),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("v2", [False, True])
def test_every_place_in_a_graph(place: str, v2: bool) -> None:
    build, expected = PLACES[place]
    with control_flow(v2), tf.Graph().as_default() as graph:
        with graphpatch.building(TEN):
            tf.identity(build(place_x()), name="y")
        assert slope(graph) == expected


@pytest.mark.parametrize("place", ["the graph", "a loop in a branch"])
@pytest.mark.parametrize("jit", [False, True])
def test_every_place_on_a_tape(place: str, jit: bool) -> None:
    build, expected = PLACES["the graph" if jit else place]
    with graphpatch.building(TEN):
        _, dx = taped(tf.function(build, jit_compile=jit), 2.0)
    assert dx.numpy() == expected


MATCHES: dict[str, tuple[dict[str, Any], int]] = {
    "op": ({"op": "Identity"}, 4),
    "name_regex": ({"name_regex": ".*/(one|two)"}, 4),
    "dtype": ({"op": "Identity", "dtype": "float64"}, 1),
    "not": ({"op": "Identity", "not": {"name": "a/**"}}, 2),
    "any": ({"any": [{"name": "a/one"}, {"name": "b/two"}]}, 2),
}


@pytest.mark.parametrize("key", MATCHES)
def test_what_a_match_may_ask(key: str) -> None:
    match, count = MATCHES[key]
    rule = {**filtered(match, {"scale": 2.0}), "expect": count}
    with tf.Graph().as_default(), graphpatch.building([rule]) as built:
        for scope in "ab":
            with tf.name_scope(scope):
                x = tf1.placeholder(tf.float32, [], name="x")
                tf.identity(x, name="one")
                tf.identity(tf.cast(x, "float64") if scope == "b" else x, name="two")
    [entry] = built.report["rules"]
    assert len(entry["matches"]) == count
    assert all(one["body"] == "main" for one in entry["matches"])


def test_conditions_are_made_once_for_all_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each op and rule: many rules on many ops took longer than TensorFlow itself."""
    made: list[Any] = []
    candidates, make = select.Candidates, select.conditions
    monkeypatch.setattr(select, "Candidates", lambda *a: made.append(a) or candidates(*a))
    monkeypatch.setattr(
        "graphpatch.runtime.building.conditions", lambda match: made.append(match) or make(match)
    )
    rules = [overridden({"op": "Neg", "name": f"{name}*"}, "identity") for name in "abc"]
    with tf.Graph().as_default(), graphpatch.building(rules) as built:
        for name in "abc" * 4:
            tf.negative(1.0, name=name)
    assert [len(rule["matches"]) for rule in built.report["rules"]] == [4, 4, 4]
    assert len(made) == len(rules)


def test_nested_contexts() -> None:
    """Filters add up; an inner override replaces an outer one; gradient_override_map does not."""
    scale, seven = [filtered({"op": "Neg"}, {"scale": 2.0})], {"formula": "7 * dy"}
    with tf.Graph().as_default() as graph:
        x = place_x()
        with graphpatch.building(scale):
            y = [-x]
            with graphpatch.building(TEN):
                y.append(-x)
                with graphpatch.building([overridden({"op": "Neg"}, seven)]):
                    y.append(-x)
                with graph.gradient_override_map({"Neg": "Identity"}):
                    y.append(-x)
            y.append(-x)
        y.append(-x)
        dx = [tf.gradients(one, x)[0] for one in y]
    assert live.run(graph, dx, {"x:0": 1.0}) == [-2.0, 20.0, 14.0, 20.0, -2.0, -1.0]


def test_each_op_has_on_record_which_rules_patched_it() -> None:
    def context(**rules: Any) -> Any:
        listed = [{"name": n, **filtered(match, {"scale": 2.0})} for n, match in rules.items()]
        return graphpatch.building(listed)

    with control_flow(True), tf.Graph().as_default() as graph:
        x = place_x()
        with context(first={"op": "Neg"}):
            loop(x)
        with context(second={"op": "Exp"}, third={"op": "Tan"}):
            tf.exp(tf.tan(x, name="tan"), name="exp")
            with context(inner={"op": "Exp"}):
                tf.exp(x, name="both")
        tf.sin(x, name="sin")
        graphpatch.patch_graph([{"name": "in place", **filtered("sin", CLIP)}])
        with context(last={"op": "Cos", "inputs": {"0": {"op": "Sin"}}}):
            tf.cos(tf.sin(x), name="cos")
    exported = graphpatch.load(graph.as_graph_def())
    rules = {
        node.name: [author.rule for author in provenance.rules_that_touched(node)]
        for body in exported.graphs[0].bodies
        for node in provenance.touched(body)
    }
    assert rules == {
        "Neg": ["first"], "tan": ["third"], "exp": ["second"], "both": ["second", "inner"],
        "sin": ["in place"], "cos": ["last"],
    }  # fmt: skip
    reverted = graphpatch.revert(exported).model.graph_def()
    assert b"graphpatch" not in reverted.SerializeToString()


def negated(graph: Any) -> None:
    with graph.as_default():
        tf.negative(place_x(), name="y")


def slope(graph: Any) -> float:
    found: float = live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0})[0]
    return found


def test_several_graphs_and_not_those_of_other_threads() -> None:
    first, second, foreign = (tf.Graph() for _ in range(3))
    with graphpatch.building([{**TEN[0], "expect": 2}]):
        negated(first)
        thread = threading.Thread(target=negated, args=[foreign])
        thread.start()
        thread.join()
        negated(second)
    assert [slope(graph) for graph in (first, second, foreign)] == [10.0, 10.0, -1.0]


def test_tensorflow_is_as_before_afterwards() -> None:
    before = tf.Graph._create_op_helper
    with graphpatch.building([{**TEN[0], "expect": 0}]):
        assert tf.Graph._create_op_helper is not before
    assert tf.Graph._create_op_helper is before
    with pytest.raises(KeyError), graphpatch.building(TEN):  # and not what the rule expects
        raise KeyError
    assert tf.Graph._create_op_helper is before


def _differentiated(x: Any) -> Any:
    return tf.gradients(tf.square(-x), x)


def defun(x: Any, body: Callable[[Any], Any] = lambda x: tf.square(-x)) -> Any:
    from tensorflow.python.framework import function

    return function.Defun(tf.float32, func_name="negated")(body)(x)


LATER: dict[str, dict[str, Any]] = {
    "consumers": {"op": "Neg", "consumers": {"any": {"op": "Square"}}},
    "inputs": {"op": "Neg", "inputs": {"0": {"op": "Tanh"}}},
    "pattern": {"pattern": "Tanh -> minus:Neg -> Square"},
    "path": {"op": "Neg", "upstream_of": "y"},
}
WAITING = overridden(LATER["consumers"], {"formula": "10 * dy"})
MATCHED = {"match": {"pattern": "Tanh -> Neg"}, "patch": {"override_gradient": "zero"}}

# A rule, what is built in the context, and what is said; on entering where nothing is built.
REFUSED: dict[str, tuple[Rule, Callable[[Any], Any] | None, str]] = {
    "too few": (TEN[0], tf.square, "of the ops made in this context it"),
    "ops that are there": (filtered({"op": "Placeholder"}, CLIP), tf.square,
        "ops that are made before it, or eager"),
    "too many": ({**TEN[0], "expect": 1}, lambda x: tf.add(-x, -x), "matched 2, expected 1"),
    "no gradient there": (
        filtered({"op": "Shape"}, CLIP),
        lambda x: tf.shape(tf1.placeholder(x.dtype, None)), "mine': Shape 'Shape'"),
    "a traced function": (WAITING, lambda x: tf.function(lambda x: tf.square(-x))(x),
        "was traced to its end"),
    "a gradient that was built": (WAITING, _differentiated, "was built inside of the context"),
    "a Defun": (TEN[0], defun, "in a Defun"),
    "a Defun, on leaving": (WAITING, defun, "in a Defun"),
    "a call in a Defun": (TEN[0], lambda x: defun(x, call), "in a Defun"),
    "a filter of a call": (filtered({"op": "*PartitionedCall"}, CLIP), call,
        "calls a function, whose gradient"),
    "a filter of complex numbers": (filtered({"op": "FFT"}, CLIP),
        lambda x: tf.signal.fft(tf.complex([x], [x])), "mine': FFT 'FFT': an input is complex"),
    "a filter that is none": (filtered({"op": "Neg"}, "default"), tf.negative, "means nothing"),
    "backward_as": ({"match": {"op": "Floor"}, "patch": {"backward_as": {"input": 0}}}, None,
        "mine'.*backward_as adds ops"),
    "a match as one op": ({**MATCHED, "patch": {"surrogate_gradient": "x", "on": "match"}}, None,
        "mine': surrogate_gradient of a match as one op"),
    "emit": ({**TEN[0], "emit": "function"}, None, "mine'.*emit: function"),
}  # fmt: skip


def building(rule: Rule, build: Callable[[Any], Any] | None, entered: list[Any]) -> None:
    with tf.Graph().as_default():
        x = place_x()
        with graphpatch.building([rule]) as context:
            entered.append(context)
            if build is not None:
                build(x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    (rule, build, says), entered = REFUSED[name], list[Any]()
    with pytest.raises(graphpatch.GraphpatchError, match=says):
        building({**rule, "name": "mine"}, build, entered)
    assert bool(entered) == (build is not None)


@pytest.mark.parametrize("key", LATER)
def test_rules_that_wait_until_the_context_is_left(key: str) -> None:
    rule = overridden(LATER[key], {"formula": "10 * dy"})
    if key == "pattern":
        rule["patch"]["on"] = "minus"
    with tf.Graph().as_default() as graph:
        x = place_x()
        tf.square(tf.negative(tf.tanh(x)), name="before")
        with graphpatch.building([{**rule, "expect": 1}]) as built:
            tf.square(tf.negative(tf.tanh(x), name="minus"), name="y")
            tf.negative(x, name="other")
    assert built.report["rules"][0]["matches"][0]["op"] == "minus"
    assert live.gradients(graph, "y:0", ["Tanh_1:0"], {"Tanh_1:0": 3.0}) == [-60.0]


@pytest.mark.parametrize("match", [{"op": "Neg"}, LATER["consumers"]])
def test_ops_beside_a_defun_are_patched(match: Any) -> None:
    main = overridden({**match, "body": "main"}, {"formula": "10 * dy"})
    with tf.Graph().as_default() as graph, graphpatch.building([main]):
        tf.square(-defun(place_x()), name="y")
    assert slope(graph) == 2.0 * -1.0 * 10.0 * 2.0


@pytest.mark.parametrize("is_built", [True, False])
def test_a_call_whose_gradient_python_holds(is_built: bool) -> None:
    """The call itself is matched: its gradient is another one, what is inside does not count."""
    rule = overridden({"op": "*PartitionedCall"}, {"formula": "10 * dy"})
    context = graphpatch.building([rule]) if is_built else nullcontext()
    with tf.Graph().as_default() as graph, context:
        tf.identity(call(place_x()), name="y")
    if not is_built:
        graphpatch.patch_graph([rule], graph, in_place=True)
    assert slope(graph) == 10.0


def test_the_borders_of_a_v1_loop() -> None:
    """A key on an Exit would compute inside of the loop what flows back outside."""
    rule = filtered({"op": "Exit", "attr": {"T": "float32"}}, {"scale": 0.5})
    with control_flow(False):
        with tf.Graph().as_default() as graph:
            tf.identity(loop(place_x()), name="y")
        patched = graphpatch.patch_graph([rule], graph)
        refused = pytest.raises(graphpatch.GraphpatchError, match="into or out of a loop")
        with tf.Graph().as_default(), refused, graphpatch.building([rule]):
            loop(place_x())
    assert not patched.in_place
    assert slope(patched.graph) == 0.5


@pytest.mark.parametrize(
    "match", [{"op": "Relu"}, {"op": "Relu", "consumers": {"any": {"op": "Mul"}}}]
)
def test_an_op_that_a_custom_gradient_leads_past_is_refused(match: dict[str, Any]) -> None:
    @tf.custom_gradient
    def doubled(x: Any) -> Any:
        return 2.0 * tf.nn.relu(x), lambda dy: dy

    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.PatchError, match="no gradient reaches Relu"),
        graphpatch.building([overridden(match, "guided_relu")]),
    ):
        doubled(place_x())


def test_ops_whose_shape_is_not_known_are_noted() -> None:
    rule = overridden({"op": "Relu", "shape": [2, None]}, "guided_relu")
    with tf.Graph().as_default(), graphpatch.building([rule]) as building:
        tf.nn.relu(tf.zeros([2, 3]))
        tf.nn.relu(tf1.placeholder(tf.float32))
    assert "shape" in " ".join(building.report["notes"])
