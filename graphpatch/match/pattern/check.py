"""What no graph can hold, and what a pattern cannot mean: found before any graph is looked at."""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from graphpatch import opdefs
from graphpatch.errors import did_you_mean
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.pattern.tokens import EdgePart, FaultPlace, InJson
from graphpatch.match.pattern.topology import linked_groups, variants, without_op
from graphpatch.match.spec import Match, Pattern

MOST_OPS = 64
"""Ops and tensors of a pattern: each way in which they can be swapped is found out."""

MOST_OPTIONAL = 8
"""Each optional op doubles the number of patterns that are looked for."""


def check_pattern(pattern: Pattern, where: FaultPlace | None = None) -> None:
    """Raise PatternError where the pattern means nothing: one message, at its place."""
    for one in CHECKS:
        one(pattern, where or InJson())


def _check_names(pattern: Pattern, where: FaultPlace) -> None:
    """Every name is one of a node or a tensor, and none is both."""
    for name in pattern.tensors:
        if name in pattern.nodes:
            raise where.key("tensors", f"{name!r} is a node: a name is one or the other")
    ops, every = list(pattern.nodes), [*pattern.nodes, *pattern.tensors]
    for number, edge in enumerate(pattern.edges):
        for name in (edge.source, edge.target):
            if name not in every:
                raise where.edge(
                    number, f"no node is called {name!r}{_nearest_or_legal(name, every)}"
                )
    closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
    lists = {"optional": pattern.optional, "absent": pattern.absent, "closed": closed}
    for key, named in lists.items():
        for name in named:
            if name in pattern.tensors:
                raise where.node(name, f"_ is a tensor from outside: it cannot be {key}")
            if name not in ops:
                raise where.key(key, f"no node is called {name!r}{_nearest_or_legal(name, ops)}")


def _nearest_or_legal(name: str, every: list[str]) -> str:
    return did_you_mean(name, every) or f"; legal: {', '.join(every) or 'there is none'}"


def _check_ops(pattern: Pattern, where: FaultPlace) -> None:
    """Some op must be there."""
    every = [*pattern.nodes, *pattern.tensors]
    if len(every) > MOST_OPS:
        message = f"{len(every)} nodes, and {MOST_OPS} is the most: leave out those that"
        raise where.node(every[MOST_OPS], f"{message} the others make certain, or split the rule")
    if not pattern.present:
        raise where.key("nodes", "the pattern is empty: it needs an op that is there")
    if all(name in pattern.optional for name in pattern.present):
        raise where.node(pattern.present[0], "every op of the pattern is optional")
    if len(pattern.optional) > MOST_OPTIONAL:
        name = pattern.optional[MOST_OPTIONAL]
        raise where.node(name, f"more than {MOST_OPTIONAL} optional ops")


def _edges(pattern: Pattern, where: FaultPlace) -> None:
    """What an edge cannot be, for what stands at its ends."""
    for number, edge in enumerate(pattern.edges):
        link = edge.link
        if edge.target in pattern.tensors:
            raise where.edge(number, "_ is a tensor from outside: nothing leads to it")
        if link.control and (link.input is not None or link.output is not None or link.repeat):
            raise where.edge(number, "a control edge has no slots and no run")
        if edge.source in pattern.tensors and link.control:
            raise where.edge(number, "_ is a tensor: no control edge leaves it")
        if edge.source in pattern.tensors and link.output is not None:
            raise where.edge(number, "_ is one tensor: it has no outputs to choose from", "output")


def _check_runs(pattern: Pattern, where: FaultPlace) -> None:
    """A run is entered at one place."""
    for number, edge in enumerate(pattern.edges):
        if not edge.link.repeat:
            continue
        if edge.target in pattern.absent:
            raise where.edge(number, "an absent op cannot be a run")
        if edge.source in pattern.absent:
            raise where.edge(number, "an absent op has no run behind it: link them by ->")
        if sum(other.target == edge.target for other in pattern.edges) > 1:
            raise where.edge(number, f"{edge.target!r} is a run, and entered by this link alone")


