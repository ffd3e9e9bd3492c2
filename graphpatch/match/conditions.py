"""What an op must be: each key of a match is one condition, a line of the table `KEYS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace

from graphpatch import names
from graphpatch.errors import MatchError, RulesError, did_you_mean
from graphpatch.graph import provenance
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import ModelBody
from graphpatch.graph.walk import (
    anywhere,
    downstream,
    nowhere,
    readers_of,
    tensor_named,
    upstream,
)
from graphpatch.match import glob, inside, keys
from graphpatch.match.glob import texts
from graphpatch.match.keys import Condition, per_body
from graphpatch.match.nth import counted_in_order, picker
from graphpatch.match.spec import (
    Between,
    DependencySearch,
    Inside,
    Match,
    Nth,
    OneOf,
    Pattern,
    every_match,
)
from graphpatch.names import TensorName
from graphpatch.table import IN_MESSAGE, cut_short, short

LETTERS = 100
"""Letters for what an op has instead of what one key asks for."""

ADDED_KEY = "added"
"""What a miss calls the condition that the op is the model's; it is not a key of a match."""


class Candidates(msgspec.Struct, eq=False, dict=True):
    """The ops of one body that a match means; `tests` are its conditions, by their keys."""

    body: Body
    match: Match
    tests: Mapping[str, Condition]
    known: dict[int, bool] = msgspec.field(default_factory=dict)

    @cached_property
    def types(self) -> frozenset[str] | None:
        """The op types of the body that are meant; None where every type is."""
        if self.match.op is None:
            return None
        return frozenset(filter(glob.one_of(texts(self.match.op)), self.body.by_type))

    @cached_property
    def besides(self) -> Sequence[Condition]:
        """The conditions that ask for more than the op type, which an index finds."""
        return [test for key, test in self.tests.items() if key != "op"]

    @cached_property
    def indexed(self) -> Sequence[int]:
        """Those that have the types and names, whatever else is asked; in the file's order."""
        by_type, by_name, heads = self.body.by_type, self.body.by_name, self.body.heads
        wanted = texts(self.match.name or ())
        indices: Sequence[int] = range(len(self.body))
        if wanted and not any(map(glob.is_glob, wanted)):
            indices = sorted({by_name[name] for name in wanted if name in by_name})
            return [i for i in indices if self.types is None or heads.ops[i] in self.types]
        if self.types is not None:
            indices = sorted(index for op in self.types for index in by_type[op])
        if not wanted:
            return indices
        is_meant = glob.one_of(wanted)
        return [index for index in indices if is_meant(heads.names[index])]

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
        keys = self.failing(node) if keys is None else keys
        return ", ".join(cut_short(self.tests[key].instead(node), LETTERS) for key in keys)

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
    by_key = {
        key: make(written[key], match) if key in WITH_OTHERS else make(written[key])
        for key, make in KEYS.items()
        if key in written
    }
    own = of_the_model(match)
    return by_key if own is None else {**by_key, ADDED_KEY: own}


# Keys that have matches in them.


def several(
    wanted: Sequence[Match], quantifier: Callable[[Iterable[bool]], bool], separator: str
) -> Condition:
    """Return the condition that one of these matches holds, or each."""
    every = [holds(match) for match in wanted]

    def in_words(node: Node) -> str:
        failing = [each for each in (part(node.body) for part in every) if not each(node)]
        return separator.join(each.instead(node) for each in failing[:IN_MESSAGE])

    return Condition(lambda node: quantifier(part(node.body)(node) for part in every), in_words)


def none_of(wanted: Match) -> Condition:
    """Return the condition that this match does not hold."""
    part, words = holds(wanted), f"it is what `not` leaves out ({', '.join(wanted.given())})"
    return Condition(lambda node: not part(node.body)(node), lambda node: words)


def pattern(wanted: str | Pattern | Sequence[str | Pattern]) -> Condition:
    """Return the condition that the op is the last one of such a pattern."""
    from graphpatch.match.pattern.matcher import matches_of

    matches = matches_of(wanted)

    @per_body
    def last(body: Body) -> set[int]:
        return {binding.last for binding in matches(body)}

    return Condition(
        lambda node: node.index in last(node.body), lambda node: "'pattern' does not hold"
    )


# Which ops are meant, whatever they are: in one body, of the model, patched by earlier rules.

