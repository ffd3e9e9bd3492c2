"""The lines of a body, one for each op, and what flows back through each.

A patched op is several nodes: its own under another name, a StopGradient, a call. They are one
line, under the name that the op had before; so the lines of a model and of its patched one are the
same, and can stand beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from graphpatch.analysis.doctor.causes import Finding, OpOnPath, PathStep, finding_of
from graphpatch.differentiation.replay import (
    BackwardPass,
    GradientReplay,
    OpGradientFlow,
    ops_on_paths,
)
from graphpatch.differentiation.wiring import Tensor
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.functions import called_by_op
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import EXITS, LOOPS
from graphpatch.graph.walk import reached

# What flows along a lane, or through an op; the greatest counts where several meet. At BLOCKED a
# gradient comes to the op, and goes no further; at ERROR tf.gradients raises.
ABSENT, NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = range(7)
NO_ANSWER = OpGradientFlow()


@dataclass(eq=False)
class BodySide:
    """A body of one model: its lines by number, and what flows between them.

    `visited` are the ops that tf.gradients visits: it raises at no other, wherever `back` comes.
    `rows` numbers the lines of the body by their keys, in all its models; this side adds its own.
    `nodes` are those of each line, the op itself first; `heads` has the one that a line is about,
    also where rules moved it aside; `line_of` is the line of each node, `before` what an op that a
    rule touched was.
    `edges` has the lines that a line reads, each with what flows back there.
    `is_applied`: what the rules say is done; else they mark ops alone. `changing` are the lines
    with rules that changed what flows back, `unchanged` those where they took a variable out of its
    updates alone.
    """

    answers: GradientReplay
    back: BackwardPass
    visited: Set[int]
    sources: Sequence[Tensor]
    targets: Sequence[Tensor]
    rules: Mapping[str, tuple[str, ...]]  # at ops, by the name that each op had
    rows: dict[str, int]
    is_applied: bool
    nodes: dict[int, list[int]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    line_of: dict[int, int] = field(default_factory=dict)
    arrives: dict[int, int] = field(default_factory=dict)
    flow: dict[int, int] = field(default_factory=dict)
    edges: dict[int, dict[int, int]] = field(default_factory=dict)
    findings: dict[int, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Follow the gradient line by line between the two ends.

        Ops are found by tensors of any dtype, as a path may end in one that carries no gradient.
        Without sources, all that the targets are computed from is in view.
        """
        self.wiring, self.body = self.back.wiring, self.back.wiring.body
        self.touched = self.body.touched()
        self.before = {
            index: provenance.in_model(Node(self.body, index))
            for index, record in self.touched.items()
            if not record.is_added
        }
        keys, name = {index: self._key(index) for index in self.touched}, self.wiring.name
        rows, nodes, line_of = self.rows, self.nodes, self.line_of
        for index in self._ops_in_view():
            line_of[index] = row = rows.setdefault(keys.get(index) or name(index), len(rows))
            nodes.setdefault(row, []).append(index)
        names = list(rows)
        for row, of_row in nodes.items():
            self.heads[row] = of_row[0]
            if len(of_row) > 1:
                of_row.sort(key=lambda index: name(index) != names[row])
                moved = (index for index in of_row if index in self.before)
                self.heads[row] = next(moved, of_row[0])
        self._follow(self._raising())
        self._end_at_errors()
        self.rules_by_row = {
            self.rows[op]: rules for op, rules in self.rules.items() if op in self.rows
        }
        patched = {self.line_of[index] for index in self.touched if index in self.line_of}
        applied = self.rules_by_row if self.is_applied else {}
        self.changing = {row: rules for row, rules in applied.items() if row in patched}
        self.unchanged = applied.keys() - patched
        self._mark_changed()

    def _key(self, index: int) -> str:
        """Return the line of a node that a rule touched: that of the op for which it is there."""
        record = self.touched[index]
        if not record.is_added:
            return self.before[index].name
        patched = "" if record.clone_of else record.patched
        return patched or f"+{self.wiring.name(index)}"

    def _ops_in_view(self) -> Iterable[int]:
        """Return the ops that a target depends on, and that depend on a source if there are any."""
        wiring, starts = self.wiring, [index for index, _ in self.targets]
        if self.sources:
            dependent = wiring.depending_on(self.sources)
            if self.body.is_main and dependent == self.back.within:
                return self.back.between  # those that were looked for already
            return ops_on_paths(wiring, dependent, self.targets)
        return reached(starts, lambda index: [read for read, _ in wiring.inputs(index)])

    def _raising(self) -> dict[int, bool]:
        """Return at which ops tf.gradients raises: in any case, or where they let nothing through.

        In any case at ops of v1 loops, and at the ends of those whose contexts are not there.
        """
        here = self.back.refusals_here()
        refusals = [refusal for refusal in here if refusal.node.index in self.visited]
        raising = {refusal.node.index: False for refusal in refusals}
        if any(refusal.kind == "loop" for refusal in refusals):
            stored, ops = self.answers.stored.in_loops, self.body.heads.ops
            exits = (index for index in self.line_of if index >= 0 and ops[index] in EXITS)
            raising |= {index: True for index in exits if self.wiring.name(index) not in stored}
        inside = (refusal for refusal in refusals if refusal.kind == "loop_inside")
        return raising | {refusal.node.index: True for refusal in inside}

    def _follow(self, raising: Mapping[int, bool]) -> None:
        """Fill in what comes to each line and flows on, and doctor's words where it ends there."""
        line_of, answers, got, live = self.line_of, self.back.answers, self.back.got, self.back.live
        wiring, form_of = self.wiring, self.wiring.form
        tensors_of, inputs_of = wiring.tensors, wiring.inputs
        for row, nodes in self.nodes.items():
            arrives, raises = NONE, False
            reads: dict[int, int] = {}
            self.edges[row] = reads
            outside: tuple[int, int] | None = None  # the first node and slot that reads a line
            for index in nodes:
                tensors, comes = tensors_of(index), FULL
                if live.isdisjoint(tensors):
                    comes = NONE if got.isdisjoint(tensors) else ZERO
                if comes > arrives:
                    arrives = comes
                answer: OpGradientFlow | None = None
                for slot, tensor in enumerate(inputs_of(index)):
                    producer = line_of.get(tensor[0])
                    if producer is None:
                        continue
                    if answer is None:
                        answer = answers.get(index) if comes > NONE else NO_ANSWER
                        answer = answer or self._answer(index)
                    if producer == row:
                        continue
                    if outside is None:
                        outside = index, slot
                    flow = NONE
                    is_given = slot in answer.slots and tensor in got
                    if is_given and tensor[1] in form_of(tensor[0]).carrying:
                        flow = comes
                        if slot in answer.nonzero_from:  # from other outputs come zeros alone
                            outputs = ((index, output) for output in answer.nonzero_from[slot])
                            flow = ZERO if live.isdisjoint(outputs) else FULL
                    if flow > reads.get(producer, ABSENT):
                        reads[producer] = flow
                answer = answer or NO_ANSWER
                if index in raising and comes > NONE:
                    raises = raises or raising[index] or not answer.slots
                if answer.raised:
                    raises = raises or (answer.raises and index in self.visited)
            best = max(reads.values()) if reads else arrives
            ends = BLOCKED if arrives > NONE and best == NONE else min(best, arrives)
            self.arrives[row], self.flow[row] = arrives, ERROR if raises else ends
            if outside is not None and outside[0] >= 0 and (raises or best < arrives):
                step = PathStep(outside[0], 0, outside[1])
                op_on_path = OpOnPath(wiring, step, self.answers.ask(wiring, step.index))
                if op_on_path.is_blocked:
                    self.findings[row] = finding_of(op_on_path)

    def _answer(self, index: int) -> OpGradientFlow:
        """Return what an op answers; nothing where TensorFlow does not ask it."""
        answer = self.back.answers.get(index)
        if answer is None and index in self.back.visited:
            with suppress(ModelError):  # its attrs do not tell its inputs
                answer = self.answers.ask(self.wiring, index)
        return answer or NO_ANSWER

    def _end_at_errors(self) -> None:
        """Let nothing flow on from ops at which tf.gradients raises."""
        errors = [row for row, flow in self.flow.items() if flow == ERROR]
        for row in errors:
            self.edges[row] = dict.fromkeys(self.edges[row], NONE)
        if errors:
            coming = reached(self.rows_of(self.targets), lambda row: self.read_by(row, ZERO))
            for row in self.flow.keys() - coming.keys():
                self.arrives[row] = self.flow[row] = NONE
                self.edges[row] = dict.fromkeys(self.edges[row], NONE)

    def _mark_changed(self) -> None:
        """Tell what a rule changed from what is as it was: at its ops, and from there on."""
        todo = [row for row in self.changing if self.flow.get(row) == FULL]
        for row in todo:
            self.flow[row] = CHANGED
            for read in self.read_by(row, FULL):
                if self.edges[row][read] == FULL and self.flow[read] == FULL:
                    todo.append(read)
                self.edges[row][read] = CHANGED

    def read_by(self, row: int, least: int = ABSENT) -> list[int]:
        """Return the lines that a line reads to which this flows back, or more."""
        return [read for read, flow in self.edges.get(row, {}).items() if flow >= least]

    def rows_of(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the lines of those ops of these tensors that are in view."""
        return [self.line_of[index] for index, _ in tensors if index in self.line_of]

    def called(self) -> dict[int, dict[str, None]]:
        """Return the functions that lines call."""
        by_row: dict[int, dict[str, None]] = {}
        for index, names in called_by_op(self.body).items():
            if index in self.line_of:
                by_row.setdefault(self.line_of[index], {}).update(dict.fromkeys(names))
        return by_row


def lines_on_path(
    main: BodySide, functions: Mapping[str, BodySide], source: Tensor, target: Tensor
) -> dict[str, set[int]]:
    """Return the lines on the path of a gradient, and in functions called there, by body.

    Of a function, those on the path from the outputs that are on the path. The source itself is
    left out: a rule there changes what flows on from it.
    """
    on_path: dict[str, set[int]] = {}
    visited = set[tuple[str, frozenset[Tensor]]]()
    todo: list[tuple[BodySide, frozenset[Tensor], Sequence[Tensor]]]
    todo = [(main, frozenset({target}), [source])]
    while todo:
        side, targets, sources = todo.pop()
        if (side.body.label, targets) in visited:
            continue
        visited.add((side.body.label, targets))
        rows = _rows_between(side, targets, sources)
        shown = rows.difference(side.rows_of(sources)) if side is main else rows
        on_path.setdefault(side.body.label, set()).update(shown)
        for row, names in side.called().items() if functions else ():
            for inner in (functions[n] for n in names if n in functions and row in shown):
                returned = _returned_to(side, row, inner, rows, targets)
                todo.append((inner, returned, inner.sources))
    return on_path


def _rows_between(side: BodySide, targets: Iterable[Tensor], sources: Iterable[Tensor]) -> set[int]:
    """Return the lines through which what is not always zero flows from targets to sources."""
    readers: dict[int, list[int]] = {}

    def flows_to(row: int) -> list[int]:
        reads = side.read_by(row, FULL)
        for read in reads:
            readers.setdefault(read, []).append(row)
        return reads

    behind = reached(side.rows_of(targets), flows_to)
    ends = [row for row in side.rows_of(sources) if row in behind]
    return set(reached(ends, lambda row: readers.get(row, ())))


def _returned_to(
    side: BodySide, row: int, inner: BodySide, rows: Set[int], targets: Set[Tensor]
) -> frozenset[Tensor]:
    """Return what a function returns that these lines read; all of it to a loop, which goes on."""
    returned, outputs = inner.wiring.returned, set[int]()
    for index in side.nodes[row]:
        if index >= 0 and side.body.heads.ops[index] in LOOPS:
            return frozenset(returned)
        readers = side.wiring.readers(index)
        outputs |= {output for output, reader in readers if side.line_of.get(reader) in rows}
        outputs |= {output for node, output in targets if node == index}
    return frozenset(returned[output] for output in outputs if output < len(returned))
