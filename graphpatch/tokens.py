"""Text cut into tokens: what the languages of formulas and of patterns have in common."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

LONGEST_TEXT = 10_000
"""Characters of a text. What people write has a few hundred."""

LONGEST_NUMBER = 400
"""Characters of a number: the largest that a float64 holds has 309 digits."""


class Token(msgspec.Struct, frozen=True):
    """A piece of a text, and its column, counted from 1. The last one's kind is `end`."""

    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r}"


# The token of a text that starts at a position, behind those that are there already.
Next = Callable[[str, int, list[Token]], Token]


def tokens_of(text: str, following: Next) -> list[Token]:
    """The tokens of a text, an end token last; spaces separate them."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        tokens.append(following(text, position, tokens))
        position += len(tokens[-1].text)
    return [*tokens, Token("end", "", len(text.rstrip()) + 1)]
