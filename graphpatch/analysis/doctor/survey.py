"""A model as `doctor` sees it: which pairs are asked about, what is found, and what fixes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product

from graphpatch.analysis.again import damage, is_intact
from graphpatch.analysis.doctor.causes import REGISTER, Finding, RuleDict, is_fetchable, rule_for
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.notes import Note, notes_on_pairs
from graphpatch.analysis.interface import (
    CANDIDATES,
    default_targets,
    fed_floats,
    refuse_unknown_ends,
)
from graphpatch.application import apply
from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import MatchError, PatchError, RulesError
from graphpatch.formats import Model
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import reached
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.shown import Document

PAIRS_AT_LEAST = 20  # pairs that are looked at, however large the graph is
# Ops, inputs and outputs that are visited for more than these, where nobody named both ends.
MOST_VISITED = 4_000_000
MOST_PAIRS = 50_000  # that are looked at then, though hardly an op is visited for them


@dataclass(frozen=True, slots=True)
class GraphDiagnosis(Document):
    """One graph of a model: its diagnoses, pair by pair, and what else is to be said."""

    keys = "pairs=diagnoses notes"
    graph: ModelGraph
    diagnoses: Sequence[PairDiagnosis]
    notes: list[Note]


def survey(
    model: Model,
    sources: Sequence[str] = (),
    targets: Sequence[str] = (),
    control_flow_v2: bool = True,
    every: bool = True,
) -> list[GraphDiagnosis]:
    """Ask about each pair; without names, about what is fed and outputs that are read by none.

    Without `every`, outputs that cannot be a loss are left out, as long as others can. Of very many
    pairs of which not both ends are named, some are left out, which a note says.
    The rules of findings were tried. Raises ModelError for a name that is not a tensor of a main
    graph, and for a broken graph.
    """
    diagnosed = diagnose_graphs(model, sources, targets, control_flow_v2, every)
    pairs = offered(model, [graph.diagnoses for graph in diagnosed], control_flow_v2)
    diagnosed = [replace(g, diagnoses=some) for g, some in zip(diagnosed, pairs, strict=True)]
    fault = damage(model)
    for graph in diagnosed:
        if fault and not is_intact(graph.graph):
            graph.notes.insert(0, Note("damaged", f"not as its rules left it: {fault}", []))
    return diagnosed


def diagnose_graphs(
    model: Model, sources: Sequence[str], targets: Sequence[str], control_flow_v2: bool, every: bool
) -> list[GraphDiagnosis]:
    """Return what `survey` does, with rules that were not tried."""
    refuse_unknown_ends(model.path, model.graphs, sources, targets)
    return [
        _diagnose_graph(asked, sources, targets, every) for asked in doctors(model, control_flow_v2)
    ]


def _diagnose_graph(
    asked: Doctor, sources: Sequence[str], targets: Sequence[str], every: bool
) -> GraphDiagnosis:
    graph, wiring = asked.session.graph, asked.main
    to, by = wiring.named(targets), wiring.named(sources)
    ends = by or fed_floats(wiring), to or default_targets(graph, wiring, every)
    most = None if by and to else MOST_PAIRS
    diagnosed: dict[tuple[Tensor, Tensor], PairDiagnosis] = {}
    for pair in islice(_source_by_source(*ends), most):
        if most and asked.visited > MOST_VISITED and len(diagnosed) >= PAIRS_AT_LEAST:
            break
        if pair not in diagnosed:
            diagnosed[pair] = asked.diagnose(*pair)
    if len(ends[0]) == len(ends[1]) == 1:
        diagnosed = {pair: asked.noting_swap(d, *pair) for pair, d in diagnosed.items()}
    source_places, target_places = ({t: n for n, t in enumerate(tensors)} for tensors in ends)
    pairs = sorted(diagnosed, key=lambda pair: (target_places[pair[1]], source_places[pair[0]]))
    notes = notes_on_pairs(asked, pairs)
    left_out = len(ends[0]) * len(ends[1]) - len(pairs)
    if left_out:
        says = (
            f"{left_out:,} more pairs were not looked at, as they are many: name ends with --from "
            "and --to"
        )
        known = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        missing = [tensor for n in (0, 1) for tensor in ends[n] if tensor not in known[n]]
        notes.append(Note("left_out", says, list(map(wiring.spelled, missing))))
    return GraphDiagnosis(graph, [diagnosed[pair] for pair in pairs], notes)


def _source_by_source(
    sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs in which each source and each target is once, then all; much of one is alike."""
    most = max(len(sources), len(targets)) if sources and targets else 0
    once = {(sources[n % len(sources)], targets[n % len(targets)]) for n in range(most)}
    return chain(sorted(once), product(sources, targets))


