"""The text form of a pattern, read into the value that the JSON form is.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise
from typing import Any, Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from graphpatch import names, opdefs
from graphpatch.arguments import wrong_argument
from graphpatch.decoding import convert
from graphpatch.errors import PatternError, RulesError, did_you_mean
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.spec import WHOLE, Edge, Link, Match, Pattern
from graphpatch.match.values import Near
from graphpatch.shown import pointed
from graphpatch.tokens import Language, Token

EdgePart = Literal["", "input", "output"]


class FaultPlace(msgspec.Struct, frozen=True):
    """Points at what is wrong: in the `text` of a pattern, or in its JSON form where that is None.

    `nodes` and `edges` have columns of the text, counted from 1.
    """

    text: str | None = None
    nodes: Mapping[str, int] = msgspec.field(default_factory=dict)
    edges: Sequence[Mapping[EdgePart, int]] = ()

    def node(self, name: str, message: str) -> PatternError:
        """Return the error at the first mention of a node, or tensor."""
        if self.text is None:
            return PatternError(f"pattern, node {name!r}: {message}")
        return pattern_error(self.text, self.nodes[name], message)

    def edge(self, number: int, message: str, part: EdgePart = "") -> PatternError:
        """Return the error at an edge, or at its input or output slot."""
        if self.text is None:
            return self.key(f"edges[{number}]" + (f"[2].{part}" if part else ""), message)
        columns = self.edges[number]
        return pattern_error(self.text, columns.get(part, columns[""]), message)

    def key(self, key: str, message: str) -> PatternError:
        """Return the error at a key of the JSON form, or at the start of the text."""
        if self.text is None:
            return PatternError(f"pattern.{key}: {message}")
        return pattern_error(self.text, 1, message)


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
    ">": "a link is written ->",
    "-": "a link is written ->",
    "→": "a link is written ->",
    "(": "there are no brackets: a chain that goes on elsewhere is written after ;",
    ")": "there are no brackets: a chain that goes on elsewhere is written after ;",
    "{": "attrs and other conditions are written in the JSON form",
    "&": "conditions that must hold together are written in the JSON form",
    "+": "a run of one or more ops is written ->+",
    "^": "a control edge is written ^->",
    "@": "a ready pattern stands alone: @swish",
    '"': "op types and captures are bare words",
    "'": "op types and captures are bare words",
}


_SHORTER = ": write several patterns, or globs for op types"
_PATTERN = Language("pattern", _TOKEN, _INSTEAD, pattern_error, _SHORTER)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a pattern, an end token last. Raises PatternError at what is none."""
    return list(_PATTERN.tokens(text))


MOST_OPS = 64
"""Ops and tensors of a pattern: each way in which they can be swapped is found out."""

MOST_OPTIONAL = 8
"""Each optional op doubles the number of patterns that are looked for."""


def check_pattern(pattern: Pattern, where: FaultPlace | None = None) -> None:
    """Raise PatternError where the pattern means nothing: one message, at its place."""
    for check in CHECKS:
        check(pattern, where or FaultPlace())


def _check_names(pattern: Pattern, where: FaultPlace) -> None:
    """Every name is one of a node or a tensor, and none is both."""
    for name in pattern.tensors:
        if name in pattern.nodes:
            raise where.key("tensors", f"{name!r} is a node: a name is one or the other")
    ops, every = list(pattern.nodes), [*pattern.nodes, *pattern.tensors]
    for number, edge in enumerate(pattern.edges):
        for name in (edge.source, edge.target):
            if name not in every:
                raise where.edge(
                    number, f"no node is called {name!r}{_nearest_or_legal(name, every)}"
                )
    closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
    lists = {"optional": pattern.optional, "absent": pattern.absent, "closed": closed}
    for key, named in lists.items():
        for name in named:
            if name in pattern.tensors:
                raise where.node(name, f"_ is a tensor from outside: it cannot be {key}")
            if name not in ops:
                raise where.key(key, f"no node is called {name!r}{_nearest_or_legal(name, ops)}")


