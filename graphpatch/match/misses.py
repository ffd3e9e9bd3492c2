"""Why a match found nothing: how many ops each key alone lets through, and what comes near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from itertools import chain, islice
from typing import Any

from graphpatch.errors import did_you_mean, nearest
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model
from graphpatch.graph.walk import outputs_there
from graphpatch.match import glob
from graphpatch.match.conditions import (
    ADDED_KEY,
    Candidates,
    conditions,
    holds,
    not_added,
    unknown_tensors,
)
from graphpatch.match.glob import texts
from graphpatch.match.keys import Condition, attr_value_of
from graphpatch.match.nearest import NEAREST, elsewhere, nearest_names, nearest_tensors
from graphpatch.match.pattern.syntax import PatternLike, forms
from graphpatch.match.select import body_to_match
from graphpatch.match.spec import Match
from graphpatch.match.values import value_of
from graphpatch.table import and_more, plural


def explain(graphs: Iterable[Graph], match: Match, names: bool = True) -> str:
    """Return a line a key: how many ops it alone lets through, and with `names` the nearest names.

    Then the nearest ops: what each has instead of what the keys that it misses ask for.
    Of a pattern that matches nowhere: how many ops each of its nodes alone could be, and the
    places where it came furthest.
    """
    graphs = list(graphs)
    now = [body for graph in graphs for body in graph.bodies]
    bodies = [body_to_match(body, match) for body in now]
    every, written = sum(map(len, bodies)), match.given()
    lines, existing = [f"  looked at {every} ops"], ""
    counts = _by_key(bodies, match)
    for key, count in counts.items():
        if key in ("not", "taken") and count == every:
            continue  # it leaves out none
        value = written[key]
        shown = ""
        if key in (*NEAR, "upstream_of", "downstream_of", "class") and isinstance(
            value, str | tuple
        ):
            shown = f" {', '.join(map(repr, texts(value)))}"
        if not count and len(counts) == 1 and key in THERE:
            existing = f"; {THERE[key]([node for body in bodies for node in body], value)}"
        near = _nearest_values(graphs, key, value) if names and not count else ""
        lines.append(f"  {key}{shown}: {count} of them{near}{existing}")
        if not count:
            lines += _counts_of_matches(bodies, key, value) if key in ("any", "all", "not") else []
            lines += near_lines(bodies, value) if key == "pattern" else []
    if len(counts) > 1 and all(counts.values()):
        lines.append("  all of these together: 0 of them")
    missing = _no_tensors(graphs, match)
    if not missing and not existing:
        lines += nearly_matching(bodies, match)
    return "\n".join([*lines, *not_added(now, match), *missing])


def _by_key(bodies: Sequence[Body], match: Match) -> dict[str, int]:
    """Return how many ops meet each key of a match alone; types and plain names are looked up."""
    indexed = {"op": Match(op=match.op), "name": Match(name=match.name)}

    def count(key: str, condition: Condition) -> int:
        alone = indexed.get(key, Match())
        return sum(len(Candidates(body, alone, {key: condition}).indices()) for body in bodies)

    return {
        key: count(key, condition)
        for key, condition in conditions(match).items()
        if key != ADDED_KEY
    }


def _count(bodies: Iterable[Body], match: Match) -> int:
    """Return how many ops a match means."""
    candidates_in = holds(match)
    return sum(len(candidates_in(body).indices()) for body in bodies)


def _counts_of_matches(
    bodies: Sequence[Body], key: str, value: Match | Sequence[Match]
) -> Iterator[str]:
    """Yield how many ops each match alone means of those that `any`, `all` or `not` has."""
    for place, match in enumerate([value] if isinstance(value, Match) else value):
        each = ", ".join(f"{k} {count}" for k, count in _by_key(bodies, match).items())
        which = key if isinstance(value, Match) else f"{key}[{place}]"
        yield f"    {which}: {plural(_count(bodies, match), 'op')} ({each})"


# What there is, where no op meets a key that stands alone.

VALUES_TOLD = 5
CONSTS_READ = 1_000  # Consts whose values are looked at


def _dtypes_there(nodes: Sequence[Node], wanted: Any) -> str:
    dtypes = (arg.dtype for node in nodes for arg in (node.outputs or [])[:1] if arg.dtype)
    return _most_frequent("there are", Counter(dtypes))


def _attrs_there(nodes: Sequence[Node], wanted: dict[str, Any]) -> str:
    legal = list(dict.fromkeys(name for node in nodes for name in node.attr_names))
    words = []
    for key in wanted:
        values = (attr_value_of(node, key) for node in nodes)
        counts = Counter(repr(value) for value in values if value is not None)
        none = f"no op has an attr {key!r}{did_you_mean(key, legal)}"
        words.append(_most_frequent(f"{key} is", counts) if counts else none)
    return "; ".join(words)


def _constants_there(nodes: Sequence[Node], wanted: Any) -> str:
    constants = islice((node for node in nodes if node.op == "Const"), CONSTS_READ)
    counts = Counter(map(value_of, constants))
    return (
        _most_frequent("Consts are", counts) if counts else "value is of Consts, and there is none"
    )


def _most_frequent(title: str, counts: Counter[str]) -> str:
    """Return the most frequent values, and of how many ops each is."""
    words = [f"{value} ({count:,})" for value, count in counts.most_common(VALUES_TOLD)]
    return f"{title} {', '.join(filter(None, [*words, and_more(counts, VALUES_TOLD)]))}"


THERE: dict[str, Callable[[Sequence[Node], Any], str]] = {
    "dtype": _dtypes_there,
    "attr": _attrs_there,
    "value": _constants_there,
}


# The nearest ops.

NEAREST_OPS = 3
WEIGHTS = {"op": 8, "added": 8, "pattern": 8, "name": 4, "name_regex": 4, "body": 4}
"""How far an op is from a match that misses this key; 1 for the others."""

FARTHEST = 8
"""From here on an op is not near: another op type in another place has nothing to say."""

PLAIN_KEYS = frozenset({"op", "name", "name_regex", "body", "any", "all", "not", ADDED_KEY})
"""The keys of which it does not help to know what the nearest ops have instead."""


def nearly_matching(bodies: Sequence[Body], match: Match) -> list[str]:
    """Return a line for each of the nearest ops: what it has instead of what the match asks for."""
    if conditions(match).keys() <= PLAIN_KEYS:
        return []
    candidates_in = holds(match)
    distances = (
        (far, "" if body.is_main else body.label, node.index, candidates, node)
        for body in bodies
        if not body.is_ours
        for candidates in [candidates_in(body)]
        for node in body
        if 0 < (far := _distance(candidates, node)) < FARTHEST
    )
    lines = []
    for *_, candidates, node in nsmallest(NEAREST_OPS, distances, key=lambda entry: entry[:3]):
        has = (candidates.instead(node, [key]) for key in candidates.failing(node))
        lines.append(f"  near: {node}: {'; '.join(has)}")
    return lines


def _distance(candidates: Candidates, node: Node) -> int:
    """Return how far an op is from a match, up to the farthest that is near."""
    far = 0
    for key, test in candidates.tests.items():
        if far < FARTHEST and not test.holds(node):
            far += WEIGHTS.get(key, 1)
    return far


NEAR_MISSES = 3


def near_lines(bodies: Sequence[Body], wanted: PatternLike) -> list[str]:
    """Return what the nodes of a pattern alone could be, and where its best form came near."""
    from graphpatch.match.pattern.matcher import Finder
    from graphpatch.match.pattern.topology import Topology

    every, places, topology_of = forms(wanted), [], cache(Topology)
    for finder in map(Finder, every):
        near = (finder.near_misses(body, topology_of, NEAR_MISSES) for body in bodies)
        misses = list(chain.from_iterable(near))
        places.append(sorted(misses, key=lambda miss: -len(miss.reached))[:NEAR_MISSES])
    parts = [
        max((len(miss.reached) / len(pattern.present) for miss in misses), default=0)
        for pattern, misses in zip(every, places, strict=True)
    ]
    best = parts.index(max(parts))
    pattern, misses = every[best], places[best]
    counts = {name: _count(bodies, match) for name, match in pattern.nodes.items()}
    each = (f"{name} ({plural(count, 'op')})" for name, count in counts.items())
    lines = [f"    each by itself: {', '.join(each)}"]
    if len(every) > 1:
        shown = f"; graphpatch patterns {wanted[1:]}" if isinstance(wanted, str) else ""
        lines.insert(0, f"    of {len(every)} forms, form {best + 1} comes nearest{shown}")
    for name, match in pattern.nodes.items():
        if not counts[name] and name not in pattern.absent:
            lacking = [] if misses else [f"  {line}" for line in nearly_matching(bodies, match)]
            lines += list(_unfound_types(bodies, name, match)) or lacking
    return lines + [f"    near: {miss}" for miss in misses]


def _unfound_types(bodies: Iterable[Body], name: str, match: Match) -> Iterator[str]:
    """Yield the nearest of the bodies' op types for each that is in none of them."""
    legal = sorted({op for body in bodies for op in body.by_type})
    for text in texts(match.op or ()):
        if not any(glob.matches_glob(text, op) for op in legal):
            near = nearest(text, legal)
            words = f"; nearest: {', '.join(near)}" if near else ""
            yield f"    no op is a {text} ({name!r}){words}"


