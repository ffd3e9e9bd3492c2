"""`nth`: the first, the last, any number of the ops that the other keys of a match mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from graphpatch import names
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.errors import RulesError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import in_order
from graphpatch.match.keys import Condition, Test, Written, described

T = TypeVar("T")
SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?(?::(-?[1-9]\d{0,8})?)?")
NTH_WORDS = {"first": 0, "last": -1}
DIGITS = re.compile(r"(\d+)")
NTH = 'a number, "first", "last", a list of numbers, or a slice such as ":-1" (all but the last)'


class Nth(Written, frozen=True, kw_only=True):
    """Which of the ops, counted from 0, in which order."""

    at: Annotated[
        int | str | tuple[int, ...],
        described("A number, first, last, a list of numbers, or a slice.", ":-1"),
    ]
    by: Annotated[
        Literal["graph", "name", "file"],
        described("The order in which they are counted. Default: graph.", "name"),
    ] = "graph"


def nth(wanted: Any, others: Condition) -> Condition:
    """The op is number so many of those for which the `others` hold, counted in each body."""
    choose = picker(wanted)

    def prepared(body: Body) -> Test:
        meant = set(choose(_counted(body, wanted, others)))
        return lambda node: node.index in meant

    return prepared


def _counted(body: Body, wanted: Any, others: Condition) -> list[int]:
    test = others(body)
    return order_of_counting(wanted)(body, [node.index for node in body if test(node)])


def picker(wanted: Any) -> Callable[[Sequence[T]], list[T]]:
    """Takes of a list what is meant: a number, "first", "last", several, or a slice as in Python.

    Raises RulesError where it is none of these. A number beyond the list means nothing of it.
    """
    at = wanted.at if isinstance(wanted, Nth) else wanted
    if isinstance(at, str):
        if at not in NTH_WORDS:
            return _slicer(at)
        at = NTH_WORDS[at]
    places = at if isinstance(at, tuple | list) else (at,)
    return lambda counted: [counted[n] for n in places if -len(counted) <= n < len(counted)]


def order_of_counting(wanted: Any) -> Callable[[Body, Iterable[int]], list[int]]:
    """Puts ops, by index, into the order in which they are counted."""
    by = wanted.by if isinstance(wanted, Nth) else "graph"
    return ORDERS[by]


def by_graph(body: Body, indices: Iterable[int]) -> list[int]:
    """Return an op after all that it is computed from; those at the same depth by name.

    The order of the file plays no part.
    """
    depth = depths(body)
    return sorted(
        indices, key=lambda index: (depth[index], natural_sort_key(body.heads.names[index]))
    )


def by_name(body: Body, indices: Iterable[int]) -> list[int]:
    """By name, numbers in it as numbers: block2 before block10."""
    return sorted(indices, key=lambda index: natural_sort_key(body.heads.names[index]))


def by_file(body: Body, indices: Iterable[int]) -> list[int]:
    """As `match` lists them."""
    return sorted(indices)


ORDERS = {"graph": by_graph, "name": by_name, "file": by_file}


def natural_sort_key(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return what names are sorted by: text as text, numbers as numbers."""
    parts = DIGITS.split(name)
    numbers = [*(int(part) for part in parts[1::2]), 0]
    return list(zip(parts[::2], numbers, strict=True)), name


def nth_in_words(node: Node, wanted: Any, others: Condition) -> str:
    """Return which one an op is of those for which the `others` hold, in words."""
    counted, by = _counted(node.body, wanted, others), getattr(wanted, "by", "graph")
    if node.index not in counted:
        return f"it is none of the {len(counted)} that nth counts"
    return f"it is number {counted.index(node.index)} (from 0) of {len(counted)} in {by} order"


def _slicer(text: str) -> Callable[[Sequence[T]], list[T]]:
    parts = SLICE.fullmatch(text)
    if parts is None:
        raise RulesError(f"nth: expected {NTH}; found {text!r}")
    start, stop, step = (None if part is None else int(part) for part in parts.groups())
    return lambda parts: list(parts[start:stop:step])


def depths(body: Body) -> list[int]:
    """Of each op the length of the longest path to it, control inputs apart.

    What a loop's NextIteration gives back is left out, so that a loop is as deep as its body. Ops
    on any other circle, and those behind them, are deepest. Linear in the size of the body.
    """
    ops, by_name = body.heads.ops, body.by_name
    reads = [_reads(inputs, ops, by_name) for inputs in body.heads.inputs]
    deep = [len(body)] * len(body)
    for index in in_order(reads):
        deep[index] = max((deep[producer] + 1 for producer in reads[index]), default=0)
    return deep


def _reads(inputs: Sequence[str], ops: list[str], by_name: dict[str, int]) -> list[int]:
    found = [by_name.get(names.op_of(text)) for text in inputs if not text.startswith("^")]
    return [index for index in found if index is not None and ops[index] not in NEXTS]