def _nearest_or_legal(name: str, every: list[str]) -> str:
    return did_you_mean(name, every) or f"; legal: {', '.join(every) or 'there is none'}"


def _check_ops(pattern: Pattern, where: FaultPlace) -> None:
    """Some op must be there."""
    every = [*pattern.nodes, *pattern.tensors]
    if len(every) > MOST_OPS:
        message = f"{len(every)} nodes, and {MOST_OPS} is the most: leave out those that"
        raise where.node(every[MOST_OPS], f"{message} the others make certain, or split the rule")
    if not pattern.present:
        raise where.key("nodes", "the pattern is empty: it needs an op that is there")
    if all(name in pattern.optional for name in pattern.present):
        raise where.node(pattern.present[0], "every op of the pattern is optional")
    if len(pattern.optional) > MOST_OPTIONAL:
        name = pattern.optional[MOST_OPTIONAL]
        raise where.node(name, f"more than {MOST_OPTIONAL} optional ops")


def _check_edges(pattern: Pattern, where: FaultPlace) -> None:
    """Refuse what an edge cannot be, for what stands at its ends."""
    tensors, absent = pattern.tensors, pattern.absent
    entered = Counter(edge.target for edge in pattern.edges)
    for number, edge in enumerate(pattern.edges):
        source, target, link = edge.source, edge.target, edge.link
        if source in tensors and link.output is not None and not link.control:
            raise where.edge(number, "_ is one tensor: it has no outputs to choose from", "output")
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
        for message, is_wrong in faults.items():
            if is_wrong:
                raise where.edge(number, message)


def _check_absent(pattern: Pattern, where: FaultPlace) -> None:
    """Refuse an absent op that is optional too, or that no link leads to."""
    linked = {end for edge in pattern.edges for end in (edge.source, edge.target)}
    for name in pattern.absent:
        if name in pattern.optional:
            raise where.node(name, "an absent op cannot be optional too")
        if name not in linked:
            raise where.node(name, f"nothing says where {name!r} must be absent: it needs a link")


