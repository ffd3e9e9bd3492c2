"""Why a gradient with respect to a tensor is what it is: verdict, path, and what blocks it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from graphpatch.analysis.doctor.causes import Finding, OpOnPath, PathStep, finding_of, given_to_slot
from graphpatch.control_flow.stored import stored_contexts
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import CARRIED, TRAINABLE, rule_of
from graphpatch.differentiation.replay import (
    BackwardPass,
    GradientReplay,
    OpGradientFlow,
    Refusal,
    called_bodies,
)
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.formats import Model
from graphpatch.formats.saved_model import held_gradients
from graphpatch.graph import provenance
from graphpatch.graph.check import check_graph
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import ENTERS, EXITS, MERGES
from graphpatch.opdefs import HANDLES
from graphpatch.shown import Document

# What it costs to go back through an op: nothing, a rule, what no rule fixes, or that no values
# come that way, but a shape or another size. Paths that carry values come first.
FREE, A_RULE, HOPELESS, NO_VALUES = 0, 1, 1_000, 1_000_000
RAISED = 8  # so many visits of an op take as long as what one that raises takes

IN_FUNCTIONS = (
    "SymbolicGradient gives a tensor for each input of a function: zeros where nothing comes back, "
    "or an error in the run where it knows no gradient of an op (--run shows which)"
)
IN_LOOP = (
    "{} lies in a v1 loop: its gradient is made in the loop of gradients, and no Session can fetch "
    "it; take what the loop reads instead (--from)"
)
IN_BRANCH = (
    "{} is read by a v1 loop in a branch: its gradient is what the loop of gradients gives there, "
    "and no Session can fetch it; take what the branch reads instead (--from)"
)
HANDING_ON = ("Identity", "AddN")  # whose gradient, to each input, is the tensor that they get
STALLED = "the start of a v1 loop without its control-flow context, whose Exits freezing pruned"
LOOP_REMEDY = (
    "write the model with its control-flow contexts: graphpatch apply RULES MODEL -o model.meta; "
    'where no rule is needed, RULES has "rules": []'
)


@dataclass(frozen=True, slots=True)
class PairDiagnosis(Document):
    """What `tf.gradients` gives for one pair: `flows`, `zero`, `none` or `error`.

    `tape` is what a GradientTape gives: the functions of an object-based SavedModel are restored,
    and it looks into them; over any other graph (`wrap_function`) it does what tf.gradients does.
    `connected` is whether any tensor leads from the source to the target; `path` are the tensors of
    the path with the fewest obstacles, and `findings` what blocks it, in a Session and on a tape,
    or on a tape alone: a target that is refused, then the path from the target back, then what is
    raised beside it. Where the source carries no gradient, as text, the path is told from the
    source on: its first op ends all, whatever blocks behind it.
    """

    keys = "from=source to=target verdict tape connected says way=path findings"
    source: str
    target: str
    verdict: str
    tape: str
    connected: bool
    says: str = ""
    path: Sequence[str] = ()
    findings: Sequence[Finding] = ()

    @property
    def of_session(self) -> list[Finding]:
        """Return what blocks a Session, and so speaks for the verdict."""
        return [finding for finding in self.findings if not finding.is_of_tape]

    @property
    def lacks_contexts(self) -> bool:
        """Return whether a v1 loop without its context blocks it; a `.meta` has contexts."""
        return any(finding.kind == "loop" for finding in self.findings)


@dataclass(eq=False)
class Reported:
    """What was said of one pair, so that it is not said twice.

    `findings` by their place, functions by the ids of what is raised in them, and the paths through
    functions that were followed, with whether anything blocks there.
    """

    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    functions: set[int] = field(default_factory=set)
    inside: dict[tuple[str, int, int], bool] = field(default_factory=dict)


@dataclass(eq=False)
class Doctor:
    """One graph, asked about pairs of tensors of its main graph."""

    session: GradientReplay
    tape: GradientReplay
    _costs: dict[tuple[str, PathStep], int] = field(default_factory=dict)
    _looked_at: int = 0
    _dependent: tuple[object, Set[int]] = (None, frozenset())

    @property
    def visited(self) -> int:
        """Return how many ops were visited, and how often what is raised, for all pairs."""
        return self.session.visited + self.tape.visited + self._looked_at

    @cached_property
    def main(self) -> Wiring:
        """Return the wiring of the main graph."""
        return self.session.wiring(self.session.graph.main)

    @cached_property
    def _shapes(self) -> Shapes:
        return Shapes(self.main)

    def noting_swap(self, pair: PairDiagnosis, source: Tensor, target: Tensor) -> PairDiagnosis:
        """Return the diagnosis of a pair; where its ends were swapped, it says so."""
        if pair.connected or self._path(self.main, target, source) is None:
            return pair
        are = "are source and target (--from and --to) swapped?"
        return replace(pair, says=f"{pair.source} is computed from {pair.target}: {are}")

    def diagnose(self, source: Tensor, target: Tensor) -> PairDiagnosis:
        """Return why the gradient of `target` with respect to `source` is what it is."""
        graph, wiring = self.session.graph, self.main
        refused = self._refused_target(target)
        in_session = self.session.backward(graph.main, [source], [target])
        on_tape = in_session  # as a tape looks into functions alone
        if graph.functions:
            on_tape = self.tape.backward(graph.main, [source], [target])
        verdict, within = (
            "error" if refused else _verdict_of(back, source) for back in (in_session, on_tape)
        )
        says = in_session.first.says if in_session.first is not None else ""
        says = refused.consequence if refused else says
        raised = list(on_tape.refusals())
        self._looked_at += RAISED * len(raised)
        others = [refusal for refusal in raised if refusal.kind != CARRIED]
        if verdict == "flows" and within != "flows":
            says = others[0].says if others else IN_FUNCTIONS
            verdict = "flows" if others else "zero"
        if verdict in ("flows", "zero"):
            reason = self._why_not_fetched(in_session, source)
            says = reason.format(wiring.spelled(source)) or says
        taped = within if graph.around.is_object_based else verdict
        if len(others) < len(raised) and taped != "none":
            taped = "error"
        names = wiring.spelled(source), wiring.spelled(target)
        steps = self._path(wiring, source, target)
        if steps is None:
            return PairDiagnosis(*names, verdict, taped, False, says)
        reported = Reported()
        if refused:
            reported.findings["target", ""] = refused
        if not verdict == within == taped == "flows":
            for finding in self._all(on_tape, source, steps, reported):
                reported.findings.setdefault(self._place(finding), finding)
        path = list(map(wiring.spelled, (source, *(step.tensor for step in steps))))
        findings = list(reported.findings.values())
        if wiring.dtype(source) not in TRAINABLE:  # no gradient is asked of it, whatever raises
            findings = [f for f in reversed(findings) if f.kind != "tensor_array"]
            findings.sort(key=lambda f: (f.kind != "target", f.slot is None))
        return PairDiagnosis(*names, verdict, taped, True, says, path, findings)

    def _refused_target(self, target: Tensor) -> Finding | None:
        """Return what tf.gradients raises for a target that it makes no ones like, if it does.

        A tensor in a loop cannot be read from outside the loop, not even its shape, where that is
        not known; TensorFlow 2.21 fails in saying so.
        """
        wiring, in_loops = self.main, self.session.stored.in_loops
        dtype, node = wiring.dtype(target), Node(wiring.body, target[0])
        is_inside, reason = node.name in in_loops and node.op not in EXITS, f"is {dtype}"
        if is_inside and not self._shapes.is_known(target):
            says, reason = "TypeError: 'NoneType' object is not iterable", "lies in a v1 loop"
        elif dtype == "string":
            says = "TypeError: Expected string, but got 1 of type 'int'."
        elif dtype in HANDLES:
            says = f"TypeError: `dtype` <dtype: '{dtype}'> is not compatible with 1 of dtype int64."
        elif dtype in {"complex64", "complex128"}:
            says = f"TypeError: Gradients of complex tensors must set grad_ys (y.dtype = {dtype})"
        else:
            return None
        what = f"{wiring.spelled(target)} {reason}: it cannot be the loss"
        return Finding("target", node, None, what, says, "take a real number as the target")

    def _why_not_fetched(self, back: BackwardPass, source: Tensor) -> str:
        """Say why no Session can fetch the gradient of a source; nothing where one can.

        The source is in a v1 loop from which an Exit leads to the target; or a loop in its branch
        alone gives it a gradient: an Exit of the loop of gradients, which is in a branch, too.
        """
        in_loops, heads, index = self.session.stored.in_loops, self.main.body.heads, source[0]
        loop = in_loops.get(heads.names[index])
        if loop is not None and heads.ops[index] in EXITS:  # it is where those are that read it
            readers = (reader for _, reader in self.main.readers(index))
            inside = (reader for reader in readers if heads.ops[reader] not in ENTERS)
            loop = next((in_loops.get(heads.names[reader]) for reader in inside), None)
        if loop is not None and any(heads.names[i] in loop.exits for i in back.visited):
            return IN_LOOP
        output, has_branches = source[1], bool(self.session.stored.in_branches)
        while loop is None and has_branches and index in self.main.in_control_flow:
            readers = (reader for read, reader in self.main.readers(index) if read == output)
            givers = [n for n in readers if n in back.answers and back.answers[n].slots]
            if len(givers) != 1 or heads.ops[givers[0]] not in {*ENTERS, *HANDING_ON}:
                return ""
            if heads.ops[givers[0]] in ENTERS:
                return IN_BRANCH
            index, output = givers[0], 0
        return ""

    def _path(self, wiring: Wiring, source: Tensor, target: Tensor) -> list[PathStep] | None:
        """Return the path from one tensor to another that the fewest ops block, the shortest one.

        Without the source's own op; None where there is no path.
        """
        if self._dependent[0] != (wiring, source):
            self._dependent = (wiring, source), wiring.depending_on([source])
        within = self._dependent[1]
        best: dict[Tensor, tuple[int, int]] = {target: (0, 0)}
        behind: dict[Tensor, tuple[Tensor, PathStep]] = {}
        todo = [(0, 0, target)] if target[0] in within else []
        while todo:
            spent, length, tensor = heapq.heappop(todo)
            if tensor == source:
                steps = []
                while tensor != target:
                    tensor, step = behind[tensor]
                    steps.append(step)
                return steps
            if best[tensor] < (spent, length):
                continue
            for slot, read in enumerate(wiring.inputs(tensor[0])):
                if read[0] in within:
                    step = PathStep(*tensor, slot)
                    total = spent + self._cost(wiring, step, tensor == target), length + 1
                    if read not in best or total < best[read]:
                        best[read], behind[read] = total, (tensor, step)
                        heapq.heappush(todo, (*total, read))
        return None

    def _cost(self, wiring: Wiring, step: PathStep, is_target: bool) -> int:
        place = wiring.body.label, step
        if place in self._costs and not is_target:
            return self._costs[place]
        cost, answer = FREE, self.tape.ask(wiring, step.index)
        if self._blocks(answer, wiring, step, is_target):
            is_size = flow.gives_sizes(Node(wiring.body, step.index), step.slot)
            rules = () if is_size else finding_of(OpOnPath(wiring, step, answer)).rules
            cost = NO_VALUES if is_size else A_RULE if rules else HOPELESS
        if not is_target:
            self._costs[place] = cost
        return cost

    def _blocks(
        self, answer: OpGradientFlow, wiring: Wiring, step: PathStep, is_target: bool
    ) -> bool:
        """Return whether no gradient comes back through an op, from this output to this input."""
        is_carried = is_target or wiring.trainable(step.tensor)
        if answer.raises or not is_carried or step.slot not in answer.slots:
            return True
        if given_to_slot(wiring, step) == "zero":
            return True
        live = answer.nonzero_from.get(step.slot, {step.output})
        # The function that it calls may give zeros there, from this one of its outputs.
        return step.output not in live and bool(called_bodies(Node(wiring.body, step.index)))

    def _all(
        self, back: BackwardPass, source: Tensor, steps: list[PathStep], reported: Reported
    ) -> Iterator[Finding]:
        """Yield what blocks the path, from the target back; then what is raised beside it."""
        yield from self._on_path(back, source, steps, reported)
        yield from map(self._raised_beside, back.refusals(reported.functions))

    def _place(self, finding: Finding) -> tuple[str, str]:
        """Return what findings have in common of which one is told: the op, or the rule."""
        node = finding.node
        if finding.kind == CARRIED:
            return CARRIED, rule_of(node)
        return node.body.label, node.name

    def _on_path(
        self, back: BackwardPass, source: Tensor, steps: list[PathStep], reported: Reported
    ) -> Iterator[Finding]:
        wiring = back.wiring
        answers = [self.tape.ask(wiring, step.index) for step in steps]
        blocks = [
            self._blocks(answer, wiring, step, step == steps[-1])
            for step, answer in zip(steps, answers, strict=True)
        ]
        places = [place for place in reversed(range(len(steps))) if blocks[place]]
        for place in places:
            at_op = OpOnPath(wiring, steps[place], answers[place], steps, place)
            if place < places[0] and provenance.shadow(at_op.node):
                continue  # a rule gave its outputs another gradient: none gets there
            # Of a run of ops without gradients, the first one made it so.
            is_led_into = answers[place].first is None and at_op.read not in TRAINABLE
            if not (place and blocks[place - 1] and is_led_into):
                paths = _paths_inside(at_op)
                for path in paths:
                    yield from self._inside(path, reported)
                if not any(map(reported.inside.get, paths)):
                    yield finding_of(at_op)
        if not places and source not in back.got and not back.raised:
            ops = wiring.body.heads.ops
            stuck = [index for index in {*back.between} - back.visited if ops[index] in MERGES]
            for index in sorted(stuck)[:1]:
                node, says = Node(wiring.body, index), "None: the loop is never visited"
                yield Finding("loop", node, None, STALLED, says, LOOP_REMEDY)

    def _inside(self, path: tuple[str, int, int], reported: Reported) -> Iterator[Finding]:
        """Yield what blocks the path inside a function, from an argument to an output."""
        name, slot, output = path
        body, back = self.tape.graph.functions.get(name), self.tape.inside(name)
        if path in reported.inside or body is None or body.is_ours or back is None:
            return
        if slot >= len(body.arguments):  # a broken call gives more than it takes
            return
        reported.inside[path] = bool(back.raised)
        wiring, source = self.tape.wiring(body), (-1 - slot, 0)
        returned = wiring.returned[output : output + 1]
        steps = self._path(wiring, source, returned[0]) if returned else None
        if not steps:
            yield from map(self._raised_beside, back.refusals(reported.functions))
        for finding in self._all(back, source, steps, reported) if steps else ():
            reported.inside[path] = True
            yield finding

    def _raised_beside(self, refusal: Refusal) -> Finding:
        """Return an op that raises, whether or not it is on the path that was found."""
        if refusal.kind == "loop":
            what = "the end of a v1 loop whose control-flow context is not in the file"
            return Finding("loop", refusal.node, None, what, refusal.says, LOOP_REMEDY)
        return finding_of(OpOnPath.beside(self.tape.wiring(refusal.node.body), refusal))


def doctors(model: Model, control_flow_v2: bool = True) -> list[Doctor]:
    """Return a doctor for the pairs of each graph. Raises ModelError where a graph is broken."""
    asked = []
    for graph in model.graphs:
        check_graph(graph)
        restored = held_gradients(graph)
        stored = stored_contexts(graph)
        session = GradientReplay(graph, stored, control_flow_v2)
        asked.append(Doctor(session, replace(session, tape=True, restored=restored)))
    return asked


def _verdict_of(back: BackwardPass, source: Tensor) -> str:
    if back.raises:
        return "error"
    if source not in back.got:
        return "none"
    return "flows" if source in back.live else "zero"


def _paths_inside(at_op: OpOnPath) -> list[tuple[str, int, int]]:
    """Return the functions that an op calls, each with the argument and the output on the path."""
    node, step = at_op.node, at_op.step
    shift = 1 if node.op in OP_BY_OP and "body" not in node.attr_names else 0
    names = dict.fromkeys(called_bodies(node)) if step.slot >= shift else ()
    return [(name, step.slot - shift, step.output) for name in names]
