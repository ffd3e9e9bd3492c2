"""The text of a pattern cut into tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from graphpatch.match.pattern.faults import fault

Kind = Literal["arrow", "word", "number", "symbol", "end"]

# A word is a capture or an op type, which may be a glob or have a namespace (`Addons>Gelu`).
_TOKEN = re.compile(
    r"(?P<arrow>\^->|->\+|->)"
    r"|(?P<word>[A-Za-z_*][\w.*/]*(?:>[A-Za-z][\w.*/]*)*)"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<symbol>[:|;?!=~\[\]])",
    re.ASCII,
)

_FOREIGN = {
    "<": "links go from an op to the one that reads it: A -> B",
    ">": "a link is written ->",
    "-": "a link is written ->",
    "→": "a link is written ->",
    ",": "chains are separated by ;",
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


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a pattern, and its column, counted from 1."""

    kind: Kind
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r}"


def tokenize(text: str) -> list[Token]:
    """The tokens of a pattern, an end token last. Raises PatternError at what is none."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        tokens.append(_token(text, position))
        position += len(tokens[-1].text)
    return [*tokens, Token("end", "", len(text.rstrip()) + 1)]


def _token(text: str, position: int) -> Token:
    found = _TOKEN.match(text, position)
    if found is None:
        hint = _FOREIGN.get(text[position])
        reason = f"; {hint}" if hint else ""
        raise fault(text, position + 1, f"a pattern has no {text[position]!r}{reason}")
    for kind in ("arrow", "word", "number", "symbol"):
        if found[kind] is not None:
            return Token(kind, found.group(), position + 1)
    raise AssertionError(found)
