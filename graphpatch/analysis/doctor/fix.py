"""The rules that fix what blocks, each tried on the result of those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpatch.analysis.doctor.causes import Finding, RuleDict, rule_for
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import diagnose_graphs
from graphpatch.analysis.doctor.trial import Offer, Place, Trials, applied, first_rules, place_of
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
    blocker shows only when that one is fixed, so the model is asked again after each round.
    """
    diagnosed = diagnose_graphs(model, sources, targets, control_flow_v2, every)
    pairs = [
        (graph, pair)
        for graph, surveyed in enumerate(diagnosed)
        for pair in surveyed.diagnoses
        if _is_blocked(pair)
    ]
    trials, places_of = Trials(model, control_flow_v2), [set[Place]() for _ in pairs]
    while True:
        offers: dict[Place, Offer] = {}
        for places, (graph, pair) in zip(places_of, pairs, strict=True):
            for finding in _fixable(pair):
                place, rules = place_of(graph, finding), _rules_to_try(finding, pair)
                places.add(place)
                if rules and place not in trials.working and place not in trials.refused:
                    offers.setdefault(place, Offer(place, pair, rules))
                    break  # it may be all that blocks
        if not offers:
            break
        trials.run(list(offers.values()))
        pairs = _asked_again(trials, pairs)
    helping = [ps for ps, (_, pair) in zip(places_of, pairs, strict=True) if not _is_blocked(pair)]
    needed = set[Place]().union(*helping)
    trials.working = {place: o for place, o in trials.working.items() if place in needed}
    after = [pair for _, pair in _asked_again(trials, pairs)]
    rules = first_rules(trials.working.values())
    flowing = [pair for pair in after if not _is_blocked(pair)]
    return FixResult(rules, _patched(trials), flowing, list(filter(_is_blocked, after)))


def _patched(trials: Trials) -> Model:
    rules = first_rules(trials.working.values())
    patched = applied(trials.model, rules) if rules else trials.model
    assert not isinstance(patched, str), patched  # together they were applied before
    return patched


def _asked_again(
    trials: Trials, pairs: Sequence[tuple[int, PairDiagnosis]]
) -> list[tuple[int, PairDiagnosis]]:
    """Diagnose pairs of the model with the rules that work."""
    asked = doctors(_patched(trials), trials.control_flow_v2)
    return [
        (graph, asked[graph].diagnose(*map(asked[graph].main.tensor, (pair.source, pair.target))))
        for graph, pair in pairs
    ]


def _is_blocked(pair: PairDiagnosis) -> bool:
    return pair.connected and (pair.verdict != "flows" or bool(pair.of_session))


def _fixable(pair: PairDiagnosis) -> list[Finding]:
    """Return the findings, where no other one makes it vain to fix them."""
    blocking = pair.of_session
    # What a run counts as, its one rule mends; the ops inside of it have none of their own.
    is_hopeful = all(finding.rules or finding.kind in RAISING for finding in blocking)
    return blocking if is_hopeful and _is_blocked(pair) else []


def _rules_to_try(finding: Finding, pair: PairDiagnosis) -> list[RuleDict]:
    node, on_path = finding.node, {tensor.rpartition(":")[0] for tensor in pair.path}
    of_gradient = is_in_gradients(node) or node.op.endswith("Grad")
    if finding.kind in RAISING and not of_gradient and node.name not in on_path:
        stop = rule_for(node, "partial: counts as a constant", {"stop_gradient": True})
        return [*finding.rules, stop]
    return list(finding.rules)
