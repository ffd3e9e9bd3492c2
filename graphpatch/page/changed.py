"""Which rules change what flows from a target back to a source: those at ops on the path.

A rule at the source itself is none of them: it changes what flows on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from graphpatch.graph.body import Node
from graphpatch.graph.calls import called_functions
from graphpatch.page.body_flow import LaneFlow
from graphpatch.page.body_lines import BodyLines
from graphpatch.page.sides import BodySide


def rules_between(
    main: BodyLines, functions: Mapping[str, BodyLines], source: str, target: str
) -> Counter[str]:
    """The rules at ops on the path of a gradient, and in functions that are called there.

    With each the number of its ops. Of a function, all ops count at which a gradient flows on.
    """
    side = main.sides[-1]
    found: Counter[str] = Counter()
    todo = [(side, key) for key in _lines_on_path(side, source, target) if key != source]
    seen = set[str]()
    while todo:
        one, key = todo.pop()
        found.update(one.lines[key].rules)
        for name in _functions_called(one, key):
            if name in functions and name not in seen:
                seen.add(name)
                inner = functions[name].sides[-1]
                flows = [key for key, line in inner.lines.items() if line.flow >= LaneFlow.FULL]
                todo += [(inner, key) for key in flows]
    return found


def _functions_called(side: BodySide, key: str) -> list[str]:
    """The functions that the ops of a line call."""
    nodes = [Node(side.body, index) for index in side.lines[key].nodes if index >= 0]
    return [name for node in nodes for name in called_functions(node)]


def _lines_on_path(side: BodySide, source: str, target: str) -> Sequence[str]:
    """The lines on the path, from the target back to the source, on which a gradient flows."""
    after = _reached_lines(side, [target])
    readers: dict[str, list[str]] = {}
    for key in after:
        for read in _lines_read(side, key):
            readers.setdefault(read, []).append(key)
    seen, todo = set[str](), [source] if source in after else []
    while todo:
        key = todo.pop()
        if key not in seen:
            seen.add(key)
            todo += readers.get(key, ())
    return [key for key in after if key in seen]


def _reached_lines(side: BodySide, starts: list[str]) -> dict[str, None]:
    found: dict[str, None] = {}
    todo = [key for key in starts if key in side.lines]
    while todo:
        key = todo.pop()
        if key not in found:
            found[key] = None
            todo += _lines_read(side, key)
    return found


def _lines_read(side: BodySide, key: str) -> list[str]:
    """The lines that a line reads and into which more than zeros flow."""
    reads = side.lines[key].reads
    return [read for read, flow in reads.items() if flow >= LaneFlow.FULL and read in side.lines]
