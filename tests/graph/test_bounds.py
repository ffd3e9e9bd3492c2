"""Graphs that are made to be too much, or that no graph may be: a message, and soon."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from graphpatch import apply, diagnose, load
from graphpatch.analysis.diff import diff
from graphpatch.errors import GraphpatchError, ModelError, PatchError, RulesError
from graphpatch.formats.text import parse_text
from graphpatch.graph import check
from graphpatch.graph import graph as heads
from graphpatch.graph.check import check_graph
from graphpatch.graph.wire import encoded
from graphpatch.protos import FunctionDef, NodeDef
from graphpatch.rules import rules_in
from tests import graphs
from tests.graphs import node

pytestmark = pytest.mark.slow

RELU = {"op": "Relu"}
GUIDED = [{"match": RELU, "patch": {"override_gradient": "guided_relu"}}]
STOP = [{"match": RELU, "patch": {"stop_gradient": True}}]
BACKWARD_AS = [{"match": RELU, "patch": {"backward_as": {"input": 0}}}]
MEMORY = 1 << 29  # bytes; what is read of such a model at most
NOOP = encoded(1, encoded(1, b"x") + encoded(2, b"NoOp"))


def saved(path: Path, *nodes: object, functions: Iterable[FunctionDef] = ()) -> Path:
    graph = graphs.graphdef(node("x", "Placeholder"), *nodes)
    graph.library.function.extend(functions)
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


def said_within(memory: int, path: Path) -> str:
    """What `ops` says of a model that it refuses, with so many bytes of memory and 10 s."""
    command = [sys.executable, "-m", "graphpatch", "ops", str(path)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))

    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def test_a_million_functions(tmp_path: Path) -> None:
    function = encoded(1, encoded(1, encoded(1, b"f0000000"))).replace(b"0000000", b"%07d")
    functions = b"".join(function % number for number in range(1_000_000))
    (tmp_path / "m.pb").write_bytes(NOOP + encoded(2, functions))
    said = said_within(MEMORY, tmp_path / "m.pb")
    assert "more than 200,000 fields in the message at byte" in said


def test_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MOST_NODES", 1000)
    (tmp_path / "m.pb").write_bytes(NOOP * 1001)
    with pytest.raises(ModelError, match="more than 1,000 nodes; graphpatch reads no more"):
        load(tmp_path / "m.pb")


def test_what_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of 1,000,000 ops as functions made 2,000,003 nodes, which revert refused."""
    chain = [node(f"r{k}", "Relu", f"r{k - 1}" if k else "x") for k in range(50)]
    model = load(graphs.graphdef(node("x", "Placeholder"), *chain))
    monkeypatch.setattr(check, "MOST_NODES", 100)
    with pytest.raises(PatchError, match=r"nodes with those that rules added; .*patch fewer ops"):
        apply(GUIDED, model)


@pytest.mark.parametrize("next_of", [lambda k: k, lambda k: k ^ 1], ids=["itself", "each other"])
def test_functions_that_call_in_circles(next_of: Callable[[int], int], tmp_path: Path) -> None:
    functions = []
    for number in range(2):
        body = [node("r", "Relu", "a"), node("c", f"f{next_of(number)}", "r:activations:0")]
        functions.append(graphs.function(f"f{number}", ["a"], body, {"b": "c:b:0"}))
    path = saved(tmp_path / "m.pb", node("y", "f0", "x"), functions=functions)
    for rules in (GUIDED, STOP, BACKWARD_AS):
        assert len(apply(rules, path).report["rules"][0]["matches"]) == 2


def test_calls_1500_deep(tmp_path: Path) -> None:
    def calls(number: int) -> FunctionDef:
        body = [node("c", f"f{number + 1}", "a")] if number < 1499 else [node("c", "Relu", "a")]
        arg = "b" if number < 1499 else "activations"
        return graphs.function(f"f{number}", ["a"], body, {"b": f"c:{arg}:0"})

    path = saved(tmp_path / "m.pb", node("y", "f0", "x"), functions=map(calls, range(1500)))
    for rules in (GUIDED, STOP):
        assert apply(rules, path).report["rules"][0]["matches"]


@pytest.mark.parametrize("op", ["Relu", "Add", "AddN"])
def test_ops_with_too_few_inputs(tmp_path: Path, op: str) -> None:
    attrs = {"N": 2} if op == "AddN" else {}
    path = saved(tmp_path / "m.pb", node("y", op, **attrs), node("z", "Relu", "y"))
    for patch in (
        {"override_gradient": {"formula": "dy"}},
        {"surrogate_gradient": "tanh(x)"},
        {"backward_as": {"input": 0}},
        {"straight_through": {"input": 0}},
        {"stop_gradient": True},
    ):
        with pytest.raises(GraphpatchError, match=r"the model is broken there"):
            apply([{"match": {"op": op, "name": "y"}, "patch": patch}], path)


@pytest.mark.parametrize(("dtype", "number"), [("float16", 19), ("bfloat16", 14), ("uint8", 4)])
def test_constants_out_of_range(tmp_path: Path, dtype: str, number: int) -> None:
    one, other = (node("c", "Const", dtype=dtype) for _ in range(2))
    for const, value in ((one, 226_476_016), (other, 1)):
        const.attr["value"].tensor.dtype = number
        values = "int_val" if dtype == "uint8" else "half_val"
        getattr(const.attr["value"].tensor, values).append(value)
    left, right = saved(tmp_path / "a.pb", one), saved(tmp_path / "b.pb", other)
    try:
        diff(load(left), load(right))
    except ModelError as error:
        assert "holds a value that none is" in str(error)  # noqa: PT017