# The nearest names.


def missing_tensors(graphs: Sequence[Graph], match: Match) -> str:
    """Say that a match names tensors which no body has, and the nearest names; or nothing."""
    return "\n".join(_no_tensors(graphs, match))


def _no_tensors(graphs: Sequence[Graph], match: Match) -> list[str]:
    lines, bodies = [], [body for graph in graphs for body in graph.bodies]
    for text in unknown_tensors(graphs, match):
        arguments = [name for body in bodies for name in body.arguments]
        outputs = outputs_there(bodies, text)
        near = nearest_tensors(text, [*arguments, *_op_names(graphs)])
        lines.append(f"  no tensor is called {text!r}{f': {outputs}' if outputs else near}")
    return lines


def unknown_types(graphs: Iterable[Graph], match: Match) -> list[str]:
    """Return the op types that a match names beside one that is there, and that nobody knows.

    Neither TensorFlow nor one of these graphs has them, so each is a slip. Globs are none.
    """
    graphs, named = list(graphs), texts(match.op or ())
    existing = _types_there(graphs)
    if not any(glob.matches_glob(wanted_type, op) for wanted_type in named for op in existing):
        return []
    return [
        op
        for op in named
        if not glob.is_glob(op)
        and op not in existing
        and all(graph.library.opdef(op) is None for graph in graphs)
    ]


