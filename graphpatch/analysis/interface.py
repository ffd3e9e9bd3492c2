"""A model's inputs, outputs and variables: with what `ops` and the page begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.differentiation.shapes import Shapes, sizes_in_words
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats.model import meta_around
from graphpatch.graph.check import check_graph
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import (
    ALL_SWITCHES,
    ENTERS,
    EXITS,
    FED,
    OPTIONAL_PLACEHOLDER,
    PARSERS,
    PIPELINES,
    VARIABLES,
)
from graphpatch.graph.walk import outputs_there, reached, tensor_named
from graphpatch.match.misses import nearest_tensors
from graphpatch.opdefs import DIFFERENTIABLE, NO_NUMBERS
from graphpatch.shown import Document, one_line, plural, short

CANDIDATES = 5  # tensors that are named as what could be an end
MOST_OPS_ASKED = 400_000  # ops that are looked at for pairs of ends, all together
MOST_INFERRED = 10_000  # ops of a graph whose outputs' shapes are inferred

# Ends of branches and stacks of loops, and what writes to variables.
NO_LOSS = ALL_SWITCHES | ENTERS | {"StackPush", "StackPushV2", "VarIsInitializedOp"}
UPDATES = ("Apply", "Assign", "Resource", "Scatter", "SparseApply")
NO_FLOATS = NO_NUMBERS | {"bool"}


class InterfaceTensor(Document, msgspec.Struct, frozen=True):
    """A tensor that is fed, or that the model gives: its name, dtype, shape and signatures.

    `signatures` are those that it belongs to, each with the name that it has there:
    `serving_default: images`.
    """

    keys = "name dtype shape signatures"
    name: str
    dtype: str
    shape: str
    signatures: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return the tensor as a line: `image:0 float32 [?, 8, 8, 1], serving_default: images`."""
        kind = " ".join(filter(None, (self.dtype, self.shape)))
        return ", ".join([f"{self.name} {kind}".rstrip(), *self.signatures])


class Interface(Document, msgspec.Struct, frozen=True):
    """The tensors that a graph is fed and that it gives, and how many variables it has."""

    keys = "inputs outputs variables"
    inputs: list[InterfaceTensor]
    outputs: list[InterfaceTensor]
    variables: int

    @property
    def weights(self) -> str:
        """Return how many variables there are, in words; nothing where there are none."""
        return plural(self.variables, "variable") if self.variables else ""


def interface(graph: ModelGraph, wiring: Wiring) -> Interface:
    """Return what a graph is fed and what it gives.

    Inputs are placeholders, what an input pipeline gives, and what signatures name; outputs are
    what signatures name, else what no op reads and may be a loss or a prediction. Those of
    signatures come first.
    """
    shapes, ops = Shapes(wiring), wiring.body.heads.ops

    def described(defaults: Iterable[Tensor], ends: Mapping[Tensor, list[str]]) -> Iterator[Any]:
        for tensor in dict.fromkeys([*ends, *defaults]):
            # To infer the shape of an output, one goes through all that it is computed of.
            is_asked = ops[tensor[0]] in FED or len(ops) <= MOST_INFERRED
            shape = shapes.of(tensor) if is_asked else None
            yield InterfaceTensor(
                one_line(wiring.spelled(tensor)),
                wiring.dtype(tensor) or "",
                "" if shape is None else sizes_in_words(shape),
                tuple(map(one_line, ends.get(tensor, ()))),
            )

    inputs: dict[Tensor, list[str]] = {}
    outputs: dict[Tensor, list[str]] = {}
    for key, signature in sorted(meta_around(graph).signature_def.items()):
        for infos, ends in ((signature.inputs, inputs), (signature.outputs, outputs)):
            for argument, info in sorted(infos.items()):
                for tensor in wiring.named([info.name]) if info.name else ():
                    ends.setdefault(tensor, []).append(f"{key}: {argument}")
    variables = sum(len(wiring.body.by_type.get(op, ())) for op in VARIABLES)
    fed = fed_floats(wiring)
    numbers = [tensor for tensor in fed if wiring.dtype(tensor) != "string"]
    fed = numbers if numbers or inputs else fed  # texts may be the names of checkpoints
    targets = [] if outputs else default_targets(graph, wiring, every=False)
    return Interface(list(described(fed, inputs)), list(described(targets, outputs)), variables)


def fed_floats(wiring: Wiring) -> list[Tensor]:
    """Return placeholders, and the floats that an input pipeline or a parser of Examples gives.

    Where there is one, placeholders of texts are left out: they name an iterator, or are Examples.
    What carries no gradient comes behind floats; settings, which are numbers alone (a rate of
    dropout, a flag) or have a default, come behind all tensors.
    """
    fed, by_type = FED | PARSERS | PIPELINES, wiring.body.by_type
    tensors = [
        (index, output)
        for op in sorted(fed & by_type.keys(), key=lambda op: (op not in FED, op))
        for index in by_type[op]
        for output in range(1 if op in FED else len(wiring.form(index).outputs))
        if op in FED or wiring.dtype((index, output)) in DIFFERENTIABLE
    ]
    ops, shapes = wiring.body.heads.ops, Shapes(wiring)
    is_read = any(ops[index] not in FED for index, _ in tensors)

    def rank(tensor: Tensor) -> tuple[bool, bool]:
        is_setting = ops[tensor[0]] == OPTIONAL_PLACEHOLDER or shapes.of(tensor) == ()
        return is_setting, wiring.dtype(tensor) not in DIFFERENTIABLE

    fed_tensors = [t for t in tensors if not is_read or wiring.dtype(t) != "string"]
    return sorted(fed_tensors, key=rank)


