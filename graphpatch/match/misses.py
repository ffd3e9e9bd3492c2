"""Why a match found nothing: how many ops each key alone lets through, and what comes near."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from heapq import nsmallest
from itertools import chain, islice

from graphpatch.errors import RulesError, did_you_mean, nearest
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model
from graphpatch.graph.walk import outputs_there, tensor_named
from graphpatch.match.select import ADDED_KEY, Candidates, adder, body_to_match, conditions, holds
from graphpatch.match.spec import Match, PatternLike, tensors_named
from graphpatch.names import glob_test, is_glob, one_of, regex_test, texts
from graphpatch.shown import plural, short

NEAREST, NEAREST_OPS, MOST_VALUES, MOST_READ = 5, 3, 5, 1_000
MOST_COMPARED = 50_000  # names compared letter by letter; the rest by what they contain
EXPRESSION = re.compile(r"\.[*+?]|[][(){}|^$+\\]")  # names and globs have few of these
# Keys whose texts are shown; of which the values that are there are counted; of which it does not
# help to know what the nearest ops have instead; how far an op is that misses one, else 1.
SHOWN = ("op", "name", "name_regex", "body", "upstream_of", "downstream_of", "class")
VALUES = ("dtype", "attr", "value")
PLAIN_KEYS = frozenset({"op", "name", "name_regex", "body", "any", "all", "not", ADDED_KEY})
WEIGHTS = {"op": 8, "added": 8, "pattern": 8, "name": 4, "name_regex": 4, "body": 4}


def explain(graphs: Iterable[Graph], match: Match, names: bool = True) -> str:
    """Return a line a key: how many ops it alone lets through, and with `names` the nearest names.

    Then the nearest ops, with what each has instead; of a pattern, where it came furthest.
    """
    graphs = list(graphs)
    now = _bodies(graphs)
    bodies = [body_to_match(body, match) for body in now]
    every, counts = sum(map(len, bodies)), _by_key(bodies, match)
    lines = [f"  looked at {every} ops"]
    for key, count in counts.items():
        value = match.given()[key]
        if key in ("not", "taken") and count == every:
            continue  # it leaves out none
        shown = near = ""
        if key in SHOWN and isinstance(value, str | tuple):
            shown = f" {', '.join(map(repr, texts(value)))}"
            near = _nearest_values(graphs, key, texts(value)) if names and not count else ""
        if not count and len(counts) == 1 and key in VALUES:
            near = _values_there(bodies, match, key)
        lines.append(f"  {key}{shown}: {count} of them{near}")
        if not count and key in ("any", "all"):
            for place, part in enumerate(value):
                lines.append(f"    {key}[{place}]: {_count(bodies, part)} of them")
        if not count and key == "pattern":
            lines += near_lines(bodies, value)
    if len(counts) > 1 and all(counts.values()):
        lines.append("  all of these together: 0 of them")
    missing = missing_tensors(graphs, match)
    if not missing and counts.keys().isdisjoint(VALUES if len(counts) == 1 else ()):
        lines += nearly_matching(bodies, match)
    return "\n".join([*lines, *not_added(now, match), *filter(None, [missing])])


def leaves_out_none(graphs: Sequence[Graph], match: Match) -> str:
    """Say that the `not` of a match leaves out no op; nothing where it does, or there is none."""
    bodies = [body_to_match(body, match) for body in _bodies(graphs)]
    if match.not_ is None or _count(bodies, match.not_):
        return ""
    return f"`not` leaves out no op: {explain(graphs, match.not_).splitlines()[1].strip()}"


def _bodies(graphs: Iterable[Graph]) -> list[Body]:
    return [body for graph in graphs for body in graph.bodies]


def _by_key(bodies: Sequence[Body], match: Match) -> dict[str, int]:
    """Return how many ops meet each key of a match alone; types and plain names are looked up."""
    indexed, counts = {"op": Match(op=match.op), "name": Match(name=match.name)}, {}
    for key, test in conditions(match).items():
        if key != ADDED_KEY:
            alone = (Candidates(body, indexed.get(key, Match()), {key: test}) for body in bodies)
            counts[key] = sum(len(candidates.indices()) for candidates in alone)
    return counts


def _count(bodies: Iterable[Body], match: Match) -> int:
    """Return how many ops a match means."""
    return sum(len(candidates.indices()) for candidates in map(holds(match), bodies))


def _values_there(bodies: Sequence[Body], match: Match, key: str) -> str:
    """Return what ops have instead of what a key asks for, the most frequent first."""
    words: Counter[str] = Counter()
    for candidates in map(holds(match), bodies):
        nodes = (node for node in candidates.body if key != "value" or node.op == "Const")
        words.update(candidates.instead(node, [key]) for node in islice(nodes, MOST_READ))
    listed = [f"{text} ({count:,})" for text, count in words.most_common()]
    return f"; {short(listed, MOST_VALUES)}" if listed else ""


def nearly_matching(bodies: Sequence[Body], match: Match) -> list[str]:
    """Return a line for each of the nearest ops: what it has instead of what the match asks for."""
    if conditions(match).keys() <= PLAIN_KEYS:
        return []
    distances = []
    for candidates in map(holds(match), (body for body in bodies if not body.is_ours)):
        label = "" if candidates.body.is_main else candidates.body.label
        for node in candidates.body:
            far = sum(WEIGHTS.get(key, 1) for key in candidates.failing(node))
            if 0 < far < 8:
                distances.append((far, label, node.index, node, candidates))
    lines = []
    for *_, node, candidates in nsmallest(NEAREST_OPS, distances, key=lambda entry: entry[:3]):
        has = (candidates.instead(node, [key]) for key in candidates.failing(node))
        lines.append(f"  near: {node}: {'; '.join(has)}")
    return lines


def near_lines(bodies: Sequence[Body], wanted: PatternLike) -> list[str]:
    """Return what the nodes of a pattern alone could be, and where its best form came near."""
    from graphpatch.match.matcher import Finder
    from graphpatch.match.narrowing import Inputs
    from graphpatch.match.syntax import forms

    every, inputs_of, furthest = forms(wanted), cache(Inputs), -1.0
    for number, finder in enumerate(map(Finder, every), 1):
        searches = chain.from_iterable(finder.searches(b, inputs_of, whole=False) for b in bodies)
        near = chain.from_iterable(islice(each.near_misses(), NEAREST_OPS) for each in searches)
        of_form = sorted(near, key=lambda miss: -miss[0])[:NEAREST_OPS]
        part = of_form[0][0] / len(finder.pattern.present) if of_form else 0
        if part > furthest:
            furthest, best, pattern, misses = part, number, finder.pattern, of_form
    counts = {name: _count(bodies, match) for name, match in pattern.nodes.items()}
    each = (f"{name} ({plural(count, 'op')})" for name, count in counts.items())
    lines = [f"    each by itself: {', '.join(each)}"]
    if len(every) > 1:
        shown = f"; graphpatch patterns {wanted[1:]}" if isinstance(wanted, str) else ""
        lines.insert(0, f"    of {len(every)} forms, form {best} comes nearest{shown}")
    legal = sorted({op for body in bodies for op in body.by_type})
    for name in pattern.present:
        if not counts[name]:
            match = pattern.nodes[name]
            unknown = [o for o in texts(match.op or ()) if not any(map(glob_test(o), legal))]
            lines += [f"    no op is a {op} ({name!r}){did_you_mean(op, legal)}" for op in unknown]
            if not unknown and not misses:
                lines += [f"  {line}" for line in nearly_matching(bodies, match)]
    return lines + [f"    near: {words}" for _, words in misses]


def not_added(bodies: Iterable[Body], match: Match) -> list[str]:
    """Say that ops meet all conditions of a match, and are none of the model's; or nothing."""
    foreign = list[str]()
    for candidates in map(holds(match), (body for body in bodies if not body.is_ours)):
        for node in (Node(candidates.body, index) for index in candidates.body.signed()):
            if candidates.failing(node) == [ADDED_KEY]:
                foreign.append(f"{node} (rule {adder(node)!r})")
    means = 'to mean them, write their names without a glob, or "taken": true'
    return [f"  left out, as rules added them: {short(foreign)}; {means}"] if foreign else []


