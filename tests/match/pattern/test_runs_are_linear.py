"""Runs and shared tensors take steps in proportion to the graph; what says too little ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from graphpatch.errors import GraphpatchError, MatchError
from graphpatch.graph.node import Body
from graphpatch.match import variant
from graphpatch.match.matcher import Finder
from graphpatch.match.syntax import parse_pattern
from tests.match.pattern.bodies import bindings, body
from tests.patches.one_op import net


def line(count: int) -> Body:
    """A Placeholder, so many Tanhs one after the other, a Relu."""
    tanhs = " ".join(f"t{k}:Tanh(t{k - 1})" for k in range(1, count))
    return body(*net(f"p:Placeholder t0:Tanh(p) {tanhs} r:Relu(t{count - 1})"))


def wide(count: int) -> Body:
    """A tensor that so many pairs of ops read."""
    pairs = " ".join(f"s{k}:Sigmoid(x) m{k}:Mul(x, s{k})" for k in range(count))
    return body(*net(f"x:Placeholder {pairs}"))


def tower(count: int) -> Body:
    floors = " ".join(f"r{k}:Relu(a{k - 1}) a{k}:AddV2(a{k - 1}, r{k})" for k in range(1, count))
    read = ", ".join(f"r{k}" for k in range(1, 60))
    return body(*net(f"a0:Placeholder {floors} sum:AddN({read}, N=59)"))


# The graph, the pattern, and how many matches 500 ops have, of how many ops.
LINEAR = [
    (line, "Placeholder ->+ Tanh -> Relu", 1, 502),
    (line, "Placeholder ->+ Tanh", 1, 501),
    (line, "Placeholder ->+ * -> Relu", 1, 502),
    (line, "Placeholder ->+ *", 1, 502),
    (line, "Tanh ->+ Relu", 1, 2),
    (wide, "x:_ -> s:Sigmoid -> m:Mul; x -> m", 500, 2),
    (wide, "p:Placeholder -> s:Sigmoid -> m:Mul; p -> m", 500, 3),
]


@pytest.mark.parametrize(
    ("graph", "pattern", "count", "ops"), LINEAR, ids=[row[1] for row in LINEAR]
)
def test_steps_grow_with_the_graph(graph: Any, pattern: str, count: int, ops: int) -> None:
    steps = []
    for size in (500, 1_000, 2_000):
        finder = Finder(parse_pattern(pattern))
        matches = finder.matches(graph(size))
        steps.append(finder.budget.steps)
        if size == 500:
            assert [len(match.indices) for match in matches] == [ops] * count
    assert steps[2] - steps[1] <= 2.1 * (steps[1] - steps[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "* ->+ * ->+ *",
        "a:* ->+ *",
        " ->+ ".join("*" * 8),
        "d:*? -> *? ->+ *:1",
        " -> ".join("*" * 59),
        " -> ".join("*" * 300),
        "*? -> *? -> *? -> *? -> * -> *? -> *? -> *? -> *?",
        "; ".join(f"a{k}:* -> s" for k in range(30)) + "; s:AddN",
    ],
)
def test_patterns_that_say_too_little_end(pattern: str) -> None:
    """Each of these took more than ten seconds on such a graph, or did not end: see the budget."""
    says = "none"
    try:
        bindings(tower(800), pattern)
    except GraphpatchError as error:
        says = str(error)
    assert re.search("takes more than 1,032,000 steps|64 is the most|none", says)
    assert (says == "none") == (pattern == "d:*? -> *? ->+ *:1")


def test_the_bound_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "LEAST", 50_000)
    with pytest.raises(MatchError) as error:
        bindings(line(300), "* ->+ * ->+ *")
    for said in ("more than 56,040 steps", "name op types instead of *", "what a run starts"):
        assert said in str(error.value)
