"""What somebody does who gets a model file: builds one, loads it, differentiates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def built(build: Callable[[], object], control_flow_v2: bool = True) -> Any:
    """The GraphDef of what `build` makes with tf.compat.v1."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()
    try:
        with tf1.Graph().as_default() as graph:
            build()
            return graph.as_graph_def()
    finally:
        tf1.enable_control_flow_v2()


def save(build: Callable[[], object], path: Path, control_flow_v2: bool = True) -> Path:
    """Write the GraphDef of what `build` makes."""
    path.write_bytes(built(build, control_flow_v2).SerializeToString())
    return path


def run(model: Any, feeds: Mapping[str, Any], fetches: Sequence[str]) -> list[Any]:
    """The values of tensors of a frozen graph, in a Session."""
    graph = imported(model)
    with graph.as_default():
        return session(graph, list(fetches), feeds)


def differentiate(model: Any, of: str, wrt: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """The gradients of a tensor of a frozen graph, by tf.gradients and a Session; None stays."""
    import tensorflow as tf

    graph = imported(model)
    with graph.as_default():
        tensors = [graph.get_tensor_by_name(name) for name in wrt]
        return session(graph, tf.gradients(graph.get_tensor_by_name(of), tensors), feeds)


def imported(model: Any) -> Any:
    """The tf.Graph of a GraphDef or its file, by TensorFlow alone."""
    import tensorflow as tf

    if isinstance(model, Path):
        model = tf.compat.v1.GraphDef.FromString(model.read_bytes())
    with tf.Graph().as_default() as graph:
        tf.compat.v1.import_graph_def(model, name="")
    return graph


def session(
    graph: Any, fetches: Sequence[Any], feeds: Mapping[str, Any] | None = None
) -> list[Any]:
    """The values of tensors, or of tensors by name, in a Session; None for None."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=graph) as running:
        wanted = {place: one for place, one in enumerate(fetches) if one is not None}
        found = running.run(wanted, dict(feeds or {}))
    return [found.get(place) for place in range(len(fetches))]


def taped(f: Callable[[Any], Any], x: Any, dy: Any = None) -> tuple[Any, Any]:
    """What f gives for x, and the gradient of that by x, on a tape."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        x = tf.convert_to_tensor(x)
        tape.watch(x)
        y = f(x)
    return y, tape.gradient(y, x, dy)


def same_bits(one: Any, other: Any) -> bool:
    """Bit by bit: NaNs by their payload, zeros by their sign."""
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
