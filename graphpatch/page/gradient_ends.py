"""From which tensors to which a page leads: those that are named, or those a user would name."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis
from graphpatch.analysis.doctor.survey import default_targets, fed_floats
from graphpatch.differentiation import flow
from graphpatch.differentiation.gradient_reach import GradientReach
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.topology import tensor_named
from graphpatch.match.nearest import nearest_tensors
from graphpatch.page.body_flow import ops_between

REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
MOST_PAIRS_ASKED = 12
MOST_OPS_ASKED = 400_000  # ops that are looked at for pairs, all together


@dataclass(frozen=True, slots=True)
class GradientEnds:
    """Tensors of the main graph, by name: the gradients of `targets` flow back to `sources`.

    `are_named`: somebody asked about them; else they are what a user would name.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    are_named: bool = True


def ends_of(
    graph: ModelGraph, wiring: Wiring, sources: Sequence[str], targets: Sequence[str]
) -> GradientEnds:
    """The ends of a graph; names that it does not have are left out.

    Default: from what is computed of the sources, and may be a loss that no op reads or is a float
    that a signature gives, to what is fed. A graph that is fed nothing is differentiated by its
    variables. Of ends that nobody named, those are left out that are not real numbers: where that
    leaves no target (ArgMax), the real numbers that they were computed of are the targets. The
    first is the one to which most ops lead.
    """
    to = wiring.named(sources) if sources else _fed_tensors(wiring) or _variable_tensors(wiring)
    back = wiring.named(targets) or _dependent(
        wiring, default_targets(graph, wiring, every=False), to
    )
    names = tuple(map(wiring.spelled, to)), tuple(map(wiring.spelled, back))
    return GradientEnds(*names, bool(sources or targets))


def _fed_tensors(wiring: Wiring) -> list[Tensor]:
    """What is fed: real numbers, else what is not text (names of checkpoints), else all of it."""
    found = fed_floats(wiring)
    real = [tensor for tensor in found if wiring.dtype(tensor) in REAL]
    return real or [tensor for tensor in found if wiring.dtype(tensor) != "string"] or found


def tensors(wiring: Wiring, names: Sequence[str]) -> list[Tensor]:
    """The tensors of these names that there are."""
    return wiring.named(names)


def _dependent(
    wiring: Wiring, targets: Sequence[Tensor], sources: Sequence[Tensor]
) -> list[Tensor]:
    """Of the targets those that are computed of a source; all where none is."""
    found = ops_between(wiring, sources, targets)
    led_to = [tensor for tensor in targets if tensor[0] in found]
    real = [tensor for tensor in led_to if wiring.dtype(tensor) in REAL]
    kept = real or _real_before(wiring, led_to, found, sources) or led_to
    counted = kept[: max(1, MOST_OPS_ASKED // (len(found) + 1))]
    sizes = {tensor: len(_before(wiring, tensor, found)) for tensor in counted if len(kept) > 1}
    return sorted(kept, key=lambda tensor: -sizes.get(tensor, 0)) or list(targets)


def _real_before(
    wiring: Wiring, targets: Sequence[Tensor], inside: Container[int], sources: Sequence[Tensor]
) -> list[Tensor]:
    """The nearest real numbers that targets are computed of: the scores before an ArgMax."""
    found: dict[Tensor, None] = {}
    seen, todo = set(targets), list(targets)
    for index, _ in todo:
        if flow.reads_shape_alone(wiring.body.heads.ops[index]):
            continue
        for tensor in wiring.inputs(index):
            if tensor in seen or tensor[0] not in inside or tensor in sources:
                continue
            seen.add(tensor)
            if wiring.dtype(tensor) in REAL:
                found[tensor] = None
            else:
                todo.append(tensor)
    return list(found)


def _before(wiring: Wiring, target: Tensor, inside: Container[int]) -> set[int]:
    """The ops that a target is computed of, as far as they are inside."""
    found: set[int] = set()
    todo = [target[0]]
    while todo:
        index = todo.pop()
        if index not in found and index in inside:
            found.add(index)
            todo += [producer for producer, _ in wiring.inputs(index)]
    return found


def _variable_tensors(wiring: Wiring) -> list[Tensor]:
    return [(index, 0) for op in VARIABLES for index in wiring.body.by_type.get(op, ())]


def refuse_unknown(models: Sequence[Model], texts: Sequence[str]) -> None:
    """Raise ModelError for a name that is not a tensor of a main graph of any of these models."""
    mains = [graph.main for model in models for graph in model.graphs]
    for text in texts:
        if all(tensor_named(main, text) is None for main in mains):
            legal = [name for main in mains for name in main.heads.names]
            words = nearest_tensors(text, legal)
            raise ModelError(
                f"{models[0].path}: no tensor of the main graph is named {text!r}{words}"
            )


def pairs(
    doctor: Doctor, chosen: GradientEnds, back: GradientReach
) -> tuple[list[PairDiagnosis], int]:
    """What doctor says of each pair of ends, and how many pairs it was not asked about.

    Of many pairs the first are asked about, fewer in a large graph. `back` is the way back of the
    gradients of all targets to all sources.
    """
    wiring = doctor.session.wiring(doctor.session.graph.main)
    most = max(1, min(MOST_PAIRS_ASKED, MOST_OPS_ASKED // (len(wiring.body) + 1)))
    every = list(_connected_pairs(wiring, chosen))
    asked = [(tensors(wiring, [a]), tensors(wiring, [b])) for a, b in every[:most]]
    found = [_diagnosis(doctor, back, a[0], b[0], len(chosen.targets)) for a, b in asked if a and b]
    return found, max(0, len(every) - most)


def _connected_pairs(wiring: Wiring, chosen: GradientEnds) -> Iterator[tuple[str, str]]:
    """The pairs to ask about: of ends that nobody named, those that are connected, if any are."""
    every = [(a, b) for b in chosen.targets for a in chosen.sources]
    if chosen.are_named or len(every) == 1:
        return iter(every)
    ends = tensors(wiring, chosen.sources), tensors(wiring, chosen.targets)
    inside = ops_between(wiring, *ends)
    counted = ends[1][: max(1, MOST_OPS_ASKED // (len(inside) + 1))]
    before = {wiring.spelled(one): _before(wiring, one, inside) for one in counted}
    op = {wiring.spelled(one): one[0] for one in ends[0]}
    return iter([(a, b) for a, b in every if b not in before or op[a] in before[b]] or every)


def _diagnosis(
    doctor: Doctor, back: GradientReach, source: Tensor, target: Tensor, targets: int
) -> PairDiagnosis:
    """What doctor says of a pair; of one that flows, in a graph without functions, `back` tells."""
    wiring = back.wiring
    is_plain = not doctor.session.graph.functions and not doctor.session.stored.in_loops
    flows = source in back.live and not back.told and wiring.dtype(target) in REAL
    if targets == 1 and is_plain and flows:
        names = wiring.spelled(source), wiring.spelled(target)
        return PairDiagnosis(*names, "flows", "flows", connected=True)
    return doctor.diagnose(source, target)
