"""The lines of a body, one for each op, and what flows back through each.

A patched op is several nodes: its own under another name, a StopGradient, a call. They are one
line, under the name that the op had before; so the lines of a model and of its patched one are the
same, and can stand beside each other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from graphpatch.analysis.doctor.causes import Finding, OpOnPath, PathStep, finding_of
from graphpatch.control_flow.op_types import EXITS
from graphpatch.differentiation.gradient_reach import GradientReach, OpGradientFlow
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.functions import called_functions
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import LOOPS


class Flow(IntEnum):
    """What flows along a lane, or through an op; the greatest counts where several meet."""

    ABSENT = 0
    NONE = 1
    ZERO = 2
    FULL = 3
    CHANGED = 4
    BLOCKED = 5  # a gradient comes to the op, and goes no further
    ERROR = 6  # tf.gradients raises at the op


# Python 3.11 takes ten times as long to find a member by its class; lines are many.
ABSENT, NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = Flow


@dataclass(eq=False, slots=True)
class OpLine:
    """An op: its nodes, the one that has its name first; what comes to it and flows on.

    `reads` has, by the line that is read, what flows back there. `rules` are those at the op.
    """

    key: str
    nodes: list[int]
    arrives: Flow = NONE
    flow: Flow = NONE
    reads: dict[str, Flow] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    finding: Finding | None = None


@dataclass(eq=False)
class BodySide:
    """A body of one model: its lines by key, in the order in which they are found."""

    answers: GradientReplay
    back: GradientReach
    sources: Sequence[Tensor]
    targets: Sequence[Tensor]
    rules: Mapping[str, tuple[str, ...]]  # at ops, by the name that each op had
    is_applied: bool  # what the rules say is done; else they mark ops alone
    lines: dict[str, OpLine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Follow the gradient op by op between the two ends.

        The ops are found by tensors of any dtype, as a path may end in one that carries no
        gradient. Without sources, all that the targets are computed from is in view.
        """
        inside = ops_between(self.wiring, self.sources, self.targets)
        raising = {refusal.node.index for refusal in self.back.refusals_here()}
        in_loops = self._raising_in_loops(inside)
        edges: dict[str, list[tuple[int, int, int, Flow]]] = {}  # node, slot, op read, what flows
        raises: dict[str, bool] = {}
        for index in inside:
            key = self.key(index)
            line = self.lines.get(key)
            if line is None:
                line = self.lines[key] = OpLine(key, [], rules=self.rules.get(key, ()))
                edges[key] = []
            line.nodes.append(index)
            arrives, read, answer = self._passage(index, inside)
            line.arrives = max(line.arrives, arrives)
            edges[key] += read
            if (
                answer.raises
                or (arrives > NONE and not answer.slots and index in raising)
                or (index in in_loops and arrives > NONE)
            ):
                raises[key] = True
        names = self.body.heads.names
        for key, line in self.lines.items():
            if len(line.nodes) > 1:
                own = key.lstrip("+")
                line.nodes.sort(key=lambda index: index >= 0 and names[index] == own, reverse=True)
            self._follow(line, edges[key], raises.get(key, False))
        if self.is_applied:
            self._mark_changed()

    def _raising_in_loops(self, inside: Mapping[int, None]) -> set[int]:
        """Return the ops of v1 loops at which tf.gradients raises: without contexts, their ends."""
        refusals, ops = list(self.back.refusals_here()), self.body.heads.ops
        raising = {refusal.node.index for refusal in refusals if refusal.kind == "loop_inside"}
        if any(refusal.kind == "loop" for refusal in refusals):
            stored, names = self.answers.stored.in_loops, self.body.heads.names
            exits = {index for index in inside if index >= 0 and ops[index] in EXITS}
            raising |= {index for index in exits if names[index] not in stored}
        return raising

    def _passage(
        self, index: int, inside: Mapping[int, None]
    ) -> tuple[Flow, list[tuple[int, int, int, Flow]], OpGradientFlow]:
        """What comes to an op, what flows into each op that it reads, and what it answers."""
        back, wiring = self.back, self.wiring
        tensors = wiring.tensors(index)
        live = {output for _, output in tensors if (index, output) in back.live}
        arrives = FULL if live else ZERO if not back.got.isdisjoint(tensors) else NONE
        reads = [(s, read) for s, read in enumerate(wiring.inputs(index)) if read[0] in inside]
        answer = NO_ANSWER
        if arrives > NONE and reads and index in back.visited:
            with suppress(ModelError):  # its attrs do not tell its inputs
                answer = self.answers.ask(wiring, index)
        edges = []
        for slot, read in reads:
            flows = slot in answer.slots and read in back.got and wiring.trainable(read)
            is_live = flows and not live.isdisjoint(answer.reach.get(slot, live))
            edges.append((index, slot, read[0], FULL if is_live else ZERO if flows else NONE))
        return arrives, edges, answer

    def _follow(
        self, line: OpLine, edges: Sequence[tuple[int, int, int, Flow]], raises: bool
    ) -> None:
        """Fill in what flows on from a line, and doctor's words where the gradient ends there."""
        outside: dict[int, int] = {}  # by node, the first slot that reads another line
        for index, slot, producer, flow in edges:
            key = self.key(producer)
            if key != line.key:
                outside.setdefault(index, slot)
                line.reads[key] = max(flow, line.reads.get(key, ABSENT))
        best = max(line.reads.values(), default=line.arrives)
        if raises:
            line.flow = ERROR
        else:
            line.flow = BLOCKED if line.arrives > NONE and best == NONE else min(best, line.arrives)
        if raises or best < line.arrives:
            blamed = next((n for n in line.nodes if n >= 0 and n in outside), None)
            if blamed is not None:
                step = PathStep(blamed, 0, outside[blamed])
                op_on_path = OpOnPath(self.wiring, step, self.answers.ask(self.wiring, blamed))
                line.finding = finding_of(op_on_path) if op_on_path.is_blocked else None

    def _mark_changed(self) -> None:
        """Tell what a rule changed from what is as it was: at its ops, and from there on."""
        todo = [line for line in self.lines.values() if line.rules and line.flow == FULL]
        while todo:
            line = todo.pop()
            line.flow = CHANGED
            for key, flow in line.reads.items():
                if flow == FULL:
                    line.reads[key] = CHANGED
                    if self.lines[key].flow == FULL:
                        todo.append(self.lines[key])

    def steps_from(self, target: str) -> dict[str, int]:
        """By line, the fewest steps from a target back to it."""
        steps, todo = {target: 0}, [target]
        for key in todo:
            for read in self.lines[key].reads if key in self.lines else ():
                if read not in steps:
                    steps[read] = steps[key] + 1
                    todo.append(read)
        return steps

    @property
    def wiring(self) -> Wiring:
        """Return who gives and who reads each tensor."""
        return self.back.wiring

    @property
    def body(self) -> Body:
        """Return the body."""
        return self.wiring.body

    @cached_property
    def _keys(self) -> dict[int, str]:
        """The line of each node that a rule touched: that of the op for which it is there."""
        keys = {}
        for node in provenance.touched(self.body):
            record = provenance.record(node)
            if record is None or not record.is_added:
                keys[node.index] = provenance.name_in_model(node)
            else:
                patched = "" if record.clone_of else record.patched
                keys[node.index] = patched or f"+{node.name}"
        return keys

    def key(self, index: int) -> str:
        """Return the line of an op, by index."""
        if index < 0:
            return self.wiring.argument_names[-1 - index]
        return self._keys.get(index) or self.body.heads.names[index]

    def head(self, line: OpLine) -> Node | None:
        """Return the node that a line is about: the op itself, where rules moved it aside too."""
        nodes = [Node(self.body, index) for index in line.nodes if index >= 0]
        if len(nodes) > 1:
            nodes = [node for node in nodes if not provenance.is_added(node)] or nodes
        return nodes[0] if nodes else None

    def called(self, line: OpLine) -> Iterable[str]:
        """Return the functions that the ops of a line call."""
        nodes = (Node(self.body, index) for index in line.nodes if index >= 0)
        return (name for node in nodes for name in called_functions(node))


