"""Where TensorFlow says that an op was made: in any graph, that of a function too.

`tf.Graph._create_op_helper` sets what `gradient_override_map` asks for, on every new op, since
TensorFlow 1. It is wrapped as long as somebody listens, and hears of ops of its own thread alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.graph.body import MAIN, Node
from graphpatch.graph.graph import LIBRARY
from graphpatch.graph.model_graph import ModelGraph, graph_of
from graphpatch.graph.wire import encoded

# The fields of GraphDef, FunctionDefLibrary, FunctionDef and OpDef that hold a node in a function.
NODE, FUNCTION, SIGNATURE, NODE_DEF, NAME = 1, 1, 1, 3, 1


def label_of(graph: Any) -> str:
    """What `body` in a match calls a graph: `main`, or the name of the function."""
    return getattr(graph, "name", None) or MAIN


def refuse_defun(graph: Any, node: Node) -> None:
    """Raise PatchError for an op in a Defun, of which TensorFlow builds the gradient in C++."""
    from tensorflow.python.framework import function

    while graph is not None and not isinstance(graph, function._FuncGraph):
        graph = getattr(graph, "outer_graph", None)
    if graph is not None:
        raise PatchError(
            f"{node} is in a Defun, which TensorFlow differentiates as a whole, without looking at "
            f"keys: patch_graph patches it once it is built, and a tf.function can be patched as "
            f'it is built; "body": "main" leaves functions out'
        )


def node_of(op: Any) -> tuple[ModelGraph, Node]:
    """A graph that holds this op alone, in the body that it is in, and its node there."""
    raw, label = op.node_def.SerializeToString(), label_of(op.graph)
    if label == MAIN:
        graph = graph_of(encoded(NODE, raw))
        return graph, Node(graph.main, 0)
    function = encoded(SIGNATURE, encoded(NAME, label.encode())) + encoded(NODE_DEF, raw)
    graph = graph_of(encoded(LIBRARY, encoded(FUNCTION, function)))
    return graph, Node(graph.functions[label], 0)


Listener = Callable[[Any], None]

CREATE_OP = "_create_op_helper"

_LISTENERS: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_HOOK_LOCK = threading.Lock()
_INSTALLED: dict[str, Any] = {"count": 0}


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with each op that this thread makes, in the order of nested contexts.

    Raises GraphpatchError where this TensorFlow has no such place.
    """
    _install()
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)
        _uninstall()


def _install() -> None:
    import tensorflow as tf

    with _HOOK_LOCK:
        original = getattr(tf.Graph, CREATE_OP, None)
        if original is None:
            raise GraphpatchError(
                f"TensorFlow {tf.__version__} has no Graph.{CREATE_OP}, so ops cannot be patched "
                f"as they are made; graphpatch.patch_graph patches the graph once it is built"
            )
        if _INSTALLED["count"] == 0:
            _INSTALLED["original"], _INSTALLED["ours"] = original, _wrapped(original)
            setattr(tf.Graph, CREATE_OP, _INSTALLED["ours"])
        _INSTALLED["count"] += 1


def _uninstall() -> None:
    import tensorflow as tf

    with _HOOK_LOCK:
        _INSTALLED["count"] -= 1
        # Where somebody wrapped it again meanwhile, ours stays, and calls nobody.
        if _INSTALLED["count"] == 0 and getattr(tf.Graph, CREATE_OP) is _INSTALLED["ours"]:
            setattr(tf.Graph, CREATE_OP, _INSTALLED["original"])


def _wrapped(original: Callable[..., None]) -> Callable[..., None]:
    def create(graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        original(graph, op, *args, **kwargs)
        for listener in _LISTENERS.get():
            listener(op)

    return create
