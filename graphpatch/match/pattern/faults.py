"""What is wrong with a pattern, and where: a column of its text, or a key of its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from graphpatch.errors import PatternError
from graphpatch.shown import pointed

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
