"""What somebody does who gets a model file: builds one, loads it, differentiates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def save(build: Callable[[], object], path: Path, control_flow_v2: bool = True) -> Path:
    """Write the GraphDef of what `build` makes with tf.compat.v1."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()
    try:
        with tf1.Graph().as_default() as graph:
            build()
            path.write_bytes(graph.as_graph_def().SerializeToString())
    finally:
        tf1.enable_control_flow_v2()
    return path


def run(path: Path, feeds: Mapping[str, Any], fetches: Sequence[str]) -> list[Any]:
    """The values of tensors of a frozen graph, in a Session."""
    graph = imported(path)
    with graph.as_default():
        return session(graph, list(fetches), feeds)


def differentiate(path: Path, of: str, wrt: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """The gradients of a tensor of a frozen graph, by tf.gradients and a Session; None stays."""
    import tensorflow as tf

    graph = imported(path)
    with graph.as_default():
        tensors = [graph.get_tensor_by_name(name) for name in wrt]
        return session(graph, tf.gradients(graph.get_tensor_by_name(of), tensors), feeds)


def imported(path: Path) -> Any:
    """The tf.Graph of a GraphDef file."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        tf.compat.v1.import_graph_def(definition, name="")
    return graph


def session(graph: Any, fetches: Sequence[Any], feeds: Mapping[str, Any]) -> list[Any]:
    """The values of tensors in a Session, None for None."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=graph) as running:
        wanted = {place: one for place, one in enumerate(fetches) if one is not None}
        found = running.run(wanted, dict(feeds))
    return [found.get(place) for place in range(len(fetches))]


def same_bits(one: Any, other: Any) -> bool:
    """Bit by bit: NaNs by their payload, zeros by their sign."""
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
