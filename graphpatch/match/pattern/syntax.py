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

from typing import Any

import msgspec
from msgspec import UNSET

from graphpatch import names, opdefs
from graphpatch.decoding import convert
from graphpatch.errors import PatternError, did_you_mean
from graphpatch.match.pattern.check import check_pattern
from graphpatch.match.pattern.tokens import EdgePart, InText, pattern_error, tokenize
from graphpatch.match.spec import Edge, Link, Match, Pattern
from graphpatch.match.value import Near
from graphpatch.tokens import Token


def parse_pattern(text: str) -> Pattern:
    """The pattern that a text means. Raises PatternError, which points at the column."""
    parser = _parse_text(text)
    pattern = parser.built()
    check_pattern(pattern, InText(text, parser.columns, parser.edge_columns))
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


def repeated(text: str) -> list[str]:
    """The op types that a pattern writes in several chains without a name: each time another op."""
    parser = _parse_text(text)
    return [op for op, chains in parser.unnamed.items() if len(chains) > 1 and op != "*"]


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
        """The pattern that was read."""
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
        found = _Mention(self.meant(word), word.column)
        self.columns.setdefault(found.name, word.column)
        if absent is not None:
            self.absent[found.name] = None
        while self.mark(found):
            pass
        return found

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

    def mark(self, found: _Mention) -> bool:
        """One mark behind a node; False where there is none."""
        if (query := self.accept("?")) is not None:
            if found.name in self.optional:
                raise self.fault(query, f"{found.name!r} is optional already")
            self.optional[found.name] = None
        elif (equals := self.accept("=")) is not None:
            self.value(found, equals)
        elif self.peek().kind == "compare":
            self.bound(found, self.take())
        elif (colon := self.accept(":")) is not None:
            found.input = self.slot(found.input, colon)
        elif (bracket := self.accept("[")) is not None:
            found.output = self.slot(found.output, bracket)
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

    def value(self, found: _Mention, equals: Token) -> None:
        self.refuse_value(found, equals)
        value = self.literal(equals)
        if (about := self.accept("~")) is not None:
            tolerance = _number_of(self.expect_kind("number", about, "a tolerance"))
            if tolerance < 0:
                raise self.fault(about, "a tolerance is 0 or more")
            near = Near(near=value, tolerance=float(tolerance))
            self.nodes[found.name] = Match(op="Const", value=near)
        else:
            self.nodes[found.name] = Match(op="Const", value=value)

    def literal(self, after: Token) -> Any:
        """A number, or a list of numbers or lists."""
        if (bracket := self.accept("[")) is None:
            return _number_of(self.expect_kind("number", after, "a number"))
        found: list[Any] = []
        while self.accept("]") is None:
            if found:
                self.expect(",", ", or ]")
            found.append(self.literal(bracket))
        return tuple(found)

    def bound(self, found: _Mention, sign: Token) -> None:
        match = self.nodes.get(found.name)
        before = match.value if match is not None and isinstance(match.value, Near) else None
        if before is None or before.near is not UNSET or sign.text in before.bounds:
            self.refuse_value(found, sign)
        bounds = before.bounds if before is not None else {}
        bounds = {**bounds, sign.text: _number_of(self.expect_kind("number", sign, "a number"))}
        self.nodes[found.name] = Match(op="Const", value=convert(bounds, Near))

    def refuse_value(self, found: _Mention, mark: Token) -> None:
        match = self.nodes.get(found.name)
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
        found = self.accept(symbol)
        if found is None:
            raise self.fault(self.peek(), f"{wanted} is expected, not {self.peek()}")
        return found

    def expect_kind(self, kind: str, after: Token, wanted: str) -> Token:
        if self.peek().kind != kind:
            raise self.fault(self.peek(), f"{wanted} is expected behind {after}, not {self.peek()}")
        return self.take()

    def fault(self, token: Token, message: str) -> PatternError:
        return pattern_error(self.text, token.column, message)


def _number_of(token: Token) -> int | float:
    return int(token.text) if token.text.lstrip("+-").isdigit() else float(token.text)
