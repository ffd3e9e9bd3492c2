"""Which ops of a graph a match means: each of its keys is a condition, a line of the table `KEYS`.

What finds these ops, `find`, stands first; then the conditions that look at more than one op. Those
of an op by itself are in `keys.py`, and a pattern is found in `matcher.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from graphpatch import names
from graphpatch.differentiation.shapes import Sizes
from graphpatch.errors import MatchError, RulesError, did_you_mean
from graphpatch.graph import provenance, walk
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import tensors_in
from graphpatch.match import keys, spec
from graphpatch.match.binding import Binding, resolve
from graphpatch.match.keys import Condition, per_body
from graphpatch.match.spec import WHOLE, Between, DependencySearch, Match, every_match
from graphpatch.names import is_glob, one_of, texts
from graphpatch.shown import IN_MESSAGE, cut_short, short

T = TypeVar("T")
LETTERS = 100  # for what an op has instead of what one key asks for
ADDED_KEY = "added"  # what a miss calls the condition that the op is the model's


class MatchedOps(msgspec.Struct, frozen=True):
    """What a match means in a graph: the ops that a patch goes to, each once.

    Where it has a pattern, `counted` has its matches that count, and `dropped` those that don't.
    `undecided` are ops of which too little of the shape is known to say whether they match.
    """

    nodes: list[Node] = msgspec.field(default_factory=list)
    counted: list[Binding] = msgspec.field(default_factory=list)
    dropped: list[Binding] = msgspec.field(default_factory=list)
    undecided: list[tuple[Node, Sizes]] = msgspec.field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how often it matched."""
        return len(self.counted) or len(self.nodes)


def select(graph: Graph, match: Match) -> list[Node]:
    """Return the ops that a match means, in the file's order; of a pattern its last op.

    Functions that an earlier patch added carry gradients: what is in them is never meant.
    """
    return find(graph, match).nodes


def find(graph: Graph, match: Match, on: Sequence[str] = ()) -> MatchedOps:
    """Return the ops that a match means, in the order of `select`, and where a pattern holds.

    `on` names the ops of the pattern that are meant, for which the other keys of the match must
    hold, or is `("match",)` for all of them as one: then they must hold for the last op.
    """
    if match.pattern is not None:
        return _find_pattern(graph, match, on)
    matched, wanted = MatchedOps(), holds(match)
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        matched.nodes.extend(Node(body, index) for index in wanted(model).indices())
        if match.shape is not None:
            test = keys.shape_test(match.shape)
            for index in holds(replace(match, shape=None, nth=None))(model).indices():
                sizes, has = test(Node(model, index))
                if has is None:
                    matched.undecided.append((Node(model, index), sizes))
    return matched


def _find_pattern(graph: Graph, match: Match, on: Sequence[str]) -> MatchedOps:
    from graphpatch.match.matcher import matches_of

    matched, is_whole = MatchedOps(), tuple(on) == (WHOLE,)
    matches = matches_of(match.pattern or ())
    others = holds(replace(match, pattern=None, nth=None))

    def searched(body: Body, now: Body) -> tuple[list[Binding], list[Binding]]:
        bindings, candidates, named = matches(body), others(body), () if is_whole else on
        if candidates.tests:
            bindings = [each for each in bindings if all(map(candidates.passes, each.of(named)))]
        counted, dropped = resolve(bindings, on, now)
        if match.nth is not None:
            in_order = counted_in_order(match.nth, body, {each.last for each in counted})
            number = {op: place for place, op in enumerate(in_order)}
            ordered = sorted(counted, key=lambda each: number[each.last])
            meant = set(map(id, picker(match.nth)(ordered)))
            counted = [each for each in counted if id(each) in meant]
        return counted, dropped

    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        # Ops that count as one are to be beside each other now, whatever they were before.
        counted, dropped = searched(body if is_whole else model, body)
        if is_whole and model is not body:
            last_ops = {each.last for each in counted}
            reason = "its ops are not beside each other any more, since rules before patched them"
            before = [each for each in searched(model, body)[0] if each.last not in last_ops]
            dropped += [replace(each, reason=reason) for each in before]
        matched.counted.extend(counted)
        matched.dropped.extend(dropped)
        indices = {node.index for each in counted for node in each.patched}
        matched.nodes.extend(Node(body, index) for index in sorted(indices))
    return matched