def _types_there(graphs: Iterable[Graph]) -> list[str]:
    return sorted(
        {op for graph in graphs for body in graph.bodies for op in as_model(body).by_type}
    )


def _op_names(graphs: Iterable[Graph]) -> list[str]:
    return [name for graph in graphs for body in graph.bodies for name in body.heads.names]


def _labels(graphs: Iterable[Graph]) -> list[str]:
    return sorted({body.label for graph in graphs for body in graph.bodies})


NEAR: Mapping[str, Callable[[Iterable[Graph]], list[str]]] = {
    "op": _types_there,
    "name": _op_names,
    "name_regex": _op_names,
    "body": _labels,
}


def _nearest_values(graphs: Sequence[Graph], key: str, value: object) -> str:
    """Return a clause with what could be meant by a text of which there is no op, or body."""
    if key not in NEAR or not isinstance(value, str | tuple):
        return ""
    legal = NEAR[key](graphs)
    if key == "name_regex":
        anywhere = f".*({value}).*"
        count = sum(map(glob.whole(anywhere), legal))
        return f"; the whole name is matched: {anywhere!r} matches {count:,}" if count else ""
    if key == "name":
        bodies = [body for graph in graphs for body in graph.bodies]
        outputs = [outputs_there(bodies, text) for text in texts(value) if ":" in text]
        if any(outputs):
            return f"; {', '.join(filter(None, outputs))}"
        meant = "".join(elsewhere(text, legal) for text in texts(value))
        if meant:
            return meant
    near = dict.fromkeys(name for text in texts(value) for name in nearest_names(text, legal))
    if near or key == "name" or not legal:
        return f"; nearest: {', '.join(near)}" if near else ""
    more = ", ..." if len(legal) > NEAREST else ""
    return f"; there are: {', '.join(legal[:NEAREST])}{more}"
