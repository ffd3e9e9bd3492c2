"""What comes near a match that found nothing: ops, values, patterns, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any

from graphpatch.errors import did_you_mean, nearest
from graphpatch.graph.body import Body, Node
from graphpatch.match import added, attribute, glob
from graphpatch.match.condition import Condition, Test
from graphpatch.match.conditions import conditions
from graphpatch.match.glob import texts
from graphpatch.match.in_words import key_in_words
from graphpatch.match.pattern.candidates import candidates
from graphpatch.match.pattern.matcher import Finder, NearMiss, RejectedOp
from graphpatch.match.pattern_forms import PatternLike, forms
from graphpatch.match.spec import Match, Pattern
from graphpatch.match.value import value_of
from graphpatch.table import IN_MESSAGE, and_more, plural

VALUES_TOLD = 5
CONSTS_READ = 1_000  # Consts whose values are looked at


def values_there(bodies: Sequence[Body], key: str, wanted: Any) -> str:
    """A clause like `; there are: float32 (9 ops)`; nothing for a key of which it says nothing."""
    say = THERE.get(key)
    return "" if say is None else f"; {say((node for body in bodies for node in body), wanted)}"


def _dtypes_there(nodes: Iterable[Node], wanted: Any) -> str:
    found = (arg.dtype for node in nodes for arg in (node.outputs or [])[:1] if arg.dtype)
    return _most_frequent("there are", Counter(found))


def _attrs_there(nodes: Iterable[Node], wanted: dict[str, Any]) -> str:
    nodes = list(nodes)
    names = dict.fromkeys(name for node in nodes for name in node.attr_names)
    return "; ".join(_attr_there(nodes, key, list(names)) for key in wanted)


def _attr_there(nodes: Sequence[Node], key: str, names: Sequence[str]) -> str:
    found = (attribute.attr_value_of(node, key) for node in nodes)
    counts = Counter(repr(value) for value in found if value is not None)
    if not counts:
        return f"no op has an attr {key!r}{did_you_mean(key, names)}"
    return _most_frequent(f"{key} is", counts)


def _constants_there(nodes: Iterable[Node], wanted: Any) -> str:
    constants = islice((node for node in nodes if node.op == "Const"), CONSTS_READ)
    found = Counter(map(value_of, constants))
    return _most_frequent("Consts are", found) if found else "value is of Consts, and there is none"


def _most_frequent(title: str, counts: Counter[str]) -> str:
    """The most frequent values, and of how many ops each is."""
    words = [f"{value} ({count:,})" for value, count in counts.most_common(VALUES_TOLD)]
    return f"{title} {', '.join(filter(None, [*words, and_more(counts, VALUES_TOLD)]))}"


THERE: dict[str, Callable[[Iterable[Node], Any], str]] = {
    "dtype": _dtypes_there,
    "attr": _attrs_there,
    "value": _constants_there,
}


NEAREST_OPS = 3
WEIGHTS = {"op": 8, "added": 8, "pattern": 8, "name": 4, "name_regex": 4, "body": 4}
"""How far an op is from a match that misses this key; 1 for the others."""

FARTHEST = 8
"""From here on an op is not near: another op type in another place has nothing to say."""

PLAIN_KEYS = frozenset({"op", "name", "name_regex", "body", "any", "all", "not", added.ADDED_KEY})
"""The keys of which it does not help to know what the nearest ops have instead."""


def nearly_matching(
    bodies: Sequence[Body], match: Match, wanted: Mapping[str, Condition]
) -> list[str]:
    """One line for each of the nearest ops: what it has instead of what the match asks for."""
    if wanted.keys() <= PLAIN_KEYS:
        return []
    found = (one for body in bodies for one in _missed_keys(body, list(wanted), wanted))
    lines = []
    for _, _, _, node, missed in nsmallest(NEAREST_OPS, found, key=lambda one: one[:3]):
        has = "; ".join(key_in_words(node, key, match) for key in missed)
        lines.append(f"  near: {node}: {has}")
    return lines


def _missed_keys(
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
                if far >= FARTHEST:
                    break
        else:
            if missed:
                yield far, "" if body.is_main else body.label, node.index, node, missed


NEAR_MISSES = 3


def near_lines(bodies: Sequence[Body], wanted: PatternLike) -> list[str]:
    """What the nodes of a pattern alone could be, and where it came near; of several of one."""
    every = forms(wanted)
    misses = [nearest_places(bodies, pattern) for pattern in every]
    best = max(range(len(every)), key=lambda n: (_nearness(every[n], misses[n]), -n))
    pattern = every[best]
    counts = {name: _counts_by_key(bodies, match) for name, match in pattern.nodes.items()}
    each = (f"{name} ({plural(count, 'op')})" for name, count in counts.items())
    lines = [f"    each by itself: {', '.join(each)}"]
    if len(every) > 1:
        shown = f"; graphpatch patterns {wanted[1:]}" if isinstance(wanted, str) else ""
        lines.insert(0, f"    of {len(every)} forms, form {best + 1} comes nearest{shown}")
    for name, match in pattern.nodes.items():
        if not counts[name] and name not in pattern.absent:
            unfound = list(_unfound_types(bodies, name, match))
            lines += unfound or ([] if misses[best] else _nearest_ops(bodies, match))
    return lines + [f"    near: {miss_in_words(miss, pattern)}" for miss in misses[best]]


def _nearness(pattern: Pattern, misses: Sequence[NearMiss]) -> float:
    """Which part of a pattern was found at the place where it came furthest."""
    return max((len(miss.reached) / len(pattern.present) for miss in misses), default=0)


def nearest_places(bodies: Iterable[Body], pattern: Pattern) -> list[NearMiss]:
    """The places in all of these bodies where a pattern came furthest."""
    found = [
        miss
        for body in bodies
        for miss in Finder(pattern, conditions).near_misses(body, NEAR_MISSES)
    ]
    return sorted(found, key=lambda miss: -len(miss.reached))[:NEAR_MISSES]


def miss_in_words(miss: NearMiss, pattern: Pattern) -> str:
    """A near miss as one line: what was found, what was not, and which condition failed there."""
    found = ", ".join(f"{name} is {node}" for name, node in miss.reached.items())
    if not miss.missing:
        return f"{found}; {miss.reason}"
    match = pattern.nodes.get(miss.missing, Match())
    parts = [failed(one, match) for one in miss.rejected[:IN_MESSAGE]]
    parts += filter(None, [and_more(miss.rejected, IN_MESSAGE)])
    if miss.reason:
        parts.append(miss.reason)
    return f"{found}; {miss.missing} is missing: {'; '.join(parts)}"


def failed(rejected: RejectedOp, match: Match) -> str:
    """Which condition an op does not meet, and what it has instead."""
    node, key = rejected.node, rejected.key
    if key == "op":
        return f"{node} is not {' or '.join(texts(match.op or ()))}"
    return f"of {node} {key_in_words(node, key, match)}"


def _counts_by_key(bodies: Iterable[Body], match: Match) -> int:
    found = conditions(match)
    return sum(len(candidates(body, match, found).indices()) for body in bodies)


def _nearest_ops(bodies: Sequence[Body], match: Match) -> list[str]:
    """What the ops have that come nearest to a node which no op could be."""
    return [f"  {line}" for line in nearly_matching(bodies, match, conditions(match))]


def _unfound_types(bodies: Iterable[Body], name: str, match: Match) -> Iterator[str]:
    """The nearest of the bodies' op types for each that is in none of them."""
    legal = sorted({op for body in bodies for op in body.by_type})
    for text in texts(match.op or ()):
        if not any(glob.matches_glob(text, op) for op in legal):
            near = nearest(text, legal)
            yield f"    no op is a {text} ({name!r})" + (
                f"; nearest: {', '.join(near)}" if near else ""
            )