def _absent(pattern: Pattern, where: FaultPlace) -> None:
    """An absent op is linked to ops that are there."""
    for name in pattern.absent:
        if name in pattern.optional:
            raise where.node(name, "an absent op cannot be optional too")
        if not any(name in (edge.source, edge.target) for edge in pattern.edges):
            raise where.node(name, f"nothing says where {name!r} must be absent: it needs a link")
    for number, edge in enumerate(pattern.edges):
        if edge.source in pattern.absent and edge.target in pattern.absent:
            raise where.edge(number, "an absent op is linked to ops that are there, not to another")


def _cycle(pattern: Pattern, where: FaultPlace) -> None:
    before: dict[str, list[str]] = {name: [] for name in pattern.nodes}
    for edge in pattern.edges:
        before.setdefault(edge.target, []).append(edge.source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        around = error.args[1]
        number = max(
            number
            for number, edge in enumerate(pattern.edges)
            if (edge.source, edge.target) in pairwise(around)
        )
        raise where.edge(number, f"a cycle: {' -> '.join(around)}") from None


def _refuse_islands(pattern: Pattern, where: FaultPlace) -> None:
    """All is linked with all; also where optional ops are missing."""
    islands = linked_groups(pattern)
    every = (*pattern.present, *pattern.tensors)
    if len(islands) > 1:
        name = next(name for name in every if name not in islands[0])
        raise where.node(name, f"{name!r} is not linked with {every[0]!r}")
    found = list(variants(pattern))
    for name in pattern.optional:
        if all(name in variant.nodes for variant in found):
            rest = without_op(pattern, name)
            islands = linked_groups(rest)
            every = (*rest.present, *rest.tensors)
            left = next((one for one in every if one not in islands[0]), every[0])
            raise where.node(
                name, f"without {name!r} the pattern falls apart: make {left!r} optional too"
            )


def _slots(pattern: Pattern, where: FaultPlace) -> None:
    """Every slot is one that the op type has, and has one source."""
    entered: set[tuple[str, int]] = set()
    for number, edge in enumerate(pattern.edges):
        link = edge.link
        missing = _no_such_slot(pattern.nodes[edge.target], link.input, "input")
        if missing:
            raise where.edge(number, missing, "input")
        missing = _no_such_slot(pattern.nodes.get(edge.source, Match()), link.output, "output")
        if missing:
            raise where.edge(number, missing, "output")
        if link.input is None or not {edge.source, edge.target}.isdisjoint(pattern.absent):
            continue
        enters = edge.target, link.input
        if enters in entered:
            message = f"input {link.input} of {edge.target!r} has a source already"
            raise where.edge(number, message, "input")
        entered.add(enters)


def _no_such_slot(match: Match, slot: int | None, part: EdgePart) -> str:
    """That an op type has no such slot, and which it has; nothing where it has."""
    for op in texts(match.op or ()):
        known = None if glob.is_glob(op) else opdefs.lookup(op)
        if known is None or slot is None or _is_of_tests(known):
            continue
        args = known.inputs if part == "input" else known.outputs
        is_open = any(arg.is_list for arg in args)
        if not is_open and slot >= len(args):
            legal = ", ".join(f"{place} ({arg.name})" for place, arg in enumerate(args)) or "none"
            return f"{op} has no {part} {slot}; it has {legal}"
    return ""


def _is_of_tests(known: opdefs.OpDef) -> bool:
    """Whether an op type looks as A and B of TensorFlow's tests, the names of a model's functions.

    No other op type gives tensors and neither reads any nor has attrs.
    """
    return bool(known.outputs) and not known.inputs and not known.attrs


CHECKS: tuple[Callable[[Pattern, FaultPlace], None], ...] = (
    _check_names, _check_ops, _edges, _check_runs, _absent, _cycle, _refuse_islands, _slots,
)  # fmt: skip