def missing_end(graph: ModelGraph) -> str:
    """Say which end of a pair a graph has none of, and which tensors could be one.

    What leads to nothing but an Assign, such as the first value of a variable, comes last; of
    sources, what reads nothing and is no variable comes first.
    """
    wiring = Wiring(graph.main)
    is_fed, ops = bool(fed_floats(wiring)), wiring.body.heads.ops
    floats = (
        index
        for index in range(len(wiring.body))[:: -1 if is_fed else 1]
        if wiring.dtype((index, 0)) in DIFFERENTIABLE
        and is_fetchable(wiring, (index, 0))
        and (is_fed or ops[index] != "Const")
    )
    unread = (index for index in range(len(ops)) if index not in wiring.uses)
    ends = (index for index in unread if not ops[index].startswith("Assign"))
    used = reached(ends, lambda index: [producer for producer, _ in wiring.inputs(index)])

    def rank(index: int) -> tuple[bool, bool]:
        is_input = not wiring.inputs(index) and ops[index] not in VARIABLES
        return index not in used, not (is_fed or is_input)

    some = [wiring.spelled((index, 0)) for index in sorted(floats, key=rank)[:CANDIDATES]]
    examples = f", for example {', '.join(some)}" if some else ""
    if is_fed:
        return f"every op is read by another one; name the loss with --to{examples}"
    return f"nothing is fed (no placeholder); name a source with --from{examples}"


# Rules are tried before they are offered: applied to the model, whose pairs are asked about again.
MOST_TRIED = 60_000  # ops of all models together that rules are applied to before they are offered
NOT_TRIED = "; not tried, as the model is large: doctor --fix tries it"

Op = tuple[int, str, str]  # graph, body, name
Place = tuple[Op, int | None]  # with the slot that blocks, or None: see Finding


def place_of(graph: int, finding: Finding) -> Place:
    """Return where the op of a finding is, and which of its slots blocks."""
    return (graph, finding.node.body.label, finding.node.name), finding.slot


def applied(model: Model, rules: Sequence[RuleDict]) -> Model | str:
    """Return the model with the rules, or what refuses them."""
    try:
        return apply(rules, model).model
    except (PatchError, MatchError, RulesError) as error:
        return str(error)


Offers = Mapping[Place, tuple[PairDiagnosis, RuleDict]]
"""Slots of ops that block, each with a pair that it blocks, and a rule that may fix it."""


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

    def refusals(self, offers: Offers) -> dict[Place, str]:
        """Apply rules together; they stay if all fix their ops. Else say which don't, and why.

        One rule may be for several ops.
        """
        rules = {rule["name"]: rule for rule in self.rules}
        more = {rule["name"]: rule for _, rule in offers.values() if rule["name"] not in rules}
        patched = applied(self.model, list(more.values())) if more else self.model
        if isinstance(patched, str):
            return dict.fromkeys(offers, patched)
        trial = Trials(patched, self.control_flow_v2, [*self.rules, *more.values()])
        pairs = {(op[0], pair.source, pair.target): pair for (op, _), (pair, _) in offers.items()}
        blocking = {  # each pair is asked once
            ends: {place_of(ends[0], f)[0] for f in trial.diagnose(ends[0], pair).of_session}
            for ends, pair in pairs.items()
        }
        failed = {
            (op, slot): "it blocks all the same"
            for (op, slot), (pair, _) in offers.items()
            if op in blocking[op[0], pair.source, pair.target]
        }
        if not failed:
            self.model, self.rules, self._doctors = trial.model, trial.rules, trial._doctors
        return failed


