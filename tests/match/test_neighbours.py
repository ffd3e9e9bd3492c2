"""`inputs` and `consumers`, against a plain reading of NodeDef.input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch.graph.node import Body
from graphpatch.match.select import holds, select
from graphpatch.match.spec import Match
from tests import graphs
from tests.draws import draws
from tests.graphs import const, function, graphdef
from tests.match.pattern.bodies import TYPES, bodies
from tests.patches.one_op import net

RELU, MUL = {"op": "Relu"}, {"op": "Mul"}


INNER = net("""parts:Split(a, b, num_split=2) relu:Relu(parts:output:1)
    mul:Mul(relu:activations:0, b) after:Tanh(a, ^mul) mean:Exp(norm:batch_mean:0)
    norm:FusedBatchNormV3(mul:z:0, b, b, b, b)""")
GRAPH = graphs.opened(
    graphdef(
        const("w"),
        *net("""x:Placeholder relu:Relu(x) mul:Mul(relu, w) square:Mul(relu, relu)
        parts:Split(x, mul, num_split=3) first:Tanh(parts) second:Exp(parts:1, ^mul)
        lost:Sigmoid(gone)"""),
        functions=[function("f", ["a", "b"], INNER, {"y": "mean:y:0"})],
    )
)
# What is not drawn below: several outputs, lists of neighbours, neighbours of neighbours.
CASES: list[tuple[Any, list[str]]] = [
    ({"inputs": {"0": {"op": "Split"}}}, ["first", "second", "f:relu"]),
    ({"inputs": {"1": {}}, "body": "f"}, []),
    ({"inputs": {"0": {"op": "Const"}}}, []),
    ({"inputs": {"all": RELU}, "op": ["Const", "Placeholder"]}, ["w", "x"]),
    ({"inputs": {"none": {"op": "Placeholder"}, "any": {}}, "body": "main"},
     ["mul", "square", "first", "second"]),
    ({"consumers": {"1": {"op": "Exp"}}}, ["parts", "f:norm"]),
    ({"consumers": {"1": RELU}}, ["f:parts"]),
    ({"consumers": {"none": {}}, "control": True},
     ["square", "first", "second", "lost", "f:after", "f:mean"]),
    ({"inputs": {"1": MUL}, "control": True}, ["parts"]),
    ({"consumers": {"any": {"op": "Exp"}}, "control": True}, ["mul", "parts", "f:norm"]),
    ({"inputs": {"0": {"any": [RELU, {"op": "Split"}]}}, "not": {"op": "Mul"}},
     ["first", "second", "f:relu"]),
    ({"inputs": {"0": {"inputs": {"0": {"op": "Placeholder"}}}}},
     ["mul", "square", "first", "second"]),
    ({"any": [{"inputs": {"0": RELU}}, {"consumers": {"0": RELU}}]},
     ["x", "mul", "square", "f:mul"]),
]  # fmt: skip


@pytest.mark.parametrize(("match", "wanted"), CASES, ids=str)
def test_which_ops_have_such_neighbours(match: Any, wanted: list[str]) -> None:
    found = select(GRAPH, msgspec.convert(match, Match))
    assert [n.name if n.body.is_main else f"f:{n.name}" for n in found] == wanted


# The reference: loops over all ops and all of their inputs.

QUANTIFIERS: dict[str, Callable[[Iterable[bool]], bool]] = {
    "any": any,
    "all": all,
    "none": lambda found: not any(found),
}


def such(body: Body, name: str, wanted: str) -> bool:
    return any(node.name == name and node.op == wanted for node in body)


def read(inputs: tuple[str, ...], control: bool) -> list[str]:
    return [text for text in inputs if control or text[0] != "^"]


def has_input(body: Body, inputs: tuple[str, ...], which: str, op: str, control: bool) -> bool:
    texts = read(inputs, control and not which.isdigit())
    if which.isdigit():
        texts = texts[int(which) : int(which) + 1]
    found = [such(body, text.strip("^").split(":")[0], op) for text in texts]
    return QUANTIFIERS.get(which, any)(found)


def spellings(body: Body, name: str, op: str, output: int) -> set[str]:
    """How an output is read."""
    if body.is_main:
        return {f"{name}:{output}", *([name] if not output else [])}
    outputs = TYPES[op][2]
    return {f"{name}:{outputs[output]}"} if output < len(outputs) else set()


def readers(body: Body, name: str, control: bool) -> Iterator[tuple[str, str]]:
    for one in body:
        for text in read(one.inputs, control):
            if text.strip("^").split(":")[0] == name:
                yield one.op, text


@settings(max_examples=draws(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bodies(),
    st.sampled_from(["0", "1", "2", "any", "all", "none"]),
    st.sampled_from([*TYPES]),
    st.booleans(),
)
def test_the_same_as_by_reading_every_input(body: Body, which: str, op: str, control: bool) -> None:
    wanted = {which: Match(op=op)}
    by_input = holds(Match(inputs=wanted, control=control))(body)
    by_reader = holds(Match(consumers=wanted, control=control))(body)
    for one in body:
        assert by_input(one) == has_input(body, one.inputs, which, op, control)
        uses = list(readers(body, one.name, control and not which.isdigit()))
        if which.isdigit():
            legal = spellings(body, one.name, one.op, int(which))
            uses = [(reader, text) for reader, text in uses if text in legal]
        quantifier = QUANTIFIERS.get(which, any)
        assert by_reader(one) == quantifier([reader == op for reader, _ in uses])
