"""Differentiate many models in Sessions of one process, which has nothing of graphpatch in it.

As a script, under whatever TensorFlow there is, 1.15 (Python 3.7) included:
run_batch.py FOLDER TAG. FOLDER/jobs.json names for each job a GraphDef or MetaGraphDef file, with
`x:0` and `y:0` in it,
and what is fed as x. FOLDER/TAG.npz gets y and its gradient, FOLDER/TAG.json what was raised.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run(tf1, path, x, differentiate):  # noqa: ANN001, ANN201
    """The value of y:0, and its gradient by x:0 unless that is None."""
    with tf1.Graph().as_default() as graph:
        if path.endswith(".meta"):
            tf1.train.import_meta_graph(path)
        else:
            with open(path, "rb") as source:  # noqa: PTH123
                tf1.import_graph_def(tf1.GraphDef.FromString(source.read()), name="")
        asked = {"y": graph.get_tensor_by_name("y:0")}
        if differentiate:
            dx = tf1.gradients(asked["y"], graph.get_tensor_by_name("x:0"))[0]
            asked.update({} if dx is None else {"dx": dx})
        with tf1.Session(graph=graph) as session:
            session.run([op for op in graph.get_operations() if op.type == "AssignVariableOp"])
            return session.run(asked, {"x:0": np.array(x, np.float32)})


def main(folder, tag):  # noqa: ANN001, ANN201
    sys.modules["graphpatch"] = None  # whoever imports it fails
    import tensorflow as tf

    importlib.import_module("tensorflow.python.ops.while_v2")  # in 1.15: the gradient of While
    values, errors = {}, {}
    with open(os.path.join(folder, "jobs.json")) as source:  # noqa: PTH118, PTH123
        jobs = json.load(source)
    for name, (file, x, differentiate) in jobs.items():
        try:
            found = run(tf.compat.v1, os.path.join(folder, file), x, differentiate)  # noqa: PTH118
            values.update({name + "/" + key: value for key, value in found.items()})
        except Exception as error:
            errors[name] = type(error).__name__ + ": " + str(error)
    np.savez(os.path.join(folder, tag + ".npz"), **values)  # noqa: PTH118
    with open(os.path.join(folder, tag + ".json"), "w") as target:  # noqa: PTH118, PTH123
        json.dump(errors, target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
