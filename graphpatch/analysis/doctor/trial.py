"""Rules are tried before they are offered: applied to the model, whose pairs are asked about again.

One way for `doctor`, `doctor --fix` and the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from graphpatch.analysis.doctor.causes import Finding, RuleDict
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis, doctors
from graphpatch.application import apply
from graphpatch.errors import MatchError, PatchError, RulesError
from graphpatch.formats import Model

MOST_TRIED = 30_000  # ops of all models together that rules are applied to before they are offered
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


@dataclass(frozen=True, slots=True)
class Offer:
    """An op that blocks a pair of tensors, and the rules that may fix it, the best first."""

    place: Place
    pair: PairDiagnosis
    rules: Sequence[RuleDict]


@dataclass(eq=False)
class Trials:
    """Rules that are tried on a model: the offers that work, and what refuses the others.

    `room` is how many ops rules may still be applied to; default: any number.
    """

    model: Model
    control_flow_v2: bool
    room: float = float("inf")
    working: dict[Place, Offer] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)

    def run(self, offers: Sequence[Offer]) -> None:
        """Try the first rules of all together; where some fail, by halves, then the next rule.

        Beside those that work: an op shows that it blocks once no other one blocks before it.
        """
        if not offers or self.room < self.model.node_count:
            return
        self.room -= self.model.node_count
        tried = [*self.working.values(), *offers]
        patched = applied(self.model, first_rules(tried))
        if isinstance(patched, str):
            failed, reason = list(offers), patched
        else:
            failed, reason = self._still_blocking(patched, tried), "it blocks all the same"
            places = {offer.place for offer in failed}
            self.working = {offer.place: offer for offer in tried if offer.place not in places}
        if len(offers) == 1 and failed:
            self.refused |= {offer.place: reason for offer in failed}
            failed = [replace(offer, rules=offer.rules[1:]) for offer in failed if offer.rules[1:]]
        half = len(failed) // 2
        for some in (failed[:half], failed[half:]) if failed else ():
            self.run(some)

    def _still_blocking(self, patched: Model, tried: Sequence[Offer]) -> list[Offer]:
        """Return the offers whose ops block their pairs in the patched model."""
        asked, failed = doctors(patched, self.control_flow_v2), []
        blocking: dict[tuple[int, str, str], set[Place]] = {}  # of each pair, asked once
        for offer in tried:
            graph, source, target = offer.place[0], offer.pair.source, offer.pair.target
            places = blocking.get((graph, source, target))
            if places is None:
                after = asked[graph].diagnose(*map(asked[graph].main.tensor, (source, target)))
                places = {place_of(graph, finding) for finding in after.of_session}
                blocking[graph, source, target] = places
            if offer.place in places:
                failed.append(offer)
        return failed


def first_rules(offers: Iterable[Offer]) -> list[RuleDict]:
    """Return the first rule of each, once where one rule is for several ops, by names of its own.

    Ops of two functions may have one name: a number stands behind that of the second rule then.
    """
    rules: dict[str, RuleDict] = {}
    for offer in offers:
        rule = offer.rules[0]
        numbered = (f"{rule['name']} ({number})" for number in count(2))
        for name in chain([rule["name"]], numbered):
            if rules.setdefault(name, {**rule, "name": name})["match"] == rule["match"]:
                break
    return list(rules.values())


def offered(
    model: Model, diagnoses: Sequence[Sequence[PairDiagnosis]], control_flow_v2: bool = True
) -> list[list[PairDiagnosis]]:
    """Return the diagnoses of each graph with those rules alone that were tried and mend their op.

    In a large model some are not tried, which their findings say.
    """
    offers: dict[Place, Offer] = {}
    for graph, pairs in enumerate(diagnoses):
        for pair in pairs:
            for finding in pair.of_session:
                if finding.rules:
                    place = place_of(graph, finding)
                    offers.setdefault(place, Offer(place, pair, finding.rules))
    trials = Trials(model, control_flow_v2, MOST_TRIED)
    trials.run(list(offers.values()))
    return [
        [
            replace(pair, findings=[_answered(trials, graph, finding) for finding in pair.findings])
            for pair in pairs
        ]
        for graph, pairs in enumerate(diagnoses)
    ]


def _answered(trials: Trials, graph: int, finding: Finding) -> Finding:
    """Return a finding with the rule that works; without one, why."""
    place = place_of(graph, finding)
    if place in trials.working:
        return replace(finding, rules=trials.working[place].rules[:1], is_tried=True)
    if not finding.rules or finding.is_of_tape:
        return finding
    if place in trials.refused:
        remedy = f"none: its rule was tried here, and {trials.refused[place]}"
        return replace(finding, rules=[], remedy=remedy, is_tried=True)
    return replace(finding, remedy=f"{finding.remedy}{NOT_TRIED}")
