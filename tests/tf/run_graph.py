"""Run a GraphDef in a Session of whatever TensorFlow there is, 1.15 (Python 3.7) included.

As a script: run_graph.py GRAPH.pb FEEDS.npz FETCHED.npz FETCH... [--gradients OF WRT...]
"""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run(graph_def, feeds, fetches, of=None, wrt=()):  # noqa: ANN001, ANN201
    """The values of the tensors `fetches`, by name, of a serialized GraphDef.

    So are the gradients of `of` by the tensors `wrt`, by these names with `gradient:` before, but
    for those that are None.
    """
    import tensorflow as tf

    if tf.__version__.startswith("1."):
        importlib.import_module("tensorflow.python.ops.while_v2")  # registers While's gradient
    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(tf1.GraphDef.FromString(graph_def), name="")
        asked = {name: graph.get_tensor_by_name(name) for name in fetches}
        if of is not None:
            tensors = [graph.get_tensor_by_name(name) for name in wrt]
            found = tf1.gradients(graph.get_tensor_by_name(of), tensors)
            asked.update({"gradient:" + name: dx for name, dx in zip(wrt, found) if dx is not None})
        options, traced = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), tf1.RunMetadata()
        with tf1.Session(graph=graph) as session:
            given = {name + ":0": feeds[name] for name in feeds}
            found = session.run(asked, given, options, traced)
    # TensorFlow 1.15 compiles ops that have no kernel for the CPU, and is wrong about NaN then.
    compiled = [device for device in traced.step_stats.dev_stats if "XLA" in device.device]
    assert not compiled, [node.node_name for device in compiled for node in device.node_stats]
    return found


if __name__ == "__main__":
    names, _, gradients = " ".join(sys.argv[4:]).partition("--gradients")
    of, *wrt = gradients.split() or [None]
    with open(sys.argv[1], "rb") as source:  # noqa: PTH123
        fetched = run(source.read(), dict(np.load(sys.argv[2])), names.split(), of, wrt)
    np.savez(sys.argv[3], **fetched)
