"""Run one step of the parts that `graphpatch split` wrote, in a process of its own.

    run_part.py FOLDER STEP VALUES.npz

STEP counts the steps of FOLDER/parts.json from 1. What is fed is read from VALUES.npz by the names
that parts.json has, variables by theirs; what is fetched is added there. Send that file from one
machine to the next, and the last step leaves the gradients in it. Needs TensorFlow, 1.15 or 2, and
nothing of graphpatch.
"""

import json
import os
import sys
from typing import Any, Dict

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run(folder: str, number: int, values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the values that step `number` of the parts in a folder fetches, by their names."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with open(os.path.join(folder, "parts.json")) as source:  # noqa: PTH118, PTH123
        document = json.load(source)
    step = document["steps"][number - 1]
    held = next(part["variables"] for part in document["parts"] if part["file"] == step["part"])
    with tf1.Graph().as_default() as graph:
        with open(os.path.join(folder, step["part"]), "rb") as source:  # noqa: PTH118, PTH123
            tf1.import_graph_def(tf1.GraphDef.FromString(source.read()), name="")
        given = {tensor: values[name] for tensor, name in step["feed"].items()}
        given.update({name: values[name] for name in step["may_feed"] if name in values})
        assigned = [_assign(graph, name, values[name]) for name in held if name in values]
        with tf1.Session(graph=graph) as session:
            for op, placeholder, value in assigned:
                session.run(op, {placeholder: value})
            found = session.run(list(step["fetch"]), given)
    return dict(zip(step["fetch"].values(), found))


def _assign(graph: Any, name: str, value: Any) -> Any:
    """Return an op that sets a variable, the placeholder that it reads, and the value."""
    import tensorflow as tf

    variable = graph.get_tensor_by_name(name + ":0")
    placeholder = tf.compat.v1.placeholder(value.dtype)
    if variable.dtype == tf.resource:
        assign = tf.raw_ops.AssignVariableOp(resource=variable, value=placeholder)
    else:
        assign = tf.compat.v1.assign(variable, placeholder, validate_shape=False).op
    return assign, placeholder, value


if __name__ == "__main__":
    folder, step, path = sys.argv[1:]
    known = dict(np.load(path, allow_pickle=True))
    known.update(run(folder, int(step), known))
    np.savez(path, **known)