ANY_TYPE = ("*", "**")


def of_the_model(match: Match) -> Condition | None:
    """Return the condition that no rule added the op; None where the match may mean any op.

    With `taken`, or its name written out, what was added is meant too. Clones of the model's ops
    are its own: the gradient flows through them.
    """
    by_kind = match.class_ is not None or not set(ANY_TYPE) & set(texts(match.op or ANY_TYPE))
    if match.taken is not None or ((match.any or match.all) and not by_kind):
        return None  # each of `any` and `all` asks for itself
    spelled = {text for text in texts(match.name or ()) if not glob.is_glob(text)}

    def is_own(node: Node) -> bool:
        if isinstance(node.body, ModelBody):
            return node.body.is_there(node.index)
        may_be_new = node.body.may_be_signed(node.index)
        return not may_be_new or not _is_new(node) or node.name in spelled

    return Condition(is_own, lambda node: f"rule {adder(node)!r} added it")


def _is_new(node: Node) -> bool:
    """Return whether a rule added an op which is not a clone of another."""
    return provenance.is_added(node) and not provenance.clone_of(node)


def adder(node: Node) -> str:
    """Return the rule that added an op which is not a clone of another; nothing where none did."""
    authors = provenance.rules_that_patched(node) if _is_new(node) else []
    return authors[0].rule if authors else ""


def taken(wanted: bool | str | Sequence[str]) -> Condition:
    """Return the condition that some earlier rule patched the op, or one of these names; or none.

    The op that has its name now, and those that a rule added, count as patched by it too. Rules of
    an earlier run, which the file tells of, count as well.
    """
    is_meant = glob.one_of(("**",) if isinstance(wanted, bool) else texts(wanted))

    def in_words(node: Node) -> str:
        rules = dict.fromkeys(author.rule for author in provenance.rules_that_patched(node))
        named = ", ".join(map(repr, rules))
        return f"it was patched by rule {named}" if rules else "no rule patched it"

    @per_body
    def patched(body: Body) -> set[int]:
        return {
            node.index
            for node in provenance.touched(body)
            if any(is_meant(author.rule) for author in provenance.rules_that_patched(node))
        }

    is_wanted = wanted is not False
    return Condition(lambda node: (node.index in patched(node.body)) is is_wanted, in_words)


def check_taken(match: Match, before: Collection[str]) -> None:
    """Raise MatchError where `taken` names a rule, and none of those before has that name.

    A glob may be meant for rules that are not there.
    """
    for part in every_match(match):
        for text in () if isinstance(part.taken, bool) else texts(part.taken or ()):
            if not glob.is_glob(text) and text not in before:
                legal = ", ".join(map(repr, before)) or "none"
                near = did_you_mean(text, before)
                raise MatchError(
                    f"taken: no rule before this one is called {text!r}{near}; before it: {legal}"
                )


# Keys that follow edges.

# An op, or None for what is not an op: the argument of a function, an input that names nothing.
Neighbour = Node | None

QUANTIFIERS: dict[str, Callable[[Iterable[bool]], bool]] = {
    **{"any": any, "all": all},
    **{"none": lambda neighbours: not any(neighbours)},
}


def inputs(wanted: Mapping[str, Match], match: Match) -> Condition:
    """Return the condition that what gives input number k is such an op, or any, all, none do."""

    def producers(node: Node, slot: int | None) -> Iterable[Neighbour]:
        read = node.inputs if match.control and slot is None else node.data_inputs
        return map(node.body.producer, read if slot is None else read[slot : slot + 1])

    def in_words(node: Node, parts: Mapping[str, Candidates]) -> str:
        read, words = node.data_inputs, []
        asked = [int(word) for word in parts if word.isdigit()]
        for slot in dict.fromkeys((*asked, *range(len(read)))):  # those that are asked for first
            if slot >= len(read):
                words.append(f"there is no input {slot}")
                continue
            producer, part, has = node.body.producer(read[slot]), parts.get(str(slot)), ""
            if producer is not None and part is not None:
                has = part.instead(producer, [key for key in part.failing(producer) if key != "op"])
            words.append(f"input {slot} is {producer or read[slot]}" + (f" ({has})" if has else ""))
        return short(words) or "it reads nothing"

    return on_neighbours("inputs", wanted, producers, in_words)


