"""Graphs run op by op, with Grappler off, in the functions that they call, too.

A Session optimises the function of a PartitionedCall by the `config_proto` of that op, whatever its
own settings are.
"""

from __future__ import annotations

from typing import Any

from graphpatch.differentiation.bodies import CALLS

OLD = "config"  # where TensorFlow 1.13 to 1.15 look, too


def run_op_by_op(graph_def: Any) -> bool:
    """Let the functions that a GraphDef calls run with Grappler off; whether it calls any."""
    bodies = graph_def.node, *(one.node_def for one in graph_def.library.function)
    calls = [node for nodes in bodies for node in nodes if node.op in CALLS]
    for node in calls:
        config = _config(node)
        without_grappler(config)
        node.attr["config_proto"].s = config.SerializeToString()
        if OLD in node.attr:
            node.attr[OLD].s = b""
    return bool(calls)


def without_grappler(config: Any) -> None:
    """Have this ConfigProto run graphs op by op."""
    import tensorflow as tf

    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0


def _config(node: Any) -> Any:
    import tensorflow as tf

    return tf.compat.v1.ConfigProto.FromString(node.attr["config_proto"].s)
