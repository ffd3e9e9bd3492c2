"""The one import into TensorFlow: of a model, with what its gradients need, and of parts.

And the way back: a model taken from a live graph, as the message that TensorFlow exports of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import DecodeError, EncodeError

from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import Model
from graphpatch.formats import model as formats_model
from graphpatch.formats.load import model_of as asked_model_of
from graphpatch.formats.load import opened
from graphpatch.formats.model import TOO_LARGE, as_bytes, as_message, is_too_large
from graphpatch.graph.graph import ModelGraph, graph_of
from graphpatch.graph.wire import Piece
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import first_line


def bare_meta(pieces: list[Piece]) -> Any:
    """Return the MetaGraphDef of these bytes: the graph, and the contexts of v1 control flow.

    Savers, signatures and other collections are left out: an import would build what they name.
    Raises ModelError where it is larger than protobuf's 2 GB.
    """
    meta = as_message(tf.compat.v1.MetaGraphDef, pieces)
    for key in set(meta.collection_def) - set(CONTEXTS):
        del meta.collection_def[key]
    for name in ("saver_def", "signature_def", "object_graph_def", "asset_file_def"):
        meta.ClearField(name)
    # It tells how to read variables; TensorFlow refuses some of its own early ones, as "0.12.head".
    meta.meta_info_def.ClearField("tensorflow_version")
    return meta


def imported(meta: Any, clear_devices: bool = False) -> Any:
    """Return a new tf.Graph of a MetaGraphDef.

    Raises ModelError where TensorFlow does not take it, in its words.
    """
    with tf.Graph().as_default() as graph:
        import_here(meta, clear_devices=clear_devices)
    return graph


def imported_graph(model: Model, place: int = 0) -> Any:
    """Return the tf.Graph of a model's graph, with the contexts that the file holds."""
    try:
        return imported(bare_meta(model.meta_graph(model.graphs[place], rebuild=False)))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error


def exported_graph(graph: Any) -> ModelGraph:
    """Return a tf.Graph as graphpatch reads it, without attrs at their defaults.

    TensorFlow 1.15 does not know all of those that later versions write.
    """
    graph_def = graph.as_graph_def()
    meta = tf.compat.v1.train.export_meta_graph(
        graph_def=graph_def, graph=graph, strip_default_attrs=True
    )
    return graph_of(as_bytes(meta.graph_def))


def spliced(
    graph_def: Any, inputs: Mapping[str, Any], asked: Sequence[str], scope: str
) -> list[Any]:
    """Put the ops of a GraphDef into the current graph; return the tensors that are asked for.

    `inputs` has tensors of the current graph that stand for the GraphDef's own, by name.
    """
    tensors = tf.graph_util.import_graph_def(
        graph_def, input_map=dict(inputs), return_elements=list(asked), name=scope
    )
    return list(tensors)


def spliced_function(
    definition: Any, inputs: Sequence[Any], scope: str, producer: int
) -> tuple[list[Any], Sequence[Any]]:
    """Put the ops of a function into the current graph, which has the functions that it calls.

    Returns what the function computes of these tensors, and the NodeDefs of its ops. `producer` is
    the version of TensorFlow's graphs by which it was written.
    """
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    graph_def, flat_names = function_def_to_graph_def(definition)
    graph_def.versions.producer = producer
    for node in graph_def.node:
        node.attr.pop("_class", None)  # it names ops outside
    arguments = (arg.name for arg in definition.signature.input_arg)
    results = [flat_names[definition.ret[arg.name]] for arg in definition.signature.output_arg]
    by_argument = dict(zip(arguments, inputs, strict=True))
    return spliced(graph_def, by_argument, results, scope), graph_def.node


def redirect(readers: Iterable[Any], old: Any, new: Any) -> None:
    """Let ops read another tensor wherever they read this one."""
    for reader in readers:
        for slot, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader._update_input(slot, new)


def rename_calls(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Let NodeDefs call functions by new names."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in [value.func] if value.HasField("func") else value.list.func:
                called.name = names.get(called.name, called.name)


def import_here(meta: Any, path: str = "", **options: Any) -> Any:
    """Import a MetaGraphDef into the current graph; the Saver of its variables, or None.

    `options` are those of `import_meta_graph`. Raises ModelError, in TensorFlow's words, where it
    does not import the model of this path.
    """
    where = f"{path}: " if path else ""
    with refused_as(ModelError, f"{where}TensorFlow does not import it"):
        return tf.compat.v1.train.import_meta_graph(meta, **options)


@contextmanager
def refused_as(kind: type[GraphpatchError], what: str) -> Iterator[None]:
    """Raise this kind of error, in TensorFlow's words, where TensorFlow does not take a graph."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AssertionError, tf.errors.OpError) as error:
        raise kind(f"{what}: {first_line(error)}") from error


def model_of(graph: Any, label: str = "<tf.Graph>") -> Model:
    """Return a live `tf.Graph` or FuncGraph as a model: a copy, without ops that come later.

    It is a MetaGraphDef with the graph's collections, the contexts of v1 loops and branches among
    them; a GraphDef where the graph has none. Values of variables are not in a graph, so they are
    not in the model. Raises ModelError where the graph is larger than protobuf's 2 GB.
    """
    with _limited(label), graph.as_default():  # an eager program has no other way to export
        # Shapes are noted: they tell which constructions are right.
        meta = tf.compat.v1.train.export_meta_graph()
    return opened(as_bytes(meta if meta.collection_def else meta.graph_def), label)


def graph_def_of(graph: Any) -> bytes:
    """Return the serialized GraphDef of a live graph; ModelError where it is larger than 2 GB."""
    with _limited("<tf.Graph>"):
        return bytes(graph.as_graph_def().SerializeToString(deterministic=True))


@contextmanager
def _limited(label: str) -> Iterator[None]:
    """Tell protobuf's limit where it is met."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError, EncodeError, DecodeError) as error:
        # TensorFlow 2.21 cannot parse the message that it made itself.
        if is_too_large(error) or isinstance(error, DecodeError):
            raise ModelError(f"{label}: TensorFlow cannot export it: {TOO_LARGE}") from error
        raise


def tensorflow_class(name: str) -> Any:
    """Return TensorFlow's class of this message, the only one that it takes."""
    return getattr(tf.compat.v1, name)


asked_model_of.is_for(model_of)
formats_model.tensorflow_class.is_for(tensorflow_class)
