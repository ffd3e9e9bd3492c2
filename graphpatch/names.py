"""The grammar of names: `op`, `op:1`, `^op`, inside functions `op:out:0`; and what means several.

These are globs, in which `*` stays within one scope and `**` crosses `/`, and RE2's expressions.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec

from graphpatch.errors import RulesError

# Op types that graphpatch accepts. TensorFlow takes any name of a function as one. A file is known
# for a GraphDef by its first op type: other messages have control characters in that place.
OP_TYPE = re.compile(r"[^\x00-\x1f\x7f]+")

# All characters that TensorFlow takes in the name of an op of a graph.
_LETTERS = f"{string.ascii_letters}{string.digits}_.>/-".encode()


OpKey = tuple[str, str]
"""An op of a graph: the label of its body (`main`, or a function's name), and its name."""


class TensorName(msgspec.Struct, frozen=True):
    """One input of a NodeDef, taken apart.

    `index` counts within the output arg `arg`; in the main graph `arg` is empty and `index`
    counts the op's outputs. For a control input `^op`, `control` is true.
    """

    op: str
    index: int = 0
    arg: str = ""
    control: bool = False

    def __str__(self) -> str:
        if self.control:
            return f"^{self.op}"
        if self.arg:
            return f"{self.op}:{self.arg}:{self.index}"
        return f"{self.op}:{self.index}" if self.index else self.op

    @property
    def full(self) -> str:
        """Return `op:0`, as a tf.Graph names a tensor of its own: the output is always there."""
        return f"{self.op}:{self.index}"


def parse(text: str) -> TensorName:
    """Take `op`, `op:1`, `^op` or `op:out:0` apart."""
    if text.startswith("^"):
        return TensorName(text[1:], control=True)
    op, _, rest = text.partition(":")
    if not rest:
        return TensorName(op)
    arg, _, index = rest.rpartition(":")
    return TensorName(op, int(index) if is_index(index) else 0, arg)


def is_index(text: str) -> bool:
    """Return whether a text is the number of an output, and no more than that."""
    return text.isascii() and text.isdigit() and len(text) < 10


def op_of(text: str) -> str:
    """Return the op that an input reads: `a/b` for `a/b`, `a/b:1`, `^a/b` and `a/b:y:0`."""
    return text[1:] if text.startswith("^") else text.partition(":")[0]


def fresh(base: str, taken: Container[str]) -> str:
    """Return `base`, or `base_1`, `base_2`, ... where taken; the same on every run.

    The number is found by doubling and then halving: a thousand rules at one op take as many names.
    """
    if base not in taken:
        return base
    last, free = 0, 1
    while f"{base}_{free}" in taken:
        last, free = free, 2 * free
    while free - last > 1:
        middle = (last + free) // 2
        last, free = (middle, free) if f"{base}_{middle}" in taken else (last, middle)
    return f"{base}_{free}"


def are_spelled(texts: Sequence[str], never_first: str = "") -> bool:
    """Return whether all have characters that TensorFlow takes, and begin with none of these.

    Names that are empty are not spelled so. Many are looked at as one text.
    """
    raw = b"\n%b\n" % "\n".join(texts).encode()
    first = any(f"\n{letter}".encode() in raw for letter in f"\n{never_first}")
    return not texts or (not first and len(raw.translate(None, _LETTERS)) == len(texts) + 1)


def natural_sort_key(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return what names are sorted by: numbers in them as numbers, so block2 before block10."""
    parts = re.split(r"(\d{1,1000})", name)  # int() takes no more than 4,300 digits
    numbers = [*(int(part) for part in parts[1::2]), 0]
    return list(zip(parts[::2], numbers, strict=True)), name


_TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
QUOTED = 100  # characters of a pattern in a message
_MOST = 10_000  # characters of an expression, and compiled its steps: a letter costs as many
Texts = str | tuple[str, ...]  # a name or glob, or several
Means = Callable[[str], bool]  # whether a name is meant


def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return one text or several, as several."""
    return (value,) if isinstance(value, str) else tuple(value)


def is_glob(text: str) -> bool:
    """Return whether the text has a wildcard; without one it is a name."""
    return "*" in text or "?" in text


@functools.cache
def glob_test(glob: str) -> Means:
    """Return whether a name is meant: `a/**` is all below `a`, `**/b` is `b` in any scope or none.

    Raises RulesError where the glob is too large.
    """
    try:
        parts = (_TOKENS.get(part, re.escape(part)) for part in _TOKEN.findall(glob))
        return regex_test("(?s)" + "".join(parts))
    except RulesError as error:
        raise RulesError(f"the glob {glob[:QUOTED]!r}: {error}") from None


def one_of(wanted: Iterable[str]) -> Means:
    """Return whether a name is one of these, or one that a glob among them means."""
    wanted = tuple(wanted)
    if "**" in wanted:
        return lambda name: True
    plain = frozenset(text for text in wanted if not is_glob(text))
    globs = [glob_test(text) for text in wanted if is_glob(text)]
    if not globs:
        return plain.__contains__
    return lambda name: name in plain or any(is_match(name) for is_match in globs)


_UNKNOWN = re.compile(r"\(\?|escape sequence|repetition size|bad repetition|\\Z")
_LACKS = (
    ", which has no lookarounds, backreferences, conditions, comments, atomic groups and possessive"
    " repeats; repeats are at most 1,000; leave \\Z out, and combine matches with `all` and `not`"
)


def regex_test(expression: str) -> Means:
    r"""Return whether the expression matches a whole text.

    In RE2's syntax `\d`, `\w` and `\s` are ASCII. Raises RulesError where it is none or too large.
    """
    import re2

    size, repeat = len(expression), re.search(r"(?<!\\)\{(,\d+)\}", expression)
    if size > _MOST:
        raise RulesError(f"it has {size:,} characters, and {_MOST:,} is the most")
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
    if compiled.programsize > _MOST:
        raise RulesError(
            f"compiled, it has {compiled.programsize:,} steps, and {_MOST:,} is the most: use"
            " smaller repeats, or several expressions in `any`"
        )
    return lambda text: compiled.fullmatch(text.encode(errors="surrogatepass")) is not None