def missing_tensors(graphs: Sequence[Graph], match: Match) -> str:
    """Say that a match names tensors which no body has, and the nearest names; or nothing."""
    lines, bodies = [], _bodies(graphs)
    for text in tensors_named(match):
        if all(tensor_named(body, text) is None for body in bodies):
            outputs = outputs_there(bodies, text)
            legal = [*(name for body in bodies for name in body.arguments), *_legal(graphs, "name")]
            near = f": {outputs}" if outputs else nearest_tensors(text, legal)
            lines.append(f"  no tensor is called {text!r}{near}")
    return "\n".join(lines)


def unknown_types(graphs: Iterable[Graph], match: Match) -> list[str]:
    """Return op types beside one that is there which TensorFlow and the graphs do not know."""
    graphs, named = list(graphs), texts(match.op or ())
    existing = _legal(graphs, "op")
    if not any(map(one_of(named), existing)):
        return []
    new = [op for op in named if not is_glob(op) and op not in existing]
    return [op for op in new if all(graph.library.opdef(op) is None for graph in graphs)]


def _legal(graphs: Iterable[Graph], key: str) -> list[str]:
    """Return what the texts of a key can be: op types, names or bodies; none of other keys."""
    bodies = _bodies(graphs)
    if key == "op":
        return sorted({op for body in bodies for op in as_model(body).by_type})
    if key == "body":
        return sorted({body.label for body in bodies})
    named = bodies if key in ("name", "name_regex") else []
    return [name for body in named for name in body.heads.names]


