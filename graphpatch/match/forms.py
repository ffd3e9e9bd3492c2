"""The patterns that the key `pattern` means: a text, a value, a ready one, or several of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from graphpatch.errors import PatternError, RulesError, did_you_mean
from graphpatch.match.pattern.check import check
from graphpatch.match.pattern.overlaps import WHOLE
from graphpatch.match.pattern.syntax import parse
from graphpatch.match.ready import READY
from graphpatch.match.spec import Match, Pattern

Wanted = str | Pattern | Sequence[str | Pattern]


def forms(wanted: Wanted) -> tuple[Pattern, ...]:
    """The patterns of which any may be found; `"@swish"` stands for the ready ones of that name.

    Raises PatternError where one of them means nothing.
    """
    if isinstance(wanted, str):
        return _text(wanted)
    if isinstance(wanted, Pattern):
        check(wanted)
        return (wanted,)
    if not wanted:
        raise PatternError("pattern: the list is empty: it needs a pattern")
    return tuple(form for one in wanted for form in forms(one))


@functools.lru_cache(1 << 8)
def _text(text: str) -> tuple[Pattern, ...]:
    name = text.strip()
    if not name.startswith("@"):
        return (parse(text),)
    if name[1:] not in READY:
        near = did_you_mean(name[1:], READY) or f"; legal: {', '.join(READY)}"
        raise PatternError(f"pattern: no ready pattern is called {name!r}{near}")
    return tuple(parse(form) for form in READY[name[1:]].forms)


def check_on(match: Match, on: Sequence[str]) -> None:
    """Raise RulesError where a patch names ops that the pattern of its match does not have."""
    if match.pattern is None:
        raise RulesError("patch.on names ops of match.pattern, and there is none")
    if not on or (WHOLE in on and len(on) > 1):
        raise RulesError(f'patch.on: names of the pattern\'s ops, or "{WHOLE}" for all as one')
    for form in forms(match.pattern):
        legal = [name for name in form.nodes if name not in form.absent]
        for name in on:
            if name not in legal and name != WHOLE:
                near = did_you_mean(name, legal) or f"; legal: {', '.join(legal)}, {WHOLE}"
                raise RulesError(f"patch.on: no op of the pattern is called {name!r}{near}")
