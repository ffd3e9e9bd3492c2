"""A model's gradient split in two graphs or more, which separate processes can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphpatch.analysis.cuts import ordered_cuts
from graphpatch.analysis.split import Backward, Split
from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.errors import CutError, ModelError
from graphpatch.formats import Model
from graphpatch.formats.model import GRAPH, META
from graphpatch.graph.emit import graph_pieces
from graphpatch.graph.extract import Shape
from graphpatch.graph.graph import Graph, open_graph
from graphpatch.graph.wire import Source, piece_bytes
from graphpatch.runtime.parts import Parts, add_parts
from graphpatch.runtime.register import register_gradients

CONTEXTS = ("while_context", "cond_context")


def split(
    model: Model,
    loss: str,
    cuts: Sequence[Sequence[str]],
    wrt: Sequence[str],
    allow_unsafe_ops: bool = False,
) -> Split:
    """Split the gradient of `loss` at `wrt` into parts that are joined at each of the cuts.

    Forward and backward, the parts run one after the other give what the whole gives. What the
    cuts are is decided before TensorFlow is imported. Raises CutError where they are none, or
    TensorFlow is missing; ModelError where TensorFlow does not take the model; UnsafeError where
    TensorFlow would run ops as it imports the model that touch files, the network or Python.
    """
    if len(model.graphs) != 1:
        raise CutError(f"{model.path} holds {len(model.graphs)} graphs; one is split at a time")
    found, ordered = ordered_cuts(model.graphs[0], loss, cuts, wrt)
    refuse_unsafe(model.graphs[0], allow_unsafe_ops, [])  # what an import may run
    _require_tensorflow()
    graph = _imported(model)
    register_gradients(model)
    parts = add_parts(graph, found, ordered)
    return Split(_backward(graph, parts), model.path)


def _require_tensorflow() -> None:
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise CutError(
            "a gradient is built by TensorFlow, which is not installed here: "
            "pip install 'graphpatch[tensorflow]'"
        ) from error


def _imported(model: Model) -> Any:
    """The model's graph in TensorFlow; with the contexts of v1 loops and branches, if it has."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        try:
            if model.container is GRAPH:
                raw = b"".join(map(piece_bytes, graph_pieces(model.graphs[0])))
                tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(raw), name="")
            else:
                tf.compat.v1.train.import_meta_graph(_meta_graph(model))
        except (ValueError, TypeError, LookupError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(f"{model.path}: TensorFlow does not import it: {reason}") from error
    return graph


def _meta_graph(model: Model) -> Any:
    """The MetaGraphDef with no collections but those that a gradient needs."""
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    raw = b"".join(map(piece_bytes, model.pieces()))
    is_meta = model.container is META
    meta = MetaGraphDef.FromString(raw) if is_meta else SavedModel.FromString(raw).meta_graphs[0]
    for key in set(meta.collection_def) - set(CONTEXTS):
        del meta.collection_def[key]
    for name in ("saver_def", "signature_def", "object_graph_def", "asset_file_def"):
        meta.ClearField(name)
    return meta


def _backward(graph: Any, parts: Parts) -> Backward:
    return Backward(
        _exported(graph),
        parts.loss,
        parts.cuts,
        [{name: dx.name for name, dx in some.items()} for some in parts.at_cuts],
        {name: dx.name for name, dx in parts.at_wrt.items()},
        _Tensors(graph),
    )


class _Tensors(Mapping[str, "tuple[str, Shape]"]):
    """Dtype and shape of each tensor of a graph, by its name."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __getitem__(self, name: str) -> tuple[str, Shape]:
        tensor = self.graph.get_tensor_by_name(name)
        shape = tensor.shape
        return tensor.dtype.base_dtype.name, None if shape.rank is None else shape.as_list()

    def __iter__(self) -> Any:
        return (tensor.name for op in self.graph.get_operations() for tensor in op.outputs)

    def __len__(self) -> int:
        return sum(len(op.outputs) for op in self.graph.get_operations())


def _exported(graph: Any) -> Graph:
    """The graph, without attrs at their defaults: TensorFlow 1.15 does not know all of them."""
    import tensorflow as tf

    with graph.as_default():
        meta = tf.compat.v1.train.export_meta_graph(strip_default_attrs=True)
    data = meta.graph_def.SerializeToString(deterministic=True)
    return open_graph(Source(data), 0, len(data))
