"""A model from its path, or from what Python has of it in memory."""

from __future__ import annotations

import os
from pathlib import Path

from graphpatch.arguments import check_progress
from graphpatch.errors import ModelError
from graphpatch.formats.destination import SAVED_MODEL_FILES as SAVED_MODEL_FILES
from graphpatch.formats.foreign import not_there
from graphpatch.formats.from_bytes import opened_at
from graphpatch.formats.model import Model
from graphpatch.formats.model_like import ModelLike, in_memory
from graphpatch.formats.target import FILES
from graphpatch.graph.heads import Progress
from graphpatch.graph.wire import Source, map_file
from graphpatch.mapped import read_whole

MOST_PIPED = 8 << 30  # bytes of a model that comes through a pipe; as text it may be long
MODELS_NAMED = 5  # models of a folder that are named


def load(model: ModelLike, progress: Progress | None = None) -> Model:
    """Read a model: a .pb, .pbtxt, .meta or SavedModel folder, or what Python has in memory.

    Args:
        model: A path (`-` is standard input), serialized bytes, a GraphDef, MetaGraphDef or
            SavedModel message of TensorFlow or tensorboard, a live `tf.Graph`, or a concrete
            function. A `Model` is returned as it is; for a `Result`, its model.
        progress: Called with what is done, how much of it, and of how much.

    Weights of a file are not read: they stay there, and the file must not change while the model
    is used. A live graph is exported as it is now, with its collections; a concrete function
    stands for its FuncGraph. Neither has values of variables.

    Raises:
        ModelError: There is no such file, it is not a model, or it is larger than protobuf's 2 GB.
        TypeError: `model` is none of these.

    When not to use it: for checkpoints, and .keras or .h5 files; they hold no graph.

    Example:
        >>> graphpatch.load("model.pb").node_count
        14
    """
    return model_from("model", model, progress)


def model_from(argument: str, given: ModelLike, progress: Progress | None = None) -> Model:
    """What `load` gives for an argument of this name, which a TypeError tells."""
    check_progress(progress)
    if not isinstance(given, str | os.PathLike):
        return in_memory(argument, given, progress)
    path = Path(given)
    try:
        if str(path) == "-":
            return opened_at(Path("-"), Source(read_whole(path, MOST_PIPED)), "", progress)
        if path.is_dir():
            path = _message_in(path)
        return opened_at(path, map_file(path), _folder_file(path), progress)
    except FileNotFoundError as error:
        raise ModelError(not_there(path)) from error
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        raise ModelError(f"cannot read {name}: {error.strerror or error}") from error


def _message_in(folder: Path) -> Path:
    for name in SAVED_MODEL_FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "saved_model.cpb").exists():
        raise ModelError(f"{folder}: saved_model.cpb, a SavedModel in chunks, cannot be read yet")
    found = sorted(path.name for path in folder.iterdir() if path.suffix in FILES)
    more = f"; name a model in it: {', '.join(found[:MODELS_NAMED])}" if found else ""
    if not more and (folder / "variables").is_dir():
        more = "; its variables are there, and its graph is missing: copy the whole SavedModel"
    raise ModelError(f"{folder} is a folder without {' or '.join(SAVED_MODEL_FILES)}{more}")


def _folder_file(path: Path) -> str:
    """The name of the message, where it stands for the SavedModel folder around it."""
    return path.name if path.name in SAVED_MODEL_FILES else ""
