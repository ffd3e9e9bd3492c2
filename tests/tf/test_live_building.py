"""Ops that get their gradients as they are made, beside TensorFlow's own gradient_override_map."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from tests.tf import live  # noqa: E402
from tests.tf.live import CLIP, Rule, filtered, overridden  # noqa: E402

tf1 = tf.compat.v1

TEN = [overridden({"op": "Neg"}, {"formula": "10 * dy"})]


@pytest.fixture(scope="module", autouse=True)
def _ten() -> None:
    tf.RegisterGradient("LiveTen")(lambda op, dy: 10.0 * dy)


def call(x: Any) -> Any:
    return tf.function(lambda x: -x)(x)


def nested_call(x: Any) -> Any:
    return tf.function(lambda x: tf.function(lambda x: -x)(x))(x)


def loop(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, -x), [0, x])[1]


def branch(x: Any) -> Any:
    return tf.cond(x < 100.0, lambda: 3.0 * -x, lambda: x)


def loop_in_branch(x: Any) -> Any:
    return tf.cond(x < 100.0, lambda: loop(x), lambda: x)


def mapped(x: Any) -> Any:
    return tf.reduce_sum(tf.map_fn(lambda x: -x, tf.stack([x, x])))


def compiled(x: Any) -> Any:
    return tf.function(lambda x: -x, jit_compile=True)(x)


def case(x: Any) -> Any:
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: -x, lambda: 2.0 * x])


PLACES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "the graph": (lambda x: -x, 10.0),
    "tf.function": (call, 10.0),
    "tf.function in tf.function": (nested_call, 10.0),
    "tf.while_loop": (loop, 100.0),
    "tf.cond": (branch, 30.0),
    "a loop in a branch": (loop_in_branch, 100.0),
    "tf.map_fn": (mapped, 20.0),
    "tf.switch_case": (case, 10.0),
}


def in_session(build: Callable[[Any], Any], rules: list[Rule]) -> float:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [], name="x")
        with graphpatch.building(rules):
            y = build(x)
        [dx] = tf.gradients(y, x)
    found: float = live.run(graph, [dx], {"x:0": 2.0})[0]
    return found


@pytest.mark.every(4)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("v2", [False, True])
def test_every_place_in_a_graph(place: str, v2: bool) -> None:
    build, expected = PLACES[place]
    (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()
    try:
        assert in_session(build, TEN) == expected
    finally:
        tf1.enable_control_flow_v2()


@pytest.mark.every(3)
@pytest.mark.parametrize("place", [*PLACES, "compiled"])
def test_every_place_on_a_tape(place: str) -> None:
    build, expected = {**PLACES, "compiled": (compiled, 10.0)}[place]
    x = tf.constant(2.0)
    with graphpatch.building(TEN), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(build)(x)
    assert tape.gradient(y, x).numpy() == expected


SURROGATES: dict[str, tuple[dict[str, Any], float]] = {
    "surrogate_gradient": ({"surrogate_gradient": "5 * x * x"}, 20.0),
    "straight_through": ({"straight_through": True}, 1.0),
    "filter_gradient": ({"filter_gradient": CLIP}, -0.1),
    "a registered filter": ({"filter_gradient": {"registered": "LiveTen"}}, -10.0),
    "filter at inputs": ({"filter_gradient": {"scale": 0.5}, "at": "inputs"}, -0.5),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", SURROGATES)
@pytest.mark.parametrize("place", ["the graph", "tf.function", "tf.while_loop", "tf.cond"])
@pytest.mark.parametrize("v2", [False, True])
def test_every_kind_of_patch(kind: str, place: str, v2: bool) -> None:
    patch, slope = SURROGATES[kind]
    builds: dict[str, tuple[Callable[[Any], Any], float]] = {
        "the graph": (lambda x: -x, slope),
        "tf.function": (call, slope),
        "tf.while_loop": (
            lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, -x), [0, x])[1],
            slope,
        ),
        "tf.cond": (lambda x: tf.cond(x < 100.0, lambda: -x, lambda: x), slope),
    }
    build, expected = builds[place]
    (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()
    try:
        found = in_session(build, [{"match": {"op": "Neg"}, "patch": patch}])
    finally:
        tf1.enable_control_flow_v2()
    assert found == pytest.approx(expected)


def test_it_sets_what_gradient_override_map_sets() -> None:
    with tf.Graph().as_default() as oracle, oracle.gradient_override_map({"Neg": "LiveTen"}):
        loop(tf1.placeholder(tf.float32, [], name="x"))
    rule = overridden({"op": "Neg"}, {"registered": "LiveTen"})
    with tf.Graph().as_default() as graph, graphpatch.building([rule]):
        loop(tf1.placeholder(tf.float32, [], name="x"))
    keys = [
        {
            node.name: node.attr["_gradient_op_type"].s
            for function in one.as_graph_def().library.function
            for node in function.node_def
            if "_gradient_op_type" in node.attr
        }
        for one in (oracle, graph)
    ]
    # The map is of one graph, and the loop's body is another: there it does nothing.
    assert keys[0] == {}
    assert list(keys[1].values()) == [b"LiveTen"]


MATCHES: dict[str, tuple[dict[str, Any], int]] = {
    "op": ({"op": "Identity"}, 4),
    "glob": ({"op": "Ident*", "name": "a/*"}, 2),
    "name": ({"name": "a/one"}, 1),
    "name_regex": ({"name_regex": ".*/(one|two)"}, 4),
    "attr": ({"op": "Identity", "attr": {"T": "float64"}}, 1),
    "dtype": ({"op": "Identity", "dtype": "float64"}, 1),
    "not": ({"op": "Identity", "not": {"name": "a/**"}}, 2),
    "any": ({"any": [{"name": "a/one"}, {"name": "b/two"}]}, 2),
    "main": ({"op": "Identity", "name": "**/two", "body": "main"}, 2),
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


def test_bodies_by_name() -> None:
    rule = overridden({"op": "Neg", "body": "while_body*"}, {"formula": "10 * dy"})
    with tf.Graph().as_default(), graphpatch.building([{**rule, "expect": 1}]) as built:
        x = tf1.placeholder(tf.float32, [], name="x")
        loop(-x)
    [[match]] = [one["matches"] for one in built.report["rules"]]
    assert match["body"].startswith("while_body")


def test_nested_contexts() -> None:
    scale = [filtered({"op": "Neg"}, {"scale": 2.0})]
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [], name="x")
        with graphpatch.building(scale):
            outer = -x
            with graphpatch.building(TEN):
                both = -x
            after = -x
        none = -x
        found = [tf.gradients(y, x)[0] for y in (outer, both, after, none)]
    assert live.run(graph, found, {"x:0": 1.0}) == [-2.0, 20.0, -2.0, -1.0]


def test_an_inner_context_overrides_an_outer_one() -> None:
    with tf.Graph().as_default() as graph, graphpatch.building(TEN):
        x = tf1.placeholder(tf.float32, [], name="x")
        first = -x
        with graphpatch.building([overridden({"op": "Neg"}, {"formula": "7 * dy"})]):
            y = -x
        with graph.gradient_override_map({"Neg": "Identity"}):
            z = -x
        found = [tf.gradients(one, x)[0] for one in (first, y, z)]
    assert live.run(graph, found, {"x:0": 1.0}) == [10.0, 7.0, 10.0]


def test_several_graphs() -> None:
    graphs = [tf.Graph(), tf.Graph()]
    with graphpatch.building([{**TEN[0], "expect": 2}]):
        for graph in graphs:
            with graph.as_default():
                tf.negative(tf1.placeholder(tf.float32, [], name="x"), name="y")
    for graph in graphs:
        assert live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0}) == [10.0]


def test_ops_of_other_threads_are_not_meant() -> None:
    graphs = [tf.Graph(), tf.Graph()]

    def build(graph: Any) -> None:
        with graph.as_default():
            tf.negative(tf1.placeholder(tf.float32, [], name="x"), name="y")

    with graphpatch.building([{**TEN[0], "expect": 1}]):
        thread = threading.Thread(target=build, args=[graphs[0]])
        thread.start()
        thread.join()
        build(graphs[1])
    found = [live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0})[0] for graph in graphs]
    assert found == [-1.0, 10.0]


def test_two_threads_with_rules_of_their_own() -> None:
    found: dict[float, float] = {}
    barrier = threading.Barrier(4)

    def build(factor: float) -> None:
        rule = overridden({"op": "Neg"}, {"formula": f"{factor} * dy"})
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [], name="x")
            with graphpatch.building([{**rule, "expect": 20}]):
                barrier.wait()
                y = x
                for _ in range(20):
                    y = -y
                barrier.wait()
            dx = tf.gradients(y, x)
            found[factor] = live.run(graph, dx, {"x:0": 1.0})[0]

    threads = [threading.Thread(target=build, args=[float(n)]) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {float(n): float(n) ** 20 for n in (1, 2, 3, 4)}


def test_tensorflow_is_as_before_afterwards() -> None:
    before = tf.Graph._create_op_helper
    with graphpatch.building([{**TEN[0], "expect": 0}]):
        assert tf.Graph._create_op_helper is not before
    assert tf.Graph._create_op_helper is before
    with pytest.raises(KeyError), graphpatch.building(TEN):
        raise KeyError
    assert tf.Graph._create_op_helper is before


def test_a_rule_that_matched_too_few_or_too_many_is_told_on_leaving() -> None:
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [], name="x")
        y = -x  # before the context: not meant
        with (
            pytest.raises(graphpatch.GraphpatchError, match="of the ops made in this context it"),
            graphpatch.building(TEN),
        ):
            tf.square(y)
        with (
            pytest.raises(graphpatch.GraphpatchError, match="matched 2, expected 1"),
            graphpatch.building([{**TEN[0], "expect": 1}]),
        ):
            tf.add(-x, -x)


def test_an_exception_is_not_replaced_by_what_a_rule_expects() -> None:
    with pytest.raises(ZeroDivisionError), graphpatch.building(TEN):
        _ = 1 / 0


def test_a_rule_that_means_nothing_where_it_matched() -> None:
    rule = filtered({"op": "Shape"}, CLIP)
    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.GraphpatchError, match="rule 'rule 1': Shape 'Shape'"),
        graphpatch.building([rule]),
    ):
        tf.shape(tf1.placeholder(tf.float32, None, name="x"))


LATER: dict[str, dict[str, Any]] = {
    "consumers": {"op": "Neg", "consumers": {"any": {"op": "Square"}}},
    "inputs": {"op": "Neg", "inputs": {"0": {"op": "Tanh"}}},
    "pattern": {"pattern": "Tanh -> minus:Neg -> Square"},
    "path": {"op": "Neg", "upstream_of": "y"},
}


@pytest.mark.parametrize("key", LATER)
def test_rules_that_wait_until_the_context_is_left(key: str) -> None:
    rule = overridden(LATER[key], {"formula": "10 * dy"})
    if key == "pattern":
        rule["patch"]["on"] = "minus"
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [], name="x")
        tf.square(tf.negative(tf.tanh(x)), name="before")
        with graphpatch.building([{**rule, "expect": 1}]) as built:
            tf.square(tf.negative(tf.tanh(x), name="minus"), name="y")
            tf.negative(x, name="other")
        dx = tf.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("Tanh_1:0"))
    assert built.report["rules"][0]["matches"][0]["op"] == "minus"
    assert live.run(graph, dx, {"Tanh_1:0": 3.0}) == [-60.0]


def test_a_waiting_rule_is_told_what_it_cannot_do() -> None:
    rule = overridden(LATER["consumers"], {"formula": "10 * dy"})
    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.GraphpatchError, match="was traced to its end"),
        graphpatch.building([rule]),
    ):
        tf.function(lambda x: tf.square(-x))(tf.constant(1.0))
    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.GraphpatchError, match="was built inside of the context"),
        graphpatch.building([rule]),
    ):
        _differentiated(tf1.placeholder(tf.float32, [], name="x"))


def _differentiated(x: Any) -> Any:
    return tf.gradients(tf.square(-x), x)


def defun(x: Any, negated: Callable[[Any], Any] = lambda x: tf.square(-x)) -> Any:
    from tensorflow.python.framework import function

    return function.Defun(tf.float32, func_name="negated")(negated)(x)


def defun_with_a_call(x: Any) -> Any:
    return defun(x, tf.function(lambda x: tf.square(-x)))


@pytest.mark.parametrize("build", [defun, defun_with_a_call])
@pytest.mark.parametrize("match", [{"op": "Neg"}, LATER["consumers"]])
def test_ops_in_a_defun_are_refused(build: Callable[[Any], Any], match: Any) -> None:
    """TensorFlow differentiates a Defun in C++, where it looks at no key."""
    rule = overridden(match, {"formula": "10 * dy"})
    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.PatchError, match="in a Defun"),
        graphpatch.building([rule]),
    ):
        build(tf1.placeholder(tf.float32, [], name="x"))
    with tf.Graph().as_default() as graph:
        main = overridden({**match, "body": "main"}, {"formula": "10 * dy"})
        with graphpatch.building([main]):
            x = tf1.placeholder(tf.float32, [], name="x")
            tf.square(-build(x), name="y")
        if build is defun:  # C++ has no gradient of the call in the other
            assert live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0}) == [2.0 * -1.0 * 10.0 * 2.0]


def test_a_waiting_rule_inside_of_the_function() -> None:
    rule = overridden(LATER["consumers"], {"formula": "10 * dy"})

    @tf.function
    def function(x: Any) -> Any:
        with graphpatch.building([rule]):
            return tf.square(-x)

    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert tape.gradient(y, x).numpy() == -40.0


REFUSED: dict[str, tuple[Rule, str]] = {
    "backward_as": (
        {"match": {"op": "Floor"}, "patch": {"backward_as": {"input": 0}}},
        "backward_as adds ops",
    ),
    "a match as one op": (
        {
            "match": {"pattern": "Tanh -> Neg"},
            "patch": {"override_gradient": "zero", "on": "match"},
        },
        '"on": "match"',
    ),
    "emit": ({**TEN[0], "emit": "function"}, "emit: function"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_on_entering(kind: str) -> None:
    rule, reason = REFUSED[kind]
    entered = False
    with (
        pytest.raises(graphpatch.GraphpatchError, match="rule 'mine'.*" + reason),
        graphpatch.building([{**rule, "name": "mine"}]),
    ):
        entered = True
    assert not entered


def test_ops_that_are_imported_inside() -> None:
    with tf.Graph().as_default() as original:
        tf.negative(tf1.placeholder(tf.float32, [], name="x"), name="y")
    with tf.Graph().as_default() as graph, graphpatch.building(TEN):
        tf.graph_util.import_graph_def(original.as_graph_def(), name="")
    assert live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0}) == [10.0]


def test_a_call_whose_gradient_python_holds() -> None:
    """The call itself is matched: its gradient is another one, what is inside does not count."""
    rule = overridden({"op": "*PartitionedCall"}, {"formula": "10 * dy"})
    with tf.Graph().as_default() as graph, graphpatch.building([rule]):
        tf.identity(call(tf1.placeholder(tf.float32, [], name="x")), name="y")
    assert live.gradients(graph, "y:0", ["x:0"], {"x:0": 1.0}) == [10.0]
    with (
        tf.Graph().as_default(),
        pytest.raises(graphpatch.GraphpatchError, match="calls a function"),
        graphpatch.building([filtered({"op": "*PartitionedCall"}, CLIP)]),
    ):
        call(tf1.placeholder(tf.float32, [], name="x"))


def test_what_was_built_can_be_written_and_loaded(tmp_path: Path) -> None:
    """A SavedModel of what was built: its key is that of `emit: attr`, in another graph too."""
    with tf.Graph().as_default() as graph, graphpatch.building(TEN) as built:
        loop(tf1.placeholder(tf.float32, [], name="x"))
        tf.identity(graph.get_operations()[-1].outputs[0], name="y")
    path = tmp_path / "built.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    assert graphpatch.register_gradients(path) == built.report["consumer"]["session"]
    with tf.Graph().as_default() as loaded:
        graphpatch.import_model(path)
    assert live.gradients(loaded, "y:0", ["x:0"], {"x:0": 2.0}) == [100.0]


def test_the_borders_of_a_v1_loop() -> None:
    """A key on an Exit would compute inside of the loop what flows back outside."""
    rule = filtered({"op": "Exit", "attr": {"T": "float32"}}, {"scale": 0.5})
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            tf.identity(loop(tf1.placeholder(tf.float32, [], name="x")), name="y")
        patched = graphpatch.patch_graph([rule], graph)
        with (
            tf.Graph().as_default(),
            pytest.raises(graphpatch.GraphpatchError, match="into or out of a loop"),
            graphpatch.building([rule]),
        ):
            loop(tf1.placeholder(tf.float32, [], name="x"))
    finally:
        tf1.enable_control_flow_v2()
    assert not patched.in_place
    assert live.gradients(patched.graph, "y:0", ["x:0"], {"x:0": 1.0}) == [0.5]


@pytest.mark.parametrize("patch", [{"filter_gradient": "identity"}, {"override_gradient": "Relu"}])
def test_a_rule_that_changes_nothing_is_named(patch: dict[str, Any]) -> None:
    rules = [{"name": "r", "match": {"op": "Relu"}, "patch": patch}]

    def build() -> None:
        tf.nn.relu(tf.nn.relu(tf.zeros([2])))

    with tf.Graph().as_default() as graph:
        build()
    with tf.Graph().as_default(), graphpatch.building(rules) as found:
        build()
    for notes in (graphpatch.patch_graph(rules, graph).report["notes"], found.report["notes"]):
        assert len(notes) == 1
        assert notes[0].startswith("rule 'r' changes nothing: ")
