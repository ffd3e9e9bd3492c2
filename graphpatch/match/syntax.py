"""The text form of a pattern, read into the value that its JSON form is; and what is no pattern.

    pattern  = chain {";" chain}
    chain    = node {arrow node}
    arrow    = "->"                     the right one reads the left one
             | "->+"                    the right one is a run of one or more such ops
             | "^->"                    a control edge: the right one runs after the left one
    node     = ["!"] [CAPTURE ":"] what {mark}
             | ["!"] CAPTURE {mark}     a node that is named elsewhere: the same one again
    what     = "_"                      a tensor from outside, whatever gives it
             | TYPE {"|" TYPE}          an op of one of these types; `*` is any, `*Pool` a glob
    mark     = "?"                      the op may be missing
             | "=" VALUE ["~" NUMBER]   a Const of this value, within this tolerance
             | COMPARE NUMBER           a Const of which every element is > 0, >= 0, < 0 or <= 0
             | ":" NUMBER               the input slot at which the link enters; default: any
             | "[" NUMBER "]"           the output at which the link leaves; default: any
    VALUE    = NUMBER | "[" [VALUE {"," VALUE}] "]"

`!` means that there is no such op, beside those of the match.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch import names, opdefs
from graphpatch.decoding import convert
from graphpatch.errors import PatternError, did_you_mean, wrong_argument
from graphpatch.match.spec import Edge, Link, Match, Near, Pattern, PatternLike
from graphpatch.names import is_glob, texts
from graphpatch.shown import pointed
from graphpatch.tokens import Language, Token


def pattern_error(text: str, column: int, message: str) -> PatternError:
    """Return the error to raise for what stands at `column` (from 1) of the text of a pattern."""
    if not text.strip():
        return PatternError(f"pattern: {message}")
    return PatternError(f"pattern, column {column}: {message}\n{pointed(text, column)}")


# A word is a capture or an op type, which may be a glob or have a namespace (`Addons>Gelu`).
_TOKEN = re.compile(
    r"(?P<arrow>\^->|->\+|->)"
    r"|(?P<word>[A-Za-z_*][\w.*/]*(?:>[A-Za-z][\w.*/]*)*)"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<compare>[<>]=?(?=\s*[-+]?[.\d]))"
    r"|(?P<symbol>[:|;?!=~,\[\]])",
    re.ASCII,
)

_INSTEAD = {
    "<": "links go from an op to the one that reads it: A -> B",
    **dict.fromkeys(">-→", "a link is written ->"),
    **dict.fromkeys("()", "there are no brackets: what goes on elsewhere is written after ;"),
    "{": "attrs and other conditions are written in the JSON form",
    "&": "conditions that must hold together are written in the JSON form",
    "+": "a run of one or more ops is written ->+",
    "^": "a control edge is written ^->",
    "@": "a ready pattern stands alone: @swish",
    **dict.fromkeys("\"'", "op types and captures are bare words"),
}

_NOT_LINKED = "is not linked with"
MARKS = ("optional", "absent")
_SHORTER = ": write several patterns, or globs for op types"
_PATTERN = Language("pattern", _TOKEN, _INSTEAD, pattern_error, _SHORTER)
MOST_OPS, MOST_OPTIONAL = 64, 8  # ops and tensors; optional ops, each of which doubles the forms


def parse_pattern(text: str) -> Pattern:
    """Return the pattern that a text means. Raises PatternError, which points at the column."""
    parser = _Parser(text)
    pattern = parser.pattern()
    for place, message in _faults(pattern):
        again = parser.types_again() if _NOT_LINKED in message else ()
        raise pattern_error(text, parser.columns.get(place, 1), "; ".join((message, *again)))
    return pattern


class _Parser:
    """Reads the text of a pattern, chain by chain. `columns` has where places of it stand."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.chains = text, 0, 0
        self.tokens = list(_PATTERN.tokens(text))
        triples = zip(self.tokens, self.tokens[1:], self.tokens[2:], strict=False)
        self.captures = {
            first.text
            for first, colon, after in triples
            if first.kind == after.kind == "word" and colon.text == ":"
        }
        self.nodes: dict[str, Match] = {}
        self.tensors: list[str] = []
        self.optional: dict[str, None] = {}
        self.absent: dict[str, None] = {}
        self.edges: list[Edge] = []
        self.columns: dict[str, int] = {}
        self.unnamed: dict[str, set[int]] = {}  # the chains in which an op type has no name

    def pattern(self) -> Pattern:
        """Read all chains."""
        while self.token.kind != "end":
            self.chain()
            if self.token.text == ",":
                raise self.fault(self.token, "a pattern has no ','; chains are separated by ;")
            if self.token.kind != "end":
                self.expect(";", "a link, ; or the end is expected")
        lists = {key: tuple(getattr(self, key)) for key in ("edges", "tensors", *MARKS)}
        return Pattern(nodes=self.nodes, **lists)

    def types_again(self) -> list[str]:
        """Say of op types in several chains that each is another op."""
        return [
            f"the pattern writes {op} in several chains, and each is another op; to mean the same"
            f" one, name it: m:{op} in one chain, m in the others"
            for op, chains in self.unnamed.items()
            if len(chains) > 1 and op != "*"
        ]

    def chain(self) -> None:
        self.chains += 1
        source, leaving = self.node()
        if "input" in leaving:
            message = "no link enters here; an input slot stands behind ->"
            raise self.fault(leaving["input"], message)
        while arrow := self.accept("arrow"):
            target, entering = self.node()
            slots = {part: token for part, token in leaving.items() if part == "output"}
            slots |= {part: token for part, token in entering.items() if part == "input"}
            for part, token in {"": arrow, "input": arrow, "output": arrow, **slots}.items():
                self.columns[_edge_place(len(self.edges), part)] = token.column
            numbers = {part: int(token.text) for part, token in slots.items()}
            link = Link(**numbers, repeat=arrow.text == "->+", control=arrow.text == "^->")
            self.edges.append(Edge(source, target, link))
            source, leaving = target, entering
        if "output" in leaving:
            raise self.fault(leaving["output"], "no link leaves here; an output stands before ->")

    def node(self) -> tuple[str, dict[str, Token]]:
        """Return the name of a node, and the slots by which links enter and leave it."""
        is_absent = self.accept("!")
        word = self.expect("word", "an op type or a capture is expected")
        name, slots = self.meant(word), dict[str, Token]()
        self.columns.setdefault(f", node {name!r}", word.column)
        if is_absent:
            self.absent[name] = None
        while mark := next(filter(None, map(self.accept, ("?", ":", "[", "=", "compare"))), None):
            if mark.text == "?":
                if name in self.optional:
                    raise self.fault(mark, f"{name!r} is optional already")
                self.optional[name] = None
            elif mark.text in ":[":
                part = "input" if mark.text == ":" else "output"
                number = self.expect("number", f"the number of a slot is expected behind {mark}")
                if part in slots:
                    raise self.fault(number, f"the slot is {slots[part].text} already")
                if not number.text.isdigit() or len(number.text) > 9:
                    raise self.fault(number, f"slots are counted 0, 1, ..., not {number.text}")
                slots[part] = number
                if part == "output":
                    self.expect("]", "] is expected")
            else:
                self.nodes[name] = Match(op="Const", value=self.value(name, mark))
        return name, slots

    def meant(self, word: Token) -> str:
        """Return the node that starts with this word: one that is named elsewhere, or a new one."""
        name, first = word.text, word
        if self.token.text == ":" and self.tokens[self.at + 1].kind == "word":
            self.take()
            if name in self.nodes or name in self.tensors:
                message = f"{name!r} is named already; to mean it again, write no type"
                raise self.fault(word, message)
            first = self.take()
        elif name in self.captures:
            return name
        else:
            if name[0].islower() and opdefs.lookup(name) is None and "*" not in name:
                near = did_you_mean(name, sorted(self.captures))
                near = near or did_you_mean(name, opdefs.op_types())
                hint = f"(any tensor is written {name}:_, a function as an op type f:{name})"
                raise self.fault(word, f"no node is called {name!r}{near} {hint}")
            self.unnamed.setdefault(name, set()).add(self.chains)
            name = names.fresh(name, self.captures | self.nodes.keys() | set(self.tensors))
        types = [first.text]
        while bar := self.accept("|"):
            types.append(self.expect("word", f"an op type is expected behind {bar}").text)
        if types == ["_"]:
            self.tensors.append(name)
        elif "_" in types:
            raise self.fault(first, "_ is any tensor from outside, and no op type beside others")
        else:
            op = types[0] if len(types) == 1 else tuple(types)
            self.nodes[name] = Match() if op == "*" else Match(op=op)
        return name

    def value(self, name: str, mark: Token) -> Any:
        """Return what a Const must be, as a match has it: a value, or bounds."""
        match = self.nodes.get(name, Match())
        bounds = match.value.bounds if isinstance(match.value, Near) else {}
        is_second = match.value is not None and (mark.text == "=" or not bounds)
        if match.op != "Const" or is_second or mark.text in bounds:
            raise self.fault(
                mark, "only a Const has a value, and only one: Const=0.5, Const=[1, 0], Const>0"
            )
        if mark.text != "=":
            return convert({**bounds, mark.text: self.number(mark)}, Near)
        value = self.literal(mark)
        if (about := self.accept("~")) is None:
            return value
        tolerance = self.number(about, "a tolerance")
        if tolerance < 0:
            raise self.fault(about, "a tolerance is 0 or more")
        return Near(near=value, tolerance=float(tolerance))

    def literal(self, after: Token) -> Any:
        """Return a number, or a list of numbers or lists."""
        if (bracket := self.accept("[")) is None:
            return self.number(after)
        items: list[Any] = []
        while self.accept("]") is None:
            if items:
                self.expect(",", ", or ] is expected")
            items.append(self.literal(bracket))
        return tuple(items)

    def number(self, after: Token, wanted: str = "a number") -> int | float:
        text = self.expect("number", f"{wanted} is expected behind {after}").text
        return int(text) if text.lstrip("+-").isdigit() else float(text)

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.token
        self.at += token.kind != "end"
        return token

    def accept(self, what: str) -> Token | None:
        """Take the next token where it is this symbol, or of this kind."""
        token = self.token
        is_such = what == (token.text if token.kind == "symbol" else token.kind)
        return self.take() if is_such else None

    def expect(self, what: str, message: str) -> Token:
        token = self.accept(what)
        if token is None:
            raise self.fault(self.token, f"{message}, not {self.token}")
        return token

    def fault(self, token: Token, message: str) -> PatternError:
        return pattern_error(self.text, token.column, message)


