"""One side of the page: the ops of a body as lines, what rules added taken into the line it is for.

A patched op is several nodes: its own under another name, a StopGradient, a call. They are one
line, under the name that the op had before; so the lines of a model and of its patched one are the
same, and can stand beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from graphpatch.analysis.doctor.causes import finding_of
from graphpatch.analysis.doctor.finding import Finding, OpOnPath
from graphpatch.analysis.doctor.path import PathStep
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.provenance import name_in_model
from graphpatch.page.body_flow import FULL, NONE, BodyFlow, LaneFlow, OpFlow

ABSENT, CHANGED, BLOCKED = LaneFlow.ABSENT, LaneFlow.CHANGED, LaneFlow.BLOCKED


@dataclass(eq=False, slots=True)
class OpLine:
    """An op: its nodes, the one that has its name first; what comes to it and flows on.

    `reads` has, by the line that is read, what flows back there. `rules` are those at the op.
    """

    key: str
    nodes: list[int]
    arrives: LaneFlow = NONE
    flow: LaneFlow = NONE
    reads: dict[str, LaneFlow] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    finding: Finding | None = None


@dataclass(eq=False)
class BodySide:
    """A body of one model: its lines by key."""

    flowing: BodyFlow
    lines: dict[str, OpLine]
    key_of: dict[int, str]
    rules: dict[str, tuple[str, ...]]

    @property
    def body(self) -> Body:
        """The body."""
        return self.flowing.wiring.body

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of its ops, by index."""
        return self.body.heads.names

    def targets(self) -> list[str]:
        """The lines where it begins."""
        return [self.key(index) for index, _ in self.flowing.targets]

    def sources(self) -> list[str]:
        """The lines where it ends."""
        return [self.key(index) for index, _ in self.flowing.sources]

    def key(self, index: int) -> str:
        """The line of an op, by index."""
        if index < 0:
            return self.flowing.wiring.argument_names[-1 - index]
        found = self.key_of.get(index)
        return self.names[index] if found is None else found


def body_side(flowing: BodyFlow, rules: dict[str, tuple[str, ...]]) -> BodySide:
    """The lines of a body; `rules` are those at its ops, by the name that each op had."""
    found = BodySide(flowing, {}, _line_keys(flowing.wiring.body), rules)
    for index, passage in flowing.passages.items():
        key = found.key(index)
        line = found.lines.get(key)
        if line is None:
            line = found.lines[key] = OpLine(key, [])
        line.nodes.append(index)
        line.arrives = max(line.arrives, passage.arrives)
    for line in found.lines.values():
        if len(line.nodes) > 1:
            line.nodes.sort(key=lambda index: _is_head(found.body, index, line.key), reverse=True)
        line.rules = rules.get(line.key, ())
        _follow(found, line)
    return found


def _is_head(body: Body, index: int, key: str) -> bool:
    return index >= 0 and body.heads.names[index] == key.lstrip("+")


def _line_keys(body: Body) -> dict[int, str]:
    """The line of each node that a rule touched: that of the op for which it is there."""
    found = {}
    for node in provenance.touched(body):
        added = provenance.added(node)
        if added is None:
            found[node.index] = name_in_model(node)
        else:
            patched = "" if added.clone_of else added.patched
            found[node.index] = patched or f"+{node.name}"
    return found


def _follow(found: BodySide, line: OpLine) -> None:
    """Fill in what flows on from a line to those that it reads."""
    passages = [found.flowing.passages[index] for index in line.nodes]
    raises, reads = False, line.reads
    for passage in passages:
        raises = raises or passage.raises
        for _, producer, flow in passage.edges:
            key = found.key(producer)
            if key != line.key and flow > reads.get(key, ABSENT):
                reads[key] = flow
    best = max(reads.values(), default=line.arrives)
    if raises:
        line.flow = LaneFlow.ERROR
    elif line.arrives > NONE and best == NONE:
        line.flow = BLOCKED
    else:
        line.flow = min(best, line.arrives) if best < BLOCKED else best
    if raises or best < line.arrives:
        line.finding = _finding_at(found, line, passages)


def _finding_at(found: BodySide, line: OpLine, passages: list[OpFlow]) -> Finding | None:
    """Doctor's words for an op at which the gradient ends."""
    wiring, answers = found.flowing.wiring, found.flowing.answers
    for index, passage in zip(line.nodes, passages, strict=True):
        outside = [slot for slot, read, _ in passage.edges if found.key(read) != line.key]
        if index >= 0 and outside and (passage.arrives > LaneFlow.NONE or passage.raises):
            step = PathStep(index, 0, outside[0])
            return finding_of(OpOnPath(wiring, step, answers.ask(wiring, index)))
    return None


def mark_changed(found: BodySide, order: list[str]) -> None:
    """Tell what flows after a rule from what flows before it; `order` is that of the lines.

    What passes an op that a rule is at is changed, and so is all that it is made of further on.
    """
    changed: set[str] = set()
    for key in order if found.rules else ():
        line = found.lines.get(key)
        if line is None:
            continue
        if FULL <= line.flow <= CHANGED and (key in changed or line.rules):
            line.flow = CHANGED
            for read, flow in line.reads.items():
                if flow == FULL:
                    line.reads[read] = CHANGED
                    changed.add(read)


def head(found: BodySide, line: OpLine) -> Node | None:
    """The node that a line is about: that of the op itself, where rules moved it aside too."""
    if len(line.nodes) == 1:
        index = line.nodes[0]
        return Node(found.body, index) if index >= 0 else None
    nodes = [Node(found.body, index) for index in line.nodes if index >= 0]
    own = [node for node in nodes if not provenance.is_added(node)]
    return next(iter(own or nodes), None)
