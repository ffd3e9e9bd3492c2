"""What `doctor` does grows with the graph, not with its square."""

from __future__ import annotations

import cProfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.node import Node
from graphpatch.protos import GraphDef, NodeDef
from tests.graphs import function, graphdef, node

pytestmark = pytest.mark.slow

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def looked(folder: Path, count: int, rules: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often an attr is read of a chain of so many Relus, while doctor is asked."""
    chain = [node(f"r{k}", "Relu", f"r{k - 1}" if k else "x", T="float32") for k in range(count)]
    path = folder / f"{count}.pb"
    message = graphdef(node("x", "Placeholder", dtype="float32"), *chain)
    path.write_bytes(message.SerializeToString())
    model = graphpatch.load(path)
    model = graphpatch.apply(rules, model).model if rules else model
    found: Counter[str] = Counter()
    before = Node.attr
    with monkeypatch.context() as patch:
        patch.setattr(Node, "attr", lambda one, key: found.update([key]) or before(one, key))
        [seen] = survey(model, ["x"], [f"r{count - 1}"])
    assert seen.diagnoses[0].verdict == "flows"
    return found.total()


@pytest.mark.parametrize("rules", [[], [GUIDED]], ids=["as it is", "patched"])
def test_a_chain_of_activations(
    tmp_path: Path, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = looked(tmp_path, 100, rules, monkeypatch)
    large = looked(tmp_path, 400, rules, monkeypatch)
    assert large < 4.5 * small


def asked_readers(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often it is asked who reads an op, of so many Relus that all read one tensor."""
    wide = [node(f"r{k}", "Relu", "x", T="float32") for k in range(count)]
    path = folder / f"wide{count}.pb"
    message = graphdef(node("x", "Placeholder", dtype="float32"), *wide)
    path.write_bytes(message.SerializeToString())
    found: Counter[int] = Counter()
    before = Wiring.readers
    with monkeypatch.context() as patch:
        patch.setattr(
            Wiring, "readers", lambda one, index: found.update([index]) or before(one, index)
        )
        [seen] = survey(graphpatch.load(path))
    assert [one.verdict for one in seen.diagnoses] == ["flows"] * count
    assert [one.target for one in seen.diagnoses] == [f"r{k}:0" for k in range(count)]
    return found.total()


def test_many_outputs_of_one_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = asked_readers(tmp_path, 100, monkeypatch)
    assert asked_readers(tmp_path, 400, monkeypatch) < 4.5 * small


@pytest.mark.parametrize("named", [(), ("x0",)], ids=["none named", "a source named"])
def test_of_very_many_pairs_some_are_looked_at(
    named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the graph is large go by: each visits much of it."""
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.MOST_VISITED", 200_000)
    count = 1_000
    sources = [node(f"x{k}", "Placeholder", dtype="float32") for k in range(count)]
    total = node("sum", "AddN", *[f"x{k}" for k in range(count)], N=count, T="float32")
    heads = [node(f"r{k}", "Relu", "sum", T="float32") for k in range(count)]
    before = time.process_time()
    [seen] = survey(graphpatch.load(graphdef(*sources, total, *heads)), named)
    assert time.process_time() - before < 20
    assert 20 < len(seen.diagnoses) < 1_000
    assert len({one.target for one in seen.diagnoses}) > 50
    assert [one.kind for one in seen.notes] == ["left_out"]
    pairs = count * (1 if named else count) - len(seen.diagnoses)
    assert seen.notes[0].says.startswith(f"{pairs:,} more pairs were not looked at")
    assert "r999:0" in seen.notes[0].ops


def test_named_pairs_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.PAIRS_AT_LEAST", 1)
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.MOST_VISITED", 0)
    x, y = (node(name, "Placeholder", dtype="float32") for name in "xy")
    model = graphpatch.load(graphdef(x, y, node("s", "Add", "x", "y"), node("r", "Relu", "s")))
    for ends, count in (((), 1), (("x", "y"), 4)):
        [seen] = survey(model, ends, ("s", "r") if ends else ())
        assert (len(seen.diagnoses), len(seen.notes)) == (count, int(not ends))


def test_pairs_for_which_hardly_an_op_is_visited_are_looked_at() -> None:
    """80 models side by side in one: 6,400 pairs, of which 80 are connected."""
    inputs = [node(f"x{k}", "Placeholder", dtype="float32") for k in range(80)]
    chains = [
        node(f"r{k}/{place}", "Relu", f"r{k}/{place - 1}" if place else f"x{k}")
        for k in range(80)
        for place in range(20)
    ]
    [seen] = survey(graphpatch.load(graphdef(*inputs, *chains)))
    assert (len(seen.diagnoses), seen.notes) == (6_400, [])
    assert [one.connected for one in seen.diagnoses].count(True) == 80
    assert [one.target for one in seen.diagnoses[:81]] == ["r0/19:0"] * 80 + ["r1/19:0"]


def test_what_blocks_a_path_is_found_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other op of a chain blocks; the ops behind each are not looked at for each of them."""
    ops = ["Relu" if k % 2 else "Round" for k in range(2_000)]
    chain = [node(f"r{k}", op, f"r{k - 1}" if k else "x") for k, op in enumerate(ops)]
    model = graphpatch.load(graphdef(node("x", "Placeholder", dtype="float32"), *chain))
    model = graphpatch.apply([GUIDED], model).model
    before = time.process_time()
    [seen] = survey(model, ["x"], ["r1999"])
    assert time.process_time() - before < 20
    assert len(seen.diagnoses[0].findings) > 999


def nested_branches(depth: int) -> GraphDef:
    """An If in an If and so on, both branches of each in one function, each with a Relu."""
    functions = []
    for place in range(depth):
        nodes = [node("r", "Relu", "a")]
        if place + 1 < depth:
            nodes.append(branch(f"f{place + 1}", "p", "r:activations:0"))
        ret = {"o": "i:output:0" if place + 1 < depth else "r:activations:0"}
        functions.append(function(f"f{place}", ["p", "a"], nodes, ret))
        functions[-1].signature.input_arg[0].type = 10
    inputs = node("b", "Placeholder", dtype="bool"), node("x", "Placeholder", dtype="float32")
    return graphdef(*inputs, branch("f0", "b", "x"), functions=functions)


def branch(body: str, condition: str, value: str) -> NodeDef:
    tensors = {"Tcond": "bool", "Tin": ["bool", "float32"], "Tout": ["float32"]}
    made = node("i", "If", condition, condition, value, **tensors)
    for key in ("then_branch", "else_branch"):
        made.attr[key].func.name = body
    return made


def test_functions_that_are_called_twice_each_are_looked_into_once() -> None:
    """Each of 100 is called by both branches of the one before: 2 ** 100 ways through them."""
    model = graphpatch.apply([GUIDED], graphpatch.load(nested_branches(100))).model
    before = time.process_time()
    [seen] = survey(model, ["x"], ["i"])
    assert time.process_time() - before < 20
    assert [one.kind for one in seen.diagnoses[0].findings] == ["carried"]


@pytest.mark.parametrize("is_patched", [False, True])
def test_a_function_of_many_outputs(is_patched: bool) -> None:
    """For each pair all outputs of the call, and all that raises inside, were gone through."""
    count = 4_000
    body = [node(f"r{k}", "Relu", "a") for k in range(count)]
    inner = function("f", ["a"], body, {f"b{k}": f"r{k}:activations:0" for k in range(count)})
    readers = [node(f"o{k}", "Relu", f"y:{k}") for k in range(count)]
    model = graphpatch.load(
        graphdef(node("x", "Placeholder"), node("y", "f", "x"), *readers, functions=[inner])
    )
    model = graphpatch.apply([GUIDED], model).model if is_patched else model
    before = time.process_time()
    [seen] = survey(model)
    assert time.process_time() - before < 12
    assert "left_out" in [one.kind for one in seen.notes]


def test_the_page_of_nested_calls() -> None:
    """Of each function all that raises in those within was gone through: 4,000 took 20 s."""
    assert calls_for_page(1_000) < 5 * calls_for_page(250)


def calls_for_page(depth: int) -> int:
    """How many functions of Python run for a page of so many calls within each other."""
    functions = []
    for k in range(depth):
        deeper = [] if k + 1 == depth else [node("c", f"f{k + 1}", "r:activations:0")]
        gives = "c:o:0" if deeper else "r:activations:0"
        functions.append(function(f"f{k}", ["a"], [node("r", "Relu", "a"), *deeper], {"o": gives}))
    model = graphpatch.load(
        graphdef(node("x", "Placeholder"), node("y", "f0", "x"), functions=functions)
    )
    model = graphpatch.apply([GUIDED], model).model
    with cProfile.Profile() as profile:
        assert graphpatch.view(model).document()["graphs"]
    return sum(entry.callcount for entry in profile.getstats())