def test_rules_that_are_nested_deeply() -> None:
    deep = b'{"version":1,"rules":[{"match":' + b'{"not":' * 2000 + b"{}" + b"}" * 2000
    for raw in (deep + b',"patch":{"stop_gradient":true}}]}', b"[" * 100_000, b'{"a":' * 9000):
        with pytest.raises(RulesError):
            rules_in(raw, "rules.json")
    match = '{"not":' * 100 + '{"op":"Relu"}' + "}" * 100
    rules = '{"version":1,"rules":[{"match":' + match + ',"patch":{"stop_gradient":true}}]}'
    assert len(rules_in(rules.encode(), "rules.json")) == 1


def test_text_that_is_nested_deeply() -> None:
    text = b'node { attr { key: "a" value { func { ' + b'attr { key: "a" value { func { ' * 2000
    with pytest.raises(ModelError):
        parse_text(text + b"}}}" * 2001 + b"}")


def branching(name: str, callee: str, condition: str, value: str) -> NodeDef:
    """An If whose branches are both one function, of a bool and a float."""
    made = node(name, "If", condition, condition, value, Tcond="bool", Tin=["bool", "float32"],
                Tout=["float32"])  # fmt: skip
    for branch in ("then_branch", "else_branch"):
        made.attr[branch].func.name = callee
    return made


def test_ifs_500_deep(tmp_path: Path) -> None:
    """`doctor` asks the innermost first; `apply` looks at who calls a function once."""
    functions = []
    for number in range(500):
        deeper = branching("i", f"f{number + 1}", "p", "a") if number < 499 else None
        relu = node("r", "Relu", "a" if deeper is None else "i:output:0")
        nodes = [relu] if deeper is None else [deeper, relu]
        functions.append(graphs.function(f"f{number}", ["p", "a"], nodes, {"o": "r:activations:0"}))
        functions[-1].signature.input_arg[0].type = 10
    outer = [node("b", "Placeholder", dtype="bool"), branching("i", "f0", "b", "x")]
    path = saved(tmp_path / "m.pb", *outer, functions=functions)
    (found,) = diagnose(path, "x", "i").pairs
    assert found.verdict == "flows"
    assert len(apply(GUIDED, path).report["rules"][0]["matches"]) == 500


def test_a_function_of_very_many_outputs() -> None:
    """Each reader of an output went through all outputs: 8,000 took 10 s, more four times 16."""

    def checked(count: int) -> Callable[[], None]:
        body = [node(f"r{place}", "Relu", "a") for place in range(count)]
        returned = {f"b{place}": f"r{place}:activations:0" for place in range(count)}
        readers = [node(f"o{place}", "Tanh", f"y:{place}") for place in range(count)]
        inner = graphs.function("f", ["a"], body, returned)
        ends = node("x", "Placeholder"), node("y", "f", "x")
        return partial(
            check_graph, load(graphs.graphdef(*ends, *readers, functions=[inner])).graphs[0]
        )

    assert graphs.steps(checked(800)) < 2.2 * graphs.steps(checked(400))


HEAD, COUNT = NOOP, 5_000_000
AROUND = encoded(1, encoded(4, b"serve")) + encoded(2, HEAD)
NAMED = encoded(1, encoded(1, b"f"))
SIGNATURE = encoded(1, encoded(1, b"f") + b"\x12\x00" * COUNT)
EMPTY_FIELDS = {
    "libraries alone": b"\x12\x00" * COUNT,
    "nodes alone": b"\x0a\x00" * COUNT,
    "nodes of nothing": HEAD + b"\x0a\x00" * COUNT,
    "versions": HEAD + b"\x22\x00" * COUNT,
    "numbers": HEAD + b"\x18\x01" * COUNT,
    "attrs of a node": encoded(1, NOOP[2:] + b"\x2a\x00" * COUNT),
    "inputs of a node": encoded(1, NOOP[2:] + b"\x1a\x01n" * 3_300_000),
    "functions": HEAD + encoded(2, b"\n\x00" * COUNT),
    "gradients": HEAD + encoded(2, b"\x12\x00" * COUNT),
    "outputs of a function": HEAD
    + encoded(2, encoded(1, encoded(1, encoded(1, b"f")) + b"\x22\x00" * COUNT)),
    "arguments of a function": HEAD + encoded(2, encoded(1, SIGNATURE)),
    "collections": AROUND + b"\x22\x00" * COUNT,
    "metagraphs": b"\x08\x01" + encoded(2, AROUND) + b"\x12\x00" * COUNT,
}


@pytest.mark.parametrize("raw", EMPTY_FIELDS.values(), ids=EMPTY_FIELDS)
def test_empty_fields_are_counted_before_objects_are_made_of_them(
    raw: bytes, tmp_path: Path
) -> None:
    (tmp_path / "m.pb").write_bytes(raw)
    with pytest.raises(ModelError, match=r"more than 200,000 fields|not a GraphDef|has no name"):
        load(tmp_path / "m.pb")
