"""`nth`: the first, the last, any number of the ops that the other keys of a match mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from graphpatch import names
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.errors import RulesError
from graphpatch.graph.node import Body
from graphpatch.graph.walk import in_order
from graphpatch.match.spec import Nth

T = TypeVar("T")
SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?(?::(-?[1-9]\d{0,8})?)?")
NTH_WORDS = {"first": 0, "last": -1}
DIGITS = re.compile(r"(\d+)")
NTH = 'a number, "first", "last", a list of numbers, or a slice such as ":-1" (all but the last)'


def picker(wanted: Any) -> Callable[[Sequence[T]], list[T]]:
    """Return what takes of a list what is meant: a number, a word, several, or a slice.

    Raises RulesError where it is none of these. A number beyond the list means nothing of it.
    """
    at = wanted.at if isinstance(wanted, Nth) else wanted
    at = NTH_WORDS.get(at, at) if isinstance(at, str) else at
    if isinstance(at, str):
        parts = SLICE.fullmatch(at)
        if parts is None:
            raise RulesError(f"nth: expected {NTH}; found {at!r}")
        chosen = slice(*(None if part is None else int(part) for part in parts.groups()))
        return lambda counted: list(counted[chosen])
    places = at if isinstance(at, tuple | list) else (at,)
    return lambda counted: [counted[n] for n in places if -len(counted) <= n < len(counted)]


def counted_in_order(wanted: Any, body: Body, indices: Iterable[int]) -> list[int]:
    """Return ops, by index, in the order in which they are counted.

    By `graph` an op comes after all that it is computed from; the order of the file plays no part.
    """
    by, ops = getattr(wanted, "by", "graph"), body.heads.names
    if by == "file":
        return sorted(indices)
    depth = depths(body) if by == "graph" else [0] * len(body)
    return sorted(indices, key=lambda index: (depth[index], natural_sort_key(ops[index])))


def natural_sort_key(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return what names are sorted by: numbers in them as numbers, so block2 before block10."""
    parts = DIGITS.split(name)
    numbers = [*(int(part) for part in parts[1::2]), 0]
    return list(zip(parts[::2], numbers, strict=True)), name


def depths(body: Body) -> list[int]:
    """Return of each op the length of the longest path to it, control inputs apart.

    What a loop's NextIteration gives back is left out, so that a loop is as deep as its body. Ops
    on any other circle, and those behind them, are deepest. Linear in the size of the body.
    """
    by_name, reads = body.by_name, list[list[int]]()
    backward = {index for op in NEXTS for index in body.by_type.get(op, ())}
    for inputs in body.heads.inputs:
        read = (by_name.get(names.op_of(text)) for text in inputs if text[:1] != "^")
        reads.append([index for index in read if index is not None and index not in backward])
    deep = [len(body)] * len(body)
    for index in in_order(reads):
        deep[index] = max((deep[producer] + 1 for producer in reads[index]), default=0)
    return deep
