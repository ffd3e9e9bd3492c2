"""Rules are tried before they are offered: applied to the model, whose pairs are asked about again.

One way for `doctor`, `doctor --fix` and the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from graphpatch.analysis.doctor.causes import Finding, RuleDict
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.application import apply
from graphpatch.errors import MatchError, PatchError, RulesError
from graphpatch.formats import Model

MOST_TRIED = 30_000  # ops of all models together that rules are applied to before they are offered
NOT_TRIED = "; not tried, as the model is large: doctor --fix tries it"

Place = tuple[int, str, str]  # graph, body, op


@dataclass(frozen=True, slots=True)
class Offer:
    """An op that blocks a pair of tensors, and the rules that may fix it, the best first."""

    place: Place
    pair: PairDiagnosis
    rules: Sequence[RuleDict]


@dataclass(frozen=True, slots=True)
class Trial:
    """A model with the first rule of each offer, and the offers whose ops block all the same."""

    model: Model
    doctors: list[Doctor]
    failed: list[Offer]


def applied(model: Model, rules: Sequence[RuleDict]) -> Model | str:
    """Return the model with the rules, or what refuses them."""
    try:
        return apply(rules, model).model
    except (PatchError, MatchError, RulesError) as error:
        return str(error)


def try_rules(model: Model, offers: Sequence[Offer], control_flow_v2: bool) -> Trial | str:
    """Apply the first rule of each offer, and ask about its pair again; or say what refuses it."""
    rules: list[RuleDict] = []
    for offer in offers:
        if offer.rules[0] not in rules:  # one rule may be for several ops
            rules.append(offer.rules[0])
    patched = applied(model, named_apart(rules))
    if isinstance(patched, str):
        return patched
    asked = doctors(patched, control_flow_v2)
    blocking: dict[tuple[int, str, str], set[Place]] = {}  # of each pair, asked once
    failed = []
    for offer in offers:
        graph, pair = offer.place[0], offer.pair
        asked_for = graph, pair.source, pair.target
        if asked_for not in blocking:
            wiring = asked[graph].session.wiring(asked[graph].session.graph.main)
            after = asked[graph].diagnose(*map(wiring.tensor, (pair.source, pair.target)))
            blocking[asked_for] = {_place(graph, finding) for finding in after.of_session}
        if offer.place in blocking[asked_for]:
            failed.append(offer)
    return Trial(patched, asked, failed)


def named_apart(rules: Iterable[RuleDict]) -> list[RuleDict]:
    """Return the rules with a number behind names that stand twice: of ops of two functions."""
    apart: dict[str, RuleDict] = {}
    for rule in rules:
        more = (f"{rule['name']} ({number})" for number in count(2))
        name = next(name for name in chain([rule["name"]], more) if name not in apart)
        apart[name] = {**rule, "name": name}
    return list(apart.values())


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
                    place = _place(graph, finding)
                    offers.setdefault(place, Offer(place, pair, finding.rules))
    trials = _Trials(model, control_flow_v2)
    trials.run(list(offers.values()))
    return [
        [
            replace(pair, findings=[trials.answered(graph, finding) for finding in pair.findings])
            for pair in pairs
        ]
        for graph, pairs in enumerate(diagnoses)
    ]


@dataclass(eq=False)
class _Trials:
    """What came of the rules that were tried, by the op that each is for."""

    model: Model
    control_flow_v2: bool
    room: int = field(default_factory=lambda: MOST_TRIED)
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
        trial = try_rules(self.model, tried, self.control_flow_v2)
        reason = trial if isinstance(trial, str) else "it blocks all the same"
        failed = list(offers) if isinstance(trial, str) else trial.failed
        if not isinstance(trial, str):
            places = {offer.place for offer in failed}
            self.working = {offer.place: offer for offer in tried if offer.place not in places}
        if len(offers) == 1 and failed:
            self.refused |= {offer.place: reason for offer in failed}
            failed = [replace(offer, rules=offer.rules[1:]) for offer in failed if offer.rules[1:]]
        half = len(failed) // 2
        for some in (failed[:half], failed[half:]) if failed else ():
            self.run(some)

    def answered(self, graph: int, finding: Finding) -> Finding:
        """Return a finding with the rule that works; without one, why."""
        place = _place(graph, finding)
        if place in self.working:
            return replace(finding, rules=self.working[place].rules[:1], is_tried=True)
        if not finding.rules or finding.is_of_tape:
            return finding
        if place in self.refused:
            remedy = f"none: its rule was tried here, and {self.refused[place]}"
            return replace(finding, rules=[], remedy=remedy, is_tried=True)
        return replace(finding, remedy=f"{finding.remedy}{NOT_TRIED}")


def _place(graph: int, finding: Finding) -> Place:
    return graph, finding.node.body.label, finding.node.name
