"""The rules that mend what blocks, each tried on the result of those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphpatch.analysis.doctor.diagnosis import Diagnosis
from graphpatch.analysis.doctor.look import Finding, Rule, rule_for
from graphpatch.analysis.doctor.survey import survey
from graphpatch.apply import apply
from graphpatch.errors import MatchError, PatchError, RulesError
from graphpatch.formats import Model

# Findings that raise though they may stand beside the way: there the gradient can be stopped.
RAISING = frozenset({"missing", "prevent", "key", "custom_gradient"})


@dataclass(frozen=True, slots=True)
class Fixed:
    """The rules, the model with them, and the pairs whose verdict they change."""

    rules: list[Rule]
    model: Model
    mended: list[Diagnosis] = field(default_factory=list)
    left: list[Diagnosis] = field(default_factory=list)


def fix(
    model: Model,
    sources: Sequence[str],
    targets: Sequence[str],
    control_flow_v2: bool = True,
) -> Fixed:
    """Find rules until every pair flows, or nothing more can be mended.

    A rule is kept where it can be applied. What lies behind a blocker shows only when that one is
    mended, so the model is asked again after each.
    """
    rules: list[Rule] = []
    before = _pairs(model, sources, targets, control_flow_v2)
    now, current = before, model
    tried: set[tuple[str, str]] = set()
    while True:
        taken = _first(current, now, tried)
        if taken is None:
            break
        rule, current = taken
        rules.append(rule)
        now = _pairs(current, sources, targets, control_flow_v2)
    sick = [place for place, one in enumerate(before) if _is_sick(one)]
    mended = [now[place] for place in sick if not _is_sick(now[place])]
    return Fixed(rules, current, mended, [now[place] for place in sick if _is_sick(now[place])])


def _pairs(
    model: Model, sources: Sequence[str], targets: Sequence[str], control_flow_v2: bool
) -> list[Diagnosis]:
    seen = survey(model, sources, targets, control_flow_v2)
    return [one for graph in seen for one in graph.diagnoses]


def _is_sick(one: Diagnosis) -> bool:
    return one.connected and (one.verdict, one.tape) != ("flows", "flows")


def _first(
    model: Model, pairs: Sequence[Diagnosis], tried: set[tuple[str, str]]
) -> tuple[Rule, Model] | None:
    """The first rule that can be applied to what blocks a pair, and the model with it."""
    for pair in pairs:
        if not _is_sick(pair):
            continue
        for finding in _mendable(pair):
            place = (finding.node.body.label, finding.node.name)
            if place in tried:
                continue
            tried.add(place)
            for rule in _rules(finding, pair):
                done = _applied(rule, model)
                if done is not None:
                    return rule, done
    return None


def _mendable(pair: Diagnosis) -> Iterator[Finding]:
    """The findings, where all that are on the way can be mended; else those that raise."""
    hopeless = [one for one in pair.findings if not one.rules and one.kind not in RAISING]
    yield from (one for one in pair.findings if not hopeless or one.kind in RAISING)


def _rules(finding: Finding, pair: Diagnosis) -> Iterator[Rule]:
    yield from finding.rules
    if finding.kind in RAISING and finding.node.name not in _ops(pair):
        patch = {"stop_gradient": True}
        yield rule_for(finding.node, "counts as a constant", patch)


def _ops(pair: Diagnosis) -> set[str]:
    return {tensor.rpartition(":")[0] for tensor in pair.way}


def _applied(rule: Rule, model: Model) -> Model | None:
    try:
        return apply([rule], model).model
    except (PatchError, MatchError, RulesError):
        return None