def _matching_bodies(graph: Graph, match: Match) -> Iterator[Body]:
    is_meant = one_of(("**",) if match.body is None else texts(match.body))
    return (body for body in graph.bodies if not body.is_ours and is_meant(body.label))


def match_of_ops(nodes: Iterable[Node]) -> dict[str, Any]:
    """Return a match by body and name; each op once, in their order."""
    by_body: dict[str, dict[str, None]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, {})[provenance.in_model(node).name] = None
    places = [
        {"body": body, "name": next(iter(names)) if len(names) == 1 else list(names)}
        for body, names in by_body.items()
    ]
    return places[0] if len(places) == 1 else {"any": places}


def body_to_match(body: Body, match: Match) -> Body:
    """Return the body of which a match asks: the model's, unless it means what rules added."""
    model = provenance.as_model(body)
    parts = list(every_match(match))
    if model is body or any(part.taken not in (None, False) for part in parts):
        return body
    named = {name for part in parts for name in texts(part.name or ())}
    named |= {names.op_of(tensor) for tensor in spec.tensors_named(match)}
    is_type = one_of(texts(match.op or "**"))
    for name in named & body.by_name.keys():
        old = model.by_name.get(name)
        if old is None or (is_type(body.node(name).op) and not is_type(model.heads.ops[old])):
            return body  # a rule added it: by this name, or with this op type
    return model


class Candidates(msgspec.Struct, eq=False, dict=True):
    """The ops of one body that a match means; `tests` are its conditions, by their keys."""

    body: Body
    match: Match
    tests: Mapping[str, Condition]
    known: dict[int, bool] = msgspec.field(default_factory=dict)

    @cached_property
    def types(self) -> frozenset[str] | None:
        """Return the op types of the body that are meant; None where every type is."""
        if self.match.op is None:
            return None
        return frozenset(filter(one_of(texts(self.match.op)), self.body.by_type))

    @cached_property
    def besides(self) -> Sequence[Condition]:
        """Return the conditions that ask for more than the op type, which an index finds."""
        return [test for key, test in self.tests.items() if key != "op"]

    @cached_property
    def indexed(self) -> Sequence[int]:
        """Return those that have the types and names, whatever else is asked, in order."""
        by_type, by_name, heads = self.body.by_type, self.body.by_name, self.body.heads
        wanted = texts(self.match.name or ())
        indices: Sequence[int] = range(len(self.body))
        if wanted and not any(map(is_glob, wanted)):
            indices = sorted({by_name[name] for name in wanted if name in by_name})
            return [i for i in indices if self.types is None or heads.ops[i] in self.types]
        if self.types is not None:
            indices = sorted(index for op in self.types for index in by_type[op])
        is_meant = one_of(wanted)
        return [i for i in indices if is_meant(heads.names[i])] if wanted else indices

    def __call__(self, node: Node) -> bool:
        """Return whether a node of the body is one of them."""
        return self.passes(node.index)

    def passes(self, index: int) -> bool:
        """Return whether an op is one of them. What the conditions said is remembered."""
        if self.types is not None and self.body.heads.ops[index] not in self.types:
            return False
        if not self.besides:
            return True
        if index not in self.known:
            node = Node(self.body, index)
            self.known[index] = all(test.holds(node) for test in self.besides)
        return self.known[index]

    def indices(self) -> list[int]:
        """Return all of them, in the file's order."""
        return [index for index in self.indexed if self.passes(index)]

    def failing(self, node: Node) -> list[str]:
        """Return the keys that an op does not meet, in the order in which they are tried."""
        return [key for key, test in self.tests.items() if not test.holds(node)]

    def instead(self, node: Node, keys: Iterable[str] | None = None) -> str:
        """Return what an op has instead of what these keys ask for, or all that it fails."""
        failing = self.failing(node) if keys is None else keys
        return ", ".join(cut_short(self.tests[key].instead(node), LETTERS) for key in failing)

    def why_not(self, node: Node) -> str:
        """Return the first thing that an op has instead of what is asked for; or nothing."""
        failing = self.failing(node)[:1]
        if failing == ["op"]:
            return f"{node} is not {' or '.join(texts(self.match.op or ()))}"
        return f"of {node} {self.instead(node, failing)}" if failing else ""


