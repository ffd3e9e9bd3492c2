"""Insert an op behind each Relu with another tool; runs in the tool's own Python, 3.7 and later.

Usage: peer_edits.py TOOL MODEL.pb OUT.pb, where TOOL is graph_editor (tf.contrib.graph_editor of
TensorFlow 1.15) or transform_graph (its TransformGraph, which inserts Print ops and keeps no
gradients).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def graph_editor(model: str, output: str) -> None:
    import tensorflow as tf
    from tensorflow.contrib import graph_editor as ge

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(parsed(tf, model), name="")
        for op in [op for op in graph.get_operations() if op.type == "Relu"]:
            (old,) = op.outputs
            new = tf.stop_gradient(old, name=op.name + "/stop")
            ge.reroute_ts([new], [old], cannot_modify=[new.op])
    write(graph.as_graph_def(), output)


def transform_graph(model: str, output: str) -> None:
    import tensorflow as tf
    from tensorflow.tools.graph_transforms import TransformGraph

    graph_def = parsed(tf, model)
    last = graph_def.node[-1].name
    write(TransformGraph(graph_def, ["x"], [last], ["insert_logging(op=Relu)"]), output)


def parsed(tf: Any, model: str) -> Any:
    return tf.GraphDef.FromString(Path(model).read_bytes())


def write(graph_def: Any, output: str) -> None:
    Path(output).write_bytes(graph_def.SerializeToString())


TOOLS = {tool.__name__: tool for tool in (graph_editor, transform_graph)}

if __name__ == "__main__":
    TOOLS[sys.argv[1]](*sys.argv[2:])
