"""Rules are tried before they are offered: applied to the model, whose pairs are asked about again.

One way for `doctor`, `doctor --fix` and the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import NamedTuple

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


class Offer(NamedTuple):
    """An op that blocks a pair of tensors, and a rule that may fix it."""

    place: Place
    pair: PairDiagnosis
    rule: RuleDict


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

    def refusals(self, offers: Sequence[Offer]) -> dict[Place, str]:
        """Apply rules together; they stay if all fix their ops. Else say which don't, and why.

        One rule may be for several ops. Ops of two functions may have one name: a number stands
        behind that of the second rule then.
        """
        rules = {rule["name"]: rule for rule in self.rules}
        for *_, rule in offers:
            numbered = (f"{rule['name']} ({number})" for number in count(2))
            for name in chain([rule["name"]], numbered):
                if rules.setdefault(name, {**rule, "name": name})["match"] == rule["match"]:
                    break
        more = list(rules.values())[len(self.rules) :]
        patched = applied(self.model, more) if more else self.model
        if isinstance(patched, str):
            return dict.fromkeys((offer.place for offer in offers), patched)
        trial = Trials(patched, self.control_flow_v2, list(rules.values()))
        blocking: dict[tuple[int, str, str], set[Place]] = {}  # of each pair, asked once
        for (graph, *_), pair, _ in offers:
            ends = graph, pair.source, pair.target
            if ends not in blocking:
                after = trial.diagnose(graph, pair)
                blocking[ends] = {place_of(graph, finding) for finding in after.of_session}
        failed = {
            place: "it blocks all the same"
            for place, pair, _ in offers
            if place in blocking[place[0], pair.source, pair.target]
        }
        if not failed:
            self.model, self.rules, self._doctors = trial.model, trial.rules, trial._doctors
        return failed


def offered(
    model: Model, diagnoses: Sequence[Sequence[PairDiagnosis]], control_flow_v2: bool = True
) -> list[list[PairDiagnosis]]:
    """Return the diagnoses of each graph with those rules alone that were tried and mend their op.

    First all together; those that do not work so are tried one by one. In a large model some are
    not tried, which their findings say.
    """
    trials, room = Trials(model, control_flow_v2), MOST_TRIED
    offers: dict[Place, list[Offer]] = {}
    for graph, pairs in enumerate(diagnoses):
        for pair in pairs:
            for finding in pair.of_session:
                place = place_of(graph, finding)
                if finding.rules and place not in offers:
                    offers[place] = [Offer(place, pair, rule) for rule in finding.rules]
    working, refused = dict[Place, RuleDict](), dict[Place, str]()
    together, failed = [of_op[0] for of_op in offers.values()], dict[Place, str]()
    for _ in range(2):  # once more without those that fail
        room -= model.node_count
        if together and room >= 0 and not (failed := trials.refusals(together)):
            working |= {offer.place: offer.rule for offer in together}
            break
        together = [offer for offer in together if offer.place not in failed]
    for place, of_op in offers.items():
        for offer in of_op if place not in working else ():
            room -= model.node_count
            if room < 0 or place in working:
                break
            if refusals := trials.refusals([offer]):
                refused.setdefault(place, refusals[place])
            else:
                working[place] = offer.rule

    def answered(graph: int, finding: Finding) -> Finding:
        place = place_of(graph, finding)
        if not finding.rules or finding.is_of_tape:
            return finding
        if place in working:
            return replace(finding, rules=[working[place]], is_tried=True)
        if place in refused:
            remedy = f"none: its rule was tried here, and {refused[place]}"
            return replace(finding, rules=[], remedy=remedy, is_tried=True)
        return replace(finding, remedy=f"{finding.remedy}{NOT_TRIED}")

    return [
        [replace(pair, findings=[answered(graph, f) for f in pair.findings]) for pair in pairs]
        for graph, pairs in enumerate(diagnoses)
    ]
