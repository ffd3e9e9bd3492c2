"""A model's gradient split in two graphs or more, which separate processes can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphpatch.analysis.cuts import ordered_cuts
from graphpatch.analysis.split_parts import BackwardGraph, Split
from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.arguments import tensor_name, tensor_names
from graphpatch.errors import CutError
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.functions import StaticShape
from graphpatch.graph.graph import Progress
from graphpatch.runtime.graph_run import require_tensorflow
from graphpatch.runtime.imported import exported_graph, imported_graph
from graphpatch.runtime.parts import Parts, add_parts, cuts_in_order
from graphpatch.runtime.register import register_gradients
from graphpatch.runtime.tf_gradients import op_types_in, warn_of_newer


def split(
    model: ModelLike,
    loss: str,
    cut: str | Sequence[str | Sequence[str]],
    wrt: str | Sequence[str],
    progress: Progress | None = None,
    allow_unsafe_ops: bool = False,
) -> Split:
    """Split the gradient of a loss into graphs that separate processes can run.

    Forward and backward, the parts run one after the other give what the whole gives. What the
    cuts are is decided before TensorFlow is imported.

    Args:
        model: What `load` takes, with one graph.
        loss: The floating tensor that is differentiated; of one that is no scalar the sum counts.
        cut: A tensor, a list of tensors that are a cut together, or a list of such lists: several
            cuts in a row.
        wrt: A tensor before all cuts, or a list of them.
        progress: Called with what is done, how much of it, and of how much.
        allow_unsafe_ops: Import models, too, whose ops touch files, the network or Python as
            TensorFlow imports them.

    `Split.save` writes the graphs and parts.json, which tells what to feed and to fetch. A
    UserWarning names ops of the gradients that TensorFlow 1.15 does not know, as it knew the model.

    Raises:
        CutError: The tensors are not a cut, no gradient flows, or TensorFlow is missing.
        ModelError: The model cannot be read, TensorFlow does not import it, or it is larger than
            protobuf's 2 GB.
        RulesError: A key in the model is not one that this version of graphpatch knows.
        UnsafeError: TensorFlow would run such ops as it imports the model.
        TypeError: `model` is not a model, or `loss`, `cut` or `wrt` is not a name.

    When not to use it: in one process; `gradient_in_parts` adds the same to a live graph.

    Example:
        >>> graphpatch.split("model.pb", "loss", "features", "x").save("parts")
        >>> sorted(path.name for path in Path("parts").iterdir())
        ['part1.pb', 'part2.pb', 'parts.json']
    """
    ends = tensor_name("loss", loss), cuts_in_order(cut), tensor_names("wrt", wrt)
    loaded = model_from("model", model, progress)
    if len(loaded.graphs) != 1:
        raise CutError(f"{loaded.path} holds {len(loaded.graphs)} graphs; one is split at a time")
    paths, ordered = ordered_cuts(loaded.graphs[0], *ends)
    refuse_unsafe(loaded.graphs[0], allow_unsafe_ops, [])  # what an import may run
    require_tensorflow("a gradient is built by", CutError)
    graph = imported_graph(loaded)
    register_gradients(loaded)
    before = op_types_in(graph.as_graph_def())
    parts = add_parts(graph, paths, ordered)
    warn_of_newer(before, op_types_in(graph.as_graph_def()))
    return Split(_backward_graph(graph, parts), loaded.path)


def _backward_graph(graph: Any, parts: Parts) -> BackwardGraph:
    return BackwardGraph(
        exported_graph(graph),
        parts.loss,
        parts.cuts,
        [{name: dx.name for name, dx in some.items()} for some in parts.at_cuts],
        {name: dx.name for name, dx in parts.at_wrt.items()},
        _Tensors(graph),
    )


class _Tensors(Mapping[str, "tuple[str, StaticShape]"]):
    """Dtype and shape of each tensor of a graph, by its name."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __getitem__(self, name: str) -> tuple[str, StaticShape]:
        tensor = self.graph.get_tensor_by_name(name)
        shape = tensor.shape
        return tensor.dtype.base_dtype.name, None if shape.rank is None else shape.as_list()

    def __iter__(self) -> Any:
        return (tensor.name for op in self.graph.get_operations() for tensor in op.outputs)

    def __len__(self) -> int:
        return sum(len(op.outputs) for op in self.graph.get_operations())
