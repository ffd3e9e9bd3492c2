"""The text of a pattern cut into tokens."""

from __future__ import annotations

import re

from graphpatch.match.pattern.faults import pattern_error
from graphpatch.tokens import LONGEST_NUMBER, LONGEST_TEXT, Token, tokens_of

# A word is a capture or an op type, which may be a glob or have a namespace (`Addons>Gelu`).
_TOKEN = re.compile(
    r"(?P<arrow>\^->|->\+|->)"
    r"|(?P<word>[A-Za-z_*][\w.*/]*(?:>[A-Za-z][\w.*/]*)*)"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<compare>[<>]=?(?=\s*[-+]?[.\d]))"
    r"|(?P<symbol>[:|;?!=~,\[\]])",
    re.ASCII,
)

_FOREIGN = {
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


def tokenize(text: str) -> list[Token]:
    """The tokens of a pattern, an end token last. Raises PatternError at what is none."""
    if len(text) > LONGEST_TEXT:
        message = f"the pattern has {len(text):,} characters, and {LONGEST_TEXT:,} is the most"
        raise pattern_error(
            text, LONGEST_TEXT, f"{message}: write several patterns, or globs for op types"
        )
    return tokens_of(text, _token)


def _token(text: str, position: int, before: list[Token]) -> Token:
    found = _TOKEN.match(text, position)
    if found is None:
        hint = _FOREIGN.get(text[position])
        reason = f"; {hint}" if hint else ""
        raise pattern_error(text, position + 1, f"a pattern has no {text[position]!r}{reason}")
    for kind in ("arrow", "word", "number", "compare", "symbol"):
        if found[kind] is not None:
            if kind == "number" and len(found.group()) > LONGEST_NUMBER:
                message = f"a number has at most {LONGEST_NUMBER} characters"
                raise pattern_error(text, position + 1, message)
            return Token(kind, found.group(), position + 1)
    raise AssertionError(found)
