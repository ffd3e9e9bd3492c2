"""The patterns that the key `pattern` means: a text, a value, a ready one, or several of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from graphpatch.errors import PatternError, RulesError, did_you_mean
from graphpatch.match.pattern.check import check_pattern
from graphpatch.match.pattern.syntax import parse_pattern, repeated
from graphpatch.match.spec import WHOLE, Match, Pattern

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
    return tuple(form for one in wanted for form in forms(one))


@functools.lru_cache(1 << 8)
def _form_of_text(text: str) -> tuple[Pattern, ...]:
    name = text.strip()
    if not name.startswith("@"):
        return (parse_pattern(text),)
    from graphpatch.match import ready

    return tuple(form.pattern() for form in ready.ready_pattern(name[1:]).forms)


def type_notes(wanted: PatternLike | None) -> list[str]:
    """What a pattern may not mean as it was written: a type in several chains is several ops."""
    every = wanted if isinstance(wanted, tuple | list) else (wanted,)
    texts = [one for one in every if isinstance(one, str) and not one.strip().startswith("@")]
    return [
        f"the pattern writes {op} in several chains, and each is another op; to mean the same one, "
        f"name it: m:{op} in one chain, m in the others"
        for text in texts
        for op in repeated(text)
    ]


def check_on(match: Match, on: Sequence[str]) -> None:
    """Raise RulesError where a patch names ops that the pattern of its match does not have."""
    if match.pattern is None:
        raise RulesError(
            "patch.on names an op of match.pattern, and the match has no pattern; leave on out"
        )
    if not on or (WHOLE in on and len(on) > 1):
        raise RulesError(f'patch.on: names of the pattern\'s ops, or "{WHOLE}" for all as one')
    every = match.pattern if isinstance(match.pattern, tuple) else (match.pattern,)
    for wanted in every:
        for form in forms(wanted):
            _check_on(form, on, f"\n  {wanted}" if isinstance(wanted, str) else "")


def _check_on(form: Pattern, on: Sequence[str], text: str) -> None:
    for name in on:
        if name not in form.present and name != WHOLE:
            legal = f"; legal: {', '.join(form.present)}, {WHOLE}"
            near = did_you_mean(name, form.present) or legal
            raise RulesError(f"patch.on: no op of the pattern is called {name!r}{near}{text}")