def _one_by_one(blockers: Mapping[Place, tuple[PairDiagnosis, Sequence[RuleDict]]]) -> list[Offers]:
    return [{place: (pair, rule)} for place, (pair, rules) in blockers.items() for rule in rules]


def offered(
    model: Model, diagnoses: Sequence[Sequence[PairDiagnosis]], control_flow_v2: bool = True
) -> list[list[PairDiagnosis]]:
    """Return the diagnoses of each graph with those rules alone that were tried and mend their op.

    First all together, of each op one; those that do not work so, and further ones of an op, are
    tried one by one: without that of another slot of the op, as an op has one gradient. In a large
    model some are not tried, which their findings say.
    """
    trials, room = Trials(model, control_flow_v2), MOST_TRIED
    blockers: dict[Place, tuple[PairDiagnosis, Sequence[RuleDict]]] = {}
    for graph, pairs in enumerate(diagnoses):
        for pair in pairs:
            for finding in pair.of_session:
                if finding.rules:
                    blockers.setdefault(place_of(graph, finding), (pair, finding.rules))
    working, refused = dict[Place, RuleDict](), dict[Place, str]()
    names = dict[Op, str]()  # of the rule of each op that is tried first
    together = {
        place: (pair, rules[0])
        for place, (pair, rules) in blockers.items()
        if names.setdefault(place[0], rules[0]["name"]) == rules[0]["name"]
    }
    todo: deque[Offers] = deque([together] * (len(together) > 1))
    todo += _one_by_one({p: b for p, b in blockers.items() if not todo or p not in together})
    while todo and room >= model.node_count:
        offers = {place: offer for place, offer in todo.popleft().items() if place not in working}
        room -= model.node_count if offers else 0
        is_again = not {op for op, _ in offers}.isdisjoint(op for op, _ in working)
        asked = Trials(model, control_flow_v2) if is_again else trials
        failed = asked.refusals(offers) if offers else {}
        if not failed:
            working |= {place: rule for place, (_, rule) in offers.items()}
        elif len(offers) == 1:
            refused = {**failed, **refused}
        else:
            rest = {place: offer for place, offer in offers.items() if place not in failed}
            todo += [rest, *_one_by_one({place: blockers[place] for place in failed})]

    def answered(graph: int, finding: Finding) -> Finding:
        place = place_of(graph, finding)
        if not finding.rules or finding.is_of_tape:
            return finding
        if place in working:
            return replace(finding, rules=[working[place]], is_tried=True)
        if place in refused:
            otherwise = REGISTER if finding.kind == "key" else "none"
            remedy = f"{otherwise}: its rule was tried here, and {refused[place]}"
            return replace(finding, rules=[], remedy=remedy, is_tried=True)
        return replace(finding, remedy=f"{finding.remedy}{NOT_TRIED}")

    return [
        [replace(pair, findings=[answered(graph, f) for f in pair.findings]) for pair in pairs]
        for graph, pairs in enumerate(diagnoses)
    ]


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
        return any(pair.lacks_contexts for pair in self.left)


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
    on_path = {tensor.rpartition(":")[0] for tensor in pair.path}
    for finding in findings:
        place = place_of(graph, finding)
        if place not in hopeless:
            rules, node = list(finding.rules), finding.node
            of_gradient = is_in_gradients(node) or node.op.endswith("Grad")
            if finding.kind in RAISING and not of_gradient and node.name not in on_path:
                stop = {"stop_gradient": True}
                rules.append(rule_for(node, "partial: counts as a constant", stop))
            if any(not trials.refusals({place: (pair, rule)}) for rule in rules):
                return True
            hopeless.add(place)
    return False


def _is_blocked(pair: PairDiagnosis) -> bool:
    return pair.connected and (pair.verdict != "flows" or bool(pair.of_session))
