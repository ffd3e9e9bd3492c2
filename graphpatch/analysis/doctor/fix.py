"""The rules that fix what blocks, each tried on the result of those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graphpatch.analysis.doctor.causes import Finding, RuleDict, rule_for
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import diagnose_graphs
from graphpatch.analysis.doctor.trial import Offer, Place, Trials, place_of
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

    A rule is kept where it can be applied, and where it helps a pair to flow. What lies behind a
    blocker shows only when that one is fixed, so the model is asked again after each.
    """
    diagnosed = diagnose_graphs(model, sources, targets, control_flow_v2, every)
    blocked = [
        (graph, pair)
        for graph, surveyed in enumerate(diagnosed)
        for pair in surveyed.diagnoses
        if _is_blocked(pair)
    ]
    trials, hopeless = Trials(model, control_flow_v2), set[Place]()
    for graph, pair in blocked:
        before, now = replace(trials), trials.diagnose(graph, pair)
        while _is_blocked(now) and _is_one_fixed(trials, graph, now, hopeless):
            now = trials.diagnose(graph, pair)
        if _is_blocked(now):
            trials = before
    after = [trials.diagnose(graph, pair) for graph, pair in blocked]
    flowing = [pair for pair in after if not _is_blocked(pair)]
    return FixResult(trials.rules, trials.model, flowing, list(filter(_is_blocked, after)))


def _is_one_fixed(trials: Trials, graph: int, pair: PairDiagnosis, hopeless: set[Place]) -> bool:
    """Fix the first op that blocks a pair and can be fixed; return whether there is one."""
    findings = pair.of_session
    # What a run counts as, its one rule mends; the ops inside of it have none of their own.
    if not all(finding.rules or finding.kind in RAISING for finding in findings):
        return False
    for finding in findings:
        place = place_of(graph, finding)
        if place not in hopeless:
            rules = _rules_to_try(finding, pair)
            if any(not trials.refusals([Offer(place, pair, rule)]) for rule in rules):
                return True
            hopeless.add(place)
    return False


def _is_blocked(pair: PairDiagnosis) -> bool:
    return pair.connected and (pair.verdict != "flows" or bool(pair.of_session))


def _rules_to_try(finding: Finding, pair: PairDiagnosis) -> list[RuleDict]:
    node, on_path = finding.node, {tensor.rpartition(":")[0] for tensor in pair.path}
    of_gradient = is_in_gradients(node) or node.op.endswith("Grad")
    if finding.kind in RAISING and not of_gradient and node.name not in on_path:
        stop = rule_for(node, "partial: counts as a constant", {"stop_gradient": True})
        return [*finding.rules, stop]
    return list(finding.rules)
