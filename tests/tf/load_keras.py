"""In a fresh process: load saved models, and print what each computes, and its gradient.

python load_keras.py FOLDER keras|tf_keras|none: the .keras files with that Keras; the SavedModels
with none, and without graphpatch.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# What was loaded must stay: the variables of a function are deleted with their model.
KEPT = []


def loaded(path: Path, name: str) -> Any:
    if name == "none":
        found = tf.saved_model.load(str(path))
        KEPT.append(found)
        return getattr(found, "serve", found)
    importlib.import_module(f"graphpatch.{name}")
    return importlib.import_module(name).models.load_model(path)


def main(folder: Path, name: str) -> None:
    x, dy = (tf.constant(np.load(folder / f"{one}.npy")) for one in ("x", "dy"))
    found = {}
    for path in sorted(folder.glob("*.saved" if name == "none" else "*.keras")):
        sys.stderr.write(f"\nloading {path.stem}\n")
        model = loaded(path, name)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        found[path.stem] = [y.numpy().tolist(), tape.gradient(y, x, dy).numpy().tolist()]
    assert name != "none" or "graphpatch" not in sys.modules
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
