"""Loading a patched file in TensorFlow: its gradients registered, its graph imported."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphpatch.control_flow.contexts import has_tensor_arrays
from graphpatch.differentiation.flow import override_key
from graphpatch.errors import GraphpatchError, ModelError, did_you_mean
from graphpatch.formats import model as formats_model
from graphpatch.formats.load import ModelLike, is_graph, model_from
from graphpatch.formats.model import Model, graph_with_tags
from graphpatch.gradients.attach import PASS
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.graph import ModelGraph, graph_of, graph_pieces
from graphpatch.graph.node import Node
from graphpatch.graph.walk import tensor_named
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import op_of
from graphpatch.runtime import tf
from graphpatch.runtime.gradient_functions import gradient_of
from graphpatch.runtime.graph_run import require_tensorflow
from graphpatch.runtime.imported import graph_def_of, import_here

# TensorFlow refuses to register a key twice in a process, and has no public way to ask.
_DONE: set[str] = set()
_REGISTRY_LOCK = threading.Lock()


def register_gradients(model: ModelLike) -> list[str]:
    """Register every gradient of ours that a patched model, or a live graph, carries.

    Forward nothing changes. Backward, a Session needs it for keys without a function in the file
    (`emit: attr`); a tape and second derivatives need it for all. Call it in the process that loads
    the file, before gradients are built; calling it again does nothing. Keys that graphpatch did
    not write are skipped. `model` is what `load` takes. Returns our keys, sorted.

    Raises:
        ModelError: The model cannot be read, or lacks a function that a key names.
        RulesError: A key is not one that this version of graphpatch knows.
        TypeError: `model` is not a model.

    When not to use it: in a Session, for a graph that `import_model` or `import_into` imported.

    Example:
        >>> keys = graphpatch.register_gradients("patched.pb")
        >>> keys[0]
        'graphpatch/guided_relu_8c9e5a2f'
    """
    if is_graph(model):  # its library and keys alone are needed
        graphs = [graph_of(graph_def_of(model))]
    else:  # one that was patched in memory as its file would hold it
        graphs = [
            graph_of(b"".join(map(piece_bytes, graph_pieces(graph)))) if graph.is_changed else graph
            for graph in model_from("model", model).graphs
        ]
    return sorted({key for graph in graphs for key in register_keys(graph, lambda _: True)})


def register_keys(graph: ModelGraph, is_meant: Callable[[Node], bool]) -> set[str]:
    """Register the gradients of ours that these ops of a graph carry; return their keys."""
    keys = (register(node) for node in overridden_ops(graph) if is_meant(node))
    return set(filter(None, keys))


def register_lone_keys(graph: ModelGraph) -> set[str]:
    """Register our keys for which no function of the library has the gradient.

    What `register_gradients` does, for no more than a Session cannot do without.
    """
    return register_keys(graph, lambda node: node.op not in graph.library.gradients)


def register(node: Node, allow_python: bool = False) -> str:
    """Register the gradient of an op's key once, if it is one of ours; return that key, or none."""
    key = override_key(node) or ""
    if key not in _DONE:
        require_tensorflow("gradients are registered with")
        function = gradient_of(node, allow_python)
        if function is None:
            return ""
        with _REGISTRY_LOCK:
            if key not in _DONE:
                tf.RegisterGradient(key)(function)
                _DONE.add(key)
    return key


def overridden_ops(graph: ModelGraph) -> Iterator[Node]:
    """Yield the ops that have an override.

    Left out are keys that are for tf.saved_model.load alone, which restores their gradients.
    """
    for body in graph.bodies:
        for node in () if body.is_ours else body:
            has_key = body.payload(node.index).mentions(OVERRIDE)
            key = override_key(node) if has_key else None
            if key is not None and not key.startswith(PASS):
                yield node


def import_model(
    model: ModelLike, name: str = "", tags: str = "", input_map: Mapping[str, Any] | None = None
) -> Any:
    """Import a model into the current graph, as `tf.import_graph_def` does, contexts included.

    Forward: the graph of the model; `name` goes before the names of its ops, as a scope. Backward:
    `tf.compat.v1.gradients` passes v1 loops and branches, of which a GraphDef holds no contexts:
    they are rebuilt, and Exits that freezing pruned are added again. Gradients that the file
    stores as a key without a function (`emit: attr`) are registered, as a Session needs them; the
    others are not. `model` is what `load` takes; `tags` choose one of several MetaGraphDefs.
    `input_map` has tensors of the current graph, or variables, by the names of the model's own
    that they stand for: what read `x:0` reads `{"x:0": mine}` instead.

    Returns what `tf.compat.v1.train.import_meta_graph` does: a Saver where the model has variables,
    else None. Not for a tape, on which v1 loops have no gradient: `graphpatch.keras.PatchedModel`
    gives one there.

    Raises:
        ModelError: The file cannot be read, its contexts cannot be rebuilt, TensorFlow does not
            import it, `input_map` names a tensor that nothing reads, or it is larger than
            protobuf's 2 GB.
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
    require_tensorflow("import_model fills a graph of")
    if tf.executing_eagerly():
        raise GraphpatchError(
            "import_model fills a graph, and TensorFlow executes eagerly: call it in "
            "`with tf.Graph().as_default():`"
        )
    loaded = model_from("model", model)
    meta = meta_graph(loaded, tags)
    options = {} if input_map is None else {"input_map": _tensors_for(input_map, loaded, tags)}
    return import_here(meta, loaded.path, import_scope=name or None, **options)


def _tensors_for(input_map: Mapping[str, Any], model: Model, tags: str) -> dict[str, Any]:
    """Return the tensors that stand for the model's own. Raises ModelError for a foreign name."""
    tensors, main = {}, graph_with_tags(model, tags).main
    for text, value in input_map.items():
        tensor = tensor_named(main, text)
        if tensor is None:
            near = did_you_mean(op_of(text), main.by_name)
            raise ModelError(f"{model.path}: input_map: there is no tensor {text}{near}")
        tensors[tensor.full] = tf.convert_to_tensor(value)
    return tensors


def meta_graph(model: Model, tags: str = "") -> Any:
    """Return TensorFlow's MetaGraphDef of a model, contexts included; register its lone keys.

    Raises what `import_model` does.
    """
    meta = model.meta_graph_def(tags)
    graph = graph_with_tags(model, tags)
    register_lone_keys(graph)
    # TensorFlow 2 gives TensorArrays of v1 loops gradients only without control flow v2.
    if has_tensor_arrays(graph.main) and tf.compat.v1.control_flow_v2_enabled():
        warnings.warn(
            "gradients of its TensorArrays need tf.compat.v1.disable_control_flow_v2() first; "
            "otherwise TensorFlow raises a bare AssertionError",
            stacklevel=2,
        )
    return meta


def import_into(model: Model, graph: Any, name: str, tags: str) -> Any:
    """Import a model into a graph that need not be the current one."""
    if not is_graph(graph):
        raise TypeError(f"graph: expected a tf.Graph; found {type(graph).__name__}")
    with graph.as_default():
        return import_model(model, name, tags)


formats_model.import_into.is_for(import_into)