def check_pattern(pattern: Pattern) -> None:
    """Raise PatternError where the pattern means nothing: one message, with the key at fault."""
    for place, message in _faults(pattern):
        raise PatternError(f"pattern{place}: {message}")


def _edge_place(number: int, part: str = "") -> str:
    return f".edges[{number}]" + (f"[2].{part}" if part else "")


def _faults(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pattern, each at a place of its JSON form; ask for the first."""
    tensors, every = pattern.tensors, [*pattern.nodes, *pattern.tensors]
    for name in tensors:
        if name in pattern.nodes:
            yield ".tensors", f"{name!r} is a node: a name is one or the other"
    closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
    named = [(_edge_place(k), (e.source, e.target)) for k, e in enumerate(pattern.edges)]
    named += [(f".{key}", getattr(pattern, key)) for key in MARKS] + [(".closed", closed)]
    for place, name in ((place, name) for place, ends in named for name in ends):
        legal = every if place.startswith(".edges") else [*pattern.nodes]
        if name not in legal:
            if name in tensors:
                yield f", node {name!r}", f"_ is a tensor from outside: it cannot be {place[1:]}"
            near = did_you_mean(name, legal) or f"; legal: {', '.join(legal) or 'there is none'}"
            yield place, f"no node is called {name!r}{near}"
    if len(every) > MOST_OPS:
        place, more = f", node {every[MOST_OPS]!r}", "leave out those that others make certain"
        yield place, f"{len(every)} nodes, and {MOST_OPS} is the most: {more}, or split the rule"
    if not pattern.present:
        yield ".nodes", "the pattern is empty: it needs an op that is there"
    if all(name in pattern.optional for name in pattern.present):
        yield f", node {pattern.present[0]!r}", "every op of the pattern is optional"
    if len(pattern.optional) > MOST_OPTIONAL:
        place = f", node {pattern.optional[MOST_OPTIONAL]!r}"
        yield place, f"more than {MOST_OPTIONAL} optional ops"
    yield from _faults_of_edges(pattern)
    linked = {end for edge in pattern.edges for end in (edge.source, edge.target)}
    for name in pattern.absent:
        if name in pattern.optional:
            yield f", node {name!r}", "an absent op cannot be optional too"
        if name not in linked:
            yield f", node {name!r}", f"nothing says where {name!r} must be absent: it needs a link"
    before: dict[str, list[str]] = {name: [] for name in pattern.nodes}
    for edge in pattern.edges:
        before.setdefault(edge.target, []).append(edge.source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = list(pairwise(error.args[1]))
        on_cycle = [k for k, e in enumerate(pattern.edges) if (e.source, e.target) in cycle]
        yield _edge_place(on_cycle[-1]), f"a cycle: {' -> '.join(error.args[1])}"
    first, *apart = _ends_of_islands(pattern)
    if apart:
        yield f", node {apart[0]!r}", f"{apart[0]!r} {_NOT_LINKED} {first!r}"
    always = set(pattern.optional).intersection(*(variant.nodes for variant in variants(pattern)))
    for name in filter(always.__contains__, pattern.optional):
        *_, also = _ends_of_islands(without_op(pattern, name))[:2]
        message = f"without {name!r} the pattern falls apart: make {also!r} optional too"
        yield f", node {name!r}", message


def _faults_of_edges(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """Yield what an edge cannot be, for what stands at its ends, and a slot that is not free."""
    tensors, absent, filled = pattern.tensors, pattern.absent, set[tuple[str, int]]()
    entered = Counter(edge.target for edge in pattern.edges)
    for number, edge in enumerate(pattern.edges):
        source, target, link = edge.source, edge.target, edge.link
        if source in tensors and link.output is not None and not link.control:
            place = _edge_place(number, "output")
            yield place, "_ is one tensor: it has no outputs to choose from"
        faults = {
            "_ is a tensor from outside: nothing leads to it": target in tensors,
            "a control edge has no slots and no run": link.control and link != Link(control=True),
            "_ is a tensor: no control edge leaves it": source in tensors and link.control,
            "an absent op cannot be a run": link.repeat and target in absent,
            "an absent op has no run behind it: link them by ->": link.repeat and source in absent,
            f"{target!r} is a run, and entered by this link alone": (
                link.repeat and entered[target] > 1
            ),
            "an absent op is linked to ops that are there, not to another": (
                source in absent and target in absent
            ),
        }
        yield from ((_edge_place(number), text) for text, is_wrong in faults.items() if is_wrong)
        for part, slot, end in (("input", link.input, target), ("output", link.output, source)):
            if slot is not None and (missing := _no_such_slot(pattern.nodes.get(end), slot, part)):
                yield _edge_place(number, part), missing
        if link.input is not None and source not in absent and target not in absent:
            if (target, link.input) in filled:
                message = f"input {link.input} of {target!r} has a source already"
                yield _edge_place(number, "input"), message
            filled.add((target, link.input))


def _ends_of_islands(pattern: Pattern) -> list[str]:
    """Return of each group of ops and tensors that are linked with each other the first."""
    names_there = (*pattern.present, *pattern.tensors)
    island = {name: name for name in names_there}
    for edge in pattern.edges:
        if edge.source in island and edge.target in island:
            joined, merged = island[edge.source], island[edge.target]
            island = {name: joined if end == merged else end for name, end in island.items()}
    return list({end: name for name, end in reversed(island.items())}.values())[::-1]


def variants(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the pattern, then with ever more of its optional ops left out, if it holds together."""
    for count in range(len(pattern.optional) + 1):
        for left_out in combinations(pattern.optional, count):
            variant = functools.reduce(without_op, left_out, pattern)
            if variant.present and len(_ends_of_islands(variant)) == 1:
                yield variant


def without_op(pattern: Pattern, name: str) -> Pattern:
    """Return the pattern without one op; what its first edge is from is linked to its readers."""
    edges = [edge for edge in pattern.edges if name not in (edge.source, edge.target)]
    before = [e for e in pattern.edges if e.target == name and e.source not in pattern.absent]
    for edge in pattern.edges:
        if edge.source == name and before and not (before[0].link.control or edge.link.control):
            link = replace(edge.link, output=before[0].link.output)
            edges.append(Edge(before[0].source, edge.target, link))
    linked = {end for edge in edges for end in (edge.source, edge.target)}
    gone = {name, *(set(pattern.tensors + pattern.absent) - linked)}
    changed: dict[str, Any] = {"edges": tuple(edges)}
    for key in ("tensors", *MARKS, "closed"):
        if isinstance(nodes := getattr(pattern, key), tuple):
            changed[key] = tuple(node for node in nodes if node not in gone)
    changed["nodes"] = {node: m for node, m in pattern.nodes.items() if node not in gone}
    return replace(pattern, **changed)


def _no_such_slot(match: Match | None, slot: int, part: str) -> str:
    """Say that an op type has no such slot, and which it has; nothing where it has."""
    for op in texts((match and match.op) or ()):
        known = None if is_glob(op) else opdefs.lookup(op)
        # As A and B of TensorFlow's tests, which are the names of functions.
        if known is None or (known.outputs and not known.inputs and not known.attrs):
            continue
        args = known.inputs if part == "input" else known.outputs
        if slot >= len(args) and not any(arg.is_list for arg in args):
            legal = ", ".join(f"{place} ({arg.name})" for place, arg in enumerate(args)) or "none"
            return f"{op} has no {part} {slot}; it has {legal}"
    return ""


def pattern(
    text: str, closed: bool | Sequence[str] = False, **ops: Match | Mapping[str, Any]
) -> Pattern:
    """Return a pattern from its text. `ops` has further conditions for ops that the text names.

    For `select(model, pattern=...)` and for the match of a rule.

    Args:
        text: The pattern: op types, arrows from an op to one that reads it, names before a colon.
        closed: True: its inner ops are read by nothing else; or the names of those that are not.
        **ops: By the name of an op of the text, a match of its own.

    Raises:
        PatternError: The text is not a pattern (the error points at the column), or does not name
            the op of a condition.
        TypeError: `text` is not a string.

    When not to use it: for a single op; a match with `op` says it.

    Example:
        >>> conv = {"attr": {"padding": "SAME"}}
        >>> found = graphpatch.pattern("conv:Conv2D -> BiasAdd", closed=True, conv=conv)
        >>> len(graphpatch.matches(found, "model.pb"))
        2
    """
    if not isinstance(text, str):
        raise wrong_argument("text", 'the text of a pattern, such as "c:Conv2D -> a:Relu"', text)
    parsed = parse_pattern(text)
    nodes = dict(parsed.nodes)
    for name, more in ops.items():
        if name not in nodes:
            near = did_you_mean(name, nodes) or f"; legal: {', '.join(nodes)}"
            raise PatternError(f"pattern: no op is called {name!r}{near}\n  {text}")
        try:
            besides = convert(more, Match)
        except msgspec.ValidationError as error:
            raise PatternError(f"pattern, node {name!r}: {error}") from None
        # The op type stays on top, where an index finds it.
        nodes[name] = replace(nodes[name], all=(*(nodes[name].all or ()), besides))
    named = closed if isinstance(closed, bool) else tuple(closed)
    built = replace(parsed, nodes=nodes, closed=named)
    check_pattern(built)
    return built


def forms(wanted: PatternLike) -> tuple[Pattern, ...]:
    """Return the patterns of which any may match; `"@swish"` means the ready ones of that name."""
    if isinstance(wanted, str):
        return _forms_of_text(wanted)
    if isinstance(wanted, Pattern):
        check_pattern(wanted)
        return (wanted,)
    if not wanted:
        raise PatternError("pattern: the list is empty: it needs a pattern")
    return tuple(form for each in wanted for form in forms(each))


@functools.lru_cache(1 << 8)
def _forms_of_text(text: str) -> tuple[Pattern, ...]:
    name = text.strip()
    if not name.startswith("@"):
        return (parse_pattern(text),)
    from graphpatch.match import ready

    return tuple(ready.ready_pattern(name[1:]).patterns())


def type_notes(wanted: PatternLike | None) -> list[str]:
    """Say of a pattern that a type in several chains without a name is several ops."""
    notes: list[str] = []
    for text in wanted if isinstance(wanted, tuple | list) else (wanted,):
        if isinstance(text, str) and not text.strip().startswith("@"):
            parser = _Parser(text)
            parser.pattern()
            notes += parser.types_again()
    return notes