def refuse_unknown_ends(
    path: str, graphs: Sequence[ModelGraph], sources: Iterable[str], targets: Iterable[str]
) -> None:
    """Raise ModelError for an end that is not a tensor of the main body of any of these graphs.

    Or for a broken graph, where there is such an end.
    """
    mains = [graph.main for graph in graphs]
    for is_source, text in [*((True, name) for name in sources), *((False, n) for n in targets)]:
        if any(tensor_named(main, text) is not None for main in mains):
            continue
        outputs = outputs_there(mains, text)
        words = f": {outputs}"
        if not outputs:
            words = nearest_tensors(text, (name for main in mains for name in main.heads.names))
            words += f"; {ends_there(graphs, is_source)}"
        raise ModelError(f"{path}: no tensor of the main graph is named {text!r}{words}")


def ends_there(graphs: Sequence[ModelGraph], are_inputs: bool) -> str:
    """Say which inputs, or which outputs, these graphs have."""
    ends = list[str]()
    for graph in graphs:
        check_graph(graph)  # a broken one has no ends to name
        wiring = Wiring(graph.main)
        tensors = fed_floats(wiring) if are_inputs else default_targets(graph, wiring, every=False)
        ends += map(wiring.spelled, tensors)
    shown = short(list(map(one_line, dict.fromkeys(ends))), CANDIDATES) or "none"
    return f"{'inputs' if are_inputs else 'outputs'}: {shown}"


def default_targets(
    graph: ModelGraph, wiring: Wiring, every: bool = True, sources: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Return what is computed and no op reads, and the floats that signatures give.

    Unless `every`, the floats that signatures give alone; where there are none, what of the others
    may be a loss. Of both, what is computed of a source (default: all that is fed): the one that is
    computed of most ops first, real numbers before others. Each step is left out where it would
    leave nothing. Placeholders with a default are fed, and no outputs.
    """
    ops, uses = wiring.body.heads.ops, wiring.uses
    ends = (
        index
        for index in range(len(ops))
        if index not in uses and wiring.inputs(index) and ops[index] not in FED
    )
    unread = [(index, output) for index in ends for output in wiring.form(index).dtypes]
    signatures = sorted(meta_around(graph).signature_def.items())
    infos = (info for _, each in signatures for _, info in sorted(each.outputs.items()))
    signed = wiring.named(info.name for info in infos if info.name)
    floats = [tensor for tensor in signed if wiring.dtype(tensor) in DIFFERENTIABLE]
    if every:
        return list(dict.fromkeys([*unread, *floats]))
    losses = list(dict.fromkeys(floats))
    if not losses:
        results = [tensor for tensor in unread if is_result(wiring, tensor)] or unread
        losses = [tensor for tensor in results if wiring.dtype(tensor) not in NO_FLOATS] or results
    return largest_first(wiring, losses, sources or fed_floats(wiring))


def largest_first(
    wiring: Wiring, tensors: Sequence[Tensor], sources: Sequence[Tensor]
) -> list[Tensor]:
    """Return those of the tensors that are computed of a source, or all; of most ops first.

    Ops count that give what carries a gradient: a loss comes before an accuracy.
    """
    if len(tensors) < 2:
        return list(tensors)
    inside = wiring.depending_on(sources) if sources else range(len(wiring.body))
    dependent = [tensor for tensor in tensors if tensor[0] in inside] or list(tensors)
    counted = dependent[: max(1, MOST_OPS_ASKED // (len(inside) + 1))]

    def producers(index: int) -> list[int]:
        tensors = (tensor for tensor in wiring.inputs(index) if tensor[0] in inside)
        return [tensor[0] for tensor in tensors if wiring.dtype(tensor) in DIFFERENTIABLE]

    sizes = {tensor: len(reached([tensor[0]], producers)) for tensor in counted}
    has_no_gradient = {tensor: wiring.dtype(tensor) not in DIFFERENTIABLE for tensor in dependent}
    return sorted(dependent, key=lambda tensor: (has_no_gradient[tensor], -sizes.get(tensor, 0)))


def is_result(wiring: Wiring, tensor: Tensor) -> bool:
    """Return whether a tensor is no update, initialiser, end of a branch, reference or gradient.

    Nor the last state of a v1 loop of which another result is read.
    """
    index, output = tensor
    node = wiring.node(index)
    if node is None or wiring.form(index).outputs[output].is_ref:
        return False
    op = node.op
    if op in NO_LOSS or op.startswith(UPDATES) or is_in_gradients(node):
        return False
    ops, [read, *_] = wiring.body.heads.ops, wiring.inputs(index)
    if op in EXITS and read[0] >= 0 and ops[read[0]] in ALL_SWITCHES:
        conditions = wiring.inputs(read[0])[1:]
        turns = (turn for condition, _ in conditions for _, turn in wiring.readers(condition))
        ends = (end for turn in turns for _, end in wiring.readers(turn))
        return not any(ops[end] in EXITS and wiring.readers(end) for end in ends)
    before = wiring.node(read[0])
    return op != "Identity" or before is None or before.op not in ALL_SWITCHES
