"""Importing a model into the current graph, with the contexts that gradients of loops need."""

from __future__ import annotations

import warnings
from typing import Any

from graphpatch.control_flow.contexts import has_tensor_arrays
from graphpatch.errors import GraphpatchError
from graphpatch.formats import model as formats_model
from graphpatch.formats.load import ModelLike, is_graph, model_from
from graphpatch.formats.model import Model, graph_with_tags
from graphpatch.graph.graph import Graph
from graphpatch.runtime.graph_run import require_tensorflow
from graphpatch.runtime.imported import import_here
from graphpatch.runtime.register import register_lone_keys


def import_model(model: ModelLike, name: str = "", tags: str = "") -> Any:
    """Import a model into the current graph, as `tf.import_graph_def` does, contexts included.

    Forward: the graph of the model; `name` goes before the names of its ops, as a scope. Backward:
    `tf.compat.v1.gradients` passes v1 loops and branches, of which a GraphDef holds no contexts:
    they are rebuilt, and Exits that freezing pruned are added again. Gradients that the file
    stores as a key without a function (`emit: attr`) are registered, as a Session needs them; the
    others are not. `model` is what `load` takes; `tags` choose one of several MetaGraphDefs.

    Returns what `tf.compat.v1.train.import_meta_graph` does: a Saver where the model has variables,
    else None. Not for a tape: TensorFlow has no gradient of v1 loops there.

    Raises:
        ModelError: The file cannot be read, its contexts cannot be rebuilt, TensorFlow does not
            import it, or it is larger than protobuf's 2 GB.
        RulesError: A key is not one that this version of graphpatch knows.
        GraphpatchError: TensorFlow executes eagerly.
        TypeError: `model` is not a model.

    Example:
        >>> with tf.Graph().as_default() as graph:
        ...     saver = graphpatch.import_model("patched.pb")
        ...     x, y = (graph.get_tensor_by_name(name) for name in ("x:0", "features:0"))
        ...     dx = tf.gradients(y, x)[0]
        >>> dx.shape
        TensorShape([1, 4, 4, 1])
    """
    tf = require_tensorflow("import_model fills a graph of")
    if tf.executing_eagerly():
        raise GraphpatchError(
            "import_model fills a graph, and TensorFlow executes eagerly: call it in "
            "`with tf.Graph().as_default():`"
        )
    loaded = model_from("model", model)
    meta = meta_graph(loaded, tags)
    return import_here(meta, loaded.path, import_scope=name or None)


def meta_graph(model: Model, tags: str = "") -> Any:
    """TensorFlow's MetaGraphDef of a model, contexts included; its lone keys are registered.

    Raises what `import_model` does.
    """
    meta = model.meta_graph_def(tags)
    graph = graph_with_tags(model, tags)
    register_lone_keys(graph)
    _warn_of_lists(graph)
    return meta


def import_into(model: Model, graph: Any, name: str, tags: str) -> Any:
    """`import_model` into a graph that need not be the current one."""
    if not is_graph(graph):
        raise TypeError(f"graph: expected a tf.Graph; found {type(graph).__name__}")
    with graph.as_default():
        return import_model(model, name, tags)


def _warn_of_lists(graph: Graph) -> None:
    """TensorFlow 2 gives TensorArrays of v1 loops gradients only without control flow v2."""
    import tensorflow as tf

    if has_tensor_arrays(graph.main) and tf.compat.v1.control_flow_v2_enabled():
        warnings.warn(
            "gradients of its TensorArrays need tf.compat.v1.disable_control_flow_v2() first; "
            "otherwise TensorFlow raises a bare AssertionError",
            stacklevel=3,
        )


formats_model.import_into.is_for(import_into)
