"""A model as `doctor` sees it: which pairs of tensors are asked about, and all that is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product

from graphpatch.analysis.again import damage, is_intact
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.notes import Note, notes_on_pairs
from graphpatch.analysis.doctor.trial import offered
from graphpatch.analysis.document import Document
from graphpatch.analysis.interface import (
    CANDIDATES,
    default_targets,
    fed_floats,
    refuse_unknown_ends,
)
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.formats import Model
from graphpatch.graph.graph import ModelGraph

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
    model: Model,
    sources: Sequence[str],
    targets: Sequence[str],
    control_flow_v2: bool,
    every: bool,
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
    """Say which end of a pair a graph has none of, and which tensors could be one."""
    wiring = Wiring(graph.main)
    if fed_floats(wiring):
        return f"every op is read by another one; name the loss with --to{_some_floats(wiring, -1)}"
    return f"nothing is fed (no placeholder); name a source with --from{_some_floats(wiring, 1)}"


def _some_floats(wiring: Wiring, order: int) -> str:
    names = wiring.body.heads.names
    floats = (
        f"{names[index]}:0"
        for index in range(len(names))[::order]
        if wiring.dtype((index, 0)) in DIFFERENTIABLE
        and (order < 0 or wiring.body.heads.ops[index] != "Const")
    )
    some = list(islice(floats, CANDIDATES))
    return f", for example {', '.join(some)}" if some else ""
