"""Rules are tried before they are offered: applied to the model, whose pairs are asked about again.

One way for `doctor`, `doctor --fix` and the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from graphpatch.analysis.doctor.causes import Finding, RuleDict
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.application import apply
from graphpatch.errors import MatchError, PatchError, RulesError
from graphpatch.formats import Model

MOST_TRIED = 60_000  # ops of all models together that rules are applied to before they are offered
NOT_TRIED = "; not tried, as the model is large: doctor --fix tries it"

Place = tuple[int, str, str]  # graph, body, op


def place_of(graph: int, finding: Finding) -> Place:
    """Return where the op of a finding is."""
    return graph, finding.node.body.label, finding.node.name


def applied(model: Model, rules: Sequence[RuleDict]) -> Model | str:
    """Return the model with the rules, or what refuses them."""
    try:
        return apply(rules, model).model
    except (PatchError, MatchError, RulesError) as error:
        return str(error)


@dataclass(eq=False)
class Trials:
    """A model with the rules that were tried on it and work, each on the result of those before."""

    model: Model
    control_flow_v2: bool
    rules: list[RuleDict] = field(default_factory=list)
    _doctors: list[Doctor] = field(default_factory=list)

    def diagnose(self, graph: int, pair: PairDiagnosis) -> PairDiagnosis:
        """Return what a pair of a graph is like now."""
        if not self._doctors:
            self._doctors = doctors(self.model, self.control_flow_v2)
        asked = self._doctors[graph]
        return asked.diagnose(*map(asked.main.tensor, (pair.source, pair.target)))

    def refusal(self, rule: RuleDict, place: Place, pair: PairDiagnosis) -> str:
        """Say why a rule does not fix the op that blocks a pair; nothing where it does, and stays.

        One rule may be for several ops. Ops of two functions may have one name: a number stands
        behind that of the second rule then.
        """
        names = {known["name"] for known in self.rules}
        numbered = chain([rule["name"]], (f"{rule['name']} ({number})" for number in count(2)))
        if rule not in self.rules:
            rule = {**rule, "name": next(name for name in numbered if name not in names)}
        patched = self.model if rule in self.rules else applied(self.model, [rule])
        if isinstance(patched, str):
            return patched
        trial = Trials(patched, self.control_flow_v2, [*self.rules, rule])
        after = trial.diagnose(place[0], pair)
        if place in {place_of(place[0], finding) for finding in after.of_session}:
            return "it blocks all the same"
        if rule not in self.rules:
            self.model, self.rules, self._doctors = trial.model, trial.rules, trial._doctors
        return ""


def offered(
    model: Model, diagnoses: Sequence[Sequence[PairDiagnosis]], control_flow_v2: bool = True
) -> list[list[PairDiagnosis]]:
    """Return the diagnoses of each graph with those rules alone that were tried and mend their op.

    In a large model some are not tried, which their findings say.
    """
    trials, room = Trials(model, control_flow_v2), MOST_TRIED
    answers: dict[Place, tuple[RuleDict | None, str]] = {}
    for graph, pairs in enumerate(diagnoses):
        for pair in pairs:
            for finding in pair.of_session:
                place, first = place_of(graph, finding), ""
                for rule in finding.rules if place not in answers else ():
                    room -= model.node_count
                    if room < 0:
                        break
                    refusal = trials.refusal(rule, place, pair)
                    first = first or refusal
                    answers[place] = (None, first) if refusal else (rule, "")
                    if not refusal:
                        break

    def answered(graph: int, finding: Finding) -> Finding:
        if not finding.rules or finding.is_of_tape:
            return finding
        rule, refusal = answers.get(place_of(graph, finding), (None, ""))
        if rule is not None:
            return replace(finding, rules=[rule], is_tried=True)
        if refusal:
            remedy = f"none: its rule was tried here, and {refusal}"
            return replace(finding, rules=[], remedy=remedy, is_tried=True)
        return replace(finding, remedy=f"{finding.remedy}{NOT_TRIED}")

    return [
        [replace(pair, findings=[answered(graph, f) for f in pair.findings]) for pair in pairs]
        for graph, pairs in enumerate(diagnoses)
    ]
