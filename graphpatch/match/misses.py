"""Why a match found nothing: how many ops each key alone lets through, and what comes near."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphpatch.graph.body import Body
from graphpatch.graph.graph import Graph
from graphpatch.graph.model_body import as_model
from graphpatch.match import added, glob, regex
from graphpatch.match.body_to_match import body_to_match
from graphpatch.match.condition import Condition
from graphpatch.match.conditions import conditions, holds
from graphpatch.match.glob import texts
from graphpatch.match.nearest import NEAREST, elsewhere, nearest_names, nearest_tensors
from graphpatch.match.paths import unknown_tensors
from graphpatch.match.pattern.candidates import candidates
from graphpatch.match.spec import Match
from graphpatch.table import plural


def explain(graphs: Iterable[Graph], match: Match, names: bool = True) -> str:
    """One line a key: how many ops it alone lets through, and with `names` the nearest names.

    Then the nearest ops: what each has instead of what the keys that it misses ask for.
    Of a pattern that matches nowhere: how many ops each of its nodes alone could be, and the
    places where it came furthest.
    """
    from graphpatch.match.near import nearly_matching, values_there

    graphs = list(graphs)
    now = [body for graph in graphs for body in graph.bodies]
    bodies = [body_to_match(body, match) for body in now]
    every = sum(map(len, bodies))
    lines = [f"  looked at {every} ops"]
    wanted = conditions(match)
    asked = {key: condition for key, condition in wanted.items() if key != added.ADDED_KEY}
    given = match.given()
    counts = {key: _count_by_key(bodies, key, given[key], one) for key, one in asked.items()}
    there = ""
    for key, count in counts.items():
        if key in EXCLUDES and count == every:
            continue  # it leaves out none
        value = given[key]
        shown = f" {_texts_in_words(value)}" if key in NEAR or key in VALUE_SHOWN else ""
        there = "" if count or len(counts) > 1 else values_there(bodies, key, value)
        near = _nearest_values(graphs, key, value, count) if names else ""
        lines.append(f"  {key}{shown}: {count} of them{near}{there}")
        if key in COMBINING and not count:
            lines += _counts_of_matches(bodies, key, value)
        if key == "pattern" and not count:
            from graphpatch.match.near import near_lines

            lines += near_lines(bodies, value)
    met = len(counts) > 1 and all(counts.values())
    lines += ["  all of these together: 0 of them"] if met else []
    missing = _no_tensors(graphs, match)
    almost_met = [] if missing or there else nearly_matching(bodies, match, wanted)
    return "\n".join([*lines, *almost_met, *added.not_added(now, wanted), *missing])


def missing_tensors(graphs: Sequence[Graph], match: Match) -> str:
    """That a match names tensors which no body has, and the nearest names; or nothing."""
    return "\n".join(_no_tensors(graphs, match))


def unknown_types(graphs: Iterable[Graph], match: Match) -> list[str]:
    """The op types that a match names beside one that is there, and that nobody knows.

    Neither TensorFlow nor one of these graphs has them, so each is a slip. Globs are none.
    """
    graphs, named = list(graphs), texts(match.op or ())
    there = _types_there(graphs)
    if not any(glob.matches_glob(one, op) for one in named for op in there):
        return []
    return [
        op
        for op in named
        if not glob.is_glob(op)
        and op not in there
        and all(graph.library.opdef(op) is None for graph in graphs)
    ]


def _count_by_key(bodies: Iterable[Body], key: str, value: Any, condition: Condition) -> int:
    """How many ops meet the condition of one key; types and plain names are looked up."""
    match = Match(**{key: value}) if key in ("op", "name") else Match()
    found = (candidates(body, match, {key: condition}) for body in bodies)
    return sum(len(one.indices()) for one in found)


def _count_of(bodies: Iterable[Body], condition: Condition) -> int:
    count = 0
    for body in bodies:
        test = condition(body)
        count += sum(1 for node in body if test(node))
    return count


def _counts_of_matches(
    bodies: Sequence[Body], key: str, value: Match | Sequence[Match]
) -> list[str]:
    """How many ops each match alone means of those that `any`, `all` or `not` has."""
    lines = []
    for place, match in enumerate([value] if isinstance(value, Match) else value):
        made = {key: one for key, one in conditions(match).items() if key != added.ADDED_KEY}
        each = [f"{one} {_count_of(bodies, condition)}" for one, condition in made.items()]
        which = key if isinstance(value, Match) else f"{key}[{place}]"
        count = _count_of(bodies, holds(match))
        lines.append(f"    {which}: {plural(count, 'op')} ({', '.join(each)})")
    return lines


def _no_tensors(graphs: Sequence[Graph], match: Match) -> list[str]:
    lines = []
    for text in unknown_tensors(graphs, match):
        arguments = [name for graph in graphs for body in graph.bodies for name in body.arguments]
        near = nearest_tensors(text, [*arguments, *_op_names(graphs)])
        lines.append(f"  no tensor is called {text!r}{near}")
    return lines


def _types_there(graphs: Iterable[Graph]) -> list[str]:
    return sorted(
        {op for graph in graphs for body in graph.bodies for op in as_model(body).by_type}
    )


def _op_names(graphs: Iterable[Graph]) -> list[str]:
    return [name for graph in graphs for body in graph.bodies for name in body.heads.names]


def _labels(graphs: Iterable[Graph]) -> list[str]:
    return sorted({body.label for graph in graphs for body in graph.bodies})


NEAR = {"op": _types_there, "name": _op_names, "name_regex": _op_names, "body": _labels}
EXCLUDES = ("not", "taken")
COMBINING = ("any", "all", "not")
VALUE_SHOWN = ("upstream_of", "downstream_of", "class")


def _nearest_values(graphs: Iterable[Graph], key: str, value: object, count: int) -> str:
    if count or key not in NEAR or not isinstance(value, str | tuple):
        return ""
    legal = NEAR[key](graphs)
    if key == "name_regex":
        return _found_inside_names(str(value), legal)
    if key == "name":
        meant = "".join(elsewhere(text, legal) for text in texts(value))
        if meant:
            return meant
    found = [near for text in texts(value) for near in nearest_names(text, legal)]
    if found or key == "name":
        return f"; nearest: {', '.join(dict.fromkeys(found))}" if found else ""
    more = ", ..." if len(legal) > NEAREST else ""
    if not legal:
        return ""
    return f"; there are: {', '.join(legal[:NEAREST])}{more}"


def _found_inside_names(expression: str, names: Iterable[str]) -> str:
    """That an expression is found inside names, where the whole name is matched."""
    anywhere = f".*({expression}).*"
    found = sum(map(regex.whole(anywhere), names))
    return f"; the whole name is matched: {anywhere!r} matches {found:,}" if found else ""


def _texts_in_words(value: object) -> str:
    return ", ".join(map(repr, texts(value))) if isinstance(value, str | tuple) else ""
