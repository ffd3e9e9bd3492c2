"""Files that Keras writes: known by their first bytes, and refused with what to do instead."""

from __future__ import annotations

from graphpatch.errors import ModelError
from graphpatch.graph.wire import Source

ZIP = b"PK\x03\x04"
HDF5 = b"\x89HDF\r\n\x1a\n"

_EXPORT = (
    "write a SavedModel of it and name that folder: "
    "keras.models.load_model({name!r}).export({folder!r}); "
    "with tf_keras: tf.saved_model.save(tf_keras.models.load_model({name!r}), {folder!r})"
)


def refuse_keras(name: str, source: Source) -> None:
    """Raise ModelError where the bytes are a .keras or .h5 file, with how to write a SavedModel."""
    head = bytes(source.data[: len(HDF5)])
    folder = name.rpartition(".")[0] or f"{name}_saved_model"
    export = _EXPORT.format(name=name, folder=folder)
    if head.startswith(ZIP) and source.data.find(b"config.json") >= 0:
        raise ModelError(f"a Keras model, which holds layers and no graph; {export}")
    if head != HDF5:
        return
    if source.data.find(b"model_config") >= 0:
        raise ModelError(f"a Keras model in HDF5, which holds layers and no graph; {export}")
    raise ModelError(
        "an HDF5 file without a Keras model in it, perhaps weights alone; build the model in "
        f"Python, model.load_weights({name!r}), then model.export({folder!r}), and name that folder"
    )
