"""Why a pattern has no match: how far it came, and what stood where the next op should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest

from graphpatch.graph.body import Body, Node
from graphpatch.match.pattern.links import Vertex
from graphpatch.match.pattern.neighbourhood import Walker
from graphpatch.match.pattern.search import Conditions, Finder, Search
from graphpatch.match.pattern.search_plan import LinkEnd, PlanStep
from graphpatch.match.pattern.support import Neighbourhood
from graphpatch.match.spec import Pattern
from graphpatch.names import TensorName

TRACED = 10_000
"""From how many ops of a body a pattern is traced; the first ones in the file's order."""


@dataclass(frozen=True, slots=True)
class RejectedOp:
    """An op that stands where one of the pattern should, and the key that it does not meet."""

    node: Node
    key: str


@dataclass(frozen=True, slots=True)
class NearMiss:
    """How far a pattern came at one place.

    `reached` has the ops that were found, by name. Then it failed: at the op `missing`, for which
    `rejected` were looked at; or, with all ops found, for the `reason` alone.
    """

    body: Body
    reached: dict[str, Node]
    missing: str
    reason: str
    rejected: tuple[RejectedOp, ...] = ()


def near_misses(
    body: Body, pattern: Pattern, conditions: Conditions, most: int = 3
) -> list[NearMiss]:
    """Where a pattern that matches nothing came furthest: the most ops, then the file's order."""
    found: list[tuple[int, int, int, NearMiss]] = []
    for rank, search in enumerate(Finder(pattern, conditions).searches(body)):
        ops = search.walker.decider.op_count
        for place, miss in enumerate(_traced(search)):
            found.append((ops - len(miss.reached), rank, place, miss))
    return [one[-1] for one in nsmallest(most, found, key=lambda one: one[:3])]


def _traced(search: Search) -> Iterator[NearMiss]:
    walker = search.walker
    for anchor in walker.candidates[walker.plan.anchor].indices()[:TRACED]:
        around = walker.around(anchor)
        if around.failed is not None:
            yield _where_it_stopped(search, around, around.failed)
            continue
        found = [search.with_runs(vertices) for vertices in walker.matches(anchor)]
        refused = [(binding, reason) for binding, reason in found if reason]
        if not found:
            reason = "there are fewer such ops or links than the pattern asks for"
            yield NearMiss(walker.wiring.body, _reached_ops(search, around), "", reason)
        for binding, reason in refused[:1]:
            reached = _reached_ops(search, around) if binding is None else binding.captures
            yield NearMiss(walker.wiring.body, reached, "", reason)


def _where_it_stopped(search: Search, around: Neighbourhood, step: PlanStep) -> NearMiss:
    """A walk that found nothing for the node of a step."""
    walker, body = search.walker, search.wiring.body
    name, reached = walker.decider.names[step.node], _reached_ops(search, around)
    end = next(
        (end for end in step.ends if not _leads_to_candidate(walker, around, step, end)),
        step.ends[-1],
    )
    seen = [
        one
        for one in _linked_vertices(walker, around, step, end)
        if not isinstance(one, TensorName)
    ]
    rejected = [
        RejectedOp(Node(body, one), walker.candidates[step.node].failing(one)) for one in seen
    ]
    other = walker.decider.names[end.other]
    if not rejected:
        reason = f"nothing {'reads' if end.forward else 'is read by'} {other!r} there"
    elif any(not one.key for one in rejected):
        reason = f"none that is linked with {other!r} has the other links too"
    else:
        reason = ""
    return NearMiss(body, reached, name, reason, tuple(one for one in rejected if one.key))


def _linked_vertices(
    walker: Walker, around: Neighbourhood, step: PlanStep, end: LinkEnd
) -> list[Vertex]:
    """What a link leads to, whether or not it fits."""
    found = (use for other in around.found[end.other] for use in walker.uses(step.node, end, other))
    return sorted({vertex for vertex, _ in found}, key=str)


def _leads_to_candidate(
    walker: Walker, around: Neighbourhood, step: PlanStep, end: LinkEnd
) -> bool:
    return any(
        isinstance(vertex, TensorName) or walker.candidates[step.node].passes(vertex)
        for vertex in _linked_vertices(walker, around, step, end)
    )


def _reached_ops(search: Search, around: Neighbourhood) -> dict[str, Node]:
    """One op for each name that was reached, each linked with that before it; by name."""
    walker = search.walker
    chosen: dict[int, Vertex] = {walker.plan.anchor: min(around.found[walker.plan.anchor], key=str)}
    for step in walker.plan.steps:
        if step.node in around.found:
            chosen[step.node] = _chosen_vertex(around, step, chosen)
    names, body = walker.decider.names, search.wiring.body
    ops = {names[number]: one for number, one in chosen.items() if isinstance(one, int)}
    return {name: Node(body, ops[name]) for name in names if name in ops}


def _chosen_vertex(around: Neighbourhood, step: PlanStep, chosen: dict[int, Vertex]) -> Vertex:
    end, found = step.ends[0], sorted(around.found[step.node], key=str)
    other = chosen[end.other]
    linked = [
        one for one in found if ((other, one) if end.forward else (one, other)) in around.links
    ]
    return (linked or found)[0]
