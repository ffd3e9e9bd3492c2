"""The text of a pattern cut into tokens, and where in it something is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from graphpatch.errors import PatternError
from graphpatch.shown import pointed
from graphpatch.tokens import Language, Token

EdgePart = Literal["", "input", "output"]


class FaultPlace(Protocol):
    """Points at what is wrong."""

    def node(self, name: str, message: str) -> PatternError:
        """The error to raise for a node."""

    def edge(self, number: int, message: str, part: EdgePart = "") -> PatternError:
        """The error to raise for an edge, or for its input or output slot."""

    def key(self, key: str, message: str) -> PatternError:
        """The error to raise for what only the JSON form says."""


class InText(msgspec.Struct, frozen=True):
    """Points into the text of a pattern: `nodes` and `edges` have columns, counted from 1."""

    text: str
    nodes: Mapping[str, int] = msgspec.field(default_factory=dict)
    edges: Sequence[Mapping[EdgePart, int]] = ()

    def node(self, name: str, message: str) -> PatternError:
        """The error at the first mention of a node."""
        return pattern_error(self.text, self.nodes[name], message)

    def edge(self, number: int, message: str, part: EdgePart = "") -> PatternError:
        """The error at an arrow, or at a slot beside it."""
        columns = self.edges[number]
        return pattern_error(self.text, columns.get(part, columns[""]), message)

    def key(self, key: str, message: str) -> PatternError:
        """The error at the start of the text."""
        return pattern_error(self.text, 1, message)


class InJson(msgspec.Struct, frozen=True):
    """Points into the JSON form of a pattern."""

    def node(self, name: str, message: str) -> PatternError:
        """The error at a node, or a tensor."""
        return PatternError(f"pattern, node {name!r}: {message}")

    def edge(self, number: int, message: str, part: EdgePart = "") -> PatternError:
        """The error at an edge, or at one of its slots."""
        place = f"edges[{number}]" + (f"[2].{part}" if part else "")
        return PatternError(f"pattern.{place}: {message}")

    def key(self, key: str, message: str) -> PatternError:
        """The error at a key."""
        return PatternError(f"pattern.{key}: {message}")


def pattern_error(text: str, column: int, message: str) -> PatternError:
    """The error to raise for what stands at `column` (from 1) of the text of a pattern."""
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
    """The tokens of a pattern, an end token last. Raises PatternError at what is none."""
    return list(_PATTERN.tokens(text))
