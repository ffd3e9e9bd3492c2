"""Why the gradient of one tensor by another is what it is: verdict, path, and what blocks it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from graphpatch.analysis.doctor.causes import (
    Finding,
    OpOnPath,
    finding_of,
    given_to_slot,
    name_tensors,
    with_run,
)
from graphpatch.analysis.doctor.path import (
    A_RULE,
    FREE,
    HOPELESS,
    NO_VALUES,
    PathStep,
    cheapest_path,
    is_blocked,
    ops_depending_on,
    spelled_path,
)
from graphpatch.control_flow.op_types import EXITS, MERGES
from graphpatch.control_flow.stored import StoredContexts, stored_contexts
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import TRAINABLE
from graphpatch.differentiation.gradient_reach import GradientReach, OpGradientFlow, Refusal
from graphpatch.differentiation.override_keys import CARRIED, is_hidden, rule_of
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.dtypes import HANDLES
from graphpatch.formats import Model
from graphpatch.formats.saved_model import HeldGradient, held_gradients
from graphpatch.graph.check import check_graph
from graphpatch.graph.functions import named_by
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS


@dataclass(eq=False)
class ReportedPlaces:
    """What was told of one pair, so that it is not told twice.

    `reaches` are the functions whose refusals were, by their ids; `inside` the paths through
    functions that were followed, as `paths_inside` has them, and whether anything was found.
    """

    places: set[tuple[str, str]] = field(default_factory=set)
    reaches: set[int] = field(default_factory=set)
    inside: dict[tuple[str, int, int], bool] = field(default_factory=dict)

    def is_new(self, place: tuple[str, str]) -> bool:
        """Return whether nothing was told of this place; from now on something was."""
        known = place in self.places
        self.places.add(place)
        return not known


def paths_inside(at_op: OpOnPath) -> list[tuple[str, int, int]]:
    """Return the functions that an op calls, each with the argument and the output on the path."""
    shift = 1 if at_op.op in OP_BY_OP and "body" not in at_op.node.attr_names else 0
    slot, output = at_op.step.slot - shift, at_op.step.output
    return [(name, slot, output) for name in dict.fromkeys(_called_bodies(at_op.node)) if slot >= 0]


def _called_bodies(node: Node) -> list[str]:
    if node.op in node.body.library.signatures:
        return [node.op]
    keys = ("f",) if node.op in CALLS else ("body", "then_branch", "else_branch", "branches")
    return [name for key in keys for name in named_by(node, key)]


def target_refusal(wiring: Wiring, target: Tensor, in_loops: Container[str], shapes: Shapes) -> str:
    """Return what tf.gradients raises for a target that it makes no ones like; or nothing.

    A tensor in a loop cannot be read from outside the loop, not even its shape, where that is not
    known; TensorFlow 2.21 fails in saying so.
    """
    dtype, node = wiring.dtype(target), Node(wiring.body, target[0])
    is_inside = node.name in in_loops and node.op not in EXITS
    if is_inside and not shapes.is_known(target):
        return "TypeError: 'NoneType' object is not iterable"
    if dtype == "string":
        return "TypeError: Expected string, but got 1 of type 'int'."
    if dtype in HANDLES:
        return f"TypeError: `dtype` <dtype: '{dtype}'> is not compatible with 1 of dtype int64."
    if dtype in {"complex64", "complex128"}:
        return f"TypeError: Gradients of complex tensors must set grad_ys (y.dtype = {dtype})"
    return ""


def target_finding(wiring: Wiring, target: Tensor, says: str) -> Finding:
    """Return the finding of such a target, which is its own blocker."""
    dtype = wiring.dtype(target)
    reason = "lies in a v1 loop" if "iterable" in says else f"is {dtype}"
    what = f"{wiring.spelled(target)} {reason}: it cannot be the loss"
    node = Node(wiring.body, target[0])
    return Finding("target", node, None, what, says, "take a real number as the target")


LOOP_REMEDY = (
    "write the model with its control-flow contexts: graphpatch apply RULES MODEL -o model.meta; "
    'where no rule is needed, RULES has "rules": []'
)

IN_FUNCTIONS = (
    "SymbolicGradient gives a tensor for each input of a function: zeros where nothing comes back, "
    "or an error in the run where it knows no gradient of an op (--run shows which)"
)


@dataclass(frozen=True, slots=True)
class PairDiagnosis:
    """What `tf.gradients` gives for one pair: `flows`, `zero`, `none` or `error`.

    `tape` is what a GradientTape gives: the functions of an object-based SavedModel are restored,
    and it looks into them; over any other graph (`wrap_function`) it does what tf.gradients does.
    `connected` is whether any tensor leads from the source to the target; `path` are the tensors of
    the path with the fewest obstacles, and `findings` what blocks it, from the target back: in a
    Session and on a tape, or on a tape alone.
    """

    source: str
    target: str
    verdict: str
    tape: str
    connected: bool
    says: str = ""
    path: Sequence[str] = ()
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def of_session(self) -> list[Finding]:
        """Return what blocks a Session, and so speaks for the verdict."""
        return [finding for finding in self.findings if not finding.is_of_tape]

    def document(self) -> dict[str, Any]:
        """Return the diagnosis as `doctor --json` prints it."""
        return {
            "from": self.source,
            "to": self.target,
            "verdict": self.verdict,
            "tape": self.tape,
            "connected": self.connected,
            "says": self.says,
            "way": list(self.path),
            "findings": [finding.document() for finding in self.findings],
        }


RAISED = 8  # so many visits of an op take as long as what one that raises takes


@dataclass(eq=False)
class Doctor:
    """One graph, asked about pairs of tensors of its main graph."""

    session: GradientReplay
    tape: GradientReplay
    _costs: dict[tuple[str, PathStep], int] = field(default_factory=dict)
    _findings: dict[Refusal, Finding] = field(default_factory=dict)
    _rules: dict[Node, str] = field(default_factory=dict)
    _looked_at: int = 0
    _dependent: tuple[object, set[int]] = field(default_factory=lambda: (None, set()))

    @property
    def visited(self) -> int:
        """How many ops were visited for all pairs together, and what is raised was looked at."""
        return self.session.visited + self.tape.visited + self._looked_at

    def diagnose_all(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[PairDiagnosis]:
        """What each pair is told; those of one source in turn, as much of them is the same."""
        diagnoses = {pair: self.diagnose(*pair) for pair in sorted(pairs)}
        if len(pairs) == 1:
            return [self._or_swapped(*pairs[0], diagnoses[pairs[0]])]
        return [diagnoses[pair] for pair in pairs]

    def _or_swapped(
        self, source: Tensor, target: Tensor, diagnosis: PairDiagnosis
    ) -> PairDiagnosis:
        """Return the diagnosis of the one pair; of ends that were swapped, that they were."""
        wiring = self.session.wiring(self.session.graph.main)
        if diagnosis.connected or self._way(wiring, target, source) is None:
            return diagnosis
        says = (
            f"{diagnosis.source} is computed from {diagnosis.target}: are source and target "
            "(--from and --to) swapped?"
        )
        return replace(diagnosis, says=says)

    def diagnose(self, source: Tensor, target: Tensor) -> PairDiagnosis:
        """Return why the gradient of `target` by `source` is what it is."""
        main = self.session.graph.main
        wiring = self.session.wiring(main)
        ends = wiring.spelled(source), wiring.spelled(target)
        refused = target_refusal(wiring, target, self.session.stored.in_loops, self._shapes)
        in_session = self.session.backward(main, [source], [target])
        on_tape = self.tape.backward(main, [source], [target]) if self._calls else in_session
        verdict = "error" if refused else _verdict_of(in_session, source)
        within = "error" if refused else _verdict_of(on_tape, source)
        says = refused or (in_session.first.says if in_session.first is not None else "")
        raised = list(on_tape.refusals())
        self._looked_at += RAISED * len(raised)
        others = [item for item in raised if item.kind != CARRIED]
        drops = len(others) < len(raised)
        if verdict == "flows" and within != "flows":
            says = others[0].says if others else IN_FUNCTIONS
            verdict = "flows" if others else "zero"
        taped = within if self.session.graph.around.is_object_based else verdict
        if drops and taped != "none":
            taped = "error"
        steps = self._way(wiring, source, target)
        if steps is None:
            return PairDiagnosis(*ends, verdict, taped, False, says)
        is_well = verdict == within == taped == "flows"
        reported = ReportedPlaces()
        findings = [] if is_well else self._all(on_tape, source, steps, reported)
        findings = [item for item in findings if reported.is_new(self._place(item))]
        if refused:
            findings.insert(0, target_finding(wiring, target, refused))
        findings = [name_tensors(item, wiring, source, steps) for item in findings]
        path = spelled_path(wiring, source, steps)
        return PairDiagnosis(*ends, verdict, taped, True, says, path, findings)

    @cached_property
    def _shapes(self) -> Shapes:
        """Return the shapes of the tensors of the main graph, as TensorFlow infers them."""
        return Shapes(self.session.wiring(self.session.graph.main))

    @property
    def _calls(self) -> bool:
        """Return whether a tape looks into functions that a Session does not look into."""
        return bool(self.session.graph.functions)

    def _way(self, wiring: Wiring, source: Tensor, target: Tensor) -> list[PathStep] | None:
        def cost(index: int, output: int, slot: int) -> int:
            step = PathStep(index, output, slot)
            if (index, output) == target:
                return self._cost(wiring, step, is_target=True)
            place = (wiring.body.label, step)
            if place not in self._costs:
                self._costs[place] = self._cost(wiring, step, is_target=False)
            return self._costs[place]

        if self._dependent[0] != (wiring, source):
            self._dependent = (wiring, source), ops_depending_on(wiring, source)
        return cheapest_path(wiring, source, target, cost, self._dependent[1])

    def _cost(self, wiring: Wiring, step: PathStep, is_target: bool) -> int:
        if flow.gives_sizes(Node(wiring.body, step.index), step.slot):
            return NO_VALUES
        answer = self.tape.ask(wiring, step.index)
        if not self._blocks(answer, wiring, step, is_target):
            return FREE
        return A_RULE if finding_of(OpOnPath(wiring, step, answer)).rules else HOPELESS

    def _blocks(
        self, answer: OpGradientFlow, wiring: Wiring, step: PathStep, is_target: bool
    ) -> bool:
        if given_to_slot(wiring, step.index, step.output, step.slot) == "zero":
            return True
        live = answer.reach.get(step.slot, {step.output})
        if step.output not in live and _called_bodies(Node(wiring.body, step.index)):
            return True  # the function gives zeros there, from this one of its outputs
        return answer.raises or is_blocked(answer, wiring, step, is_target)

    def _all(
        self, done: GradientReach, source: Tensor, steps: list[PathStep], reported: ReportedPlaces
    ) -> Iterator[Finding]:
        """Yield what blocks the path, from the target back; then what is raised beside it."""
        yield from self._on_the_way(done, source, steps, reported)
        yield from map(self._raised, done.refusals(reported.reaches))

    def _place(self, finding: Finding) -> tuple[str, str]:
        """Return what findings have in common of which one is told: the op, or the rule."""
        node = finding.node
        if finding.kind != CARRIED:
            return node.body.label, node.name
        if node not in self._rules:
            self._rules[node] = rule_of(node)
        return CARRIED, self._rules[node]

    def _on_the_way(
        self, done: GradientReach, source: Tensor, steps: list[PathStep], reported: ReportedPlaces
    ) -> Iterator[Finding]:
        wiring = done.wiring
        answers = [self.tape.ask(wiring, step.index) for step in steps]
        blocks = [
            self._blocks(answer, wiring, step, step == steps[-1])
            for step, answer in zip(steps, answers, strict=True)
        ]
        places = [place for place in reversed(range(len(steps))) if blocks[place]]
        for place in places:
            at_op = OpOnPath(wiring, steps[place], answers[place])
            if place < places[0] and is_hidden(at_op.node):
                continue  # no gradient gets there, whatever it has
            # Of a run of ops without gradients, the first one made it so.
            if not (place and blocks[place - 1] and _is_led_into(at_op)):
                yield from self._inside(at_op, reported)
                if not any(map(reported.inside.get, paths_inside(at_op))):
                    yield with_run(finding_of(at_op), wiring, steps, place)
        if not places and source not in done.got and not done.raised:
            stuck = [i for i in done.between - done.visited if wiring.body.heads.ops[i] in MERGES]
            yield from (_stalled(Node(wiring.body, index)) for index in sorted(stuck)[:1])

    def _inside(self, at_op: OpOnPath, reported: ReportedPlaces) -> Iterator[Finding]:
        """Yield what blocks the same way inside the functions that an op calls."""
        for name, slot, output in paths_inside(at_op):
            body, done = self.tape.graph.functions.get(name), self.tape.inside(name)
            path = (name, slot, output)
            if path in reported.inside or body is None or body.is_ours or done is None:
                continue
            if slot >= len(body.arguments):  # a broken call gives more than it takes
                continue
            reported.inside[path] = bool(done.raised)
            wiring = self.tape.wiring(body)
            source, returned = (-1 - slot, 0), wiring.returned
            steps = self._way(wiring, source, returned[output]) if output < len(returned) else None
            if not steps:
                yield from map(self._raised, done.refusals(reported.reaches))
                continue
            for finding in self._all(done, source, steps, reported):
                reported.inside[path] = True
                yield finding

    def _raised(self, refusal: Refusal) -> Finding:
        """Return an op that raises, whether or not it is on the path that was found."""
        if refusal not in self._findings:
            wiring, step = self.tape.wiring(refusal.node.body), PathStep(refusal.node.index, 0, 0)
            at_op = OpOnPath(wiring, step, OpGradientFlow(raised=(refusal,)))
            is_loop = refusal.kind == "loop"
            self._findings[refusal] = _loop_finding(refusal) if is_loop else finding_of(at_op)
        return self._findings[refusal]


def doctors(model: Model, control_flow_v2: bool = True) -> list[Doctor]:
    """Whom to ask about the pairs of each graph. Raises ModelError where one is broken."""
    known = zip(
        model.graphs, map(stored_contexts, model.graphs), held_gradients(model.graphs), strict=True
    )
    return [_doctor(graph, stored, restored, control_flow_v2) for graph, stored, restored in known]


def _doctor(
    graph: ModelGraph,
    stored: StoredContexts,
    restored: Mapping[str, HeldGradient],
    control_flow_v2: bool,
) -> Doctor:
    check_graph(graph)
    session = GradientReplay(graph, stored, control_flow_v2)
    return Doctor(
        session, GradientReplay(graph, stored, control_flow_v2, tape=True, restored=restored)
    )


def _verdict_of(done: GradientReach, source: Tensor) -> str:
    if done.raises:
        return "error"
    if source not in done.got:
        return "none"
    return "flows" if source in done.live else "zero"


def _is_led_into(at_op: OpOnPath) -> bool:
    return at_op.refusal is None and at_op.read not in TRAINABLE


def _loop_finding(refusal: Refusal) -> Finding:
    what = "the end of a v1 loop whose control-flow context is not in the file"
    return Finding("loop", refusal.node, None, what, refusal.says, LOOP_REMEDY)


def _stalled(node: Node) -> Finding:
    what = "the start of a v1 loop without its control-flow context, whose Exits freezing pruned"
    return Finding("loop", node, None, what, "None: the loop is never visited", LOOP_REMEDY)
