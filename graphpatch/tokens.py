"""Text cut into tokens: what the languages of formulas and of patterns have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

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


class Language(msgspec.Struct, frozen=True):
    """What a text may be made of: its name, its tokens, and what to write instead of others.

    `token` matches one; its groups are the kinds of tokens. `error` makes the error at a column of
    a text, from a message.
    """

    name: str
    token: re.Pattern[str]
    instead: Mapping[str, str]
    error: Callable[[str, int, str], Exception]
    shorter: str = ""  # how a text is made shorter

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the tokens of a text, an end token last; spaces separate them."""
        if len(text) > LONGEST_TEXT:
            message = f"the {self.name} has {len(text):,} characters, and {LONGEST_TEXT:,} is the"
            raise self.error(text, LONGEST_TEXT, f"{message} most{self.shorter}")
        position = 0
        while position < len(text):
            if text[position].isspace():
                position += 1
                continue
            match = self.token.match(text, position)
            if match is None:
                hint = self.instead.get(text[position])
                message = f"a {self.name} has no {text[position]!r}" + (f"; {hint}" if hint else "")
                raise self.error(text, position + 1, message)
            token = Token(match.lastgroup or "", match.group(), position + 1)
            if token.kind == "number" and len(token.text) > LONGEST_NUMBER:
                message = f"a number has at most {LONGEST_NUMBER} characters"
                raise self.error(text, position + 1, message)
            yield token
            position += len(token.text)
        yield Token("end", "", len(text.rstrip()) + 1)