def holds(match: Match) -> Callable[[Body], Candidates]:
    """Return what tells in each body the ops that a match means."""
    tests = conditions(match)
    untouched = {key: test for key, test in tests.items() if key != ADDED_KEY}

    @per_body
    def candidates_in(body: Body) -> Candidates:
        may_have_more = body.edited or body.heads.records
        return Candidates(body, match, tests if may_have_more else untouched)

    return candidates_in


def conditions(match: Match) -> dict[str, Condition]:
    """Return the conditions of a match by their keys, in the order in which they are tried.

    One more says that the op is the model's (`added`), where the match does not ask for others.
    Raises RulesError where the value of a key means nothing.
    """
    written = match.given()
    refuse_empty(written)
    if match.control and not written.keys() & set(ON_EDGES):
        raise RulesError(f"control goes with {', '.join(ON_EDGES)}")
    by_key = {}
    for key, make in KEYS.items():
        if key in written:
            others = (match,) if key in (*ON_EDGES, "nth") else ()
            by_key[key] = make(written[key], *others)
    own = of_the_model(match)
    return by_key if own is None else {**by_key, ADDED_KEY: own}


def several(
    wanted: Sequence[Match], quantifier: Callable[[Iterable[bool]], bool], separator: str
) -> Condition:
    """Return the condition that one of these matches holds, or each."""
    every = [holds(match) for match in wanted]

    def in_words(node: Node) -> str:
        failing = [part(node.body) for part in every if not part(node.body)(node)]
        return separator.join(each.instead(node) for each in failing[:IN_MESSAGE])

    return Condition(lambda node: quantifier(part(node.body)(node) for part in every), in_words)


def none_of(wanted: Match) -> Condition:
    """Return the condition that this match does not hold."""
    part, words = holds(wanted), f"it is what `not` leaves out ({', '.join(wanted.given())})"
    return Condition(lambda node: not part(node.body)(node), lambda node: words)


def pattern(wanted: spec.PatternLike) -> Condition:
    """Return the condition that the op is the last one of such a pattern."""
    from graphpatch.match.matcher import matches_of

    matches = matches_of(wanted)

    @per_body
    def last(body: Body) -> set[int]:
        return {binding.last for binding in matches(body)}

    return Condition(
        lambda node: node.index in last(node.body), lambda node: "'pattern' does not hold"
    )


def of_the_model(match: Match) -> Condition | None:
    """Return the condition that no rule added the op; None where the match may mean any op.

    With `taken`, or its name written out, what was added is meant too. Clones of the model's ops
    are its own: the gradient flows through them.
    """
    by_kind = match.class_ is not None or not {"*", "**"} & {*texts(match.op or "*")}
    if match.taken is not None or ((match.any or match.all) and not by_kind):
        return None  # each of `any` and `all` asks for itself
    spelled = {text for text in texts(match.name or ()) if not is_glob(text)}

    def is_own(node: Node) -> bool:
        if isinstance(node.body, provenance.ModelBody):
            return node.body.is_there(node.index)
        may_be_new = node.body.may_be_signed(node.index)
        return not may_be_new or adder(node) is None or node.name in spelled

    return Condition(is_own, lambda node: f"rule {adder(node)!r} added it")


