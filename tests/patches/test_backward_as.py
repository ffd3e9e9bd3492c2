"""backward_as, without TensorFlow: what is cloned, what is shared, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import GraphpatchError, PatchError, RulesError
from graphpatch.graph import provenance
from graphpatch.graph.node import Body
from graphpatch.patches.backward_as import MOST_AGAIN
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import const, function, graphdef, node
from tests.patches.one_op import applied, main_of

X, U = node("x", "Placeholder"), node("u", "Placeholder")
NOISY = (X, U, node("n", "Mul", "x", "u"))


def clean_rule(match: Any = None, **keys: Any) -> dict[str, Any]:
    found = {key: keys.pop(key) for key in ("input", "until") if key in keys}
    return {"match": match or {"name": "n"}, "patch": {"backward_as": found}, **keys}


def clean_path(*nodes: Any, functions: Any = (), **keys: Any) -> graphpatch.Result:
    return applied(clean_rule(**keys), *nodes, functions=functions)


def cloned(body: Body) -> set[str]:
    """The originals that have clones."""
    return {name for one in body if (name := provenance.clone_of(one))}


def test_what_lies_between_is_cloned_on_the_clean_input() -> None:
    body = main_of(clean_path(*NOISY, node("t", "Tanh", "n"), node("z", "Sqrt", "t")))
    assert cloned(body) == {"t", "z"}
    assert body.node("t/clean").inputs == ("n/clean/BroadcastTo",)
    assert body.node("n/clean/BroadcastTo").inputs == ("x", "n/clean/Shape")
    assert body.node("z/clean").inputs == ("t/clean",)
    assert body.node("z").op == "Select"
    assert body.node("z").inputs == ("z/true", "z/stop", "z/clean")
    assert body.node("z/forward").inputs == ("t",)
    assert {one.name for one in body if provenance.shadow(one)} == {"n", "t", "z/forward"}


def test_an_op_that_keeps_its_shape_is_just_left_out() -> None:
    nodes = (X, node("n", "Round", "x"), node("z", "Tanh", "n"))
    assert main_of(clean_path(*nodes)).node("z/clean").inputs == ("x",)


def test_the_noisy_op_itself_as_the_end() -> None:
    body = main_of(clean_path(*NOISY, node("y", "Tanh", "n"), until="n"))
    assert cloned(body) == set()
    assert body.node("n").inputs == ("n/true", "n/stop", "n/repeat/BroadcastTo")
    assert body.node("n/repeat/BroadcastTo").inputs[0] == "x"
    assert body.node("n/repeat/Shape").inputs == ("n/stop",)


def test_what_is_not_behind_the_noise_is_shared() -> None:
    nodes = (*NOISY, const("w"), node("m", "Mul", "n", "w"), node("z", "AddV2", "m", "x"))
    body = main_of(clean_path(*nodes))
    assert cloned(body) == {"m", "z"}
    assert body.node("m/clean").inputs == ("n/clean/BroadcastTo", "w")
    assert body.node("z/clean").inputs == ("m/clean", "x")


def test_random_numbers_of_a_noisy_shape_are_drawn_once() -> None:
    draw = node("r", "RandomUniform", "s", T="int32", dtype="float32")
    nodes = (*NOISY, node("s", "Shape", "n"), draw, node("z", "Mul", "n", "r"))
    body = main_of(clean_path(*nodes))
    assert cloned(body) == {"z"}
    assert body.node("z/clean").inputs == ("n/clean/BroadcastTo", "r")


def test_control_inputs_and_attrs_are_those_of_the_original() -> None:
    held = node("t", "LeakyRelu", "n", "^u", alpha=0.5, _class=[b"loc:@x"])
    body = main_of(clean_path(*NOISY, held))
    clone = body.node("t/clean")
    assert clone.inputs == ("n/clean/BroadcastTo", "^u")
    for key in ("alpha", "_class"):
        assert clone.attr(key) == body.node("t/forward").attr(key)


def test_several_outputs() -> None:
    split = (const("axis"), node("p", "Unpack", "n", num=2), node("y", "Tanh", "p:1"))
    body = main_of(clean_path(*NOISY, *split, until=["p:1", "p"]))
    assert body.node("p").op == "IdentityN"
    assert body.node("p").inputs == ("p/join_0", "p/join_1")
    assert body.node("p/join_1").inputs == ("p/true_1", "p/stop_1", "p/clean:1")
    assert body.node("y").inputs == ("p:1",)


def test_in_a_function_up_to_its_outputs() -> None:
    nodes = [node("n", "Round", "a"), node("t", "Tanh", "n:y:0")]
    inner = function("f", ["a"], nodes, {"out": "t:y:0"})
    result = clean_path(X, node("call", "f", "x"), functions=[inner])
    body = result.model.graphs[0].functions["f"]
    assert body.node("t/clean").inputs == ("a",)
    assert body.node("t").inputs[0] == "t/clean:y:0"
    assert body.ret == {"out": body.node("t").tensor(0)}
    assert result.report["rules"][0]["emit"] == "function"
    assert any("takes its gradient at noisy values" in note for note in result.report["notes"])


def test_two_rules_whatever_their_order(tmp_path: Path) -> None:
    nodes = (*NOISY, node("m", "AddV2", "u", "n"), node("z", "Tanh", "m"))
    first, second = clean_rule(name="first"), clean_rule({"name": "m"}, input=1, name="second")
    path = tmp_path / "model.pb"
    path.write_bytes(graphdef(*nodes).SerializeToString())
    for rules in ([first, second], [second, first]):
        body = graphpatch.apply(rules, path).model.graphs[0].main
        ways = [one for one in body if one.op == "Tanh"]
        reads = [body.producer(one.inputs[0]) for one in ways]
        sources = {one.inputs[0] for one in reads if one is not None and one.op == "BroadcastTo"}
        assert len(ways) == 4
        assert "n/clean/BroadcastTo" in sources


TANH = node("z", "Tanh", "n")
STATE = "has a state, and must not run twice"
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("no such tensor", (*NOISY, TANH), {"until": "zz"}, "there is no tensor 'zz' in main"),
    ("no such output", (*NOISY, TANH), {"until": "z:1"}, "there is no tensor 'z:1' in main"),
    ("not behind it", (*NOISY, TANH), {"until": "x"}, "\"until\": x does not depend on Mul 'n'"),
    ("no such input", (*NOISY, TANH), {"input": 2}, "has no x2; its inputs are x0 and x1"),
    ("a list of none", (*NOISY, TANH), {"until": []}, "until: expected a list of at least 1"),
    (
        "an integer at the end",
        (*NOISY, node("z", "Cast", "n", SrcT="float32", DstT="int32")),
        {"until": "z"},
        "\"until\": z is int32, which carries no gradient",
    ),
    (
        "another shape",
        (X, U, node("n", "MatMul", "x", "u"), TANH),
        {},
        "MatMul 'n' is not known to keep the shape of input 0",
    ),
    (
        "another dtype",
        (X, node("n", "Cast", "x", SrcT="float32", DstT="float64"), TANH),
        {},
        "cannot count as x0, which has another dtype",
    ),
    (
        "a state between",
        (*NOISY, node("c", "CheckNumerics", "n", message=b"no"), node("z", "Tanh", "c")),
        {},
        f"CheckNumerics 'c' {STATE}",
    ),
    (
        "a way through a placeholder",
        (*NOISY, node("p", "PlaceholderWithDefault", "n", dtype="float32"),
         node("z", "Tanh", "p")),
        {},
        "'p' may be fed, and a clone of it is not",
    ),
    (
        "a branch between",
        (*NOISY, node("b", "Placeholder", dtype="bool"), node("s", "Switch", "n", "b"),
         node("z", "Tanh", "s:1")),
        {},
        "Switch 's' leads into or out of a loop or branch, which cannot be cloned in part",
    ),
    (
        "an unknown op",
        (*NOISY, node("c", "Unheard", "n"), node("z", "Tanh", "c")),
        {},
        "op type Unheard is not known, so it may not be safe to run twice",
    ),
    (
        "an op that gives no gradient on",
        (*NOISY, node("r", "RandomStandardNormal", "s", T="int32", dtype="float32"),
         node("s", "Shape", "n")),
        {"until": "r"},
        "no gradient flows back through RandomStandardNormal 'r'",
    ),
    (
        "noise that comes to nothing",
        (X, U, node("m", "Mul", "u", "u"), node("n", "Mul", "x", "m"), TANH),
        {"match": {"op": "Mul"}},
        "Mul 'm': no noise-free path leads from it to z; leave it out",
    ),
    (
        "nothing behind it",
        (X, U, node("n", "Mul", "x", "u"), node("i", "Shape", "n")),
        {"until": "i"},
        "carries no gradient",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "keys", "said"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_refused(nodes: Any, keys: Any, said: str) -> None:
    with pytest.raises(GraphpatchError) as error:
        clean_path(*nodes, **keys)
    assert said in str(error.value)


def test_an_unknown_key_names_those_that_are_legal() -> None:
    patch = {"backward_as": {"input": 0, "untill": ["z"]}}
    with pytest.raises(RulesError, match=r"patch.backward_as: unknown key 'untill'.* until"):
        rules_from([{"match": {"name": "n"}, "patch": patch}])


def test_no_rule_reaches_what_is_behind_it() -> None:
    model = clean_path(*NOISY, node("t", "Tanh", "n"), node("z", "Sqrt", "t")).model
    stop = {"match": {"name": "t"}, "patch": {"stop_gradient": True}}
    with pytest.raises(PatchError, match="no gradient reaches Tanh 't' any more"):
        graphpatch.apply([stop], model)
    graphpatch.apply([{**stop, "match": {"name": "t/clean"}}], model)


def test_a_function_with_a_state_between() -> None:
    draw = node("r", "RandomUniform", "s:output:0", T="int32", dtype="float32")
    nodes = [node("s", "Shape", "a"), draw, node("m", "Mul", "a", "r:output:0")]
    inner = function("f", ["a"], nodes, {"out": "m:z:0"})
    with pytest.raises(PatchError, match=f"f 'call' {STATE}"):
        clean_path(*NOISY, node("call", "f", "n"), functions=[inner])
    inner = function("f", ["a"], [node("m", "Tanh", "a")], {"out": "m:y:0"})
    body = main_of(clean_path(*NOISY, node("call", "f", "n"), functions=[inner]))
    assert cloned(body) == {"call"}


def test_the_same_file_on_every_run() -> None:
    once, again = (clean_path(*NOISY, TANH).model.graphs[0] for _ in range(2))
    assert graphs.written(once) == graphs.written(again)


def test_rules_that_would_double_the_path_each_time_are_refused() -> None:
    """Twenty rules on one path were a million clones, and no end."""
    relus = [node(f"r{n}", "Relu", "x") for n in range(20)]
    model = graphdef(X, *relus, node("s", "AddN", *(f"r{n}" for n in range(20)), N=20))
    rules = [clean_rule({"name": f"r{n}"}) for n in range(20)]
    with pytest.raises(PatchError, match=r"were added by earlier rules.* to one rule"):
        graphpatch.apply(rules, model)
    graphpatch.apply(rules[:4], model)
    graphpatch.apply([clean_rule({"name": "r*"})], model)


def test_ops_beside_the_path_do_not_let_it_double_longer() -> None:
    """An op of 6,000 inputs let it grow to 22,000 clones, which took 30 s."""
    relus = [node(f"r{n}", "Relu", "x") for n in range(20)]
    wide = node("wide", "AddN", *["x"] * 6_000, N=6_000)
    model = graphdef(X, wide, *relus, node("s", "AddN", *(f"r{n}" for n in range(20)), N=20))
    rules = [clean_rule({"name": f"r{n}"}) for n in range(20)]
    with pytest.raises(PatchError, match=r"rule \d+': \d{1,3} of the \d{1,3} ops"):
        graphpatch.apply(rules, model)


def test_four_rules_on_a_long_path_are_not_refused() -> None:
    """How much may be cloned again grows with the path."""
    relus = [node(f"r{n}", "Relu", f"r{n - 1}" if n else "n") for n in range(300)]
    model = graphdef(*NOISY, *relus)
    rules = [clean_rule({"name": name}) for name in ("n", "r1", "r2", "r3")]
    main = main_of(graphpatch.apply(rules, model))
    assert len(main) > MOST_AGAIN