def _cycle(pattern: Pattern, where: FaultPlace) -> None:
    before: dict[str, list[str]] = {name: [] for name in pattern.nodes}
    for edge in pattern.edges:
        before.setdefault(edge.target, []).append(edge.source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        around = error.args[1]
        number = max(
            number
            for number, edge in enumerate(pattern.edges)
            if (edge.source, edge.target) in pairwise(around)
        )
        raise where.edge(number, f"a cycle: {' -> '.join(around)}") from None


def _refuse_islands(pattern: Pattern, where: FaultPlace) -> None:
    """All is linked with all; also where optional ops are missing."""
    islands = linked_groups(pattern)
    every = (*pattern.present, *pattern.tensors)
    if len(islands) > 1:
        name = next(name for name in every if name not in islands[0])
        raise where.node(name, f"{name!r} is not linked with {every[0]!r}")
    every_variant = list(variants(pattern))
    for name in pattern.optional:
        if all(name in variant.nodes for variant in every_variant):
            rest = without_op(pattern, name)
            islands = linked_groups(rest)
            every = (*rest.present, *rest.tensors)
            separated = next((op_name for op_name in every if op_name not in islands[0]), every[0])
            raise where.node(
                name, f"without {name!r} the pattern falls apart: make {separated!r} optional too"
            )


def variants(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the pattern, then with ever more of its optional ops left out.

    Those that are left are there, and `optional` still names them. What falls apart without an
    op is not a variant.
    """
    for count in range(len(pattern.optional) + 1):
        for left_out in combinations(pattern.optional, count):
            variant = pattern
            for name in left_out:
                variant = without_op(variant, name)
            if variant.present and len(linked_groups(variant)) == 1:
                yield variant


def without_op(pattern: Pattern, name: str) -> Pattern:
    """Return the pattern without one op: what comes before it is linked to what comes after.

    Where several ops come before it, it is the one that its first edge is from. What is linked
    to it alone goes with it, if it is not an op of the match: tensors from outside, absent ops.
    """
    edges = [edge for edge in pattern.edges if name not in (edge.source, edge.target)]
    before = next(
        (e for e in pattern.edges if e.target == name and e.source not in pattern.absent), None
    )
    for edge in pattern.edges:
        is_data = before is not None and not before.link.control and not edge.link.control
        if edge.source == name and before is not None and is_data:
            link = replace(edge.link, output=before.link.output)
            edges.append(Edge(before.source, edge.target, link))
    linked = {end for edge in edges for end in (edge.source, edge.target)}
    gone = {op_name for op_name in (*pattern.tensors, *pattern.absent) if op_name not in linked} | {
        name
    }

    def rest(every: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(op_name for op_name in every if op_name not in gone)

    closed = pattern.closed
    return replace(
        pattern,
        nodes={op_name: match for op_name, match in pattern.nodes.items() if op_name not in gone},
        edges=tuple(edges),
        tensors=rest(pattern.tensors),
        optional=rest(pattern.optional),
        absent=rest(pattern.absent),
        closed=rest(closed) if isinstance(closed, tuple) else closed,
    )


def linked_groups(pattern: Pattern) -> list[set[str]]:
    """Return the ops and tensors of a match, in groups of those that are linked with each other."""
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from((*pattern.present, *pattern.tensors))
    graph.add_edges_from(
        (e.source, e.target) for e in pattern.edges if e.source in graph and e.target in graph
    )
    return list(nx.connected_components(graph))


def _slots(pattern: Pattern, where: FaultPlace) -> None:
    """Every slot is one that the op type has, and has one source."""
    entered: set[tuple[str, int]] = set()
    for number, edge in enumerate(pattern.edges):
        link = edge.link
        missing = _no_such_slot(pattern.nodes[edge.target], link.input, "input")
        if missing:
            raise where.edge(number, missing, "input")
        missing = _no_such_slot(pattern.nodes.get(edge.source, Match()), link.output, "output")
        if missing:
            raise where.edge(number, missing, "output")
        if link.input is None or not {edge.source, edge.target}.isdisjoint(pattern.absent):
            continue
        enters = edge.target, link.input
        if enters in entered:
            message = f"input {link.input} of {edge.target!r} has a source already"
            raise where.edge(number, message, "input")
        entered.add(enters)


def _no_such_slot(match: Match, slot: int | None, part: EdgePart) -> str:
    """That an op type has no such slot, and which it has; nothing where it has."""
    for op in texts(match.op or ()):
        known = None if glob.is_glob(op) else opdefs.lookup(op)
        if known is None or slot is None or _is_of_tests(known):
            continue
        args = known.inputs if part == "input" else known.outputs
        is_open = any(arg.is_list for arg in args)
        if not is_open and slot >= len(args):
            legal = ", ".join(f"{place} ({arg.name})" for place, arg in enumerate(args)) or "none"
            return f"{op} has no {part} {slot}; it has {legal}"
    return ""


def _is_of_tests(known: opdefs.OpDef) -> bool:
    """Whether an op type looks as A and B of TensorFlow's tests, the names of a model's functions.

    No other op type gives tensors and neither reads any nor has attrs.
    """
    return bool(known.outputs) and not known.inputs and not known.attrs


CHECKS: tuple[Callable[[Pattern, FaultPlace], None], ...] = (
    _check_names, _check_ops, _check_edges, _check_absent, _cycle, _refuse_islands, _slots,
)  # fmt: skip


def parse_pattern(text: str) -> Pattern:
    """Return the pattern that a text means. Raises PatternError, which points at the column."""
    parser = _parse_text(text)
    pattern = parser.built()
    check_pattern(pattern, FaultPlace(text, parser.columns, parser.edge_columns))
    return pattern


def _parse_text(text: str) -> _PatternParser:
    tokens = tokenize(text)
    captures = {
        first.text
        for first, colon, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if first.kind == after.kind == "word" and colon.text == ":"
    }
    parser = _PatternParser(text, tokens, captures)
    parser.read()
    return parser


class _Mention(msgspec.Struct):
    """A node where it stands in a chain, with the slots of the links at it."""

    name: str
    column: int
    input: Token | None = None
    output: Token | None = None


class _PatternParser(msgspec.Struct):
    text: str
    tokens: list[Token]
    captures: set[str]
    at: int = 0
    nodes: dict[str, Match] = msgspec.field(default_factory=dict)
    tensors: list[str] = msgspec.field(default_factory=list)
    optional: dict[str, None] = msgspec.field(default_factory=dict)
    absent: dict[str, None] = msgspec.field(default_factory=dict)
    edges: list[Edge] = msgspec.field(default_factory=list)
    columns: dict[str, int] = msgspec.field(default_factory=dict)
    edge_columns: list[dict[EdgePart, int]] = msgspec.field(default_factory=list)
    chains: int = 0
    unnamed: dict[str, set[int]] = msgspec.field(default_factory=dict)  # the chains of an op type

    def read(self) -> None:
        """All chains."""
        while self.peek().kind != "end":
            self.chain()
            if self.peek().text == ",":
                raise self.fault(self.peek(), "a pattern has no ','; chains are separated by ;")
            if self.peek().kind != "end":
                self.expect(";", "a link, ; or the end")

    def built(self) -> Pattern:
        """Return the pattern that was read."""
        return Pattern(
            nodes=self.nodes,
            edges=tuple(self.edges),
            tensors=tuple(self.tensors),
            optional=tuple(self.optional),
            absent=tuple(self.absent),
        )

    def chain(self) -> None:
        self.chains += 1
        before = self.node()
        if before.input is not None:
            raise self.fault(before.input, "no link enters here; an input slot stands behind ->")
        while self.peek().kind == "arrow":
            arrow = self.take()
            after = self.node()
            self.link(before, arrow, after)
            before = after
        if before.output is not None:
            raise self.fault(before.output, "no link leaves here; an output stands before ->")

    def link(self, before: _Mention, arrow: Token, after: _Mention) -> None:
        slots: dict[EdgePart, Token | None] = {
            "": arrow,
            "input": after.input,
            "output": before.output,
        }
        link = Link(
            input=None if after.input is None else int(after.input.text),
            output=None if before.output is None else int(before.output.text),
            repeat=arrow.text == "->+",
            control=arrow.text == "^->",
        )
        self.edges.append(Edge(before.name, after.name, link))
        self.edge_columns.append({part: token.column for part, token in slots.items() if token})

    def node(self) -> _Mention:
        absent = self.accept("!")
        word = self.take()
        if word.kind != "word":
            raise self.fault(word, f"an op type or a capture is expected, not {word}")
        mention = _Mention(self.meant(word), word.column)
        self.columns.setdefault(mention.name, word.column)
        if absent is not None:
            self.absent[mention.name] = None
        while self.mark(mention):
            pass
        return mention

    def meant(self, word: Token) -> str:
        """The name of the node that starts with this word: a capture, or one without a name."""
        if self.peek().text == ":" and self.tokens[self.at + 1].kind == "word":
            self.take()
            if word.text in self.nodes or word.text in self.tensors:
                raise self.fault(
                    word, f"{word.text!r} is named already; to mean it again, write no type"
                )
            self.define(word.text, self.take())
            return word.text
        if word.text in self.captures:
            return word.text
        self.refuse_unknown(word)
        taken = self.captures | self.nodes.keys() | set(self.tensors)
        name = names.fresh(word.text, taken)
        self.unnamed.setdefault(word.text, set()).add(self.chains)
        self.define(name, word)
        return name

    def define(self, name: str, word: Token) -> None:
        """A new node: a tensor, or an op of the type that is this word, or one of several."""
        types = [word.text]
        while (bar := self.accept("|")) is not None:
            types.append(self.expect_kind("word", bar, "an op type").text)
        if types == ["_"]:
            self.tensors.append(name)
        elif "_" in types:
            raise self.fault(word, "_ is any tensor from outside, and no op type beside others")
        else:
            op = types[0] if len(types) == 1 else tuple(types)
            self.nodes[name] = Match() if op == "*" else Match(op=op)

    def mark(self, mention: _Mention) -> bool:
        """One mark behind a node; False where there is none."""
        if (query := self.accept("?")) is not None:
            if mention.name in self.optional:
                raise self.fault(query, f"{mention.name!r} is optional already")
            self.optional[mention.name] = None
        elif (equals := self.accept("=")) is not None:
            self.value(mention, equals)
        elif self.peek().kind == "compare":
            self.bound(mention, self.take())
        elif (colon := self.accept(":")) is not None:
            mention.input = self.slot(mention.input, colon)
        elif (bracket := self.accept("[")) is not None:
            mention.output = self.slot(mention.output, bracket)
            self.expect("]", "]")
        else:
            return False
        return True

    def slot(self, already: Token | None, mark: Token) -> Token:
        number = self.expect_kind("number", mark, "the number of a slot")
        if already is not None:
            raise self.fault(number, f"the slot is {already.text} already")
        if not number.text.isdigit() or len(number.text) > 9:
            raise self.fault(number, f"slots are counted 0, 1, ..., not {number.text}")
        return number

    def value(self, mention: _Mention, equals: Token) -> None:
        self.refuse_value(mention, equals)
        value = self.literal(equals)
        if (about := self.accept("~")) is not None:
            tolerance = _number_of(self.expect_kind("number", about, "a tolerance"))
            if tolerance < 0:
                raise self.fault(about, "a tolerance is 0 or more")
            near = Near(near=value, tolerance=float(tolerance))
            self.nodes[mention.name] = Match(op="Const", value=near)
        else:
            self.nodes[mention.name] = Match(op="Const", value=value)

    def literal(self, after: Token) -> Any:
        """Return a number, or a list of numbers or lists."""
        if (bracket := self.accept("[")) is None:
            return _number_of(self.expect_kind("number", after, "a number"))
        items: list[Any] = []
        while self.accept("]") is None:
            if items:
                self.expect(",", ", or ]")
            items.append(self.literal(bracket))
        return tuple(items)

    def bound(self, mention: _Mention, sign: Token) -> None:
        match = self.nodes.get(mention.name)
        before = match.value if match is not None and isinstance(match.value, Near) else None
        if before is None or before.near is not UNSET or sign.text in before.bounds:
            self.refuse_value(mention, sign)
        bounds = before.bounds if before is not None else {}
        bounds = {**bounds, sign.text: _number_of(self.expect_kind("number", sign, "a number"))}
        self.nodes[mention.name] = Match(op="Const", value=convert(bounds, Near))

    def refuse_value(self, mention: _Mention, mark: Token) -> None:
        match = self.nodes.get(mention.name)
        if match is None or match.op != "Const" or match.value is not None:
            raise self.fault(
                mark, "only a Const has a value, and only one: Const=0.5, Const=[1, 0], Const>0"
            )

    def refuse_unknown(self, word: Token) -> None:
        """A lower-case word that is neither capture nor op type is a slip, not a type."""
        if word.text[0].islower() and opdefs.lookup(word.text) is None and "*" not in word.text:
            near = did_you_mean(word.text, sorted(self.captures))
            near = near or did_you_mean(word.text, opdefs.op_types())
            raise self.fault(
                word,
                f"no node is called {word.text!r}{near}"
                f" (a function as an op type is written with a capture: f:{word.text})",
            )

    def peek(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.peek()
        self.at += token.kind != "end"
        return token

    def accept(self, symbol: str) -> Token | None:
        return self.take() if self.peek().text == symbol else None

    def expect(self, symbol: str, wanted: str) -> Token:
        token = self.accept(symbol)
        if token is None:
            raise self.fault(self.peek(), f"{wanted} is expected, not {self.peek()}")
        return token

    def expect_kind(self, kind: str, after: Token, wanted: str) -> Token:
        if self.peek().kind != kind:
            raise self.fault(self.peek(), f"{wanted} is expected behind {after}, not {self.peek()}")
        return self.take()

    def fault(self, token: Token, message: str) -> PatternError:
        return pattern_error(self.text, token.column, message)


def _number_of(token: Token) -> int | float:
    return int(token.text) if token.text.lstrip("+-").isdigit() else float(token.text)


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
        nodes[name] = _asking_more(nodes[name], name, more)
    named = closed if isinstance(closed, bool) else tuple(closed)
    built = replace(parsed, nodes=nodes, closed=named)
    check_pattern(built)
    return built


def _asking_more(match: Match, name: str, more: Match | Mapping[str, Any]) -> Match:
    """Return a match that also asks for more; the op type stays on top, where an index finds it."""
    try:
        wanted = convert(more, Match)
    except msgspec.ValidationError as error:
        raise PatternError(f"pattern, node {name!r}: {error}") from None
    return replace(match, all=(*(match.all or ()), wanted))


PatternLike = str | Pattern | Sequence[str | Pattern]


def forms(wanted: PatternLike) -> tuple[Pattern, ...]:
    """The patterns of which any may be found; `"@swish"` stands for the ready ones of that name.

    Raises PatternError where one of them means nothing.
    """
    if isinstance(wanted, str):
        return _form_of_text(wanted)
    if isinstance(wanted, Pattern):
        check_pattern(wanted)
        return (wanted,)
    if not wanted:
        raise PatternError("pattern: the list is empty: it needs a pattern")
    return tuple(form for wanted_form in wanted for form in forms(wanted_form))


@functools.lru_cache(1 << 8)
def _form_of_text(text: str) -> tuple[Pattern, ...]:
    name = text.strip()
    if not name.startswith("@"):
        return (parse_pattern(text),)
    from graphpatch.match import ready

    return tuple(ready.ready_pattern(name[1:]).patterns())


def type_notes(wanted: PatternLike | None) -> list[str]:
    """Say of a pattern that a type in several chains without a name is several ops."""
    every = wanted if isinstance(wanted, tuple | list) else (wanted,)
    notes: list[str] = []
    for text in every:
        if isinstance(text, str) and not text.strip().startswith("@"):
            chains_of = _parse_text(text).unnamed
            notes += (
                f"the pattern writes {op} in several chains, and each is another op; to mean the"
                f" same one, name it: m:{op} in one chain, m in the others"
                for op, chains in chains_of.items()
                if len(chains) > 1 and op != "*"
            )
    return notes


def check_on(match: Match, on: Sequence[str]) -> None:
    """Raise RulesError where a patch names ops that the pattern of its match does not have."""
    if match.pattern is None:
        raise RulesError(
            "patch.on names an op of match.pattern, and the match has no pattern; leave on out"
        )
    if not on or (WHOLE in on and len(on) > 1):
        raise RulesError(f'patch.on: names of the pattern\'s ops, or "{WHOLE}" for all as one')
    for wanted in match.pattern if isinstance(match.pattern, tuple) else (match.pattern,):
        for form in forms(wanted):
            for name in on:
                if name not in form.present and name != WHOLE:
                    legal = f"; legal: {', '.join(form.present)}, {WHOLE}"
                    near = did_you_mean(name, form.present) or legal
                    text = f"\n  {wanted}" if isinstance(wanted, str) else ""
                    raise RulesError(
                        f"patch.on: no op of the pattern is called {name!r}{near}{text}"
                    )