def adder(node: Node) -> str | None:
    """Return the rule that added an op; None for the model's, of which clones are some."""
    if not provenance.is_added(node) or provenance.clone_of(node):
        return None
    return next((author.rule for author in provenance.rules_that_patched(node)), "")


def taken(wanted: bool | str | Sequence[str]) -> Condition:
    """Return the condition that some rule before patched or added the op, or these did; or none."""
    is_meant = one_of(("**",) if isinstance(wanted, bool) else texts(wanted))

    def rules(node: Node) -> list[str]:
        return [author.rule for author in provenance.rules_that_patched(node)]

    def in_words(node: Node) -> str:
        named = ", ".join(map(repr, dict.fromkeys(rules(node))))
        return f"it was patched by rule {named}" if named else "no rule patched it"

    @per_body
    def patched(body: Body) -> set[int]:
        touched = provenance.touched(body)
        return {node.index for node in touched if any(map(is_meant, rules(node)))}

    return Condition(lambda node: (node.index in patched(node.body)) != (wanted is False), in_words)


def check_taken(match: Match, before: Collection[str]) -> None:
    """Raise MatchError where `taken` names a rule, without a glob, that is none of those before."""
    for part in every_match(match):
        for text in () if isinstance(part.taken, bool) else texts(part.taken or ()):
            if not is_glob(text) and text not in before:
                near = f"{did_you_mean(text, before)}; before it: "
                near += ", ".join(map(repr, before)) or "none"
                raise MatchError(f"taken: no rule before this one is called {text!r}{near}")


QUANTIFIERS: dict[str, Callable[[Iterable[bool]], bool]] = {"any": any, "all": all}
QUANTIFIERS["none"] = lambda neighbours: not any(neighbours)


def neighbours(key: str, wanted: Mapping[str, Match], match: Match) -> Condition:
    """Return the condition that what gives the inputs, or reads the outputs, are such ops.

    The argument of a function is not an op, and does not count; `all` holds where there is nothing.
    """
    for word in wanted:
        if word not in QUANTIFIERS and not re.fullmatch("[0-9]{1,9}", word):
            legal = f"; legal: 0, 1, ..., {', '.join(QUANTIFIERS)}"
            near = did_you_mean(word, QUANTIFIERS) or legal
            raise RulesError(f"{key}: {word!r} does not say which{near}")
    parts = {word: holds(part) for word, part in wanted.items()}

    def producers(node: Node, slot: int | None) -> Iterable[Node | None]:
        read = node.inputs if match.control and slot is None else node.data_inputs
        return map(node.body.producer, read if slot is None else read[slot : slot + 1])

    def readers(node: Node, output: int | None) -> Iterable[Node | None]:
        body = node.body
        tensor = None if output is None else walk.tensor_named(body, f"{node.name}:{output}")
        for index, slot in body.readers.get(node.name, ()):
            text = body.heads.inputs[index][slot]
            is_read = match.control or text[:1] != "^"
            if is_read if output is None else names.parse(text) == tensor:
                yield Node(body, index)

    def is_met(node: Node, word: str) -> bool:
        number = None if word in QUANTIFIERS else int(word)
        every = producers(node, number) if key == "inputs" else readers(node, number)
        are_such = (op is not None and parts[word](op.body)(op) for op in every)
        return QUANTIFIERS.get(word, any)(are_such)

    def inputs_in_words(node: Node) -> str:
        read, words = node.data_inputs, []
        asked = [int(word) for word in parts if word.isdigit()]
        for slot in dict.fromkeys((*asked, *range(len(read)))):  # those that are asked for first
            if slot >= len(read):
                words.append(f"there is no input {slot}")
                continue
            producer, part, has = node.body.producer(read[slot]), parts.get(str(slot)), ""
            if producer is not None and part is not None:
                failing = part(node.body).failing(producer)
                has = part(node.body).instead(producer, [key for key in failing if key != "op"])
            words.append(f"input {slot} is {producer or read[slot]}" + (f" ({has})" if has else ""))
        return short(words) or "it reads nothing"

    def readers_in_words(node: Node) -> str:
        indices = dict.fromkeys(index for index, _ in node.body.readers.get(node.name, ()))
        words = [f"{Node(node.body, index)} reads it" for index in indices]
        return short(words) or "nothing reads it"

    return Condition(
        lambda node: all(is_met(node, word) for word in parts),
        inputs_in_words if key == "inputs" else readers_in_words,
    )


