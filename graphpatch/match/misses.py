"""Why a match found nothing: how many ops each key alone lets through, and what comes near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from graphpatch.errors import did_you_mean, nearest
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model
from graphpatch.graph.walk import data_uses, downstream, outputs_there, tensor_named, upstream
from graphpatch.match import glob, nth
from graphpatch.match.conditions import (
    ADDED_KEY,
    KEYS,
    adder_in_words,
    conditions,
    holds,
    not_added,
    unknown_tensors,
)
from graphpatch.match.glob import texts
from graphpatch.match.keys import Condition, Test, attr_value_of
from graphpatch.match.nearest import NEAREST, elsewhere, nearest_names, nearest_tensors
from graphpatch.match.nth import natural_sort_key
from graphpatch.match.pattern.syntax import PatternLike, forms
from graphpatch.match.select import Candidates, body_to_match
from graphpatch.match.spec import Match, Pattern, ends_of
from graphpatch.match.values import value_of
from graphpatch.names import TensorName, op_of
from graphpatch.table import IN_MESSAGE, and_more, cut_short, plural, short

if TYPE_CHECKING:
    from graphpatch.match.pattern.matcher import NearMiss

CUT = "the path leads through ops that `within` or `stop_at` leaves out"


def upstream_of(node: Node, match: Match) -> str:
    """Return what is computed from the op, where none of the tensors is."""
    ends = ends_of(match.upstream_of)
    if _leads(node, ends, match.control):
        return CUT
    if _leads(node, ends, control=True):
        return f"{short(ends)} runs after it, by control edges alone"
    return f"{short(ends)} is not computed from it; {_ends_behind(node)}"


def downstream_of(node: Node, match: Match) -> str:
    """Return what the op is computed from, where it is none of the tensors."""
    ends = ends_of(match.downstream_of)
    if _depends(node, ends, match.control):
        return CUT
    if _depends(node, ends, control=True):
        return f"it runs after {short(ends)}, by control edges alone"
    return f"it is not computed from {short(ends)}; {_ends_before(node)}"


def between(node: Node, match: Match) -> str:
    """At which end no path leads on from the op."""
    path = match.between
    assert path is not None
    sources, targets = texts(path.sources), texts(path.targets)
    is_end = node.name in {tensor.op for tensor in _tensors_there(node.body, (*sources, *targets))}
    if is_end and not path.ends:
        return "it is an end of the path"
    parts = []
    if not _depends(node, sources, match.control) and not is_end:
        parts.append(f"it is not computed from {short(sources)}; {_ends_before(node)}")
    if not _leads(node, targets, match.control):
        parts.append(f"{short(targets)} is not computed from it; {_ends_behind(node)}")
    return ", and ".join(parts) or (
        "no path leads from end to end" if (path.within, path.stop_at) == (None, None) else CUT
    )


def _leads(node: Node, targets: Iterable[str], control: bool) -> bool:
    return bool(upstream(node.body, _tensors_there(node.body, targets), control)[node.index])


def _depends(node: Node, sources: Iterable[str], control: bool) -> bool:
    return bool(downstream(node.body, _tensors_there(node.body, sources), control)[node.index])


def _ends_behind(node: Node) -> str:
    visited, todo, last = {node.name}, [node.name], []
    while todo:
        name = todo.pop()
        read = [node.body.heads.names[index] for index, _, _ in data_uses(node.body, name)]
        if not read and name != node.name:
            last.append(name)
        todo += [name for name in dict.fromkeys(read) if name not in visited]
        visited.update(read)
    return f"what is, ends in {short(sorted(last, key=natural_sort_key))}" if last else "nothing is"


def _ends_before(node: Node) -> str:
    body = node.body
    marks = upstream(body, [TensorName(node.name)])
    every = [Node(body, index) for index, mark in enumerate(marks) if mark]
    first = {op.name for op in every if not op.data_inputs and op.index != node.index}
    first |= {op_of(text) for op in every for text in op.data_inputs} - body.by_name.keys()
    return (
        f"it is computed from {short(sorted(first, key=natural_sort_key))}"
        if first
        else "it reads nothing"
    )


def _tensors_there(body: Body, wanted: Iterable[str]) -> list[TensorName]:
    tensors = (tensor_named(body, text) for text in wanted)
    return [tensor for tensor in tensors if tensor is not None]


LETTERS = 100  # letters for one key


def failing(node: Node, match: Match) -> list[str]:
    """Return the keys of a match that an op does not meet."""
    return [key for key, made in conditions(match).items() if not made(node.body)(node)]


def key_in_words(node: Node, key: str, match: Match) -> str:
    """Return what an op has instead of what a key of a match asks for: `dtype is float32`."""
    if key in ON_MATCH:
        text = ON_MATCH[key](node, match)
    else:
        text = IN_WORDS[key](node, match.given().get(key))
    return cut_short(text, LETTERS)


def _inputs_in_words(node: Node, wanted: Mapping[str, Match]) -> str:
    producers = [node.body.producer(text) for text in node.data_inputs]
    listed = [
        f"input {slot} is "
        + (text if producer is None else _input_in_words(producer, wanted.get(str(slot))))
        for slot, (producer, text) in enumerate(zip(producers, node.data_inputs, strict=True))
    ]
    slots = [int(word) for word in wanted if word.isdigit()]
    listed.sort(key=lambda text: int(text.split()[1]) not in slots)  # what was asked for first
    beyond = [f"there is no input {slot}" for slot in slots if slot >= len(producers)]
    return _some([*beyond, *listed], "it reads nothing")


def _input_in_words(node: Node, wanted: Match | None) -> str:
    """Return an op that gives an input, with what it has instead; its type stands there already."""
    keys = [key for key in failing(node, wanted) if key != "op"] if wanted else []
    has = ", ".join(key_in_words(node, key, wanted) for key in keys) if wanted else ""
    return f"{node} ({has})" if has else str(node)


def _readers_in_words(node: Node, wanted: Any) -> str:
    body = node.body
    readers = dict.fromkeys(index for index, _ in body.readers.get(node.name, ()))
    return _some((f"{Node(body, index)} reads it" for index in readers), "nothing reads it")


def _some(listed: Iterable[str], nothing: str) -> str:
    texts_listed = list(listed)
    return short(texts_listed) if texts_listed else nothing


def _nth(node: Node, match: Match) -> str:
    return nth.nth_in_words(node, match.nth, holds(replace(match, nth=None)))


def _what_all_misses(node: Node, wanted: Any) -> str:
    return ", ".join(of_match(node, match) for match in wanted if failing(node, match))


def _what_any_misses(node: Node, wanted: Any) -> str:
    return (
        " and ".join(of_match(node, match) for match in wanted[:IN_MESSAGE]) or "any: it is empty"
    )


def _what_not_leaves_out(node: Node, wanted: Any) -> str:
    return f"it is what `not` leaves out ({', '.join(wanted.given())})"


def of_match(node: Node, match: Match) -> str:
    """Return what an op has instead of what a match asks for: all keys that it does not meet."""
    return ", ".join(key_in_words(node, key, match) for key in failing(node, match))


IN_WORDS: dict[str, Callable[[Node, Any], str]] = {
    **{key: one.in_words for key, one in KEYS.items() if one.in_words is not None},
    ADDED_KEY: adder_in_words,
    "inputs": _inputs_in_words,
    "consumers": _readers_in_words,
    "any": _what_any_misses,
    "all": _what_all_misses,
    "not": _what_not_leaves_out,
}
"""What the keys themselves say, and what is said of those that have matches in them."""

ON_MATCH: dict[str, Callable[[Node, Match], str]] = {
    "nth": _nth,
    "upstream_of": upstream_of,
    "downstream_of": downstream_of,
    "between": between,
    "pattern": lambda node, match: "'pattern' does not hold",
}
"""Those that other keys of the match have a say in: what is counted, whether control edges are."""


VALUES_TOLD = 5
CONSTS_READ = 1_000  # Consts whose values are looked at


def values_there(bodies: Sequence[Body], key: str, wanted: Any) -> str:
    """A clause like `; there are: float32 (9 ops)`; nothing for a key of which it says nothing."""
    say = THERE.get(key)
    return "" if say is None else f"; {say((node for body in bodies for node in body), wanted)}"


def _dtypes_there(nodes: Iterable[Node], wanted: Any) -> str:
    dtypes = (arg.dtype for node in nodes for arg in (node.outputs or [])[:1] if arg.dtype)
    return _most_frequent("there are", Counter(dtypes))


def _attrs_there(nodes: Iterable[Node], wanted: dict[str, Any]) -> str:
    nodes = list(nodes)
    names = dict.fromkeys(name for node in nodes for name in node.attr_names)
    return "; ".join(_attr_there(nodes, key, list(names)) for key in wanted)


def _attr_there(nodes: Sequence[Node], key: str, names: Sequence[str]) -> str:
    values = (attr_value_of(node, key) for node in nodes)
    counts = Counter(repr(value) for value in values if value is not None)
    if not counts:
        return f"no op has an attr {key!r}{did_you_mean(key, names)}"
    return _most_frequent(f"{key} is", counts)


def _constants_there(nodes: Iterable[Node], wanted: Any) -> str:
    constants = islice((node for node in nodes if node.op == "Const"), CONSTS_READ)
    counts = Counter(map(value_of, constants))
    return (
        _most_frequent("Consts are", counts) if counts else "value is of Consts, and there is none"
    )


def _most_frequent(title: str, counts: Counter[str]) -> str:
    """Return the most frequent values, and of how many ops each is."""
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

PLAIN_KEYS = frozenset({"op", "name", "name_regex", "body", "any", "all", "not", ADDED_KEY})
"""The keys of which it does not help to know what the nearest ops have instead."""


def nearly_matching(
    bodies: Sequence[Body], match: Match, wanted: Mapping[str, Condition]
) -> list[str]:
    """One line for each of the nearest ops: what it has instead of what the match asks for."""
    if wanted.keys() <= PLAIN_KEYS:
        return []
    missed_ops = (entry for body in bodies for entry in _missed_keys(body, list(wanted), wanted))
    lines = []
    for _, _, _, node, missed in nsmallest(NEAREST_OPS, missed_ops, key=lambda entry: entry[:3]):
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
    asked = {name: conditions(match) for name, match in pattern.nodes.items()}
    counts = {n: _count(bodies, match, asked[n]) for n, match in pattern.nodes.items()}
    each = (f"{name} ({plural(count, 'op')})" for name, count in counts.items())
    lines = [f"    each by itself: {', '.join(each)}"]
    if len(every) > 1:
        shown = f"; graphpatch patterns {wanted[1:]}" if isinstance(wanted, str) else ""
        lines.insert(0, f"    of {len(every)} forms, form {best + 1} comes nearest{shown}")
    for name, match in pattern.nodes.items():
        if not counts[name] and name not in pattern.absent:
            lines += list(_unfound_types(bodies, name, match)) or [
                f"  {line}"
                for line in nearly_matching(bodies, match, asked[name])
                if not misses[best]
            ]
    return lines + [f"    near: {miss}" for miss in misses[best]]


def _nearness(pattern: Pattern, misses: Sequence[NearMiss]) -> float:
    """Return which part of a pattern was found at the place where it came furthest."""
    return max((len(miss.reached) / len(pattern.present) for miss in misses), default=0)


def nearest_places(bodies: Iterable[Body], pattern: Pattern) -> list[NearMiss]:
    """Return the places in all of these bodies where a pattern came furthest."""
    from graphpatch.match.pattern.matcher import Finder

    misses = [
        miss
        for body in bodies
        for miss in Finder(pattern, conditions).near_misses(body, NEAR_MISSES)
    ]
    return sorted(misses, key=lambda miss: -len(miss.reached))[:NEAR_MISSES]


def _unfound_types(bodies: Iterable[Body], name: str, match: Match) -> Iterator[str]:
    """Yield the nearest of the bodies' op types for each that is in none of them."""
    legal = sorted({op for body in bodies for op in body.by_type})
    for text in texts(match.op or ()):
        if not any(glob.matches_glob(text, op) for op in legal):
            near = nearest(text, legal)
            yield f"    no op is a {text} ({name!r})" + (
                f"; nearest: {', '.join(near)}" if near else ""
            )


