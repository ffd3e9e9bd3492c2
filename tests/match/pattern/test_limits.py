"""Loops of a graph, and patterns that say too little: walked once, or refused in one message."""

from __future__ import annotations

import pytest

from graphpatch.errors import MatchError
from graphpatch.match.pattern import matcher
from tests.graphs import node
from tests.match.pattern.searched import body, found

X = node("x", "Placeholder")
MANY = [
    X,
    *(node(f"r{k}", "Relu", "x") for k in range(12)),
    node("sum", "AddN", *(f"r{k}" for k in range(12)), N=12),
]


def test_a_loop_of_the_graph_is_walked_once() -> None:
    nodes = [
        X,
        node("merge", "Merge", "x", "next", N=2),
        node("relu", "Relu", "merge"),
        node("next", "NextIteration", "relu"),
    ]
    assert found(body(*nodes), "Merge -> Relu -> NextIteration") == ["merge relu next"]
    assert found(body(*nodes), "NextIteration -> Merge -> Relu") == ["next merge relu"]
    assert found(body(*nodes), "Merge ->+ Relu|NextIteration") == ["merge (relu next)"]


def test_too_many_matches_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "LEAST", 50)
    monkeypatch.setattr(matcher, "FOR_EACH", 0)
    with pytest.raises(MatchError, match="the pattern in main takes more than 50 steps"):
        found(body(*MANY), "a:Relu -> s:AddN; b:Relu -> s")


@pytest.mark.parametrize("pattern", ["Relu ->+ AddV2", "Relu ->+ AddV2 -> Tanh"])
def test_runs_through_too_many_ops_are_one_message(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """A tower, in which each of n runs leads through the rest of it, is n * n / 2 ops."""
    tower = [X, node("a0", "Relu", "x")]
    for k in range(1, 20):
        tower += [node(f"r{k}", "Relu", f"a{k - 1}"), node(f"a{k}", "AddV2", f"a{k - 1}", f"r{k}")]
    tower.append(node("end", "Tanh", "a19"))
    assert len(found(body(*tower), pattern)) == 20
    monkeypatch.setattr(matcher, "LEAST", 100)
    monkeypatch.setattr(matcher, "FOR_EACH", 0)
    with pytest.raises(MatchError, match=r"takes more than 100 steps .*; name op types instead"):
        found(body(*tower), pattern)
