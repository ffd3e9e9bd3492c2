"""In words: how near a pattern came that matches nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphpatch.errors import nearest
from graphpatch.graph.body import Body
from graphpatch.match import glob
from graphpatch.match.almost import almost
from graphpatch.match.conditions import conditions
from graphpatch.match.forms import Wanted, forms
from graphpatch.match.glob import texts
from graphpatch.match.in_words import in_words
from graphpatch.match.pattern.candidates import candidates
from graphpatch.match.pattern.trace import NearMiss, Rejected, near_misses
from graphpatch.match.spec import Match, Pattern
from graphpatch.table import IN_MESSAGE, and_more, plural

NEAR_MISSES = 3


def near_lines(bodies: Sequence[Body], wanted: Wanted) -> list[str]:
    """What the nodes of a pattern alone could be, and where it came near; of several of one."""
    every = forms(wanted)
    misses = [nearest_places(bodies, pattern) for pattern in every]
    best = max(range(len(every)), key=lambda n: (_nearness(every[n], misses[n]), -n))
    pattern = every[best]
    counts = {name: _count(bodies, match) for name, match in pattern.nodes.items()}
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


def nearest_places(
    bodies: Iterable[Body], pattern: Pattern, most: int = NEAR_MISSES
) -> list[NearMiss]:
    """The places in all of these bodies where a pattern came furthest."""
    found = [miss for body in bodies for miss in near_misses(body, pattern, conditions, most)]
    return sorted(found, key=lambda miss: -len(miss.reached))[:most]


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


def failed(rejected: Rejected, match: Match) -> str:
    """Which condition an op does not meet, and what it has instead."""
    node, key = rejected.node, rejected.key
    if key == "op":
        return f"{node} is not {' or '.join(texts(match.op or ()))}"
    return f"of {node} {in_words(node, key, match)}"


def _count(bodies: Iterable[Body], match: Match) -> int:
    found = conditions(match)
    return sum(len(candidates(body, match, found).indices()) for body in bodies)


def _nearest_ops(bodies: Sequence[Body], match: Match) -> list[str]:
    """What the ops have that come nearest to a node which no op could be."""
    return [f"  {line}" for line in almost(bodies, match, conditions(match))]


def _unfound_types(bodies: Iterable[Body], name: str, match: Match) -> Iterator[str]:
    """The nearest of the bodies' op types for each that is in none of them."""
    legal = sorted({op for body in bodies for op in body.by_type})
    for text in texts(match.op or ()):
        if not any(glob.matches_glob(text, op) for op in legal):
            near = nearest(text, legal)
            yield f"    no op is a {text} ({name!r})" + (
                f"; nearest: {', '.join(near)}" if near else ""
            )