def along(
    value: str | Sequence[str] | DependencySearch, match: Match, is_upstream: bool
) -> Condition:
    """Return the condition that tensors are computed from the op, or it from them."""
    search = value if isinstance(value, DependencySearch) else DependencySearch(of=texts(value))
    tensors: tuple[str, ...] = texts(search.of)
    return on_path(search, () if is_upstream else tensors, tensors if is_upstream else (), match)


def on_path(
    limits: DependencySearch | Between, sources: Sequence[str], targets: Sequence[str], match: Match
) -> Condition:
    """Return the condition that a path from the sources, or to the targets, leads over the op.

    With both, the ops that give the tensors at both `ends` belong to it, or neither does. A path
    leads on through ops that are `within`, and not beyond those of `stop_at`, the ends apart.
    """
    control, ends = match.control, not isinstance(limits, Between) or limits.ends
    within = None if limits.within is None else holds(limits.within)
    stop_at = None if limits.stop_at is None else holds(limits.stop_at)

    @per_body
    def meant(body: Body) -> Collection[int | None]:
        through = (lambda index: True) if within is None else within(body).passes
        last = (lambda index: False) if stop_at is None else stop_at(body).passes
        firsts, lasts = tensors_in(body, sources), tensors_in(body, targets)
        if not sources or not targets:
            follow, starts = (walk.downstream, firsts) if sources else (walk.upstream, lasts)
            return set(compress(range(len(body)), follow(body, starts, control, through, last)))
        to = {body.by_name.get(tensor.op) for tensor in lasts}
        behind = walk.downstream(
            *(body, firsts, control),
            lambda index: index in to or (through(index) and not last(index)),
        )
        before = walk.upstream(body, lasts, control, lambda index: bool(behind[index]))
        inner = {index for index, mark in enumerate(before) if mark and behind[index]}
        on_paths: set[int | None] = {*inner}
        for tensor in firsts:  # each by itself: a path may not lead through the op of another
            reading = [reader for reader, _ in walk.readers_of(body, tensor)]
            for reader, slot in body.readers.get(tensor.op, ()) if control else ():
                reading += [reader] if body.heads.inputs[reader][slot][:1] == "^" else []
            if tensor in lasts or not inner.isdisjoint(reading):
                on_paths.add(body.by_name.get(tensor.op))
        tensors = () if ends else (*firsts, *lasts)
        return on_paths - {body.by_name.get(tensor.op) for tensor in tensors}

    def why_not(node: Node) -> str:
        body, parts = node.body, []
        if sources and not walk.downstream(body, tensors_in(body, sources), control)[node.index]:
            parts.append(f"it is not computed from {short(sources)}")
        if targets and not walk.upstream(body, tensors_in(body, targets), control)[node.index]:
            parts.append(f"{short(targets)} is not computed from it")
        return ", and ".join(parts) or "`within`, `stop_at` or `ends` leaves it out"

    return Condition(lambda node: node.index in meant(node.body), why_not)


SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?(?::(-?[1-9]\d{0,8})?)?")
NTH_WORDS = {"first": 0, "last": -1}
NTH = 'a number, "first", "last", a list of numbers, or a slice such as ":-1" (all but the last)'


