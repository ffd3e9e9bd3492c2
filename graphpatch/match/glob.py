"""Globs over op names: `*` stays within one scope, `**` crosses `/`; and RE2's expressions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from graphpatch.errors import RulesError

TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
QUOTED = 100  # characters of a pattern in a message
MOST = 10_000  # characters of an expression, and compiled its steps: a letter costs as many
Texts = str | tuple[str, ...]  # a name or glob, or several
Means = Callable[[str], bool]  # whether a name is meant


def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (value,) if isinstance(value, str) else tuple(value)


def is_glob(text: str) -> bool:
    """Return whether the text has a wildcard; without one it is a name."""
    return "*" in text or "?" in text


@functools.cache
def compiled(glob: str) -> Means:
    """Return whether a name is meant: `a/**` is all below `a`, `**/b` is `b` in any scope or none.

    Raises RulesError where the glob is too large.
    """
    try:
        return whole("(?s)" + "".join(TOKENS.get(p, re.escape(p)) for p in TOKEN.findall(glob)))
    except RulesError as error:
        raise RulesError(f"the glob {glob[:QUOTED]!r}: {error}") from None


def one_of(wanted: Iterable[str]) -> Means:
    """Whether a name is one of these, which are looked up, or one that a glob among them means."""
    wanted = tuple(wanted)
    if "**" in wanted:
        return lambda name: True
    plain = frozenset(text for text in wanted if not is_glob(text))
    globs = [compiled(text) for text in wanted if is_glob(text)]
    if not globs:
        return plain.__contains__
    return lambda name: name in plain or any(is_match(name) for is_match in globs)


_UNKNOWN = re.compile(r"\(\?|escape sequence|repetition size|bad repetition|\\Z")
_LACKS = (
    ", which has no lookarounds, backreferences, conditions, comments, atomic groups and possessive"
    " repeats; repeats are at most 1,000; leave \\Z out, and combine matches with `all` and `not`"
)


def whole(expression: str) -> Means:
    r"""Return whether the expression matches a whole text.

    In RE2's syntax `\d`, `\w` and `\s` are ASCII. Raises RulesError where it is none or too large.
    """
    import re2

    size, repeat = len(expression), re.search(r"(?<!\\)\{(,\d+)\}", expression)
    if size > MOST:
        raise RulesError(f"it has {size:,} characters, and {MOST:,} is the most")
    if repeat is not None:  # RE2 reads it as these letters, Python as a repeat
        raise RulesError(f"a repeat needs its least number: write {{0{repeat[1]}}}")
    options = re2.Options()
    options.log_errors, options.never_capture = False, True
    try:
        compiled = re2.compile(expression.encode(), options)
    except UnicodeEncodeError:
        raise RulesError("it is not valid Unicode") from None
    except re2.error as error:
        cause = error.args[0]
        text = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        lacks = _LACKS if _UNKNOWN.search(text) else ""
        raise RulesError(f"{text[: 2 * QUOTED]} (in RE2's syntax{lacks})") from None
    if compiled.programsize > MOST:
        raise RulesError(
            f"compiled, it has {compiled.programsize:,} steps, and {MOST:,} is the most: use"
            " smaller repeats, or several expressions in `any`"
        )
    return lambda text: compiled.fullmatch(text.encode(errors="surrogatepass")) is not None