def explain(graphs: Iterable[Graph], match: Match, names: bool = True) -> str:
    """One line a key: how many ops it alone lets through, and with `names` the nearest names.

    Then the nearest ops: what each has instead of what the keys that it misses ask for.
    Of a pattern that matches nowhere: how many ops each of its nodes alone could be, and the
    places where it came furthest.
    """
    graphs = list(graphs)
    now = [body for graph in graphs for body in graph.bodies]
    bodies = [body_to_match(body, match) for body in now]
    every = sum(map(len, bodies))
    lines = [f"  looked at {every} ops"]
    wanted = conditions(match)
    written = match.given()
    counts = _by_key(bodies, match, wanted)
    existing = ""
    for key, count in counts.items():
        if key in EXCLUDES and count == every:
            continue  # it leaves out none
        value = written[key]
        shown = f" {_texts_in_words(value)}" if key in NEAR or key in VALUE_SHOWN else ""
        existing = "" if count or len(counts) > 1 else values_there(bodies, key, value)
        near = _nearest_values(graphs, key, value, count) if names else ""
        lines.append(f"  {key}{shown}: {count} of them{near}{existing}")
        if key in COMBINING and not count:
            lines += _counts_of_matches(bodies, key, value)
        if key == "pattern" and not count:
            lines += near_lines(bodies, value)
    met = len(counts) > 1 and all(counts.values())
    lines += ["  all of these together: 0 of them"] if met else []
    missing = _no_tensors(graphs, match)
    almost_met = [] if missing or existing else nearly_matching(bodies, match, wanted)
    return "\n".join([*lines, *almost_met, *not_added(now, wanted), *missing])


