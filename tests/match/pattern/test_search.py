"""The search by an index and neighbourhoods, against VF2 over the whole body."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch.graph.body import Body
from graphpatch.match.conditions import conditions
from graphpatch.match.pattern.binding import Binding
from graphpatch.match.pattern.search import matches
from graphpatch.match.spec import Pattern
from tests.match.pattern import reference
from tests.match.pattern.random_patterns import bodies, patterns

DRAWN = bodies().flatmap(lambda body: st.tuples(st.just(body), patterns(body)))
UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(UNHURRIED, max_examples=100)
@given(DRAWN)
def test_the_same_matches_as_by_brute_force(drawn: tuple[Body, Pattern]) -> None:
    compare(*drawn)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=5_000)
@given(DRAWN)
def test_the_same_matches_in_thousands_of_graphs(drawn: tuple[Body, Pattern]) -> None:
    compare(*drawn)


def compare(body: Body, pattern: Pattern) -> None:
    found = matches(body, pattern, conditions)
    assert len(found) == len({(one.pattern.present, one.bound, one.read) for one in found})
    canonical = [as_canonical(one, pattern) for one in found]
    assert len(canonical) == len(set(canonical)), "a match is there twice, as its mirror image"
    assert set(canonical) == reference.matches(body, pattern)
    assert [one.indices for one in found] == sorted(one.indices for one in found)


def as_canonical(binding: Binding, pattern: Pattern) -> Any:
    present = binding.pattern.present
    small = next(one for one in reference.every_variant(pattern) if one.ops.keys() == set(present))
    read = [(tensor.op, tensor.arg, tensor.index) for tensor in binding.read]
    bound = {
        **dict(zip(present, binding.bound, strict=True)),
        **dict(zip(binding.pattern.tensors, read, strict=True)),
    }
    return reference.canonical(small, bound)
