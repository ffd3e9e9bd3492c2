"""From which tensors to which a page leads: those that are named, or those a user would name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis
from graphpatch.analysis.interface import MOST_OPS_ASKED, default_targets, fed_floats, largest_first
from graphpatch.differentiation import flow
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import reached
from graphpatch.page.lines import BodySide

REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
MOST_PAIRS_ASKED = 12


@dataclass(frozen=True, slots=True)
class GradientEnds:
    """Tensors of the main graph, by name: the gradients of `targets` flow back to `sources`.

    `are_named`: somebody asked about them; else they are what a user would name.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    are_named: bool = True


def ends_of(
    graph: ModelGraph,
    wiring: Wiring,
    sources: Sequence[str],
    targets: Sequence[str],
    marked: Iterable[str] = (),
) -> GradientEnds:
    """Return the ends of a graph; names that it does not have are left out.

    Default: from what is computed of the sources, and may be a loss that no op reads or is a float
    that a signature gives, to what is fed. A graph that is fed nothing is differentiated with
    respect to its variables; those that ops with rules, `marked`, read are sources in any graph,
    as what is frozen is to be seen. Of ends that nobody named, those are left out that are not real
    numbers: where that leaves no target (ArgMax), the real numbers that they were computed of are
    the targets. The first target is the one to which most ops lead, the first source a tensor.
    """
    start = wiring.named(sources)
    if not start:
        at, ops = wiring.body.by_name, wiring.body.heads.ops
        read = (tensor for name in marked if name in at for tensor in wiring.inputs(at[name]))
        variables = [tensor for tensor in read if ops[tensor[0]] in VARIABLES]
        start = list(dict.fromkeys([*_default_sources(graph, wiring), *variables]))
    end = wiring.named(targets)
    if not end:
        led_to = default_targets(graph, wiring, every=False, sources=start)
        end = [tensor for tensor in led_to if wiring.dtype(tensor) in REAL]
        end = end or largest_first(wiring, _real_before(wiring, led_to, start), start) or led_to
    names = tuple(map(wiring.spelled, start)), tuple(map(wiring.spelled, end))
    return GradientEnds(*names, bool(sources or targets))


def _default_sources(graph: ModelGraph, wiring: Wiring) -> list[Tensor]:
    """Return what is fed: real numbers, where a target is computed of them, else what is not text.

    In a model of which the inputs are words, the rate of dropout is not what is asked about.
    """
    fed, targets = fed_floats(wiring), default_targets(graph, wiring, every=False)
    real = [tensor for tensor in fed if wiring.dtype(tensor) in REAL]
    numbers = [tensor for tensor in fed if wiring.dtype(tensor) != "string"]
    for sources in (real if fed[:1] == real[:1] else [], numbers):
        depending = wiring.depending_on(sources)
        if any(index in depending for index, _ in targets):
            return sources
    variables = [(index, 0) for op in VARIABLES for index in wiring.body.by_type.get(op, ())]
    return real or numbers or fed or variables


def _real_before(
    wiring: Wiring, targets: Sequence[Tensor], sources: Sequence[Tensor]
) -> list[Tensor]:
    """Return the nearest real numbers that targets are computed of: the scores before an ArgMax."""
    depending = wiring.depending_on(sources) or set(range(len(wiring.body)))
    inside = depending.difference(index for index, _ in sources)

    def read_by(tensor: Tensor) -> list[Tensor]:
        is_shape_alone = flow.reads_shape_alone(wiring.body.heads.ops[tensor[0]])
        if wiring.dtype(tensor) in REAL or is_shape_alone:
            return []
        return [read for read in wiring.inputs(tensor[0]) if read[0] in inside]

    return [tensor for tensor in reached(targets, read_by) if wiring.dtype(tensor) in REAL]


def pairs(doctor: Doctor, main: BodySide, ends: GradientEnds) -> tuple[list[PairDiagnosis], int]:
    """Ask doctor about each pair of ends; and count the pairs that it was not asked about.

    Of many pairs the first are asked about, fewer in a large graph; of ends that nobody named those
    that are connected, if any are. A pair that flows in a graph whose functions are all of rules,
    and without loops, is known from `main`, the lines between all ends: a tape raises where a rule
    stored a gradient as a function.
    """
    wiring, back, session = main.wiring, main.back, doctor.session
    most = max(1, min(MOST_PAIRS_ASKED, MOST_OPS_ASKED // (len(wiring.body) + 1)))
    sources, targets = wiring.named(ends.sources), wiring.named(ends.targets)
    every = [(source, target) for target in targets for source in sources]
    if not ends.are_named and len(every) > 1:
        counted = sources[: max(1, MOST_OPS_ASKED // (len(main.line_of) + 1))]
        behind = dict[Tensor, set[int]]()  # the ops that depend on a source
        for index, number in counted:
            readers = (reader for output, reader in wiring.readers(index) if output == number)
            behind[index, number] = wiring.depending_on((reader, 0) for reader in readers)
        connected = [
            (source, target)
            for source, target in every
            if source not in behind or target[0] in behind[source]
        ]
        every = connected or every
    is_plain = len(targets) == 1 and not session.stored.in_loops and not back.raised
    is_plain = is_plain and all(body.is_ours for body in session.graph.functions.values())
    types = {wiring.body.heads.ops[index] for index in back.between if index >= 0}
    taped = "flows" if types.isdisjoint(wiring.body.library.gradients) else "error"
    diagnoses = []
    for source, target in every[:most]:
        if is_plain and source in back.live and wiring.dtype(target) in REAL:
            names = wiring.spelled(source), wiring.spelled(target)
            diagnoses.append(PairDiagnosis(*names, "flows", taped, connected=True))
        else:
            diagnoses.append(doctor.diagnose(source, target))
    return diagnoses, max(0, len(every) - most)