def consumers(wanted: Mapping[str, Match], match: Match) -> Condition:
    """Return the condition that what reads output number k is such an op, or any, all, none do."""

    def readers(node: Node, output: int | None) -> Iterable[Neighbour]:
        body, tensor = node.body, None
        if output is not None:
            tensor = tensor_named(body, str(TensorName(node.name, output)))
        for index, slot in body.readers.get(node.name, ()):
            text = body.heads.inputs[index][slot]
            is_read = names.parse(text) == tensor
            if is_read if output is not None else match.control or text[:1] != "^":
                yield Node(body, index)

    def in_words(node: Node, parts: Mapping[str, Candidates]) -> str:
        indices = dict.fromkeys(index for index, _ in node.body.readers.get(node.name, ()))
        words = [f"{Node(node.body, index)} reads it" for index in indices]
        return short(words) or "nothing reads it"

    return on_neighbours("consumers", wanted, readers, in_words)


def on_neighbours(
    key: str,
    wanted: Mapping[str, Match],
    beside: Callable[[Node, int | None], Iterable[Neighbour]],
    in_words: Callable[[Node, Mapping[str, Candidates]], str],
) -> Condition:
    """Return the condition that what is beside an op is such an op.

    The argument of a function is not an op, and does not count; `all` holds where there is nothing.
    """
    for word in wanted:
        if word not in QUANTIFIERS and not re.fullmatch("[0-9]{1,9}", word):
            legal = f"; legal: 0, 1, ..., {', '.join(QUANTIFIERS)}"
            near = did_you_mean(word, QUANTIFIERS) or legal
            raise RulesError(f"{key}: {word!r} does not say which{near}")
    parts = {word: holds(part) for word, part in wanted.items()}

    def is_met(node: Node, word: str) -> bool:
        every = beside(node, None if word in QUANTIFIERS else int(word))
        are_such = (op is not None and parts[word](op.body)(op) for op in every)
        return QUANTIFIERS.get(word, any)(are_such)

    return Condition(
        lambda node: all(is_met(node, word) for word in parts),
        lambda node: in_words(node, {word: part(node.body) for word, part in parts.items()}),
    )


def along(
    is_upstream: bool,
) -> Callable[[str | Sequence[str] | DependencySearch, Match], Condition]:
    """Return what makes the condition that tensors are computed from the op, or it from them."""

    def condition(value: str | Sequence[str] | DependencySearch, match: Match) -> Condition:
        search = value if isinstance(value, DependencySearch) else DependencySearch(of=texts(value))
        tensors: tuple[str, ...] = texts(search.of)
        sources, targets = ((), tensors) if is_upstream else (tensors, ())
        return on_path(search, sources, targets, match)

    return condition


def between(value: Between, match: Match) -> Condition:
    """Return the condition that the op is on a path from one of the first tensors to a second."""
    return on_path(value, texts(value.sources), texts(value.targets), match)


def on_path(
    limits: DependencySearch | Between,
    sources: Sequence[str],
    targets: Sequence[str],
    match: Match,
) -> Condition:
    """Return the condition that a path from the sources, or to the targets, leads over the op.

    With both, the ops that give the tensors at both `ends` belong to it, or neither does. A path
    leads on through ops that are `within`, and not beyond those of `stop_at`; what these say is not
    asked of the ends of a path between two tensors, which does not lead through the latter.
    """
    control, ends = match.control, not isinstance(limits, Between) or limits.ends
    within = None if limits.within is None else holds(limits.within)
    stop_at = None if limits.stop_at is None else holds(limits.stop_at)

    @per_body
    def meant(body: Body) -> Collection[int | None]:
        through = anywhere if within is None else within(body).passes
        last = nowhere if stop_at is None else stop_at(body).passes
        firsts, lasts = tensors_in(body, sources), tensors_in(body, targets)
        if not sources or not targets:
            walk, starts = (downstream, firsts) if sources else (upstream, lasts)
            return set(compress(range(len(body)), walk(body, starts, control, through, last)))
        to = {body.by_name.get(tensor.op) for tensor in lasts}
        behind = downstream(
            *(body, firsts, control),
            lambda index: index in to or (through(index) and not last(index)),
        )
        before = upstream(body, lasts, control, lambda index: bool(behind[index]))
        inner = {index for index, mark in enumerate(before) if mark and behind[index]}
        on_paths: set[int | None] = {*inner}
        for tensor in firsts:  # each by itself: a path may not lead through the op of another
            reading = [reader for reader, _ in readers_of(body, tensor)]
            for reader, slot in body.readers.get(tensor.op, ()) if control else ():
                reading += [reader] if body.heads.inputs[reader][slot][:1] == "^" else []
            if tensor in lasts or not inner.isdisjoint(reading):
                on_paths.add(body.by_name.get(tensor.op))
        return on_paths if ends else on_paths - ends_in(body)

    def ends_in(body: Body) -> set[int | None]:
        return {body.by_name.get(t.op) for t in tensors_in(body, (*sources, *targets))}

    def why_not(node: Node) -> str:
        is_end = bool(sources and targets) and node.index in ends_in(node.body)
        if is_end and not ends:
            return "it is an end of the path"
        body, parts, from_there = node.body, [], () if is_end else sources
        if from_there and not downstream(body, tensors_in(body, sources), control)[node.index]:
            parts.append(f"it is not computed from {short(sources)}")
        if targets and not upstream(body, tensors_in(body, targets), control)[node.index]:
            parts.append(f"{short(targets)} is not computed from it")
        cut = "the path leads through ops that `within` or `stop_at` leaves out"
        return ", and ".join(parts) or cut

    return Condition(lambda node: node.index in meant(node.body), why_not)