def missing_tensors(graphs: Sequence[Graph], match: Match) -> str:
    """That a match names tensors which no body has, and the nearest names; or nothing."""
    return "\n".join(_no_tensors(graphs, match))


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


def _count(bodies: Iterable[Body], match: Match, wanted: Mapping[str, Condition]) -> int:
    """Return how many ops have the types and names of a match, and meet these conditions."""
    return sum(len(Candidates(body, match, wanted).indices()) for body in bodies)


def _by_key(
    bodies: Sequence[Body], match: Match, wanted: Mapping[str, Condition]
) -> dict[str, int]:
    """Return how many ops meet each key of a match alone; types and plain names are looked up."""
    indexed = {"op": Match(op=match.op), "name": Match(name=match.name)}
    return {
        key: _count(bodies, indexed.get(key, Match()), {key: condition})
        for key, condition in wanted.items()
        if key != ADDED_KEY
    }


def _counts_of_matches(
    bodies: Sequence[Body], key: str, value: Match | Sequence[Match]
) -> list[str]:
    """Return how many ops each match alone means of those that `any`, `all` or `not` has."""
    lines = []
    for place, match in enumerate([value] if isinstance(value, Match) else value):
        wanted = conditions(match)
        each = ", ".join(f"{k} {count}" for k, count in _by_key(bodies, match, wanted).items())
        which = key if isinstance(value, Match) else f"{key}[{place}]"
        lines.append(f"    {which}: {plural(_count(bodies, match, wanted), 'op')} ({each})")
    return lines