def _nearest_values(graphs: Sequence[Graph], key: str, wanted: Sequence[str]) -> str:
    """Return a clause with what could be meant by texts of which there is no op, or body."""
    legal = _legal(graphs, key)
    if key == "name_regex":
        anywhere = f".*({wanted[0]}).*"
        count = sum(map(regex_test(anywhere), legal))
        return f"; the whole name is matched: {anywhere!r} matches {count:,}" if count else ""
    if key == "name" and (meant := "".join(elsewhere(text, legal) for text in wanted)):
        return meant
    if near := dict.fromkeys(name for text in wanted for name in nearest_names(text, legal)):
        return f"; nearest: {', '.join(near)}"
    more = ", ..." if len(legal) > NEAREST else ""
    return f"; there are: {', '.join(legal[:NEAREST])}{more}" if legal and key != "name" else ""


def nearest_names(text: str, legal: Iterable[str]) -> list[str]:
    """Return the names nearest to a name or glob: with its last part, else similar ones."""
    legal = list(legal)
    last = text.rpartition("/")[2].strip("*?").lower()
    holding = [name for name in legal if last and last in name.rpartition("/")[2].lower()]
    close = nearest(text, legal[:MOST_COMPARED], NEAREST)
    if not close:  # the names whose last part is nearest
        by_end = {name.rpartition("/")[2].lower(): name for name in legal[MOST_COMPARED - 1 :: -1]}
        close = [by_end[end] for end in nearest(last, by_end, NEAREST)]
    names = holding or close if is_glob(text) else dict.fromkeys(close + holding)
    return list(names)[:NEAREST]


def nearest_tensors(text: str, legal: Iterable[str]) -> str:
    """Return a clause with the ops whose names are nearest to that of a tensor; or nothing."""
    near = nearest_names(text.partition(":")[0], legal)
    return f"; nearest: {', '.join(near)}" if near else ""


def elsewhere(text: str, names: Iterable[str]) -> str:
    """Return a clause with what would name ops in the place of a text; nothing where none does.

    An expression, the op of a tensor, a scope, the text in any scope, deeper, the nearest scope.
    """
    names, op = list(names), text.rpartition(":")[0]
    if EXPRESSION.search(text) and not text.startswith(("*", "?")):
        with suppress(RulesError):  # it is no expression
            count = sum(map(regex_test(text), names))
            return f"; in rules, name_regex takes expressions: {text!r} matches {count:,}"
    if op in names:
        return f"; {text!r} is a tensor, and its op is {op!r}"
    wider_ones = [f"{text}/**", f"**/{text}", f"**/{text}/**", f"{text}*"] if text else []
    if is_glob(text):
        scopes = list(dict.fromkeys(name.rpartition("/")[0] for name in names))[:MOST_COMPARED]
        scope, _, inside = text.rpartition("/")
        others = (near for near in nearest(scope, scopes, 1) if near != scope)
        wider_ones += [f"{near}/{part}" for near in others for part in (inside, "**")]
    for wider in wider_ones:
        if count := sum(map(glob_test(wider), names)):
            return f"; {wider!r} matches {count:,}"
    return ""