NO_ANSWER = OpGradientFlow()


def ops_between(
    wiring: Wiring, sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> dict[int, None]:
    """The ops that depend on a source and that a target depends on, in the order of discovery."""
    after = set[int]()
    todo = [index for index, _ in sources]
    while todo:
        index = todo.pop()
        if index not in after:
            after.add(index)
            todo += [reader for _, reader, _ in wiring.readers(index)]
    before: dict[int, None] = {}
    todo = [index for index, _ in reversed(targets)]
    while todo:
        index = todo.pop()
        if index not in before and (index in after or not sources):
            before[index] = None
            todo += [producer for producer, _ in reversed(wiring.inputs(index))]
    return before


BodyLine = tuple[str, str]  # a body, and a line of it


def lines_on_path(
    main: BodySide, functions: Mapping[str, BodySide], source: Tensor, target: Tensor
) -> set[BodyLine]:
    """Return the lines on the path of a gradient, and in functions called there.

    Of a function, those on the path from the outputs that are on the path. The source itself is
    left out: a rule there changes what flows on from it.
    """
    on_path = set[BodyLine]()
    visited = set[tuple[str, frozenset[Tensor]]]()
    todo = [(main, frozenset({target}), {main.key(source[0])})]
    while todo:
        side, targets, sources = todo.pop()
        if (side.body.label, targets) in visited:
            continue
        visited.add((side.body.label, targets))
        keys = _between(side, {side.key(index) for index, _ in targets}, sources)
        for key in keys - sources if side is main else keys:
            on_path.add((side.body.label, key))
            line = side.lines[key]
            for name in side.called(line):
                inner = functions.get(name)
                if inner is not None:
                    returned = _returned_to(side, line, inner, keys, targets)
                    todo.append((inner, returned, {inner.key(index) for index, _ in inner.sources}))
    return on_path


def _between(side: BodySide, targets: set[str], sources: set[str]) -> set[str]:
    """Return the lines through which what is not always zero flows from targets to sources."""
    readers: dict[str, list[str]] = {}
    reached, todo = set[str](), list(targets)
    while todo:
        key = todo.pop()
        if key in side.lines and key not in reached:
            reached.add(key)
            for read, flow in side.lines[key].reads.items():
                if flow >= FULL:
                    readers.setdefault(read, []).append(key)
                    todo.append(read)
    between, todo = set[str](), list(sources & reached)
    while todo:
        key = todo.pop()
        if key not in between:
            between.add(key)
            todo += readers.get(key, ())
    return between


def _returned_to(
    side: BodySide, line: OpLine, inner: BodySide, keys: set[str], targets: Container[Tensor]
) -> frozenset[Tensor]:
    """Return what a function returns that these lines read; all of it to a loop, which goes on."""
    returned, outputs = inner.wiring.returned, set[int]()
    for index in line.nodes:
        if index >= 0 and side.body.heads.ops[index] in LOOPS:
            return frozenset(returned)
        outputs |= {o for o, reader, _ in side.wiring.readers(index) if side.key(reader) in keys}
        outputs |= {o for _, o in side.wiring.tensors(index) if (index, o) in targets}
    return frozenset(returned[output] for output in outputs if output < len(returned))
