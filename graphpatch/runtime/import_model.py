"""Importing a model into the current graph, with the contexts that gradients of loops need."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import Model, load
from graphpatch.graph.graph import Graph
from graphpatch.graph.wire import piece_bytes
from graphpatch.runtime.register import register_lone_keys


def import_model(model: str | Path | Model, name: str = "", tags: str = "") -> Any:
    """Import a model into the current graph, as `tf.import_graph_def` does, contexts included.

    Forward: the graph of the file; `name` goes before the names of its ops, as a scope. Backward:
    `tf.compat.v1.gradients` passes v1 loops and branches, of which a GraphDef holds no contexts:
    they are rebuilt, and Exits that freezing pruned are added again. Registered are only gradients
    of ours that travel as a key alone (`emit: attr`), without which a Session fails; none where
    the file has none. `tags` choose one of several MetaGraphDefs of a SavedModel.

    Returns what `tf.compat.v1.train.import_meta_graph` does: a Saver where the model has variables,
    else None. Raises ModelError where the file cannot be read or its contexts not be rebuilt,
    GraphpatchError where TensorFlow executes eagerly. Not for a tape: TensorFlow has no gradient
    of v1 loops there.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        raise GraphpatchError(
            "import_model fills a graph, and TensorFlow executes eagerly: call it in "
            "`with tf.Graph().as_default():`"
        )
    meta = meta_graph(model if isinstance(model, Model) else load(model), tags)
    return tf.compat.v1.train.import_meta_graph(meta, import_scope=name or None)


def meta_graph(model: Model, tags: str = "") -> Any:
    """TensorFlow's MetaGraphDef of a model, contexts included; its lone keys are registered.

    Raises what `import_model` does.
    """
    import tensorflow as tf

    graph = _chosen(model, tags)
    try:
        data = b"".join(map(piece_bytes, model.meta_graph(graph)))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error
    register_lone_keys(graph)
    _warn_of_lists(graph)
    return tf.compat.v1.MetaGraphDef.FromString(data)


def _chosen(model: Model, tags: str) -> Graph:
    found = [graph for graph in model.graphs if not tags or graph.label == tags]
    if len(found) == 1:
        return found[0]
    there = ", ".join(repr(graph.label) for graph in model.graphs)
    raise ModelError(f"{model.path}: `tags` must choose one of its MetaGraphDefs: {there}")


def _warn_of_lists(graph: Graph) -> None:
    """TensorFlow 2 gives TensorArrays of v1 loops gradients only without control flow v2."""
    import tensorflow as tf

    if "TensorArrayV3" in graph.main.by_type and tf.compat.v1.control_flow_v2_enabled():
        warnings.warn(
            "gradients of its TensorArrays need tf.compat.v1.disable_control_flow_v2() first; "
            "TensorFlow raises a bare AssertionError else",
            stacklevel=3,
        )
