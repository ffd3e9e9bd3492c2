"""The grammar of names: `op`, `op:1`, `^op`, and inside functions `op:out:0`."""

from __future__ import annotations

import re
import string
from collections.abc import Container, Sequence

import msgspec

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
        """`op:0`, as a tf.Graph names a tensor of its own: the output is always there."""
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
    """`base`, or `base_1`, `base_2`, ... where taken; the same on every run.

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
    """Whether all have such characters alone as TensorFlow takes, and begin with none of these.

    Names that are empty are not spelled so. Many are looked at as one text.
    """
    raw = b"\n%b\n" % "\n".join(texts).encode()
    first = any(f"\n{letter}".encode() in raw for letter in f"\n{never_first}")
    return not texts or (not first and len(raw.translate(None, _LETTERS)) == len(texts) + 1)
