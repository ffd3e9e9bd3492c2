"""The ops that come nearest to a match that means none: which keys they miss, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest

from graphpatch.graph.body import Body, Node
from graphpatch.match import added
from graphpatch.match.condition import Condition, Test
from graphpatch.match.in_words import in_words
from graphpatch.match.spec import Match

NEAREST = 3
WEIGHTS = {"op": 8, "added": 8, "pattern": 8, "name": 4, "name_regex": 4, "body": 4}
"""How far an op is from a match that misses this key; 1 for the others."""

FAR = 8
"""From here on an op is not near: another op type in another place has nothing to say."""

PLAIN = frozenset({"op", "name", "name_regex", "body", "any", "all", "not", added.ADDED_KEY})
"""The keys of which it does not help to know what the nearest ops have instead."""


def almost(bodies: Sequence[Body], match: Match, wanted: Mapping[str, Condition]) -> list[str]:
    """One line for each of the nearest ops: what it has instead of what the match asks for."""
    if wanted.keys() <= PLAIN:
        return []
    found = (one for body in bodies for one in _missing(body, list(wanted), wanted))
    lines = []
    for _, _, _, node, missed in nsmallest(NEAREST, found, key=lambda one: one[:3]):
        has = "; ".join(in_words(node, key, match) for key in missed)
        lines.append(f"  near: {node}: {has}")
    return lines


def _missing(
    body: Body, keys: Sequence[str], wanted: Mapping[str, Condition]
) -> Iterator[tuple[int, str, int, Node, list[str]]]:
    """How far each op is that is near: the distance, its place, and the keys that it misses."""
    if body.is_ours:
        return
    tests: list[tuple[str, int, Test]] = [
        (key, WEIGHTS.get(key, 1), wanted[key](body)) for key in keys
    ]
    for node in body:
        missed, far = [], 0
        for key, weight, test in tests:
            if not test(node):
                missed.append(key)
                far += weight
                if far >= FAR:
                    break
        else:
            if missed:
                yield far, "" if body.is_main else body.label, node.index, node, missed
