"""The rules that fix what blocks, each tried on the result of those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphpatch.analysis.doctor.causes import Finding, RuleDict, rule_for
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import diagnose_graphs
from graphpatch.analysis.doctor.trial import Offer, Place, Trial, named_apart, try_rules
from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.formats import Model

# Findings that raise though they may stand beside the path: there the gradient can be stopped.
RAISING = frozenset({"missing", "refuses", "prevent", "key"})


@dataclass(frozen=True, slots=True)
class FixResult:
    """The rules, the model with them, and the pairs whose verdict they change."""

    rules: list[RuleDict]
    model: Model
    flowing: list[PairDiagnosis] = field(default_factory=list)
    left: list[PairDiagnosis] = field(default_factory=list)

    @property
    def needs_contexts(self) -> bool:
        """Return whether v1 loops without their contexts block a pair; a `.meta` has them."""
        return any(finding.kind == "loop" for pair in self.left for finding in pair.findings)


def fix(
    model: Model,
    sources: Sequence[str],
    targets: Sequence[str],
    control_flow_v2: bool = True,
    every: bool = True,
) -> FixResult:
    """Find rules until every pair flows, or nothing more can be fixed.

    A rule is kept where it can be applied. What lies behind a blocker shows only when that one is
    fixed, so the model is asked again after each.
    """
    fixing = _Fixing(model, control_flow_v2)
    before = diagnose_graphs(model, sources, targets, control_flow_v2, every)
    blocked = [
        (place, diagnosed.source, diagnosed.target)
        for place, diagnosed_graph in enumerate(before)
        for diagnosed in diagnosed_graph.diagnoses
        if _is_blocked(diagnosed)
    ]
    for pair in blocked:
        fixing.let_flow(*pair)
    after = [fixing.diagnose(*pair) for pair in blocked]
    flowing = [diagnosed for diagnosed in after if not _is_blocked(diagnosed)]
    return FixResult(
        fixing.rules,
        fixing.model,
        flowing,
        [diagnosed for diagnosed in after if _is_blocked(diagnosed)],
    )


@dataclass(eq=False)
class _Fixing:
    """The model as it is with the rules so far, asked anew after each of them."""

    model: Model
    control_flow_v2: bool
    rules: list[RuleDict] = field(default_factory=list)
    hopeless: set[Place] = field(default_factory=set)
    doctors: list[Doctor] = field(default_factory=list)

    def diagnose(self, place: int, source: str, target: str) -> PairDiagnosis:
        """Return what a pair of a graph is like now."""
        if not self.doctors:
            self.doctors = doctors(self.model, self.control_flow_v2)
        asked = self.doctors[place]
        wiring = asked.session.wiring(asked.session.graph.main)
        return asked.diagnose(wiring.tensor(source), wiring.tensor(target))

    def let_flow(self, place: int, source: str, target: str) -> None:
        """Apply rules until the pair flows; where they don't get there, none is kept."""
        before, rules_before = self.model, len(self.rules)
        tried: set[Place] = set()
        while _is_blocked(diagnosis := self.diagnose(place, source, target)):
            if not self._is_one_applied(place, diagnosis, tried):
                if self.model is not before:
                    self.model, self.doctors = before, []
                del self.rules[rules_before:]
                return

    def _is_one_applied(self, graph: int, pair: PairDiagnosis, tried: set[Place]) -> bool:
        """Apply the first rule that mends an op that blocks a pair; return whether there is one."""
        for finding in _fixable(pair):
            place = (graph, finding.node.body.label, finding.node.name)
            if place in tried | self.hopeless:
                continue
            tried.add(place)
            for rule in _rules_to_try(finding, pair):
                offer = Offer(place, pair, [rule])
                trial = try_rules(self.model, [offer], self.control_flow_v2)
                if isinstance(trial, Trial) and not trial.failed:
                    self.model, self.doctors = trial.model, trial.doctors
                    self.rules = named_apart([*self.rules, rule])
                    return True
            self.hopeless.add(place)
        return False


def _is_blocked(diagnosed: PairDiagnosis) -> bool:
    return diagnosed.connected and (diagnosed.verdict != "flows" or bool(diagnosed.of_session))


def _fixable(pair: PairDiagnosis) -> Iterator[Finding]:
    """Yield the findings, where no other one makes it vain to fix them."""
    blocking = pair.of_session
    # What a run counts as, its one rule mends; the ops inside of it have none of their own.
    if all(finding.rules or finding.kind in RAISING for finding in blocking):
        yield from blocking


def _rules_to_try(finding: Finding, pair: PairDiagnosis) -> Iterator[RuleDict]:
    yield from finding.rules
    node = finding.node
    of_gradient = is_in_gradients(node) or node.op.endswith("Grad")
    if finding.kind in RAISING and not of_gradient and node.name not in _ops_on_path(pair):
        yield rule_for(node, "partial: counts as a constant", {"stop_gradient": True})


def _ops_on_path(pair: PairDiagnosis) -> set[str]:
    return {tensor.rpartition(":")[0] for tensor in pair.path}
