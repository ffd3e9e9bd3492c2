"""The ready patterns find in the real models what is there, and nothing else."""

from __future__ import annotations

import json

import pytest

import graphpatch
from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests.models import catalogue

# By a walk of its own over the NodeDefs, without the matcher, and by eye where the two differed: a
# mask of dropout is one, though in a training graph its gradient is multiplied by it too. What is
# not there is 0.
COUNTS: dict[str, dict[str, int]] = json.loads(
    (catalogue.CHECKOUT / "tests/data/ready_counts.json").read_text()
)


@pytest.mark.parametrize("name", catalogue.every_model())
def test_each_is_found_as_often_as_it_is_there(name: str) -> None:
    graphs = graphpatch.load(catalogue.models()[name]).graphs
    found = {
        pattern: sum(find(graph, Match(pattern=f"@{pattern}")).count for graph in graphs)
        for pattern in READY
    }
    assert found == {pattern: COUNTS.get(pattern, {}).get(name, 0) for pattern in READY}


def test_every_count_is_of_a_ready_pattern_in_a_model() -> None:
    if not catalogue.models():
        pytest.skip(f"no real models in {catalogue.folder()}")
    assert set(COUNTS) <= set(READY)
    assert {name for counts in COUNTS.values() for name in counts} <= set(catalogue.models())
    assert all(count > 0 for counts in COUNTS.values() for count in counts.values())
