"""What a pattern can reach from one op: the ops and tensors that each of its nodes can be there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.match.pattern.candidates import Candidates
from graphpatch.match.pattern.decide import Decider
from graphpatch.match.pattern.links import WHOLE_RUN, LinkWalker, Vertex, VertexInput
from graphpatch.match.pattern.search_plan import LinkEnd, Plan, search_order
from graphpatch.match.pattern.support import LinksByEnds, Neighbourhood
from graphpatch.match.spec import Link


@dataclass(eq=False)
class Walker:
    """Walks from an op as far as the pattern can reach."""

    wiring: LinkWalker
    decider: Decider
    candidates: Sequence[Candidates]  # of the ops, by number
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        tensors = len(self.decider.names) - self.decider.op_count
        counts = [one.count() for one in self.candidates] + [0] * tensors
        self.plan = search_order(counts, self.decider.op_count, self.decider.edges)

    def around(self, anchor: int) -> Neighbourhood:
        """The neighbourhood of an op that is the anchor; `failed` is a step that led to nothing."""
        found: dict[int, set[Vertex]] = {self.plan.anchor: {anchor}}
        links: LinksByEnds = {}
        for step in self.plan.steps:
            allowed: set[Vertex] | None = None
            for end in step.ends:
                allowed = self._follow(step.node, end, found[end.other], allowed, links)
                if not allowed:
                    return Neighbourhood(found, links, step)
            found[step.node] = allowed or set()
        return Neighbourhood(found, links, None)

    def _follow(
        self,
        node: int,
        end: LinkEnd,
        others: Iterable[Vertex],
        allowed: set[Vertex] | None,
        links: LinksByEnds,
    ) -> set[Vertex]:
        """What a link leads to, of what is allowed so far; the links are written down."""
        bit, kept, forward = 1 << end.edge, set[Vertex](), end.forward
        passes = self._passes(node) if allowed is None else allowed.__contains__
        for other in others:
            for vertex, slot in self.uses(node, end, other):
                if vertex in kept or passes(vertex):
                    kept.add(vertex)
                    ends = (other, vertex) if forward else (vertex, other)
                    key = slot if slot >= 0 else WHOLE_RUN - end.edge
                    between = links.get(ends)
                    if between is None:
                        links[ends] = {key: bit}
                    else:
                        between[key] = between.get(key, 0) | bit
        return kept

    def _passes(self, node: int) -> Callable[[Any], bool]:
        return self.candidates[node].passes if node < self.decider.op_count else lambda tensor: True

    def uses(self, node: int, end: LinkEnd, other: Vertex) -> Iterable[VertexInput]:
        """What a link leads to from one op or tensor, whatever it is."""
        link, wiring = self.decider.edges[end.edge][2], self.wiring
        if end.forward:
            if link.repeat:
                return wiring.run_forward(other, link, self.candidates[node].passes)
            return wiring.forward(other, link)
        assert isinstance(other, int)
        is_tensor = node >= self.decider.op_count
        if link.repeat:
            passes = self.candidates[end.other].passes
            return wiring.run_backward(other, link, passes, is_tensor)
        return wiring.tensors(other, link) if is_tensor else wiring.backward(other, link)

    def matches(self, anchor: int) -> list[tuple[Vertex, ...]]:
        """Every way in which the pattern lies there: a vertex for each of its nodes."""
        around = self.around(anchor)
        if around.failed is not None:
            return []
        self._leave_out_begun_runs(around.found)
        if self.decider.is_plain and all(len(one) <= 1 for one in around.found.values()):
            return self._only(around)
        wiring = self.wiring
        return self.decider.assignments(self.plan, around, wiring.body, wiring.walk)

    def _leave_out_begun_runs(self, found: dict[int, set[Vertex]]) -> None:
        """Take out ends of a run that nothing follows, where the run surely goes on behind them.

        It does with an op that no other node of the pattern can be, and that is not in a loop with
        the end. Where other runs might have that op, and where little was walked, it is left to
        `refusals.goes_on`, which looks at each match.
        """
        runs = [edge for edge in self.decider.edges if edge[2].repeat]
        if len(runs) != 1 or not self.wiring.is_worn:
            return
        _, end, link = runs[0]
        if any(source == end for source, _, _ in self.decider.edges):
            return
        others = set[Vertex]().union(*(one for node, one in found.items() if node != end))
        passes, on = self.candidates[end].passes, Link(input=link.input)
        order, most = self.wiring.order, len(self.wiring.body)

        def goes_on(vertex: Vertex) -> bool:
            assert isinstance(vertex, int)
            return order[vertex] < most and any(
                reader not in others and passes(reader)
                for reader, _ in self.wiring.forward(vertex, on)
            )

        found[end] = {one for one in found[end] if not goes_on(one)}

    def _only(self, around: Neighbourhood) -> list[tuple[Vertex, ...]]:
        """The one assignment where no node has a choice: its links are those that were walked."""
        found = around.found
        if not all(found.values()):
            return []
        assigned = tuple(next(iter(found[number])) for number in range(len(found)))
        ops = self.decider.op_count
        is_one = len(set(assigned[:ops])) == ops
        return [assigned] if is_one and self.decider.has_own_links(assigned, around.links) else []
