"""Joins of columns find what walks from each op find, in the same order."""

from __future__ import annotations

import random

import pytest

from graphpatch.graph.body import Body
from graphpatch.match.conditions import conditions
from graphpatch.match.pattern import search
from graphpatch.match.pattern.syntax import parse_pattern
from tests.graphs import main, node

PATTERNS = [
    "Add -> Mul",
    "a:Add -> m:Mul; a -> s:Sub; s -> m",
    "a:Add -> m:Mul:1",
    "Add -> * -> Mul",
    "a:Add -> b:Sub; a -> c:Mul",
    "a:Add ^-> m:Mul",
    "Relu",
]


def body(seed: int) -> Body:
    """Ops that read others by chance, by data and control, some an op twice."""
    chance = random.Random(seed)
    nodes = [node("n0", "Placeholder", dtype="float32")]
    for place in range(1, 60):
        op = chance.choice(["Add", "Mul", "Sub", "Relu"])
        inputs = [f"n{chance.randrange(place)}" for _ in range(1 if op == "Relu" else 2)]
        if chance.random() < 0.3:
            inputs[0] += ":0"
        if chance.random() < 0.4:
            inputs.append(f"^n{chance.randrange(place)}")
        nodes.append(node(f"n{place}", op, *inputs))
    return main(*nodes)


@pytest.mark.parametrize("text", PATTERNS)
def test_the_same_matches(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = parse_pattern(text)
    joins: list[bool] = []
    joined = search.all_bindings

    def counted(walker: search.Walker) -> list[tuple[int, ...]] | None:
        found = joined(walker)
        joins.append(found is not None)
        return found

    for seed in range(8):
        one = body(seed)
        monkeypatch.setattr(search, "all_bindings", counted)
        by_joins = search.Finder(pattern, conditions).matches(one)
        monkeypatch.setattr(search, "all_bindings", lambda walker: None)
        assert by_joins == search.Finder(pattern, conditions).matches(one)
    assert any(joins)