def picker(wanted: Any) -> Callable[[Sequence[T]], list[T]]:
    """Return what takes of a list what `nth` means: a number, a word, several, or a slice.

    Raises RulesError where it is none of these. A number beyond the list means nothing of it.
    """
    at = wanted.at if isinstance(wanted, spec.Nth) else wanted
    at = NTH_WORDS.get(at, at) if isinstance(at, str) else at
    if isinstance(at, str):
        parts = SLICE.fullmatch(at)
        if parts is None:
            raise RulesError(f"nth: expected {NTH}; found {at!r}")
        chosen = slice(*(None if part is None else int(part) for part in parts.groups()))
        return lambda counted: list(counted[chosen])
    places = at if isinstance(at, tuple | list) else (at,)
    return lambda counted: [counted[n] for n in places if -len(counted) <= n < len(counted)]


def counted_in_order(wanted: Any, body: Body, indices: Iterable[int]) -> list[int]:
    """Return ops, by index, as they are counted; by `graph` each after those that it reads."""
    by, ops = getattr(wanted, "by", "graph"), body.heads.names
    if by == "file":
        return sorted(indices)
    depth = walk.depths(body) if by == "graph" else [0] * len(body)
    return sorted(indices, key=lambda index: (depth[index], names.natural_sort_key(ops[index])))


def nth(wanted: Any, match: Match) -> Condition:
    """Return the condition that the op is number so many of those that all other keys mean."""
    others, choose = holds(replace(match, nth=None)), picker(wanted)

    @per_body
    def counted_in(body: Body) -> tuple[list[int], set[int]]:
        counted = counted_in_order(wanted, body, others(body).indices())
        return counted, set(choose(counted))

    def instead(node: Node) -> str:
        counted, _ = counted_in(node.body)
        if node.index not in counted:
            return f"it is none of the {len(counted)} that nth counts"
        number, by = counted.index(node.index), getattr(wanted, "by", "graph")
        return f"it is number {number} (from 0) of {len(counted)} in {by} order"

    return Condition(lambda node: node.index in counted_in(node.body)[1], instead)


KEYS: dict[str, Callable[..., Condition]] = {
    "body": keys.of_text(lambda node: node.body.label, "it is in {}"),
    **{key: keys.OP_KEYS[key] for key in ("op", "name", "name_regex")},
    "any": lambda wanted: several(wanted, any, " and "),
    "all": lambda wanted: several(wanted, all, ", "),
    "not": none_of,
    "upstream_of": lambda value, match: along(value, match, is_upstream=True),
    "downstream_of": lambda value, match: along(value, match, is_upstream=False),
    "between": lambda value, match: on_path(
        value, texts(value.sources), texts(value.targets), match
    ),
    "pattern": pattern,
    "class": keys.OP_KEYS["class"],
    "taken": taken,
    "inside": keys.OP_KEYS["inside"],
    **keys.OP_KEYS,  # the others of these
    "inputs": lambda value, match: neighbours("inputs", value, match),
    "consumers": lambda value, match: neighbours("consumers", value, match),
    "value": keys.OP_KEYS["value"],
    "nth": nth,
}
"""In the order in which they are tried: cheap ones first."""

ON_EDGES = ("inputs", "consumers", "between", "upstream_of", "downstream_of")
"""Those that follow edges, as `control` says."""

MAY_BE_EMPTY = ("value", "shape", "all", "pattern")
"""Those whose lists mean something without anything in them: a scalar's shape, no condition."""


def refuse_empty(written: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key, value in written.items():
        parts = {key: value}
        for name, part in value.items() if key == "attr" else [("", value)]:
            if isinstance(part, spec.Written | spec.OneOf):
                where = f"{key}.{name}" if name else key
                for field, name_of_field in spec.spelled(part).items():
                    parts[f"{where}.{field}"] = getattr(part, name_of_field)
        for where, part in parts.items():
            if part in ((), {}, spec.Inside()) and key not in MAY_BE_EMPTY:
                raise RulesError(f"{where}: it is empty, so it says nothing; leave {where} out")