def tensors_in(body: Body, wanted: Iterable[str]) -> list[TensorName]:
    """Return the tensors of these names that a body has."""
    tensors = (tensor_named(body, text) for text in wanted)
    return [tensor for tensor in tensors if tensor is not None]


def nth(wanted: Any, match: Match) -> Condition:
    """Return the condition that the op is number so many of those that all other keys mean."""
    others, choose = holds(replace(match, nth=None)), picker(wanted)

    @per_body
    def counted_in(body: Body) -> list[int]:
        return counted_in_order(wanted, body, others(body).indices())

    @per_body
    def meant(body: Body) -> set[int]:
        return set(choose(counted_in(body)))

    def instead(node: Node) -> str:
        counted = counted_in(node.body)
        if node.index not in counted:
            return f"it is none of the {len(counted)} that nth counts"
        number, by = counted.index(node.index), getattr(wanted, "by", "graph")
        return f"it is number {number} (from 0) of {len(counted)} in {by} order"

    return Condition(lambda node: node.index in meant(node.body), instead)


KEYS: dict[str, Callable[..., Condition]] = {
    "body": keys.of_text(lambda node: node.body.label, "it is in {}"),
    **{key: keys.OP_KEYS[key] for key in ("op", "name", "name_regex")},
    "any": lambda wanted: several(wanted, any, " and "),
    "all": lambda wanted: several(wanted, all, ", "),
    "not": none_of,
    "upstream_of": along(is_upstream=True),
    "downstream_of": along(is_upstream=False),
    "between": between,
    "pattern": pattern,
    "class": keys.OP_KEYS["class"],
    "taken": taken,
    "inside": inside.inside,
    **keys.OP_KEYS,  # the others of these
    "inputs": inputs,
    "consumers": consumers,
    "value": keys.OP_KEYS["value"],
    "nth": nth,
}
"""In the order in which they are tried: cheap ones first."""

ON_EDGES = ("inputs", "consumers", "between", "upstream_of", "downstream_of")
"""Those that follow edges, as `control` says."""

WITH_OTHERS = (*ON_EDGES, "nth")
"""Those in whose meaning other keys of the match have a say."""


MAY_BE_EMPTY = ("value", "shape", "all", "pattern")
"""Those whose lists mean something without anything in them: a scalar's shape, no condition."""


def refuse_empty(written: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key, value in written.items():
        parts = {key: value}
        for name, part in value.items() if key == "attr" else [("", value)]:
            if isinstance(part, DependencySearch | Between | Nth | Inside | OneOf):
                fields = zip(part.__struct_encode_fields__, structs.astuple(part), strict=True)
                where = f"{key}.{name}" if name else key
                parts |= {f"{where}.{field}": inner for field, inner in fields}
        for where, part in parts.items():
            if part in ((), {}, Inside()) and key not in MAY_BE_EMPTY:
                raise RulesError(f"{where}: it is empty, so it says nothing; leave {where} out")
