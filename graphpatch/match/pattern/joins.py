"""Plain patterns on large bodies: their matches are joins of columns of links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphpatch.match.pattern.columns import Links, links
from graphpatch.match.pattern.search_plan import LinkEnd, PlanStep

if TYPE_CHECKING:
    import numpy as np

    from graphpatch.match.pattern.neighbourhood import Walker

    Array = np.ndarray[Any, np.dtype[np.int64]]

COST = 40  # a walk from one op costs as much as the columns of so many
ROWS_PER_OP = 4  # rows that a join may have for each op of the body


def all_bindings(walker: Walker) -> list[tuple[int, ...]] | None:
    """Every way in which the pattern lies in the body, in the order of the walker's anchors.

    None where walking is as good, or finds what joins cannot: from few anchors; for patterns with
    runs, tensors, outputs, conditions or nodes that can be swapped; where there are very many
    partial matches.
    """
    body, decider, plan = walker.wiring.body, walker.decider, walker.plan
    is_large = walker.candidates[plan.anchor].count() * COST > len(body)
    is_plain = decider.is_plain and decider.op_count == len(decider.names)
    is_simple = all(not link.repeat and link.output is None for *_, link in decider.edges)
    if not (is_large and is_plain and is_simple) or any(one.tests for one in walker.candidates):
        return None
    import numpy as np

    found = links(body)
    pairs = [_edge_pairs(walker, found, number) for number in range(len(decider.edges))]
    rows: Array = np.array([walker.candidates[plan.anchor].indices()], np.int64)
    nodes = [plan.anchor]
    for step in plan.steps:
        more = _with_node(rows, nodes, step, pairs, len(body))
        if more is None:
            return None
        rows, nodes = more, [*nodes, step.node]
    rows = rows[np.argsort(nodes)]
    rows = rows[:, np.lexsort((*rows[::-1], rows[plan.anchor]))]
    walker.wiring.walk(rows.size)
    return list(zip(*rows.tolist(), strict=True))


def _edge_pairs(walker: Walker, found: Links, number: int) -> Array:
    """The links that an edge of the pattern can be: source and reader, each pair once."""
    import numpy as np

    source, target, link = walker.decider.edges[number]
    kept = found.control == link.control
    if link.input is not None:
        kept &= found.slot == link.input
    for node, ends in ((source, found.source), (target, found.reader)):
        types = walker.candidates[node].types
        if types is not None:
            kept &= found.are(types)[ends]
    size = len(found.body)
    once = np.unique(found.source[kept] * size + found.reader[kept])
    return np.stack(np.divmod(once, size))


def _with_node(
    rows: Array, nodes: Sequence[int], step: PlanStep, pairs: Sequence[Array], size: int
) -> Array | None:
    """The rows with one more op, by the links that lead to it; None where they are too many."""
    import numpy as np

    first, *others = step.ends
    ends = _oriented(first, pairs)
    ends = ends[:, np.argsort(ends[0], kind="stable")]
    at = rows[nodes.index(first.other)]
    low, high = (np.searchsorted(ends[0], at, side) for side in ("left", "right"))
    counts = high - low
    if counts.sum() > ROWS_PER_OP * size:
        return None
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat(rows, counts, axis=1)
    new = ends[1][np.repeat(low, counts) + within]
    kept = (rows != new).all(axis=0)
    for end in others:
        one, two = _oriented(end, pairs)
        kept &= np.isin(rows[nodes.index(end.other)] * size + new, one * size + two)
    return np.vstack([rows[:, kept], new[kept]])


def _oriented(end: LinkEnd, pairs: Sequence[Array]) -> Array:
    """The pairs of an edge, with that end first from which the link goes."""
    return pairs[end.edge] if end.forward else pairs[end.edge][::-1]
