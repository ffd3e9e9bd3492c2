"""The one import into TensorFlow: of a model, with what its gradients need, and of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import Model
from graphpatch.formats.model import as_bytes, as_message
from graphpatch.graph.graph import ModelGraph, graph_of
from graphpatch.graph.wire import Piece
from graphpatch.runtime.graph_run import first_line


def bare_meta(pieces: list[Piece]) -> Any:
    """TensorFlow's MetaGraphDef of these bytes: the graph, and the contexts of v1 control flow.

    Savers, signatures and other collections are left out: an import would build what they name.
    Raises ModelError where it is larger than protobuf's 2 GB.
    """
    import tensorflow as tf

    meta = as_message(tf.compat.v1.MetaGraphDef, pieces)
    for key in set(meta.collection_def) - set(CONTEXTS):
        del meta.collection_def[key]
    for name in ("saver_def", "signature_def", "object_graph_def", "asset_file_def"):
        meta.ClearField(name)
    return meta


def imported(
    meta: Any, clear_devices: bool = False, prepare: Callable[[Any], None] | None = None
) -> Any:
    """Return a new tf.Graph of a MetaGraphDef; `prepare` may change its GraphDef first.

    Raises ModelError where TensorFlow does not take it, in its words.
    """
    import tensorflow as tf

    if prepare is not None:
        prepare(meta.graph_def)
    with tf.Graph().as_default() as graph:
        if meta.collection_def:
            import_here(meta, clear_devices=clear_devices)
        else:
            with _importing():
                tf.graph_util.import_graph_def(meta.graph_def, name="")
    return graph


def imported_graph(model: Model, place: int = 0) -> Any:
    """The tf.Graph of a model's graph, with the control-flow contexts that the file holds."""
    try:
        return imported(bare_meta(model.meta_graph(model.graphs[place], rebuild=False)))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error


def exported_graph(graph: Any) -> ModelGraph:
    """Return a tf.Graph as graphpatch reads it, without attrs at their defaults.

    TensorFlow 1.15 does not know all of those that later versions write.
    """
    import tensorflow as tf

    graph_def = graph.as_graph_def()
    meta = tf.compat.v1.train.export_meta_graph(
        graph_def=graph_def, graph=graph, strip_default_attrs=True
    )
    return graph_of(as_bytes(meta.graph_def))


def spliced(
    graph_def: Any, inputs: Mapping[str, Any], asked: Sequence[str], scope: str
) -> list[Any]:
    """Put the ops of a TensorFlow GraphDef into the current graph; the tensors asked for.

    `given` has tensors of the current graph in the place of the GraphDef's own, by name.
    """
    import tensorflow as tf

    tensors = tf.graph_util.import_graph_def(
        graph_def, input_map=dict(inputs), return_elements=list(asked), name=scope
    )
    return list(tensors)


def import_here(meta: Any, path: str = "", **options: Any) -> Any:
    """Import a MetaGraphDef into the current graph; the Saver of its variables, or None.

    `options` are those of `import_meta_graph`. Raises ModelError, in TensorFlow's words, where it
    does not import the model of this path.
    """
    import tensorflow as tf

    with _importing(path):
        return tf.compat.v1.train.import_meta_graph(meta, **options)


def _importing(path: str = "") -> AbstractContextManager[None]:
    where = f"{path}: " if path else ""
    return refused_as(ModelError, f"{where}TensorFlow does not import it")


@contextmanager
def refused_as(kind: type[GraphpatchError], what: str) -> Iterator[None]:
    """Raise this kind of error, in TensorFlow's words, where TensorFlow does not take a graph."""
    import tensorflow as tf

    try:
        yield
    except (ValueError, TypeError, LookupError, AssertionError, tf.errors.OpError) as error:
        raise kind(f"{what}: {first_line(error)}") from error
