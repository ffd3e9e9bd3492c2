"""Differentiate TF2 SavedModels in one process, which cannot import graphpatch.

As a script: run_saved_models.py FOLDER. FOLDER/jobs.json names for each job a SavedModel folder,
what is fed as x, and whether second derivatives are wanted, which take long through loops.
FOLDER/values.npz gets, for each signature, the outputs, dy/dx on a tape and its derivative; and
dy/dx in a Session. FOLDER/errors.json gets what was raised.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def on_a_tape(function: Any, x: Any, twice: bool) -> dict[str, Any]:
    """The outputs (without a tape), and the first and second derivative of the sum of y by x."""
    import tensorflow as tf

    found = {key: value.numpy() for key, value in function(x=x).items()}
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        if twice:
            outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x=x)["y"]
        dx = tape.gradient(y, x)
    second = outer.gradient(dx, x) if twice and dx is not None else None
    found |= {} if dx is None else {"dx": dx.numpy()}
    return found | ({} if second is None else {"second": second.numpy()})


def in_a_session(folder: str, x: Any) -> Iterator[tuple[str, Any]]:
    """The gradient of y by x of each signature, as a Session gives it; or what it raises."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        meta = tf1.saved_model.load(session, ["serve"], folder)
        for name, signature in sorted(meta.signature_def.items()):
            if "x" in signature.inputs:
                x0 = graph.get_tensor_by_name(signature.inputs["x"].name)
                y = graph.get_tensor_by_name(signature.outputs["y"].name)
                try:
                    dx = tf1.gradients(y, x0)[0]
                    yield name, None if dx is None else session.run(dx, {x0: x.numpy()})
                except Exception as error:
                    yield name, error


def run(folder: str, x: Any, twice: bool, values: dict[str, Any], errors: dict[str, str]) -> None:
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    name = Path(folder).name
    for signature, function in loaded.signatures.items():
        found = on_a_tape(function, x, twice)
        values.update({f"{name}/{signature}/{key}": value for key, value in found.items()})
    for signature, found in in_a_session(folder, x):
        if isinstance(found, Exception):
            errors[f"{name}/{signature}"] = f"{type(found).__name__}: {found}"
        elif found is not None:
            values[f"{name}/{signature}/session"] = found


def main(folder: Path) -> None:
    sys.modules["graphpatch"] = None  # type: ignore[assignment]  # whoever imports it fails
    import tensorflow as tf

    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, (x, twice) in json.loads((folder / "jobs.json").read_text()).items():
        run(str(folder / name), tf.constant(x), twice, values, errors)
    np.savez(folder / "values.npz", **values)
    (folder / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