def _no_tensors(graphs: Sequence[Graph], match: Match) -> list[str]:
    lines = []
    for text in unknown_tensors(graphs, match):
        arguments = [name for graph in graphs for body in graph.bodies for name in body.arguments]
        outputs = outputs_there((body for graph in graphs for body in graph.bodies), text)
        near = (
            f": {outputs}" if outputs else nearest_tensors(text, [*arguments, *_op_names(graphs)])
        )
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
        bodies = [body for graph in graphs for body in graph.bodies]
        outputs = [outputs_there(bodies, text) for text in texts(value) if ":" in text]
        if any(outputs):
            return f"; {', '.join(filter(None, outputs))}"
        meant = "".join(elsewhere(text, legal) for text in texts(value))
        if meant:
            return meant
    near_names = [near for text in texts(value) for near in nearest_names(text, legal)]
    if near_names or key == "name":
        return f"; nearest: {', '.join(dict.fromkeys(near_names))}" if near_names else ""
    more = ", ..." if len(legal) > NEAREST else ""
    if not legal:
        return ""
    return f"; there are: {', '.join(legal[:NEAREST])}{more}"


def _found_inside_names(expression: str, names: Iterable[str]) -> str:
    """That an expression is found inside names, where the whole name is matched."""
    anywhere = f".*({expression}).*"
    count = sum(map(glob.whole(anywhere), names))
    return f"; the whole name is matched: {anywhere!r} matches {count:,}" if count else ""


def _texts_in_words(value: object) -> str:
    return ", ".join(map(repr, texts(value))) if isinstance(value, str | tuple) else ""
